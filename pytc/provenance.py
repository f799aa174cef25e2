"""Whose a class or a function is: told by the module that has it, not by the name of a module that it says it is of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax

from pytc.classes import attributes_of

_module_named_by: Callable[[type], Any] = type.__dict__["__module__"].__get__
_name_of: Callable[[type], Any] = type.__dict__["__qualname__"].__get__
_space_of: Callable[[ModuleType], dict[str, Any]] = vars(ModuleType)["__dict__"].__get__
_JAX = ("jax", "jaxlib")


def module_of(space: Mapping[str, Any]) -> str:
    """The name of the module whose globals these are; empty if they are nobody's, whatever they say."""
    name = space.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return str(name) if isinstance(module, ModuleType) and _space_of(module) is space else ""


def package_of(space: Mapping[str, Any]) -> str:
    """The top-level package of the module whose globals these are; empty if they are nobody's."""
    return module_of(space).partition(".")[0]


def says_it_is_of_jax(kind: type) -> bool:
    """Whether a class has the name of one of JAX's modules."""
    module = attributes_of(kind).get("__module__")
    return type(module) is str and module.partition(".")[0] in _JAX


def is_of_jax(kind: type) -> bool:
    """Whether a class is JAX's own."""
    return is_of(kind, _JAX)


def is_own_array(kind: type) -> bool:
    """Whether objects of a class are JAX's own arrays, or its keys, and not of a user's class derived from it."""
    return is_of_jax(kind) and issubclass(kind, jax.Array)


def is_of(kind: type, packages: Sequence[str]) -> bool:
    """Whether a class is one of these packages', and has the name under which a module of theirs has it."""
    module, name = _module_named_by(kind), _name_of(kind)
    if type(module) is not str or type(name) is not str or module.partition(".")[0] not in packages:
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        space = attributes_of(found) if isinstance(found, type) else vars(found) if type(found) is ModuleType else {}
        found = space.get(part)
    return found is kind
