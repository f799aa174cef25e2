"""Ctrl-C around a donating call: nothing that the caller can still name is gone, and the interrupt is not lost."""

from __future__ import annotations

import _signal
import _thread
import asyncio
import collections
import ctypes
import dis
import faulthandler
import functools
import gc
import inspect
import itertools
import operator
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.emit import Emitted, EmittedWhole, jit
from pytc.interrupt import put_off
from pytc.jax_compat.arrays import private_copies
from pytc.ownership.others import collector
from pytc.ownership.others.watchers import other_frames
from tests.interrupting import INTERRUPT, WAYS, Interrupting, loses

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


@pytest.fixture(autouse=True)
def _interrupts_are_not_ignored():
    """A shell has the programs that it starts in the background ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Holder:
    pass


@pytest.mark.parametrize("times", [1, 3])
def test_the_result_is_stored_before_the_interrupt(times):
    step = pytc.compile(lambda state: Interrupting(state.value + 1), donate={"state": "all"})
    holder = Holder()
    holder.state = Interrupting(jnp.zeros(3))
    holder.state = step(holder.state)
    INTERRUPT.extend([None] * times)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it strikes at some instruction after the store
        holder.state = step(holder.state)
        for _ in range(10**9):
            pass
    assert not INTERRUPT
    np.testing.assert_array_equal(holder.state.value, 2 * np.ones(3))
    holder.state = step(holder.state)
    np.testing.assert_array_equal(holder.state.value, 3 * np.ones(3))


@pytest.fixture
def _in_a_greenlet(monkeypatch):
    """What `threading` says in one, of the main thread, where gevent has replaced a part of it."""
    greenlet = threading.Thread()
    monkeypatch.setattr(threading, "current_thread", lambda: greenlet)
    monkeypatch.setattr(threading, "get_ident", lambda: id(greenlet))


def struck_behind(number, error, ask=lambda: True):
    """What `ask` says, in a list, though a signal whose handler raises this error came before; none if it struck at
    once."""
    inside = []

    def come():
        signal.raise_signal(number)
        inside.append(ask())

    with pytest.raises(error):
        put_off(come)
    return inside


@pytest.mark.usefixtures("_in_a_greenlet")
def test_in_a_greenlet_the_result_is_stored_before_the_interrupt():
    test_the_result_is_stored_before_the_interrupt(1)


@pytest.mark.usefixtures("_in_a_greenlet")
def test_in_a_greenlet_a_signal_is_put_off():
    assert struck_behind(signal.SIGINT, KeyboardInterrupt)


@pytest.mark.usefixtures("_in_a_greenlet")
def test_in_a_greenlet_another_thread_is_told_from_this_one():
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        frames = other_frames()
        assert len(frames) == 1
        assert _thread.get_ident() not in frames
    finally:
        done.set()
        other.join()


def test_several_signals_at_once():
    """What stops a job may send more than one, each of which is to be taken for a Ctrl-C."""
    step = pytc.compile(lambda x: x + 1)
    holder = Holder()
    holder.state = jnp.zeros(3)
    for _ in range(4):
        holder.state = step(holder.state)
    signals = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    before = [signal.signal(number, signal.default_int_handler) for number in signals]

    def interrupted(landed, fun, args):
        # All at once: `interrupt_main` does not handle them, as the interpreter does once `deque` is done.
        each = itertools.chain.from_iterable([map(fun, *zip(args, strict=True)), ()])
        collections.deque(itertools.chain(map(landed.append, each), map(_thread.interrupt_main, signals)), maxlen=0)

    try:
        with mock.patch.object(jit, "call_into", interrupted), pytest.raises(KeyboardInterrupt):  # noqa: PT012 - as above
            holder.state = step(holder.state)
            for _ in range(10**9):
                pass
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
    np.testing.assert_array_equal(holder.state, 5 * np.ones(3))


@pytest.mark.parametrize("kind", ["in a list", "nested"])
def test_keys_of_a_result_where_the_stack_is_nearly_full(kind):
    """It takes more of the stack to make keys than it takes to run the program; by then the arguments are gone."""

    def step(x):
        key = jax.random.fold_in(jax.random.key(0), 3)
        return x + 1, [key] if kind == "in a list" else {"model": {"layers": [{"drop": {"key": key}}]}}

    step = pytc.compile(step)
    holder = Holder()
    holder.state = jnp.zeros(3)

    def attempt():
        holder.state, holder.more = step(holder.state)

    for _ in range(5):
        attempt()

    def down(n):
        return attempt() if n == 0 else down(n - 1)

    limit = sys.getrecursionlimit()
    depth = len(inspect.stack(0))
    failed = ran = 0
    for n in range(20, 140):
        sys.setrecursionlimit(depth + 150)
        try:
            down(n)
            ran += 1
        except (RecursionError, ValueError) as error:
            failed += "recursion depth" in str(error)  # JAX has a `ValueError` for it where a cache compares its keys
        finally:
            sys.setrecursionlimit(limit)
        assert not holder.state.is_deleted(), n
    assert 0 < ran < 120
    assert ran + failed == 120


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_is_lost_however_the_call_comes_about(way):
    """The interpreter looks for signals behind calls that go through its own C code, before the result is stored."""
    assert not loses(way)


def test_an_interrupt_before_the_program_ran_is_raised_at_once():
    def fail(x):
        signal.raise_signal(signal.SIGINT)
        return x + 1

    x = jnp.ones(3)
    with pytest.raises(KeyboardInterrupt):
        pytc.compile(fail, donate="all")(x)
    np.testing.assert_array_equal(x, np.ones(3))


@pytest.fixture
def _alarm_is_ctrl_c():
    """A timer interrupts as Ctrl-C does."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def strike(step, holder, seconds):
    """Steps under a timer that interrupts somewhere in or around the call, again and again; how often it did.

    A function of its own: pytest's assertions look into `locals()`, which rightly stops every donation.
    """
    rng = np.random.default_rng(0)
    struck = lost = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(5e-6, 3e-4)))
            for _ in range(100):  # not for ever: an interrupt in a finaliser is swallowed
                holder.state = step(holder.state)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except (KeyboardInterrupt, ValueError):  # as the latter where it strikes Python code that jaxlib called
            struck += 1
        lost += any(x.is_deleted() for x in jax.tree.leaves(holder.state))
    return struck, lost


