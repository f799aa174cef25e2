"""Starred calls through C code: while a tuple is made, when it is let go of, and behind the call the same function may
run, and the stack has what is not there yet, or gone."""

from __future__ import annotations

import _thread
import collections
import functools
import signal
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tests import interpreters
from tests.ownership.harness import Functions, Stub, expect


class End:
    """What an iterator ends at, the third time that it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __eq__(self, other: object) -> bool:
        self.asked += 1
        return self.asked > 2

    __hash__ = None  # type: ignore[assignment]


def of_an_iterator(step: Callable[..., Any], partial: Any) -> None:
    step(*iter(partial, End()))


def of_a_dictionary(step: Callable[..., Any], partial: Any) -> None:
    step(*map(collections.defaultdict(partial).__getitem__, "abc"))


def of_a_list(step: Callable[..., Any], partial: Any) -> None:
    step(*[partial() for _ in range(2)])


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("unpacks", [of_an_iterator, of_a_dictionary, of_a_list])
def test_while_the_tuple_is_made_a_partial_calls_the_function(made: Functions, unpacks: Callable[..., None]) -> None:
    stub, f, _ = made

    class Model:
        step = f

    for function in (f, Model().step):
        for _ in range(3):
            partial = functools.partial(function, stub.new())
            unpacks(function, partial)
            stub.read(partial.args)


class _RaiseSignal:
    """The signal strikes when what raises it has returned."""

    __getitem__ = staticmethod(_thread.interrupt_main)


_RAISE_SIGNAL = _RaiseSignal()


def handler_is_the_function(stub: Stub, f: Callable[..., Any], is_method: bool) -> None:
    """A new dictionary has taken the place of that of the keywords, and somebody has it."""
    history: list[Any] = []

    def act(flag: bool) -> None:
        if flag:
            _RAISE_SIGNAL[signal.SIGUSR1]
        else:
            history.append({"x": stub.new()})
            f(history[-1]["x"])

    def run(first: Any, second: Any, flag: bool = False) -> None:
        act(flag)

    class Worker:
        def run(self, first: Any, second: Any, flag: bool = False) -> None:
            act(flag)

    called = Worker().run if is_method else run

    def main(more: dict[str, bool]) -> Any:
        given = (1, 2)
        called(*given, **more)
        return given

    before = signal.signal(signal.SIGUSR1, called)
    try:
        for _ in range(8):
            main({"flag": True})
            stub.read(history)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("is_method", [False, True])
def test_the_handler_of_a_signal_is_the_function(made: Functions, is_method: bool) -> None:
    handler_is_the_function(*made[:2], is_method)


@pytest.mark.usefixtures("uncollected")
def test_a_destructor_is_the_function(made: Functions) -> None:
    """An item of the tuple dies with it; the variable has one that it came of."""
    stub, f, _ = made
    best: list[Any] = []

    class Dies:
        def __del__(self) -> None:
            run(*best)

    def run(*args: Any) -> Any:
        return f(*args[:1]) if type(args[0]) is not Dies else None

    for _ in range(4):
        best[:] = [stub.new()]
        run(*(Dies(), best[0]))
        run(*[Dies(), best[0]])
        stub.read(best)


@pytest.mark.usefixtures("uncollected")
def test_a_destructor_of_a_keyword_is_the_function(made: Functions) -> None:
    """The tuple is gone by then, and the dictionary about to be."""
    stub, f, _ = made
    best: list[Any] = []

    def run(first: Any, other: Any = None) -> Any:
        return f(best[0]) if type(first) is Dies else None

    class Dies:
        __del__ = run

    class Model:
        step = staticmethod(run)

        def method(self, first: Any = None, other: Any = None) -> Any:
            return None if first is not None else f(best[0])

        __del__ = method

    for _ in range(4):
        best[:] = [stub.new()]
        run(*(best[0],), other=Dies())
        Model().step(*(best[0],), other=Dies())
        Model().method(*(best[0],), other=Dies())
        Model().method(*(best[0],), other=Model())
        stub.read(best)


@pytest.mark.usefixtures("uncollected")
def test_a_list_in_a_variable_is_not_what_the_call_has(made: Functions) -> None:
    """The interpreter makes a tuple of it, and what is left on the stack is no reference."""
    stub, f, _ = made

    class Model:
        step = staticmethod(f)

        def run(self, x: Any) -> Any:
            return f(x)

    for function in (f, Model().step, Model().run):
        for _ in range(3):
            given = [stub.new()]
            kept = iter([given])
            function(*given)
            given = []
            stub.read([*kept])


def test_a_starred_dictionary_is_gone_before_the_call(made: Functions) -> None:
    """The interpreter makes a tuple of its keys, and the next dictionary comes to lie where it was."""
    stub, f, _ = made
    kept: list[Any] = []

    class Box(list[Any]):
        __hash__ = object.__hash__

    def act(box: Box) -> None:
        new = {"x": box.pop()}
        kept.append(new)
        f(new["x"])

    class Model:
        def act(self, box: Box) -> None:
            new = {"x": box.pop()}
            kept.append(new)
            f(new["x"])

    for function in (act, Model().act):
        for _ in range(3):
            box = Box([stub.new()])
            function(*{box: True})
            stub.read(kept)
            kept.clear()


def test_what_is_gone_is_not_read() -> None:
    """A handler of a signal, behind a call of a bound method, finds other things where that was."""
    script = """
        import _thread, signal
        import jax, pytc

        step = pytc.compile(lambda x: x * 2 + 1)

        class Raise:
            __getitem__ = staticmethod(_thread.interrupt_main)

        raise_signal = Raise()

        class Worker:
            def run(self, first, second):
                raise_signal[signal.SIGUSR1]

        log = []

        def handler(number, frame):
            for i in range(50):
                log.append(b"%020d" % i)
            log.append(step(jax.numpy.ones(100)))

        signal.signal(signal.SIGUSR1, handler)

        def main(worker):
            given = (1, 2)
            worker.run(*given)
            return given

        for _ in range(20):
            main(Worker())
        print("came through", float(log[-1][0]))
    """
    run = interpreters.run(["-c", textwrap.dedent(script)])
    expect((run.returncode, run.stdout) == (0, "came through 3.0\n"))
