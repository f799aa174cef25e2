"""copies: what programs have captured, in memory of their own: one copy of what is equal to the bit.

A program has a snapshot of what its function captured, since the original may be donated, deleted or written to later.
A function is staged anew for other shapes or static values, and captures the same weights each time: so a copy that a
program still has is used again for an array with the same elements, of the same type, at the same place. Whether it is
the same object does not matter, and is not remembered: a reference to a user's array, be it a weak one, would be one
more that the proof has to tell from those of others. The weak ones here are to the copies, which only programs have;
these read them, and neither give them away nor return them.

Cost: an array of `LEAST` bytes or more is read once, which takes as long as to copy it, and once more where there is a
copy like it.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Collection, Hashable
from typing import Any

import jax
import numpy as np

from pytc.jax_compat import arrays
from pytc.jax_compat.avals import AbstractValue
from pytc.jax_compat.layouts import place_and_layout
from pytc.jax_compat.running import Tracer, settings

LEAST = 1 << 16
"""Bytes from which on it is worth looking for a copy."""
_AT_ONCE = 1 << 20
"""Bytes that are compared at a time, since a comparison makes an array as long."""

_copies: dict[Hashable, list[weakref.ref[Any]]] = {}
"""By all that tells them apart but their elements, with a checksum of those."""


def captured_copy(value: Any, aval: AbstractValue, device: jax.Device | None) -> Any:
    """As `arrays.captured_copy`."""
    return _copy_of(value, (aval, device), lambda: arrays.captured_copy(value, aval, device))


def constant_copy(value: Any, taken: Collection[int]) -> Any:
    """As `arrays.constant_copy`; not one of those that are `taken` (their ids): JAX tells the constants of a program
    apart by what they are, and not by their elements."""
    return _copy_of(value, "constant", lambda: arrays.constant_copy(value), taken)


def _copy_of(value: Any, kind: Hashable, make: Callable[[], Any], taken: Collection[int] = ()) -> Any:
    """What `make` returns, which is a copy of `value`, or another such copy that a program has. `kind` tells apart what
    is made otherwise of equal values."""
    if isinstance(value, Tracer) or not arrays.can_be_read(value) or value.nbytes < LEAST:
        return make()
    if isinstance(value, jax.Array) and value.is_deleted():
        return make()
    data = arrays.elements(value)
    own = _bytes_of(data)
    here = jax.local_devices()[0], settings()  # where a copy goes that is not placed as its original is
    key = kind, type(value), _place(value), here, data.shape, data.dtype, zlib.crc32(own.data)
    for each in _copies.get(key, ()):
        copy = each()
        if copy is not None and id(copy) not in taken and _are_equal(_bytes_of(arrays.elements(copy)), own):
            return copy
    copy = make()
    _forget()
    _copies.setdefault(key, []).append(weakref.ref(copy))
    return copy


def _forget() -> None:
    """Drop what is known of copies that are gone. (Not as they go: no code may run when a program dies.)"""
    for key, known in list(_copies.items()):
        if alive := [each for each in known if each() is not None]:
            _copies[key] = alive
        else:
            _copies.pop(key, None)


def _place(value: Any) -> Hashable:
    return (value.committed, place_and_layout(value), value.weak_type) if isinstance(value, jax.Array) else None


def _bytes_of(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of the elements, in order."""
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def _are_equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays, as bytes, are the same."""
    parts = (slice(start, start + _AT_ONCE) for start in range(0, a.size, _AT_ONCE))
    return all(np.array_equal(a[part], b[part]) for part in parts)
