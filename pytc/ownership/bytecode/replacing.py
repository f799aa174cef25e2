"""Functions that are known to make a changed copy of an object: what they read of it.

`state._replace(params=step(state.params))` of a named tuple, `dataclasses.replace(state, params=step(state.params))`,
and methods that do nothing but call the latter, as `state.replace(params=...)` of Flax. They are passed the new values
by name, and read the fields under the other names. Where `_replace` goes through the items, the old value is the
default of a `dict.pop` that finds the new one. Then they call a constructor, which has the values but not the object.

So a field that is named is not read again, if the object has no other use. What these functions look up runs no code
that has hold of the object: its attributes are plain, and its class has no say in how they are got.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import inspect
import operator
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from pytc.classes import defined, defines, shares
from pytc.interrupt import SUSPENDS
from pytc.ownership.bytecode.events import Call, Place
from pytc.ownership.bytecode.fields import Read
from pytc.ownership.bytecode.stack import first_of_stack
from pytc.ownership.cpython.interpreter import UNBOUND, contents, variable
from pytc.ownership.cpython.plain import attribute, function_of, has_odd_keys, method, of_strings, read


def copied(
    frame: FrameType, call: Call, of: Place, value_of: Callable[[FrameType, Place], Any]
) -> tuple[list[Any], Read] | None:
    """The object, in a list of its own, that the call after the instruction of `frame` makes a changed copy of, and
    the fields of it that this reads; None if the function is not known to do that.

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


def _read_by(function: FunctionType, nodes: list[Any], names: tuple[str, ...]) -> Read | None:
    if function.__code__ is _REPLACE_FIELDS:
        return _of_named_tuple(function, nodes, names)
    if (function is _replace or _only_calls_replace(function)) and _is_as_it_was():
        return _of_dataclass(nodes, names)
    return None


def _of_named_tuple(function: FunctionType, nodes: list[Any], names: tuple[str, ...]) -> Read | None:
    """What the `_replace` of a named tuple reads: all items, but for those that `dict.pop` finds under their names.

    Its `_make` is given an iterator over the object. So it must be the one that all named tuples share, too, and the
    object must have no other.
    """
    kind, has = type(nodes[0]), _captured(function)
    if has_odd_keys(kind):
        return None
    fields, maker = has.get("field_names"), defined(kind, "_make")
    own = shares(kind, tuple, "__getattribute__", "__iter__") and has.get("_map") is map
    if not own or type(fields) is not tuple or not issubclass(kind, tuple) or type(maker) is not classmethod:
        return None
    make = maker.__func__
    if type(make) is not FunctionType or make.__code__ is not _MAKE or function_of(nodes[0], "_make", kind) is not make:
        return None
    if _captured(make).get("tuple_new") is not tuple.__new__ or _captured(make).get("_len") is not len:
        return None
    if any(type(name) is not str for name in fields) or not tuple.__len__(nodes[0]) == len(fields) == len({*fields}):
        return None  # of a name that is there twice, `dict.pop` finds the value once
    items = zip(fields, tuple.__iter__(nodes[0]), strict=True)
    return [("", value) for name, value in items if name not in names]


def _captured(function: FunctionType) -> dict[str, Any]:
    """What a function has captured, by name."""
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, [contents(cell) for cell in cells], strict=True))


def _of_dataclass(nodes: list[Any], names: tuple[str, ...]) -> Read | None:
    """What `dataclasses.replace` reads: the attributes that are fields of the class, but for those of these names. None
    if one of them is missing: that would raise an error which has the object, or ask the class for it."""
    kind, meta = type(nodes[0]), type(type(nodes[0]))
    if has_odd_keys(kind) or has_odd_keys(meta):
        return None
    fields = defined(kind, _FIELDS)
    if not shares(kind, object, "__getattribute__", "__class__") or not shares(meta, type, "__getattribute__"):
        return None
    if defines(meta, _FIELDS) or type(fields) is not dict:
        return None  # the metaclass is asked first
    if any(type(field) is not dataclasses.Field for field in fields.values()):
        return None
    told: list[tuple[Any, Any]] = [(getattr(f, "name", None), getattr(f, "init", None)) for f in fields.values()]
    if any(type(name) is not str or type(init) is not bool for name, init in told):
        return None
    if attribute(nodes[0], _FIELDS, False) is not UNBOUND:
        return None  # the object has others than its class
    found = [(name, read(nodes[0], name)) for name, init in told if init and name not in names]
    return None if any(value is UNBOUND for _, value in found) else found


def _only_calls_replace(function: FunctionType) -> bool:
    """Whether a function does what `_calls_replace` does."""
    code, names = function.__code__, function.__globals__
    if not all(shown(code) == shown(_calls_replace.__code__) for shown in _SHOWN) or code.co_exceptiontable:
        return False
    plain = type(names) is dict and of_strings(names)
    module = names.get("dataclasses") if plain else None
    return module is dataclasses and type(module) is ModuleType and vars(dataclasses).get("replace") is _replace


def _is_as_it_was() -> bool:
    """Whether `dataclasses.replace` does what it did at import: it looks up functions by name."""
    known = of_strings(vars(dataclasses)) and of_strings(vars(builtins))
    return known and all(map(operator.is_, _looked_up(), _AT_IMPORT))


def _looked_up() -> list[Any]:
    """What `dataclasses.replace`, and functions of its module that it calls, find under the names in their code, and
    then the code of those that are functions."""
    space, others = vars(dataclasses), vars(builtins)
    found = [space.get(name, others.get(name)) for name in _NAMES]
    return found + [each.__code__ if type(each) is FunctionType else None for each in found]


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
_CALLED: list[Any] = [vars(dataclasses).get(name) for name in _replace.__code__.co_names]
_CODES = [_replace.__code__, *(each.__code__ for each in _CALLED if type(each) is FunctionType)]
_NAMES = ("replace", *(name for code in _CODES for name in code.co_names))
_AT_IMPORT = _looked_up()
_FIELDS = "__dataclass_fields__"
_Named = collections.namedtuple("_Named", "field")
_REPLACE_FIELDS: CodeType = vars(_Named)["_replace"].__code__
_MAKE: CodeType = vars(_Named)["_make"].__func__.__code__
"""The code of `_replace` and `_make`, which all named tuples share."""