class Moments(NamedTuple):
    """As in the states of Optax: a class of named tuples has a `__new__` in Python."""

    mean: jax.Array
    square: jax.Array


def renewed(state):
    """The parts of a state that are put together by Python code."""
    parts = {}
    if "key" in state:
        parts["key"] = jax.random.split(state["key"])[0]
    if "moments" in state:
        parts["moments"] = Moments(*(moment + 1 for moment in state["moments"]))
    return parts


def reuses(step, holder):
    where = holder.state["a"].unsafe_buffer_pointer()
    holder.state = step(holder.state)
    return holder.state["a"].unsafe_buffer_pointer() == where


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the platform has no interval timers")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupts in finalisers
@pytest.mark.usefixtures("_alarm_is_ctrl_c")
@pytest.mark.parametrize(
    "others",
    [{}, {"key": jax.random.key(0)}, {"moments": Moments(jnp.zeros(8), jnp.zeros(8))}],
    ids=["arrays", "a key", "a named tuple"],
)
def test_interrupts_at_random_moments(others):
    step = pytc.compile(lambda state: {**state, "a": state["a"] + 1, "n": state["n"] + 1} | renewed(state))
    holder = Holder()
    holder.state = {"a": jnp.zeros(64), "n": jnp.zeros((), jnp.int32), **others}
    reuses(step, holder)
    assert reuses(step, holder)
    struck, lost = strike(step, holder, seconds=3)
    assert struck > 100
    assert lost == 0
    assert reuses(step, holder)
    np.testing.assert_array_equal(holder.state["a"], np.full(64, int(holder.state["n"])))


