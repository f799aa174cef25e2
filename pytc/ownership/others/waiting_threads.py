"""Threads that wait until others wake them, and run nothing before: an executor's idle workers, the reader of a queue.

Such a thread is in the midst of a call of one of two methods, without a time limit:

- `SimpleQueue.get`, and the queue is empty;
- `lock.acquire`, called by `Condition.wait` with a lock of its own, which is locked. `Queue.get` and `put`,
  `Event.wait`, `Future.result` and others wait like that. (That a condition lists a thread among those that wait tells
  nothing: `notify` may have been interrupted when it had unlocked the lock.)

Only Python code puts something into the queue or unlocks the lock, and from then on that is seen until the thread goes
on. So where every other thread waits like that at one moment, none runs until this one wakes it: all of them stand
still.

From CPython 3.13 on a `SimpleQueue` hands what is put in straight to a thread that waits, and is empty all the while.
So there, of those at a queue, only the workers of a `ThreadPoolExecutor` count, whose work is a `_WorkItem` each time,
and only while there is none in the whole process: each object refers to its class, so the class's reference count tells
(`_UNUSED`). What else a worker is handed is the `None` by which an executor that ends has its workers end; so it must
go on.

At one moment: a thread that is looked at first may be woken by one that is looked at later and waits by then. So all
are looked at in a single call of C code, during which no other thread runs (`_at_one_moment`).

The main thread never counts: signals wake it, whose handlers run there.
"""

from __future__ import annotations

import operator
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, thread
from itertools import compress, starmap, tee
from queue import SimpleQueue
from types import FrameType
from typing import Any, NamedTuple

from pytc.interrupt import in_main_thread, this_thread
from pytc.ownership.bytecode.analysed import NotTrusted, flow_of
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.stack import first_of_stack
from pytc.ownership.cpython.interpreter import counts_at, first_local, objects, states, variable, words

_WORK = thread._WorkItem


def _references_to_unused_class() -> int:
    """The reference count of a class like that of executors' work, if that has no objects, and nothing refers to it but
    its module and a variable here; 0 if it is not like other classes."""
    unused = type("Unused", (), {})
    module = {"Unused": unused}
    # Each of these refers to the class.
    is_alike = vars(unused).keys() & {"__dict__", "__weakref__"} <= vars(_WORK).keys()
    return sum(map(sys.getrefcount, [module["Unused"]])) if is_alike else 0


class _Way(NamedTuple):
    """A way to wait: in a call of a method of some class, as long as another one returns true of the object."""

    method: Any
    of: type
    still: Any


_Lock = type(threading.Lock())
_FOR_AN_ITEM = _Way(SimpleQueue.get, SimpleQueue, SimpleQueue.empty)
_FOR_A_NOTIFICATION = _Way(_Lock.acquire, _Lock, _Lock.locked)
_HANDS_OVER = sys.version_info >= (3, 13)
_WAIT = threading.Condition.wait.__code__
_WORKER = thread._worker.__code__
_UNUSED = _references_to_unused_class()
_where = operator.attrgetter("f_lasti")
_NAMES = {"get", "acquire"}
_LOADS = {"LOAD_METHOD", "LOAD_ATTR"}
_CALLS = {"CALL", "PRECALL", "CALL_KW"}
"""Which of them a thread is at is a matter of the interpreter's version, and of how far it has specialised the code."""


class _Call(NamedTuple):
    """A call of a method that a thread may be in. Its frame has the method on the stack, and above it what it is a
    method of, until the call returns and the result is put in the method's place."""

    way: _Way
    frame: FrameType
    at: int
    """Where the frame is in its code (`f_lasti`)."""
    place: int
    """Where the method is, counted from the first word of the frame."""
    words: Any
    """The frame as machine words."""
    objects: Any
    """The frame as objects."""


def all_wait(frames: Mapping[int, FrameType], others: Set[int], threads: int) -> bool:
    """Whether at one moment all threads of these idents waited in these frames, and there were so many `threads` in
    all: these, the `others`, and this one, which must be the main thread."""
    if not in_main_thread():
        return False
    calls = [call for frame in frames.values() for call in _calls_in(frame)]
    waited_for = _called_on(calls)
    if len(waited_for) != len(frames) or [*map(type, waited_for)] != [call.way.of for call in calls]:
        return False
    counted, (now,), at, methods, called_on, are_still, work = _at_one_moment(calls, waited_for)
    del now[this_thread()]  # it would keep this frame, and all that the frames above it refer to
    return (
        len(counted) == threads
        and now.keys() == frames.keys() | others
        and all(now[ident] is frame for ident, frame in frames.items())
        and at == [call.at for call in calls]
        and methods == [id(call.way.method) for call in calls]
        and called_on == [id(each) for each in waited_for]
        and all(are_still)
        and not (_HANDS_OVER and any(_may_be_handed_over(frame, work) for frame in frames.values()))
    )


