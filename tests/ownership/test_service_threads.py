"""Threads of libraries and handlers of signals that never read a program's data, and those that may."""

import asyncio
import importlib
import io
import signal
import sys
import textwrap
import threading
import types
from typing import Any

import pytest
import zmq
from tqdm import TMonitor, tqdm
from tqdm.auto import tqdm as any_tqdm

from pytc.ownership.others import service_threads
from tests.ownership.harness import taken_over


@pytest.fixture(autouse=True)
def _no_monitor_is_left():
    yield
    for thread in monitors():
        thread.exit()


def monitors() -> list[TMonitor]:
    return [thread for thread in threading.enumerate() if isinstance(thread, TMonitor)]


def thread_of(module: types.ModuleType, function: str, until: Any) -> threading.Thread:
    """A thread at whose bottom there is a function of this name in a module."""
    source = "def run(until):\n    until.wait(600)"
    for name in reversed(function.split(".")[:-1]):
        source = f"class {name}:\n" + textwrap.indent(source, "    ")
    source = source.replace("def run(", f"def {function.rpartition('.')[2]}(")
    exec(source, vars(module))
    return threading.Thread(target=eval(function, vars(module)), args=(until,))


BOXES: list[Any] = []


def train(steps: int = 4) -> list[bool]:
    """For each step, whether the state in an attribute was taken over."""
    BOXES.append(types.SimpleNamespace())  # where other threads could find it
    try:
        return taken_over(BOXES[-1], steps)
    finally:
        BOXES.pop()


class Waiting(threading.Event):
    def wait(self, timeout=None):
        """A user's function in the midst of a library's thread."""
        return super().wait(timeout)


SIMPLE = sorted(service_threads.HARMLESS.keys() - service_threads._OF_CLASSES.keys())


@pytest.mark.parametrize(
    ("thread", "until", "dead"),
    [
        *((thread, threading.Event, True) for thread in SIMPLE),
        *((thread, Waiting, False) for thread in SIMPLE),
        *((thread, threading.Event, False) for thread in service_threads._OF_CLASSES),
        (("wandb.sdk.lib.asyncio_manager", "AsyncioManager.run"), threading.Event, False),
        (("__main__", "AsyncioManager._main"), threading.Event, False),
    ],
)
def test_a_thread_of_a_library(monkeypatch, thread, until, dead):
    """State in an attribute is reused beside those that never read a program's data, as long as they run nothing
    else."""
    name, function = thread
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    beside_it(module, function, until(), dead)


def test_a_thread_that_says_it_is_of_a_library():
    for name, function in service_threads.HARMLESS:
        beside_it(types.ModuleType(name), function, threading.Event(), False)


def beside_it(module, function, waiting, dead):
    beside = thread_of(module, function, waiting)
    beside.start()
    try:
        assert train() == [dead] * 4
    finally:
        waiting.set()
        beside.join()


@pytest.mark.parametrize(
    ("module", "kind", "dead"),
    [
        ("ipykernel.control", "ControlThread", True),
        ("ipykernel.thread", "BaseThread", False),  # anyone may have one, with callbacks on it
        ("ipykernel.subshell", "SubshellThread", False),
        ("__main__", "ControlThread", False),
    ],
)
def test_a_thread_of_jupyter_counts_by_its_class(module, kind, dead):
    base = importlib.import_module("ipykernel.thread").BaseThread
    if module == "__main__":
        thread = type(kind, (base,), {"__module__": module})()
    elif kind == "SubshellThread":
        thread = importlib.import_module(module).SubshellThread("one", zmq.Context())
    else:
        thread = getattr(importlib.import_module(module), kind)()
    thread.daemon = True
    thread.start()
    running = threading.Event()
    thread.io_loop.add_callback(running.set)
    try:
        assert running.wait(60)
        assert train()[1:] == [dead] * 3  # at first it may still be about to run
    finally:
        thread.stop()
        thread.join()


class Log(io.StringIO):
    def write(self, text):
        """What people give to tqdm to have it in a log."""
        return super().write(text)


class Bar(tqdm):
    """Drawn by tqdm, and by whoever overrides something."""


