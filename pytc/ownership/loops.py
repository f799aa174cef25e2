"""What the iterator of a loop keeps of the item that it has handed out last.

`enumerate`, `zip` and the iterator of `dict.items()` hand out tuples. Each keeps the last, to fill it again if by then
nobody else refers to it; so in `for i, state in enumerate(states): states[i] = step(state)` the state is in the list,
in the variable, and in that tuple.

Nobody can ask an iterator for the tuple, and the iterator itself reads it only to let go of what is in it. So where the
iterator lies on the stack of a frame and is referred to from there alone, and the tuple by the iterator alone, what is
in the tuple is dead there.
"""

from __future__ import annotations

import gc
from types import FrameType
from typing import Any

from pytc.ownership.interpreter import getrefcount, variable

REUSE_A_TUPLE = {
    enumerate: "enumerate",
    zip: "zip",
    type(iter({}.items())): "items()",
    type(reversed({}.items())): "items()",
}
"""Types of iterators, and what people call them."""


def handed_out(frame: FrameType, position: int) -> list[Any]:
    """The values in the tuple that the iterator at this position of a frame's stack, counted from the first local, will
    fill again; none if there is no such iterator, or somebody else refers to one of the two."""
    iterator = variable(frame, position)
    if type(iterator) not in REUSE_A_TUPLE:
        return []
    # The iterators that a `zip` goes through are in a tuple, too, which comes first.
    own = [part for part in gc.get_referents(iterator) if type(part) is tuple][-1:]
    # Of the iterator: the stack, the variable here, and `getrefcount`'s own. A hook of `sys.addaudithook` was just
    # shown it, and may have kept it.
    if not own or getrefcount(iterator) != 3:
        return []
    # Of the tuple: the iterator, the list here, and `getrefcount`'s own.
    return list(own[0]) if getrefcount(own[0]) == 3 else []
