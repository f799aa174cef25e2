"""Where a call site is known, the quick look decides: the careful one is for the first calls alone."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import pytest

from pytc.ownership import proof
from tests.ownership.harness import Stub, both, expect, first

pytestmark = pytest.mark.unfrozen

ROUNDS = 12


class State(NamedTuple):
    p: Any
    n: int = 0


def in_a_variable(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    x = s.new()
    for _ in range(ROUNDS):
        x = f(x)
        yield


def in_a_tree(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    x, y = {"a": [s.new()], "b": (s.new(),)}, s.new()
    for _ in range(ROUNDS):
        x, y = f2(x, y)
        yield


def in_an_attribute(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    box = types.SimpleNamespace(x=s.new(), y=[s.new()])
    for _ in range(ROUNDS):
        box.x, box.y = f2(box.x, box.y)
        yield


class Holder:
    """What has its state in an attribute, and a method that replaces it."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def step(self, f: Any) -> None:
        self.x = f(self.x)

    def step_by_a_variable(self, f: Any) -> None:
        x = self.x
        self.x = f(x)

    def step_by_two(self, f: Any) -> None:
        x = self.x
        y = f(x)
        self.x = y

    def step_by_a_helper(self, f: Any) -> None:
        x = self.x
        self.x = self.helper(f, x)

    def helper(self, f: Any, x: Any) -> Any:
        y = f(x)
        return y  # noqa: RET504 - the variable is what this is about


def by(method: str) -> Callable[..., Iterator[None]]:
    """A caller of one of these methods."""

    def caller(s: Stub, f: Any, f2: Any) -> Iterator[None]:
        holder = Holder([s.new()])
        for _ in range(ROUNDS):
            getattr(holder, method)(f)
            yield

    caller.__name__ = method
    return caller


def in_a_dictionary(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    state = {"p": s.new(), "n": 0}
    for _ in range(ROUNDS):
        state = {"p": f(state["p"]), "n": state["n"] + 1}
        yield


def in_a_dictionary_for_a_helper(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    def helper(p: Any) -> Any:
        return f(p)

    state = {"p": [s.new()], "n": 0}
    for _ in range(ROUNDS):
        state = {"p": helper(state["p"]), "n": state["n"] + 1}
        yield


def through_a_helper_by_turns(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    """From two lines, where other variables have the states."""

    def helper(p: Any) -> Any:
        q = f(p)
        return q  # noqa: RET504 - as above

    def further(p: Any) -> Any:
        return helper(p)

    x, y, z = s.new(), s.new(), s.new()
    for at in range(ROUNDS):
        if at % 3 == 0:
            x = helper(x)
        elif at % 3 == 1:
            y = further(y)
        else:
            z = further(z)
        yield


def by_many_ways(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    """In a recursion that comes to the call from other lines each time."""

    def build(depth: int, x: Any) -> Any:
        if depth == 0:
            return f(x)
        x = build(depth - 1, x)
        return build(depth - 1, x)

    x = s.new()
    for _ in range(2):
        x = build(7, x)
    yield


LINES = 80


def by_more_lines_than_are_remembered(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    """Each has the state in another variable."""
    lines = "".join(f"    x{n} = new()\n    x{n} = helper(x{n})\n    read(x{n})\n" for n in range(LINES))
    space: dict[str, Any] = {"helper": lambda p: f(p), "new": s.new, "read": s.read}
    exec(f"def run():\n{lines}", space)
    for _ in range(2):
        space["run"]()
    yield


def in_a_named_tuple(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    state = State(s.new())
    for _ in range(ROUNDS):
        state = State(f(state.p), state.n + 1)
        yield


def in_a_named_tuple_that_is_copied(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    state = State({"w": s.new()})
    for _ in range(ROUNDS):
        state = state._replace(p=f(state.p))
        yield


def in_a_container_that_ends(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    state = State(s.new())
    for _ in range(ROUNDS):
        state = State(f(state.p))
        yield


def in_a_list_that_is_gone_through(s: Stub, f: Any, f2: Any) -> Iterator[None]:
    states = [s.new() for _ in range(ROUNDS)]
    for i, state in enumerate(states):
        states[i] = f(state)
        yield


CALLERS = [
    in_a_variable, in_a_tree, in_an_attribute, by("step"), by("step_by_a_variable"), by("step_by_two"),
    by("step_by_a_helper"), in_a_dictionary, in_a_dictionary_for_a_helper, through_a_helper_by_turns, by_many_ways,
    by_more_lines_than_are_remembered, in_a_named_tuple, in_a_named_tuple_that_is_copied, in_a_container_that_ends,
    in_a_list_that_is_gone_through,
]  # fmt: skip


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.__name__)
def test_the_quick_look_decides(caller: Callable[..., Iterator[None]]) -> None:
    looks: list[int] = []
    remember = proof.remember

    def counting(*args: Any) -> None:
        looks.append(len(stub.calls))
        remember(*args)

    stub = Stub()
    with mock.patch.object(proof, "remember", counting):
        for _ in caller(stub, stub.compile(first), stub.compile(both)):
            pass
    expect(all(call.dead for call in stub.calls[1:]))
    assert len(stub.calls) == {by_many_ways: 256, by_more_lines_than_are_remembered: 2 * LINES}.get(caller, ROUNDS)
    assert looks
    # By many ways, the first walk through the recursion finds all the places that there are.
    many = {by_many_ways: 64, by_more_lines_than_are_remembered: 2 * LINES, through_a_helper_by_turns: 5}
    known = many.get(caller, 2)
    assert max(looks) <= known, "a careful look at a call site that is known"