class Told(str):
    def __getitem__(self, at):
        """What tqdm asks a description for."""
        return super().__getitem__(at)


def bar(**options: Any) -> Any:
    return tqdm(**{"file": sys.__stderr__, "total": 4, "miniters": 1, **options})


BARS = {
    "a bar": (lambda: bar(desc="training", postfix={"loss": 1.5}, ascii=True, colour="green"), True),
    "a bar for any terminal": (lambda: any_tqdm(range(4), file=sys.__stderr__), True),
    "a bar in a string": (lambda: bar(file=io.StringIO()), True),
    "a bar in a log": (lambda: bar(file=Log()), False),
    "a bar of a class of users": (lambda: Bar(total=4, file=sys.__stderr__), False),
    "a bar that is told by an object": (lambda: bar(desc=Told("training")), False),
}


@pytest.mark.parametrize(("make", "dead"), BARS.values(), ids=BARS.keys())
def test_the_monitor_of_tqdm(make, dead):
    with make():
        assert monitors()
        assert train() == [dead] * 4


def test_a_bar_with_a_method_of_its_own():
    with bar() as ours:
        ours.display = lambda *_, **__: None
        assert train() == [False] * 4


def test_a_stream_with_a_method_of_its_own():
    stream = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w", closefd=False)))
    with bar(file=stream):
        assert train() == [True] * 4
        stream.write = lambda text: None
        assert train() == [False] * 4


def test_a_stream_that_was_detached():
    """tqdm would raise as it draws the bar, and tell whoever is told of that."""
    stream = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w", closefd=False)))
    ours = bar(file=stream)
    assert train() == [True] * 4
    assert stream.detach()
    assert train() == [False] * 4
    with pytest.raises(ValueError, match="detached"):
        ours.close()


class Saving(asyncio.Task):
    def cancel(self, *args, **kwargs):
        """What saves the state when it is told to end."""
        return super().cancel(*args, **kwargs)


class Loop(asyncio.SelectorEventLoop):
    """An event loop of users'."""


def with_tasks(make):
    def loop():
        new = asyncio.new_event_loop()
        new.set_task_factory(make)
        return new

    return loop


async def training():
    return train()


async def training_beside():
    return await asyncio.create_task(training())


async def training_among_others():
    return (await asyncio.gather(asyncio.sleep(0.01), asyncio.gather(training())))[1][0]


async def training_in_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0.01))
        trained = group.create_task(training())
    return trained.result()


async def training_in_time():
    return await asyncio.wait_for(asyncio.shield(training()), 60)


class Promise(asyncio.Future):
    """What saves the state when nobody waits for it any more."""


async def training_for_a_promise():
    promise = Promise()
    asyncio.create_task(training()).add_done_callback(lambda task: promise.set_result(task.result()))
    return await promise


async def training_beside_a_promise():
    promise = Promise()
    asyncio.get_running_loop().call_later(0.01, promise.set_result, None)
    return (await asyncio.gather(training(), promise))[0]


async def training_among_very_many():
    return (await asyncio.gather(training(), *(asyncio.sleep(0.01) for _ in range(100))))[0]


@pytest.mark.parametrize(
    ("main", "loop", "dead"),
    [
        (training, None, True),
        (training, Loop, False),
        (training, with_tasks(lambda loop, coroutine, **_: Saving(coroutine, loop=loop)), False),
        (training_beside, None, True),
        (training_beside, Loop, False),
        (training_beside, with_tasks(lambda loop, coroutine, **_: Saving(coroutine, loop=loop)), False),
        (training_among_others, None, True),
        (training_in_a_group, None, True),
        (training_in_time, None, True),
        (training_for_a_promise, None, False),
        (training_beside_a_promise, None, False),
        (training_among_very_many, None, False),
    ],
)
def test_the_handler_of_ctrl_c_of_asyncio(main, loop, dead):
    """It cancels the main task, and so what that waits for, which runs nothing if all of it is asyncio's."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(main()) == [dead] * 4
    finally:
        signal.signal(signal.SIGINT, before)
