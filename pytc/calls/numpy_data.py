"""NumPy data among the leaves of a call, for which arrays take the place before a program is looked up.

A program takes over arrays, and never NumPy data, which the caller may go on to use. So calls with one and with the
other may need two executables. Where that is foreseen, the data are copied to the device before anything else, which
`jax.jit` would do as well; nobody else has the copies, so they are dead at this very call:

- in a program of several processes, all NumPy data: one process may have a number from a file where another has
  computed it, and both must run the same executable;
- else data in whose place the result comes (`state = step(state)`, with a state that was loaded), at the first such
  call.

Not where nothing is ever taken over; nor where options, or other arguments, say where arguments go: JAX sends each
device its part, and no other device has room for the whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from pytc.calls import asking
from pytc.jax_compat.arrays import private_copy
from pytc.jax_compat.running import places_freely
from pytc.ownership import Call
from pytc.program import Leaf

NumpyData: TypeAlias = Literal["all", "replaced", "none"]
"""Those for which arrays take the place."""

_NAMES = "bool float16 bfloat16 float32 float64 complex64 complex128".split()
_NAMES += [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_DTYPES = frozenset(map(jnp.dtype, _NAMES))
"""Those that JAX has, in this machine's order of bytes. Others are rare, or for JAX to refuse."""


def put_all_on_device(leaves: list[Any]) -> None:
    """Replace all NumPy data among the leaves."""
    _put_on_device(leaves, _numpy_data(leaves))


def put_replaced_on_device(call: Call) -> bool:
    """Replace the leaves that are NumPy data now, and will be arrays at the next call, as its code looks; and return
    whether there are any. None where an array is committed to a device: the others go there, too."""
    data = _numpy_data(call.leaves)
    if not data or any(isinstance(leaf, jax.Array) and leaf.committed for leaf in call.leaves):
        return False
    replaced = sorted(asking.replaced(call).intersection(data))
    _put_on_device(call.leaves, replaced)
    return bool(replaced)


def as_passed(named: Sequence[Leaf], leaves: Sequence[Any]) -> tuple[Leaf, ...]:
    """The leaves of a call, as they were told from its arguments, where arrays have taken the place of some."""
    pairs = zip(named, leaves, strict=True)
    return tuple(
        dataclasses.replace(told, array=True) if isinstance(leaf, jax.Array) and not told.array else told
        for told, leaf in pairs
    )


def _put_on_device(leaves: list[Any], which: Iterable[int]) -> None:
    """Replace these leaves by arrays in memory of their own, placed as `jax.jit` places NumPy data. (On a CPU JAX makes
    arrays of NumPy's own memory.)"""
    for i in which:
        array = jax.device_put(leaves[i])
        leaves[i] = private_copy(array) if next(iter(array.devices())).platform == "cpu" else array


def _numpy_data(leaves: Sequence[Any]) -> list[int]:
    """Which leaves are NumPy data that JAX has a type for; none where it may matter that they are moved here."""
    found = [i for i, leaf in enumerate(leaves) if type(leaf) is np.ndarray or isinstance(leaf, np.generic)]
    found = [i for i in found if leaves[i].dtype in _DTYPES]
    return found if found and places_freely() else []
