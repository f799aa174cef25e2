"""Calls with `*` and `**` that go through the interpreter's own C code, and what that keeps until they return.

On CPython 3.11 every such call does, on 3.12 only that of a bound method. The C code passes the result on as it is, so
what is known of a direct call holds for such a call, too. Until it returns it holds a tuple of the positional arguments
and a dictionary of the others, and both lie on the caller's stack.

But a frame that is at a `CALL_FUNCTION_EX` is not always waiting for the function that it calls. The instruction takes
five steps; in each of them Python code may run and may, itself, call the very same function, and what lies on the stack
is valid in the second step only. So each of the others must be ruled out:

- What is starred is made a tuple, if it is not one. That asks for its items, which may run any code. Ruled out where it
  is known to be a tuple: from the bytecode, or because a local variable has it, or because one of the youngest objects
  is at that address, and is a tuple of just these arguments.
- The function is called.
- The function, the tuple and the dictionary are let go of, in this order, and code may run as each dies. An object that
  is just dying is still in memory, with a reference count of 0. So they are looked at from the last to the first, and
  the first one that is found dying ends the look: those before it may be gone.
- If the call has raised, a traceback refers to the frame. Those who call this have made sure that nobody does.
- Otherwise the result is put below the function, where there was nothing. Only after that are handlers of signals run,
  or garbage is collected. So that place must still be empty.
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
