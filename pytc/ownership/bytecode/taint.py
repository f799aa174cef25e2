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
- stored anywhere else, or added to a container, to each instruction that may run code.

It ends where a value is dropped, and so what a call does with a text whose result nobody has is not followed: most of
these calls print.

The taints only grow, and there are as many as locals, so this ends; it is not begun where no string names a local.
What variables have is not told apart by the place (flow-insensitive): cheap, and few variables have text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pytc.ownership.bytecode.instructions import RUN_NO_CODE, TWO, UNCONDITIONAL
from pytc.ownership.bytecode.strings import is_text, named_by
from pytc.set_bits import set_bits

if TYPE_CHECKING:
    from pytc.ownership.bytecode.liveness import ControlFlow

Taint: TypeAlias = int
"""Locals, as bits: those that single names name; and, further up, those that texts name."""
Stack: TypeAlias = list[Taint]

_LEAVE_THE_STACK = UNCONDITIONAL | {"NOP", "RESUME", "KW_NAMES", "MAKE_CELL", "COPY_FREE_VARS", "RETURN_CONST"}
_LEAVE_THE_STACK |= {"DELETE_FAST", "DELETE_GLOBAL", "DELETE_DEREF", "DELETE_NAME", "SETUP_ANNOTATIONS"}
_PUT = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLOSURE", "PUSH_NULL", "LOAD_BUILD_CLASS", "RETURN_GENERATOR"}
_PUT |= {"LOAD_ASSERTION_ERROR"}
"""Instructions that put something on the stack, and take nothing."""
_DROP = {"POP_TOP", "POP_EXCEPT", "END_FOR", "RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "DELETE_SUBSCR", "DELETE_ATTR"}
_DROPS = ("POP_JUMP_", "JUMP_IF_")
"""Instructions, and how others begin, that take something from the stack and put nothing there."""
_STORES = ("STORE_", "LIST_APPEND", "LIST_EXTEND", "SET_ADD", "SET_UPDATE", "MAP_ADD", "DICT_")
"""How instructions begin that store a value, or add it to a container."""
_DEEP = {"SEND", "END_ASYNC_FOR", "WITH_EXCEPT_START", "CLEANUP_THROW", "MATCH_KEYS", "CHECK_EG_MATCH"}
"""Instructions that use what is further down the stack than what they take or replace."""
_MADE_OF = ("BINARY_OP", "BUILD_", "FORMAT_", "CONVERT_", "PRECALL")
"""How instructions begin that make a value of others, in which these still are."""


def evaluated(flow: ControlFlow, numbers: Mapping[str, int], loads: Sequence[int]) -> list[int]:
    """For each instruction the locals, as bits, that strings name which it may evaluate. `loads` are the locals, as
    bits, that each instruction loads."""
    named = {at: bits for at in range(len(flow.instructions)) if (bits := named_by(flow, at, numbers))}
    if not named:
        return [0] * len(flow.instructions)
    taints = _Taints(flow, named, loads, len(numbers))
    taints.spread()
    return [
        0 if instruction.opname in RUN_NO_CODE else taints.names(taint | taints.stored)
        for taint, instruction in zip(taints.taken, flow.instructions, strict=True)
    ]


class _Taints:
    """The taint of everything in a function."""

    def __init__(self, flow: ControlFlow, named: Mapping[int, int], loads: Sequence[int], count: int) -> None:
        self.flow, self.count = flow, count
        self.loaded = {at: bits << count * is_text(flow, at) for at, bits in named.items()}
        """That of the constants, by instruction."""
        self.taken: list[Taint] = [0] * len(flow.instructions)
        """By instruction: that of what it uses."""
        self.variables: Counter[int] = Counter()
        """By number, which may also be that of a cell."""
        self.stored: Taint = 0
        """That of what anybody may have."""
        ahead = [0, *flow.handler_depths]
        self.stacks: dict[int, Stack] = {at: [0] * (flow.heights[at] or 0) for at in ahead}
        """By instruction: that of what is there before."""
        self._ahead = ahead
        self._loads: dict[int, list[int]] = {}
        """By variable: the instructions that load it."""
        for at, read in enumerate(loads):
            for variable in set_bits(read):
                self._loads.setdefault(variable, []).append(at)

    def names(self, taint: Taint) -> int:
        """The locals that are named."""
        return (taint | taint >> self.count) & ((1 << self.count) - 1)

    def text(self, taint: Taint) -> Taint:
        """What goes on from what is taken to what is made of it."""
        return taint >> self.count << self.count

    def spread(self) -> None:
        """To a fixed point."""
        while self._ahead:
            at = self._ahead.pop()
            for after, stack in self._step(at, self.stacks[at]):
                known = self.stacks.get(after)
                merged = stack if known is None else [a | b for a, b in zip(known, stack, strict=True)]
                if merged != known:
                    self.stacks[after] = merged
                    self._ahead.append(after)

    def _step(self, at: int, stack: Stack) -> Iterator[tuple[int, Stack]]:
        """Execute an instruction: what may follow, each with the stack then."""
        flow = self.flow
        for after in flow.follows[at]:
            height = flow.heights[after] or 0
            yield after, self._after(at, [*stack], height)
        handler = flow.handlers[at]
        if handler is not None:
            # On top comes the exception, which may be made of what is raised here.
            raised = self.text(stack[-1]) if stack and flow.instructions[at].opname == "RAISE_VARARGS" else 0
            left = stack[: flow.handler_keeps[handler]]
            yield handler, [*_fitted(left, flow.handler_depths[handler] - 1), raised]

    def _after(self, at: int, stack: Stack, height: int) -> Stack:
        """The stack after an instruction, which is then so high."""
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
        elif name.startswith(_STORES):
            self._take(at, stack[height:])
            self.stored |= self.text(self.taken[at])
        elif name in _DROP or name.startswith(_DROPS):
            self._take(at, stack[height:] or stack[-1:])
        elif not (name in _LEAVE_THE_STACK or name in _PUT or (name.startswith("BUILD_") and not argument)):
            self._replace(at, stack, height)
        return _fitted(stack, height)

    def _with_variable(self, does: str, variable: int, stack: Stack) -> None:
        """Load a variable, or store into it."""
        if does == "LOAD":
            stack.append(self.variables[variable])
        elif new := self.text(stack.pop()) & ~self.variables[variable]:
            self.variables[variable] |= new
            self._ahead += [at for at in self._loads.get(variable, ()) if at in self.stacks]

    def _replace(self, at: int, stack: Stack, height: int) -> None:
        """Take what is on top, all that is gone afterwards and one more, and put there what is made of it."""
        name = self.flow.instructions[at].opname
        base = max(min(len(stack), height) - 1, 0)
        used = self._take(at, stack if name in _DEEP else stack[base:])
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
