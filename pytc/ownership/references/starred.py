"""Calls with `*` and `**` that go through the interpreter's own C code, and what that keeps until they return.

On CPython 3.11 every such call does, on 3.12 only that of a bound method. The C code returns the function's result as
it is, so what holds for a direct call holds for such a call, too. Until it returns it keeps a tuple of the positional
arguments and a dictionary of the keyword arguments. Both lie on the caller's stack.

But a frame at a `CALL_FUNCTION_EX` is not always waiting for the function that the instruction calls. The instruction
has five steps. Python code may run in each of them and may itself call the very same function, but the entries on the
stack are valid in the second step only. So `called_from_the_stack` must rule out each of the others:

1. The starred object is converted to a tuple, if it is not one, which may run any code. Ruled out if the object is
   known to be a tuple: from the bytecode; or because a local variable has it; or because one of the youngest objects is
   at that address and is a tuple of just these arguments.
2. The function is called.
3. The function, the tuple and the dictionary are released, in this order, and code may run as each of them dies. A
   dying object is still in memory, with a reference count of 0. So they are examined from the last to the first, and
   the first one that is found dying ends the examination, because those before it may be gone.
4. If the call has raised, a traceback refers to the frame. The callers of this function have made sure that nothing
   else refers to the frame.
5. Otherwise the result is put below the function, in a place that was empty. Only after that do signal handlers run and
   garbage is collected. So that place must still be empty.
"""

from __future__ import annotations

import gc
import operator
from types import FrameType, MethodType
from typing import Any

from pytc.ownership.bytecode.stack import Starred
from pytc.ownership.cpython.interpreter import (
    alone,
    copies_of_unpacked,
    first_local,
    lives,
    running,
    variable,
    waits_for_c,
    words,
)


def called_from_the_stack(frame: FrameType, call: Starred, below: FrameType, args: tuple[Any, ...]) -> bool:
    """Whether the starred call at which a frame is calls the very function that runs in `below`, or a method of it,
    through the interpreter's own C code, and the stack has its arguments.

    The caller must have made sure that nothing else refers to the frame. `args` are the positional arguments of that
    function, if they are known.
    """
    if not waits_for_c(frame):
        return False  # a direct call has taken its arguments from the stack
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
    """Whether the result of a starred call is already on the stack."""
    return bool(words(frame)[first_local + call.function - 1])


def _is_young_tuple(address: int, args: tuple[Any, ...]) -> bool:
    """Whether one of the youngest objects is at this address and is a tuple of `args`, or of `args` without a method's
    `self`. False if there are other threads: nobody may refer to a tuple that one of them is still making."""
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
    """What a call that is `called_from_the_stack` keeps until it returns: the tuple and the dictionary; and, if there
    are keywords, all values in both where the interpreter refers to each by itself (`copies_of_unpacked`)."""
    found = [variable(frame, place) for place in (call.named, call.positional) if place is not None]
    if copies_of_unpacked and call.named is not None and found[0]:
        for value in found[:]:
            found += value.values() if type(value) is dict else value
    return found
