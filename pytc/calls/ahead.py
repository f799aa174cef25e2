"""Ahead of time with static leaves: JAX's stages, called with the arguments that the function takes.

JAX compiles for what `Stageable.hide` makes of the arguments. A compiled program that is given the arguments
themselves would find another tree; so what comes of `lower` and `trace` hides them first. All else is JAX's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytc.arguments.leaves import StaticArgument, static_key
from pytc.move import unmoved
from pytc.program import Leaf
from pytc.stage import Stageable


class Hiding:
    """A `jax.stages.Traced`, `Lowered` or `Compiled` of a function with static leaves, with its attributes and
    methods. Compiled, it is called with all arguments of the function, static ones too.

    Raises `TypeError` where these are not what it was compiled for, naming the leaf.
    """

    def __init__(
        self, stage: Any, stageable: Stageable, leaves: Sequence[Leaf], finished: Callable[[Any], Any]
    ) -> None:
        self._stage = stage
        self._stageable = stageable
        self._leaves = leaves
        self._finished = finished

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what `copy` and the like ask for, of an object that has no attributes yet
            raise AttributeError(name)
        return getattr(self._stage, name)

    def lower(self, *args: Any, **kwargs: Any) -> Hiding:
        """`jax.stages.Traced.lower`."""
        return Hiding(self._stage.lower(*args, **kwargs), self._stageable, self._leaves, self._finished)

    def compile(self, *args: Any, **kwargs: Any) -> Hiding:
        """`jax.stages.Lowered.compile`."""
        return Hiding(self._stage.compile(*args, **kwargs), self._stageable, self._leaves, self._finished)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.stages.Compiled.__call__`, for the function's own arguments."""
        args, kwargs = unmoved(args, kwargs)
        given = self._stageable.leaves(args, kwargs, share=False)
        paths, wanted = ([leaf.path for leaf in leaves] for leaves in (given, self._leaves))
        if paths != wanted:
            raise TypeError(f"{self._stageable.name} was compiled for the leaves {wanted}, and called with {paths}")
        for was, leaf in zip(self._leaves, given, strict=True):
            if _static(was) != _static(leaf):
                raise TypeError(
                    f"`{leaf.path}` is {_shown(leaf)}, and {self._stageable.name} was compiled for {_shown(was)}: "
                    "what is not an array is part of the compiled program. Lower and compile it for this value too."
                )
        args, kwargs = self._stageable.hide(args, kwargs, given)
        return self._finished(self._stage(*args, **kwargs))


def _static(leaf: Leaf) -> Any:
    if not leaf.is_static:
        return None
    value = leaf.value.value if isinstance(leaf.value, StaticArgument) else leaf.value
    return type(value), static_key(value)


def _shown(leaf: Leaf) -> str:
    if leaf.is_static:
        return f"{leaf.value.value if isinstance(leaf.value, StaticArgument) else leaf.value!r:.60}"
    return "an array"
