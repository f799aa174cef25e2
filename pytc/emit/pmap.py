"""Program -> callable for a mapped axis.

What is emitted is the `jit` of a `shard_map` that `jax.pmap` consists of since JAX 0.8, rather than a call of it, since
a call of `jit` is dispatched by C++ code and one of `pmap` by Python. `jax.jit` places the arguments over the devices
as `jax.pmap` does. Only how many rows there are, and so on which devices they are, it cannot ask anew.

With several processes each passes the rows that its own devices work on, and gets those back: the rows are put
together to the array that the program takes, and its results taken apart, by naming the buffers anew. Nothing is sent
and nothing is copied, but for what a process passes in another place than its rows' devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pytc.emit.jit import Emitted, Retrace
from pytc.jax_compat.arrays import shards_of
from pytc.jax_compat.avals import DESCRIPTIONS
from pytc.jax_compat.keys import bits_of, is_key_type
from pytc.program import Leaf, Program


class EmittedMap(Emitted):
    """A program over as many devices as there are rows."""

    def call(self, leaves: Sequence[Any], landed: list[Any]) -> None:
        """As of any program; leaves with other numbers of rows have another signature, too."""
        try:
            super().call(self.given(leaves), landed)
        except ValueError:
            # Refused where rows are to be split over devices, which comes before tracing.
            if not all(_fits(*each) for each in zip(leaves, self.program.leaves, strict=True)):
                raise Retrace from None
            raise

    def given(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """What the program is called with."""
        return leaves


class EmittedRows(EmittedMap):
    """A program of which each process passes its own rows."""

    def given(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The arrays that all processes make up, of which the leaves are this process's."""
        return [_together(*each) for each in zip(leaves, self.program.leaves, strict=True)]

    def lower(self, leaves: Sequence[Any]) -> jax.stages.Lowered:
        """As of any program; the leaves are this process's, or stand-ins for the whole."""
        return super().lower(self.given([bits_of(leaf) for leaf in leaves]))

    def result(self, results: Sequence[Any], handed_back: Sequence[Any]) -> Any:
        """What the function returns on this process."""
        return super().result([_own(result) for result in results], handed_back)


def emit_pmap(program: Program, **options: Any) -> Emitted:
    """Compile a mapped program, on its first call."""
    return (EmittedRows if jax.process_count() > 1 else EmittedMap)(program, options)


def _fits(value: Any, leaf: Leaf) -> bool:
    """Whether a leaf has the rows that the program is for: all there are, or those of this process."""
    aval, placed, axis = leaf.aval, leaf.requested, leaf.axis
    if aval is None or axis is None or placed is None:
        return True
    here = (*aval.shape[:axis], placed.mesh.local_mesh.size, *aval.shape[axis + 1 :])
    shape = value.shape[: aval.ndim] if is_key_type(aval) else value.shape
    return shape in (aval.shape, here)


def _together(value: Any, leaf: Leaf) -> Any:
    """This process's rows as part of the array that all processes make up."""
    whole: Any = leaf.requested
    if whole is None or isinstance(value, DESCRIPTIONS):
        return value
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return value
    if leaf.axis is None and not isinstance(value, jax.Array):
        return value  # the same on every process: jax.jit puts it on all devices
    return _rewrapped(value, whole, leaf.axis)


def _rewrapped(value: Any, whole: Any, axis: int | None) -> jax.Array:
    placed = jax.device_put(value, jax.NamedSharding(whole.mesh.local_mesh, whole.spec))
    shape = list(placed.shape)
    if axis is not None:
        shape[axis] = whole.mesh.size
    return jax.make_array_from_single_device_arrays(tuple(shape), whole, shards_of(placed))


def _own(result: jax.Array) -> jax.Array:
    """The rows of a result that are on this process's devices."""
    if result.is_fully_addressable:
        return result
    whole: Any = result.sharding
    own = jax.NamedSharding(whole.mesh.local_mesh, whole.spec)
    shape = tuple(
        size if part is None else own.mesh.size
        for size, part in zip(result.shape, (*whole.spec, *(None for _ in result.shape)), strict=False)
    )
    return jax.make_array_from_single_device_arrays(shape, own, shards_of(result))
