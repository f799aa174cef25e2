"""Garbage collections: none between the look at a slot and the store that overwrites it, and whether there was one.

Cyclic garbage may have finalisers (`__del__`, callbacks of weak references), and these may look at any attribute, item
or global, also at one that is about to be overwritten by the result of a call whose argument it was. They run when
the collector does: while something is allocated (CPython 3.11), or between two instructions afterwards. So from
before it is asked who else may look at slots until the result is about to be returned there is no collection. Nothing
is allocated (where that matters: `WHILE_ALLOCATING`), and no signal or collection looked for, between `-COLLECTING` and
the caller's store.

Calls in which no slot is dead never come here.
"""

from __future__ import annotations

import gc
import math
import sys

WHILE_ALLOCATING = sys.version_info < (3, 12)
"""Whether a collection may come in the midst of an instruction that makes an object, such as a tuple or a `__dict__`;
else it comes where the interpreter looks for signals."""
_ROUND = 10_000
"""More objects than one call makes: if the collector's counts begin anew only after as many, they do not come back to
the same within a call."""
PAUSED = [False]
"""Whether a collection is being put off."""


class _Collecting:
    """`-COLLECTING` switches the collector on. An operator, since after a call the interpreter would look for signals,
    and a Ctrl-C would strike before the result is stored (see `pytc.interrupt`)."""

    __neg__ = staticmethod(gc.enable)


COLLECTING = _Collecting()


def pause() -> None:
    """Put off collections, if they are on."""
    if gc.isenabled():
        PAUSED[0] = True  # before, so that an exception from outside leaves nothing switched off
        gc.disable()
        PAUSED[0] = True  # and again: another thread may have undone it, and switched on what is off now


def resume() -> None:
    """Undo `pause`."""
    if PAUSED[0]:
        PAUSED[0] = False
        gc.enable()


if sys.version_info < (3, 12):

    def collections_so_far() -> object:
        """What `collected_since` is to be asked with later."""
        return gc.get_count()[1:] + gc.get_threshold()

    def collected_since(before: object) -> bool:
        """Whether there may have been a garbage collection, of which CPython 3.11 may do one at any allocation.

        The collector's counts begin anew when as many objects have been made as the thresholds multiplied. Where these
        are so low that one call could do that, the answer is always yes.
        """
        now = gc.get_count()[1:] + gc.get_threshold()
        return now != before or 0 < math.prod(now[2:]) < _ROUND
else:

    def collections_so_far() -> object:
        """What `collected_since` is to be asked with later."""
        return None

    def collected_since(_: object) -> bool:
        """Never: from CPython 3.12 on there is no garbage collection in the midst of code written in C."""
        return False
