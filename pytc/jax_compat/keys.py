"""PRNG keys, each an array that wraps another: that of its bits.

For JAX 0.10 to 0.12: what a key array calls its bits and its implementation, and that it is made of the two.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax
from jax.experimental.layout import Format
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from pytc.jax_compat.avals import DESCRIPTIONS, AbstractValue, is_extended, is_ref, key_bits, of_each
from pytc.jax_compat.layouts import extended

_key_arrays: dict[int, type] = {}
"""What key arrays are of that have been seen to wrap their bits, by id: spares asking each for its dtype, which makes
one. (To look for the class itself might ask its metaclass.)"""


def is_key_type(aval: AbstractValue | None) -> bool:
    """Whether values of this type are PRNG keys."""
    return aval is not None and not is_ref(aval) and hasattr(aval, "dtype") and is_extended(aval.dtype)


def implementation_of(dtype: Any) -> Any:
    """What is called to make and split keys of this type, a named tuple of functions that all such keys share; None
    where that cannot be told."""
    return getattr(dtype, "_impl", None)


def bits_of(value: Any) -> Any:
    """The array that a key array wraps, itself and no copy; of what stands for one, that of its bits. What is no
    key is returned as it is."""
    if id(type(value)) in _key_arrays:
        return value._base_array
    if not (isinstance(value, (jax.Array, *DESCRIPTIONS)) and is_extended(value.dtype)):
        return value
    if isinstance(value, jax.Array):
        bits = getattr(value, "_base_array", None)
        if bits is None:
            return jax.random.key_data(value)
        if not isinstance(value, jax.core.Tracer):
            _key_arrays[id(type(value))] = type(value)
        return bits
    aval, _ = key_bits(value)
    sharding = bits_sharding(value.sharding, aval.ndim - value.ndim)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)  # type: ignore[no-untyped-call]


def bits_sharding(wanted: Any, more: int) -> Any:
    """Where the bits are of keys that are placed so, in so many dimensions more: all bits of a key in one place."""
    unchecked: Any = PartitionSpec
    if isinstance(wanted, PartitionSpec):
        return unchecked(*wanted, *[None] * more)
    if isinstance(wanted, NamedSharding):
        return NamedSharding(wanted.mesh, bits_sharding(wanted.spec, more), memory_kind=wanted.memory_kind)
    if isinstance(wanted, Format):
        return extended(wanted, more, lambda sharding: bits_sharding(sharding, more))
    return wanted


def are_of(keys: Any, dtype: Any) -> bool:
    """Whether PRNG keys are of the very implementation that a dtype has. To compare one with another that is not the
    same object asks what it consists of, by code that people may have written."""
    missing = object()
    return getattr(keys.dtype, "_impl", missing) is getattr(dtype, "_impl", None)


def key_types(avals: Iterable[AbstractValue]) -> dict[int, KeyType]:
    """Those of these types (by number) that are of PRNG keys."""
    avals = list(avals)
    return {k: KeyType(avals[k]) for k, is_key in enumerate(of_each(is_key_type, avals)) if is_key}


class KeyType:
    """How PRNG keys of one type are made of their bits."""

    def __init__(self, aval: AbstractValue) -> None:
        self.bits, self._impl = key_bits(aval)
        self._ndim = aval.ndim
        self.more: int = self.bits.ndim - aval.ndim
        """Dimensions that the bits have, and the keys have not."""
        self._make: Any = self._first

    def wrap(self, bits: Any) -> Any:
        """The keys of these bits, where a function is traced."""
        return jax.random.wrap_key_data(bits, impl=self._impl)

    def __call__(self, bits: jax.Array) -> jax.Array:
        """The keys of these bits, which are not copied; but where a compiler has placed the bits of one key on several
        devices, which JAX does not allow."""
        if type(bits.sharding) is not SingleDeviceSharding:
            bits = self._together(bits)
        keys: jax.Array = self._make(bits)
        return keys

    def _together(self, bits: jax.Array) -> jax.Array:
        sharding: Any = bits.sharding
        if sharding.shard_shape(bits.shape)[self._ndim :] == bits.shape[self._ndim :]:
            return bits
        unchecked: Any = PartitionSpec
        if isinstance(sharding, NamedSharding):
            place = NamedSharding(sharding.mesh, unchecked(*sharding.spec[: self._ndim]))
        else:
            place = NamedSharding(
                Mesh(sorted(sharding.device_set, key=lambda device: device.id), ("all",)), unchecked()
            )
        # The arguments may be gone already. JAX has no say, as it has none in where a compiler puts what.
        with jax.transfer_guard("allow"):
            placed: jax.Array = jax.device_put(bits, place)
        return placed

    def _first(self, bits: jax.Array) -> jax.Array:
        keys: jax.Array = self.wrap(bits)
        implementation = getattr(keys, "_impl", None)
        if implementation is not None:
            self._make = functools.partial(type(keys), implementation)  # spares the dispatch of an operation
        return keys
