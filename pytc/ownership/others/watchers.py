"""Who else may read a program's data in the midst of a call, or raise an exception there.

Another thread can at any moment, be it one of XLA's that runs an earlier program and calls Python for it. So can a
signal handler written in Python, a callback of the compiled program or of the garbage collector, the finalisers of what
JAX lets go of when a call begins, and users' objects that it compares then. A few threads of libraries are known to do
nothing of the kind (`service_threads`), and where all others wait to be woken, none does (`waiting_threads`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import gc
import operator
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from pytc.interrupt import SIGNALS, is_ctrl_c, this_thread
from pytc.jax_compat import callbacks
from pytc.jax_compat.running import let_go
from pytc.ownership.cpython import interpreter
from pytc.ownership.others import collector
from pytc.ownership.others.compared import odd_setting, odd_sharding
from pytc.ownership.others.service_threads import is_harmless, wakes_nobody
from pytc.ownership.others.signal_handlers import flags_of
from pytc.ownership.others.waiting_threads import all_wait
from pytc.ownership.outcome import Outcome
from pytc.provenance import package_of

_NOT_HANDLED = frozenset(map(id, (_signal.SIG_DFL, _signal.SIG_IGN, None)))
_last_handlers: list[Any] = []
"""The handlers of all signals when they were last looked at, if none of them counts as long as they are the same."""

_NO_FLAGS: frozenset[str | int] = frozenset()

_QUIET_COLLECTING = ("jax", "jaxlib", "hypothesis", "ipykernel")
"""Packages whose callbacks of the garbage collector only measure, or free memory of their own."""
_last_callbacks: list[Any] = []
"""The callbacks of the garbage collector when they were last looked at, if all of them are these packages'."""


class Onlookers(NamedTuple):
    """Who may read a slot before it is overwritten, besides this thread's next instructions, in words."""

    anywhere: str
    """Somebody who may have come by any slot; empty if nobody."""
    thread: str
    """Another thread, which may read what it can reach (`private`); empty if there is none."""
    flags: frozenset[str | int] = frozenset()
    """What handlers of signals may set, by name (`signal_handlers`)."""


NOBODY = Onlookers("", "")


def onlookers(outcome: Outcome, made: int) -> Onlookers:
    """Who may read a slot before it is overwritten; up to then so many objects are `made`, at the most.

    If there is nobody, garbage collections are put off until the result is returned, or `collector.resume` is called.
    Beside another thread, which may collect garbage at any moment, they are not: the finalisers, too, find only what
    can be reached.
    """
    if caller := onlooker_in_program(outcome):
        return Onlookers(caller, "")
    if not let_go():
        return Onlookers("JAX may let go of an object whose finaliser reads it", "")
    # Finalisers of cyclic garbage may look, and may change what is asked next.
    if not collector.pause(made):
        collector.resume()
        return Onlookers("a finaliser may read it, as garbage is collected whenever a few objects have been made", "")
    handler, flags = _handlers()
    anywhere, thread = _onlooker_anywhere(handler), onlooking_thread()
    if not anywhere and not thread:
        return Onlookers("", "", flags) if flags else NOBODY
    collector.resume()
    return Onlookers(anywhere, thread)


def onlooker_in_program(outcome: Outcome) -> str:
    """Who of them is a part of the program that is called; empty if nobody."""
    if outcome.calls_python:
        return (
            "the compiled program may call Python while it runs (jax.debug.print, a callback), or is called by way of "
            "Python (it has a `jax.Ref`), which may read it"
        )
    if outcome.doubt:
        return f"{outcome.doubt} may raise, or read it, as it puts the result together"
    return (
        "" if outcome.atomic else "the call may raise after it has donated, and the old value would then still be there"
    )


def onlooker_anywhere() -> str:
    """Who of them may do so whatever the program is, besides other threads; empty if nobody."""
    return _onlooker_anywhere(raising_handler())


