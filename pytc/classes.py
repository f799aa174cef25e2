"""What a class is and has, told without asking its metaclass: that may be a user's, and run code."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax

# What `type` itself answers to `kind.__mro__` and the like, past the `__getattribute__` of a metaclass.
bases_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
base_of: Callable[[type], type | None] = type.__dict__["__base__"].__get__
subclasses_of: Callable[[type], list[type]] = type.__subclasses__
attributes_of: Callable[[type], Mapping[Any, Any]] = type.__dict__["__dict__"].__get__
flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
size_of: Callable[[type], int] = type.__dict__["__basicsize__"].__get__
_name_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__
has_dictionary: Callable[[type], int] = type.__dict__["__dictoffset__"].__get__
may_be_referred_to_weakly: Callable[[type], int] = type.__dict__["__weakrefoffset__"].__get__


def ids_of(*kinds: type) -> frozenset[int]:
    """The ids of classes that are never gone. (`kind in kinds` would ask the metaclass of `kind` for a hash and whether
    it is equal, to which it may say yes.)"""
    return frozenset(map(id, kinds))


def are_of(values: Sequence[Any], kinds: Sequence[type]) -> bool:
    """Whether the values are of just these types, one by one; told without asking a metaclass whether two are equal."""
    return len(values) == len(kinds) and all(map(operator.is_, map(type, values), kinds))


def says_it_is_of_jax(kind: type) -> bool:
    """Whether the class has the name of one of JAX's modules."""
    module = attributes_of(kind).get("__module__")
    return type(module) is str and module.partition(".")[0] in ("jax", "jaxlib")


def is_of_jax(kind: type) -> bool:
    """Whether the class is JAX's own: not one that only says so, but one that the module has which it names."""
    name = _name_of(kind)
    if not says_it_is_of_jax(kind) or type(name) is not str:
        return False
    found: Any = sys.modules.get(attributes_of(kind)["__module__"])
    for part in name.split("."):
        space = attributes_of(found) if isinstance(found, type) else vars(found) if type(found) is ModuleType else {}
        found = space.get(part)
    return found is kind


def is_own_array(kind: type) -> bool:
    """Whether objects of the class are JAX's own arrays, or its keys, and not of a user's class derived from it."""
    return is_of_jax(kind) and issubclass(kind, jax.Array)


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
