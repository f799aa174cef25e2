"""NumPy data among the leaves of a call, for which arrays take the place before a program is looked up.

A program takes over arrays, and never NumPy data, which the caller may go on to use. So calls with one and with the
other may need two executables. Where that is foreseen, the data are copied to the device before anything else, which
`jax.jit` would do as well; nobody else has the copies, so they are dead at this very call:

- in a program of several processes, all NumPy data, unless options say where arguments go: one process may have a
  number from a file where another has computed it, and both must run the same executable;
- else data in whose place the result comes (`state = step(state)`, with a state that was loaded), at the first such
  call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pytc.calls import asking
from pytc.jax_compat.running import places_freely
from pytc.ownership import Call
from pytc.program import Leaf


def replaced_by_the_result(call: Call) -> list[int]:
    """The leaves (indices) that are NumPy data now, and will be arrays at the next call, as its code looks."""
    data = _numpy_data(call.leaves)
    return sorted(asking.replaced(call).intersection(data)) if data else []


def put_all_on_device(leaves: list[Any]) -> None:
    """Replace all NumPy data among the leaves."""
    put_on_device(leaves, _numpy_data(leaves))


def put_on_device(leaves: list[Any], which: Iterable[int]) -> None:
    """Replace these leaves by arrays in memory of their own, placed as `jax.jit` places NumPy data."""
    for i in which:
        leaves[i] = jax.device_put(leaves[i], may_alias=False)


def as_passed(named: Sequence[Leaf], leaves: Sequence[Any]) -> tuple[Leaf, ...]:
    """The leaves of a call, as they were told from its arguments, where arrays have taken the place of some."""
    pairs = zip(named, leaves, strict=True)
    return tuple(
        dataclasses.replace(told, array=True) if isinstance(leaf, jax.Array) and not told.array else told
        for told, leaf in pairs
    )


def _numpy_data(leaves: Sequence[Any]) -> list[int]:
    """Which leaves are NumPy data that JAX has a type for; none where it may matter that they are moved here."""
    found = [i for i, leaf in enumerate(leaves) if type(leaf) is np.ndarray or isinstance(leaf, np.generic)]
    found = [i for i in found if leaves[i].dtype == bool or jnp.issubdtype(leaves[i].dtype, jnp.number)]
    return found if found and places_freely() else []