def struck_at_first(rng):
    """Whether a signal came around the execution of a first call, whether what the caller can name then is gone, and
    whether the state is where it was."""
    holder, came = Holder(), False
    holder.state = {"a": jnp.zeros(64), "n": jnp.zeros((), jnp.int32)}
    where = holder.state["a"].unsafe_buffer_pointer()
    step = pytc.compile(lambda state: {"a": state["a"] + 1, "n": state["n"] + 1})
    ahead = Emitted.compile

    def compiles(emitted, leaves):
        ahead(emitted, leaves)
        signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-6, 1e-3)))

    with mock.patch.object(Emitted, "compile", compiles):
        try:
            holder.state = step(holder.state)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            came = True
    gone = any(x.is_deleted() for x in holder.state.values())
    return came, gone, not gone and holder.state["a"].unsafe_buffer_pointer() == where


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the platform has no interval timers")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupts in finalisers
@pytest.mark.usefixtures("_alarm_is_ctrl_c")
def test_interrupts_of_the_first_call():
    rng = np.random.default_rng(0)
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    found = [struck_at_first(rng) for _ in range(25)]
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
    struck, gone, in_place = zip(*found, strict=True)
    assert sum(struck) > 5
    assert not any(gone)
    assert all(in_place)


def test_an_interrupt_while_an_error_is_passed_on():
    """It is not lost: nothing has run that a result could be delivered of."""
    deliver, struck = pytc.calls.wrapper.deliver, []

    def interrupted(landed, *raised):
        if not struck:
            struck.append(None)
            raise KeyboardInterrupt
        return deliver(landed, *raised)

    def fail(x):
        raise ValueError(x)

    x = jnp.ones(3)
    with mock.patch.object(pytc.calls.wrapper, "deliver", interrupted), pytest.raises(KeyboardInterrupt) as caught:
        pytc.compile(fail)(x)
    assert struck
    assert isinstance(caught.value.__context__, ValueError)


def test_signals_that_are_put_off_go_to_their_own_handlers():
    seen, before = [], signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        assert put_off(lambda: signal.raise_signal(signal.SIGTERM) or [*seen]) == []
        assert seen == [signal.SIGTERM]
        assert struck_behind(signal.SIGINT, KeyboardInterrupt)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_is_put_off_is_told_of_once():
    """Event loops read of signals from a file descriptor, and would call back twice."""
    seen, (reads, writes) = [], socket.socketpair()
    reads.setblocking(False)
    writes.setblocking(False)
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    descriptor = signal.set_wakeup_fd(writes.fileno())
    try:
        put_off(lambda: signal.raise_signal(signal.SIGTERM))
        assert seen == [signal.SIGTERM]
        assert reads.recv(10) == bytes([signal.SIGTERM])
    finally:
        signal.set_wakeup_fd(descriptor)
        signal.signal(signal.SIGTERM, before)
        reads.close()
        writes.close()


class Stop(Exception):
    """What a handler raises."""


def stop(*_):
    raise Stop


@pytest.mark.parametrize(("handler", "error"), [(stop, Stop), (signal.default_int_handler, KeyboardInterrupt)])
def test_a_signal_that_is_put_off_is_not_lost_behind_one_whose_handler_raises(handler, error):
    seen = []
    before = [
        (signal.SIGTERM, signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))),
        (signal.SIGINT, signal.signal(signal.SIGINT, handler)),
    ]
    try:
        inside = struck_behind(signal.SIGINT, error, lambda: signal.raise_signal(signal.SIGTERM) or [*seen])
        assert inside == [[]]
        assert seen == [signal.SIGTERM]
    finally:
        for number, own in before:
            signal.signal(number, own)


