"""Program -> callable for a mapped axis that is spread over several processes.

In one process a mapped program needs nothing of its own: `jax.jit` places its arguments over the devices, as
`jax.pmap` does, which is the same `jit` of the same `shard_map`. (What is emitted here is that, rather than a call of
`jax.pmap`, since a call of `jit` is dispatched by C++ code and one of `pmap` by Python.)

With several processes each passes the rows that its own devices work on, and gets those back: the rows are put
together to the array that the program takes, and its results taken apart, by naming the buffers anew. Nothing is sent
and nothing is copied, but for what a process passes in another place than its rows' devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pytc import jax_compat
from pytc.emit.jit import Emitted
from pytc.program import Leaf, Program


class EmittedRows(Emitted):
    """A program of which each process passes its own rows."""

    def call(self, leaves: Sequence[Any], landed: list[Any]) -> None:
        """As of any program; the leaves are this process's."""
        super().call(list(map(_together, leaves, self.program.leaves)), landed)

    def result(self, results: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """What the function returns on this process."""
        return super().result([_own(result) for result in results], leaves)


def emit_pmap(program: Program, **options: Any) -> Emitted:
    """Compile a mapped program, on its first call."""
    return EmittedRows(program, options) if jax.process_count() > 1 else Emitted(program, options)


def _together(value: Any, leaf: Leaf) -> Any:
    """This process's rows as part of the array that all processes make up."""
    whole: Any = leaf.requested
    if whole is None or (isinstance(value, jax.Array) and not value.is_fully_addressable):
        return value
    if leaf.axis is None and not isinstance(value, jax.Array):
        return value  # the same on every process: jax.jit puts it on all devices
    if jax_compat.is_extended(jax.typeof(value).dtype):
        bits = _rewrapped(jax.random.key_data(value), whole, leaf.axis)
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(value))
    return _rewrapped(value, whole, leaf.axis)


def _rewrapped(value: Any, whole: Any, axis: int | None) -> jax.Array:
    placed = jax.device_put(value, jax.NamedSharding(whole.mesh.local_mesh, whole.spec))
    shape = list(placed.shape)
    if axis is not None:
        shape[axis] = whole.mesh.size
    return jax.make_array_from_single_device_arrays(tuple(shape), whole, jax_compat.shards_of(placed))


def _own(result: jax.Array) -> jax.Array:
    """The rows of a result that are on this process's devices."""
    if result.is_fully_addressable:
        return result
    if jax_compat.is_extended(result.dtype):
        bits = _own(jax.random.key_data(result))
        keys: jax.Array = jax.random.wrap_key_data(bits, impl=jax.random.key_impl(result))
        return keys
    whole: Any = result.sharding
    own = jax.NamedSharding(whole.mesh.local_mesh, whole.spec)
    shape = tuple(
        size if part is None else own.mesh.size
        for size, part in zip(result.shape, (*whole.spec, *(None for _ in result.shape)), strict=False)
    )
    return jax.make_array_from_single_device_arrays(shape, own, jax_compat.shards_of(result))
