"""Where a comprehension puts back what it has put aside.

From CPython 3.12 on a comprehension is part of the function around it, and its variables are among that one's. What
such a variable held before (`LOAD_FAST_AND_CLEAR`) lies on the stack, beneath all that the comprehension puts there,
and is stored again when that is over, or has failed. So it is read only if the variable is live after one of these
stores, which this file finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytc.ownership.bytecode.instructions import UNCONDITIONAL

if TYPE_CHECKING:
    from pytc.ownership.bytecode.liveness import ControlFlow

_ONLY_DROP_OR_PUSH = UNCONDITIONAL | {
    *("LOAD_FAST", "LOAD_FAST_AND_CLEAR", "LOAD_CONST", "LOAD_GLOBAL", "STORE_FAST", "STORE_FAST_STORE_FAST", "NOP"),
    *("POP_TOP", "END_FOR", "END_ASYNC_FOR", "PUSH_EXC_INFO", "MAKE_CELL", "SWAP", "COPY"),
}
_EMPTY = {"BUILD_LIST", "BUILD_SET", "BUILD_MAP"}
_MOST_REPLACED = 2
"""So many of those on the stack may an instruction replace, at most, besides what it takes or puts on top. (`SEND`,
`CHECK_EG_MATCH` and `LOAD_SUPER_ATTR` for a method do.)"""


def puts_back(flow: ControlFlow, at: int) -> frozenset[int] | None:
    """The instructions that store again what instruction `at` puts aside; None if that may be used otherwise.

    The value is followed along all paths by its place on the stack: only `SWAP` moves it, and a handler finds it where
    it was, or dropped. It may be used otherwise where an instruction might take it that is no store to the same
    variable.
    """
    local = flow.instructions[at].arg
    place = flow.heights[at]
    if place is None:
        return frozenset()  # never executed
    found: set[int] = set()
    seen: set[tuple[int, int]] = set()
    ahead = [(n, place) for n in flow.follows[at]]
    while ahead:
        n, place = each = ahead.pop()
        if each in seen:
            continue
        seen.add(each)
        handler = flow.handlers[n]
        if handler is not None and place < flow.handler_keeps[handler]:
            ahead.append((handler, place))
        stored = _stored_in(flow, n, place)
        if stored is not None and stored != local:
            return None
        if stored is not None:
            found.add(n)
            continue
        if place >= _untouched(flow, n):
            return None
        ahead += [(m, _moved(flow, n, place)) for m in flow.follows[n]]
    return frozenset(found)


def _height(flow: ControlFlow, at: int) -> int:
    return flow.heights[at] or 0


def _stored_in(flow: ControlFlow, at: int, place: int) -> int | None:
    """The local variable that instruction `at` stores what is at this place of the stack in; None if it does not."""
    name, argument = flow.instructions[at].opname, flow.instructions[at].arg or 0
    locals_stored = {
        "STORE_FAST": (argument,),
        "STORE_FAST_LOAD_FAST": (argument >> 4,),
        "STORE_FAST_STORE_FAST": (argument >> 4, argument & 15),
    }.get(name, ())
    down = _height(flow, at) - place - 1
    return locals_stored[down] if down < len(locals_stored) else None


def _untouched(flow: ControlFlow, at: int) -> int:
    """So many places of the stack, from the bottom, surely keep what they have when instruction `at` is executed; or
    swap it (`_moved`)."""
    instruction = flow.instructions[at]
    before = _height(flow, at)
    if instruction.opname == "COPY":
        return before - (instruction.arg or 0)
    least = min([before, *(_height(flow, n) for n in flow.follows[at])])
    simple = instruction.opname in _ONLY_DROP_OR_PUSH or (instruction.opname in _EMPTY and not instruction.arg)
    return least if simple else least - _MOST_REPLACED


def _moved(flow: ControlFlow, at: int, place: int) -> int:
    """Where on the stack instruction `at` leaves what was at this place, if it leaves it."""
    if flow.instructions[at].opname != "SWAP":
        return place
    top = _height(flow, at) - 1
    other = top + 1 - (flow.instructions[at].arg or 0)
    return {top: other, other: top}.get(place, place)
