"""Handlers of signals that only set flags let a state be reused that they could reach; others do not."""

from __future__ import annotations

import contextlib
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import pytest

import pytc
from tests.ownership.harness import Stub, first, taken_over

BOX: Any = types.SimpleNamespace(
    a=None, stop=False, inner=types.SimpleNamespace(), flags=[False], named={"stop": None, "again": 0}
)
STOP = False
TIMES = 0


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = dict(vars(BOX))
    yield
    vars(BOX).clear()
    vars(BOX).update(before)


@contextlib.contextmanager
def handled(handler: Any, number: int = signal.SIGUSR1) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _a_global(number: int, frame: Any) -> None:
    global STOP
    STOP = True


def _a_global_that_was_not_there(*_: Any) -> None:
    global NEW
    NEW = "preempted"  # type: ignore[name-defined]


def _an_attribute(number: int, frame: Any) -> None:
    """It has a text, too."""
    BOX.stop = True
    BOX.inner.number = number


def _items(number: int, frame: Any = None, /, *more: Any) -> None:
    BOX.flags[0] = 1.5
    BOX.named["stop"] = number
    BOX.named["again"] = "again"


def _nothing(*_: Any) -> None:
    pass


def _closure() -> Callable[..., None]:
    done, flags = False, [False]

    def handler(number: int, _: Any) -> None:
        nonlocal done
        done = True
        flags[-1] = None

    return handler


class Job:
    stop = False

    def preempted(self, number: int, _: Any) -> None:
        self.stop = True
        self.number = number


class Slots:
    __slots__ = ("stop",)

    def preempted(self, *_: Any) -> None:
        self.stop = True


FLAGS = [
    *(_a_global, _a_global_that_was_not_there, _an_attribute, _items, _nothing),
    *(_closure(), Job().preempted, Slots().preempted, lambda *_: None),
]


@pytest.mark.parametrize("handler", FLAGS)
def test_the_state_is_reused(handler: Any) -> None:
    with handled(handler), handled(handler, signal.SIGINT):
        assert taken_over(BOX, 3) == [True] * 3
        signal.raise_signal(signal.SIGUSR1)
        assert taken_over(BOX, 3) == [True] * 3


def _reads(number: int, frame: Any) -> None:
    BOX.stop = BOX.a


def _keeps_the_frame(number: int, frame: Any) -> None:
    BOX.frame = frame


def _keeps_all(*given: Any) -> None:
    BOX.frame = given


def _drops_the_state(number: int, frame: Any) -> None:
    BOX.a = None


def _drops_what_may_run_code(number: int, frame: Any) -> None:
    BOX.inner = None


def _calls(number: int, frame: Any) -> None:
    print(end="")


def _counts(number: int, frame: Any) -> None:
    global TIMES
    TIMES += 1


def _branches(number: int, frame: Any) -> None:
    if number:
        BOX.stop = True


def _raises(number: int, frame: Any) -> None:
    raise InterruptedError


def _finds_no_such_name(number: int, frame: Any) -> None:
    MISSING.stop = True  # type: ignore[name-defined] # noqa: F821


def _finds_no_such_attribute(number: int, frame: Any) -> None:
    BOX.missing.stop = True


def _finds_no_such_item(number: int, frame: Any) -> None:
    BOX.flags[7] = True


def _sets_an_item_of_any_number(number: int, frame: Any) -> None:
    BOX.named[number] = True


def _takes_too_few(number: int) -> None:
    pass


def _takes_too_many(number: int, frame: Any, more: Any) -> None:
    pass


def _takes_a_name(number: int, frame: Any, *, more: Any) -> None:
    pass


def _adds_an_item(number: int, frame: Any) -> None:
    BOX.named["new"] = True


def _sets_what_it_loads(number: int, frame: Any) -> None:
    BOX.level = True
    BOX.level.stop = True


def _loads_what_it_sets(number: int, frame: Any) -> None:
    BOX.level.stop = True
    BOX.level = True


def _returns_the_frame(number: int, frame: Any) -> Any:
    return frame


def _sets_what_the_frame_has(number: int, frame: Any) -> None:
    frame.f_trace_lines = False


