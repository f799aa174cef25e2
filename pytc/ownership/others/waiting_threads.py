"""Threads that wait for something to do, and so run nothing before they are given it: the idle workers of an executor.

Such a thread is in the midst of `SimpleQueue.get`, without a time limit, and the queue is empty. Only Python code puts
something in, and up to CPython 3.12 the queue is not empty then until the thread goes on. So where every other thread
waits like that at one moment, none runs until this one wakes it: from then on all of them stand still.

From CPython 3.13 on a `SimpleQueue` hands what is put in straight to a thread that waits, and is empty all the while.
So there only the workers of a `ThreadPoolExecutor` count, whose work is a `_WorkItem` each time, and only while there
is none in the whole process: each object refers to its class, so the class's reference count tells (`_UNUSED`). What
else a worker is handed is the `None` by which an executor that ends has its workers end; so these must go on.

At one moment: a thread that is looked at first may be woken by one that is looked at later and waits by then. So all
are looked at in a single call of C code, during which no other thread runs (`_at_one_moment`).

No other way to wait will do. A `threading.Condition` lists who waits, but an exception in `notify` leaves those listed
whom it has woken already. And the main thread is woken by signals, whose handlers run there.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, thread
from itertools import compress, starmap
from queue import SimpleQueue
from types import FrameType
from typing import Any, NamedTuple

from pytc.interrupt import in_main_thread, this_thread
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.sites import NotTrusted, flow_of
from pytc.ownership.bytecode.stack import first_of_stack
from pytc.ownership.cpython.interpreter import first_local, objects, states, variable, words


def _references_to_unused_class() -> int:
    """The reference count of a class that has no objects, and that only its module names."""
    module = vars(type("_Module", (), {"Unused": type("Unused", (), {})}))
    return sum(map(sys.getrefcount, [module["Unused"]]))


_HANDS_OVER = sys.version_info >= (3, 13)
_WORKER = thread._worker.__code__
_UNUSED = _references_to_unused_class()
_GET: Any = SimpleQueue.get
_LOADS = {"LOAD_METHOD", "LOAD_ATTR"}
_CALLS = {"CALL", "PRECALL", "CALL_KW"}
"""Which of them a thread is at is a matter of the interpreter's version, and of how far it has specialised the code."""


class _Call(NamedTuple):
    """A call of a method `get` that a thread may be in. Its frame has the method on the stack, and above it what it is
    a method of, until the call returns and the result is put in the method's place."""

    place: int
    """Where the method is, counted from the first word of the frame."""
    words: Any
    """The frame as machine words."""
    objects: Any
    """The frame as objects."""


def all_wait(frames: Mapping[int, FrameType], threads: int) -> bool:
    """Whether at one moment all threads of these idents waited in these frames, and there were so many `threads` in
    all, this one, which must be the main thread, included."""
    if not in_main_thread() or (_HANDS_OVER and not all(_is_worker(frame) for frame in frames.values())):
        return False
    calls = [call for frame in frames.values() for call in _calls_in(frame)]
    queues = _called_on(calls)
    if len(queues) != len(frames) or any(type(queue) is not SimpleQueue for queue in queues):
        return False
    counted, (now,), methods, called_on, are_empty, work = _at_one_moment(calls, queues)
    del now[this_thread()]  # it would keep this frame, and all that the frames above it refer to
    return (
        len(counted) == threads
        and all(now.get(ident) is frame for ident, frame in frames.items())
        and methods == [id(_GET)] * len(calls)
        and called_on == [id(queue) for queue in queues]
        and all(are_empty)
        and not (_HANDS_OVER and (work != [_UNUSED] or any(_may_end(frame) for frame in frames.values())))
    )


# The interpreter lets another thread run between two instructions, or where C code waits. Each of the next two
# functions evaluates, by a single call of C code, C code that waits for nothing.


def _called_on(calls: Sequence[_Call]) -> list[Any]:
    """What the methods are called on, of those calls that threads are in. (Where a thread has gone on, the places on
    its stack may have what is gone by now. So only where the method is still in its place is the next one read.)"""
    methods = map(operator.getitem, [call.words for call in calls], [call.place for call in calls])
    are_there = map(operator.eq, methods, [id(_GET)] * len(calls))
    return list(starmap(operator.getitem, compress([(call.objects, call.place + 1) for call in calls], are_there)))


def _at_one_moment(calls: Sequence[_Call], queues: Sequence[Any]) -> list[list[Any]]:
    """The states of all threads; their frames; the addresses of the methods that are called and of what these are
    called on; whether the queues are empty; and how many references there are to the class of executors' work."""
    stacks = [call.words for call in calls]
    parts = (
        states(),
        starmap(sys._current_frames, ((),)),
        map(operator.getitem, stacks, [call.place for call in calls]),
        map(operator.getitem, stacks, [call.place + 1 for call in calls]),
        map(SimpleQueue.empty, queues),
        map(sys.getrefcount, [thread._WorkItem]),
    )
    return list(map(list, parts))


def _is_worker(frame: FrameType) -> bool:
    """Whether a thread in this frame is an executor's worker that is not at work."""
    return frame.f_code is _WORKER and frame.f_globals is vars(thread)


def _may_end(worker: FrameType) -> bool:
    """Whether the executor of a worker, which this has the frame of, may have told it to end; or is of a class of
    users', and may have handed it anything. (Asked once the worker has been found waiting: who has told it, has noted
    that before.)"""
    reference = variable(worker, 0)
    executor = reference() if type(reference) is weakref.ref else None
    return type(executor) is not ThreadPoolExecutor or executor._shutdown or thread._shutdown


def _calls_in(frame: FrameType) -> list[_Call]:
    """The call that a thread in `frame` may wait in; none if it is elsewhere."""
    try:
        flow = flow_of(frame.f_code)
    except NotTrusted:
        return []
    place = flow.once(_waiting_calls).get(flow.index(frame.f_lasti))
    return [] if place is None else [_Call(first_local + place, words(frame), objects(frame))]


def _waiting_calls(flow: ControlFlow) -> dict[int, int]:
    """The calls `.get()` and `.get(block=True)` in some code: by instruction, where the method is on the stack, counted
    from the first local."""
    found: dict[int, int] = {}
    for n, instruction in enumerate(flow.instructions):
        height = flow.heights[n]
        if instruction.opname in _LOADS and instruction.argval == "get" and height is not None:
            found.update(dict.fromkeys(_calls_behind(flow, n), first_of_stack(flow.code) + height - 1))
    return found


def _calls_behind(flow: ControlFlow, at: int) -> list[int]:
    """The instructions that call the method which instruction `at` loads, without arguments or with `block=True`; none
    if it is called otherwise."""
    given: list[Any] = []
    names: Any = None
    for n in range(at + 1, len(flow.instructions)):
        instruction = flow.instructions[n]
        if instruction.opname == "KW_NAMES":
            names = flow.code.co_consts[instruction.arg or 0]
        elif instruction.opname == "LOAD_CONST":
            given.append(instruction.argval)
        elif instruction.opname in _CALLS:
            if instruction.opname == "CALL_KW":
                names = given.pop()
            if given and (given != [True] or names != ("block",)):
                return []
            return [n, n + 1] if instruction.opname == "PRECALL" else [n]
        else:
            break
    return []
