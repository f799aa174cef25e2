"""Whose a class or a function is: told by the module that has it, not by the name of a module that it says it is of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping
from types import ModuleType
from typing import Any, TypeGuard

import jax

from pytc.classes import attributes_of, module_named_by, qualname_of

space_of: Callable[[ModuleType], dict[str, Any]] = vars(ModuleType)["__dict__"].__get__
JAX = ("jax", "jaxlib")
"""JAX's packages."""


def _is_module(value: Any) -> TypeGuard[ModuleType]:
    return issubclass(type(value), ModuleType)  # `isinstance` would ask it for its `__class__`


def module_of(space: Mapping[str, Any]) -> str:
    """The name of the module whose globals these are; empty if they are nobody's, whatever they say."""
    name = space.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return str(name) if _is_module(module) and space_of(module) is space else ""


def package_of(space: Mapping[str, Any]) -> str:
    """The top-level package of the module whose globals these are; empty if they are nobody's."""
    return module_of(space).partition(".")[0]


def says_it_is_of(kind: type, packages: Container[str]) -> bool:
    """Whether a class has the name of a module of one of these packages."""
    module = module_named_by(kind)
    return type(module) is str and module.partition(".")[0] in packages


def is_of(kind: type, packages: Container[str]) -> bool:
    """Whether a class is one of these packages', and has the name under which a module of theirs has it."""
    name = qualname_of(kind)
    if not says_it_is_of(kind, packages) or type(name) is not str:
        return False
    found: Any = sys.modules.get(module_named_by(kind))
    for part in name.split("."):
        if issubclass(type(found), type):
            found = attributes_of(found).get(part)
        else:
            found = space_of(found).get(part) if _is_module(found) else None
    return found is kind


def is_own_array(kind: type) -> bool:
    """Whether objects of a class are JAX's own arrays, or its keys, and not of a user's class derived from it."""
    return is_of(kind, JAX) and issubclass(kind, jax.Array)
