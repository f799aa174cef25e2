"""What runs code when it dies, though nobody calls it.

A `__del__` is easily seen, and weak references, with their callbacks, are counted. What is not seen so easily is found
here: memory whose owner is told of its release (`__release_buffer__`), and objects that do not tell the collector what
they refer to, which may be anything. Only the object itself is looked at; `slots` goes on to what it refers to.
"""

from __future__ import annotations

import datetime
import gc
import re
import types
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import jax
import numpy as np

from pytc.classes import base_of, defines, flags_of, size_of

_ATOMS = (type(None), bool, int, float, complex, str, bytes)
LIVE_ON = frozenset((*_ATOMS, type, range, bytearray, types.EllipsisType, types.NotImplementedType))
"""Types whose objects run no code when they die, or never die with the arguments, as somebody else refers to them."""
_COLLECTED = 1 << 14
"""The flag of classes whose objects tell what they refer to (`Py_TPFLAGS_HAVE_GC`)."""
_OPEN = (int, float, complex, str, bytes, bytearray, np.generic, jax.sharding.Sharding)
"""Types whose objects have no part in garbage collection because they refer to nothing."""
_SECRETIVE: frozenset[Any] = frozenset((
    type(re.compile("").scanner("")),  # type: ignore[attr-defined]
    type(datetime.datetime_CAPI),
))  # fmt: skip
"""A scanner has the text that it searches, a capsule what it is for (`__dlpack__`: an array), and neither says so."""
OFTEN_SHARED = frozenset((type(jax.jit(abs)), *(getattr(types, f"{name}Type") for name in (
    "Function", "BuiltinFunction", "Method", "Module", "Frame",
))))  # fmt: skip
"""Types of objects that mostly live on: a function that is part of a state is handed on to the next."""
BOUND = frozenset((types.MethodType, types.BuiltinMethodType))
"""Those of them that may be equal to others, and are mostly made where they are used."""
_dtype: Callable[[Any], np.dtype[Any]] = np.ndarray.__dict__["dtype"].__get__
_SUSPENDED = frozenset((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType))
ARRAYS: set[type] = set()
"""The types of arrays that were seen, but for PRNG keys, which are objects around arrays."""
MOST = 4096
"""Objects that are looked at."""


def lives_on(kind: type) -> bool:
    """Whether objects of this type are referred to by somebody else as well, or run no code when they die."""
    return kind in LIVE_ON or issubclass(kind, type)


def is_told_by_class(kind: type) -> bool:
    """Whether what `is_loud` says of an object of this type is so of all of them, for as long as the class has no
    `__del__`; memory tells of its owner only when that lets go of it."""
    return not issubclass(kind, np.ndarray | np.dtype | memoryview)


def is_loud(value: Any) -> bool:
    """Whether code runs when the object itself dies, or it has contents that cannot be looked at; not of an array."""
    kind = type(value)
    if issubclass(kind, np.ndarray):
        dtype = _dtype(value)
        if dtype.hasobject or not dtype.isbuiltin:
            return True
    elif issubclass(kind, np.dtype):
        return value.hasobject or not value.isbuiltin  # it may have metadata
    elif _hides_contents(kind):
        return True
    return defines(kind, "__del__") or (kind is not memoryview and defines(kind, "__release_buffer__"))


def _hides_contents(kind: type) -> bool:
    """Whether objects of this class, or of one written in C that it is made of, refer to what they do not tell of."""
    if kind in _SECRETIVE:
        return True
    while flags_of(kind) & _COLLECTED:
        kind = base_of(kind) or object
    # Code has constants, a `datetime` a time zone.
    return size_of(kind) > object.__basicsize__ and (issubclass(kind, np.void) or not issubclass(kind, _OPEN))


def attached(arrays: Sequence[Any]) -> list[Any]:
    """What people have attached to arrays as attributes."""
    found = gc.get_referents(*arrays)
    # Mostly each refers to its class alone.
    return [part for part in found if type(part) is dict] if len(found) != len(arrays) else []


def reached(sought: Set[int], held: Iterable[Any], without: Set[int]) -> set[int]:
    """Which of the objects `sought` (ids) can be reached from `held`, among the first few thousand objects there, and
    not through objects of `without` (ids). Nothing is followed through functions and generators, which may refer to
    other things after they have run, and through classes, which hold no state."""
    found: set[int] = set()
    level = [*held]
    while level and len(found) < MOST and not sought <= found:
        new = {id(v): v for v in level if id(v) not in found and id(v) not in without}
        new = {key: v for key, v in new.items() if type(v) not in LIVE_ON and type(v) not in ARRAYS}
        found.update(new)
        level = gc.get_referents(*(v for v in new.values() if _leads_on(type(v))))
    return found & sought


def _leads_on(kind: type) -> bool:
    return kind not in OFTEN_SHARED and kind not in _SUSPENDED and not issubclass(kind, type)
