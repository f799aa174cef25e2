"""Where strings go: which instructions may evaluate one that names local variables. A forward taint analysis.

Libraries such as `numexpr.evaluate("x + 1")`, `frame.query("price > @limit")` and formulas of statistics packages read
variables of their caller's frame by name. So each value on the stack, and each local variable, is told by the locals
that are named in the strings which it may be, or be made of; and what takes such a value may evaluate them. (A string
that is passed to a call is evaluated there, rather than where it is loaded, since other calls may come in between:
`evaluate("x + 1", step(x))`.)

A string that is a single name is evaluated by what takes it, or never. One that is more, a *text*, may be evaluated
later, by anything that runs code: a call, an operator, a loop. So its taint goes on

- from what an instruction takes to what it puts there instead: the result of a call, what an iterator hands out, what
  a `with` statement binds;
- into the local variable that such a value is stored in, and from there to wherever that is loaded;
- into the container that it is added to, and the exception that is raised where something is done with it;
- stored anywhere else, to each instruction that may run code.

It ends where a value is dropped, and so what a call does with a text whose result nobody has is not followed: most of
these calls print.

The taints only grow, and there are as many as locals, so this ends; it is not begun where no string names a local.
What variables have is not told apart by the place (flow-insensitive): cheap, and few variables have text.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pytc.ownership.bytecode.instructions import RUN_NO_CODE, TWO, UNCONDITIONAL
from pytc.ownership.bytecode.strings import is_text
from pytc.set_bits import by_member

if TYPE_CHECKING:
    from pytc.ownership.bytecode.liveness import ControlFlow

Taint: TypeAlias = int
"""Locals, as bits: those that single names name; and, further up, those that texts name."""
Stack: TypeAlias = list[Taint]

_LEAVE_THE_STACK = UNCONDITIONAL | {"NOP", "RESUME", "KW_NAMES", "MAKE_CELL", "COPY_FREE_VARS", "EXTENDED_ARG"}
_LEAVE_THE_STACK |= {"DELETE_FAST", "DELETE_GLOBAL", "DELETE_DEREF", "DELETE_NAME", "SETUP_ANNOTATIONS", "RETURN_CONST"}
"""Instructions that take nothing from the stack, and put nothing there."""
_PUT = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLOSURE", "PUSH_NULL", "LOAD_BUILD_CLASS", "RETURN_GENERATOR"}
_PUT |= {"LOAD_ASSERTION_ERROR"}
"""Instructions that put something on the stack, and take nothing."""
_DROP = {"POP_TOP", "POP_EXCEPT", "END_FOR", "RETURN_VALUE", "RERAISE", "DELETE_SUBSCR", "DELETE_ATTR"}
_DROPS = ("POP_JUMP_", "JUMP_IF_")
"""Instructions, and how others begin, that take something from the stack and put nothing there."""
_ADD = {"LIST_APPEND", "LIST_EXTEND", "SET_ADD", "SET_UPDATE", "MAP_ADD", "DICT_UPDATE", "DICT_MERGE"}
"""Instructions that add something to a container on the stack."""
_DEEP = {"SEND", "END_ASYNC_FOR", "CLEANUP_THROW", "MATCH_KEYS", "CHECK_EG_MATCH"}
"""Instructions that use what is further down the stack than what they take or replace."""
_MADE_OF = ("BINARY_OP", "BUILD_", "FORMAT_", "CONVERT_", "PRECALL")
"""How instructions begin that make a value of others, in which these still are."""
_TO_EXIT = slice(-4, -3)
"""Where `WITH_EXCEPT_START` finds what it calls. What it passes, an exception, counts as used by nobody there: most
blocks print something."""
_ENDS_GENERATORS = "INTRINSIC_STOPITERATION_ERROR"
"""What a generator does with an exception of its own, which runs nobody's code."""


def evaluated(flow: ControlFlow, named: Sequence[int], loads: Sequence[int], count: int) -> list[int]:
    """For each instruction the locals, as bits, that strings name which it may evaluate. `named` are those that are
    named in the strings that each instruction loads, `loads` those that it loads itself, and `count` all there are."""
    if not any(named):
        return [0] * len(named)
    taints = _Taints(flow, named, loads, count)
    taints.spread()
    return [
        0 if instruction.opname in RUN_NO_CODE else taints.names(taint | taints.stored)
        for taint, instruction in zip(taints.taken, flow.instructions, strict=True)
    ]


