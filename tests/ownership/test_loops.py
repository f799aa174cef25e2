"""What iterators on the stack have left, and how high the stack is."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import dis
import inspect
import sys
import types
import typing
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import pytest

from pytc.ownership.bytecode.analysed import site_of
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.references import loops
from tests.ownership.harness import Stub, first

A, B, C = "a state", "another", "a third"


def left() -> list[tuple[Any, bool]]:
    """What the iterators of the caller have left, and whether it is in a container."""
    frame = sys._getframe(1)
    found = loops.handed_out(frame, site_of(frame).iterators, site_of(frame).dead(True, True))
    return [(each.value, each.container is not None) for each in found]


def test_items_that_were_passed() -> None:
    assert [left() for _ in [A, B]] == [[(A, True)], [(B, True)]]
    assert [left() for _ in (A, B)] == [[(A, True)], [(B, True)]]
    assert tuple(left() for _ in [A]) == ([(A, True)],)
    found = []
    for _ in [A]:
        for _ in (B, C):
            found.append(left())
    assert found == [[(A, True), (B, True)], [(A, True), (C, True)]]


def test_tuples_that_are_filled_again() -> None:
    assert [left() for _, _ in enumerate([A])] == [[(0, False), (A, False), (A, True)]]
    assert [left() for _, _ in zip([A], (B,), strict=True)] == [[(A, False), (B, False), (A, True), (B, True)]]
    assert [left() for _, _ in {A: B}.items()] == [[(A, False), (B, False), (B, True)]]
    assert [left() for _, _ in reversed({A: B}.items())] == [[(A, False), (B, False), (B, True)]]
    assert [left() for _pair in enumerate([A])] == [[(A, True)]]


def test_iterators_within_iterators() -> None:
    (found,) = [left() for _, (_, _) in enumerate(zip([A], [B], strict=True))]
    assert (A, True) in found
    assert (B, True) in found


def second(_: Any, value: Any) -> Any:
    return value


def test_iterators_that_are_no_loops() -> None:
    for _ in [A]:
        found = second(iter([B, C]), left())
        assert found == [(A, True)]
        found = second(enumerate([B, C]), left())
        assert found == [(A, True)]
    found = second(iter([B, C]), left())
    assert found == []


def test_what_was_put_where_the_iterator_still_has_to_go() -> None:
    items: Any = {1: A, 2: B, 3: C}
    same, passed = items, []
    for _, _ in same.items():
        if items is not None:
            items[3] = A
            items = same = None
        found = left()
        passed.append([value for value, is_in_container in found if is_in_container])
    assert passed == [[], [B], [A]]


def test_a_dictionary_that_has_grown() -> None:
    """Its iterator raises as it goes on, and as it is asked for what is ahead."""
    items: Any = {1: A, 2: B}
    for number, _ in items.items():
        if number == 1:
            before = left()
            items[3] = C
            found = left()
            break
    assert [value for value, is_in_container in before if is_in_container] == [A]
    assert [value for value, is_in_container in found if is_in_container] == []


def test_iterators_that_somebody_else_has() -> None:
    through = iter([A, B])
    for _ in through:
        found = left()
        assert found == []
    pairs = enumerate([A, B])
    for _, _ in pairs:
        found = left()
        assert found == []
    inner = iter([A, B])
    for _, _ in enumerate(inner):
        found = left()
        assert [value for value, is_in_container in found if is_in_container] == []
    kept = []

    def zipped() -> Iterator[Any]:
        made = zip([A, B], [B, A], strict=True)
        kept.append(made.__reduce__())  # it has the iterators that the `zip` goes through
        return made

    for _, _ in zipped():
        found = left()
        assert [value for value, is_in_container in found if is_in_container] == []


def test_an_iterator_that_is_returned_out_of_a_loop() -> None:
    """It lies where the loop's iterator was while `finally` runs, and whoever gets it may set it back."""
    stub = Stub()
    f = stub.compile(first)

    def from_a_loop(made: list[Any], item: Any) -> Any:
        try:
            for _ in range(1):
                return made.pop()
        finally:
            item = f(item)

    def from_a_handler(made: list[Any], item: Any) -> Any:
        try:
            try:
                for _ in range(1):
                    raise KeyError
            except KeyError:
                return made.pop()
        finally:
            item = f(item)

    for function in (from_a_loop, from_a_handler):
        for _ in range(3):
            made = [iter([stub.new()])]
            got = function(made, next(made[0]))
            got.__setstate__(0)
            stub.read(list(got))


