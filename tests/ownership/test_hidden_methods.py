"""Methods that a class hides from those who ask it, and classes derived of `jax.Array`: what they read is kept."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc


class Box:
    """What holds a state, or anything else."""

    x: Any
    other: Any


def told(arrays: list[Any]) -> list[Any]:
    """The first element of each, or that it is deleted."""
    return ["deleted" if x.is_deleted() else float(x[0]) for x in arrays]


def finalised(jit: Callable[..., Any]) -> list[Any]:
    """`types.DynamicClassAttribute` says of a class that it has no such attribute."""
    saved: list[Any] = []

    class Hiding(Box):
        @types.DynamicClassAttribute
        def __del__(self) -> Callable[[], None]:
            return lambda: saved.append(self.x)

    step = jit(lambda x: x + 1)
    for k in range(4):
        box = Hiding()
        box.x = jnp.full(4, float(k))
        _ = step(box.x)
    del box
    return told(saved)


class Hidden:
    """A method of a descriptor that the descriptor's class says it has not."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is None:
            raise AttributeError
        return lambda *args: self._function(owner, *args)

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


def described(jit: Callable[..., Any]) -> list[Any]:
    """An attribute that remembers what it was."""
    history: list[Any] = []

    class Remembering:
        __get__ = Hidden(lambda _, owner, __: owner.__dict__["_x"])

        @Hidden
        def __set__(self, owner: Any, value: Any) -> None:
            history.append(owner.__dict__.get("_x"))
            owner.__dict__["_x"] = value

    class Run:
        x: Any = Remembering()

    step = jit(lambda x: x + 1)
    run = Run()
    run.x = jnp.zeros(4)
    for _ in range(4):
        run.x = step(run.x)
    return told(history[1:])


def derived(jit: Callable[..., Any]) -> list[Any]:
    """An array of people's own that reads the state as it dies."""
    seen: list[Any] = []
    run = Box()

    class Mine(jax.Array):  # type: ignore[misc]
        dtype, shape = np.dtype("float32"), ()

        def __del__(self) -> None:
            seen.extend(told([run.x]))

    step = jit(lambda x: (x + 1, x * 2))
    run.x = jnp.ones(4)
    for _ in range(4):
        run.other = Mine()
        run.other, run.x = step(run.x)
    return seen


class Greater(str):
    """A key that looks at the state where another one is compared with it: `<` asks the derived class for `>`."""

    __slots__ = ("look",)
    look: Callable[[], None]

    def __gt__(self, other: str) -> bool:
        self.look()
        return str.__gt__(self, other)


def sorted_keys(jit: Callable[..., Any]) -> list[Any]:
    """Keys of dictionaries are sorted at each call."""
    kept: list[Any] = []
    run = Box()
    step = jit(lambda x, d: x + d["a"] + d["b"])
    greater = Greater("b")
    greater.look = lambda: None
    d = {greater: jnp.ones(4), "a": jnp.ones(4)}
    run.x = jnp.zeros(4)
    for k in range(8):
        greater.look = (lambda: kept.append(run.x)) if k > 3 else lambda: None
        run.x = step(run.x, d)
    # How often keys are compared is for JAX to say.
    return told([*{id(x): x for x in kept}.values()])


@pytest.mark.parametrize("program", [finalised, described, derived, sorted_keys])
def test_results_are_those_without_donation(program: Callable[..., list[Any]]) -> None:
    expected = program(jax.jit)
    assert len(expected) == 4
    assert program(pytc.compile) == expected


class Making:
    """An `__init__` that the class says is `object`'s, and that keeps what an object is made of."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __get__(self, value: Any, kind: Any = None) -> Any:
        return object.__init__ if value is None else lambda *_: self.made.append(value[0])


def test_named_tuples_that_remember_what_they_are_made_of() -> None:
    making = Making()

    class State(collections.namedtuple("State", "x y")):
        __slots__ = ()
        __init__ = making

    def run(step: Callable[..., Any]) -> None:
        state = State(jnp.zeros(4), jnp.ones(4))
        for k in range(6):
            state = step(state) if k % 2 else step(State(state.x + 0, state.y))

    run(pytc.compile(lambda s: State(s.x + 1, s.y * 2)))
    arrays = [x for x in making.made if type(x) is type(jnp.zeros(4))]
    assert arrays
    assert not any(x.is_deleted() for x in arrays)


def test_classes_that_hide_how_they_are_hashed_and_compared() -> None:
    class Key(str):
        __slots__ = ()
        __hash__ = types.DynamicClassAttribute(lambda self: lambda: str.__hash__(self))

    class Adding:
        __hash__ = object.__hash__
        __eq__ = types.DynamicClassAttribute(lambda self: lambda other: self is other)

        def __call__(self, x: Any) -> Any:
            return x + 1

    state = {Key("a"): jnp.zeros(2)}
    step = pytc.compile(lambda d: {k: v + 1 for k, v in d.items()})
    for _ in range(4):
        state = step(state)
    np.testing.assert_array_equal(state["a"], jnp.full(2, 4.0))
    np.testing.assert_array_equal(pytc.compile(Adding())(jnp.zeros(2)), jnp.ones(2))
