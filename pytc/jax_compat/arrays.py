"""Arrays that hold memory: copies of them, the shards that they consist of, and where they are.

For JAX 0.10 to 0.12: `device_put(..., may_alias=False)`, what an array remembers of its own shards, when its address
becomes known, and that a deleted one is not asked whether it is ready.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from pytc.jax_compat.avals import AbstractValue, is_extended, on_axes
from pytc.jax_compat.keys import bits_of
from pytc.jax_compat.layouts import memory_of, place_and_layout
from pytc.jax_compat.running import Tracer, device_of, mesh_in_context


def private_copies(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Copies in memory of their own, each placed like its original.

    Made by the runtime, with no compiled program, and at once, since asking it takes longer than most copies. An array
    that no process sees whole is copied shard by shard, so that no other process need take part. Nothing leaves its
    device, so `jax.transfer_guard` has no say.
    """
    whole = [array for array in arrays if array.is_fully_addressable]
    placements = [place_and_layout(array) if array.committed else None for array in whole]
    with jax.transfer_guard_device_to_device("allow"):
        copies = iter(jax.device_put(whole, placements, may_alias=False))
        return [next(copies) if array.is_fully_addressable else _copy_of_shards(array) for array in arrays]


def private_copy(array: jax.Array) -> jax.Array:
    """As `private_copies`, of one array."""
    return private_copies([array])[0]


def _copy_of_shards(array: jax.Array) -> jax.Array:
    shards = [jax.device_put(s.data, place_and_layout(s.data), may_alias=False) for s in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)


def captured_copy(value: Any, aval: AbstractValue, device: jax.Device | None) -> Any:
    """A captured value as it is now: a copy on the device, JAX's default if it is None; unless it is a `jax.Ref`, which
    is meant to change.

    Like a constant it may be placed with whatever arguments there are, wherever it was committed to.
    """
    if isinstance(value, jax.Ref):
        return value
    if isinstance(value, jax.Array) and (
        not value.is_fully_addressable
        or is_extended(value.dtype)
        or aval.weak_type
        or not (value.committed or (device is not None and value.devices() != {device}))
    ):
        return private_copy(value)
    with jax.transfer_guard("allow"):  # as for a constant of `jax.jit`
        if not mesh_in_context().empty:
            return jax.numpy.array(np.asarray(value), dtype=aval.dtype)  # all of it everywhere
        with contextlib.nullcontext() if device is None else jax.default_device(device):
            return jax.device_put(np.array(value, dtype=aval.dtype))


def unplaced(captured: Any) -> Any:
    """A captured array that may be placed with whatever arguments there are, on JAX's default device."""
    if not isinstance(captured, jax.Array) or captured.committed or is_extended(captured.dtype) or captured.weak_type:
        return captured
    if captured.devices() == {device_of(())}:
        return captured
    with jax.transfer_guard("allow"):
        return jax.device_put(np.asarray(captured))


def can_be_read(value: Any) -> bool:
    """Whether the elements of a constant can be looked at here."""
    if not hasattr(value, "size") or isinstance(value, jax.Ref):
        return False
    return not isinstance(value, jax.Array) or (value.is_fully_addressable and not is_extended(value.dtype))


def is_narrowed(dtype: Any) -> bool:
    """Whether JAX makes another dtype of this one where it is handed NumPy data: in 32-bit mode, of 64 bits."""
    return not is_extended(dtype) and jax.dtypes.canonicalize_dtype(dtype) != dtype


def constant_copy(value: Any) -> Any:
    """A const of a jaxpr in memory of its own; the same object where nobody can change it, or where it is a `jax.Ref`,
    which is meant to change. An array that was deleted stays what it is; and so does a tracer, which a jaxpr has that
    was made in the midst of a trace and is in an equation for other reasons than to be run (lineax's solvers).

    What is on a device is copied to the host, which JAX would do when it compiles, and takes no memory there: what is
    compiled is the same, unless the array has a place or a type that NumPy data have not.
    """
    if isinstance(value, jax.Array) and not isinstance(value, jax.Ref | Tracer) and not value.is_deleted():
        if (
            not value.is_fully_addressable
            or is_extended(value.dtype)
            or is_narrowed(value.dtype)
            or value.weak_type
            or on_axes(jax.typeof(value)) is not None
            or memory_of(value.sharding) != "device"
        ):
            return private_copy(value)
        with jax.transfer_guard("allow"):  # as for a constant of `jax.jit`
            return np.array(value)
    return value.copy() if isinstance(value, np.ndarray) else value  # with the weak type, in JAX's own class of arrays


