"""Exceptions that another thread raises in the midst of a call: the caller has stored the result before they strike.

While there are other threads, state that an exception handler reads is reused all the same.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import ctypes
import dataclasses
import gc
import itertools
import random
import signal
import threading
import time
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax.tree_util import register_dataclass

import pytc
from pytc.calls import sites
from pytc.emit import Emitted, jit
from tests.threads import FOR_LONG

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

raise_in = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)
"""Of a class, in a thread."""


class Timeout(Exception):
    """What somebody raises at the end of some time."""


class Interrupt(KeyboardInterrupt):
    """A Ctrl-C of somebody's own."""


@pytest.fixture(autouse=True)
def _another_thread():
    """One that might raise an exception in this one."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(FOR_LONG,))
    thread.start()
    yield
    done.set()
    thread.join()


def compiled():
    """A step of which nothing is known yet."""
    return pytc.compile(lambda state: {name: array + 1 for name, array in state.items()})


def zeros():
    return {"a": jnp.zeros(64), "b": jnp.zeros(32)}


# From CPython 3.12 on, no handler in the function is told of what is raised at the jump at the end of a loop. So the
# loops end with a call.


def is_caught(step, state, seen):
    try:
        for _ in range(10**9):
            state = step(state)
            seen(state)
    except BaseException as error:
        return state, type(error)


def is_passed_on(step, state, seen):
    try:
        for _ in range(10**9):
            state = step(state)
            seen(state)
    finally:
        seen(state, last=True)


def is_suppressed(step, state, seen):
    with contextlib.suppress(BaseException):
        for _ in range(10**9):
            state = step(state)
            seen(state)
    return state, None


def is_caught_around_a_helper(step, state, seen):
    def helper(given):
        return step(given)

    try:
        for _ in range(10**9):
            state = helper(state)
            seen(state)
    except BaseException as error:
        return state, type(error)


CALLERS = [is_caught, is_passed_on, is_suppressed, is_caught_around_a_helper]


class Seen:
    """What a loop has seen of its state: where it was, and what was in it at the end."""

    def __init__(self, strike_at=None, strike=None):
        self.where = []
        self.strike_at, self.strike = strike_at, strike
        self.last = None
        self.calls = 0
        self.call_into = jit.call_into

    def __call__(self, state, last=False):
        if last:
            self.last = state
            return
        self.where.append(state["a"].unsafe_buffer_pointer())
        self.calls += 1
        if self.calls == self.strike_at:
            jit.call_into = self.struck
        elif self.calls == 100:
            raise_in(_thread.get_ident(), Timeout)

    def struck(self, landed, fun, args):
        jit.call_into = self.call_into
        self.call_into(landed, fun, args)
        self.strike()


@pytest.mark.parametrize("caller", CALLERS)
def test_state_that_a_handler_reads_is_reused(caller):
    seen = Seen()
    with contextlib.suppress(Timeout):
        caller(compiled(), zeros(), seen)
    assert len(seen.where) == 100
    assert len(set(seen.where[1:])) == 1


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    "kind", [Timeout, Interrupt, KeyboardInterrupt, SystemExit, KeyError, ValueError, RuntimeError]
)
def test_the_result_is_stored_first(caller, kind):
    """The exception is raised when the results have landed, the worst moment."""
    seen = Seen(10, lambda: raise_in(_thread.get_ident(), kind))
    state, raised = None, None
    try:
        state, raised = caller(compiled(), zeros(), seen)
    except kind as error:
        state, raised = seen.last, type(error)
    assert seen.calls in (10, 11)  # a call that is struck is the eleventh, and `seen` may be told of it or not
    assert state["a"].tolist() == [11] * 64
    assert state["b"].tolist() == [11] * 32
    assert raised in (kind, None)
    assert len(set(seen.where[1:])) == 1


def test_beside_a_ctrl_c():
    """Both come, one after the other."""

    def both():
        # At once: the interpreter looks when `deque` is done.
        strikes = itertools.starmap(raise_in, [(_thread.get_ident(), Timeout)])
        collections.deque(itertools.chain(strikes, map(_thread.interrupt_main, [signal.SIGINT])), maxlen=0)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    step = compiled()
    try:
        state, first = is_caught(step, zeros(), Seen(5, both))
        second = None
        try:
            for _ in range(1000):
                time.monotonic()
        except (KeyboardInterrupt, Timeout) as error:
            second = type(error)
    except (KeyboardInterrupt, Timeout) as error:  # before the state was returned
        pytest.fail(f"{error!r} came too early")
    finally:
        signal.signal(signal.SIGINT, before)
    assert {first, second} == {KeyboardInterrupt, Timeout}
    assert state["a"].tolist() == [6] * 64


def first_call_is_lost(step):
    """Whether the state is gone when the first call's results are lost in JAX's Python code, through which it returns.

    The program is compiled ahead, since a handler reads the state."""
    ahead = Emitted.compile

    def compiles(emitted, leaves):
        ahead(emitted, leaves)
        jitted = emitted._jitted

        def struck(*args, **kwargs):
            result = jitted(*args, **kwargs)
            raise_in(_thread.get_ident(), Timeout)
            return time.monotonic() and result

        emitted._jitted = struck

    with mock.patch.object(Emitted, "compile", compiles):
        state, _ = is_caught(step, zeros(), Seen())
    return any(array.is_deleted() for array in state.values())


def test_the_first_call_returns_through_python():
    assert not first_call_is_lost(compiled())


def test_that_a_first_call_could_be_lost():
    with mock.patch.object(sites.ownership, "onlooking_thread", return_value=""):
        assert first_call_is_lost(compiled())


def starred(step, state):
    try:
        for _ in range(10):
            state = step(*(state,))
        time.monotonic()
    except Timeout:
        pass
    return state


def test_behind_the_interpreters_own_c_code():
    """There it looks for exceptions before the result is stored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    call_into, calls = jit.call_into, []

    def struck(landed, fun, args):
        call_into(landed, fun, args)
        calls.append(None)
        if len(calls) == 5:
            raise_in(_thread.get_ident(), Timeout)

    try:
        with mock.patch.object(jit, "call_into", struck):
            state = starred(compiled(), zeros())
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(calls) == 5
    assert state["a"].tolist()[0] in (5, 6)


