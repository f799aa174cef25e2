"""What a class has, told without asking its metaclass: that may be people's own, and run code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_space: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__


def defines(kind: type, name: str) -> bool:
    """Whether the class, or one that it inherits from, has an attribute of this name, as the interpreter looks for a
    special method. (`hasattr` would ask the `__getattribute__` and `__getattr__` of its metaclass.)"""
    if type(kind) is type:
        return hasattr(kind, name)
    return any(name in _space(base) for base in _mro(kind))
