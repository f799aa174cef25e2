"""Exceptions from outside between the moment a call has donated its arguments and the moment the caller has stored the
result: by Ctrl-C, or from another thread (`PyThreadState_SetAsyncExc`).

There one would leave `self.state`, or a notebook's `state`, naming an array that is gone. So it is put off: the result
is delivered first, and the exception strikes right after the caller's store.

What makes this possible is where CPython looks for signals and for exceptions from other threads: when a Python
function starts, at a jump backwards, and after a call of a C function; not when a Python function returns, nor at a
store. Hence two steps.

- What the program returns is put into a list by C code alone (`list.extend` over `itertools.starmap`), so that there
  is no instruction between the two at which it could be lost. So a program returns only what JAX makes by C++ code
  alone: no keys and no named tuples (`emit`).
- The exception is raised anew by an instruction that is no call, a subscript, followed by nothing but returns.

The first call of a program returns through Python code of JAX. If it has been compiled ahead, that takes a moment, in
which a signal is only noted (`put_off`). An exception from another thread cannot be put off there.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import contextlib
import ctypes
import functools
import inspect
import itertools
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Made = TypeVar("Made")

_ROOM = 200
"""More frames than JAX's Python code has between an execution and the return of its results."""

_MOST_AWAITED = 64
"""The handler of `asyncio.run` is taken for one of a user's own where it would cancel more tasks and futures than this:
to follow more of them at each call would take too long."""

in_main_thread: Callable[[], int] = ctypes.pythonapi._PyOS_IsMainThread
"""Whether handlers of signals run in this thread. (`threading` takes each greenlet of gevent for a thread.)"""

_sigaction: Callable[..., int] | None = None
"""The system's function, which reads or sets what it does with a signal; Windows has none."""
with contextlib.suppress(AttributeError):
    _sigaction = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
        ("sigaction", ctypes.pythonapi)
    )
_Action = ctypes.c_char * 1024
"""More bytes than what that reads and sets has on any system. (One type: each that is made becomes garbage.)"""
SIGNALS = tuple(_signal.valid_signals())
"""All that there are, by number. (`_signal` is the part of `signal` in C, which makes no enumerations of numbers.)"""

SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Flags of code whose calls return before it has run to its end."""
_LIBRARIES = ("pytc", "jax", "jaxlib", "numpy")
"""The packages whose code runs while pytc looks at something, besides the standard library."""
_USUAL = (
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    RuntimeError,
    ArithmeticError,
    AssertionError,
    MemoryError,
    ctypes.ArgumentError,
)
"""What these raise then. (The last is what `ctypes` makes of whatever is raised as it looks at an argument, such as a
`RecursionError`.)"""


class _RaiseSignal:
    """`_RaiseSignal()[number]` raises the signal; an interpreter looks for it at a later instruction."""

    __getitem__ = staticmethod(_thread.interrupt_main)


_RAISE_SIGNAL = _RaiseSignal()

this_thread: Callable[[], int] = ctypes.PYFUNCTYPE(ctypes.c_ulong)(("PyThread_get_thread_ident", ctypes.pythonapi))
"""This thread by the number that the interpreter has for it. (gevent's `threading.get_ident` tells a greenlet's.)"""


class _RaiseInThread:
    """`_RaiseInThread()[thread] = kind` raises an exception of a class in a thread, at a later instruction. (By a
    function object of our own: users give that of `ctypes.pythonapi` what types of arguments they like.)"""

    __setitem__ = staticmethod(
        ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
            ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
        )
    )


_RAISE_IN_THREAD = _RaiseInThread()


def call_into(landed: list[Any], fun: Callable[..., Any], args: Sequence[Any]) -> None:
    """`landed.append(fun(*args))` without an instruction in between; `fun` is written in C."""
    landed.extend(itertools.starmap(fun, (args,)))


def _is_of_full(raised: BaseException) -> bool:
    """Whether it says that the stack, or the memory, is exhausted."""
    return type(raised) is RecursionError or (type(raised) is MemoryError and not _handlers(raised))


def _is_by_ctrl_c(raised: BaseException) -> bool:
    """Whether it is a Ctrl-C. Not what a user's own signal handler has raised, which may tell it apart from another
    one."""
    if type(raised) is not KeyboardInterrupt or _handlers(raised) - {"asyncio.runners"}:
        return False
    return is_ctrl_c(signal.getsignal(signal.SIGINT)) and bool(in_main_thread())


def is_ctrl_c(handler: Any) -> bool:
    """Whether a handler of signals is the default one of Ctrl-C, or that of `asyncio.run`, which cancels the main task,
    and the second time does as the default one.

    The latter only while that runs no code of users: the main task, its loop and all that it waits for are asyncio's
    own.
    """
    return handler is signal.default_int_handler or _cancels_quietly(handler)


def _cancels_quietly(handler: Any) -> bool:
    asyncio: Any = sys.modules.get("asyncio")
    function = getattr(handler, "func", None)
    if asyncio is None or type(handler) is not functools.partial or type(function) is not types.MethodType:
        return False
    runner, task = function.__self__, handler.keywords.get("main_task")
    if type(runner) is not asyncio.Runner or function.__func__ is not vars(asyncio.Runner)["_on_sigint"]:
        return False
    loop = vars(runner).get("_loop")
    if type(loop).__module__.partition(".")[0] not in ("asyncio", "uvloop") or _has_methods_of_its_own(loop):
        return False
    waiting: list[Any] = [task]
    asked = 0
    while waiting:
        each = waiting.pop()
        asked += 1
        if asked > _MOST_AWAITED or _has_methods_of_its_own(each):
            return False
        if type(each) is asyncio.Task:
            waiting += [] if each._fut_waiter is None else [each._fut_waiter]
        elif type(each) is asyncio.tasks._GatheringFuture:
            waiting += each._children[: _MOST_AWAITED + 1]
        elif type(each) is not asyncio.Future:
            return False
        if each.get_loop() is not loop:  # who asks it to call back those that wait
            return False
    return True


def _has_methods_of_its_own(value: Any) -> bool:
    """Whether an object has something in place of a method of its class."""
    return any(callable(getattr(type(value), name, None)) for name in getattr(value, "__dict__", ()))


def is_from_outside(raised: Exception) -> bool:
    """Whether an exception came from a handler of a signal, or by `PyThreadState_SetAsyncExc` from another thread, and
    not out of the code that was called.

    A handler is recognised by one of its arguments: the frame that was interrupted, which is the one below its own. An
    exception from another thread may be raised anywhere. It is recognised by its class, if only libraries were running,
    and these do not usually raise that class.
    """
    if _handlers(raised):
        return True
    package = [_module(frame) for frame in _frames(raised)][-1].partition(".")[0]
    return (
        (package in _LIBRARIES or package in sys.stdlib_module_names or package.startswith("namedtuple_"))
        and not isinstance(raised, _USUAL)
        and type(raised).__module__.partition(".")[0] not in _LIBRARIES
    )


def is_from_handler(raised: Exception) -> bool:
    """Whether an exception came from a handler of a signal, out of code that may itself raise anything."""
    return bool(_handlers(raised))


def _frames(raised: BaseException) -> Iterator[types.FrameType]:
    """Where an exception has been, from here to where it was raised."""
    traceback = raised.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _module(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _handlers(raised: BaseException) -> set[str]:
    """The modules of the handlers of signals that an exception has gone through."""
    frames = [frame for frame in _frames(raised) if _module(frame).partition(".")[0] != "pytc"]
    return {_module(frame) for frame in frames if _is_handlers(frame)}


def _is_handlers(frame: types.FrameType) -> bool:
    """Whether it is the frame of a function that was given the frame below its own, by itself or among `*args`."""
    code = frame.f_code
    if code.co_flags & SUSPENDS:
        return False  # and CPython 3.13.0 crashes when asked for the variables of a generator that is gone
    arguments = code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS) + code.co_kwonlyargcount
    given = [frame.f_locals.get(name) for name in code.co_varnames[:arguments]]
    given += [part for each in given if type(each) is tuple for part in each]
    return frame.f_back is not None and any(each is frame.f_back for each in given)


def deliver(landed: Sequence[Any], *raised: BaseException) -> tuple[Any, ...]:
    """The result of a call that has landed, alone in a tuple, though something was raised, and more while that was
    handled; what came from outside follows, after the caller's store. An empty tuple where the call has not landed, or
    must raise.

    Another exception may strike in here. Nothing is lost by that: whoever calls this calls it again, with that one,
    too. (A loop could not do that, since the interpreter looks for signals at each jump backwards, where no handler
    would be.)

    What is raised once the results have landed is a Ctrl-C, or that the stack or memory is full, or what a handler of a
    signal has raised; or, if the code that puts the results together is `certain` not to raise, it comes from another
    thread, which cannot have given it anything but its class. A full stack, or memory, is not raised again: the program
    has run and its results are there, so nothing is left to report.

    Raises what was raised while something else was handled if the call has not landed.
    """
    if len(landed) < 3:
        if len(raised) > 1:
            raise raised[-1]
        return ()
    emitted, handed_back, results = landed
    others = [each for each in raised if not _is_of_full(each)]
    from_threads = [each for each in others if not _is_by_ctrl_c(each)]
    if from_threads and (not emitted.certain or any(_handlers(each) for each in from_threads)):
        return ()
    thread = this_thread()
    delivered = (emitted.result(results, handed_back),)
    if len(from_threads) < len(others):
        _RAISE_SIGNAL[signal.SIGINT]  # from here on nothing but returns
    if from_threads:
        _RAISE_IN_THREAD[thread] = type(from_threads[-1])  # there is room for one
    return delivered


def put_off(make: Callable[[], Made]) -> Made:
    """What `make` returns. A Ctrl-C meanwhile, or another signal with a handler in Python, strikes at the end.
    (Handlers run in the main thread alone.)

    Raises what a handler raises then. If several signals came, those whose turn it is not yet strike right after that.
    """
    if not in_main_thread():
        return make()
    handlers = [(number, handler) for number in SIGNALS if callable(handler := _signal.getsignal(number))]
    came: list[Any] = []
    raised: list[BaseException] = []
    try:
        for number, _ in handlers:
            _handle(number, lambda number, _: came.append(number))
        return make()
    finally:
        while handlers:
            number, handler = handlers[-1]
            try:
                if _signal.getsignal(number) is not handler:
                    _handle(number, handler)
                handlers.pop()
            except BaseException as error:  # noqa: BLE001 - by a handler that is back; first, all of them are to be
                raised.append(error)
        try:
            _call_handlers(came)
        finally:
            if raised:
                raise raised[0]


def _call_handlers(came: list[Any]) -> None:
    """Call the handlers of signals that have come. They are not raised again, of which the file descriptor that they
    are written to would tell once more (`signal.set_wakeup_fd`, which `asyncio` reads). Only if a handler raises, the
    others' turn comes when the interpreter looks the next time."""
    while came:
        number = came.pop(0)
        handler = _signal.getsignal(number)
        try:
            if callable(handler):
                handler(number, sys._getframe())
        except BaseException:
            list(map(_thread.interrupt_main, came))  # all are noted by C code before the interpreter looks for any
            raise


def _handle(number: int, handler: Any) -> None:
    """Have a signal handled by a function of Python's. Unlike `signal.signal` this leaves the system's own handler and
    its flags as they are: they may be a library's, which calls Python's in turn (`faulthandler.register`), or asked for
    (`signal.siginterrupt`)."""
    before = _Action()
    put_back = _sigaction if _sigaction is not None and _sigaction(number, None, before) == 0 else None
    try:
        _signal.signal(number, handler)
    finally:
        if put_back is not None:
            put_back(number, before, None)


def has_room(frames: int = _ROOM) -> bool:
    """Whether the stack is not nearly full, so that it cannot be a `RecursionError` that loses results."""
    try:
        return frames == 0 or has_room(frames - 1)
    except RecursionError:
        return False
