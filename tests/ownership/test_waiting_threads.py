"""Threads that wait until another wakes them cannot read a slot before it is overwritten; those that may go on can."""

from __future__ import annotations

import _thread
import concurrent.futures
import contextlib
import functools
import gc
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
from tests import interpreters
from tests.ownership.harness import Stub, first, taken_over
from tests.threads import FOR_LONG

WAITS = sys.version_info < (3, 13)
"""Whether it can be told of any thread, besides an executor's workers, that it waits at a `SimpleQueue`."""
BOX = types.SimpleNamespace(a=None)
"""What any thread can reach."""


@contextlib.contextmanager
def running(work: Callable[[], Any], wake: Callable[[], Any], seconds: float = 1.0) -> Iterator[None]:
    """A thread that does some work, and has come to wait in the midst of it; `wake` ends it."""
    thread = threading.Thread(target=work)
    thread.start()
    settle(seconds)
    try:
        yield
    finally:
        wake()
        thread.join()


def settle(seconds: float = 1.0) -> None:
    """Let the other threads come to wait, as far as they do in that time."""
    until = time.monotonic() + seconds
    while watchers.unknown_thread() and time.monotonic() < until:
        time.sleep(0.001)


def consume(items: Any) -> None:
    while items.get() is not None:
        pass


def consume_if_blocked(items: Any) -> None:
    while items.get(block=True) is not None:
        pass


@pytest.mark.parametrize("work", [consume, consume_if_blocked])
def test_a_consumer_at_an_empty_queue(work: Any) -> None:
    items: Any = queue.SimpleQueue()
    with running(lambda: work(items), lambda: items.put(None)):
        assert taken_over(BOX, 3) == [WAITS] * 3


def idle(executor: concurrent.futures.ThreadPoolExecutor, workers: int = 3) -> None:
    """Have an executor start so many workers, which then come to wait."""
    barrier = threading.Barrier(workers)
    concurrent.futures.wait([executor.submit(barrier.wait) for _ in range(workers)])
    settle(0.2)


def test_idle_workers_of_an_executor() -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        idle(executor)
        assert threading.active_count() >= 4
        assert taken_over(BOX, 3) == [True] * 3


def test_idle_workers_of_several_executors() -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as executor, concurrent.futures.ThreadPoolExecutor(3) as another:
        idle(executor)
        idle(another)
        assert taken_over(BOX, 3) == [True] * 3


def test_the_state_is_kept_beside_a_worker_that_is_at_work() -> None:
    over = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(3) as executor, concurrent.futures.ThreadPoolExecutor(3) as another:
        idle(executor)
        idle(another)
        executor.submit(over.wait, FOR_LONG)
        assert taken_over(BOX, 3) == [False] * 3
        over.set()
        settle()
        assert taken_over(BOX, 3) == [True] * 3


