"""Strings that may be code: which local variables may be read through them, and by which instructions.

Libraries such as `numexpr.evaluate("x + 1")`, `frame.query("price > @limit")` and formulas of statistics packages read
variables of their caller's frame by name. So a string constant counts as a read of the variables that it names, unless
it is a key made of words alone (`log["train/loss"]`). A string that is passed to a call is read again there, since
other calls may come in between: `evaluate("x + 1", step(x))`. One that is more than a single name may also be evaluated
later, by anything that runs code: a call, an operator, a loop. In a local variable, or in a call's result that is
stored in one (`formula = Formula("x + 1")`), it counts as a read where the variable is used. Stored elsewhere, or put
into a container, it counts as a read at each instruction that is not known to run no code.
"""

from __future__ import annotations

import dis
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytc.ownership.bytecode.instructions import RUN_NO_CODE, TWO

if TYPE_CHECKING:
    from pytc.ownership.bytecode.liveness import ControlFlow

_WITHOUT_RESULT = {"POP_TOP", "RETURN_VALUE", "RAISE_VARARGS", "END_FOR", "END_SEND", "POP_EXCEPT", "RERAISE"}
"""Instructions that take something from the stack and put nothing there."""
_TAKE_NAMES = {"CALL_KW", "IMPORT_NAME"}
_TAKE_KEYS = {"BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "BUILD_CONST_KEY_MAP"}
"""Instructions that use the constant loaded right before them as names of keywords or imports, or as keys."""
_KEY = re.compile(r"[\w ./:-]*")
"""Keys like these are names for things and not code: `log["train/loss"]`."""
_STORE = ("STORE_", "LIST_APPEND", "LIST_EXTEND", "SET_", "MAP_ADD", "DICT_")
"""How instructions begin that store a value, or add it to a container."""
_MAKE = ("BINARY_OP", "BUILD_", "FORMAT_", "CONVERT_")
"""How instructions begin that replace a value by one made of it, or by a container with it."""
_NAME = re.compile(r"[^\W\d]\w*")


def named_by(flow: ControlFlow, at: int, numbers: Mapping[str, int]) -> int:
    """The locals, as bits, that are named in the string constants that instruction `at` loads."""
    instruction, behind = flow.instructions[at], flow.instructions[at + 1 : at + 2]
    taken_by = behind[0].opname if behind else ""
    if instruction.opname != "LOAD_CONST" or taken_by in _TAKE_NAMES:
        return 0
    texts = [text for text in _strings_in(instruction.argval) if not (taken_by in _TAKE_KEYS and _KEY.fullmatch(text))]
    names = [name for text in texts for name in _NAME.findall(text)]
    return functools.reduce(int.__or__, (1 << numbers[name] for name in names if name in numbers), 0)


def evaluated(flow: ControlFlow, numbers: Mapping[str, int], loads: Sequence[int]) -> list[int]:
    """For each instruction the locals, as bits, that strings name which it may evaluate. `loads` are the locals, as
    bits, that each instruction loads.

    A string, and then each variable that has it or something made of it, is followed over the stack from where it
    is loaded. It ends with what takes it, or in a variable, whose loads are followed in turn, or elsewhere: from
    there anything may have it. What cannot be followed counts as that. It ends because what a variable carries only
    grows. (What a call has made of it and is in no variable is dropped, or handed to another call: followed no
    further, as most of these calls print.)
    """
    passed = [0] * len(flow.instructions)
    carried = [0] * len(numbers)
    """By local: what those strings name that are its value, or that its value was made of."""
    stored = 0
    ahead = [(at, named) for at in range(len(passed)) if (named := named_by(flow, at, numbers))]
    while ahead:
        at, named = ahead.pop()
        name = flow.instructions[at].opname
        takers, beneath = (None, set[int]()) if name in TWO else _takers(flow, at)
        for n in takers or ():
            passed[n] |= named
        if name == "LOAD_CONST" and not _is_text(flow.instructions[at]):
            continue
        if name != "LOAD_CONST":  # an object with a string in it, which any operator may evaluate
            for n in beneath:
                passed[n] |= named
        for n in (at,) if takers is None else takers:
            local = None if name in TWO else _stored_into(flow, n)
            if local is None:
                if takers is None or _takers(flow, n, result=True)[0] is None:
                    stored |= named
            elif named & ~carried[local]:
                carried[local] |= named
                ahead += [(m, carried[local]) for m, loaded in enumerate(loads) if loaded >> local & 1]
    return [
        0 if instruction.opname in RUN_NO_CODE else bits | stored
        for bits, instruction in zip(passed, flow.instructions, strict=True)
    ]


def _stored_into(flow: ControlFlow, at: int) -> int | None:
    """The local that the instruction behind `at` stores into; None if it is another instruction."""
    behind = flow.instructions[at + 1] if at + 1 < len(flow.instructions) else None
    if behind is None or not behind.opname.startswith("STORE_FAST"):
        return None
    return (behind.arg or 0) >> (4 if behind.opname in TWO else 0)


def _takers(flow: ControlFlow, at: int, *, result: bool = False) -> tuple[set[int] | None, set[int]]:
    """The instructions that may take what instruction `at` loads, or something made of it, from the stack; None if
    it is stored rather than taken by one. And those that run while it is there. The same of its `result`, if it
    takes something itself, and there is one."""
    heights = flow.heights
    takers: set[int] = set()
    seen: set[tuple[int, int]] = set()
    ahead = [(at, height)] if (height := heights[at]) is not None else []
    if result:
        behind = [(n, above - 1) for n in flow.follows[at] if (above := heights[n]) is not None]
        ahead = [] if flow.instructions[at].opname in _WITHOUT_RESULT else behind
    while ahead:
        n, height = each = ahead.pop()
        if each in seen:
            continue
        seen.add(each)
        name = flow.instructions[n].opname
        copies = name == "COPY" and (heights[n] or 0) - (flow.instructions[n].arg or 0) == height
        for after in flow.follows[n]:
            above = heights[after]
            if above is None or copies or (name.startswith(_STORE) and above <= height):
                return None, set()
            if above > height:
                ahead.append((after, height))
            elif name.startswith(_MAKE):
                ahead.append((after, above - 1))
            else:
                takers.add(after if name == "PRECALL" else n)  # CPython 3.11: the call is the next one
        handler = flow.handlers[n]
        if handler is not None and (above := heights[handler]) is not None and above > height:
            ahead.append((handler, height))
    return takers, {n for n, _ in seen}


def constants(flow: ControlFlow) -> Iterator[str]:
    """Those in the constants that the code uses, but for the names of keywords and imports."""
    for at, each in enumerate(flow.instructions):
        behind = flow.instructions[at + 1].opname if at + 1 < len(flow.instructions) else ""
        if each.opcode in dis.hasconst and each.opname != "KW_NAMES" and behind not in _TAKE_NAMES:
            yield from _strings_in(each.argval)


def _is_text(instruction: dis.Instruction) -> bool:
    """Whether it loads a string that is more than a name."""
    return instruction.opname == "LOAD_CONST" and any(
        _NAME.search(text) and not _NAME.fullmatch(text) for text in _strings_in(instruction.argval)
    )


def _strings_in(constant: object) -> Iterator[str]:
    """Those in a constant, which may be a tuple or a set of others. (`eval` takes bytes, too.)"""
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, bytes):
        yield constant.decode(errors="replace")
    elif isinstance(constant, tuple | frozenset):
        for part in constant:
            yield from _strings_in(part)
