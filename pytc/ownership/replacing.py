"""Functions that are known to make a changed copy of an object: what they read of it.

`state._replace(params=step(state.params))` of a named tuple, `dataclasses.replace(state, params=step(state.params))`,
and methods that do nothing but call the latter, as `state.replace(params=...)` of Flax. They are passed the new values
by name, and read the fields under the other names. Where `_replace` goes through the items, the old value is the
default of a `dict.pop` that finds the new one. Then they call a constructor, which has the values but not the object.

So a field that is named is not read again, if the object has no other use. What these functions look up runs no code
that has hold of the object: its attributes are plain, and its class has no say in how they are got.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

from pytc.classes import defined, defines, shares
from pytc.interrupt import SUSPENDS
from pytc.ownership.events import Call, Place
from pytc.ownership.interpreter import UNBOUND, contents, variable
from pytc.ownership.plain import attribute, method, of_strings, read
from pytc.ownership.stack import first_of_stack


def copied(
    frame: FrameType, call: Call, of: Place, value_of: Callable[[FrameType, Place], Any]
) -> tuple[list[Any], dict[str, Any]] | None:
    """The object, in a list of its own, that the call behind the instruction of `frame` makes a changed copy of, and
    the fields of it that this reads, by name; None if the function is not known to do that.

    `of` is the place of the object, if it is loaded for that call. `value_of` tells what is in a place, `UNBOUND` if
    that runs code. The frame must be waiting at its instruction. Raises `NotPlain` if to read the fields may run other
    code.
    """
    function, nodes = _called(frame, call, of, value_of)
    fields = _read_by(function, nodes, call.names) if type(function) is FunctionType else None
    return None if fields is None else (nodes, fields)


def _called(
    frame: FrameType, call: Call, of: Place, value_of: Callable[[FrameType, Place], Any]
) -> tuple[Any, list[Any]]:
    """What is called, and `self` or its first argument, in a list of its own."""
    if of:
        nodes = [value_of(frame, of)]
        if call.positional:
            return value_of(frame, call.function), nodes
        return method(nodes[0], call.function[-1].name), nodes
    first = first_of_stack(frame.f_code) + call.lower
    lower, upper = variable(frame, first), variable(frame, first + 1)
    if lower is not UNBOUND and upper is not UNBOUND:
        return None if call.positional else lower, [upper]
    return upper if lower is UNBOUND else lower, [variable(frame, first + 2) if call.positional == 1 else UNBOUND]


def _read_by(function: FunctionType, nodes: list[Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    if function.__code__ is _REPLACE_FIELDS:
        return _of_named_tuple(function, nodes, names)
    if function is _replace or _only_calls_replace(function):
        return _of_dataclass(nodes, names)
    return None


def _of_named_tuple(function: FunctionType, nodes: list[Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    """What the `_replace` of a named tuple reads: all items, but for those that `dict.pop` finds under their names."""
    kind = type(nodes[0])
    has = dict(zip(function.__code__.co_freevars, [contents(cell) for cell in function.__closure__ or ()], strict=True))
    fields = has.get("field_names")
    own = shares(kind, tuple, "__getattribute__", "__iter__") and type(defined(kind, "_make")) is classmethod
    if not own or has.get("_map") is not map or type(fields) is not tuple or not issubclass(kind, tuple):
        return None
    if tuple.__len__(nodes[0]) != len(fields) or any(type(name) is not str for name in fields):
        return None
    return {name: value for name, value in zip(fields, tuple.__iter__(nodes[0]), strict=True) if name not in names}


def _of_dataclass(nodes: list[Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    """What `dataclasses.replace` reads: the attributes that are fields of the class, but for those of these names."""
    kind, meta = type(nodes[0]), type(type(nodes[0]))
    fields = defined(kind, _FIELDS)
    if not shares(kind, object, "__getattribute__", "__class__") or not shares(meta, type, "__getattribute__"):
        return None
    if defines(meta, _FIELDS):
        return None  # it is asked first
    if type(fields) is not dict or any(type(field) is not dataclasses.Field for field in fields.values()):
        return None
    if any(type(field.name) is not str or type(field.init) is not bool for field in fields.values()):
        return None
    if attribute(nodes[0], _FIELDS, False) is not UNBOUND:
        return None  # the object has others than its class
    names_read = [field.name for field in fields.values() if field.init and field.name not in names]
    values = {name: read(nodes[0], name) for name in names_read}
    found = {name: value for name, value in values.items() if value is not UNBOUND}
    return found if len(found) == len(values) or not defines(kind, "__getattr__") else None


def _only_calls_replace(function: FunctionType) -> bool:
    """Whether a function does what `_calls_replace` does."""
    code, names = function.__code__, function.__globals__
    if not all(shown(code) == shown(_calls_replace.__code__) for shown in _SHOWN) or code.co_exceptiontable:
        return False
    plain = type(names) is dict and of_strings(names)
    return plain and names.get("dataclasses") is dataclasses and vars(dataclasses).get("replace") is _replace


def _calls_replace(self: Any, **changes: Any) -> Any:
    return dataclasses.replace(self, **changes)


_TAKES = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS | inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_SHOWN: tuple[Callable[[CodeType], Any], ...] = (
    lambda code: code.co_code,
    lambda code: code.co_names,
    lambda code: code.co_flags & (_TAKES | SUSPENDS),
    lambda code: (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals),
    lambda code: code.co_freevars + code.co_cellvars,
)
"""What code does follows from these, where it loads no constant."""
_replace = dataclasses.replace
_FIELDS = "__dataclass_fields__"
_REPLACE_FIELDS: CodeType = collections.namedtuple("_", "field")._replace.__code__  # type: ignore[attr-defined]
"""The code of `_replace`, which all named tuples share."""
