"""The program that JAX traced for a call, with its leaves named as the script's caller names them.

Asking JAX for the trace of a call that is about to be made costs nothing, because the call itself then reuses that
trace. So the script's function runs no more often than without the audit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import PyTreeDef, keystr, tree_flatten, tree_flatten_with_path

from pytc.arguments import shardings
from pytc.arguments.leaves import Parameters, names_in, numbers_in
from pytc.errors import LeftToJit
from pytc.explain.by_hand import AsJit
from pytc.explain.memory import stand_ins
from pytc.interrupt import is_from_outside
from pytc.jax_compat.effects import may_call_python
from pytc.jax_compat.jaxprs import ClosedJaxpr, subjaxprs
from pytc.jax_compat.trees import paths_of
from pytc.passes.finalise import finalise_jaxpr
from pytc.program import Computed, Input, Leaf, Output, Program
from pytc.stage import Stageable

_NOT_FOR_THE_WHOLE = (
    "donate_argnums donate_argnames static_argnums static_argnames in_shardings out_shardings inline".split()
)


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """One program, and which of its arguments the script donates."""

    as_jit: AsJit
    """No pass was run on it, and it holds no arrays but those that the function captured."""
    donated: frozenset[int]
    """The leaves (indices into `as_jit.staged.leaves`) that the script donates."""
    calls_python: bool


@dataclasses.dataclass(frozen=True)
class Jit:
    """How to trace a function that `jax.jit` made."""

    jitted: Any
    fun: Callable[..., Any]
    options: Mapping[str, Any]

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """JAX's trace; raises what the call would raise."""
        return self.jitted.trace(*args, **kwargs)

    def read(
        self,
        stage: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        names: Mapping[int, tuple[str, str]] | None = None,
    ) -> Traced:
        """The program. `names` has, by id, the parameter and path of each array: Equinox and Flax pass the arguments in
        other containers, but the arrays are the same objects."""
        get = self.options.get
        parameters = Parameters(self.fun, get("static_argnums"), get("static_argnames"))
        stageable = Stageable(self.fun, parameters, "trace", get("in_shardings"), get("out_shardings"))
        leaves = stageable.leaves(args, kwargs, share=False)
        requested = shardings.for_result(get("out_shardings"), stage.out_tree)
        numbers, by_name = get("donate_argnums"), get("donate_argnames")
        donated = {parameters.donated_name(i) for i in numbers_in("donate_argnums", () if numbers is None else numbers)}
        donated.update(names_in("donate_argnames", () if by_name is None else by_name))
        flags = [leaf.parameter in donated for leaf in leaves if not leaf.is_static]
        options = {name: value for name, value in self.options.items() if name not in _NOT_FOR_THE_WHOLE}
        values, _ = tree_flatten(parameters.wrap_static(args, kwargs))
        if names is not None:
            leaves = tuple(
                _renamed(leaf, *names.get(id(v), ("", leaf.path))) for leaf, v in zip(leaves, values, strict=True)
            )
        return _traced(stageable.name, stage.jaxpr, _named(stage), leaves, values, requested, flags, options)


def _named(stage: Any) -> tuple[PyTreeDef, Sequence[str]]:
    """The tree of the result, and the path of each leaf."""
    tree = stage.out_tree
    try:
        return tree, [keystr(path) for path, _ in tree_flatten_with_path(stage.out_info)[0]]
    except Exception as error:  # `out_info` has no arrays, and a user's class may accept nothing else
        if is_from_outside(error):
            raise
        return tree, [*paths_of(tree)]