def test_the_stack_is_looked_at_only_where_a_call_tells_how_high_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub()
    f = stub.compile(first)
    asked = []

    def handed_out(frame: types.FrameType, positions: Iterable[int], dead: Container[int]) -> list[loops.Left]:
        positions = [*positions]
        asked.append((frame.f_code.co_name, set(positions) <= set(site_of(frame).iterators), len(positions)))
        return original(frame, positions, dead)

    original = loops.handed_out
    monkeypatch.setattr(loops, "handed_out", handed_out)

    def step(state: Any) -> Any:
        return f(state)

    def in_loops() -> None:
        for _ in [0]:
            for _ in [0]:
                states = [stub.new() for _ in range(3)]
                stub.read([step(state) for state in states])

    def in_none() -> None:
        state = step(stub.new())
        stub.read(state)

    class Owner:
        @property
        def state(self) -> Any:
            return step(self.kept.pop())

    def in_a_property() -> None:
        owner = Owner()
        for owner.kept in ([stub.new()], [stub.new()]):
            stub.read(owner.state)

    for caller in (in_loops, in_none, in_loops, in_none, in_a_property):
        caller()
    assert all(is_within for _, is_within, _ in asked)
    assert max(count for name, _, count in asked if name in ("in_loops", "<listcomp>")) >= 2
    assert {count for name, _, count in asked if name == "in_a_property"} <= {0}


@pytest.mark.parametrize("module", [argparse, asyncio.base_events, contextlib, dataclasses, dis, inspect, typing])
def test_the_stack_is_as_high_whatever_way_leads_there(module: types.ModuleType) -> None:
    source = inspect.getsource(module)
    for code in _all_code(compile(source, str(module.__file__), "exec")):
        flow = ControlFlow(code)
        heights = flow.heights
        for at, instruction in enumerate(flow.instructions):
            height = heights[at]
            if height is None:
                continue
            argument = instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
            for n in flow.follows[at]:
                jumps = n != at + 1 and instruction.opcode in (*dis.hasjrel, *dis.hasjabs)
                assert heights[n] == height + dis.stack_effect(instruction.opcode, argument, jump=jumps)


def _all_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _all_code(each)


@contextlib.contextmanager
def opened(value: Any) -> Iterator[Any]:
    yield value


class Asynchronous:
    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __aiter__(self) -> Asynchronous:
        return self

    async def __anext__(self) -> Any:
        if not self.values:
            raise StopAsyncIteration
        return self.values.pop()

    async def __aenter__(self) -> Asynchronous:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def in_a_with_block() -> Any:
    for _ in [A]:
        with opened(B), opened(C):
            found = left()
    return found


def in_a_handler_and_finally() -> Any:
    found = []
    for _ in [A]:
        try:
            raise ValueError
        except ValueError:
            found += left()
        finally:
            found += left()
    return found[:1] if found[0] == found[1] else found


def in_a_group() -> Any:
    for _ in [A]:
        try:
            raise ExceptionGroup("", [ValueError()])
        except* ValueError:
            found = left()
    return found


def in_a_match() -> Any:
    for value in [A]:
        match [value, value]:
            case [str(), str() as last] if last:
                found = left()
    return found


def in_a_comparison() -> Any:
    for _ in [A]:
        is_one = 0 < len(found := left()) < 2
    return found if is_one else None


def in_text() -> Any:
    found = []
    for _ in [A]:
        f"{1!r:>{2}} {found.append(left())} {B}"
    return found[0]


def starred() -> Any:
    names = {"k": B}
    for _ in [A]:
        found = (lambda *a, **_: a[-1])(*[B, C], left(), **names)
    return found


def starred_itself() -> Any:
    def look(*_: Any, **__: Any) -> Any:
        frame = sys._getframe(1)
        return loops.handed_out(frame, site_of(frame).iterators, site_of(frame).dead(True, True))

    names = {"k": B}
    for _ in [A]:
        found = look(*[B, C], **names)
    return [(each.value, each.container is not None) for each in found]


def in_a_generator() -> Any:
    def generate() -> Iterator[Any]:
        for _ in [A]:
            yield B
            yield left()

    return [*generate()][1]


def in_a_coroutine() -> Any:
    async def run() -> Any:
        for _ in [A]:
            async with Asynchronous([]):
                async for _ in Asynchronous([B]):
                    await asyncio.sleep(0)
                    found = left()
        return found

    return asyncio.run(run())


CALLERS = (
    in_a_with_block, in_a_handler_and_finally, in_a_group, in_a_match, in_a_comparison, in_text, starred,
    starred_itself, in_a_generator, in_a_coroutine,
)  # fmt: skip


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.__name__)
def test_found_wherever_the_call_is(caller: Callable[[], Any]) -> None:
    assert caller() == [(A, True)]
