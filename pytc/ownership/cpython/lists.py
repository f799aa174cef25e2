"""Lists compared by what is in them, all at once: the ids of their items, read where CPython keeps these.

Where that is is measured at import. If it is not found, or the interpreter is one that the proof is not about, ids are
asked for one by one.
"""

from __future__ import annotations

import array
import ctypes
import operator
from collections.abc import Sequence
from typing import Any

from pytc.ownership.cpython.interpreter import refusal

_WORD = ctypes.sizeof(ctypes.c_void_p)
# `_word_at[n]` is the word at the address (n + 1) * _WORD, and `_byte_at[n]` the byte at n + _WORD; a pointer to 0
# would be none. A slice of bytes is read by C code, all at once.
_word_at: Any = ctypes.POINTER(ctypes.c_size_t).from_buffer(ctypes.c_size_t(_WORD))
_byte_at: Any = ctypes.POINTER(ctypes.c_char).from_buffer(ctypes.c_size_t(_WORD))
_FEW_ITEMS = 32
"""So few are compared one by one as quickly."""
_AFTER_HEADER = range(2 * _WORD, list.__basicsize__, _WORD)
"""Where the words of a list are that come after those of any object."""


def ids_in(values: list[Any]) -> bytes:
    """The ids of what is in a list, as bytes: those of two lists are equal if the same objects are in both, in one
    order. Where CPython keeps them is read in 0.2 us, however long the list is.

    An id may be that of another object later. What equal ids say of two moments is which of the items are one.
    """
    if not items_at:
        return array.array("Q", map(id, values)).tobytes()
    start = _word_at[(id(values) + items_at >> 3) - 1] - _WORD
    found: bytes = _byte_at[start : start + _WORD * len(values)]
    return found


def are_same(values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two sequences have the same objects, in one order; told without asking any whether it is equal."""
    if len(values) != len(others):
        return False
    if len(values) < _FEW_ITEMS:
        return all(map(operator.is_, values, others))
    return ids_in([*values]) == ids_in([*others])


def _find_items() -> int:
    """How many bytes after a list begins CPython keeps where its items are; 0 where that is not found."""
    values = [[object(), object()] for _ in range(2)]
    # Of two lists of one length this alone differs.
    seen = [[ctypes.c_size_t.from_address(id(each) + at).value for at in _AFTER_HEADER] for each in values]
    places = [at for at, one, other in zip(_AFTER_HEADER, *seen, strict=True) if one != other]
    if len(places) != 1:
        return 0
    words = ctypes.c_size_t.from_address(id(values[0]) + places[0]).value
    found = [ctypes.c_size_t.from_address(words + n * _WORD).value for n in range(2)]
    return places[0] if found == [*map(id, values[0])] else 0


items_at = 0 if refusal else _find_items()
"""Where that is, in bytes after a list begins."""
