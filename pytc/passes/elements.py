"""Which captured arrays stay constants for their type or their elements, whatever reads them.

What costs nothing as a constant stays one, and so does what cannot be an input as it is. So do arrays with the same
elements: equal constants are one to XLA, and then what is computed with them; two inputs are not. (JAX 0.12 makes
several constants of one NumPy array, too.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pytc.jax_compat import arrays
from pytc.jax_compat.avals import AbstractValue, is_extended, on_axes
from pytc.jax_compat.layouts import is_over_several, memory_of

_ALL_EQUAL = "all its elements are equal"
_TWIN = "another captured array has the same elements, and XLA makes one of what reads either"
_SAMPLE = 64
"""Elements of an array that are compared first."""


def reasons(captured: Sequence[tuple[Any, AbstractValue]], is_cut: bool) -> list[str]:
    """Why each of these arrays, of these types, stays a constant, or nothing; `is_cut` if arguments of the program are
    spread over devices. Cost: each is read once, and once more where another one is like it."""
    data = {
        k: arrays.elements(value)
        for k, (value, _) in enumerate(captured)
        if arrays.can_be_read(value) and value.size > 1
    }
    twins = _twins(data)
    of_elements = {k: _ALL_EQUAL if _are_equal(data[k]) else _TWIN if k in twins else "" for k in data}
    return [_reason(value, aval, is_cut) or of_elements.get(k, "") for k, (value, aval) in enumerate(captured)]


def _reason(value: Any, aval: AbstractValue, is_cut: bool) -> str:
    """Why this one stays a constant, whatever its elements are; empty if nothing says so."""
    if not hasattr(value, "size") or isinstance(value, jax.Ref):
        return ""
    if on_axes(aval) is not None:
        return "its type says where on a mesh it is"  # a copy is all of it everywhere
    if isinstance(value, jax.Array) and memory_of(value.sharding) != "device":
        return "it is in memory of another kind than the device's own"  # as is what is computed from it
    if isinstance(value, jax.Array) and value.committed and (is_extended(value.dtype) or aval.weak_type):
        return "it is committed to a place, and no copy of its type elsewhere would be"
    if arrays.is_narrowed(aval.dtype):
        return "its type is of 64 bits, and 64-bit mode is off"
    if value.size <= 1:
        return "it has at most one element"
    if is_cut and arrays.can_be_read(value) and not (isinstance(value, jax.Array) and is_over_several(value.sharding)):
        return "arguments are spread over devices, and XLA spreads a constant as it likes"
    return ""


def _are_equal(data: np.ndarray[Any, Any]) -> bool:
    """Whether all elements are."""
    return bool((data == data.flat[0]).all())


def _twins(data: Mapping[int, np.ndarray[Any, Any]]) -> set[int]:
    """Which of these constants have the bytes of another one. As inputs they would be two to XLA, which takes equal
    constants for one, and then equal products with them."""
    few = _alike(data, lambda k: (data[k].nbytes, data[k].reshape(-1)[:: 1 + data[k].size // _SAMPLE].tobytes()))
    return {k for group in few for each in _alike(group, lambda k: data[k].tobytes()) for k in each}


def _alike(numbers: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    """Those of the numbers that have the key of another one, in groups of equal keys."""
    groups: dict[Hashable, list[int]] = {}
    for k in numbers:
        groups.setdefault(key(k), []).append(k)
    return [group for group in groups.values() if len(group) > 1]
