"""Threads that wait until others wake them, and so run nothing before: the idle workers of an executor, a consumer at
an empty queue, a producer at a full one, whoever waits for an event.

Such a thread is in the midst of one of two calls, without a time limit: it takes something out of an empty
`SimpleQueue`, or `threading.Condition` waits for a notification (as `queue.Queue`, `threading.Event` and
`concurrent.futures.Future` have it do). Only Python code ends either, by putting something in or by `notify`. So where
every other thread waits like that at one moment, none runs until this one wakes it: from then on all of them stand
still. (The main thread does not count as waiting: the handlers of signals run in it.)

From CPython 3.13 on a `SimpleQueue` hands what is put in straight to a thread that waits, and is empty all the while.
So only an executor's workers count as waiting for one: the executor knows how many of them are idle, and that one is
not any more when something is submitted.

At one moment: a thread that is looked at first may be woken by one that is looked at later and waits by then. So all
are looked at in a single call of C code, during which no other thread runs (`_at_one_moment`).
"""

from __future__ import annotations

import concurrent.futures.thread
import operator
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import compress, starmap
from queue import SimpleQueue
from types import FrameType
from typing import Any, NamedTuple

from pytc.interrupt import this_thread
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.sites import NotTrusted, flow_of
from pytc.ownership.bytecode.stack import first_of_stack
from pytc.ownership.cpython.interpreter import first_local, objects, states, variable, words

_LOCK = type(threading.Lock())
_METHODS: dict[str, Any] = {"get": SimpleQueue.get, "acquire": _LOCK.acquire}
_HANDS_OVER = sys.version_info >= (3, 13)
_WAIT, _WORKER = threading.Condition.wait.__code__, concurrent.futures.thread._worker.__code__
_WAKE = {threading.Condition.notify.__code__, concurrent.futures.ThreadPoolExecutor.submit.__code__}
"""Functions that have not yet noted down that they have woken a thread, while they run."""
_LOADS = {"LOAD_METHOD", "LOAD_ATTR"}
_CALLS = {"CALL", "PRECALL", "CALL_KW"}
"""Which of them a thread is at is a matter of the interpreter's version, and of how far it has specialised the code."""


class _Call(NamedTuple):
    """A call of one of these methods that a thread may be in. Its frame has the method on the stack, and above it what
    it is a method of, until the call returns and the result is put in the method's place."""

    method: Any
    place: int
    """Where the method is, counted from the first word of the frame."""
    words: Any
    """The frame as machine words."""
    objects: Any
    """The frame as objects."""


class _Question(NamedTuple):
    """Whether nobody has woken a thread."""

    call: tuple[Any, ...]
    """A function written in C and its arguments."""
    answer: Any
    """What that returns as long as nobody has."""


def all_wait(frames: Mapping[int, FrameType], threads: int) -> bool:
    """Whether at one moment all threads of these idents waited in these frames, and there were so many `threads` in
    all, this one included."""
    if threading.main_thread().ident in frames or _wakes(sys._getframe()):
        return False
    calls = [call for frame in frames.values() for call in _calls_in(frame)]
    called_on = _called_on(calls)
    if len(called_on) != len(frames):
        return False
    wanted = [_sleeps(frame, each, called_on) for frame, each in zip(frames.values(), called_on, strict=True)]
    questions = [each for each in wanted if each is not None]
    if len(questions) != len(frames):
        return False
    counted, (now,), methods, receivers, answers = _at_one_moment(calls, questions)
    del now[this_thread()]  # it would keep this frame, and all that the frames above it refer to
    return (
        len(counted) == threads
        and all(now.get(ident) is frame for ident, frame in frames.items())
        and methods == [id(call.method) for call in calls]
        and receivers == [id(each) for each in called_on]
        and answers == [each.answer for each in questions]
    )


# The interpreter lets another thread run between two instructions, or where C code waits. Each of the next two
# functions evaluates, by a single call of C code, C code that waits for nothing.


def _called_on(calls: Sequence[_Call]) -> list[Any]:
    """What the methods are called on, of those calls that threads are in. (Where a thread has gone on, the places on
    its stack may have what is gone by now. So only where the method is still in its place is the next one read.)"""
    methods = map(operator.getitem, [call.words for call in calls], [call.place for call in calls])
    are_there = map(operator.eq, methods, [id(call.method) for call in calls])
    return list(starmap(operator.getitem, compress([(call.objects, call.place + 1) for call in calls], are_there)))


def _at_one_moment(calls: Sequence[_Call], questions: Sequence[_Question]) -> list[list[Any]]:
    """The states of all threads; their frames; the addresses of the methods that are called and of what these are
    called on; and the answers to the questions."""
    stacks = [call.words for call in calls]
    parts = (
        states(),
        starmap(sys._current_frames, ((),)),
        map(operator.getitem, stacks, [call.place for call in calls]),
        map(operator.getitem, stacks, [call.place + 1 for call in calls]),
        starmap(operator.call, [each.call for each in questions]),
    )
    return list(map(list, parts))


def _sleeps(frame: FrameType, called_on: Any, all_called_on: Sequence[Any]) -> _Question | None:
    """What tells whether nobody has yet woken a thread that is in a call of a method of `called_on`, one of all those
    that threads are in; None if nothing does."""
    if type(called_on) is SimpleQueue:
        if not _HANDS_OVER:
            return _Question((called_on.empty,), True)
        executor = variable(frame, 0)() if frame.f_code is _WORKER else None
        if type(executor) is not concurrent.futures.ThreadPoolExecutor or executor._shutdown:
            return None
        idle = sum(each is called_on for each in all_called_on)
        return _Question((operator.getitem, executor._idle_semaphore.__dict__, "_value"), idle)
    condition = variable(frame, 0) if frame.f_code is _WAIT else None
    waiters = condition.__dict__.get("_waiters") if type(condition) is threading.Condition else None
    return _Question((operator.contains, waiters, called_on), True) if type(waiters) is deque else None


def _wakes(frame: FrameType | None) -> bool:
    """Whether this thread is in the midst of waking others (in a finaliser that runs there, say): one that it has woken
    may still be listed as waiting."""
    while frame is not None and frame.f_code not in _WAKE:
        frame = frame.f_back
    return frame is not None


def _calls_in(frame: FrameType) -> list[_Call]:
    """The call that a thread in `frame` may wait in; none if it is elsewhere."""
    try:
        flow = flow_of(frame.f_code)
    except NotTrusted:
        return []
    found = flow.once(_waiting_calls).get(flow.index(frame.f_lasti))
    if found is None:
        return []
    name, place = found
    return [_Call(_METHODS[name], first_local + place, words(frame), objects(frame))]


def _waiting_calls(flow: ControlFlow) -> dict[int, tuple[str, int]]:
    """The calls `.get()`, `.get(block=True)` and `.acquire()` in some code: by instruction, the method's name and where
    it is on the stack, counted from the first local."""
    found: dict[int, tuple[str, int]] = {}
    for n, instruction in enumerate(flow.instructions):
        height = flow.heights[n]
        if instruction.opname in _LOADS and instruction.argval in _METHODS and height is not None:
            place = first_of_stack(flow.code) + height - 1
            found.update(dict.fromkeys(_calls_behind(flow, n), (instruction.argval, place)))
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
