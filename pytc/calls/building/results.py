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
    FUNCTIONS,
    OF_BASES,
    is_among,
    is_code,
    is_of_python,
    is_open,
    package_of,
)
from pytc.calls.building.values import (
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
    is_new,
    item_of,
    items_of,
    may_be_handed_on,
)
from pytc.classes import attributes_of, defined

_COMPREHENSIONS: dict[str, type] = {"<listcomp>": list, "<setcomp>": set, "<dictcomp>": dict}


def result(
    function: Value,
    arguments: Sequence[Value],
    named: Sequence[Value],
    first: Value,
    assign: Callable[[Value, Value], None],
) -> Value:
    """What a function returns for these arguments, and those that are passed by name. Raises `Odd` where that may be
    something else the next time, or code runs that is not looked at.

    `first` is the first parameter of the function that calls, for `super()`; `assign` notes that an attribute of a
    value is set, if it may be.
    """
    is_tame = all(may_be_handed_on(each) for each in (*arguments, *named))
    match function:
        case Known(CodeType() as code):
            if code.co_name in _COMPREHENSIONS:
                return Container(_COMPREHENSIONS[code.co_name])
            return Several(Kind.UNKNOWN) if code.co_flags & inspect.CO_GENERATOR else Kind.UNKNOWN
        case Known(types.FunctionType() as python):
            if is_tame or package_of(python.__globals__) not in BUILDERS:
                return Kind.UNKNOWN
        case Known(type() as kind):
            return _constructed(kind, arguments, is_tame)
        case Method(of, name):
            return _by_method(of, name, arguments)
        case Inherited(name, among):
            return _by_super(name, among, (*arguments, *named), first)
        case Known(value):
            # One of a package that builds may be a jitted function of JAX's.
            home = str(getattr(value, "__module__", "")).partition(".")[0]
            if is_tame and home in BUILDERS and not is_code(value):
                return Kind.UNKNOWN
            return _by_c_code(value, (*arguments, *named), assign)
    raise Odd


def _by_super(name: str, among: Sequence[Known], arguments: Sequence[Value], first: Value) -> Value:
    """What one of these methods returns."""
    own = OF_BASES.get(name, ())
    if not all(type(each.value) is types.FunctionType or is_among(each.value, own) for each in among):
        raise Odd
    if name == "__new__":
        match arguments:
            case [Known(type() as kind), *rest] if is_open(kind) and all(may_be_handed_on(each) for each in rest):
                return Made(kind)
        raise Odd
    if name == "__setattr__" and not isinstance(first, Made):
        raise Odd
    if name == "__init__" and not all(is_of_python(each.value) or each.value is own[0] for each in among):
        for each in arguments:  # those of the interpreter's containers take other containers
            check_pairs(each)
    return Kind.UNKNOWN


def _by_c_code(value: Any, arguments: Sequence[Value], assign: Callable[[Value, Value], None]) -> Value:
    """What a function written in C returns."""
    match arguments:
        case [owner, name, _] if value is setattr or value is attributes_of(object)["__setattr__"]:
            assign(owner, name)
            return Known(None)
        case [Made(), *_] if value is attributes_of(object)["__init__"]:
            return Known(None)
        case [Known(type() as kind), *rest] if any(value == each for each in FUNCTIONS[4:]) and is_open(kind):
            for each in rest if value == tuple.__new__ else ():
                item_of(each)
            return Made(kind)
        case [each] if value is iter:
            return Several(item_of(each))
        case [Container() | Kind.LEAF] if value is len:
            return Kind.ATOM
        case [Known() | Made() | Container() | Kind.STATIC, Known() | Container()] if value is isinstance:
            return Kind.ATOM  # (of a tracer the answer may be another one than of the array)
    raise Odd


def _constructed(kind: type, arguments: Sequence[Value], is_tame: bool) -> Value:
    """An object of a class, made with these arguments. `is_tame` says that these, and others that are passed by name,
    may be handed to code that is not looked at."""
    if kind is dict:
        for each in arguments:
            check_pairs(each)
        return Container(dict)
    if kind in CONTAINERS:
        items = [items_of(each) if isinstance(each, Container) else None for each in arguments]
        found = [item_of(each) for each in arguments]
        if kind in (set, frozenset):
            check_keys(found)
        return Container(kind, items[0] if kind is tuple and items else None)
    if kind is zip:
        return Several(Container(tuple, tuple([item_of(each) for each in arguments])))
    if kind is enumerate and arguments:
        return Several(Container(tuple, (Kind.ATOM, item_of(arguments[0]))))
    if kind is reversed and len(arguments) == 1:
        return Several(item_of(arguments[0]))
    if kind is super:
        return Kind.SUPER
    if kind is type and len(arguments) == 1 and isinstance(arguments[0], Made):
        return Known(arguments[0].kind)
    if kind in ATOMS and all(isinstance(each, Known) and type(each.value) in ATOMS for each in arguments):
        return Kind.ATOM
    if is_open(kind):
        if defined(type(kind), "__call__") is not attributes_of(type)["__call__"]:
            if not is_tame:
                raise Odd
            return Kind.UNKNOWN  # its metaclass returns whatever it likes
        if issubclass(kind, CONTAINERS) and not all(is_of_python(defined(kind, n)) for n in ("__new__", "__init__")):
            _constructed(next(each for each in CONTAINERS if issubclass(kind, each)), arguments, is_tame)
        return Made(kind)
    raise Odd


def _by_method(of: Container, name: str, arguments: Sequence[Value]) -> Value:
    """What a method of a container returns."""
    if name in ("items", "keys", "values") and of.kind is dict:
        return Several(Container(tuple) if name == "items" else Kind.UNKNOWN)
    if name in ("append", "setdefault", "extend", "update"):
        if not is_new(of):
            raise Odd
        if name == "setdefault" or (name == "update" and of.kind is set):
            check_keys([item_of(arguments[0]) if name == "update" else arguments[0]])
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