def test_what_is_put_off_leaves_handlers_in_c_as_they_are(tmp_path):
    """They are called before Python's own, as `faulthandler`'s."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with (tmp_path / "told").open("w+") as told:
            faulthandler.register(signal.SIGINT, file=told, chain=True)
            (inside,) = struck_behind(signal.SIGINT, KeyboardInterrupt, lambda: told.seek(0, os.SEEK_END))
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert 0 < inside < told.seek(0, os.SEEK_END)
    finally:
        faulthandler.unregister(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


class Action(ctypes.Structure):
    """`struct sigaction` as Linux has it."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="others have another structure")
def test_what_is_put_off_leaves_what_a_signal_interrupts_as_it_is():
    def action():
        """What the system does with the signal, and how."""
        found = Action()
        assert ctypes.CDLL(None).sigaction(signal.SIGALRM, None, ctypes.byref(found)) == 0
        return found.handler, found.flags

    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        usual = action()
        signal.siginterrupt(signal.SIGALRM, False)
        asked_for = action()
        assert asked_for != usual
        assert put_off(action) == asked_for
        assert action() == asked_for
    finally:
        signal.signal(signal.SIGALRM, before)


def test_all_handlers_are_back_where_one_raises_at_once():
    own = {signal.SIGTERM: stop, signal.SIGINT: signal.default_int_handler}
    before = [(number, signal.signal(number, handler)) for number, handler in own.items()]
    put_back = _signal.signal

    def at_once(number, handler):
        put_back(number, handler)
        if handler is stop:
            signal.raise_signal(number)

    try:
        with mock.patch.object(_signal, "signal", at_once), pytest.raises(Stop):
            put_off(list)
        assert {number: signal.getsignal(number) for number in own} == own
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@pytest.mark.parametrize("what", [RecursionError, MemoryError])
def test_what_has_run_is_returned_though_the_stack_or_the_memory_is_full(what, monkeypatch):
    """The arguments are gone by then: a handler that reads them again would meet deleted arrays."""
    step = pytc.compile(lambda x: x + 1)

    def full(*_):
        raise what

    def run():
        x = jnp.zeros(3)
        for n in range(6):
            if n == 3:
                monkeypatch.setattr(Emitted, "remember", full)
            try:
                x = step(x)
            except what:
                return x.tolist()
        return x.tolist()

    assert run() == [6, 6, 6]


def test_a_full_stack_is_no_error_of_ctypes():
    """Which makes one of its own class of whatever is raised as it looks at an argument."""
    step = pytc.compile(lambda x: x + 1)
    box, raised, limit = Holder(), set(), sys.getrecursionlimit()
    box.x = jnp.zeros(3)

    def deeper(frames):
        if frames:
            deeper(frames - 1)
        else:
            box.x = step(box.x)

    for _ in range(4):
        deeper(0)
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    try:
        for frames in range(100):
            try:
                deeper(frames)
            except Exception as error:
                raised.add(type(error))
    finally:
        sys.setrecursionlimit(limit)
    assert RecursionError in raised
    assert ctypes.ArgumentError not in raised
    assert box.x.tolist()[0] >= 4


# -- what is no Ctrl-C -----------------------------------------------------------------------------------------------


class Timeout(Exception):
    """What a handler raises at the end of some time."""


class Interrupt(KeyboardInterrupt):
    """A Ctrl-C of somebody's own."""


def compiled_step():
    """A step that is compiled where it will be called: what a handler raises while JAX compiles, JAX may swallow."""
    step = pytc.compile(lambda x: x + 1)
    stepping(step, lambda: None, seconds=0.1)
    return step


def stepping(step, begin, seconds=5):
    """Steps until there is an exception of what is begun first, or some time has gone. (What is raised while garbage is
    collected, where JAX has a callback, is lost.)"""
    x = jnp.ones(1000)
    end = time.monotonic() + seconds
    gc.disable()
    try:
        begin()
        while time.monotonic() < end:
            x = step(x)
    finally:
        gc.enable()


