"""A state that is interrupted by Ctrl-C at the worst moment, and the ways in which a call may come about."""

from __future__ import annotations

import signal
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

import pytc
from pytc.calls import cache
from pytc.calls.unflattening import Unflattening

INTERRUPT: list[None] = []


@jax.tree_util.register_pytree_node_class
class Interrupting:
    """Raises SIGINT while the result of a call is put together, the worst moment."""

    def __init__(self, value: Any):
        self.value = value

    def tree_flatten(self) -> Any:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Interrupting:
        if INTERRUPT:
            INTERRUPT.pop()
            signal.raise_signal(signal.SIGINT)
        return cls(*children)


Step = Callable[..., Any]
Way = Callable[[Step, Any], None]


class Model:
    """A method around the step."""

    def __init__(self, step: Step):
        self.inner = step

    def step(self, state: Any) -> Any:
        return self.inner(state)


def decorated(step: Step) -> Step:
    """The step behind what decorators put around it."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    return wrapper


def plain_call(step: Step, holder: Any) -> None:
    holder.state = step(holder.state)


def starred_call(step: Step, holder: Any) -> None:
    holder.state = step(*(holder.state,))


def decorated_call(step: Step, holder: Any) -> None:
    holder.state = decorated(step)(holder.state)


def decorated_keyword(step: Step, holder: Any) -> None:
    holder.state = decorated(step)(state=holder.state)


def starred_method(step: Step, holder: Any) -> None:
    holder.state = Model(step).step(*(holder.state,))


def method(step: Step, holder: Any) -> None:
    holder.state = Model(step).step(holder.state)


def read_by_a_handler(step: Step, holder: Any) -> None:
    state, holder.state = holder.state, None
    try:
        state = decorated(step)(state)
    finally:
        holder.state = state


def starred_method_and_a_handler(step: Step, holder: Any) -> None:
    state, holder.state = holder.state, None
    try:
        state = Model(step).step(*(state,))
    finally:
        holder.state = state


WAYS: tuple[Way, ...] = (
    plain_call, starred_call, decorated_call, decorated_keyword, starred_method, method, read_by_a_handler,
    starred_method_and_a_handler,
)  # fmt: skip


def loses(way: Way) -> bool:
    """Whether an interrupt of the fourth call leaves the holder with an array that is gone."""
    step = pytc.compile(lambda state: Interrupting(state.value + 1))
    holder = types.SimpleNamespace(state=Interrupting(jnp.zeros(3)))
    with mock.patch.object(cache, "observed", return_value=Unflattening()):  # what it raises it puts off itself
        for _ in range(3):
            way(step, holder)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    INTERRUPT.append(None)
    try:
        way(step, holder)
        for _ in range(10**9):
            pass
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, before)
    return bool(holder.state.value.is_deleted())
