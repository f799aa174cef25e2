"""No garbage collection between the look at a slot and the store that overwrites it.

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
import sys

WHILE_ALLOCATING = sys.version_info < (3, 12)
"""Whether a collection may come in the midst of an instruction that makes an object, such as a tuple or a `__dict__`;
else it comes where the interpreter looks for signals."""
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
        PAUSED[0] = True
        gc.disable()


def resume() -> None:
    """Undo `pause`."""
    if PAUSED[0]:
        PAUSED[0] = False
        gc.enable()
