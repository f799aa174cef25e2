"""Threads that wait until another wakes them cannot read a slot before it is overwritten; those that may go on can."""

from __future__ import annotations

import _thread
import concurrent.futures
import contextlib
import queue
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax.numpy as jnp
import pytest

import pytc
from pytc.ownership.others import service_threads, waiting_threads, watchers
from tests.ownership.harness import Stub, first
from tests.threads import FOR_LONG

BOX = types.SimpleNamespace(a=None)
"""What any thread can reach."""


def train(steps: int = 3) -> list[bool]:
    """For each step, whether the state in an attribute was taken over."""
    stub = Stub()
    f = stub.compile(first)
    BOX.a = stub.new()
    for _ in range(steps):
        BOX.a = f(BOX.a)
    stub.read(BOX.a)
    return [bool(call.dead) for call in stub.calls]


@contextlib.contextmanager
def running(work: Callable[[], Any], wake: Callable[[], Any]) -> Iterator[None]:
    """A thread that does some work, and has come to wait in the midst of it; `wake` ends it."""
    thread = threading.Thread(target=work)
    thread.start()
    settle()
    try:
        yield
    finally:
        wake()
        thread.join()


def settle(seconds: float = 1.0) -> None:
    """Let the other threads come to wait, as far as they do in that time."""
    until = time.monotonic() + seconds
    while watchers.other_thread() and time.monotonic() < until:
        time.sleep(0.001)


def consume(items: Any) -> None:
    while items.get() is not None:
        pass


def consume_if_blocked(items: Any) -> None:
    while items.get(block=True) is not None:
        pass


@pytest.mark.parametrize("kind", [queue.Queue, queue.SimpleQueue, queue.LifoQueue])
@pytest.mark.parametrize("work", [consume, consume_if_blocked])
def test_a_consumer_at_an_empty_queue(kind: Any, work: Any) -> None:
    """From CPython 3.13 on nothing tells whether a `SimpleQueue` has handed something over."""
    items = kind()
    waits = kind is not queue.SimpleQueue or sys.version_info < (3, 13)
    with running(lambda: work(items), lambda: items.put(None)):
        assert train() == [waits] * 3


def test_a_producer_at_a_full_queue() -> None:
    items: Any = queue.Queue(2)

    def produce() -> None:
        for i in range(5):
            items.put(i)

    with running(produce, lambda: [items.get() for _ in range(3)]):
        assert train() == [True] * 3


def test_whoever_waits_for_an_event_or_a_future() -> None:
    event, future = threading.Event(), concurrent.futures.Future[None]()
    with running(event.wait, event.set), running(future.result, lambda: future.set_result(None)):
        assert train() == [True] * 3


def test_idle_workers_of_an_executor() -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        barrier = threading.Barrier(3)
        concurrent.futures.wait([executor.submit(barrier.wait) for _ in range(3)])
        settle()
        assert threading.active_count() >= 4
        assert train() == [True] * 3


def test_the_state_is_kept_beside_one_that_waits_for_some_time() -> None:
    event, items, plain = threading.Event(), queue.Queue[None](), queue.SimpleQueue[None]()
    for work, wake in [
        (lambda: event.wait(FOR_LONG), event.set),
        (lambda: items.get(timeout=FOR_LONG), lambda: items.put(None)),
        (lambda: plain.get(timeout=FOR_LONG), lambda: plain.put(None)),
        (lambda: plain.get(True, FOR_LONG), lambda: plain.put(None)),
    ]:
        with running(work, wake):  # type: ignore[arg-type]
            assert train() == [False] * 3


def test_the_state_is_kept_beside_one_that_holds_a_lock() -> None:
    """Whoever has the lock may let go of it in C code."""
    lock = threading.Lock()
    lock.acquire()
    with running(lock.acquire, lock.release):
        assert train() == [False] * 3


def test_the_state_is_kept_beside_one_of_several_that_does_not_wait() -> None:
    event, other = threading.Event(), threading.Event()
    with running(event.wait, event.set), running(lambda: other.wait(FOR_LONG), other.set):
        assert train() == [False] * 3


class Condition(threading.Condition):
    """It may wake others as it likes."""


class Items(queue.SimpleQueue):  # type: ignore[type-arg]
    """So may this."""


def test_the_state_is_kept_where_users_have_written_what_is_waited_for() -> None:
    condition, items = Condition(), Items()

    def wait() -> None:
        with condition:
            condition.wait()

    def wake() -> None:
        with condition:
            condition.notify_all()

    with running(wait, wake):
        assert train() == [False] * 3
    with running(items.get, lambda: items.put(None)):
        assert train() == [False] * 3


def test_the_main_thread_does_not_count_as_waiting() -> None:
    """Handlers of signals run in it, of Ctrl-C above all."""
    found: list[Any] = []
    over = threading.Event()

    def work() -> None:
        time.sleep(0.05)
        found.append(train())
        over.set()

    thread = threading.Thread(target=work)
    thread.start()
    over.wait()
    thread.join()
    assert found == [[False] * 3]


