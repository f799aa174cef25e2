"""Slots beside other threads: dead where only this thread's functions can come by them, and kept where others can."""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.ownership.harness import Functions, Stub, both, expect, expect_dead, of_lengths
from tests.threads import another_thread

STEPS = 3


class Trainer:
    """As people write it."""

    def __init__(self, stub: Stub):
        self.state = self.new(stub)
        self.items = {"state": self.new(stub), "all": [stub.new()]}
        self.inner = types.SimpleNamespace(state=self.new(stub))

    @staticmethod
    def new(stub: Stub) -> Any:
        return {"w": stub.new(), "b": [stub.new()]}

    def fit(self, f: Callable[..., Any]) -> None:
        for _ in range(STEPS):
            self.state = f(self.state)

    def fit_by_steps(self, f: Callable[..., Any]) -> None:
        for _ in range(STEPS):
            self.step(f)

    def step(self, f: Callable[..., Any]) -> None:
        self.state = f(self.state)

    def fit_by_a_helper(self, f: Callable[..., Any]) -> None:
        for _ in range(STEPS):
            self.state = self.stepped(f)

    def stepped(self, f: Callable[..., Any]) -> Any:
        return f(self.state)

    def fit_inner(self, f: Callable[..., Any]) -> None:
        for _ in range(STEPS):
            self.inner.state = f(self.inner.state)

    def fit_item(self, f: Callable[..., Any]) -> None:
        key = "state"
        for _ in range(STEPS):
            self.items[key] = f(self.items[key])

    def fit_item_of_a_list(self, f: Callable[..., Any]) -> None:
        for _ in range(STEPS):
            self.items["all"][-1] = f(self.items["all"][-1])

    def states(self, f: Callable[..., Any]) -> Iterator[Any]:
        for _ in range(STEPS):
            self.state = f(self.state)
            yield

    def fit_in_a_generator(self, f: Callable[..., Any]) -> None:
        for _ in self.states(f):
            pass


@dataclasses.dataclass(slots=True)
class Slotted:
    state: Any

    def fit(self, f: Callable[..., Any]) -> None:
        for _ in range(STEPS):
            self.state = f(self.state)


WAYS = [name for name in vars(Trainer) if name.startswith("fit")]


def train(stub: Stub, f: Callable[..., Any], way: str) -> Any:
    trainer = Trainer(stub)
    getattr(trainer, way)(f)
    stub.read((trainer.state, trainer.items, trainer.inner.state))


def call_train(stub: Stub, f: Callable[..., Any], way: str) -> Any:
    trainer = Trainer(stub)
    other = trainer  # noqa: F841 - a second variable
    hand_on(trainer, f, way)
    stub.read((trainer.state, trainer.items, trainer.inner.state))


def hand_on(given: Trainer, f: Callable[..., Any], way: str) -> None:
    getattr(given, way)(f)


@pytest.mark.parametrize("run", [train, call_train])
@pytest.mark.parametrize("way", WAYS)
def test_what_only_variables_lead_to_is_dead_beside_a_thread(made: Functions, way: str, run: Any) -> None:
    stub, f, _ = made
    with another_thread():
        run(stub, f, way)
    expect_dead(stub, STEPS, leaves=1 if way == "fit_item_of_a_list" else 2)


def several(stub: Stub, f2: Callable[..., Any]) -> None:
    space, items = types.SimpleNamespace(a=stub.new(), b=stub.new()), [stub.new()]
    for _ in range(STEPS):
        space.a, space.b = f2(space.a, space.b)
        space.b, items[0] = f2(space.b, items[0])
    stub.read((space.a, space.b, items))


def test_several_slots_at_once(made: Functions) -> None:
    stub, _, f2 = made
    with another_thread():
        several(stub, f2)
    expect_dead(stub, 2 * STEPS, leaves=2)


def in_slots(stub: Stub, f: Callable[..., Any]) -> None:
    slotted = Slotted(stub.new())
    slotted.fit(f)
    stub.read(slotted.state)


def test_an_object_with_slots(made: Functions) -> None:
    stub, f, _ = made
    with another_thread():
        in_slots(stub, f)
    expect_dead(stub, STEPS)


def with_a_dictionary(stub: Stub, f: Callable[..., Any]) -> None:
    trainer = Trainer(stub)
    vars(trainer).update(more=1)  # up to CPython 3.12 the attributes are in a dictionary from here on
    trainer.fit(f)
    stub.read(trainer.state)


def test_an_object_whose_dictionary_was_asked_for(made: Functions) -> None:
    stub, f, _ = made
    with another_thread():
        with_a_dictionary(stub, f)
    expect_dead(stub, STEPS, leaves=2)


HOLDERS: dict[str, Callable[[Trainer], Any]] = {
    "a list": lambda trainer: [trainer],
    "a closure": lambda trainer: lambda: trainer,
    "a bound method": lambda trainer: trainer.fit,
    "a partial function": lambda trainer: functools.partial(print, trainer),
    "a weak reference": lambda trainer: weakref.ref(trainer),
    "its dictionary": lambda trainer: vars(trainer),
    "a generator": lambda trainer: started(trainer),
    "a cycle": lambda trainer: setattr(trainer, "itself", trainer),
    "a part of it": lambda trainer: trainer.inner,
    "a dictionary in it": lambda trainer: trainer.items,
    "a list in that": lambda trainer: trainer.items["all"],
    "the dictionary of a part": lambda trainer: vars(trainer.inner),
}
OF_THE_WHOLE = [*HOLDERS][:8]


def started(trainer: Trainer) -> Iterator[None]:
    def suspended(held: Trainer) -> Iterator[None]:
        yield
        print(held)

    generator = suspended(trainer)
    next(generator)
    return generator


