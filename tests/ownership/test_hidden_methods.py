"""Methods that a class hides from those who ask it, and classes derived of `jax.Array`: what they read is kept."""

from __future__ import annotations

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


@pytest.mark.parametrize("program", [finalised, described, derived])
def test_results_are_those_without_donation(program: Callable[..., list[Any]]) -> None:
    expected = program(jax.jit)
    assert len(expected) == 4
    assert program(pytc.compile) == expected
