"""Every array that is alive, newest first, and whether to look at them costs more than to copy what might be won.

A client lists all its arrays, each new one in front. So what stands before an array in the list is younger, which is
what `executions` goes by; that this is the order is tried out before anything relies on it. To list the arrays takes
some 50 ns each, and to ask each for its address a microsecond or two, so where there are very many and little memory to
win, that is not done, and the leaves are kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pytc.jax_compat.arrays import new_shard
from pytc.jax_compat.clients import lister

if TYPE_CHECKING:
    from pytc.ownership.arrays.wanted import Wanted

FEW = 1024
"""Up to so many arrays alive, all of them are looked at, however little memory is to be won."""
_BYTES_EACH = 200
"""To list one array takes about as long as to copy this many bytes."""
_ADDRESS = 30 * _BYTES_EACH
"""To ask it for its address takes as long as to list 30; in bytes, as above."""
_A_COPY = 500 * _BYTES_EACH
"""To make a copy of no bytes takes as long as to list 500, at least; in bytes, as above."""


class _Listing:
    """Lists the arrays of the default platform, once its client is known to list the newest first."""

    def __init__(self) -> None:
        self.arrays: Callable[[], list[Any]] = self._first
        """Every array that is not deleted, newest first; none where that is not the order."""
        self.count = 0
        """How many arrays there were when they were listed last."""
        self.counts_anew = False
        """Whether they were counted the last time that they seemed to be too many."""

    def _first(self) -> list[Any]:
        arrays = lister()
        self.arrays = arrays if _lists_newest_first(arrays) else list
        return self.arrays()


def _lists_newest_first(arrays: Callable[[], list[Any]]) -> bool:
    with jax.transfer_guard("allow"):
        first = jax.device_put(np.int8(0), jax.local_devices()[0])
        second = new_shard(first)
        third = new_shard(second)
    newest = arrays()[:3]
    return len(newest) == 3 and all(map(operator.is_, newest, (third, second, first)))


_listing = _Listing()


def listed() -> list[Any]:
    """Every array of the default platform that is not deleted, newest first."""
    alive = _listing.arrays()
    _listing.count = len(alive)
    return alive


def is_dear(wanted: Wanted) -> bool:
    """Whether so many arrays are alive that to list them takes longer than to copy the `wanted` leaves. To list them
    takes a while itself, so they are counted every other time that they seem to be too many."""
    if _listing.count <= FEW or wanted.nbytes is None:
        return False
    leaves, nbytes = len(wanted), wanted.nbytes
    if not are_too_many(_listing.count, leaves, nbytes):
        return False
    _listing.counts_anew = not _listing.counts_anew
    return not _listing.counts_anew or are_too_many(len(listed()), leaves, nbytes)


def is_dear_now(wanted: Wanted) -> bool:
    """The same, when all arrays are counted: for a call that compiles, beside which that takes no time."""
    return wanted.nbytes is not None and are_too_many(len(listed()), len(wanted), wanted.nbytes)


def are_too_many(arrays: int, leaves: int, nbytes: int, asked: bool = False) -> bool:
    """Whether to list so many arrays takes longer than to copy so many leaves, of so many bytes together; or, if they
    are to be `asked` for their addresses, to do that."""
    each = _ADDRESS if asked else _BYTES_EACH
    return arrays > FEW and each * arrays > _A_COPY * leaves + nbytes