@pytest.fixture(name="at_alarm")
def _at_alarm():
    """Sets the handler of a timer, and starts it."""
    before = signal.getsignal(signal.SIGALRM)

    def start(handler):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", [Timeout, Interrupt, KeyboardInterrupt, KeyError, TypeError, ValueError, RuntimeError])
@pytest.mark.parametrize("make", [lambda handler: handler, lambda handler: Calling(handler), lambda h: once(h)])
def test_what_a_handler_raises(kind, make, at_alarm):
    def handler(*_):
        raise kind("time is up")

    step = compiled_step()
    for _ in range(12):
        with pytest.raises(kind, match="time is up"):
            stepping(step, lambda: at_alarm(make(handler)))


def functions():
    """Each function of pytc, with where it is bound, and `sys._getframe` as it is seen from where calls come in."""
    found = {sys._getframe: [(pytc.calls.wrapper.sys, "_getframe")]}
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "pytc"]:
        for name, value in [*vars(module).items()]:
            spaces = [(module, name, value)]
            if isinstance(value, type) and value.__module__ == module.__name__:
                spaces = [(value, *item) for item in vars(value).items()]
            for owner, key, each in spaces:
                if isinstance(each, types.FunctionType) and each.__module__.partition(".")[0] == "pytc":
                    found.setdefault(each, []).append((owner, key))
    return found


def overwritten(step, arm):
    x = {"a": jnp.ones(3), "b": jnp.ones(5)}
    for number in range(3):
        if number == 2:
            arm()
        x = step(x)


def read_again(step, arm):
    x = {"a": jnp.ones(3), "b": jnp.ones(5)}
    for number in range(3):
        if number == 2:
            arm()
        step(x)
    return x


def in_an_attribute(step, arm):
    holder = Holder()
    holder.x = {"a": jnp.ones(3), "b": jnp.ones(5)}
    for number in range(3):
        if number == 2:
            arm()
        holder.x = step(holder.x)


class Anything(KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError):
    """Caught by whoever catches one of these. (No class can be a `StopIteration` besides.)"""


@pytest.mark.parametrize(
    ("caller", "kind"),
    [
        (overwritten, Anything),
        (read_again, StopIteration),
        (in_an_attribute, Anything),
        (in_an_attribute, StopIteration),
    ],
)
def test_what_a_handler_raises_in_any_function(caller, kind, at_alarm, monkeypatch):
    """It is not taken for what was asked there."""
    monkeypatch.setattr(pytc.calls.wrapper, "sys", types.SimpleNamespace(**vars(sys)))
    step = pytc.compile(lambda tree: {name: array + 1 for name, array in tree.items()})
    came = []

    def handler(*_):
        came.append(None)
        raise kind("time is up")

    signal.signal(signal.SIGALRM, handler)

    def raised_in(fun, places):
        def striking(*args, **kwargs):
            put_back()
            signal.raise_signal(signal.SIGALRM)
            return fun(*args, **kwargs)

        def bind(function):
            for owner, name in places:
                setattr(owner, name, function)

        def put_back():
            bind(fun)

        try:
            caller(step, lambda: bind(striking))
        except (kind, RuntimeError) as error:
            # Python makes a `RuntimeError` of a `StopIteration` in a generator.
            return error.__cause__ if isinstance(error.__cause__, StopIteration) else error
        finally:
            put_back()

    caller(step, lambda: None)
    raised = {}
    for fun, places in functions().items():
        before = len(came)
        error = raised_in(fun, places)
        if len(came) > before:
            raised[fun] = error and error.args
    assert set(raised.values()) == {("time is up",)}, [fun for fun, args in raised.items() if args is None]
    assert len(raised) > 10


class Calling:
    """A handler that is an object."""

    def __init__(self, handler):
        self.handler = handler

    def __call__(self, *args):
        self.handler(*args)


def once(handler):
    """A handler that is there for one signal, behind what a decorator puts around it."""

    def wrapper(*args, **kwargs):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        return handler(*args, **kwargs)

    return wrapper