def test_a_thread_that_is_about_to_start() -> None:
    """Nothing tells what it will run, also beside threads that are known."""
    event, seen = threading.Event(), list[Any]()
    stub = Stub()
    f = stub.compile(first)
    with (
        running(event.wait, event.set),
        mock.patch.dict(service_threads.HARMLESS, {("threading", "Thread.run"): frozenset({"tests"})}),
    ):
        for _ in range(20):
            BOX.a = stub.new()
            done = _thread.allocate_lock()
            done.acquire()
            _thread.start_new_thread(lambda done: (stub.read(BOX.a), done.release()), (done,))
            BOX.a = f(BOX.a)
            done.acquire()
            seen.append(BOX.a)
    stub.read(seen)


def test_the_state_is_kept_while_others_are_being_notified() -> None:
    """What has been woken may still be listed as waiting (a finaliser that runs there may call a compiled function)."""
    event, found = threading.Event(), list[Any]()
    condition: Any = types.SimpleNamespace(_is_owned=lambda: found.append(train()) or True, _waiters=[])
    with running(event.wait, event.set):
        threading.Condition.notify(condition)
    assert found == [[False] * 3]


def test_all_are_looked_at_in_one_moment() -> None:
    """One that waits when it is looked at may be woken before the last one is."""
    events = [threading.Event() for _ in range(3)]
    look = waiting_threads._sleeps

    def looking(*args: Any) -> Any:
        for each in events:
            each.set()
        return look(*args)

    with contextlib.ExitStack() as stack:
        for each in events:
            stack.enter_context(running(each.wait, each.set))
        frames = watchers.other_frames()
        assert waiting_threads.all_wait(frames, 4)
        assert not waiting_threads.all_wait(frames, 5)
        with mock.patch.object(waiting_threads, "_sleeps", looking):
            assert not waiting_threads.all_wait(frames, 4)


Woken = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]
"""What a thread does, which looks whenever it is woken; what wakes it; and what ends it."""


def item_for_a_consumer(items: Any, look: Callable[[], Any]) -> Woken:
    def work() -> None:
        while items.get() is not None:
            look()

    return work, lambda: items.put(1), lambda: items.put(None)


def item_in_a_queue(look: Callable[[], Any]) -> Woken:
    return item_for_a_consumer(queue.Queue(), look)


def item_in_a_simple_queue(look: Callable[[], Any]) -> Woken:
    return item_for_a_consumer(queue.SimpleQueue(), look)


def room_for_a_producer(look: Callable[[], Any]) -> Woken:
    items: Any = queue.Queue(1)
    over: list[Any] = []

    def work() -> None:
        while not over:
            items.put(None)
            look()

    return work, items.get, lambda: (over.append(1), items.get())


def work_for_an_executor(look: Callable[[], Any]) -> Woken:
    executor = concurrent.futures.ThreadPoolExecutor(2)
    barrier = threading.Barrier(2)
    concurrent.futures.wait([executor.submit(barrier.wait) for _ in range(2)])
    return lambda: None, lambda: executor.submit(look), executor.shutdown


def event(look: Callable[[], Any]) -> Woken:
    events: list[Any] = [threading.Event()]

    def work() -> None:
        while events[-1] is not None:
            events[-1].wait()
            look()

    def wake() -> None:
        events.append(threading.Event())
        events[-2].set()

    return work, wake, lambda: (events.append(None), events[-2].set())


def one_that_wakes_another(look: Callable[[], Any]) -> Woken:
    items: list[Any] = [queue.SimpleQueue(), queue.Queue()]

    def second() -> None:
        while items[1].get() is not None:
            look()

    def work() -> None:
        other = threading.Thread(target=second)
        other.start()
        while (item := items[0].get()) is not None:
            items[1].put(item)
        items[1].put(None)
        other.join()

    return work, lambda: items[0].put(1), lambda: items[0].put(None)


WOKEN = [
    *(item_in_a_queue, item_in_a_simple_queue, room_for_a_producer, work_for_an_executor),
    *(event, one_that_wakes_another),
]


@pytest.mark.parametrize("make", WOKEN)
def test_a_thread_that_has_just_been_woken_looks_before_the_store(make: Any) -> None:
    stub = Stub()
    f = stub.compile(first)
    prover = stub.prover
    assert prover is not None
    found: list[Any] = []

    def sleeping(*args: Any) -> Any:
        kept = prover(*args)
        time.sleep(0.002)  # all that can run does
        return kept

    BOX.a = stub.new()
    work, wake, end = make(lambda: found.append(BOX.a))
    with running(work, end):
        stub.prover = sleeping
        for _ in range(20):
            settle(0.01)
            wake()
            BOX.a = f(BOX.a)
    assert found
    stub.read(found)


@pytest.mark.parametrize("make", WOKEN)
def test_a_thread_that_has_just_been_woken_finds_the_state(make: Any) -> None:
    step = pytc.compile(lambda x: x + 1)
    found: list[Any] = []

    def look() -> None:
        try:
            found.append(float(BOX.a[0]) >= 0)
        except RuntimeError as error:
            found.append(error)

    BOX.a = jnp.zeros(64)
    work, wake, end = make(look)
    interval = sys.getswitchinterval()
    with running(work, end):
        try:
            for n in range(300):
                if n % 2:
                    settle(0.01)
                    sys.setswitchinterval((1e-6, 1e-5, 1e-4)[n // 2 % 3])
                    wake()
                BOX.a = step(BOX.a)
                sys.setswitchinterval(interval)
        finally:
            sys.setswitchinterval(interval)
    assert found
    assert set(found) == {True}