def test_the_state_is_kept_where_there_is_work_that_nobody_has_begun() -> None:
    """On 3.13 it may be what a worker has been handed that has not gone on yet."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        idle(executor, 1)
        work = concurrent.futures.thread._WorkItem(concurrent.futures.Future(), print, (), {})  # type: ignore[call-arg]
        assert taken_over(BOX, 3) == [WAITS] * 3
        del work
        assert taken_over(BOX, 3) == [True] * 3


class Executor(concurrent.futures.ThreadPoolExecutor):
    """It may hand its workers what it likes."""


def test_idle_workers_of_an_executor_that_users_have_written() -> None:
    with Executor(3) as executor:
        idle(executor)
        assert taken_over(BOX, 3) == [WAITS] * 3


def test_the_state_is_kept_beside_workers_that_have_been_told_to_end() -> None:
    """What dies with a thread, such as the values of a `threading.local`, may look."""
    stub = Stub()
    f = stub.compile(first)
    prover = stub.prover
    assert prover is not None
    executor, local, found = concurrent.futures.ThreadPoolExecutor(1), threading.local(), list[Any]()

    class Looks:
        def __del__(self) -> None:
            found.append(BOX.a)

    executor.submit(lambda: setattr(local, "value", Looks())).result()
    settle(0.2)
    BOX.a = stub.new()

    def joining(*args: Any) -> Any:
        kept = prover(*args)
        executor.shutdown()
        return kept

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1)  # the worker is told, and comes to run when this thread waits for it
    try:
        executor.shutdown(wait=False)
        stub.prover = joining
        BOX.a = f(BOX.a)
    finally:
        sys.setswitchinterval(interval)
    assert found
    stub.read(found)


def test_one_that_waits_for_a_notification() -> None:
    items, full, event, future = queue.Queue[Any](), queue.Queue[Any](1), threading.Event(), concurrent.futures.Future()
    full.put(None)
    for work, wake in [
        (items.get, lambda: items.put(None)),
        (lambda: full.put(None), full.get),
        (event.wait, event.set),
        (future.result, lambda: future.set_result(None)),
    ]:
        with running(work, wake):
            assert taken_over(BOX, 3) == [True] * 3


def test_the_state_is_kept_beside_one_whose_notification_was_interrupted() -> None:
    """It is listed as waiting still, though it has been woken."""
    condition, looked, over = threading.Condition(), threading.Event(), list[Any]()
    stub = Stub()
    f = stub.compile(first)

    def work() -> None:
        with condition:
            condition.wait()
        stub.read(BOX.a)
        looked.set()
        over.append(BOX.a)

    BOX.a = stub.new()
    interval = sys.getswitchinterval()
    with running(work, looked.wait):
        prover = stub.prover
        assert prover is not None
        stub.prover = lambda *args: (prover(*args), looked.wait())[0]
        sys.setswitchinterval(1)  # it is woken, and comes to run when this thread waits for it
        try:
            [waiter] = condition._waiters  # type: ignore[attr-defined]
            waiter.release()
            BOX.a = f(BOX.a)
        finally:
            sys.setswitchinterval(interval)
    stub.read(over)


def test_the_state_is_kept_beside_one_that_waits_for_some_time() -> None:
    event, items, plain = threading.Event(), queue.Queue[None](), queue.SimpleQueue[None]()
    for work, wake in [
        (lambda: event.wait(FOR_LONG), event.set),
        (lambda: items.get(timeout=FOR_LONG), lambda: items.put(None)),
        (lambda: plain.get(timeout=FOR_LONG), lambda: plain.put(None)),
        (lambda: plain.get(True, FOR_LONG), lambda: plain.put(None)),
    ]:
        with running(work, wake, 0.05):  # type: ignore[arg-type]
            assert taken_over(BOX, 3) == [False] * 3


def test_the_state_is_kept_beside_one_that_holds_a_lock() -> None:
    """Whoever has the lock may let go of it in C code."""
    lock = threading.Lock()
    lock.acquire()
    with running(lock.acquire, lock.release, 0.05):
        assert taken_over(BOX, 3) == [False] * 3


def test_the_state_is_kept_beside_one_of_several_that_does_not_wait() -> None:
    event, other = threading.Event(), threading.Event()
    with running(event.wait, event.set, 0.05), running(lambda: other.wait(FOR_LONG), other.set, 0.05):
        assert taken_over(BOX, 3) == [False] * 3


class Items(queue.SimpleQueue):  # type: ignore[type-arg]
    """It may wake others as it likes."""


def test_the_state_is_kept_where_users_have_written_what_is_waited_for() -> None:
    items = Items()
    with running(items.get, lambda: items.put(None), 0.05):
        assert taken_over(BOX, 3) == [False] * 3


def test_the_main_thread_does_not_count_as_waiting() -> None:
    """Handlers of signals run in it, of Ctrl-C above all."""
    found: Any = queue.SimpleQueue()

    def work() -> None:
        time.sleep(0.05)
        found.put(taken_over(BOX, 3))

    thread = threading.Thread(target=work)
    thread.start()
    assert found.get() == [False] * 3
    thread.join()


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


@pytest.mark.skipif(not WAITS, reason="no thread is known to wait there")
def test_all_are_looked_at_in_one_moment() -> None:
    """One that waits when it is looked at may be woken before the last one is."""
    queues: list[Any] = [queue.SimpleQueue() for _ in range(3)]
    look = waiting_threads._called_on

    def looking(*args: Any) -> Any:
        found = look(*args)
        queues[1].put(None)
        return found

    with contextlib.ExitStack() as stack:
        for each in queues:
            stack.enter_context(running(functools.partial(consume, each), functools.partial(each.put, None)))
        frames = watchers.other_frames()
        assert waiting_threads.all_wait(frames, set(), 4)
        assert not waiting_threads.all_wait(frames, set(), 5)
        with mock.patch.object(waiting_threads, "_called_on", looking):
            assert not waiting_threads.all_wait(frames, set(), 4)


def first_for_ever(items: Any) -> None:
    items.get()
    with contextlib.suppress(queue.Empty):
        items.get(timeout=FOR_LONG)


@pytest.mark.skipif(not WAITS, reason="no thread is known to wait there")
def test_the_state_is_kept_beside_one_that_has_come_to_wait_for_some_time_elsewhere_in_its_code() -> None:
    """At the same queue, in the same frame, at the same height of the stack."""
    items: Any = queue.SimpleQueue()
    look = waiting_threads._called_on

    def looking(*args: Any) -> Any:
        found = look(*args)
        items.put(None)
        time.sleep(0.05)
        return found

    with running(lambda: first_for_ever(items), lambda: items.put(None)):
        frames = watchers.other_frames()
        assert waiting_threads.all_wait(frames, set(), 2)
        with mock.patch.object(waiting_threads, "_called_on", looking):
            assert not waiting_threads.all_wait(frames, set(), 2)


def test_the_state_is_kept_where_executors_make_something_else_of_their_work() -> None:
    """A class with slots has fewer references than others, for which one object makes up."""
    module = concurrent.futures.thread
    slotted = type("_WorkItem", (module._WorkItem,), {"__slots__": ("context",)})  # type: ignore[attr-defined]
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        idle(executor, 1)
        with mock.patch.object(module, "_WorkItem", slotted):
            assert taken_over(BOX, 3) == [WAITS] * 3
        del slotted
        gc.collect()
        assert taken_over(BOX, 3) == [True] * 3


QUEUE_THAT_DIES = """
import queue, threading, types, weakref, time, jax.numpy as jnp, pytc

step = pytc.compile(lambda x: x + 1)
box = types.SimpleNamespace(a=jnp.zeros(64))
gate, kept = queue.SimpleQueue(), []


def make():
    items = queue.SimpleQueue()
    kept.append(weakref.ref(items, gate.get))  # which waits, with no frame of its own
    items.put(1)
    return items


thread = threading.Thread(target=lambda: make().get())
thread.start()
time.sleep(0.2)
box.a = step(box.a)
gate.put(1)
thread.join()
print(float(box.a[0]))
"""


def test_a_queue_that_dies_as_the_call_returns() -> None:
    """It is still on the stack."""
    assert interpreters.printed(["-c", QUEUE_THAT_DIES]) == "1.0\n"


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
    with running(work, end, 0.05):
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
    with running(work, end, 0.05):
        try:
            for n in range(120):
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