def test_where_a_ctrl_c_is_ignored(at_alarm):
    """As of programs that a shell starts in the background; another signal then has the default handler."""
    step = compiled_step()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for _ in range(12):
        with pytest.raises(KeyboardInterrupt):
            stepping(step, lambda: at_alarm(signal.default_int_handler))


@pytest.mark.parametrize("once", [False, True])
def test_a_handler_of_ctrl_c_is_called_once(once):
    """Many programs end at the second one."""
    called = []

    def handler(*_):
        called.append(None)
        if once:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise KeyboardInterrupt

    step = compiled_step()
    children = []  # what is raised in the end of one that is not held would be lost
    for n in range(4):
        signal.signal(signal.SIGINT, handler)
        kill = ["sh", "-c", f"sleep 0.02; kill -INT {os.getpid()}"]
        with pytest.raises(KeyboardInterrupt):
            stepping(step, lambda kill=kill: children.append(subprocess.Popen(kill)))
        assert len(called) == n + 1
    for child in children:
        child.wait()


def test_an_exception_for_another_thread():
    step = compiled_step()
    caught = []

    def work(begun):
        try:
            stepping(step, begun.set)
        except (KeyboardInterrupt, Timeout) as error:
            caught.append(type(error))

    for kind in (KeyboardInterrupt, Timeout) * 4:
        begun = threading.Event()
        thread = threading.Thread(target=work, args=(begun,))
        thread.start()
        begun.wait()
        time.sleep(0.02)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))
        thread.join()
    assert caught == [KeyboardInterrupt, Timeout] * 4


def test_a_handler_that_raises_when_the_results_have_landed(at_alarm):
    """They are not thrown away to make the call again, of which the arguments are gone."""
    call_whole = EmittedWhole.call_whole
    armed = []

    def handler(*_):
        raise KeyError(armed.pop())

    at_alarm(handler)
    signal.setitimer(signal.ITIMER_REAL, 0)

    def interrupted(emitted, args, kwargs, landed):
        call_whole(emitted, args, kwargs, landed)
        if armed:
            signal.raise_signal(signal.SIGALRM)

    def run(step, x):
        for k in range(6):
            armed.extend(["stop"] * (k == 5))
            x = step(x)

    with mock.patch.object(EmittedWhole, "call_whole", interrupted), pytest.raises(KeyError, match="stop"):
        run(pytc.compile(lambda x: x + 1), jnp.ones(8))
    assert not armed


@pytest.mark.parametrize("times", [1, 2])
def test_sessions_that_tasks_serve(times, monkeypatch):
    """Ctrl-C cancels the main task, which waits for the one that makes the call; the second time it is raised here."""
    step = pytc.compile(lambda cache: {name: array + 1 for name, array in cache.items()})
    holder, at, call_into = Holder(), [], jit.call_into

    async def serve():
        for _ in range(6):
            at.append(holder.state["a"].unsafe_buffer_pointer())
            holder.state = step(holder.state)
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(serve(), asyncio.sleep(60))

    def struck(landed, fun, args):
        call_into(landed, fun, args)
        if len(at) == 4:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    holder.state = {"a": jnp.zeros(64), "b": jnp.zeros(32)}
    monkeypatch.setattr(jit, "call_into", struck)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
    finally:
        signal.signal(signal.SIGINT, before)
    assert holder.state["a"].tolist() == [4] * 64
    assert len({*at[1:], holder.state["a"].unsafe_buffer_pointer()}) == 1