def _with_a_key_that_reads() -> Callable[..., None]:
    class Reading(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            if sys._getframe(1).f_code is handler.__code__:  # which this is a global of
                BOX.seen = BOX.a
            return False

    def handler(number: int, frame: Any) -> None:
        global STOP
        STOP = True

    return types.FunctionType(handler.__code__, {Reading("STOP"): False, "STOP": False})


def _unbound() -> Callable[..., None]:
    def handler(number: int, _: Any) -> None:
        later.stop = True

    if FLAGS is None:
        later = BOX
    return handler


class Told:
    def __setattr__(self, name: str, value: Any) -> None:
        BOX.seen = BOX.a

    def preempted(self, *_: Any) -> None:
        self.stop = True


class Property:
    @property
    def stop(self) -> bool:
        return False

    @stop.setter
    def stop(self, value: bool) -> None:
        BOX.seen = BOX.a

    def preempted(self, *_: Any) -> None:
        self.stop = True


class Called:
    def __call__(self, *_: Any) -> None:
        BOX.stop = True


OTHERS = [
    *(_reads, _keeps_the_frame, _keeps_all, _drops_the_state, _drops_what_may_run_code, _calls, _counts, _branches),
    *(_raises, _finds_no_such_name, _finds_no_such_attribute, _finds_no_such_item, _sets_an_item_of_any_number),
    *(_adds_an_item, _sets_what_it_loads, _loads_what_it_sets),
    *(_takes_too_few, _takes_too_many, _takes_a_name, _returns_the_frame, _sets_what_the_frame_has),
    *(_with_a_key_that_reads(), _unbound()),
    *(Told().preempted, Property().preempted, Called()),
]


@pytest.mark.parametrize("handler", OTHERS)
def test_the_state_is_kept(handler: Any) -> None:
    with handled(handler):
        assert taken_over(BOX, 3) == [False] * 3


class Shared:
    level = types.SimpleNamespace(stop=False)


def test_a_handler_that_sets_what_another_loads() -> None:
    """What is that of the class counts as nothing, so that a flag may take its place."""
    shared = Shared()

    def one(*_: Any) -> None:
        shared.level = True  # type: ignore[assignment]

    def other(*_: Any) -> None:
        shared.level.stop = True

    with handled(one), handled(other, signal.SIGUSR2):
        assert taken_over(BOX, 3) == [False] * 3
    with handled(one):
        assert taken_over(BOX, 3) == [True] * 3
    with handled(other):
        assert taken_over(BOX, 3) == [True] * 3


def test_flags_that_are_read_before_the_store() -> None:
    stub = Stub()
    f = stub.compile(first)

    def handler(*_: Any) -> None:
        BOX.k = 1

    def another(*_: Any) -> None:
        BOX.other = 1

    BOX.a, BOX.k = [stub.new(), stub.new()], 0
    for each, dead in ((handler, False), (another, True)):
        with handled(each):
            for _ in range(3):
                BOX.a[BOX.k] = f(BOX.a[BOX.k])
                assert bool(stub.calls[-1].dead) == dead
    BOX.a = stub.new()
    for each, dead in ((handler, False), (another, True)):
        with handled(each):
            for _ in range(3):
                BOX.a, BOX.k = f(BOX.a), BOX.k + 1
                assert bool(stub.calls[-1].dead) == dead
    stub.read(BOX.a)


def test_it_is_asked_at_each_call_what_the_flags_are() -> None:
    stub = Stub()
    f = stub.compile(first)
    BOX.a, BOX.stop = stub.new(), stub.new()
    with handled(_an_attribute):
        for stop in (False, stub.new(), None):
            BOX.stop = stop
            BOX.a = f(BOX.a)
        BOX.inner = None
        BOX.a = f(BOX.a)
    stub.read((BOX.a, BOX.stop))
    assert [bool(call.dead) for call in stub.calls] == [True, False, True, False]


@pytest.mark.parametrize("handler", [_an_attribute, _a_global, Job().preempted])
def test_signals_at_any_moment(handler: Any) -> None:
    step = pytc.compile(lambda x: x + 1)
    pointers = set()
    BOX.a = jnp.zeros(64)
    with handled(handler, signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
        try:
            for _ in range(3000):
                BOX.a = step(BOX.a)
                pointers.add(BOX.a.unsafe_buffer_pointer())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    assert BOX.a.tolist() == [3000] * 64
    assert len(pointers) < 20
