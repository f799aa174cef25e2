"""`pmap`: a function mapped over devices, with computed `out_axes`, any output, and donation as in `compile`.

The call path is that of `compile`: only the staging differs (`pytc.stage_mapped`), and what stands in for the function
under a transformation, ahead of time, or in a debugging mode.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, overload

import jax
from jax.tree_util import tree_flatten, tree_structure

from pytc import passes as _passes
from pytc.arguments.leaves import StaticArgument, numbers_in
from pytc.arguments.parted import put_together
from pytc.calls.function import Function
from pytc.calls.hiding import Hiding
from pytc.calls.layout import Describe, describe
from pytc.calls.wrapper import wrap
from pytc.compiled import Compiled
from pytc.donation import Donate
from pytc.effort import Effort, check_effort
from pytc.emit import emit_pmap
from pytc.jax_compat import api
from pytc.jax_compat.avals import stand_in
from pytc.jax_compat.rules import evaluate
from pytc.jax_compat.running import executing
from pytc.mapping import AxesSpec, Mapped, axis_of
from pytc.options import Missing, check_function, check_options
from pytc.program import Computed, Passed, Program
from pytc.stage import Returned
from pytc.stage_mapped import MappedStageable


# Arguments and results have an axis more than the function says, so of their types nothing is known.
@overload
def pmap(
    fun: Callable[..., Any],
    /,
    axis_name: Hashable = ...,
    *,
    in_axes: AxesSpec = ...,
    out_axes: AxesSpec = ...,
    donate: Donate = ...,
    devices: Sequence[jax.Device] | None = ...,
    axis_size: int | None = ...,
    backend: str | None = ...,
    static_argnums: int | Sequence[int] | None = ...,
    static_argnames: str | Iterable[str] | None = ...,
    static_broadcasted_argnums: int | Iterable[int] = ...,
    donate_argnums: int | Sequence[int] | None = ...,
    share: bool = ...,
    passes: Sequence[_passes.Pass] = ...,
    effort: Effort = ...,
    **jit_options: Any,
) -> Compiled[..., Any]: ...


@overload
def pmap(
    *,
    axis_name: Hashable = ...,
    in_axes: AxesSpec = ...,
    out_axes: AxesSpec = ...,
    donate: Donate = ...,
    devices: Sequence[jax.Device] | None = ...,
    axis_size: int | None = ...,
    backend: str | None = ...,
    static_argnums: int | Sequence[int] | None = ...,
    static_argnames: str | Iterable[str] | None = ...,
    static_broadcasted_argnums: int | Iterable[int] = ...,
    donate_argnums: int | Sequence[int] | None = ...,
    share: bool = ...,
    passes: Sequence[_passes.Pass] = ...,
    effort: Effort = ...,
    **jit_options: Any,
) -> Callable[[Callable[..., Any]], Compiled[..., Any]]: ...


def pmap(  # noqa: D417 - some arguments described at once
    fun: Callable[..., Any] | Missing = Missing.FUNCTION,
    /,
    axis_name: Hashable = None,
    *,
    in_axes: AxesSpec = 0,
    out_axes: AxesSpec = "auto",
    donate: Donate = "auto",
    devices: Sequence[jax.Device] | None = None,
    axis_size: int | None = None,
    backend: str | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    static_broadcasted_argnums: int | Iterable[int] = (),
    donate_argnums: int | Sequence[int] | None = None,
    share: bool = True,
    passes: Sequence[_passes.Pass] = _passes.pipeline,
    effort: Effort = "default",
    **jit_options: Any,
) -> Any:
    """`jax.pmap` that finds out by itself which outputs to stack, takes and returns anything, and donates.

    Each row of the mapped arguments is worked on by a device of its own. The values are those of the same `jax.pmap`
    with `out_axes` and `static_broadcasted_argnums` written by hand, to the bit.

    Args:
      fun: the function that one row runs; a decorator with arguments, `@pytc.pmap(axis_name="batch")`, where left out.
      axis_name: what collectives call the axis: `jax.lax.pmean(x, "batch")`. May be left out where there are none.
      in_axes: which axis of each leaf is mapped, None for what every row gets whole. A number, None, or a pytree
        prefix of the positional arguments, as for `jax.pmap`; or a dict by parameter name (those left out: 0); or a
        function from a leaf to an axis, such as `pytc.if_array(0)`. Functions, also inside a prefix, are called when
        the function is traced, not at every call. Only arrays (JAX and NumPy) are mapped. Other leaves are static,
        except Python scalars for which None is written: those are traced, as by `jax.pmap`.
      out_axes: `"auto"`: what provably does not vary over the axis comes back once, the rest stacked on axis 0. Or a
        number, None, a function from a row's leaf, or a pytree prefix of these and `"auto"`; None is checked. What is
        not an array comes back as it is, whatever is written.
      donate, share, passes, effort, static_argnums, static_argnames: as for `pytc.compile`.
      devices, axis_size, backend, static_broadcasted_argnums, donate_argnums: as for `jax.pmap`. With `axis_size` or
        `devices`, no argument need be mapped.
      **jit_options: `compiler_options` and the like, as for `jax.jit`, but none that says where arrays go.

    Returns:
      A plain function, as `pytc.compile` does. An unmapped argument is spread over the devices as an unvarying result
      is, so that parameters that go in by `in_axes=None` and come out by `pmean` are updated where they are.

    Raises:
      TypeError: as `pytc.compile`; or `axis_size` is not an integer, `devices` not a sequence of devices, `axis_name`
        cannot be hashed, or there is an `in_shardings`, `out_shardings` or `device`.
      ValueError: as `pytc.compile`; or `devices` is empty, or `axis_size` is below 1.
      At a call: `TypeError` naming the leaf for which `in_axes` or `out_axes` says what is not an axis. `ValueError`
        naming leaves, axes and sizes where an array has no such axis, where mapped leaves differ in size, or where
        there are more rows than devices; and naming the output, and what makes it vary, where `out_axes` is None for
        one that is not provably the same on all rows. And what a call of a `pytc.compile`d function raises.
    """
    check_options(pmap, jit_options)
    if placement := _PLACEMENT.intersection(jit_options):
        raise TypeError(f"pytc.pmap has no option {min(placement)}: in_axes, out_axes and devices say where arrays go")
    options = {**jit_options, "donate_argnums": donate_argnums} if donate_argnums is not None else jit_options
    numbers = None if static_argnums is None else numbers_in("static_argnums", static_argnums)
    if broadcast := numbers_in("static_broadcasted_argnums", static_broadcasted_argnums):
        numbers = (*(numbers or ()), *broadcast)
    check_effort(effort)
    if axis_size is not None:
        axis_size = _size(axis_size)
    name = api.UNNAMED if axis_name is None else axis_name
    if not isinstance(name, Hashable):
        raise TypeError(f"axis_name is {axis_name!r}; it can be a string, or anything else that can be hashed")
    mapped = Mapped(name, in_axes, out_axes, None if devices is None else _devices(devices), backend, axis_size)

    def decorate(fun: Callable[..., Any]) -> Callable[..., Any]:
        check_function("pmap", fun)
        return wrap(MappedFunction(fun, mapped, donate, numbers, static_argnames, share, passes, effort, options))

    return decorate if isinstance(fun, Missing) else decorate(fun)


_PLACEMENT = frozenset(("in_shardings", "out_shardings", "device"))
"""Options of `jax.jit` that a map decides by itself."""


def _devices(devices: Iterable[jax.Device]) -> tuple[jax.Device, ...]:
    """Raises `TypeError` or `ValueError` for what is not a sequence of devices."""
    known = tuple(devices) if isinstance(devices, Iterable) else ()
    if not isinstance(devices, Iterable) or not all(isinstance(each, jax.Device) for each in known):
        raise TypeError(f"devices is {devices!r}; it can be a sequence of devices: some of jax.devices()")
    if not known:
        raise ValueError("devices is empty: leave it out, or name those to map over")
    return known


def _size(axis_size: int) -> int:
    """Raises `TypeError` or `ValueError` for what is not a number of rows."""
    try:
        size = operator.index(axis_size)
    except TypeError:
        raise TypeError(f"axis_size is {axis_size!r}; it can be an integer, the number of rows") from None
    if size < 1:
        raise ValueError(f"axis_size is {size}, and an axis has one row at least")
    return size


class MappedFunction(Function):
    """A function being mapped."""

    def __init__(
        self,
        fun: Callable[..., Any],
        mapped: Mapped,
        donate: Donate,
        static_argnums: Sequence[int] | None,
        static_argnames: str | Iterable[str] | None,
        share: bool,
        pipeline: Sequence[_passes.Pass],
        effort: Effort,
        jit_options: dict[str, Any],
    ) -> None:
        super().__init__(fun, donate, static_argnums, static_argnames, "static", share, pipeline, effort, jit_options)
        self._made_of = (
            fun, mapped, donate, static_argnums, static_argnames, share, pipeline, effort, jit_options
        )  # fmt: skip
        self.stageable: MappedStageable = MappedStageable(fun, self.parameters, "static", mapped=mapped)
        self.planner = dataclasses.replace(self.planner, emit=emit_pmap)
        options = self.planner.options
        self._traced: Any = api.jit(functools.partial(self._whole, traced=True), **options)
        self._ahead_of_time = functools.partial(self._whole, traced=False)
        self._by_jax: dict[Any, tuple[Callable[..., Any], Returned]] = {}

    def _describe(self) -> Describe:
        """As where `in_shardings` says where arguments go: the axes do."""
        return describe

    def _whole(self, *args: Any, traced: bool, **kwargs: Any) -> Returned:
        """The map as a function that `jax.jit` can trace, of arguments without static leaves."""
        args, kwargs = put_together(args, kwargs)
        program = self.stageable.stage(args, kwargs, share=False, traced=traced)
        leaves, _ = tree_flatten(self.parameters.wrap_static(args, kwargs))
        results = evaluate(program.jaxpr, [leaves[each.leaf] for each in program.inputs if each.leaf is not None])
        return _returned(program, results)

    def without_jit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call with `jax_disable_jit`: the axis has to be mapped all the same."""
        leaves, _ = tree_flatten(self.parameters.wrap_static(args, kwargs))
        return self.as_jit(args, kwargs, leaves)

    def as_jit(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]) -> Any:
        """What `jax.pmap` returns."""
        named = self.stageable.leaves(args, kwargs, share=False)
        hidden_args, hidden_kwargs = self.stageable.hide(args, kwargs, named)
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

    def _jax_pmap(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], hidden_args: tuple[Any, ...], hidden_kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], Returned]:
        """`jax.pmap` with the axes that are computed here, as a function from flat arrays to flat arrays; and what to
        put around these."""
        program = self.stageable.stage(args, kwargs, share=False)
        tree: Any = tree_structure((hidden_args, hidden_kwargs))
        row = self.stageable.traceable()

        def flat(*values: Any) -> list[Any]:
            own_args, own_kwargs = tree.unflatten(values)
            return list(row(*own_args, **own_kwargs).arrays)

        option = self.stageable.mapped
        in_axes = tuple(leaf.axis for leaf in program.leaves if not leaf.is_static)
        out_axes = [axis_of(o.requested.spec) for o in program.outputs if isinstance(o.origin, Computed)]
        kept: dict[str, Any] = {"devices": option.devices, "backend": option.backend, "axis_size": option.axis_size}
        mapped = api.pmap(flat, axis_name=option.axis_name, in_axes=in_axes, out_axes=out_axes, **kept)
        return mapped, _returned(program)

    def clear_cache(self) -> None:
        """Forget every compiled program and call site."""
        super().clear_cache()
        self._traced.clear_cache()
        self._by_jax.clear()

    def _ahead(self, args: tuple[Any, ...], kwargs: dict[str, Any], method: Callable[[Any], Any]) -> Any:
        """What a method of the jitted function returns for these arguments."""
        program = self.stageable.stage(args, kwargs, share=False)
        placed = [None if leaf.is_static else stand_in(leaf.aval, leaf.requested) for leaf in program.leaves]
        hidden_args, hidden_kwargs = self.stageable.hide(args, kwargs, program.leaves, placed)
        promised = {leaf.parameter for leaf in program.leaves if self.planner.promised(leaf)}
        taken: set[str] = set()
        if promised:
            planned = self.planner.promised_program(program)
            taken = {planned.leaves[i].parameter for i in planned.donated} & promised
        numbers = tuple(i for i in range(len(args)) if self.parameters.positional_name(i) in taken)
        jitted = api.jit(
            self._ahead_of_time,
            donate_argnums=numbers,
            donate_argnames=tuple(taken & set(kwargs)),
            **self.planner.options,
        )
        made = method(jitted)(*hidden_args, **hidden_kwargs)
        hides = any(leaf.is_static and not isinstance(leaf.value, StaticArgument) for leaf in program.leaves)
        is_stage = isinstance(made, jax.stages.Traced | jax.stages.Lowered)
        return Hiding(made, self.stageable, program.leaves) if hides and is_stage else made


def _returned(program: Program, arrays: Sequence[Any] = ()) -> Returned:
    """What a staged program returns, of which no output is handed back yet."""
    outputs = program.outputs
    origins = tuple(output.origin for output in outputs if not isinstance(output.origin, Passed))
    return Returned(arrays, origins, program.out_tree, tuple(output.path for output in outputs))
