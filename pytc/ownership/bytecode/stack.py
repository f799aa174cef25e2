"""What lies on the stack of a frame that is at a call, and where: told from its bytecode, once for each call site.

How high the stack is before each instruction follows from the bytecode (`ControlFlow.heights`). Positions are counted
from the frame's first local variable, after which the stack comes.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Sequence
from types import CodeType
from typing import NamedTuple

from pytc.ownership.bytecode.instructions import own_names
from pytc.ownership.bytecode.liveness import ControlFlow

HIGHEST = 32
"""Frames up the stack in which dead places are looked for."""
HIGHEST_READ = 16
"""Frames up the stack whose code is read to tell what a call is for: at first calls, where that takes long."""


class Starred(NamedTuple):
    """Where a call with `*` or `**` keeps what it calls and what it passes: positions on the stack, counted from the
    frame's first local."""

    function: int
    """The function. Below it there is nothing, until the result is put there."""
    positional: int
    """What is starred. If it is not a tuple, the interpreter puts one made of it in its place before it calls."""
    is_tuple: bool
    """Whether the bytecode tells that it is a tuple."""
    local: int | None
    """The local variable that it was loaded from, if it was."""
    named: int | None
    """The dictionary of keywords, if there is one."""


def iterators(flow: ControlFlow, at: int) -> tuple[int, ...]:
    """The positions on the stack, counted from the first local, of the iterators of the loops that a call is in."""
    if not flow.instructions[at].opname.startswith("CALL"):
        return ()  # how much of the stack another instruction has taken when it calls is not known
    first = first_of_stack(flow.code)
    return tuple(sorted(first + height - 1 for height in flow.once(_heights_of_loops).get(at, ())))


def _heights_of_loops(flow: ControlFlow) -> dict[int, set[int]]:
    """By instruction in loops: how high the stack is up to the iterator of each loop that it is in. Left out are loops
    that get at the iterator, as no `for` statement does."""
    found: dict[int, set[int]] = {}
    for loop, instruction in enumerate(flow.instructions):
        if instruction.opname == "FOR_ITER" and (height := flow.heights[loop]) is not None:
            within = _within(flow, flow.heights, loop)
            if not any(_takes_iterator(flow, n, height) for n in within):
                for n in within:
                    found.setdefault(n, set()).add(height)
    return found


def _takes_iterator(flow: ControlFlow, at: int, least: int) -> bool:
    """Whether an instruction in a loop copies the iterator, up to which the stack is `least` high, or takes it from
    there for something else than to drop it."""
    instruction, height = flow.instructions[at], flow.heights[at] or 0
    if instruction.opname == "COPY":
        return height - (instruction.arg or 0) < least
    gone = any((flow.heights[after] or 0) < least for after in flow.follows[at])
    return gone and instruction.opname not in ("FOR_ITER", "POP_TOP", "END_FOR")


def _within(flow: ControlFlow, heights: Sequence[int | None], loop: int) -> set[int]:
    """The instructions that are reached from the beginning of a loop's body while its iterator is on the stack.

    `return` swaps its value with the iterator, to drop that before a `finally` around the loop: from there on the value
    is in this place, and may be an iterator that the caller will have.
    """
    least = heights[loop]
    seen: set[int] = set()
    ahead = [loop + 1] if least is not None else []
    while ahead:
        n = ahead.pop()
        height = heights[n]
        if n in seen or height is None or least is None or height < least:
            continue
        seen.add(n)
        if flow.instructions[n].opname == "SWAP" and height - (flow.instructions[n].arg or 0) < least:
            continue
        ahead += flow.follows[n]
        handler = flow.handlers[n]
        if handler is not None and flow.handler_keeps[handler] >= least:
            ahead.append(handler)
    return seen


def first_of_stack(code: CodeType) -> int:
    """How many variables a frame has, cells included; the stack comes after them. (A name may be that of a variable of
    a comprehension and of a free one at once.)"""
    return len(own_names(code)) + len(code.co_freevars)


def starred_call(flow: ControlFlow, at: int) -> Starred | None:
    """Where the function, the tuple and the dictionary of a starred call lie; None unless instruction `at` is one.

    None also from CPython 3.13 on, where no place on the stack tells that such a call is over: the result takes that of
    the function.
    """
    instruction = flow.instructions[at]
    if instruction.opname != "CALL_FUNCTION_EX" or instruction.arg is None or sys.version_info >= (3, 13):
        return None
    heights = flow.heights
    height = heights[at]
    if height is None:
        return None
    first = first_of_stack(flow.code)

    def made(position: int) -> dis.Instruction | None:
        maker = next((n for n in reversed(range(at)) if heights[n + 1] == position + 1), None)
        return None if maker is None or _can_be_jumped_into(flow, maker, at) else flow.instructions[maker]

    has_keywords = instruction.arg & 1
    if has_keywords and ((maker := made(height - 1)) is None or maker.opname not in _MAKES_DICT):
        return None
    positional = height - 1 - has_keywords
    maker = made(positional)
    # Not so of a dictionary, `f(*{a: b})`: it is gone before the call, and a new object may be at its address.
    is_tuple = maker is not None and (
        maker.opname in _MAKES_TUPLE
        or maker.argrepr == "INTRINSIC_LIST_TO_TUPLE"
        or (maker.opname == "LOAD_CONST" and maker.argval == ())
    )
    local = maker.arg if maker is not None and maker.opname == "LOAD_FAST" else None
    named = first + height - 1 if has_keywords else None
    return Starred(first + positional - 1, first + positional, is_tuple, local, named)


def _can_be_jumped_into(flow: ControlFlow, made: int, at: int) -> bool:
    """Whether some path to instruction `at` does not go through instruction `made`, so that what `at` finds may have
    been put there by another one."""
    befores = flow.once(before)
    return any(each not in range(made, at) for n in range(made + 1, at + 1) for each in befores[n])


def before(flow: ControlFlow) -> list[list[int]]:
    """Those that each instruction follows."""
    befores: list[list[int]] = [[] for _ in flow.instructions]
    for n, follows in enumerate(flow.follows):
        for each in follows:
            befores[each].append(n)
    return befores


_MAKES_TUPLE = {"BUILD_TUPLE", "LIST_TO_TUPLE"}
_MAKES_DICT = {"BUILD_MAP", "BUILD_CONST_KEY_MAP", "DICT_MERGE"}
