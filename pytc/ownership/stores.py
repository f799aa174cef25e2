"""Where in the source a name is given a value: the line to point at when an attribute or a global holds an array.

For messages to people. Which of several stores it was that put the array there is not known, so all are named.
"""

from __future__ import annotations

import dis
import functools
import pathlib
import types
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, Literal

from pytc.jax_compat import is_library

_OPCODES = {"attribute": ("STORE_ATTR",), "global": ("STORE_NAME", "STORE_GLOBAL")}
_HIGHEST = 16
_MOST_NAMED = 2


def stored(kind: Literal["attribute", "global"], name: str, codes: Iterable[CodeType]) -> list[tuple[str, int]]:
    """(file, line) of each place in these pieces of code, and in what is nested in them, that stores the name."""
    found: dict[tuple[str, int], None] = {}
    for code in codes:
        found.update(dict.fromkeys(_stores(code, kind, name)))
    return sorted(found)


@functools.lru_cache(maxsize=256)
def _stores(code: CodeType, kind: str, name: str) -> tuple[tuple[str, int], ...]:
    found = []
    if name in code.co_names:
        for instruction in dis.get_instructions(code):
            line = instruction.positions.lineno if instruction.positions else None
            if instruction.opname in _OPCODES[kind] and instruction.argval == name and line:
                found.append((code.co_filename, line))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _stores(constant, kind, name)
    return tuple(found)


def of_class(kind: type) -> Iterator[CodeType]:
    """The code of a class and of its bases, as far as it is the program's own."""
    for base in kind.__mro__:
        for member in vars(base).values():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, types.FunctionType) and not is_library(function.__code__.co_filename):
                yield function.__code__


def of_module(space: dict[str, Any]) -> Iterator[CodeType]:
    """The code of a module's functions."""
    for value in list(space.values()):
        if isinstance(value, types.FunctionType) and value.__globals__ is space:
            yield value.__code__


def of_callers(frame: FrameType | None) -> Iterator[CodeType]:
    """The code of the frames from here up that is the program's own."""
    for _ in range(_HIGHEST):
        if frame is None:
            return
        if not is_library(frame.f_code.co_filename):
            yield frame.f_code
        frame = frame.f_back


def said(places: list[tuple[str, int]]) -> str:
    """`, set in train.py:41`; two places at most, and nothing where there is none."""
    if not places:
        return ""
    named = [f"{pathlib.Path(file).name}:{line}" for file, line in places[:_MOST_NAMED]]
    return f", set in {' and '.join(named)}{', ...' if len(places) > _MOST_NAMED else ''}"
