"""Garbage collections: none between the look at a slot and the store that overwrites it, and whether there was one.

Cyclic garbage may have finalisers (`__del__`, callbacks of weak references), and these may look at any attribute, item
or global, also at one that is about to be overwritten by the result of a call whose argument it was. They run when
the collector does. So from before it is asked who else may look at slots until the result is about to be returned
there is no collection. From `-COLLECTING` to the caller's store the collector is on, and must have no occasion:

- from CPython 3.12 on it is asked for where the interpreter looks for signals, which is not before the store;
- CPython 3.11 may collect whenever an object is made that the collector counts, if by then so many more have been made
  than let go of (`gc.get_count`, `gc.get_threshold`). The instructions after the call make a few: an iterator where
  the result is unpacked, a tuple that a helper returns, a `__dict__` for an attribute; `MOST`, at the most. And the
  result itself may be of any number, and the first call of a program leaves thousands. So where the occasion is near
  as the call ends, everything is made to look old, which begins the count anew: by `gc.freeze` and `gc.unfreeze`, or
  the former alone where a user has frozen something. That delays the end of young garbage, so it is not for each call:
  where the occasion is near as the call begins, as many objects are made as the result is of, before anything is looked
  at, and let go of as it ends. A collection that is due comes as they are made.

Calls in which no slot is dead never come here.
"""

from __future__ import annotations

import gc
import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

WHILE_ALLOCATING = sys.version_info < (3, 12)
"""Whether a collection may come in the midst of an instruction that makes an object."""
MOST = 40
"""So many objects may be made from `-COLLECTING` to the store."""
_OURS = 24
"""More objects than pytc makes in a call and keeps, mostly."""
_ROUND = 10_000
"""More objects than one call makes: if the collector's counts begin anew only after as many, they do not come back to
the same within a call."""
_OFTEN = 100
"""So often is as much as CPython lets be made before it collects all garbage, or looks whether that is worth it."""


class _State:
    """What is being done about the collector, in the whole process."""

    __slots__ = ("aged", "ballast", "paused")

    def __init__(self) -> None:
        self.paused = False
        """Whether a collection is being put off."""
        self.ballast: tuple[object, ...] = ()
        """Objects to be let go of as the call ends."""
        self.aged = 0
        """How often everything was made to look old since all garbage was last collected for that."""


STATE = _State()


def _operator(function: Callable[[], Any]) -> Any:
    """`-_operator(function)` calls a function written in C. After a call the interpreter would look for signals, and a
    Ctrl-C would strike before the result is stored (see `pytc.interrupt`); after an operator it does not."""
    return type("_Operator", (), {"__neg__": staticmethod(function)})()


COLLECTING, COUNT, THRESHOLD = _operator(gc.enable), _operator(gc.get_count), _operator(gc.get_threshold)
FROZEN, FREEZE, UNFREEZE = _operator(gc.get_freeze_count), _operator(gc.freeze), _operator(gc.unfreeze)


def pause(made: int) -> bool:
    """Put off collections, if they are on; false if one may come before the store all the same. `made` is how many
    objects the result is of, at the most."""
    threshold = gc.get_threshold()[0] if WHILE_ALLOCATING else 0  # with 0 none comes by itself
    if gc.isenabled():
        if STATE.aged >= _OFTEN:
            STATE.aged = 0
            gc.collect()
        if 0 < threshold < gc.get_count()[0] + made + _OURS + MOST:
            STATE.ballast = (*map(iter, itertools.repeat((), made + _OURS + MOST)),)
        STATE.paused = True  # before, so that an exception from outside leaves nothing switched off
        gc.disable()
        STATE.paused = True  # and again: another thread may have undone it, and switched on what is off now
    return not 0 < threshold <= MOST


def resume() -> None:
    """Undo `pause`."""
    if STATE.paused:
        STATE.paused = False
        STATE.ballast = ()
        _ = -COLLECTING  # neither a Ctrl-C nor another thread comes in between


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
