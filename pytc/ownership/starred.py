"""Calls with `*` and `**` that go through the interpreter's own C code, and what that keeps until they return.

On CPython 3.11 that is any such call, on 3.12 that of a bound method. The code does nothing with the result, so what is
known of a direct call holds for it, too; and the stack has the tuple and the dictionary that it keeps.

But the frame stays at that instruction while other code runs, even the very function that it calls, and the stack may
then have what is not there yet, or gone. The instruction goes through these steps.

- A tuple is made of what is starred, if that is none. This may run any code, as the items are asked for. So it must be
  one: the bytecode says so, or a variable has it, or it is found among the youngest objects, where the stack says.
- The function is called.
- The function, the tuple and the dictionary are let go of, in this order, and code may run as they die. What is about
  to die has no references and is still there. So it is looked from the last of them on, and at none of which something
  else may have been let go of before.
- If the call has raised, a traceback refers to the frame, and nobody asks here.
- Otherwise the result is put below the function, where there was nothing. Only then may a handler of signals run, or
  garbage be collected.
"""

from __future__ import annotations

import gc
import operator
from types import FrameType, MethodType
from typing import Any

from pytc.ownership.interpreter import (
    alone,
    copies_of_unpacked,
    first_local,
    lives,
    running,
    variable,
    waits_for_c,
    words,
)
from pytc.ownership.stack import Starred


def called_from_the_stack(frame: FrameType, call: Starred, below: FrameType, args: tuple[Any, ...]) -> bool:
    """Whether the starred call that a frame is at calls the very function that runs in `below`, or a method of it,
    through the interpreter's own C code, and keeps a tuple for it. Nobody else may have hold of the frame.

    `args` are the positional arguments of that function, where they are known.
    """
    if not waits_for_c(frame):
        return False  # nothing is left on the stack of what a Python function was called with
    if is_over(frame, call):
        return False
    stack = words(frame)
    if call.named is not None and not lives(stack[first_local + call.named]):
        return False
    address = stack[first_local + call.positional]
    if call.local is not None:
        value = variable(frame, call.local)
        if type(value) is not tuple or id(value) != address:
            return False
    elif not (lives(address) if call.is_tuple else _is_young_tuple(address, args)):
        return False
    function = stack[first_local + call.function]
    if function == running(below):
        return True
    method = variable(frame, call.function) if lives(function) else None
    return type(method) is MethodType and id(method.__func__) == running(below)


def is_over(frame: FrameType, call: Starred) -> bool:
    """Whether the result of a starred call is on the stack."""
    return bool(words(frame)[first_local + call.function - 1])


def _is_young_tuple(address: int, args: tuple[Any, ...]) -> bool:
    """Whether one of the youngest objects is at this address, a tuple of `args`, or of all but the object that a method
    is of. False where other threads are: a tuple that one of them is making must not be referred to meanwhile."""
    if not args or not alone():
        return False
    found = [value for value in gc.get_objects(0) if id(value) == address and type(value) is tuple]
    items = gc.get_referents(*found)
    return any(
        len(items) == len(given) and all(map(operator.is_, items, gc.get_referents(given)))
        for given in (args, args[1:])
        if given
    )


def kept_by(frame: FrameType, call: Starred) -> list[Any]:
    """The tuple and the dictionary that a call that is `called_from_the_stack` keeps until it returns, and the values
    in them where the interpreter has a reference of its own to each: where there are keywords."""
    found = [variable(frame, place) for place in (call.named, call.positional) if place is not None]
    if copies_of_unpacked and call.named is not None and found[0]:
        for value in found[:]:
            found += value.values() if type(value) is dict else value
    return found
