"""The same for a mapped function: `jax.pmap` with the axes that are computed here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import tree_flatten, tree_structure

from pytc.arguments.leaves import StaticArgument
from pytc.arguments.parted import put_together
from pytc.calls.hiding import Hiding
from pytc.calls.instead import Instead, donated_options
from pytc.calls.layout import describe
from pytc.calls.planner import Planner
from pytc.jax_compat import api
from pytc.jax_compat.avals import stand_in
from pytc.jax_compat.rules import evaluate
from pytc.jax_compat.running import cache_size, executing
from pytc.mapping import axis_of
from pytc.program import Computed, Passed, Program
from pytc.stage import Returned
from pytc.stage_mapped import MappedStageable


class PmapInstead(Instead):
    """`jax.pmap` of a function; under a transformation and ahead of time, `jax.jit` of a map."""

    def __init__(self, stageable: MappedStageable, planner: Planner) -> None:
        self._stageable = stageable
        self._planner = planner
        self._traced: Any = api.jit(functools.partial(self._whole, traced=True), **planner.options)
        self._ahead_of_time = functools.partial(self._whole, traced=False)
        self._by_jax: dict[Any, tuple[Callable[..., Any], Returned]] = {}

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]) -> Any:
        """As described by `Instead`."""
        named = self._stageable.leaves(args, kwargs, share=False)
        hidden_args, hidden_kwargs = self._stageable.hide(args, kwargs, named)
        if not executing():
            return self._traced(*hidden_args, **hidden_kwargs)
        key = (
            tree_structure((hidden_args, hidden_kwargs)),
            tuple((describe(value), leaf.axis) for value, leaf in zip(leaves, named, strict=True)),
        )
        if key not in self._by_jax:
            self._by_jax[key] = self._jax_pmap(args, kwargs, hidden_args, hidden_kwargs)
        mapped, returned = self._by_jax[key]
        given = [value for value, leaf in zip(leaves, named, strict=True) if not leaf.is_static]
        return returned.result(mapped(*given))

    def without_jit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As described by `Instead`: the axis has to be mapped all the same."""
        return self.call(args, kwargs, self._flat(args, kwargs))

    def ahead(self, args: tuple[Any, ...], kwargs: dict[str, Any], method: Callable[[Any], Any]) -> Any:
        """As described by `Instead`."""
        program = self._stageable.stage(args, kwargs, share=False)
        placed = [None if leaf.is_static else stand_in(leaf.aval, leaf.requested) for leaf in program.leaves]
        hidden_args, hidden_kwargs = self._stageable.hide(args, kwargs, program.leaves, placed)
        donated = donated_options(self._stageable.parameters, self._planner, program, args, kwargs)
        jitted = api.jit(self._ahead_of_time, **donated, **self._planner.options)
        made = method(jitted)(*hidden_args, **hidden_kwargs)
        static = [leaf.value for leaf in program.leaves if leaf.is_static]
        if not (static and isinstance(made, jax.stages.Traced | jax.stages.Lowered)):
            return made
        if not all(isinstance(value, StaticArgument) for value in static):
            return Hiding(made, self._stageable, program.leaves)
        every = functools.partial(_with_static, *self._stageable.parameters.wrap_static(args, kwargs))
        return Hiding(made, self._stageable, program.leaves, every=every)

    def cache_size(self) -> int:
        """As described by `Instead`."""
        return len(self._by_jax) + cache_size(self._traced)

    def clear_cache(self) -> None:
        """As described by `Instead`."""
        self._traced.clear_cache()
        self._by_jax.clear()

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        leaves, _ = tree_flatten(self._stageable.parameters.wrap_static(args, kwargs))
        return leaves

    def _whole(self, *args: Any, traced: bool, **kwargs: Any) -> Returned:
        """The map as a function that `jax.jit` can trace, of arguments without static leaves."""
        args, kwargs = put_together(args, kwargs)
        program = self._stageable.stage(args, kwargs, share=False, traced=traced)
        leaves = self._flat(args, kwargs)
        results = evaluate(program.jaxpr, [leaves[each.leaf] for each in program.inputs if each.leaf is not None])
        return _returned(program, results)

    def _jax_pmap(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], hidden_args: tuple[Any, ...], hidden_kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], Returned]:
        """`jax.pmap` as a function from flat arrays to flat arrays; and what to put around these."""
        program = self._stageable.stage(args, kwargs, share=False)
        tree: Any = tree_structure((hidden_args, hidden_kwargs))
        row = self._stageable.traceable()

        def flat(*values: Any) -> list[Any]:
            own_args, own_kwargs = tree.unflatten(values)
            return list(row(*own_args, **own_kwargs).arrays)

        option = self._stageable.mapped
        in_axes = tuple(leaf.axis for leaf in program.leaves if not leaf.is_static)
        out_axes = [axis_of(o.requested.spec) for o in program.outputs if isinstance(o.origin, Computed)]
        kept: dict[str, Any] = {"devices": option.devices, "backend": option.backend, "axis_size": option.axis_size}
        mapped = api.pmap(flat, axis_name=option.axis_name, in_axes=in_axes, out_axes=out_axes, **kept)
        return mapped, _returned(program)


def _with_static(
    wrapped: tuple[Any, ...], named: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with those put back that are static among `wrapped` and `named`: as under `jax.pmap`, what was compiled
    for these is called without them."""
    every = [*args]
    for i, each in enumerate(wrapped):
        if isinstance(each, StaticArgument):
            every.insert(i, each.value)
    return tuple(every), {name: v.value for name, v in named.items() if isinstance(v, StaticArgument)} | kwargs


def _returned(program: Program, arrays: Sequence[Any] = ()) -> Returned:
    """What a staged program returns, of which no output is handed back yet."""
    outputs = program.outputs
    origins = tuple(output.origin for output in outputs if not isinstance(output.origin, Passed))
    return Returned(arrays, origins, program.out_tree, tuple(output.path for output in outputs))
