"""The `with` statements around a call: where their managers are, and what is read if these pass exceptions on.

    with mesh:
        for batch in data:
            state, loss = train_step(state, batch)      # a helper, which goes on after the compiled function's call
    return state

If the helper raises once the state was given away, the manager's `__exit__` is asked whether the exception ends there.
If it did, `return state` would read what was given away. Most managers never say so (`passing`), and the interpreter
has the very `__exit__` that it will call on the frame's stack. So for the manager that is there now the exception goes
on to the next handler around the statement.

That is so for one manager alone, and not for the one that the same statement has the next time. So instructions are
taken twice: as they are reached from the call without leaving the block, and as they are reached otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytc.interrupt import SUSPENDS
from pytc.ownership.bytecode.instructions import CANNOT_RAISE
from pytc.ownership.bytecode.liveness import ControlFlow, Live
from pytc.ownership.bytecode.stack import before, first_of_stack


class Entered(NamedTuple):
    """A `with` statement whose block a call is in."""

    handler: int
    """The instruction with which its handler begins."""
    raises: int
    """The one that raises the exception again, if `__exit__` has not said that it ends there."""
    position: int
    """Where `__exit__` is on the stack, counted from the first local."""


MOST = 4
"""So many statements around a call are looked at, the innermost."""


def entered(flow: ControlFlow, at: int) -> tuple[Entered, ...]:
    """The `with` statements around a call, the innermost first; without those whose code is none that is known."""
    if not flow.instructions[at].opname.startswith("CALL"):
        return ()
    first = first_of_stack(flow.code)
    around = ((handler, _raises_again(flow, handler)) for handler in _around(flow, at))
    found = (Entered(h, raises, first + flow.handler_keeps[h] - 1) for h, raises in around if raises is not None)
    return tuple(itertools.islice(found, MOST))


def _around(flow: ControlFlow, at: int) -> Iterator[int]:
    """The handlers around an instruction, the innermost first. Each is around the next one's code."""
    handler = flow.handlers[at]
    while handler is not None:
        yield handler
        handler = flow.handlers[handler]


_OF_A_WITH = ("PUSH_EXC_INFO", "WITH_EXCEPT_START", "TO_BOOL", "POP_JUMP_IF_TRUE", "RERAISE")


def _raises_again(flow: ControlFlow, handler: int) -> int | None:
    """Where the handler of a `with` statement raises the exception again; None if it is no such handler."""
    code = flow.instructions[handler : handler + len(_OF_A_WITH)]
    names = [each.opname.replace("_JUMP_FORWARD_IF_", "_JUMP_IF_") for each in code]  # so called up to CPython 3.11
    for wanted in (_OF_A_WITH, tuple(name for name in _OF_A_WITH if name != "TO_BOOL")):
        if tuple(names[: len(wanted)]) == wanted:
            return handler + len(wanted) - 1
    return None


def passing(flow: ControlFlow, statements: Sequence[Entered]) -> ControlFlow:
    """The control flow from a call on, where these of the statements that it has `entered`, the innermost first, have
    managers now that pass exceptions on. Made once for each of them, in time linear in the code."""
    if not statements:
        return flow
    known, key = flow.once(_made), tuple(each.handler for each in statements)
    if key not in known:
        known[key] = _Passing(flow, statements[0], passing(flow, statements[1:]))
    return known[key]


def _made(_: ControlFlow) -> dict[tuple[int, ...], ControlFlow]:
    return {}


def _blocks(flow: ControlFlow) -> dict[int, list[int]]:
    """By handler: the instructions that it is around, inner handlers' included."""
    found: dict[int, list[int]] = {}
    for at in range(len(flow.instructions)):
        for handler in _around(flow, at):
            found.setdefault(handler, []).append(at)
    return found


class _Within(dict[int, int]):
    """What is live before the instructions of a block; before others, what is live there for the `outer` flow."""

    def __init__(self, outer: Live) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, at: int) -> int:
        return self.outer[at]


class _Passing(ControlFlow):
    """The control flow from a call on, as long as the block of the `innermost` statement is not left.

    Once control has left the block, it does not come back to this manager: another one is entered by an instruction
    outside of it. So what is live outside of the block is told by the `outer` flow, for which this statement may have
    any manager, and only those around it have the ones that they have now.
    """

    def __init__(self, flow: ControlFlow, innermost: Entered, outer: ControlFlow):
        vars(self).update(vars(flow))
        self.outer, self.innermost = outer, innermost
        self.live = self._solve_inside()

    def _inside(self) -> list[int]:
        """The instructions of the block: those that the statement's handler is around."""
        return self.once(_blocks)[self.innermost.handler]

    def _solve_inside(self) -> Live:
        live, changed, inside = _Within(self.outer.live), True, self._inside()
        live.update(dict.fromkeys(inside, 0))
        while changed:
            changed = False
            for at in reversed(inside):
                reads = self.reads[at] | self._by_strings[at]
                now = reads | (self._after(live, at) & ~self.writes[at]) | self._handled(live, at)
                if now != live[at]:
                    live[at], changed = now, True
        return live

    def _handled(self, live: Live, at: int) -> int:
        if self.handlers[at] != self.innermost.handler or self.instructions[at].opname in CANNOT_RAISE:
            return super()._handled(live, at)
        # `__exit__` runs, and may evaluate strings, before the exception is raised again.
        read = self.outer._handled(self.outer.live, self.innermost.raises)
        for n in range(self.innermost.handler, self.innermost.raises + 1):
            read |= self.reads[n] | self._by_strings[n]
        return read


def returns_nothing(flow: ControlFlow) -> bool:
    """Whether a function returns nothing that is true: no `__exit__` that says that an exception ends there. (What a
    generator or a coroutine is called with returns one, which is.)"""
    if flow.code.co_flags & SUSPENDS:
        return False
    code, befores = flow.instructions, flow.once(before)
    for n, instruction in enumerate(code):
        if instruction.opname == "RETURN_VALUE":
            if befores[n] != [n - 1] or code[n - 1].opname != "LOAD_CONST":
                return False
            instruction = code[n - 1]
        elif instruction.opname != "RETURN_CONST":
            continue
        if not (instruction.argval is None or instruction.argval is False):
            return False
    return True


def goes_on_raising(flow: ControlFlow) -> bool:
    """Whether a generator that an exception is thrown into, wherever it is, does not return: one with which
    `contextlib.contextmanager` has made a manager."""
    if any(each.opname == "SEND" for each in flow.instructions):
        return False
    # The exception is raised at the `yield`, or at the instruction after it.
    yields = [n for n, each in enumerate(flow.instructions) if each.opname == "YIELD_VALUE"]
    places = {*yields, *(n + 1 for n in yields)}
    ahead = [handler for n in places if (handler := flow.handlers[n]) is not None]
    seen: set[int] = set()
    while ahead:
        n = ahead.pop()
        if n in seen:
            continue
        seen.add(n)
        if flow.instructions[n].opname in ("RETURN_VALUE", "RETURN_CONST"):
            return False
        ahead += [each for each in itertools.chain(flow.follows[n], [flow.handlers[n]]) if each is not None]
    return True