def _onlooker_anywhere(handler: str) -> str:
    """The same, if this is the `raising_handler`."""
    if handler:
        return f"{handler} may read it"
    if not _collect_quietly(gc.callbacks):
        return "a callback of the garbage collector may read it"
    if setting := odd_setting():
        return f"JAX is set to {setting}, whose code it asks at each call, and that may read it"
    if sharding := odd_sharding():
        return f"arrays may be placed by a {sharding}, whose code JAX asks at each call, and that may read it"
    return ""


def _collect_quietly(callbacks: Sequence[Any]) -> bool:
    """Whether what is told of garbage collections are functions and methods of `_QUIET_COLLECTING`."""
    if len(callbacks) == len(_last_callbacks) and all(map(operator.is_, callbacks, _last_callbacks)):
        return True
    _last_callbacks.clear()
    functions = [each.__func__ if type(each) is MethodType else each for each in callbacks]
    quiet = all(type(f) is FunctionType and package_of(f.__globals__) in _QUIET_COLLECTING for f in functions)
    if quiet:
        _last_callbacks[:] = callbacks
    return quiet


def may_be_interrupted() -> bool:
    """Whether a Ctrl-C or another thread may raise an exception after a call made by the interpreter's own C code
    (`f(*args)`), which looks for these before the result is stored."""
    return id(_signal.getsignal(_signal.SIGINT)) not in _NOT_HANDLED or bool(onlooking_thread())


def onlooking_thread() -> str:
    """The thread that may read anything at any time, and raise exceptions in this one (`PyThreadState_SetAsyncExc`), in
    words; empty if there is none."""
    if not interpreter.alone() and (name := unknown_thread()):
        return f"another thread, {name}, may read it"
    if callbacks.are_there():
        return "another compiled program, which calls Python (jax.debug.print, a callback), may still run and read it"
    return ""


def raising_handler() -> str:
    """The handler of a signal that may raise an exception in the midst of a call, after it has donated; empty if there
    is none. (The default Ctrl-C, and what another thread raises, are put off until the result is stored.)"""
    return _handlers()[0]


def _handlers() -> tuple[str, frozenset[str | int]]:
    """The `raising_handler`; and, if there is none, what the handlers that only set flags may set, by name."""
    ctrl_c = _signal.getsignal(_signal.SIGINT)
    put_off = is_ctrl_c(ctrl_c)  # asked each time, as that of asyncio is one only at times
    known = put_off or id(ctrl_c) in _NOT_HANDLED
    if known and _last_handlers and all(map(operator.is_, map(_signal.getsignal, SIGNALS), _last_handlers)):
        return "", _NO_FLAGS
    handlers = [*map(_signal.getsignal, SIGNALS)]
    _last_handlers.clear()
    flags = loaded = _NO_FLAGS
    told_by_itself = True
    for number, handler in zip(SIGNALS, handlers, strict=True):
        if id(handler) not in _NOT_HANDLED and not (put_off and is_ctrl_c(handler)):
            found = flags_of(handler)
            if found is None or (flags := flags | found.set) & (loaded := loaded | found.loaded):
                return f"a handler of {_name_of(number)}", _NO_FLAGS
            told_by_itself = False  # but by the objects that it names
    if told_by_itself:
        _last_handlers[:] = handlers
    return "", flags


def _name_of(number: int) -> str:
    """`SIGTERM`; most of those for real-time programs have no names."""
    return next((each.name for each in signal.Signals if each == number), f"signal {number}")


def other_frames() -> dict[int, FrameType]:
    """Where the other threads are. (A function's own frame in one of its variables would live on, with all that the
    frames above it refer to, until garbage is collected.)"""
    frames = sys._current_frames()
    del frames[this_thread()]
    return frames


def unknown_thread() -> str:
    """The name of a thread that may read anything at any time, besides this one; empty if there is none."""
    frames = other_frames()
    threads = len([*interpreter.states()])
    if len(frames) + 1 != threads:
        return "one that is about to start or runs code written in C"
    odd = {ident: frame for ident, frame in frames.items() if not is_harmless(frame)}
    if not odd:
        return ""
    known = frames.keys() - odd.keys()
    if all(wakes_nobody(frames[ident]) for ident in known) and all_wait(odd, known, threads):
        return ""
    ident = next(iter(odd))
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return repr(thread.name) if thread is not None else f"number {ident}"
