"""Managers of `with` statements that never end an exception: what their `__exit__` returns says so.

The interpreter has found `__exit__` when the statement began, and has it on the stack until that ends, so a class that
is changed meanwhile does not matter. What is known of are

- functions in Python that return None or False and nothing else, and do not read variables by other means than their
  bytecode shows: those of JAX's meshes and settings, of `nullcontext`, of progress bars;
- what `contextlib.contextmanager` has made of a generator that does not return once an exception was thrown into it;
- locks, and JAX's annotations of profiles, which are written in C. (Not files: theirs returns what `close` does, which
  may be somebody's own.)
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable
from typing import Any

from jax.profiler import TraceAnnotation

from pytc.classes import ids_of
from pytc.ownership.bytecode.analysed import NotTrusted, flow_of
from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.bytecode.introspection import introspects
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.managers import goes_on_raising, returns_nothing
from pytc.ownership.cpython.interpreter import variable

_GENERATOR_EXIT = contextlib._GeneratorContextManager.__exit__
_BOUND = type(TraceAnnotation("").__exit__)
_ANNOTATES = TraceAnnotation.__exit__
_LOCKS = ids_of(type(threading.Lock()), type(threading.RLock()))


def how_many_pass(frame: types.FrameType, site: CallSite) -> int:
    """Of how many of the `with` statements that a frame is in, from the innermost on, the managers let exceptions go
    on."""
    for number, statement in enumerate(site.entered):
        if not _passes_on(variable(frame, statement.position)):
            return number
    return len(site.entered)


def _passes_on(leave: Any) -> bool:
    """Whether this `__exit__`, of a manager that has been entered, never says that the exception ends there."""
    kind = type(leave)
    if kind is types.BuiltinMethodType:
        return leave.__name__ == "__exit__" and id(type(leave.__self__)) in _LOCKS
    if kind is _BOUND:
        return leave.__func__ is _ANNOTATES
    if kind is not types.MethodType or type(leave.__func__) is not types.FunctionType:
        return False
    try:
        if leave.__func__ is not _GENERATOR_EXIT:
            function: Any = leave.__func__
            return _is_told(function.__code__, function.__globals__, function.__builtins__, returns_nothing)
        manager = leave.__self__
        if type(manager) is not contextlib._GeneratorContextManager or type(manager.gen) is not types.GeneratorType:
            return False
        frame = manager.gen.gi_frame
        return frame is not None and _is_told(frame.f_code, frame.f_globals, frame.f_builtins, goes_on_raising)
    except NotTrusted:
        return False


def _is_told(
    code: types.CodeType, names: dict[str, Any], builtins: dict[str, Any], tell: Callable[[ControlFlow], bool]
) -> bool:
    """Whether that is told of a function, which reads no variables, its callers' least of all, but by its bytecode.
    `names` are the globals that it sees, and `builtins` what it finds where there are none."""
    flow = flow_of(code)
    known, key = flow.once(_reading), (id(names), id(builtins))
    if key not in known:
        known[key] = introspects(flow, names, builtins)
    return not known[key] and flow.once(tell)


def _reading(_: ControlFlow) -> dict[tuple[int, int], str]:
    """By the globals and builtins that a function sees (their ids): what it names by which it may read variables."""
    return {}