class _Taints:
    """The taint of everything in a function."""

    def __init__(self, flow: ControlFlow, named: Sequence[int], loads: Sequence[int], count: int) -> None:
        self.flow, self.count = flow, count
        self.loaded = {at: bits << count * is_text(flow, at) for at, bits in enumerate(named) if bits}
        """That of the constants, by instruction."""
        self.taken: list[Taint] = [0] * len(flow.instructions)
        """By instruction: that of what it uses."""
        self.variables: Counter[int] = Counter()
        """By number, which may also be that of a cell."""
        self.stored: Taint = 0
        """That of what anybody may have."""
        self._ahead = sorted([0, *flow.handler_depths])
        """The instructions to be executed, as a heap: the first one first, so that most are executed once."""
        self.stacks: dict[int, Stack] = {at: [0] * (flow.heights[at] or 0) for at in self._ahead}
        """By instruction: that of what is there before."""
        self._grown: set[int] = set()
        """The variables that have got more in this round."""
        self._loads = by_member(loads)
        """By variable: the instructions that load it."""

    def names(self, taint: Taint) -> int:
        """The locals that are named."""
        return (taint | taint >> self.count) & ((1 << self.count) - 1)

    def text(self, taint: Taint) -> Taint:
        """What goes on from what is taken to what is made of it."""
        return taint >> self.count << self.count

    def spread(self) -> None:
        """To a fixed point: in rounds, after each of which the variables that have got more are loaded again."""
        while self._ahead:
            while self._ahead:
                at = heapq.heappop(self._ahead)
                if self._ahead[:1] == [at]:
                    continue  # it is there twice
                for after, stack in self._step(at, self.stacks[at]):
                    known = self.stacks.get(after)
                    merged = stack if known is None else [a | b for a, b in zip(known, stack, strict=True)]
                    if merged != known:
                        self.stacks[after] = merged
                        heapq.heappush(self._ahead, after)
            loads = {at for variable in self._grown for at in self._loads.get(variable, ()) if at in self.stacks}
            self._grown.clear()
            self._ahead = sorted(loads)

    def _step(self, at: int, stack: Stack) -> Iterator[tuple[int, Stack]]:
        """Execute an instruction: what may follow, each with the stack then."""
        flow = self.flow
        name, argument = flow.instructions[at].opname, flow.instructions[at].arg or 0
        if name == "RAISE_VARARGS":  # calls what is raised, if that is a class; without an argument, any may be
            self._take(at, stack[-argument:])
        for after in flow.follows[at]:
            height = flow.heights[after] or 0
            yield after, _fitted(self._after(at, [*stack], height), height)
        handler = flow.handlers[at]
        if handler is not None:
            # On top comes the exception, which may be made of what is used here, or is raised once more.
            raised = self.text(stack[-1] if name == "RERAISE" else self.taken[at])
            left = stack[: flow.handler_keeps[handler]]
            yield handler, [*_fitted(left, flow.handler_depths[handler] - 1), raised]

    def _after(self, at: int, stack: Stack, height: int) -> Stack:
        """The stack after an instruction, which is then so high: what is above that is gone."""
        name, argument = self.flow.instructions[at].opname, self.flow.instructions[at].arg or 0
        if name in TWO:
            first, second = name.split("_FAST_", 1)
            self._with_variable(first, argument >> 4, stack)
            self._with_variable(second.removesuffix("_FAST"), argument & 15, stack)
        elif name.startswith(("LOAD_FAST", "STORE_FAST")):
            self._with_variable(name.partition("_")[0], argument, stack)
        elif name == "LOAD_CONST":
            stack.append(self.loaded.get(at, 0))
        elif name == "COPY":
            stack.append(stack[-argument])
        elif name == "SWAP":
            stack[-1], stack[-argument] = stack[-argument], stack[-1]
        elif name == "FOR_ITER":
            stack.append(self._take(at, stack[-1:]))
        elif name.startswith("STORE_"):
            self.stored |= self.text(self._take(at, stack[height:]))
        elif name in _ADD:
            added = self._take(at, stack[height:])
            stack[height - argument] |= added
        elif name in _DROP or name.startswith(_DROPS):
            self._take(at, stack[height:] or stack[-1:])
        elif not self._takes_nothing(at):
            self._replace(at, stack, height)
        return stack

    def _takes_nothing(self, at: int) -> bool:
        instruction = self.flow.instructions[at]
        name = instruction.opname
        return (
            name in _LEAVE_THE_STACK
            or name in _PUT
            or (name.startswith("BUILD_") and not instruction.arg)
            or instruction.argrepr == _ENDS_GENERATORS
        )

    def _with_variable(self, does: str, variable: int, stack: Stack) -> None:
        """Load a variable, or store into it."""
        if does == "LOAD":
            stack.append(self.variables[variable])
        elif new := self.text(stack.pop()) & ~self.variables[variable]:
            self.variables[variable] |= new
            self._grown.add(variable)

    def _replace(self, at: int, stack: Stack, height: int) -> None:
        """Take what is on top, all that is gone afterwards and one more, and put there what is made of it."""
        name = self.flow.instructions[at].opname
        base = max(min(len(stack), height) - 1, 0)
        values = stack[_TO_EXIT] if name == "WITH_EXCEPT_START" else stack if name in _DEEP else stack[base:]
        used = self._take(at, values)
        keeps_names = height >= len(stack) or name.startswith(_MADE_OF)
        stack[base:] = [used if keeps_names else self.text(used)] * (height - base)

    def _take(self, at: int, values: Stack) -> Taint:
        """Note what an instruction uses."""
        used = 0
        for each in values:
            used |= each
        self.taken[at] |= used
        return used


def _fitted(stack: Stack, height: int) -> Stack:
    """The stack cut, or filled with what no string is in, to be so high."""
    return stack[:height] + [0] * (height - len(stack))
