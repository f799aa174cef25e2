"""Calls by code written in C that hands a function arguments of its own, or those that it was given: they are kept."""

from __future__ import annotations

import functools
import operator
import signal
import types
from collections.abc import Callable
from typing import Any

import pytest

from tests.ownership.harness import Functions, Stub, expect


class Trainer:
    def __init__(self, step: Callable[..., Any]):
        self.step = step

    def __call__(self, state: Any) -> Any:
        return self.step(state)


@pytest.mark.parametrize(
    "of",
    [Trainer, lambda f: functools.partial(f), lambda f: functools.partial(lambda config, state: f(state), {})],
    ids=["an object", "a partial", "a partial with an argument"],
)
def test_an_object_and_a_partial(made: Functions, of: Callable[..., Any]) -> None:
    stub, f, _ = made
    step, state = of(f), stub.new()
    for _ in range(3):
        state = step(state)
    expect(not any(call.dead for call in stub.calls))
    stub.read(state)


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


def operator_in_a_partial(s: Stub, f: Callable[..., Any]) -> Any:
    """`operator.add` asks what is behind it, when what is before has said that it cannot."""

    class Left:
        def __add__(self, other: Any) -> Any:
            f(other.x)
            return NotImplemented

    class Right:
        def __init__(self, x: Any):
            self.x = x

        def __radd__(self, left: Any) -> Any:
            return s.read(self.x)

    def call(x: Any) -> Any:
        add = functools.partial(operator.add, Left())
        return add(Right(x))

    return call


def partial_of_the_method_of_an_object(s: Stub, f: Callable[..., Any]) -> Any:
    """Somebody has a tuple like the one that C code would make if the object itself was called."""
    best = types.SimpleNamespace(args=())

    def call(x: Any) -> Any:
        train = functools.partial(Trainer.__call__, Trainer(f))
        best.args = (x,)
        y = train(x)
        s.read(best.args)
        return y

    return call


def destructor_with_a_default(s: Stub, f: Callable[..., Any]) -> Any:
    """What is called dies at the end of the call, and its destructor is the same function, with the same argument."""

    def call(x: Any) -> Any:
        class Dies:
            on = False

            def __call__(self, x: Any = x) -> None:
                if self.on:
                    f(x)
                self.on = True

            __del__ = __call__

        Dies()(Dies.__call__.__defaults__[0])  # type: ignore[attr-defined]
        s.read(Dies.__call__.__defaults__)  # type: ignore[attr-defined]

    return call


OTHERWISE = (
    new_and_init, metaclass, cached, reflected, largest, sorted_by_a_partial, reduced, through_operator_call,
    descriptor, changed_keywords, handler_of_a_signal, destructor, operator_in_a_partial,
    partial_of_the_method_of_an_object, destructor_with_a_default,
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
