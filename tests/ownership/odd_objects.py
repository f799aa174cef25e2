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


def written_in_c(
    name: str,
    dies: Callable[[], None] | None = None,
    *,
    base: type | None = None,
    attributes: bool = False,
    stores: Callable[[], None] | None = None,
) -> Any:
    """A class such as an extension module makes in C. Its objects have one `value`, or with `attributes` a `__dict__`;
    with a `base` they are like those of that, and have nothing else. `dies` is called as one dies, and `stores` before
    an attribute is stored."""
    # A cell has one value, too, behind what each object has.
    like: type = types.CellType if base is None else base
    has = b"__dictoffset__" if attributes else b"value"
    members = (_Member * 2)()
    if base is None:
        members[0] = _Member(has, *((_SIZE, _AT, 1) if attributes else (_OBJECT, _AT, 0)), None)
    called = [_ENDS(lambda address: (dies and dies(), _ENDS(_slot(like, _DEALLOC))(address))[1])]
    functions = [(_DEALLOC, called[0]), (_MEMBERS, ctypes.addressof(members))]
    if like.__flags__ & _COLLECTED:
        functions.append((_TRAVERSE, _slot(like, _TRAVERSE)))
    if stores is not None:
        hook = stores  # for mypy
        called.append(_STORES(lambda target, key, value: (hook(), _store(target, key.decode(), value))[1]))
        functions.append((_SETATTR, called[1]))
    slots = (_Slot * (len(functions) + 1))(*[_Slot(k, ctypes.cast(f, ctypes.c_void_p).value) for k, f in functions])
    size = like.__basicsize__, like.__itemsize__
    spec = _Spec(name.encode(), *size, _FLAGS | like.__flags__ & _COLLECTED, slots)
    _KEPT.append((called, members, slots, spec))
    return _make(ctypes.byref(spec), (base or object,))


class _Member(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("type", ctypes.c_int), ("offset", ctypes.c_ssize_t), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("function", ctypes.c_void_p))


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int), ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )  # fmt: skip


_AT = object.__basicsize__
_DEALLOC, _SETATTR, _TRAVERSE, _MEMBERS = 52, 68, 71, 72  # `Py_tp_dealloc` and so on
_OBJECT, _SIZE = 16, 19  # `Py_T_OBJECT_EX`, `Py_T_PYSSIZET`
_COLLECTED = 1 << 14  # `Py_TPFLAGS_HAVE_GC`
_FLAGS = 1 << 18 | 1 << 10  # `Py_TPFLAGS_DEFAULT` and `_BASETYPE`
_ENDS = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_STORES = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p, ctypes.py_object)
_slot = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_int)(("PyType_GetSlot", ctypes.pythonapi))
_store = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.py_object] * 3)(("PyObject_GenericSetAttr", ctypes.pythonapi))
_make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Spec), ctypes.py_object)(
    ("PyType_FromSpecWithBases", ctypes.pythonapi)
)
_KEPT: list[Any] = []
"""What such classes use as long as they are there."""
