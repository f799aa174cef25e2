"""What happens right after a call, up to the first instruction that may run Python code.

The result is taken apart and stored, places are loaded, and variables are read for the last time. Whether reading or
storing runs no code depends on the objects, which `slots` examines at each call.
"""

from __future__ import annotations

import collections

from pytc.interrupt import SUSPENDS
from pytc.ownership.bytecode.events import RESULT, Call, Constant, Event, Value, fast
from pytc.ownership.bytecode.fields import loads, member_of
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.symbolic import Machine
from pytc.set_bits import set_bits


def continuation(flow: ControlFlow, at: int) -> tuple[tuple[Event, ...], bool, Value]:
    """What happens after the call at instruction `at`, up to the first instruction that may run Python code; whether
    the function then returns; and what of the call's result it returns, if it does."""
    machine = Machine(lenient=False)
    machine.stack.append(RESULT)
    uses = _Uses(flow)
    n = at + 1
    while n < len(flow.instructions):
        instruction = flow.instructions[n]
        if instruction.opname == "JUMP_FORWARD":  # over the other branch of a conditional expression
            (n,) = flow.follows[n]
            continue
        if instruction.opname in ("RETURN_VALUE", "RETURN_CONST"):
            passes_result_on = not machine.stack or not isinstance(machine.stack[-1], tuple)
            # Values that the walk took from beneath the call's result are then in variables or a tuple, and may die as
            # the function returns. At the call they are only on the stack, where `slots` does not look.
            returns = passes_result_on and not machine.digs and not flow.code.co_flags & SUSPENDS
            returned = machine.stack[-1] if returns and instruction.opname == "RETURN_VALUE" and machine.stack else None
            return _needed(machine.events, returns), returns, returned
        uses.add(n)
        if not machine.step(instruction):
            machine.events += _call(flow, at, n, machine, uses)
            break
        machine.events += [Event("leave", fast(local)) for local in uses.ending(n)]
        n += 1
    return _needed(machine.events, False), False, None


class _Uses:
    """What consecutive instructions after a call read the local variables for."""

    def __init__(self, flow: ControlFlow):
        self._flow = flow
        self._whole = collections.Counter[int]()
        """How often each was read as a whole, or written."""
        self._copies = False
        """Whether something on the stack was copied, which may have been such a local's value."""
        self._ends: dict[int, int] = {}
        """By the instruction that takes the last attribute that is read of a local: which."""

    def add(self, n: int) -> None:
        """Add one instruction."""
        member, flow = member_of(self._flow, n), self._flow
        self._copies |= flow.instructions[n].opname == "COPY"
        self._whole.update(loads(flow, n) + 2 * set_bits(flow.writes[n]))
        if member is not None and member.step.kind == "attribute":
            self._whole[member.local] -= 1
            if not flow.live_after(n) >> member.local & 1:
                self._ends[member.last] = member.local

    def ending(self, n: int) -> list[int]:
        """The local of which instruction `n` takes the last attribute, if nothing else of it was read; else none."""
        local = self._ends.get(n)
        return [] if local is None or not self.is_private(local) or self._whole[local] else [local]

    def is_read_once(self, local: int, before: int) -> bool:
        """Whether the local was read as a whole just once, and is not read from instruction `before` on."""
        once = self._whole[local] == 1 and not self._copies
        return once and self.is_private(local) and not self._flow.live[before] >> local & 1

    def is_private(self, local: int) -> bool:
        """Whether only instructions read it."""
        return bool(self._flow.locals >> local & 1)


def _call(flow: ControlFlow, before: int, at: int, machine: Machine, uses: _Uses) -> list[Event]:
    """The event of a call with keywords, of which instruction `at` is the first that runs code. None at all if it is no
    such call; or if what it calls, and the first thing that it passes, was neither on the stack at the call `before`,
    nor loaded since then, the latter from a local variable for the last time that this is read."""
    code, height, after = flow.instructions, flow.heights[at], flow.heights[before + 1]
    ahead = [each.opname for each in code[at : at + 3]]
    if height is None or after is None or not code[before].opname.startswith("CALL"):
        return []
    above = 0
    top = machine.stack[-1] if machine.stack else None
    if ahead[0] == "CALL_KW" and isinstance(top, Constant):  # from CPython 3.13 on, with the names on top
        names, passed, above = top.value, code[at].arg or 0, 1
    elif ahead in (["KW_NAMES", "PRECALL", "CALL"], ["KW_NAMES", "CALL", ahead[-1]]):
        names, passed = flow.code.co_consts[code[at].arg or 0], code[at + ahead.index("CALL")].arg or 0
    else:
        return []
    lower, positional = height - above - passed - 2, passed - len(names)
    if lower + 1 + positional < after - 1:  # the topmost is the result of the call before
        return [Event("call", call=Call(names, positional, lower))]
    first = len(machine.stack) - above - passed - 2
    if first < 0 or positional > 1:
        return []
    function = machine.stack[first] or machine.stack[first + 1]
    of = machine.stack[first + 1 + positional]
    if not isinstance(function, tuple) or not isinstance(of, tuple) or len(of) > 1 or of[0].kind != "fast":
        return []
    if not (positional or function[:-1] == of) or not uses.is_read_once(of[0].name, at):
        return []
    return [Event("call", of, call=Call(names, positional, function=function))]


def taken_apart(flow: ControlFlow, at: int) -> tuple[tuple[Event, ...], int]:
    """The events that take apart the result of the call at instruction `at`, among the instructions after it that only
    do that and store the parts in local variables; and the number of the last of them, `at` if there is none."""
    machine, last = Machine(lenient=False), at
    machine.stack.append(RESULT)
    for n in range(at + 1, len(flow.instructions)):
        name = flow.instructions[n].opname
        if name not in _TAKE_APART or not machine.step(flow.instructions[n]):
            break
        if name in ("UNPACK_SEQUENCE", "BINARY_SUBSCR", "LOAD_ATTR"):
            last = n
    return tuple(event for event in machine.events if event.does in ("unpack", "pick")), last


_TAKE_APART = {
    *("NOP", "CACHE", "EXTENDED_ARG", "LOAD_CONST", "SWAP", "STORE_FAST", "STORE_FAST_STORE_FAST"),
    *("UNPACK_SEQUENCE", "BINARY_SUBSCR", "LOAD_ATTR"),
}


def cannot_raise(events: tuple[Event, ...]) -> bool:
    """Whether the events are only stores to variables, and loads of variables stored before: others may be unbound.
    Those that take the result apart are for `Event.takes_apart` to tell of, and a tuple of the parts can be built."""
    stored = set()
    for event in events:
        if event.does in ("unpack", "pick", "build", "leave"):
            continue
        if event.does == "call" or len(event.place) != 1 or event.place[0].kind != "fast":
            return False
        if event.does == "store":
            stored.add(event.place)
        elif event.place not in stored:
            return False
    return True


_END = Event("unpack")
_MATTERS = ("store", "leave", "call")


def _needed(events: list[Event], returns: bool) -> tuple[Event, ...]:
    """The events without the loads that only begin the place of the store that follows: whoever examines the store
    examines these, too. And without those at the end that nothing depends on, unless the function `returns` there."""
    last = max((n for n, event in enumerate(events) if returns or event.does in _MATTERS), default=-1)
    events = events[: last + 1]
    return tuple(
        event
        for event, following in zip(events, [*events, _END][1:], strict=True)
        if event.does != "load" or following.does != "store" or event.place != following.place[:-1][: len(event.place)]
    )
