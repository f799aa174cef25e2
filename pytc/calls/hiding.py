"""Static leaves, where `jax.jit` stands in for a compiled function: under a transformation, or ahead of time.

JAX is given what `Stageable.hide` makes of the arguments. A program that it compiles for that, and is given the
arguments themselves, would find another tree; so what comes of `lower` and `trace` hides them first. All else is JAX's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.tree_util import tree_flatten, tree_structure, tree_unflatten

from pytc.arguments.leaves import static_key, unwrapped
from pytc.arguments.shardings import for_result
from pytc.arguments.static_objects import owners
from pytc.jax_compat import api
from pytc.jax_compat.trees import nodes
from pytc.move import unmoved
from pytc.program import Computed, Leaf
from pytc.stage import Stageable


class _Hidden(NamedTuple):
    """`jax.jit` for arguments without their static leaves."""

    jitted: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """What it takes: the arguments that `Stageable.hide` gives."""
    result: Callable[[Any], Any]
    """What makes the caller's result of what it returns, or of abstract values for that."""


class JitHiding:
    """`jax.jit` of a function, for arguments with static leaves that no option names."""

    def __init__(self, stageable: Stageable, options: Mapping[str, Any]) -> None:
        self._stageable = stageable
        self._options = options
        self.jitted: dict[Hashable, Any] = {}
        """By the shardings that are asked for: JAX wants them leaf by leaf, and which leaves there are depends on what
        is hidden."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `jax.jit` returns for these arguments."""
        hidden = self._hidden(args, kwargs, self._stageable.leaves(args, kwargs, share=False))
        return hidden.result(hidden.jitted(*hidden.args, **hidden.kwargs))

    def ahead(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Leaf],
        method: Callable[[Any], Callable[..., Any]],
    ) -> Any:
        """What a method of `jax.jit`'s returns for these arguments: `lower`, `trace` or `eval_shape`."""
        hidden = self._hidden(args, kwargs, leaves)
        made = method(hidden.jitted)(*hidden.args, **hidden.kwargs)
        if isinstance(made, jax.stages.Traced | jax.stages.Lowered):
            return Hiding(made, self._stageable, leaves, hidden.result)
        return hidden.result(made)

    def _hidden(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Leaf]) -> _Hidden:
        stageable, asked = self._stageable, dict[str, Any]()
        args, kwargs = stageable.hide(args, kwargs, leaves)
        traced: Callable[..., Any] = stageable.traced
        result = _as_it_is
        if stageable.in_shardings is not None:
            requested = [leaf.requested for leaf in leaves if not leaf.is_static]
            alike = len({*requested}) == 1  # then what is remembered is not for each static value anew
            asked["in_shardings"] = requested[0] if alike else tree_unflatten(tree_structure(args), requested)
        if stageable.out_shardings is not None:
            # The tree of a `Returned` is that of one trace alone, so JAX is asked for a list of its arrays.
            _, returned = next(nodes(stageable.jitted.trace(*args, **kwargs).out_tree))
            wanted = zip(returned.origins, for_result(stageable.out_shardings, returned.tree), strict=True)
            asked["out_shardings"] = [sharding for origin, sharding in wanted if isinstance(origin, Computed)]
            traced, result = stageable.traced_arrays, returned.result
        flat = {name: tree_flatten(asked[name], lambda part: part is None) for name in asked}
        key = tuple((name, tuple(shardings), tree) for name, (shardings, tree) in flat.items())
        if key not in self.jitted:
            self.jitted.setdefault(key, api.jit(traced, **self._options, **asked))
        if any(owners(leaves)):
            stageable.refuse_stale(leaves, self.jitted[key], self.jitted[key].trace(*args, **kwargs))
        return _Hidden(self.jitted[key], args, kwargs, result)


def _as_it_is(result: Any) -> Any:
    return result


def _as_they_are(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


class Hiding:
    """A `jax.stages.Traced`, `Lowered` or `Compiled` of a function with static leaves, with its attributes and
    methods. Compiled, it is called with all arguments of the function, static ones too, or with those of which `every`
    makes all.

    Raises `TypeError` where these are not what it was compiled for, naming the leaf.
    """

    def __init__(
        self,
        stage: Any,
        stageable: Stageable,
        leaves: Sequence[Leaf],
        result: Callable[[Any], Any] = _as_it_is,
        every: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]] = _as_they_are,
    ) -> None:
        self._stage = stage
        self._stageable = stageable
        self._leaves = leaves
        self._result = result
        self._every = every

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """That of the stage, for those who ask whether this is one."""
        return type(self._stage)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_stage":  # `copy` and the like ask an object that has no attributes yet
            raise AttributeError(name)
        return getattr(self._stage, name)

    def lower(self, *args: Any, **kwargs: Any) -> Hiding:
        """`jax.stages.Traced.lower`."""
        return self._at(self._stage.lower(*args, **kwargs))

    def compile(self, *args: Any, **kwargs: Any) -> Hiding:
        """`jax.stages.Lowered.compile`."""
        return self._at(self._stage.compile(*args, **kwargs))

    def _at(self, stage: Any) -> Hiding:
        return Hiding(stage, self._stageable, self._leaves, self._result, self._every)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.stages.Compiled.__call__`, for the function's own arguments."""
        args, kwargs = self._every(*unmoved(args, kwargs))
        given = self._stageable.leaves(args, kwargs, share=False)
        for was, leaf in itertools.zip_longest(self._leaves, given):
            if was is None or leaf is None or was.path != leaf.path:
                hint = "" if self._every is _as_they_are else " (it is called without the static arguments)"
                there, wanted = (f"`{each.path}`" if each is not None else "no other leaf" for each in (leaf, was))
                raise TypeError(
                    f"{self._stageable.name} was compiled for arguments of another structure: with {wanted} where "
                    f"there is {there}{hint}"
                )
        for was, leaf in zip(self._leaves, given, strict=True):
            if _static(was) != _static(leaf):
                raise TypeError(
                    f"`{leaf.path}` is {_shown(leaf)}, and {self._stageable.name} was compiled for {_shown(was)}: "
                    "what is not an array is part of the compiled program. Lower and compile it for this value too."
                )
        args, kwargs = self._stageable.hide(args, kwargs, given)
        return self._result(self._stage(*args, **kwargs))


def _static(leaf: Leaf) -> Any:
    if not leaf.is_static:
        return None
    value = unwrapped(leaf.value)
    return type(value), static_key(value)


def _shown(leaf: Leaf) -> str:
    if leaf.is_static:
        return f"{unwrapped(leaf.value)!r:.60}"
    return "an array"
