"""Handlers of signals that only set flags: `def preempted(*_): trainer.stop = True`, as jobs on a cluster have them.

Such a handler may come at any moment of a call. It reads nothing of the program's data, because all that it does is to
put constants, or the number of the signal, into variables, attributes and items whose old values are no more than that;
and it raises nothing, because all these are there and plain. That shows in its bytecode, which has no jump and no call,
and in the objects that it names, which are looked at each time.

It may come several times, or another one before it. So what is set must be nothing that any of them loads. Nor may it
be anything that the instructions between a call and the store of its result read: that is for `Slots` to ask. Both are
told by names alone, which are the same whichever way leads to an attribute or a variable.
"""

from __future__ import annotations

import inspect
import types
from typing import Any, NamedTuple

from pytc.interrupt import SUSPENDS
from pytc.ownership.bytecode.analysed import NotTrusted, flow_of
from pytc.ownership.bytecode.events import ANY_CELL, ANY_NUMBER
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.cpython.interpreter import UNBOUND, contents
from pytc.ownership.cpython.plain import NotPlain, attribute, item, of_strings, read

_FLAGS = (bool, int, float, str, types.NoneType)
_DO_NOTHING = {"RESUME", "NOP", "COPY_FREE_VARS"}
_NUMBER, _FRAME = object(), object()
"""What stand for the arguments: the signal's number, and the frame that it has interrupted."""


class _Doubt(Exception):
    """The handler may do something else."""


class Flags(NamedTuple):
    """What a handler sets, and what it loads for that, by name; the variables of closures also by their cells (ids)."""

    set: frozenset[str | int]
    loaded: frozenset[str | int]


def flags_of(handler: Any) -> Flags | None:
    """The flags that a handler of signals sets, if it does no more than that; else None. Cost: some 5 us."""
    given = [_NUMBER, _FRAME]
    if type(handler) is types.MethodType:
        handler, given = handler.__func__, [handler.__self__, *given]
    if type(handler) is not types.FunctionType or not _takes(handler, len(given)):
        return None
    try:
        instructions = flow_of(handler.__code__).once(_straight)
        run = _Run(handler, given)
        for name, argument in instructions:
            run.step(name, argument)
    except (_Doubt, NotPlain, NotTrusted):
        return None
    return Flags(frozenset(run.set), frozenset(run.loaded)) if instructions else None


def _takes(function: types.FunctionType, count: int) -> bool:
    """Whether it can be called with so many arguments, and runs then."""
    code, defaults = function.__code__, len(function.__defaults__ or ())
    enough = code.co_argcount - defaults <= count and not code.co_kwonlyargcount
    few = count <= code.co_argcount or bool(code.co_flags & inspect.CO_VARARGS)
    return enough and few and not code.co_flags & SUSPENDS and not code.co_cellvars


def _straight(flow: ControlFlow) -> tuple[tuple[str, Any], ...]:
    """The instructions of code that goes straight on until it returns a constant; none if it does not."""
    found = tuple((each.opname, each.argval) for each in flow.instructions)
    ends = [name for name, _ in found[-2:]]
    if ends == ["LOAD_CONST", "RETURN_VALUE"]:
        return found[:-2]
    return found[:-1] if ends[-1:] == ["RETURN_CONST"] else ()


class _Run:
    """Executes a handler's instructions without their effects; raises `_Doubt` or `NotPlain` if one may do anything but
    set a flag, or load what is needed for that."""

    def __init__(self, function: types.FunctionType, given: list[Any]):
        code = function.__code__
        self._globals = function.__globals__
        self._locals = dict(zip(code.co_varnames[: code.co_argcount], given, strict=False))
        self._cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._stack: list[Any] = []
        self.set: set[str | int] = set()
        self.loaded: set[str | int] = set()

    def step(self, name: str, argument: Any) -> None:
        """Execute one."""
        stack = self._stack
        match name:
            case "LOAD_CONST":
                stack.append(argument)
            case "LOAD_FAST":
                stack.append(self._locals.get(argument, _FRAME))  # `*_` has the frame in it
            case "LOAD_FAST_LOAD_FAST":
                stack.extend(self._locals.get(each, _FRAME) for each in argument)
            case "LOAD_DEREF":
                self.loaded.add(id(self._cells[argument]))
                stack.append(_there(contents(self._cells[argument])))
            case "LOAD_GLOBAL":
                self.loaded.add(argument)
                stack.append(_there(self._global(argument)))
            case "LOAD_ATTR":
                self.loaded.add(argument)
                stack.append(_there(read(self._target(), argument)))
            case "STORE_GLOBAL":
                self.set.add(argument)
                _check(self._global(argument), stack.pop())
            case "STORE_DEREF":
                self.set |= {ANY_CELL, id(self._cells[argument])}
                _check(contents(self._cells[argument]), stack.pop())
            case "STORE_ATTR":
                self.set.add(argument)
                target = self._target()
                _check(attribute(target, argument, True), stack.pop())
            case "STORE_SUBSCR":
                key, target = stack.pop(), self._target()
                # A key that was not there would change the tree of an argument.
                _check(_there(item(target, key, True)), stack.pop())
                self.set.add(key if type(key) is str else ANY_NUMBER)
            case _ if name not in _DO_NOTHING:
                raise _Doubt

    def _target(self) -> Any:
        """The object on top of the stack, of which something is read or stored."""
        value = self._stack.pop()
        if value is _NUMBER or value is _FRAME:
            raise _Doubt
        return value

    def _global(self, name: str) -> Any:
        if type(self._globals) is not dict or not of_strings(self._globals):
            raise _Doubt
        return self._globals.get(name, UNBOUND)


def _there(value: Any) -> Any:
    if value is UNBOUND:
        raise _Doubt
    return value


def _check(old: Any, new: Any) -> None:
    """That a flag takes the place of a flag, or of nothing."""
    if not (new is _NUMBER or type(new) in _FLAGS) or not (old is UNBOUND or type(old) in _FLAGS):
        raise _Doubt