# The interpreter lets another thread run between two instructions, or where C code waits. Each of the next two
# functions evaluates, by a single call of C code, C code that waits for nothing.


def _called_on(calls: Sequence[_Call]) -> list[Any]:
    """What the methods are called on, of those calls that threads are in. (Where a thread has gone on, the places on
    its stack may have what is gone by now. So only where the method is still in its place is the next one read; and
    there may be one that dies just now, since the call lets go of it before it puts the result in the method's
    place.)"""
    methods = map(operator.getitem, [call.words for call in calls], [call.place for call in calls])
    are_there, too = tee(map(operator.eq, methods, [id(call.way.method) for call in calls]))
    addresses: Any = starmap(operator.getitem, compress([(call.words, call.place + 1) for call in calls], too))
    there = compress([(call.objects, call.place + 1) for call in calls], are_there)
    return list(starmap(operator.getitem, compress(there, counts_at(addresses))))


def _at_one_moment(calls: Sequence[_Call], waited_for: Sequence[Any]) -> list[list[Any]]:
    """The states of all threads; their frames; where those of the calls are in their code; the addresses of the methods
    that are called and of what these are called on; whether that is still to be waited for; and the reference count of
    the class of executors' work."""
    stacks = [call.words for call in calls]
    parts = (
        states(),
        starmap(sys._current_frames, ((),)),
        map(_where, [call.frame for call in calls]),
        map(operator.getitem, stacks, [call.place for call in calls]),
        map(operator.getitem, stacks, [call.place + 1 for call in calls]),
        map(operator.call, [call.way.still for call in calls], waited_for),
        map(sys.getrefcount, [_WORK]),
    )
    return list(map(list, parts))


def _is_worker(frame: FrameType) -> bool:
    """Whether a thread in this frame is an executor's worker that is not at work."""
    return frame.f_code is _WORKER and frame.f_globals is vars(thread)


def _may_be_handed_over(frame: FrameType, work: Sequence[int]) -> bool:
    """Whether a thread in this frame that waits at a `SimpleQueue` may have been handed something by it already: work,
    of whose class the reference count is `[_UNUSED]` if there is none; what tells it to end; or anything, by an
    executor of a class of users'. (Asked once it has been found waiting: who tells it to end notes that before.)"""
    if not _is_worker(frame):
        return False
    if work != [_UNUSED] or thread._WorkItem is not _WORK or thread._shutdown:
        return True
    reference = variable(frame, 0)
    executor = reference() if type(reference) is weakref.ref else None
    return type(executor) is not ThreadPoolExecutor or bool(executor._shutdown)


def _calls_in(frame: FrameType) -> list[_Call]:
    """The call that a thread in `frame` may wait in; none if it is elsewhere."""
    at = frame.f_lasti  # read once: the thread may go on
    if frame.f_code is _WAIT:
        way = _FOR_A_NOTIFICATION
    elif not _HANDS_OVER or _is_worker(frame):
        way = _FOR_AN_ITEM
    else:
        return []
    try:
        flow = flow_of(frame.f_code)
    except NotTrusted:
        return []
    place = flow.once(_waiting_calls).get(flow.index(at))
    return [] if place is None else [_Call(way, frame, at, first_local + place, words(frame), objects(frame))]


def _waiting_calls(flow: ControlFlow) -> dict[int, int]:
    """The calls `.get()`, `.get(block=True)` and `.acquire()` in some code: by instruction, where the method is on the
    stack, counted from the first local."""
    found: dict[int, int] = {}
    for n, instruction in enumerate(flow.instructions):
        height = flow.heights[n]
        if instruction.opname in _LOADS and instruction.argval in _NAMES and height is not None:
            found.update(dict.fromkeys(_calls_after(flow, n), first_of_stack(flow.code) + height - 1))
    return found


def _calls_after(flow: ControlFlow, at: int) -> list[int]:
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