def elements(value: Any) -> np.ndarray[Any, Any]:
    """Those of NumPy data or of an array that can be read. Not asked of the array itself, which would keep them in the
    host's memory from then on. Raises `RuntimeError` of an array that was deleted."""
    with jax.transfer_guard("allow"):
        if not isinstance(value, jax.Array):
            return np.asarray(value)
        shards = shards_of(value)
        return np.asarray(jax.make_array_from_single_device_arrays(value.shape, value.sharding, shards))


def is_nobody_elses(value: Any) -> bool:
    """Whether nobody but JAX can change the value of a literal: those made of NumPy arrays without axes are views."""
    if not isinstance(value, np.ndarray):
        return True
    owner = value.base
    # Referred to by the view, this variable and the argument below.
    return isinstance(owner, np.ndarray) and owner.base is None and sys.getrefcount(owner) == 3


def home_of(leaves: Iterable[Any]) -> Any:
    """Where the first of these arguments is that is committed to its place: on a mesh, however it is cut, or as its
    sharding says; None where none is."""
    for leaf in leaves:
        sharding = getattr(leaf, "sharding", None)
        if sharding is not None and getattr(leaf, "committed", True):
            return sharding.mesh if isinstance(sharding, jax.sharding.NamedSharding) else sharding
    return None


def place_of(array: jax.Array) -> tuple[Hashable, Hashable]:
    """Where an array is, as far as one program serves no other place: the mesh that its type names, with how it is
    spread over explicit axes; and the kind of memory, of which the type does not tell all."""
    bits = bits_of(array) if is_extended(array.dtype) else array
    return jax.typeof(bits).sharding, memory_of(bits.sharding)


def place_at(captured: Any, home: Any) -> Any:
    """A captured array where committed arguments are, all of it on each device there, as a constant would be."""
    everywhere: Any = jax.P
    place = jax.NamedSharding(home, everywhere()) if isinstance(home, jax.sharding.Mesh) else home
    if not isinstance(captured, jax.Array) or captured.sharding.device_set == place.device_set:
        return captured
    return jax.device_put(captured, place)


def new_shard(array: jax.Array) -> jax.Array:
    """`array.addressable_data(0)` of an array on one device: another array on the same buffer.

    Without the checks, where this version of JAX lets us.
    """
    make = getattr(array, "_fully_replicated_shard", None)
    shard: jax.Array = array.addressable_data(0) if make is None else make()
    return shard


def shards_of(array: jax.Array) -> list[jax.Array]:
    """The single-device arrays that this process has of an array on several devices, without making it remember that
    they were asked for: it keeps the `Shard` objects around them, each of which holds one."""
    asked_before = "addressable_shards" in vars(array)
    shards = [shard.data for shard in array.addressable_shards]
    if not asked_before:
        vars(array).pop("addressable_shards", None)
    return shards


def is_ready(array: Any) -> bool:
    """Whether the execution that makes the array is done. Raises `RuntimeError` of an array that was deleted, of which
    JAX 0.10 must not be asked: that ends the process."""
    if array.is_deleted():
        raise RuntimeError("an array that was deleted is not asked whether it is ready")
    return bool(array.is_ready())


def is_told_late(array: jax.Array) -> bool:
    """Whether an array may not know its address before it is ready: that of a CPU may be asked for memory only when the
    execution has begun. (Up to JAX 0.10 it may yet turn out that there is none. Later versions wait for the address,
    with the interpreter's lock held, for which the execution may wait if it calls Python.)"""
    return bool(next(iter(array.devices())).platform == "cpu")