@pytest.mark.parametrize("function", [collector.pause, collector.resume])
def test_an_interrupt_leaves_the_collector_on_or_to_be_switched_on(function):
    """At any instruction behind one where the interpreter looks for signals."""

    def tracing(at):
        def trace(frame, event, _):
            if frame.f_code is not function.__code__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                at(frame.f_lasti)
            return trace

        return trace

    def left_after(at):
        if function is collector.resume:
            collector.pause(0)
        sys._getframe().f_trace_opcodes = True  # CPython 3.12 asks for it as the tracing begins
        sys.settrace(tracing(at))
        try:
            function(*[0] * (function is collector.pause))
        finally:
            sys.settrace(None)
            left.append(gc.isenabled() or collector.STATE.paused)
            gc.enable()
            collector.STATE.paused = False

    def striking_at(offset):
        def strike(now):
            if now == offset:
                raise KeyboardInterrupt

        return strike

    assert gc.isenabled()
    run, left = [], []
    left_after(run.append)
    names = {each.offset: each.opname for each in dis.get_instructions(function)}
    looks = ("RESUME", "CALL", "JUMP_BACKWARD")
    behind = {after for before, after in itertools.pairwise(run) if names[before].startswith(looks)}
    for offset in behind | {run[0]}:
        with pytest.raises(KeyboardInterrupt):
            left_after(striking_at(offset))
    assert all(left)


@pytest.mark.parametrize("handler", [stop, signal.default_int_handler])
def test_a_signal_while_leaves_are_copied_strikes_as_what_it_is(handler):
    """JAX's caches make a `ValueError` of what is raised in the Python code that they call."""
    step = pytc.compile(lambda x: x + 1)
    raised = Stop if handler is stop else KeyboardInterrupt
    inside = []

    def copies(arrays):
        signal.raise_signal(signal.SIGINT)
        inside.append(len(arrays))
        return private_copies(arrays)

    def run():
        x = step(step(jnp.zeros(3)))
        held = iter([x])
        with pytest.raises(raised):
            x = step(x)
        return np.asarray(x), np.asarray(next(held))

    before = signal.signal(signal.SIGINT, handler)
    try:
        with mock.patch.object(pytc.calls.decide, "private_copies", copies):
            found = run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert inside == [1]
    np.testing.assert_array_equal(found, np.full((2, 3), 2.0))


def at_once(function):
    """Calls a function by C code alone, after which a Ctrl-C is there: it strikes where the interpreter looks next."""
    return functools.partial(list, map(operator.call, [function, _thread.interrupt_main]))


def interrupted_first_call():
    """A function whose first call a Ctrl-C has struck, and its argument; the traceback is kept, as a REPL does."""
    step, x = pytc.compile(lambda x: x * 2.0 + 1.0), jnp.ones(3)
    with pytest.raises(KeyboardInterrupt) as kept:
        step(x)
    return step, x, kept


def test_an_interrupt_as_the_collector_is_switched_off_leaves_it_on(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(gc, "disable", at_once(gc.disable))
        _step, _x, _kept = interrupted_first_call()
    assert gc.isenabled()


def test_an_interrupt_as_it_is_switched_on_leaves_it_on(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(gc, "enable", at_once(gc.enable))
        _step, _x, _kept = interrupted_first_call()
    assert gc.isenabled()


def test_an_interrupt_as_a_warning_is_silenced_leaves_no_filter(monkeypatch):
    class Filters(list):
        def insert(self, *given):
            super().insert(*given)
            raise KeyboardInterrupt

    filters = Filters(warnings.filters)
    before = [*filters]
    with monkeypatch.context() as patch:
        patch.setattr(warnings, "filters", filters)
        _step, _x, _kept = interrupted_first_call()
    assert filters == before


def test_an_interrupt_as_a_first_call_begins_locks_out_no_other_thread(monkeypatch):
    """Threads that call for the first time at once wait for one another."""

    def lock():
        real = threading.Lock()  # which its own thread would wait for, too
        ways = {"__enter__": staticmethod(at_once(real.acquire)), "__exit__": lambda _, *why: real.release()}
        return type("Lock", (), ways)()

    with monkeypatch.context() as patch:
        patch.setattr(pytc.calls.cache.threading, "RLock", lock)
        step, x, _kept = interrupted_first_call()
    results = []
    thread = threading.Thread(target=lambda: results.append(step(x)), daemon=True)
    thread.start()
    thread.join(20)
    np.testing.assert_array_equal(results, [x * 2 + 1])
