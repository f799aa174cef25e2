"""What calls return in functions that build."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from pytc.calls.building.code import (
    ATOMS,
    BUILDERS,
    CONTAINERS,
    OF_BASES,
    is_called_plainly,
    is_of_python,
    is_open,
)
from pytc.calls.building.values import (
    Bound,
    Container,
    Inherited,
    Kind,
    Known,
    Made,
    Method,
    Odd,
    Several,
    Value,
    check_keys,
    check_pairs,
    is_atom,
    is_new,
    item_of,
    items_of,
)
from pytc.classes import attributes_of, defined, is_among
from pytc.provenance import package_of

_COMPREHENSIONS: dict[str, type] = {"<listcomp>": list, "<setcomp>": set, "<dictcomp>": dict}


def result(function: Value, arguments: Sequence[Value], first: Value, assign: Callable[[Value, Value], None]) -> Value:
    """What a function returns for these arguments, and some that are passed by name. Raises `Odd` where that may be
    something else the next time, or code runs that is not looked at.

    `first` is the first parameter of the function that calls, for `super()`; `assign` notes that an attribute of a
    value is set, if it may be.
    """
    match function:
        case Known(CodeType() as code):
            if code.co_name in _COMPREHENSIONS:
                return Container(_COMPREHENSIONS[code.co_name])
            return Several(Kind.UNKNOWN) if code.co_flags & inspect.CO_GENERATOR else Kind.UNKNOWN
        case Known(types.FunctionType() as python) | Bound(python):
            if package_of(python.__globals__) not in BUILDERS:
                return Kind.UNKNOWN
        case Known(type() as kind):
            return _constructed(kind, arguments)
        case Method(of, name):
            return _by_method(of, name, arguments)
        case Inherited(name, value):
            return _by_super(name, value, arguments, first, assign)
        case Known(value):
            return _by_c_code(value, arguments, assign)
    raise Odd


def _by_super(
    name: str, value: Any, arguments: Sequence[Value], first: Value, assign: Callable[[Value, Value], None]
) -> Value:
    """What a method returns that `super()` has."""
    if is_of_python(value):
        return Kind.UNKNOWN
    if name == "__new__":
        return _by_c_code(value, arguments, assign)
    if name in ("__init__", "__setattr__") and value is attributes_of(object)[name]:
        return _by_c_code(value, (first, *arguments), assign)
    raise Odd


def _by_c_code(value: Any, arguments: Sequence[Value], assign: Callable[[Value, Value], None]) -> Value:
    """What a function written in C returns."""
    match arguments:
        case [owner, name, _] if value is setattr or value is attributes_of(object)["__setattr__"]:
            assign(owner, name)
            return Known(None)
        case [Made(), *_] if value is attributes_of(object)["__init__"]:
            return Known(None)
        case [Known(type() as kind), *rest] if is_among(value, OF_BASES["__new__"]) and is_open(kind):
            made_of = next((base for base in (tuple, frozenset) if value is base.__new__), None)
            if made_of is not None:
                _constructed(made_of, rest)
            return Made(kind)
        case [each] if value is iter:
            return Several(item_of(each))
        case [Container() | Kind.LEAF] if value is len:
            return Kind.ATOM
    raise Odd


def _constructed(kind: type, arguments: Sequence[Value]) -> Value:
    """An object of a class, made with these arguments."""
    if kind is dict:
        for each in arguments:
            check_pairs(each)
        return Container(dict)
    if is_among(kind, CONTAINERS):
        items = [items_of(each) if isinstance(each, Container) else None for each in arguments]
        found = [item_of(each) for each in arguments]
        if is_among(kind, (set, frozenset)):
            check_keys(found)
        return Container(kind, items[0] if kind is tuple and items else None)
    if kind is zip:
        return Several(Container(tuple, tuple([item_of(each) for each in arguments])))
    if kind is enumerate and arguments:
        return Several(Container(tuple, (Kind.ATOM, item_of(arguments[0]))))
    if kind is reversed and len(arguments) == 1:
        return Several(item_of(arguments[0]))
    if kind is super and not arguments:
        return Kind.SUPER
    if kind is type and len(arguments) == 1 and isinstance(arguments[0], Made):
        return Known(arguments[0].kind)
    if is_among(kind, ATOMS) and all(is_atom(each) for each in arguments):
        return Kind.ATOM
    if is_open(kind) and is_called_plainly(kind):
        if issubclass(kind, CONTAINERS) and not all(is_of_python(defined(kind, n)) for n in ("__new__", "__init__")):
            _constructed(next(each for each in CONTAINERS if issubclass(kind, each)), arguments)
        return Kind.UNKNOWN if is_of_python(defined(kind, "__new__")) else Made(kind)
    raise Odd


def _by_method(of: Container, name: str, arguments: Sequence[Value]) -> Value:
    """What a method of a container returns."""
    if name in ("items", "keys", "values") and of.kind is dict:
        return Several(Container(tuple) if name == "items" else Kind.UNKNOWN)
    if name in ("append", "setdefault", "extend", "update"):
        if not is_new(of):
            raise Odd
        if name == "setdefault":
            check_keys(arguments[:1])
        elif name == "update" and of.kind is set:
            check_keys([item_of(each) for each in arguments])
        elif name == "update":
            for each in arguments:
                check_pairs(each)
        elif name == "extend":
            item_of(arguments[0])
        return Kind.UNKNOWN
    if name == "copy":
        return Container(of.kind)
    if name == "get":
        check_keys(arguments[:1])
        return Kind.UNKNOWN
    raise Odd
