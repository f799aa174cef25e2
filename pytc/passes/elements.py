"""Which captured arrays stay constants for their type or their elements, whatever reads them.

What costs nothing as a constant stays one, and so does what cannot be an input as it is. So do arrays with the same
elements: equal constants are one to XLA, and then what is computed with them; two inputs are not. (JAX 0.12 makes
several constants of one NumPy array, too.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from pytc.jax_compat import arrays
from pytc.jax_compat.avals import AbstractValue, on_axes
from pytc.jax_compat.layouts import is_over_several

_TWIN = "another captured array has the same elements, and XLA makes one of what reads either"
_SAMPLE = 64
"""Elements of an array that are compared first."""


def reasons(captured: Sequence[tuple[Any, AbstractValue]], is_cut: bool) -> list[str]:
    """Why each of these arrays, of these types, stays a constant, or nothing; `is_cut` if arguments of the program are
    spread over devices. Cost: each is read once, and once more where another one is like it."""
    twins = _twins([value for value, _ in captured])
    return [_reason(value, aval, is_cut) or (_TWIN if k in twins else "") for k, (value, aval) in enumerate(captured)]


def _reason(value: Any, aval: AbstractValue, is_cut: bool) -> str:
    """Why this one stays a constant, whatever the others are; empty if nothing says so."""
    if not hasattr(value, "size") or isinstance(value, jax.Ref):
        return ""
    if on_axes(aval) is not None:
        return "its type says where on a mesh it is"  # a copy is all of it everywhere
    if arrays.is_narrowed(aval.dtype):
        return "its type is of 64 bits, and 64-bit mode is off"
    if value.size <= 1:
        return "it has at most one element"
    if not arrays.can_be_read(value):
        return ""
    if is_cut and not (isinstance(value, jax.Array) and is_over_several(value.sharding)):
        return "arguments are spread over devices, and XLA spreads a constant as it likes"
    with jax.transfer_guard("allow"):
        data = np.asarray(value)
    return "all its elements are equal" if bool((data == data.flat[0]).all()) else ""


def _twins(values: Sequence[Any]) -> set[int]:
    """Which of these constants (indices) have the bytes of another one. As inputs they would be two to XLA, which takes
    equal constants for one, and then equal products with them."""
    read = [k for k, value in enumerate(values) if arrays.can_be_read(value) and value.size > 1]
    with jax.transfer_guard("allow"):
        data = {k: np.asarray(values[k]) for k in read}
    few = _alike(read, lambda k: (data[k].nbytes, data[k].reshape(-1)[:: 1 + data[k].size // _SAMPLE].tobytes()))
    return {k for group in few for each in _alike(group, lambda k: data[k].tobytes()) for k in each}


def _alike(numbers: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    """Those of the numbers that have the key of another one, in groups of equal keys."""
    groups: dict[Hashable, list[int]] = {}
    for k in numbers:
        groups.setdefault(key(k), []).append(k)
    return [group for group in groups.values() if len(group) > 1]
