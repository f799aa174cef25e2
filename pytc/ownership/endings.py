"""What runs code when it dies, though nobody calls it.

A `__del__` shows, and a weak reference with its callback is counted. What hides is told apart here: memory whose owner
is told of its release (`__release_buffer__`), and objects that do not tell the collector what they refer to, which may
then be anything. To go on to what an object does refer to is for those who ask (`slots`).
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.tree_util import PyTreeDef, tree_flatten

from pytc.ownership.counts import only_marked

_ATOMS = (type(None), bool, int, float, complex, str, bytes)
LIVE_ON = frozenset((*_ATOMS, type, range, bytearray, types.EllipsisType, types.NotImplementedType))
"""Types of objects that somebody else refers to, or that run no code when they die."""
_COLLECTED = 1 << 14
"""The flag of classes whose objects tell what they refer to (`Py_TPFLAGS_HAVE_GC`)."""
OFTEN_SHARED = frozenset((type(jax.jit(abs)), *(getattr(types, f"{name}Type") for name in (
    "Function", "BuiltinFunction", "Method", "Module", "Frame",
))))  # fmt: skip
"""Types of objects that mostly live on: a function that is part of a state is handed on to the next."""
ARRAYS: set[type] = set()
"""The types of arrays that were seen."""
MOST = 4096
"""Objects that are looked at."""


def is_loud(value: Any) -> bool:
    """Whether code runs when the object itself dies, or it has contents that cannot be looked at."""
    kind = type(value)
    if kind is np.ndarray:
        return _has_loud_memory(value)
    if isinstance(value, jax.Array):
        return not only_marked(value)
    if not kind.__flags__ & _COLLECTED and kind.__basicsize__ > object.__basicsize__:
        if isinstance(value, np.dtype):
            return not value.isbuiltin  # it may have metadata
        return not isinstance(value, np.generic) or kind is np.void  # code has constants, a `datetime` a time zone
    return hasattr(kind, "__del__") or hasattr(kind, "__release_buffer__")


def _has_loud_memory(array: np.ndarray[Any, Any]) -> bool:
    """Whether code may run when a NumPy array lets go of its memory."""
    owner: Any = array
    while type(owner) is np.ndarray:
        if owner.dtype.hasobject or not owner.dtype.isbuiltin:
            return True
        owner = owner.base
        if type(owner) is memoryview:
            owner = owner.obj
    return is_loud(owner) if isinstance(owner, jax.Array) else type(owner) not in (type(None), bytes, bytearray)


def static(value: Any) -> set[int]:
    """The ids of what the tree of an argument holds besides arrays: leaves that are static, and what its nodes are told
    apart by. What is only in an attribute that is no part of the tree is not among it."""
    leaves, tree = tree_flatten(value)
    level = [*leaves, *_told_apart_by(tree)]
    found: set[int] = set()
    while level and len(found) < MOST:
        new = [v for v in level if id(v) not in found and type(v) not in LIVE_ON and type(v) not in ARRAYS]
        found.update(map(id, new))
        level = gc.get_referents(*(v for v in new if type(v) not in OFTEN_SHARED))
    return found


def _told_apart_by(tree: PyTreeDef) -> Iterator[Any]:
    node = tree.node_data()
    if node is not None:
        yield node[1]
    for child in tree.children():
        yield from _told_apart_by(child)
