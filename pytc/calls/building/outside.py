"""What a function that builds has from outside: its arguments, globals, and variables of outer functions."""

from __future__ import annotations

import gc
import inspect
import types
from collections.abc import Iterator
from types import FrameType
from typing import Any

from pytc.calls.building.code import (
    ATOMS,
    CONTAINERS,
    is_code,
    is_constant,
    is_marker,
    is_open,
)
from pytc.calls.building.newcomers import Newcomers
from pytc.calls.building.values import (
    Container,
    Kind,
    Known,
    Made,
    Odd,
    Several,
    Value,
    item_of,
)
from pytc.classes import is_among
from pytc.jax_compat.running import Tracer
from pytc.ownership.cpython.interpreter import UNBOUND, running_function, variable


class Outside:
    """What one function has from outside, as it begins."""

    def __init__(self, frame: FrameType, new: Newcomers) -> None:
        self.frame, self.new = frame, new
        function = running_function(frame)
        self._defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]

    def parameters(self) -> dict[str, Value]:
        """What each parameter has."""
        code = self.frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        given = {
            name: self._told(_contents(variable(self.frame, number)))
            for number, name in enumerate(code.co_varnames[:count])
        }
        if code.co_flags & inspect.CO_VARKEYWORDS:
            given[code.co_varnames[count]] = Container(dict)  # it is made for each call
        return given

    def _told(self, value: Any) -> Value:
        """What a function was given."""
        kind = type(value)
        if isinstance(value, Tracer):
            return Kind.LEAF
        if value is None or is_code(value) or is_marker(value):
            return Known(value)
        if is_among(kind, ATOMS):
            return Kind.ATOM
        if any(value is each for each in self._defaults) and not is_constant(value):
            return Kind.STATIC
        if kind is tuple:
            return Container(tuple, tuple([self._told(each) for each in value]))
        if is_among(kind, CONTAINERS):
            if self.new.has(value):
                return Container(kind)
            items = [*value, *value.values()] if kind is dict else [*value]
            return Container(kind, new=False) if items and all(is_constant(each) for each in items) else Kind.STATIC
        if issubclass(kind, Iterator) and kind.__module__ == "builtins" and self.new.has(value):
            of = gc.get_referents(value) if kind is type(iter(())) else []
            return Several(item_of(self._told(of[0])) if of else Kind.UNKNOWN)
        return Made(kind) if is_open(kind) and self.new.has(value) else Kind.STATIC

    def global_variable(self, name: str) -> Value:
        """What a global has: code."""
        value = self.frame.f_globals.get(name, self.frame.f_builtins.get(name, UNBOUND))
        if not (is_code(value) or is_marker(value)):
            raise Odd
        return Known(value)

    def outer_variable(self, name: str) -> Value:
        """What a variable of an outer function has: code, or names of fields that a decorator has found, if it has
        returned."""
        code = self.frame.f_code
        number = len({*code.co_varnames, *code.co_cellvars}) + code.co_freevars.index(name)
        cell = variable(self.frame, number)
        value = _contents(cell)
        if self.new.has(cell):
            return self._told(value)
        if is_among(type(value), (tuple, list)) and value and all(type(each) is str for each in value):
            return Container(type(value), new=False)
        if not (is_code(value) or is_marker(value)):
            raise Odd
        return Known(value)


def _contents(value: Any) -> Any:
    """What a variable has, also if it is one that inner functions read."""
    if type(value) is not types.CellType:
        return value
    try:
        return value.cell_contents
    except ValueError:
        raise Odd from None
