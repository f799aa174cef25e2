"""Code, as far as functions that build may use it: which classes and functions run no code that is not looked at."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from pytc.classes import attributes_of, defined, defines, is_among, module_named_by
from pytc.provenance import is_of

BUILDERS = frozenset(
    """pytc jax jaxlib numpy ml_dtypes equinox flax chex optax jax_dataclasses jax_md penzai simple_pytree abc
    collections copyreg dataclasses enum types typing""".split()
)
"""Packages whose own code builds containers of whatever it is given, or asks a tracer for its value."""
ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_CODE = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod, property),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(types.MemberDescriptorType, types.GetSetDescriptorType),
)
"""Kinds of objects that code consists of."""
_SENTINELS = tuple(type(each) for each in (dataclasses.MISSING, dataclasses._HAS_DEFAULT_FACTORY))  # type: ignore[attr-defined]
CONTAINERS = (tuple, list, dict, set, frozenset)
"""The interpreter's."""
METHODS = frozenset("append copy extend get items keys setdefault update values".split())
"""Methods of containers that do the same whatever is in these."""
FUNCTIONS = (iter, len, setattr, object.__new__, tuple.__new__, dict.__new__, list.__new__)
"""Functions of the interpreter's that do the same for all arrays of a type."""
OF_BASES = {
    name: tuple(attributes_of(base)[name] for base in (object, *CONTAINERS) if name in attributes_of(base))
    for name in ("__new__", "__init__", "__setattr__", "__delattr__", "__getattribute__")
}
"""What classes inherit from those of the interpreter that they may be derived from."""


def is_constant(value: Any) -> bool:
    """Whether the value never changes, and has nothing in it that does."""
    if is_among(type(value), (tuple, frozenset)):
        return all(is_constant(each) for each in value)
    return is_among(type(value), ATOMS) or is_code(value)


def is_code(value: Any) -> bool:
    """Whether it is a class, a module, or a function. (Those that `functools` makes call others, by what they are
    given.)"""
    if type(value) is types.FunctionType:
        return value.__globals__.get("__name__") != "functools"
    if type(value) is types.BuiltinFunctionType:
        return isinstance(value.__self__, type | types.ModuleType)  # else it is a method of some object
    return isinstance(value, _CODE)


def is_open(kind: type) -> bool:
    """Whether objects of the class have their attributes read and set by functions written in Python, or as those of
    `object` and of the interpreter's containers, and are made so, too; and run no code when they die."""
    return (
        all(is_of_python(has := defined(kind, name)) or is_among(has, own) for name, own in OF_BASES.items())
        and (not defines(kind, "__getattr__") or is_of_python(defined(kind, "__getattr__")))
        and not defines(kind, "__del__")
    )


def is_called_plainly(kind: type) -> bool:
    """Whether to call the class makes an object of it, in which its metaclass has no say."""
    return defined(type(kind), "__call__") is attributes_of(type)["__call__"]


def is_of_python(value: Any) -> bool:
    """Whether it is a function written in Python, as a class has it."""
    value = value.__func__ if is_among(type(value), (staticmethod, classmethod)) else value
    return type(value) is types.FunctionType


def is_marker(value: Any) -> bool:
    """Whether it stands for a missing default or, in Equinox's modules, a missing attribute."""
    kind = type(value)
    of_equinox = module_named_by(kind) == "equinox._module._flatten" and is_of(kind, ("equinox",))
    return of_equinox or is_among(kind, _SENTINELS)
