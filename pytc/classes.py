"""What a class is and has, told without asking its metaclass: that may be a user's, and run code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# What `type` itself answers to `kind.__mro__` and the like, past the `__getattribute__` of a metaclass.
bases_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
base_of: Callable[[type], type | None] = type.__dict__["__base__"].__get__
subclasses_of: Callable[[type], list[type]] = type.__subclasses__
attributes_of: Callable[[type], Mapping[Any, Any]] = type.__dict__["__dict__"].__get__
flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
size_of: Callable[[type], int] = type.__dict__["__basicsize__"].__get__
qualname_of: Callable[[type], Any] = type.__dict__["__qualname__"].__get__
_module_of: Callable[[type], Any] = type.__dict__["__module__"].__get__
has_dictionary: Callable[[type], int] = type.__dict__["__dictoffset__"].__get__
may_be_referred_to_weakly: Callable[[type], int] = type.__dict__["__weakrefoffset__"].__get__

MADE_BY_CODE = 1 << 9
"""The flag of classes that code has made: a `class` statement, or a function of a module written in C
(`Py_TPFLAGS_HEAPTYPE`)."""


def module_named_by(kind: type) -> Any:
    """What the class says is the name of its module; None where it says nothing."""
    return attributes_of(kind).get("__module__") if flags_of(kind) & MADE_BY_CODE else _module_of(kind)


def is_among(kind: Any, others: Iterable[Any]) -> bool:
    """Whether a class, or anything else, is one of the others itself. (`kind in others` would ask the metaclass of
    `kind` whether it is equal, to which it may say yes.)"""
    return any(kind is other for other in others)


def ids_of(*kinds: type) -> frozenset[int]:
    """The ids of classes that are never gone: the quick way to ask `is_among` often."""
    return frozenset(map(id, kinds))


def are_of(values: Sequence[Any], kinds: Sequence[type]) -> bool:
    """Whether the values are of just these types, one by one; told without asking a metaclass whether two are equal."""
    return len(values) == len(kinds) and all(map(operator.is_, map(type, values), kinds))


def defines(kind: type, name: str) -> bool:
    """Whether the class, or one that it inherits from, has an attribute of this name, as the interpreter looks for a
    special method. (`hasattr` would ask a descriptor, which may say no for the class and give objects one.)"""
    return any(name in attributes_of(base) for base in bases_of(kind))


def defined(kind: type, name: str) -> Any:
    """What the class has under a name, its own or of what it inherits from, as it stands there; None if nothing.
    (`getattr` would ask a descriptor, which may give the class something else than objects.)"""
    return next((attributes_of(base)[name] for base in bases_of(kind) if name in attributes_of(base)), None)


def shares(kind: type, other: type, *names: str) -> bool:
    """Whether all methods of these names are those of the `other` class."""
    return all(defined(kind, name) is defined(other, name) for name in names)