def held(stub: Stub, f: Callable[..., Any], hold: Callable[[Trainer], Any], ways: list[str]) -> None:
    trainer = Trainer(stub)
    holder = [hold(trainer)]
    for way in ways:
        getattr(trainer, way)(f)
    stub.read((trainer.state, trainer.items, trainer.inner.state))
    del holder[:]


def expect_kept_beside_a_thread_alone(stub: Stub, run: Callable[[], Any]) -> None:
    """That the thread is what makes the difference."""
    run()
    expect(all(call.dead for call in stub.calls))
    before = len(stub.calls)
    with another_thread():
        run()
    expect([call.dead for call in stub.calls[before:]] == [frozenset()] * before)


@pytest.mark.parametrize("holder", OF_THE_WHOLE)
def test_what_something_else_leads_to_is_kept_beside_a_thread(made: Functions, holder: str) -> None:
    stub, f, _ = made
    ways = ["fit", "fit_by_steps", "fit_by_a_helper", "fit_inner", "fit_item"]
    expect_kept_beside_a_thread_alone(stub, lambda: held(stub, f, HOLDERS[holder], ways))


@pytest.mark.parametrize(
    ("holder", "way"),
    [
        ("a part of it", "fit_inner"),
        ("the dictionary of a part", "fit_inner"),
        ("a dictionary in it", "fit_item"),
        ("a dictionary in it", "fit_item_of_a_list"),
        ("a list in that", "fit_item_of_a_list"),
    ],
)
def test_what_something_else_has_a_part_of_is_kept_beside_a_thread(made: Functions, holder: str, way: str) -> None:
    stub, f, _ = made
    expect_kept_beside_a_thread_alone(stub, lambda: held(stub, f, HOLDERS[holder], [way]))


def of_a_frame_in_hand(stub: Stub, f: Callable[..., Any]) -> None:
    trainer = Trainer(stub)
    held = [sys._getframe()]
    in_a_frame(trainer, f)
    stub.read(trainer.state)
    held.clear()


def in_a_frame(trainer: Trainer, f: Callable[..., Any]) -> None:
    trainer.fit(f)


def of_a_frame_below_in_hand(stub: Stub, f: Callable[..., Any]) -> None:
    trainer = Trainer(stub)
    in_a_frame_in_hand([trainer], f)
    stub.read(trainer.state)


def in_a_frame_in_hand(box: list[Trainer], f: Callable[..., Any]) -> None:
    held = [sys._getframe()]
    in_a_frame(box.pop(), f)
    held.clear()


def while_handling(stub: Stub, f: Callable[..., Any]) -> None:
    trainer = Trainer(stub)
    try:
        raise ValueError
    except ValueError:
        in_a_frame(trainer, f)
    stub.read(trainer.state)


@pytest.mark.parametrize("run", [of_a_frame_in_hand, of_a_frame_below_in_hand, while_handling])
def test_a_frame_that_somebody_has_is_read_by_others(made: Functions, run: Callable[..., Any]) -> None:
    stub, f, _ = made
    expect_kept_beside_a_thread_alone(stub, lambda: run(stub, f))
    gc.collect()


TRAINER: Any = None


def as_a_global(stub: Stub, f: Callable[..., Any]) -> None:
    global TRAINER
    TRAINER = Trainer(stub)
    for _ in range(STEPS):
        TRAINER.state = f(TRAINER.state)
    stub.read(TRAINER.state)


def as_a_cell(stub: Stub, f: Callable[..., Any]) -> Callable[[], Any]:
    trainer = Trainer(stub)
    for _ in range(STEPS):
        trainer.state = f(trainer.state)
    return lambda: stub.read(trainer.state)


def under_a_key_that_others_change(stub: Stub, f: Callable[..., Any]) -> None:
    items, key = {"a": stub.new()}, types.SimpleNamespace(name="a")
    holder = [key]
    for _ in range(STEPS):
        items[key.name] = f(items[key.name])
    stub.read(items)
    holder.clear()


@pytest.mark.parametrize("run", [as_a_global, as_a_cell, under_a_key_that_others_change])
def test_what_begins_elsewhere_is_kept_beside_a_thread(made: Functions, run: Callable[..., Any]) -> None:
    stub, f, _ = made
    expect_kept_beside_a_thread_alone(stub, lambda: run(stub, f))


def elsewhere_too(stub: Stub, f2: Callable[..., Any]) -> None:
    mine, shared = types.SimpleNamespace(a=stub.new()), types.SimpleNamespace(b=stub.new())
    holder = [shared]
    for _ in range(STEPS):
        mine.a, shared.b = f2(mine.a, shared.b)
    stub.read((mine.a, shared.b))
    holder.clear()


def test_one_slot_of_several_that_others_reach_keeps_all(made: Functions) -> None:
    stub, _, f2 = made
    expect_kept_beside_a_thread_alone(stub, lambda: elsewhere_too(stub, f2))


def local_to_a_thread(stub: Stub, f: Callable[..., Any]) -> None:
    thread = threading.Thread(target=train, args=(stub, f, "fit"))
    thread.start()
    thread.join()


def test_in_a_thread_beside_the_main_one(made: Functions) -> None:
    stub, f, _ = made
    local_to_a_thread(stub, f)
    expect_dead(stub, STEPS, leaves=2)


def test_a_part_of_the_result(made: Functions) -> None:
    stub, _, _ = made
    step = stub.compile(of_lengths((None, None))(both))

    def fit(trainer: Trainer) -> None:
        for _ in range(STEPS):
            trainer.state, _ = step(trainer.state, 1)

    def run() -> None:
        fit(trainer := Trainer(stub))
        stub.read(trainer.state)

    with another_thread():
        run()
    expect_dead(stub, STEPS, leaves=2)
