"""What strange programs are made of: a container, something that looks when it dies, and classes written in C."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable
from typing import Any

import jax


class Last:
    """Looks when it dies."""

    def __init__(self, look: Callable[[], None]):
        self.look = look

    def __del__(self) -> None:
        self.look()


def capturing(look: Callable[[], None]) -> Callable[[], Last]:
    """A function that has captured something that looks when it dies."""
    last = Last(look)
    return lambda: last


class LastOfNothing(Last):
    """The same, with nothing under any key."""

    def __getitem__(self, key: Any) -> None:
        return None


def looking_at(stub: Any, box: Any) -> Callable[[], None]:
    """Reads `box.a`; what is raised in a destructor would not be seen, so it is noted in `stub.seen`."""

    def look() -> None:
        stub.seen.append(box.a.is_deleted())

    return look


@jax.tree_util.register_pytree_node_class
class Node:
    """A tree of one branch."""

    def __init__(self, x: Any):
        self.x = x

    def tree_flatten(self) -> Any:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Node:
        return cls(*children)


def written_in_c(name: str, dies: Callable[[], None] | None = None) -> Any:
    """A class such as an extension module makes in C, whose objects have one `value`; `dies` is called as one dies."""
    slot = ctypes.pythonapi.PyType_GetSlot
    slot.restype, slot.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_int]
    # A cell has one value, too, at the same place.
    traverse, end = slot(types.CellType, _TRAVERSE), slot(types.CellType, _DEALLOC)

    class Member(ctypes.Structure):
        _fields_ = (
            ("name", ctypes.c_char_p), ("type", ctypes.c_int), ("offset", ctypes.c_ssize_t), ("flags", ctypes.c_int),
            ("doc", ctypes.c_char_p),
        )  # fmt: skip

    class Slot(ctypes.Structure):
        _fields_ = (("slot", ctypes.c_int), ("function", ctypes.c_void_p))

    class Spec(ctypes.Structure):
        _fields_ = (
            ("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int),
            ("flags", ctypes.c_uint), ("slots", ctypes.POINTER(Slot)),
        )  # fmt: skip

    kind_of_end = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)

    def ending(address: int) -> None:
        if dies is not None:
            dies()
        kind_of_end(end)(address)

    called = kind_of_end(ending)
    members = (Member * 2)(Member(b"value", _OBJECT, object.__basicsize__, 0, None), Member())
    slots = (Slot * 4)(
        Slot(_TRAVERSE, traverse), Slot(_DEALLOC, ctypes.cast(called, ctypes.c_void_p).value),
        Slot(_MEMBERS, ctypes.addressof(members)), Slot(),
    )  # fmt: skip
    spec = Spec(f"elsewhere.{name}".encode(), object.__basicsize__ + 8, 0, _FLAGS, slots)
    make = ctypes.pythonapi.PyType_FromSpec
    make.restype = ctypes.py_object
    _KEPT.append((called, members, slots, spec))
    return make(ctypes.byref(spec))


_DEALLOC, _TRAVERSE, _MEMBERS = 52, 71, 72  # `Py_tp_dealloc` and so on
_OBJECT = 16  # `Py_T_OBJECT_EX`
_FLAGS = 1 << 18 | 1 << 14 | 1 << 10  # `Py_TPFLAGS_DEFAULT`, `_HAVE_GC` and `_BASETYPE`
_KEPT: list[Any] = []
"""What such classes use as long as they are there."""
