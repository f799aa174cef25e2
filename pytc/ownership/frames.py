"""One frame of a caller: whether its variables can be relied on, how it waits, and what in them is dead."""

from __future__ import annotations

import sys
from types import CellType, FrameType
from typing import Any, NamedTuple

from pytc.ownership.bytecode.analysed import NotTrusted, flow_of, site_of
from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.bytecode.fields import unread
from pytc.ownership.bytecode.lengths import Lengths
from pytc.ownership.bytecode.stack import HIGHEST, Starred
from pytc.ownership.cpython.interpreter import UNBOUND, calls_directly, contents, getrefcount, variable
from pytc.ownership.others.exits import how_many_pass
from pytc.ownership.others.watchers import may_be_interrupted, raising_handler
from pytc.ownership.references.counts import PLAIN
from pytc.ownership.references.private import addresses, held_by_others
from pytc.ownership.references.starred import called_from_the_stack

FRAME_IS_HELD = "something else has hold of the frame of"
"""How a message begins about a frame that others may read."""


def looked_up(frame: FrameType, references: int) -> tuple[CallSite, str]:
    """The site of a frame, and how something other than its own bytecode may read its variables; "" if nothing may.

    Variables that others may read count as slots. `references` is how many variables of ours refer to the frame object,
    without the one here. Raises `NotTrusted` if the frame's code cannot be analysed, or is not what runs in it (Nuitka
    makes frames of its own).
    """
    if type(frame) is not FrameType:
        raise NotTrusted(f"{frame.f_code.co_qualname} is compiled, and its variables cannot be examined")
    if getrefcount(frame) != references + 3:  # the interpreter, the variable here, and `getrefcount`'s argument
        return site_of(frame), (
            f"{FRAME_IS_HELD} {frame.f_code.co_qualname}: a traceback, a debugger, or code that asked for it"
        )
    site = site_of(frame)
    return site, site.refusal


class Waiting(NamedTuple):
    """How a frame waits for the function in the frame below."""

    starred: Starred | None
    """Where the stack has what the frame's call keeps, if that is a starred call through C code; else None."""
    at_once: bool
    """Whether nothing runs between that function's return and the frame's next instruction."""
    atomic: bool
    """Whether nothing has been donated if the frame's call raises."""
    lengths: Lengths
    """Those of what the call returns."""


IN_SOME_WAY = Waiting(None, at_once=False, atomic=False, lengths=None)
"""For frames where this is not looked at: nothing is assumed."""


def waiting(
    frame: FrameType,
    site: CallSite,
    below: FrameType,
    readable: str,
    args: tuple[Any, ...],
    atomic: bool,
    lengths: Lengths,
) -> Waiting:
    """How `frame` waits for the function in the frame `below`.

    `readable` says how others may read the frame's variables, or is empty. `args` are the positional arguments of the
    function in `below`, if they are known; `atomic` and `lengths` are about its outcome.
    """
    starred = site.starred
    if starred is not None and (readable or not called_from_the_stack(frame, starred, below, args)):
        starred = None
    direct = starred is not None or calls_directly(frame, below)
    at_once = direct and (starred is None or not may_be_interrupted())
    atomic = atomic and at_once and not (site.is_read_by_handlers and raising_handler())
    return Waiting(starred, at_once, atomic, lengths if direct else None)


def dead_locals(
    frame: FrameType, site: CallSite, calls_compiled: bool, atomic: bool, lengths: Lengths
) -> frozenset[int]:
    """The dead locals of a frame, which is at `site`. The compiled function evaluates no strings in it; any other
    function that runs above the frame may yet do so. One in a cell that others have now is left out, though they may
    let go of it; one that is the frame's alone stays that, as long as the frame waits."""
    fits = site.fits(lengths)
    dead = site.dead(atomic, fits)
    if site.entered and site.dead(atomic, fits, len(site.entered)) != dead:  # mostly they are no matter
        dead = site.dead(atomic, fits, how_many_pass(frame, site))
    if site.cells:
        dead -= {number for number in dead & site.cells if is_shared(frame, number)}
    return dead if calls_compiled or not site.evaluated else dead - site.evaluated


def own(frame: FrameType, local: int) -> Any:
    """What a local variable has that nobody else can read, or `UNBOUND`: also what is in a cell, if that is the frame's
    alone. Only instructions of the frame's code could then hand it on."""
    value = variable(frame, local)
    if type(value) is CellType:
        # The frame, the variable here, and `getrefcount`'s argument.
        return contents(value) if getrefcount(value) == 3 else UNBOUND
    return value


def is_shared(frame: FrameType, local: int) -> bool:
    """Whether a local variable is in a cell that others have, too."""
    cell = variable(frame, local)
    return type(cell) is CellType and getrefcount(cell) != 3  # as in `own`


def dead_above(frame: FrameType, site: CallSite, atomic: bool, lengths: Lengths, address: int, most: int) -> int:
    """How many dead variables of the functions that have called `frame`'s refer to the object at this address. Up to
    `most` are looked for; the other arguments are what is known in `frame`, as for `dead_locals`.

    In `state = helper(state)` the helper's parameter has what the caller has in a variable that the result overwrites.

    No code that the callers still run reads what they have in such variables. So an object to which nothing else refers
    but a variable of `frame`'s function is as good as that function's own. The variables are looked at in the frames
    themselves, each of which waits and is in nobody's hands, so what was counted of them stays so.
    """
    found = 0
    below, above = frame, frame.f_back
    for _ in range(HIGHEST):
        atomic, lengths = atomic and site.passes_on(lengths), site.returned(lengths)
        if found >= most or above is None:
            break
        try:
            site, readable = looked_up(above, 1)
        except NotTrusted:
            break
        if readable:
            break
        _, _, atomic, lengths = waiting(above, site, below, readable, (), atomic, lengths)
        if at := [n for n, each in enumerate(addresses(above)) if each == address]:
            found += len(dead_locals(above, site, False, atomic, lengths).intersection(at))
        below = above
        above = below.f_back
    return found


def unread_in(
    frame: FrameType, site: CallSite, local: int, calls_compiled: bool, atomic: bool, lengths: Lengths
) -> list[Any]:
    """What is in a local variable's dictionary, list or tuple and is not read again; see `dead_locals`. Others that
    refer to that may be dead variables of the callers."""
    flow, fits = flow_of(frame.f_code), site.fits(lengths)
    # The route belongs to the innermost site: another function may be here this time, with fewer variables.
    if not flow.locals >> local & 1 or (local in site.evaluated and not calls_compiled):
        return []
    nodes = [variable(frame, local)]
    if id(type(nodes[0])) not in PLAIN:
        return []
    read = site.members_read(flow, local, atomic, fits)
    # A handler of signals may raise in the midst of the call, once that has donated.
    if atomic and read != (handled := site.members_read(flow, local, False, fits)) and raising_handler():
        read = handled
    if read is None:
        return []
    more = held_by_others(nodes, 0)
    return unread(nodes, read, more and dead_above(frame, site, atomic, lengths, id(nodes[0]), more))


def frames_beneath(frame: FrameType) -> list[int]:
    """The frames (ids) of the functions beneath `frame`, from that of the one that calls this on. Raises `ValueError`
    if `frame` is not that of a caller."""
    frames = []  # of ids: a list of frames that one of them has would keep them, and their variables
    below: FrameType | None = sys._getframe(1)
    while below is not None and below is not frame:
        frames.append(id(below))
        below = below.f_back
    if below is None:
        raise ValueError("the frame is not that of a caller")
    return frames
