"""A `with` statement around a call whose exceptions pass it holds nothing; one that may end them does."""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import random
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from tests.ownership.harness import Functions, Stub, expect, first
from tests.ownership.mutants import broken, managers_pass_exceptions_on

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*context manager has been deprecated", "ignore:coroutine .* was never awaited"
)


class Manager:
    """Ends exceptions, or says that it does not, as it is told."""

    def __init__(self, ends: bool) -> None:
        self.ends = ends

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> bool:
        return self.ends


class Passing(Manager):
    def __exit__(self, *_: object) -> Any:
        if self.ends:
            return None
        return False


class Ending:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, ValueError)


class Awaited(Passing):
    async def __exit__(self, *_: object) -> None: ...  # type: ignore[override]


class Yielding(Passing):
    def __exit__(self, *_: object) -> Iterator[None]:  # type: ignore[override]
        yield


class Closing(io.RawIOBase):
    def close(self) -> bool:  # type: ignore[override]
        super().close()
        return True


class Looking:
    """Never ends an exception, but looks at the variables of the function that raised it."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read = read

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.read(sys._getframe(1).f_locals["x"])


@contextlib.contextmanager
def passing() -> Iterator[None]:
    try:
        yield
    finally:
        len("")


@contextlib.contextmanager
def raising_another() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise KeyError from error


@contextlib.contextmanager
def ending() -> Iterator[None]:
    with contextlib.suppress(ValueError):
        yield


@contextlib.contextmanager
def ending_by_return() -> Iterator[None]:
    try:
        yield
    except ValueError:
        return


MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
PASSING: dict[str, Callable[[], Any]] = {
    "of a class": functools.partial(Passing, ends=True),
    "of a function": passing,
    "that raises another": raising_another,
    "nullcontext": contextlib.nullcontext,
    "a lock": threading.Lock,
    "a mesh": lambda: MESH,
    "a mesh that is set": lambda: jax.set_mesh(MESH),
    "a device": lambda: jax.default_device(jax.devices()[0]),
    "a scope": lambda: jax.named_scope("scope"),
    "an annotation": lambda: jax.profiler.TraceAnnotation("train"),
    "that of a step": lambda: jax.profiler.StepTraceAnnotation("train", step_num=1),
}
ENDING: dict[str, Callable[[], Any]] = {
    "of a class": functools.partial(Manager, ends=True),
    "of a class, if so told": functools.partial(Manager, ends=False),
    "of some exceptions": Ending,
    "of a coroutine": functools.partial(Awaited, ends=False),
    "of a generator": functools.partial(Yielding, ends=False),
    "a file": lambda: io.BufferedReader(Closing()),
    "suppress": lambda: contextlib.suppress(ValueError),
    "of a function": ending,
    "of a function, by its return": ending_by_return,
    "a stack of them": contextlib.ExitStack,
}


def go_on(f: Callable[..., Any], x: Any, fails: bool) -> Any:
    """A helper that does something after the call, which may raise."""
    x = f(x)
    if fails:
        raise ValueError("after the call")
    return x


def around_a_loop(f: Any, x: Any, manager: Callable[[], Any], read: Callable[[Any], Any], fails: bool) -> Any:
    with manager():
        for step in range(3):
            x = go_on(f, x, fails and step == 2)
    return read(x)


def in_a_loop(f: Any, x: Any, manager: Callable[[], Any], read: Callable[[Any], Any], fails: bool) -> Any:
    for step in range(3):
        with manager():
            x = go_on(f, x, fails and step == 2)
    return read(x)


def in_another(f: Any, x: Any, manager: Callable[[], Any], read: Callable[[Any], Any], fails: bool) -> Any:
    with contextlib.nullcontext() as _, manager():
        for step in range(3):
            with contextlib.nullcontext():
                x = go_on(f, x, fails and step == 2)
    return read(x)


def by_more_calls(f: Any, x: Any, manager: Callable[[], Any], read: Callable[[Any], Any], fails: bool) -> Any:
    with manager():
        for step in range(3):
            x = failing(f(x), fails and step == 2)
    return read(x)


def failing(x: Any, fails: bool) -> Any:
    if fails:
        raise ValueError("after the call")
    return x


WAYS = [around_a_loop, in_a_loop, in_another, by_more_calls]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("manager", PASSING.values(), ids=PASSING)
def test_one_that_exceptions_pass_holds_nothing(way: Callable[..., Any], manager: Callable[[], Any]) -> None:
    stub = Stub()
    f = stub.compile(first)
    way(f, stub.new(), manager, stub.read, False)
    expect([len(call.dead) for call in stub.calls] == [1, 1, 1])
    with contextlib.suppress(ValueError, KeyError):
        way(f, stub.new(), manager, stub.read, True)
    expect(len(stub.calls) == 6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("manager", ENDING.values(), ids=ENDING)
def test_one_that_may_end_them_does(way: Callable[..., Any], manager: Callable[[], Any]) -> None:
    stub = Stub()
    f = stub.compile(first)
    with contextlib.suppress(ValueError):
        way(f, stub.new(), manager, stub.read, True)
    expect(not any(call.dead for call in stub.calls))


def test_one_that_looks_at_variables_does() -> None:
    stub = Stub()
    f = stub.compile(first)
    with contextlib.suppress(ValueError):
        around_a_loop(f, stub.new(), lambda: Looking(stub.read), stub.read, True)
    expect(not any(call.dead for call in stub.calls))


class Reporting:
    """Evaluates a text in the function that raised the exception."""

    def __init__(self, text: str, read: Callable[[Any], Any]) -> None:
        self.text, self.read = text, read

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.read(_evaluated(self.text))


def _evaluated(text: str) -> Any:
    return eval(text, {}, sys._getframe(2).f_locals)


def report_from_here(f: Any, x: Any, read: Callable[[Any], Any]) -> None:
    with Reporting("x if x is not None else 0", read):
        for step in range(3):
            x = go_on(f, x, step == 2)


def report_from_before(f: Any, x: Any, read: Callable[[Any], Any]) -> None:
    manager = Reporting("x if x is not None else 0", read)
    with contextlib.nullcontext(), manager:
        for step in range(3):
            x = go_on(f, x, step == 2)


@pytest.mark.parametrize("report", [report_from_here, report_from_before])
def test_one_that_evaluates_a_text_that_names_it_does(report: Callable[..., Any]) -> None:
    stub = Stub()
    f = stub.compile(first)
    with contextlib.suppress(ValueError):
        report(f, stub.new(), stub.read)
    expect(not any(call.dead for call in stub.calls))


def test_one_whose_builtins_are_others_may_look() -> None:
    space: dict[str, Any] = {"__builtins__": {**vars(builtins), "above": sys._getframe}}
    source = """\
    class Own:
        def __enter__(self): pass
        def __exit__(self, *_): read(above(1))
    """
    stub = Stub()
    space["read"] = lambda frame: stub.read(frame.f_locals["x"])
    exec(textwrap.dedent(source), space)
    f = stub.compile(first)
    with contextlib.suppress(ValueError):
        around_a_loop(f, stub.new(), space["Own"], stub.read, True)
    expect(not any(call.dead for call in stub.calls))


def test_the_next_one_of_the_same_statement_may_end_exceptions(made: Functions) -> None:
    stub, f, _ = made

    def run(managers: Iterator[Any], x: Any) -> None:
        again = False
        while True:
            try:
                with next(managers):
                    if again:
                        raise ValueError
                    x = stub.new()
                    x = go_on(f, x, fails=True)
                    return
                break  # reached if the manager has ended it
            except ValueError:
                again = True
        stub.read(x)

    for _ in range(3):
        run(iter([Passing(ends=True), Ending()]), stub.new())
    expect(not any(call.dead for call in stub.calls))


def test_another_manager_at_a_place_that_is_known(made: Functions) -> None:
    stub, f, _ = made
    for kind in (passing, passing, ending, passing, ending):
        with contextlib.suppress(ValueError):
            around_a_loop(f, stub.new(), kind, stub.read, fails=True)
    expect([bool(call.dead) for call in stub.calls[1::3]] == [True, True, False, True, False])


class Other(Exception):
    """Besides `ValueError`, which some managers end."""


STATEMENTS = ["with", "with", "for", "except", "finally", "call", "call", "raise", "read", "new", "leave"]


def _block(chosen: random.Random, depth: int, loops: int) -> str:
    return "\n".join(_statement(chosen, depth, loops) for _ in range(chosen.randint(1, 3)))


def _statement(chosen: random.Random, depth: int, loops: int) -> str:
    def block(loops: int = loops) -> str:
        return textwrap.indent(_block(chosen, depth - 1, loops), "    ")

    name = chosen.choice("xy")
    match chosen.choice(STATEMENTS if depth else STATEMENTS[5:]):
        case "with":
            return f"with manager():\n{block()}"
        case "for":
            return f"for _ in range(2):\n{block(loops + 1)}"
        case "except":
            return f"try:\n{block()}\nexcept {chosen.choice(['ValueError', 'Other', 'Exception'])}:\n{block()}"
        case "finally":
            return f"try:\n{block()}\nfinally:\n{block(0)}"
        case "call":
            call = chosen.choice(["go_on(f, {0}, maybe())", "failing(f({0}), maybe())"]).format(name)
            return f"{name} = new()\n" * chosen.choice([0, 1]) + f"{name} = {call}"
        case "raise":
            return f"if maybe(): raise {chosen.choice(['ValueError', 'Other'])}"
        case "read":
            return f"read({name})"
        case "new":
            return f"{name} = new()"
        case _:
            leave = chosen.choice(["break", "continue"]) if loops else "return"
            return f"if maybe(): {leave}"


def _go_on(f: Any, x: Any, kind: type[Exception] | None) -> Any:
    x = f(x)
    if kind is not None:
        raise kind
    return x


def _failing(x: Any, kind: type[Exception] | None) -> Any:
    if kind is not None:
        raise kind
    return x


def run_at_random(seed: int, rounds: int = 6) -> int:
    """Run a random program, and return how many arrays were found dead. Raises if one was read after that."""
    chosen, stub = random.Random(seed), Stub()
    source = f"def run(x, y):\n{textwrap.indent(_block(chosen, 4, 0), '    ')}\n    read(x), read(y)\n"
    kinds = [passing, functools.partial(Passing, ends=True), contextlib.nullcontext, ending, Ending, ending_by_return]
    space: dict[str, Any] = {"f": stub.compile(first), "read": stub.read, "new": stub.new, "Other": Other}
    space["manager"] = lambda: chosen.choice(kinds)()
    space["maybe"] = lambda: chosen.choice([None, None, None, ValueError, Other])
    space |= {"go_on": _go_on, "failing": _failing}
    exec(source, space)
    for _ in range(rounds):
        with contextlib.suppress(ValueError, Other):
            space["run"](stub.new(), stub.new())
    return sum(len(call.dead) for call in stub.calls)


def run_many_at_random() -> int:
    return sum(run_at_random(seed) for seed in range(300))


def test_random_programs() -> None:
    expect(run_many_at_random() > 400)


def test_random_programs_would_notice_managers_that_end_exceptions() -> None:
    with broken(managers_pass_exceptions_on), pytest.raises(RuntimeError, match="deleted"):
        run_many_at_random()
