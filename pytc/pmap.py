"""`pmap`: a function mapped over devices, with computed `out_axes`, any output, and donation as in `compile`.

The call path is that of `compile`: only the staging differs (`pytc.stage_mapped`), and what stands in for the function
under a transformation, ahead of time, or in a debugging mode.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, overload

import jax

from pytc import passes as _passes
from pytc.arguments.leaves import numbers_in
from pytc.calls.function import Function
from pytc.calls.wrapper import wrap
from pytc.compiled import Compiled
from pytc.donation import Donate
from pytc.effort import Effort
from pytc.jax_compat import api
from pytc.mapping import AxesSpec, Mapped
from pytc.options import Missing, Options, check_function


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
    if placement := _PLACEMENT.intersection(jit_options):
        raise TypeError(f"pytc.pmap has no option {min(placement)}: in_axes, out_axes and devices say where arrays go")
    if donate_argnums is not None:
        jit_options["donate_argnums"] = donate_argnums
    if broadcast := numbers_in("static_broadcasted_argnums", static_broadcasted_argnums):
        also = () if static_argnums is None else numbers_in("static_argnums", static_argnums)
        static_argnums = (*also, *broadcast)
    name = api.UNNAMED if axis_name is None else axis_name
    if not isinstance(name, Hashable):
        raise TypeError(f"axis_name is {axis_name!r}; it can be a string, or anything else that can be hashed")
    mapped = Mapped(
        name,
        in_axes,
        out_axes,
        None if devices is None else _devices(devices),
        backend,
        None if axis_size is None else _size(axis_size),
    )
    options = Options(
        donate, static_argnums, static_argnames, "static", share, passes, effort, jit_options, mapped
    ).checked(pmap)

    def decorate(fun: Callable[..., Any]) -> Callable[..., Any]:
        check_function(pmap, fun)
        return wrap(Function(fun, options))

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