@dataclasses.dataclass(frozen=True)
class Pmap:
    """How to trace a function that `jax.pmap` made: since JAX 0.8 a `jax.jit` of a `shard_map`."""

    pmapped: Any
    fun: Callable[..., Any]
    options: Mapping[str, Any]

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The jaxpr and the result's shapes; raises what the call would raise."""
        static = self.options.get("static_broadcasted_argnums", ())
        return jax.make_jaxpr(self.pmapped, static_argnums=static, return_shape=True)(*args, **kwargs)

    def read(self, stage: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
        """The program."""
        closed, result = stage
        parameters = Parameters(self.fun, self.options.get("static_broadcasted_argnums"))
        stageable = Stageable(self.fun, parameters)
        leaves = stageable.leaves(args, kwargs, share=False)
        mapped = _mapped(closed)
        places = [jax.NamedSharding(mapped.params["mesh"], spec) for spec in mapped.params["in_specs"]]
        results = [jax.NamedSharding(mapped.params["mesh"], spec) for spec in mapped.params["out_specs"]]
        dynamic = [i for i, leaf in enumerate(leaves) if not leaf.is_static]
        changed = list(leaves)
        for i, place in zip(dynamic, places, strict=True):
            changed[i] = dataclasses.replace(leaves[i], sharding=None, requested=place)
        numbers = numbers_in("donate_argnums", self.options.get("donate_argnums", ()))
        given = {parameters.positional_name(i) for i in range(len(args))}
        names = given.intersection(map(parameters.donated_name, numbers))
        flags = [leaves[i].parameter in names for i in dynamic]
        values, _ = tree_flatten(parameters.wrap_static(args, kwargs))
        result_paths = [keystr(path) for path, _ in tree_flatten_with_path(result)[0]]
        named = jax.tree.structure(result), result_paths
        return _traced(stageable.name, closed, named, changed, values, results, flags, {})


def _mapped(closed: ClosedJaxpr) -> Any:
    """The `shard_map` equation."""
    ahead = list(closed.jaxpr.eqns)
    while ahead:
        eqn = ahead.pop(0)
        if eqn.primitive.name == "shard_map":
            return eqn
        ahead += [inner for sub in subjaxprs(eqn) for inner in sub.eqns]
    raise ValueError("jax.pmap traced to something else than a shard_map")


def _traced(
    name: str,
    closed: ClosedJaxpr,
    result: tuple[PyTreeDef, Sequence[str]],
    leaves: Sequence[Leaf],
    values: Sequence[Any],
    requested: Sequence[Any],
    flags: Sequence[bool],
    options: Mapping[str, Any],
) -> Traced:
    dynamic = [i for i, leaf in enumerate(leaves) if not leaf.is_static]
    avals = [var.aval for var in closed.jaxpr.invars]
    known = [
        dataclasses.replace(leaf, value=None) if leaf.is_static else leaf for leaf in leaves
    ]  # a static value may hold arrays
    for i, aval in zip(dynamic, avals, strict=True):
        known[i] = dataclasses.replace(known[i], aval=aval)
    tree, paths = result
    outputs = [Output(path, Computed(i), requested[i] if requested else None) for i, path in enumerate(paths)]
    staged = Program(name, closed, tuple(known), tuple(map(Input, dynamic)), tuple(outputs), tree)
    given = stand_ins(known, [None if leaf.is_static else v for leaf, v in zip(leaves, values, strict=True)])
    first: dict[int, int] = {}
    shared = [
        frozenset((i, first[id(value)]))
        for i, value in enumerate(values)
        if isinstance(value, jax.Array) and first.setdefault(id(value), i) != i
    ]
    as_jit = AsJit(staged, given, dict(options), shared=tuple(shared))
    donated = frozenset(i for i, flag in zip(dynamic, flags, strict=True) if flag)
    return Traced(as_jit, donated, _calls_python(closed))


def _calls_python(closed: ClosedJaxpr) -> bool:
    """Whether Python code may run while the program does. A `HiPrim` is asked what it stands for: in JAX 0.12
    `jnp.searchsorted` is one."""
    try:
        return may_call_python(closed) and may_call_python(finalise_jaxpr(closed))
    except LeftToJit:
        return True


def _renamed(leaf: Leaf, parameter: str, path: str) -> Leaf:
    return dataclasses.replace(leaf, parameter=parameter, path=path)
