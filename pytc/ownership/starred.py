"""Calls with `*` and `**` that go through the interpreter's own C code, and what that keeps until they return.

On CPython 3.11 that is any such call, later one of a bound method. The code does nothing with the result, so what is
known of a direct call holds for it, too; and the tuple and the dictionary that it keeps can be found.

But one instruction does more than to call. Before, it makes a tuple of what is starred, if that is none; after, it lets
go of the function, the tuple and the dictionary, in this order. Either may run any code, even the very function that it
calls (`next_state(*states)`, where `next_state` is what `next` of `states` calls). So where a tuple had to be made, and
the stack does not tell whether it has been, nothing is built on the call. And what lies on the stack may be about to
die, which its reference count tells, or be gone, where something behind it is about to die: it is looked at from the
last that is let go of on.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Sequence
from types import FrameType, MethodType
from typing import Any

from pytc.ownership.interpreter import (
    copies_of_unpacked,
    first_local,
    getrefcount,
    lives,
    running,
    variable,
    waits_for_c,
    words,
)
from pytc.ownership.stack import Starred


def called_from_the_stack(frame: FrameType, call: Starred, below: FrameType) -> bool:
    """Whether the starred call that a frame is at calls the very function that runs in `below`, or a method of it,
    through the interpreter's own C code; where `keeps_a_tuple` says no, it may also be that it is about to."""
    if not waits_for_c(frame):
        return False  # nothing is left on the stack of what a Python function was called with
    keeps_tuple = keeps_a_tuple(frame, call)
    for kept in (call.named, call.positional if keeps_tuple else None):
        if kept is not None and not lives(words(frame)[first_local + kept]):
            return False
    place = _function(frame, call)
    address = words(frame)[first_local + place]
    if address == running(below):
        return True
    method: Any = None
    if not keeps_tuple:  # it may be gone
        method = next((young for young in gc.get_objects(0) if id(young) == address), None)
    elif lives(address):
        method = variable(frame, place)
    return type(method) is MethodType and id(method.__func__) == running(below)


def keeps_a_tuple(frame: FrameType, call: Starred) -> bool:
    """Whether a starred call of a frame that waits for C code was given a tuple, so that none had to be made."""
    if call.positional is None or call.local is None:
        return call.positional is not None
    value = variable(frame, call.local)
    return type(value) is tuple and words(frame)[first_local + call.positional] == id(value)


def kept_by(
    frame: FrameType, call: Starred, below: FrameType, args: tuple[Any, ...], before: Sequence[Any]
) -> list[Any]:
    """The tuple and the dictionary that a call that is `called_from_the_stack` keeps until it returns, and the values
    in them where the interpreter has a reference of its own to each: where there are keywords.

    `args` are the positional arguments of the function called, where that is known, and `before` what was found so far.
    """
    found: list[Any] = []
    if call.named is not None:
        found.append(variable(frame, call.named))
    if keeps_a_tuple(frame, call) and call.positional is not None:
        found.append(variable(frame, call.positional))
        if copies_of_unpacked and call.named is not None and found[0]:
            for value in found[:]:
                found += value.values() if type(value) is dict else value
    elif args:
        is_method = words(frame)[first_local + _function(frame, call)] != running(below)
        found += unpacked(args[is_method:], before)
    return found


def unpacked(items: tuple[Any, ...], found: Sequence[Any]) -> list[Any]:
    """The tuple of these items that the interpreter unpacks for a starred call, if it was made a moment ago, and is
    not among those that were found already.

    `f(*g())`: the stack has what `g` returned. If that was no tuple the interpreter has made one, and let go of what
    the stack has, so the memory there is not to be read. The function called may have made others since.
    """
    return young_tuples(items, 1, found)[-1:]


def young_tuples(items: tuple[Any, ...], references: int, found: Sequence[Any]) -> list[Any]:
    """The tuples of just these items among the youngest objects, from the oldest on, that have so many references and
    are not among those that were `found` already.

    Any of them will do for one that C code has: if it is not that one, then that one is accounted for nowhere, nor are
    its references to the items, and all of them are kept. But only one, since there is one; with as many references as
    that has, and for each call another one, so that no more of them are accounted for than there are.
    """
    if not items:
        return []
    young = gc.get_objects(0)
    tuples = [value for value in young if type(value) is tuple and len(value) == len(items) and value is not items]
    # As the collector sees them: some are still being filled (`tuple(map(step, ...))`), and to ask one of these for an
    # item that it has not got would crash.
    parts, wanted = gc.get_referents(*tuples), gc.get_referents(items)
    if len(parts) != len(tuples) * len(wanted):
        tuples = [value for value in tuples if len(gc.get_referents(value)) == len(wanted)]
        parts = gc.get_referents(*tuples)
    each = len(wanted)
    begins_alike = [k for k, part in enumerate(parts[::each]) if part is wanted[0]]
    alike = [tuples[k] for k in begins_alike if all(map(operator.is_, parts[k * each : (k + 1) * each], wanted))]
    known = {*map(id, found)}
    counts = [*map(getrefcount, alike)]
    # The three lists have each, and `getrefcount` had.
    return [
        value for value, count in zip(alike, counts, strict=True) if count == references + 4 and id(value) not in known
    ]


def _function(frame: FrameType, call: Starred) -> int:
    """The place of the function on the stack, counted from the first local."""
    return call.function if words(frame)[first_local + call.function] else call.function - 1
