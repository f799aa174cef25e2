"""Calls through objects that have a `__call__`, and through partials: what C code keeps of them is dead when it hands
them on, and alive when it does anything else."""

from __future__ import annotations

import contextlib
import functools
import operator
import signal
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pytc.ownership import callers, interpreter
from pytc.ownership.handed_on import kept_on_the_way
from pytc.ownership.starred import young_tuples
from tests.ownership.harness import Functions, Stub, expect


class Trainer:
    def __init__(self, step: Callable[..., Any]):
        self.step = step

    def __call__(self, state: Any, batch: Any = None) -> Any:
        return self.step(state)


class Starred(Trainer):
    def __call__(self, *args: Any) -> Any:
        return self.step(*args)


class ThroughAnother(Trainer):
    def __call__(self, state: Any, *rest: Any) -> Any:
        return self.helper(state)

    def helper(self, state: Any) -> Any:
        return self.step(state)


class OfSlots:
    __slots__ = ("step",)

    def __init__(self, step: Callable[..., Any]):
        self.step = step

    def __call__(self, state: Any) -> Any:
        return self.step(state)


def behind(step: Callable[..., Any], before: int) -> Callable[..., Any]:
    """A function that calls the step with its argument behind so many others."""

    def none(state: Any, *, key: Any = None) -> Any:
        return step(state)

    def one(config: Any, state: Any, key: Any = None) -> Any:
        return step(state)

    def some(*args: Any, **kwargs: Any) -> Any:
        return step(args[before])

    return (none, one, some)[min(before, 2)]


MADE: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "an object": Trainer,
    "an object that takes anything": Starred,
    "an object with a helper": ThroughAnother,
    "an object without a dictionary": OfSlots,
    "an object that calls an object": lambda f: Trainer(Trainer(f)),
    "a partial of nothing": lambda f: functools.partial(behind(f, 0)),
    "a partial of one": lambda f: functools.partial(behind(f, 1), {"lr": 1e-3}),
    "a partial of two": lambda f: functools.partial(behind(f, 2), 1.5, []),
    "a partial of a keyword": lambda f: functools.partial(behind(f, 0), key=[]),
    "a partial of one and a keyword": lambda f: functools.partial(behind(f, 1), {"lr": 1e-3}, key=[]),
    "a partial of two and a keyword": lambda f: functools.partial(behind(f, 2), 1.5, [], key=[]),
    "a partial of a partial": lambda f: functools.partial(functools.partial(behind(f, 2), 1.5), []),
    "a partial of the step": functools.partial,
    "a partial of the step and a keyword": lambda f: functools.partial(f, key=1),
    "a partial of an object": lambda f: functools.partial(Trainer(f)),
}
HAND_ON = [name for name in MADE if name != "a partial of an object"]
"""That is called by C code that C code calls."""


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", HAND_ON)
def test_a_variable_that_is_overwritten(made: Functions, name: str) -> None:
    stub, f, _ = made
    step = MADE[name](f)
    state = {"w": stub.new(), "b": [stub.new()]}
    for _ in range(4):
        state = step(state)
    expect([call.dead for call in stub.calls] == [{0, 1}] * 4)
    stub.read(state)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", HAND_ON)
def test_through_an_attribute_and_with_a_fresh_state(made: Functions, name: str) -> None:
    stub, f, _ = made
    box = types.SimpleNamespace(step=MADE[name](f))
    for _ in range(3):
        stub.read(box.step(stub.new()))
    expect([call.dead for call in stub.calls] == [{0}] * 3)


@pytest.mark.usefixtures("uncollected")
def test_with_a_batch(made: Functions) -> None:
    stub, _, f2 = made

    class Pair:
        def __call__(self, state: Any, batch: Any) -> Any:
            return f2(state, batch)

    step, part = Pair(), functools.partial(lambda config, state, batch: f2(state, batch), [])
    state, batch = stub.new(), stub.new()
    for _ in range(3):
        state, _loss = step(state, batch)
        state, _loss = part(state, batch)
    expect([call.dead for call in stub.calls] == [{0}] * 6)
    stub.read((state, batch))


@pytest.mark.parametrize("name", MADE)
def test_what_the_caller_reads_again(made: Functions, name: str) -> None:
    stub, f, _ = made
    step = MADE[name](f)
    state = stub.new()
    for _ in range(4):
        new = step(state)
        stub.read((state, new))
    expect(not any(call.dead for call in stub.calls))


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("keep", [list, lambda x: [(x,)], lambda x: [weakref.ref(x)], lambda x: [{"k": x}] * 2])
def test_what_somebody_else_has(made: Functions, name: str, keep: Callable[[Any], Any]) -> None:
    stub, f, _ = made
    step, kept = MADE[name](f), list[Any]()
    state = stub.new()
    for _ in range(4):
        kept += keep([state] if keep is list else state)
        state = step(state)
    expect(not any(call.dead for call in stub.calls))
    for each in kept:
        stub.read(each() if isinstance(each, weakref.ref) else each)


