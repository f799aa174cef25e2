"""Classes written in C: which one an object is made like, and what is known of it.

A `class` statement adds nothing to an object but slots, a `__dict__` and weak references, which the size of the class
shows; and it leaves to the interpreter how an object ends, which the class shows in its table of C functions. All else
that an object is and does without Python code is of the class written in C that it derives from.

Of such a class it must be known that nobody has hold of its objects but by references that are counted, before they are
opened (`is_counted`); and that it calls nobody as one of them dies (`is_quiet`). Of what extension modules bring along
neither is known: C code may have the address of an object of ctypes, cffi or Cython, and any class may call back.
"""

from __future__ import annotations

import builtins
import collections
import ctypes
import functools
import gc
import itertools
import sys
import types
import typing
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any

import jax

from pytc.classes import (
    MADE_BY_CODE,
    attributes_of,
    base_of,
    flags_of,
    has_dictionary,
    ids_of,
    may_be_referred_to_weakly,
    module_named_by,
    size_of,
)

_DICTIONARY_BEFORE = 1 << 4
_WEAK_REFERENCES_BEFORE = 1 << 3
"""The flags of classes whose objects have their `__dict__` and their weak references before their address, where the
size does not count them (`Py_TPFLAGS_MANAGED_DICT` and `_WEAKREF`)."""
_WORD = ctypes.sizeof(ctypes.c_void_p)

# A function object of our own: users give that of `ctypes.pythonapi` what types of arguments they like.
_function: Callable[[type, int], int | None] = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_int)(
    ("PyType_GetSlot", ctypes.pythonapi)
)
_DEALLOC, _DEL, _GETATTR, _SETATTR, _FREE = 52, 53, 57, 68, 74  # `Py_tp_dealloc` and so on, of CPython's stable ABI


def _statement(**attributes: Any) -> type:
    return type("Statement", (), attributes)


_ENDS = _function(_statement(), _DEALLOC)
_FREES = frozenset(_function(kind, _FREE) for kind in (_statement(), _statement(__slots__=())))


def native(kind: type) -> type:
    """The class written in C that objects of this class are made like: the class itself, or the nearest that it
    inherits from."""
    while flags_of(kind) & MADE_BY_CODE and (base := base_of(kind)) is not None and _adds_nothing(kind, base):
        kind = base
    return kind


def _adds_nothing(kind: type, base: type) -> bool:
    """Whether a class is like one that a `class` statement has made."""
    attributes, flags = attributes_of(kind), flags_of(kind)
    words = sum(type(v) is MemberDescriptorType for v in attributes.values()) if "__slots__" in attributes else 0
    if has_dictionary(kind) and not has_dictionary(base) and not flags & _DICTIONARY_BEFORE:
        words += 1
    if may_be_referred_to_weakly(kind) and not may_be_referred_to_weakly(base) and not flags & _WEAK_REFERENCES_BEFORE:
        words += 1
    return (
        size_of(kind) == size_of(base) + words * _WORD
        and _function(kind, _DEALLOC) == _ENDS
        and _function(kind, _FREE) in _FREES
        and not any(_function(kind, number) for number in (_DEL, _GETATTR, _SETATTR))
    )


def _classes_in(*spaces: object) -> set[type]:
    return {each for space in spaces for each in vars(space).values() if isinstance(each, type)}


_VIEWS: list[Any] = [{}.keys(), {}.values(), {}.items()]
_SEQUENCE: Any = type("Sequence", (), {"__getitem__": lambda self, at: [][at]})()
_ITERATORS: list[Any] = [
    *(iter(each) for each in ((), [], set(), collections.deque(), *_VIEWS)),
    *(reversed(each) for each in ([], *_VIEWS)),
]
_MEMORY = memoryview(b"")
_OTHERS: list[Any] = [
    *(iter(each) for each in ("", "\u00e9", b"", bytearray(), range(0), range(1 << 70), _MEMORY, _SEQUENCE)),
    iter(collections.OrderedDict()),
    iter(int, 0),
    *gc.get_referents(_MEMORY),
]
COUNTED = ids_of(
    *_classes_in(builtins, itertools),
    collections.deque, collections.OrderedDict, collections.defaultdict, functools.partial,
    types.MappingProxyType, types.MethodType, types.SimpleNamespace,
    *(type(each) for each in (*_VIEWS, *_ITERATORS)),
    native(jax.Array), native(typing.Generic),
) - {id(memoryview)}  # fmt: skip
"""Those (ids) of whose objects nobody has hold but by references that are counted."""
_OF_PYTHON = COUNTED | ids_of(*_classes_in(builtins, types), *map(type, _OTHERS))
"""Python's own (ids) that are in no module. (A class of somebody else's whose name has no dot says that it is of
`builtins`, too.)"""
_CALLING = frozenset(("_lsprof", "_sqlite3", "_tkinter", "builtins", "sqlite3"))
"""Modules with classes that may call back as an object dies: a profiler asks for the time."""
_QUIET = (sys.stdlib_module_names | {"jax", "jaxlib", "ml_dtypes", "numpy"}) - _CALLING


def is_counted(kind: type) -> bool:
    """Whether nobody has hold of objects of this class but by references that are counted."""
    return id(native(kind)) in COUNTED


def is_quiet(kind: type) -> bool:
    """Whether what is written in C of objects of this class calls nobody as they die, but for what they let go of."""
    kind = native(kind)
    if id(kind) in _OF_PYTHON:
        return True
    module = module_named_by(kind)
    return type(module) is str and module.partition(".")[0] in _QUIET
