"""Ctrl-C between the moment a call has donated its arguments and the moment the caller has stored the result.

There an interrupt would leave `self.state`, or a notebook's `state`, naming an array that is gone. So it is put off:
the result is delivered first, and the interrupt strikes right after the caller's store.

What makes this possible is where CPython looks for signals: when a Python function starts, at a jump backwards, and
after a call of a C function; not when a Python function returns, nor at a store. Hence two steps.

- What the program returns is put into a list by C code alone (`list.extend` over `itertools.starmap`), so that there
  is no instruction between the two at which it could be lost.
- The signal is raised anew by an instruction that is no call, a subscript, followed by nothing but returns.

The first call of a program returns through Python code of JAX. If it has been compiled ahead, that takes a moment, in
which the signal is only noted (`put_off`).
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_ROOM = 200
"""So many frames are more than JAX's Python code has between an execution and the return of its results."""


class _RaiseSignal:
    """`_RaiseSignal()[number]` raises the signal; an interpreter looks for it at a later instruction."""

    __getitem__ = staticmethod(_thread.interrupt_main)


_RAISE_SIGNAL = _RaiseSignal()


def call_into(landed: list[Any], fun: Callable[..., Any], args: Sequence[Any]) -> None:
    """`landed.append(fun(*args))` without an instruction in between; `fun` is written in C."""
    landed.extend(itertools.starmap(fun, (args,)))


def deliver(make: Callable[[], Any], raised: BaseException) -> Any:
    """What `make` returns; an interrupt that was raised follows. Another one meanwhile is the same one.

    Where the stack was full there is no more to tell: the program has run, and what it said of itself is lost.
    """
    if not isinstance(raised, KeyboardInterrupt):
        return make()
    while True:
        try:
            result = make()
            break
        except KeyboardInterrupt:
            continue
    _RAISE_SIGNAL[signal.SIGINT]  # from here on nothing but returns
    return result


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """A Ctrl-C inside, or another signal with a handler in Python, strikes at the end. (Handlers run in the main thread
    alone.)"""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = [(number, handler) for number in signal.valid_signals() if callable(handler := signal.getsignal(number))]
    came: list[int] = []
    try:
        for number, _ in handlers:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        while handlers:
            try:
                signal.signal(*handlers[-1])
                handlers.pop()
            except KeyboardInterrupt:
                came.append(signal.SIGINT)
        for each in came:
            signal.raise_signal(each)


def has_room(frames: int = _ROOM) -> bool:
    """Whether the stack is not nearly full, so that it cannot be a `RecursionError` that loses results."""
    try:
        return frames == 0 or has_room(frames - 1)
    except RecursionError:
        return False