@pytest.mark.parametrize("name", MADE)
def test_a_tuple_of_just_the_arguments(made: Functions, name: str) -> None:
    """It is alike what C code keeps."""
    stub, f, _ = made
    step, kept = MADE[name](f), list[Any]()
    state = stub.new()
    for _ in range(4):
        kept.append((state,))
        state = step(kept[-1][0])
    stub.read(kept)
    expect(not any(call.dead for call in stub.calls))


def test_what_the_function_called_keeps(made: Functions) -> None:
    stub, f, _ = made
    kept: list[Any] = []

    class Keeps:
        def __call__(self, state: Any) -> Any:
            kept.append(state)
            return f(state)

    class KeepsItsArguments:
        def __call__(self, *args: Any) -> Any:
            kept.append(args)
            return f(args[0])

    def keeps(config: Any, state: Any, key: Any = None) -> Any:
        kept.append((config, state))
        return f(state)

    for step in (Keeps(), KeepsItsArguments(), functools.partial(keeps, 1), functools.partial(keeps, 1, key=2)):
        state = stub.new()
        for _ in range(3):
            state = step(state)
    stub.read(kept)
    expect(not any(call.dead for call in stub.calls))


def test_what_the_function_called_reads_again(made: Functions) -> None:
    stub, f, _ = made

    class Reads:
        def __call__(self, state: Any) -> Any:
            new = f(state)
            return stub.read(state), new

    step = Reads()
    for _ in range(3):
        step(stub.new())
    expect(not any(call.dead for call in stub.calls))


def new_and_init(s: Stub, f: Callable[..., Any], meta: type = type) -> Any:
    """A class is called: `type` hands what it is given to `__new__`, and then to `__init__`."""

    class State(metaclass=meta):
        def __new__(cls, x: Any) -> Any:
            f(x)
            return super().__new__(cls)

        def __init__(self, x: Any):
            s.read(x)

    return State


def metaclass(s: Stub, f: Callable[..., Any]) -> Any:
    """The same under a class of classes, whose `__call__` hands it on to `type`'s."""

    class Meta(type):
        def __call__(cls, x: Any) -> Any:
            return super().__call__(x)

    return new_and_init(s, f, Meta)


def cached(s: Stub, f: Callable[..., Any]) -> Any:
    """What remembers its arguments."""

    @functools.lru_cache
    def get(holder: Any) -> Any:
        return f(holder.x)

    def step(x: Any) -> Any:
        holder = types.SimpleNamespace(x=x)
        get(_Hashable(holder))
        return s.read(holder.x)

    return step


class _Hashable:
    def __init__(self, holder: Any):
        self.holder = holder

    @property
    def x(self) -> Any:
        return self.holder.x


def reflected(s: Stub, f: Callable[..., Any]) -> Any:
    """`operator.mul(a, b)` asks `a`, and then `b`."""

    class Left:
        def __init__(self, x: Any):
            self.x = x

        def __mul__(self, other: Any) -> Any:
            f(other.x)
            return NotImplemented

    class Right:
        def __init__(self, x: Any):
            self.x = x

        def __rmul__(self, left: Any) -> Any:
            return s.read((self.x, left.x))

    return lambda x: operator.mul(Left(s.new()), Right(x))


def largest(s: Stub, f: Callable[..., Any]) -> Any:
    """`max` returns what it has called an object with."""

    class Key:
        def __call__(self, x: Any) -> int:
            f(x)
            return 0

    key = Key()
    return lambda x: s.read(max(x, s.new(), key=key))


def sorted_by_a_partial(s: Stub, f: Callable[..., Any]) -> Any:
    key = functools.partial(lambda config, x: (f(x), 0)[1], {})
    return lambda x: s.read(sorted([x], key=key))


def reduced(s: Stub, f: Callable[..., Any]) -> Any:
    class Add:
        def __call__(self, a: Any, b: Any) -> Any:
            f(b)
            return a

    return lambda x: s.read((functools.reduce(Add(), [s.new(), x]), x))


def through_operator_call(s: Stub, f: Callable[..., Any]) -> Any:
    return lambda x: s.read((operator.call(Trainer(f), x), x))


def descriptor(s: Stub, f: Callable[..., Any]) -> Any:
    """The `__call__` of a class is an object that is handed the arguments, and reads them again."""

    class Call:
        def __get__(self, instance: Any, owner: Any) -> Any:
            def call(x: Any) -> Any:
                f(x)
                return s.read(x)

            return call

    class Odd:
        __call__ = Call()

    return Odd()


