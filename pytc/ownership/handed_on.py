"""Calls of objects that have a `__call__`, and of partials: what C code keeps until they return.

`trainer(state, batch)` and `functools.partial(train, config)(state, batch)` go through C code that calls one Python
function, with something put before the arguments, and hands on what comes back. Until then the arguments stay on the
stack, where nobody reads them again. Those of an object are in a tuple as well; so are those of a partial with
keywords, in another with what it puts before them, and in an array of the interpreter's own. All these are dead places,
if it is such a call that the function in the frame below is called by.

What lies on the stack of a frame may be gone: a destructor may run at the end of the call, and a handler of a signal or
a callback of the collector behind it, when the frame is at the same instruction. So only addresses are read there, and
compared with those of objects that are known to live: what is called, as it stands where the code has loaded it from,
or the first argument of the function below; and the arguments of that function. Whatever else runs there is handed
other arguments: a destructor the object itself, a callback of a weak reference that reference, a handler a number and
a frame.

A partial of one argument puts that where itself was on the stack, up to CPython 3.12, or next to it. Nothing else does
so but a bound method, which also hands on its arguments. So what is found there, if it is the first argument of the
function and cannot have been called, was put there by one of the two.

Tuples are looked for among the youngest objects, as that of a starred call is (`starred.young_tuples`); the function
called may have made others since.

Behind C code the interpreter looks for signals before anything is stored; so here the handlers of exceptions count, and
slots do not.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from types import FrameType, FunctionType
from typing import Any

from pytc.classes import defined
from pytc.ownership.callsite import Place
from pytc.ownership.interpreter import first_local, partials_are_known, running, variable, words
from pytc.ownership.slots import Slots
from pytc.ownership.stack import Called
from pytc.ownership.starred import young_tuples


def kept_on_the_way(
    frame: FrameType, call: Called, sources: Sequence[Place], below: FrameType, found: Sequence[Any]
) -> list[Any]:
    """What C code, for which `frame` waits at such a call, keeps of its arguments: each as often as it refers to it.
    Nothing where it is not known to hand them on to the function in `below`.

    `sources` are the places that the code has loaded what it calls, and the arguments, from; `found` is what was found
    so far.
    """
    stack = words(frame)
    passed = [stack[first_local + place] for place in call.arguments]
    before, arguments = _parted(below, passed)
    if not arguments:
        return []
    called, beside = stack[first_local + call.function], stack[first_local + call.nothing]
    first = id(before[0]) if len(before) == 1 else 0
    if called == first and not beside:
        if _calls(before[0], below):
            return arguments + young_tuples(tuple(arguments), 1, found)[:1]
        return [] if callable(before[0]) else arguments
    if beside and beside != first:
        return []
    partial = _partial(frame, sources, called)
    if partial is None or id(partial.func) != running(below) or [*map(id, partial.args)] != [*map(id, before)]:
        return []
    if not partial.keywords:
        return arguments
    if before:
        tuples = [*young_tuples(tuple(arguments), 1, found)[:1], *young_tuples((*before, *arguments), 1, found)[:1]]
    else:
        tuples = young_tuples(tuple(arguments), 2, found)[:1] * 2  # one for both
    return arguments * 2 + tuples if len(tuples) == 2 and partials_are_known else []


def _parted(frame: FrameType, passed: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """The positional arguments of a function, as its variables have them still: those before the ones that were
    `passed` (ids), and these; nothing where it has other ones."""
    code = frame.f_code
    given = [variable(frame, number) for number in range(code.co_argcount)]
    if code.co_flags & inspect.CO_VARARGS:
        more = variable(frame, code.co_argcount + code.co_kwonlyargcount)
        given += more if type(more) is tuple else ()
    ids = [*map(id, given)]
    for start in range(len(ids)):
        behind = start + len(passed)
        if ids[start:behind] == passed:
            return given[:start], given[start:behind]
    return [], []


def _calls(value: Any, frame: FrameType) -> bool:
    """Whether a frame runs what the class of the object has as its `__call__`."""
    function = defined(type(value), "__call__")
    return type(function) is FunctionType and id(function) == running(frame)


def _partial(frame: FrameType, sources: Sequence[Place], address: int) -> functools.partial[Any] | None:
    """The partial at this address, if it stands in one of the places."""
    slots = Slots([], "")
    for place in sources:
        value = slots.peek(frame, place)
        if id(value) == address and type(value) is functools.partial:
            return value
    return None
