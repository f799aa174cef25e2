"""Strings that may be code: which local variables an instruction names in those that it loads.

Libraries such as `numexpr.evaluate("x + 1")`, `frame.query("price > @limit")` and formulas of statistics packages read
variables of their caller's frame by name. So a string constant counts as a read of the variables that it names, unless
it is a key made of words alone (`log["train/loss"]`). Where it goes from there, and what may evaluate it then, `taint`
tells.

Up to CPython 3.11 a comprehension has code of its own, and a generator expression and a `lambda` still have. What
strings of more than a name are in these counts as in the expression itself.
"""

from __future__ import annotations

import dis
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytc.ownership.bytecode.liveness import ControlFlow

_TAKE_NAMES = {"CALL_KW", "IMPORT_NAME"}
_TAKE_KEYS = {"BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "BUILD_CONST_KEY_MAP"}
"""Instructions that use the constant loaded right before them as names of keywords or imports, or as keys."""
_KEY = re.compile(r"[\w ./:-]*")
"""Keys like these are names for things and not code: `log["train/loss"]`."""
_NAME = re.compile(r"[^\W\d]\w*")
_PARTS_OF_EXPRESSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>"}


def named_by(flow: ControlFlow, at: int, numbers: Mapping[str, int]) -> int:
    """The locals, as bits, that are named in the string constants that instruction `at` loads."""
    if flow.instructions[at].opname != "LOAD_CONST":
        return 0
    names = [name for text in _loaded(flow.instructions, at) for name in _NAME.findall(text)]
    return functools.reduce(int.__or__, (1 << numbers[name] for name in names if name in numbers), 0)


def is_text(flow: ControlFlow, at: int) -> bool:
    """Whether instruction `at` loads a string that is more than a name."""
    return any(_is_more_than_a_name(text) for text in _loaded(flow.instructions, at))


def constants(flow: ControlFlow) -> Iterator[str]:
    """Those in the constants that the code uses, but for the names of keywords and imports."""
    for at, each in enumerate(flow.instructions):
        following = flow.instructions[at + 1].opname if at + 1 < len(flow.instructions) else ""
        if each.opcode in dis.hasconst and each.opname != "KW_NAMES" and following not in _TAKE_NAMES:
            yield from _strings_in(each.argval)


def _loaded(instructions: Sequence[dis.Instruction], at: int) -> list[str]:
    """The strings that instruction `at` of a function loads for something else than a name or a key."""
    taken_by = instructions[at + 1].opname if at + 1 < len(instructions) else ""
    if instructions[at].opname not in ("LOAD_CONST", "RETURN_CONST") or taken_by in _TAKE_NAMES:
        return []
    constant = instructions[at].argval
    if isinstance(constant, CodeType):
        return _texts_of(constant) if constant.co_name in _PARTS_OF_EXPRESSIONS else []
    return [text for text in _strings_in(constant) if not (taken_by in _TAKE_KEYS and _KEY.fullmatch(text))]


def _texts_of(code: CodeType) -> list[str]:
    """The strings of more than a name in a part of an expression."""
    inside = list(dis.get_instructions(code))
    return [text for at in range(len(inside)) for text in _loaded(inside, at) if _is_more_than_a_name(text)]


def _is_more_than_a_name(text: str) -> bool:
    return bool(_NAME.search(text)) and not _NAME.fullmatch(text)


def _strings_in(constant: object) -> Iterator[str]:
    """Those in a constant, which may be a tuple or a set of others. (`eval` takes bytes, too.)"""
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, bytes):
        yield constant.decode(errors="replace")
    elif isinstance(constant, tuple | frozenset):
        for part in constant:
            yield from _strings_in(part)
