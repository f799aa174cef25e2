"""The leaves that a program takes over, and where they were found the last time.

That depends on the tree of the arguments, not on who calls, so it is remembered with the program and forgotten with it.
(What is known of call sites is forgotten with their code. If it held classes of the caller's, neither would ever go.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytc.arguments.leaves import static_in
from pytc.ownership.arrays.buffers import Kinds
from pytc.ownership.arrays.walk import Walk
from pytc.ownership.call import Call
from pytc.picking import Picker, picker


class Wanted(tuple[int, ...]):
    """Which leaves (indices) have to be dead, in rising order, with what is remembered of them."""

    take: Picker
    """Picks them out of all leaves."""
    kinds: Kinds | None
    """Shapes and dtypes of arrays that may be on the same buffers, once that was needed."""
    walk: Walk | None
    """The way to them, once it has been walked."""
    tries: int
    """How often the way will still be looked for."""
    nbytes: int | None
    """Bytes that are won if all are dead, to be weighed against the time that the proof takes; None where it is to be
    made at any price (`donate="require"`)."""

    def __new__(cls, leaves: Sequence[int], nbytes: int | None = None) -> Wanted:
        """These leaves, of which nothing is known yet."""
        self = super().__new__(cls, leaves)
        self.nbytes = nbytes
        self.take = picker(leaves)
        self.kinds, self.walk, self.tries = None, None, 3
        return self

    def seek(self, leaves: Sequence[Any], call: Call) -> bool:
        """Look for the way to these arrays, because none is known or the known one no longer leads there; and return
        whether that was done. After a few times it is not: a way that keeps changing costs more than it saves."""
        seeks = self.tries > 0
        self.walk = Walk.to(leaves, call.args, call.kwargs, static_in(call.leaves)) if seeks else None
        self.tries -= seeks
        return seeks