@register_dataclass
@dataclasses.dataclass
class Doubtful:
    a: jax.Array

    def __post_init__(self):
        if self.a is not None and isinstance(self.a, tuple):
            raise TypeError(self.a)

    def __getitem__(self, name):
        return getattr(self, name)


def test_a_result_that_might_raise_for_itself_is_not_put_together_again():
    seen = Seen(10, lambda: raise_in(_thread.get_ident(), Timeout))
    state, raised = is_caught(pytc.compile(lambda state: Doubtful(state.a + 1)), Doubtful(jnp.zeros(8)), seen)
    assert raised is Timeout
    assert state.a.tolist() == [10] * 8


def struck_at_random(step, state, times, kinds):
    """How often a loop was struck by another thread at a moment that nobody knows, and whether its state was gone
    then; and how often it was where it had been before."""
    numbers, here = random.Random(0), _thread.get_ident()
    begun, ended = threading.Event(), threading.Event()

    def attack():
        for _ in range(times):
            begun.wait()
            begun.clear()
            time.sleep(numbers.uniform(0, 0.003))
            raise_in(here, numbers.choice(kinds))
            while not ended.wait(0.05):
                raise_in(here, Timeout)  # the last one was lost in a finaliser, or the like
            ended.clear()

    def loop(state):
        try:
            begun.set()
            for _ in range(10**9):
                state = step(state)
                time.monotonic()
        except (Timeout, ValueError, KeyboardInterrupt):
            return state

    gone = in_place = 0
    thread = threading.Thread(target=attack)
    thread.start()
    for _ in range(times):
        where = state["a"].unsafe_buffer_pointer()
        state = loop(state)
        ended.set()
        gone += any(array.is_deleted() for array in state.values())
        in_place += where == state["a"].unsafe_buffer_pointer()
    thread.join()
    return gone, in_place


def struck(kinds):
    step = compiled()
    gc.disable()  # JAX's callback of the garbage collector loses what is raised in it
    try:
        with contextlib.suppress(Timeout):
            is_caught(step, zeros(), Seen())
        return struck_at_random(step, zeros(), 100, kinds)
    finally:
        gc.enable()


def test_at_any_moment():
    gone, in_place = struck([Timeout, KeyboardInterrupt])
    assert gone == 0
    assert in_place > 80


def test_at_any_moment_by_what_objects_may_raise_too():
    """In the midst of the proof it is taken for theirs: then nothing is proven, and the state is copied."""
    gone, _ = struck([ValueError])
    assert gone == 0