def changed_keywords(s: Stub, f: Callable[..., Any]) -> Any:
    """A partial that is given keywords while it is being called."""
    kept: list[Any] = []

    def run(config: Any, x: Any, key: Any = None) -> Any:
        step.keywords["key"] = None
        kept.append(x)
        return f(x)

    step = functools.partial(run, 1)

    def call(x: Any) -> Any:
        step.keywords.clear()
        y = step(x)
        s.read(kept)
        return y

    return call


def handler_of_a_signal(s: Stub, f: Callable[..., Any]) -> Any:
    """An object handles a signal that comes behind a call of it."""
    kept: list[Any] = []

    class Handles:
        def __call__(self, *args: Any) -> Any:
            if len(args) == 2:
                kept[:] = [f(*kept), *kept]
                return None
            kept[:] = args
            signal.raise_signal(signal.SIGUSR1)
            return args[0]

    handles = Handles()

    def call(x: Any) -> Any:
        before = signal.signal(signal.SIGUSR1, handles)
        try:
            x = handles(x)
        finally:
            signal.signal(signal.SIGUSR1, before)
        return s.read((x, kept))

    return call


def destructor(s: Stub, f: Callable[..., Any]) -> Any:
    """The last argument dies at the end of the call, and its destructor is the function called."""
    kept: list[Any] = []

    class Dies:
        def __call__(self, *args: Any) -> Any:
            if kept:
                f(kept[0])
            return None

        __del__ = __call__

    def call(x: Any) -> Any:
        kept[:] = [x]
        Dies()(x, Dies())
        s.read((x, kept))
        kept.clear()

    return call


OTHERWISE = (
    new_and_init, metaclass, cached, reflected, largest, sorted_by_a_partial, reduced, through_operator_call,
    descriptor, changed_keywords, handler_of_a_signal, destructor,
)  # fmt: skip


@pytest.mark.parametrize("otherwise", OTHERWISE)
def test_c_code_that_does_something_else_with_it(made: Functions, otherwise: Callable[..., Any]) -> None:
    stub, f, _ = made
    step = otherwise(stub, f)
    for _ in range(4):
        step(stub.new())
    for _ in range(4):
        x = stub.new()
        step(x)
        x = None


@pytest.mark.usefixtures("uncollected")
def test_of_tuples_alike_each_is_found_once_and_with_its_references() -> None:
    items = (object(), [])
    once, twice = [(*items,)], [(*items,)] * 2
    expect([*map(id, young_tuples(items, 1, ()))] == [id(once[0])])
    expect([*map(id, young_tuples(items, 2, ()))] == [id(twice[0])])
    expect(young_tuples(items, 1, [items, *once]) == young_tuples(items, 3, ()) == [])
    expect(young_tuples((items[0], []), 1, ()) == young_tuples(items[:1], 1, ()) == [])


def test_a_class_is_not_taken_for_what_a_partial_has_put_there() -> None:
    """Both lie where what is called does, and come first among the arguments of the function that is called so."""
    kept: list[Any] = []

    def look(below: types.FrameType) -> None:
        frame: Any = below.f_back
        call = callers.site_of(frame).called
        expect(call is not None and interpreter.waits_for_c(frame))
        kept.append(kept_on_the_way(frame, call, [], below, []))  # type: ignore[arg-type]

    class State:
        def __new__(cls, x: Any) -> Any:
            look(sys._getframe())
            return super().__new__(cls)

    def behind_another(config: Any, x: Any) -> Any:
        look(sys._getframe())

    x = object()
    State(x)
    functools.partial(behind_another, "config")(x)
    expect(kept == [[], [x] if sys.version_info < (3, 13) else []])


def test_a_handler_that_reads_it(made: Functions) -> None:
    """Behind C code a signal may be looked for, whose handler raises."""
    stub, f, _ = made

    class Raises:
        def __call__(self, state: Any) -> Any:
            f(state)
            raise ValueError

    for step in (Raises(), functools.partial(Raises.__call__, None)):
        state = stub.new()
        for _ in range(3):
            with contextlib.suppress(ValueError):
                state = step(state)
            stub.read(state)
    expect(not any(call.dead for call in stub.calls))


def test_slots_do_not_count_behind_c_code(made: Functions) -> None:
    stub, f, _ = made
    box, step = types.SimpleNamespace(x=stub.new()), Trainer(f)
    for _ in range(3):
        box.x = step(box.x)
    expect(not any(call.dead for call in stub.calls))
    stub.read(box.x)
