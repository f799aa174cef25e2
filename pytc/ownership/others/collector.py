"""Garbage collections: none between the look at a slot and the store that overwrites it, and whether there was one.

Cyclic garbage may have finalisers (`__del__`, callbacks of weak references), and these may look at any attribute, item
or global, also at one that is about to be overwritten by the result of a call whose argument it was. They run when
the collector does. So from before it is asked who else may look at slots until the result is about to be returned
there is no collection. From `-COLLECTING` to the caller's store the collector is on, and must have no occasion:

- from CPython 3.12 on it is asked for where the interpreter looks for signals, which is not before the store;
- CPython 3.11 may collect whenever an object is made that the collector counts, if by then so many more have been made
  than let go of (`gc.get_count`, `gc.get_threshold`). The instructions behind the call make a few: an iterator where
  the result is unpacked, a tuple that a helper returns, a `__dict__` for an attribute; `MOST`, at the most. And the
  result itself may be of any number. So where the occasion is near, as many objects are made as that takes, before
  anything is looked at, and let go of right before `-COLLECTING`. A collection that is due comes as they are made.

Calls in which no slot is dead never come here.
"""

from __future__ import annotations

import gc
import itertools
import math
import sys
from typing import Any

MOST = 40
"""So many objects may be made from `-COLLECTING` to the store."""
_OURS = 24
"""More objects than pytc makes in a call and keeps."""
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

BALLAST: list[Any] = []
"""Objects to be let go of right before `-COLLECTING`."""


def pause(made: int) -> bool:
    """Put off collections, if they are on; false if one may come before the store all the same. `made` is how many
    objects the result is of, at the most."""
    if not gc.isenabled():
        return not PAUSED[0] or _is_far_off(made)
    far_off = _is_far_off(made) or _with_ballast(made)
    PAUSED[0] = True  # before, so that an exception from outside leaves nothing switched off
    gc.disable()
    PAUSED[0] = True  # and again: another thread may have undone it, and switched on what is off now
    return far_off


def resume() -> None:
    """Undo `pause`."""
    if PAUSED[0]:
        PAUSED[0] = False
        BALLAST.clear()
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

    def _is_far_off(made: int) -> bool:
        """Whether there is no occasion for a collection before the store, once the ballast is let go of."""
        threshold = gc.get_threshold()[0]
        return threshold == 0 or max(0, gc.get_count()[0] + made + _OURS - len(BALLAST)) + MOST <= threshold

    def _with_ballast(made: int) -> bool:
        """The same with as many objects as there may be more behind the call. If it is time for it, garbage is
        collected as they are made, and its finalisers may change anything."""
        BALLAST[:] = map(iter, itertools.repeat((), made + 2 * _OURS + MOST))
        return _is_far_off(made)
else:

    def collections_so_far() -> object:
        """What `collected_since` is to be asked with later."""
        return None

    def collected_since(_: object) -> bool:
        """Never: from CPython 3.12 on there is no garbage collection in the midst of code written in C."""
        return False

    def _is_far_off(_: int) -> bool:
        """Always, as far as the store."""
        return True

    def _with_ballast(_: int) -> bool:
        """Not needed."""
        return True
