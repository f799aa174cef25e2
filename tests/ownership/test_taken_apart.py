"""Results that are taken apart by key, by index or by field, before a part of them overwrites a slot."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import pytc
from pytc.ownership.bytecode.lengths import Fields, lengths_of
from tests.ownership.harness import Functions, Stub, expect, of_lengths

pytestmark = pytest.mark.unfrozen


class Out(NamedTuple):
    state: Any
    loss: Any = None


OUT = Fields(Out, ("state", "loss"))


@of_lengths({"state": None, "loss": (None, None)})  # type: ignore[arg-type]
def as_dictionary(state: Any) -> Any:
    return {"state": state, "loss": (0, 0)}


@of_lengths(OUT)  # type: ignore[arg-type]
def as_named_tuple(state: Any) -> Any:
    return Out(state)


@of_lengths(({"out": OUT},))  # type: ignore[arg-type]
def deeply(state: Any) -> Any:
    return ({"out": Out(state)},)


def all_dead(stub: Stub) -> bool:
    return bool(stub.calls) and all(call.dead for call in stub.calls)


@pytest.mark.parametrize(("depth", "dead"), [(20, True), (60, False)])
def test_pairs_in_pairs(depth: int, dead: bool) -> None:
    """To take each apart makes an iterator, and garbage may be collected where many objects are made."""
    lengths, result, names = (None, None), "(state, 0)", "(box.a, _)"
    for _ in range(depth):
        lengths, result, names = (lengths, None), f"({result}, 0)", f"({names}, _)"  # type: ignore[assignment]
    stub, box = Stub(), types.SimpleNamespace()
    f = stub.compile(of_lengths(lengths)(eval(f"lambda state: {result}")))
    box.a = stub.new()
    space: dict[str, Any] = {}
    exec(f"def step(f, box):\n    {names} = f(box.a)\n", space)
    for _ in range(3):
        space["step"](f, box)
    stub.read(box.a)
    expect([bool(call.dead) for call in stub.calls] == [dead] * 3)


@pytest.mark.parametrize(
    ("combine", "part"),
    [
        (as_dictionary, lambda f, box: setattr_(box, f(box.a)["state"])),
        (as_named_tuple, lambda f, box: setattr_(box, f(box.a).state)),
    ],
)
def test_behind_other_code_it_is_kept(made: Functions, combine: Callable[..., Any], part: Callable[..., Any]) -> None:
    """`setattr` is a call, before which others may look."""
    stub = made[0]
    f, box = stub.compile(combine), types.SimpleNamespace(a=stub.new())
    part(f, box)
    expect(not stub.calls[0].dead)


def setattr_(box: Any, value: Any) -> None:
    box.a = value


def test_at_once(made: Functions) -> None:
    stub = made[0]
    f, g, h = stub.compile(as_dictionary), stub.compile(as_named_tuple), stub.compile(deeply)
    box = types.SimpleNamespace(a=stub.new(), d={"k": stub.new()})
    for _ in range(2):
        box.a = f(box.a)["state"]
        box.a = g(box.a).state
        box.a = h(box.a)[0]["out"].state
        box.d["k"] = h(box.d["k"])[-1]["out"].state
    expect(all_dead(stub))
    stub.read((box.a, box.d))


def test_by_way_of_a_variable(made: Functions) -> None:
    stub = made[0]
    f, g = stub.compile(as_dictionary), stub.compile(as_named_tuple)
    box = types.SimpleNamespace(a=stub.new(), loss=None)
    for _ in range(2):
        out = f(box.a)
        box.a = out["state"]
        out = None
        out = f(box.a)
        box.a, box.loss = out["state"], out["loss"]
        out = None
        out = f(box.a)
        (first, _second), box.a = out["loss"], out["state"]
        out = None
        more = g(box.a)
        box.a = more.state
        stub.read((more, first, box.loss))
        more = None
    expect(all_dead(stub))
    stub.read(box.a)


def test_in_helpers_that_return_parts(made: Functions) -> None:
    stub = made[0]
    f, g = stub.compile(as_dictionary), stub.compile(as_named_tuple)
    box = types.SimpleNamespace(a=stub.new(), loss=None)

    def one() -> Any:
        out = f(box.a)
        return out["state"], out["loss"]

    def other() -> Any:
        out = g(box.a)
        return out.state, out.loss

    for _ in range(2):
        box.a, box.loss = one()
        box.a, box.loss = other()
    expect(all_dead(stub))
    stub.read(box.a)


def test_in_a_handler(made: Functions) -> None:
    """What the call is taken apart for cannot raise, so the handler never finds the old value gone."""
    stub = made[0]
    f, g = stub.compile(as_dictionary), stub.compile(as_named_tuple)
    x = stub.new()
    for _ in range(2):
        try:
            x = f(x)["state"]
            x = g(x).state
        except ValueError:
            stub.read(x)
    expect(all_dead(stub))
    stub.read(x)


ALL: list[Any] = []


def strange(program: Callable[[Stub], None]) -> Any:
    ALL.append(program)
    return program


@strange
def keys_that_are_not_there(s: Stub) -> None:
    f, g, box = s.compile(as_dictionary), s.compile(as_named_tuple), types.SimpleNamespace(a=s.new())
    for take in (lambda: f(box.a)["other"], lambda: g(box.a).other, lambda: f(box.a)[0], lambda: g(box.a)["state"]):
        try:
            box.a = take()
        except (KeyError, AttributeError, TypeError):
            s.read(box.a)
    for _ in range(2):
        try:
            box.a = f(box.a)["other"]
        except KeyError:
            s.read(box.a)
        try:
            box.a = g(box.a).other
        except AttributeError:
            s.read(box.a)


@strange
def a_field_that_is_a_property(s: Stub) -> None:
    class Odd(Out):
        @property
        def state(self) -> Any:  # type: ignore[override]
            saved.append(box.a)
            return self[0]

    @of_lengths(Fields(Odd, ("state", "loss")))  # type: ignore[arg-type]
    def odd(state: Any) -> Any:
        return Odd(state)

    saved: list[Any] = []
    f, box = s.compile(odd), types.SimpleNamespace(a=s.new())
    for _ in range(2):
        box.a = f(box.a).state
        s.read(saved)


@strange
def a_class_that_is_changed_meanwhile(s: Stub) -> None:
    class Changed(NamedTuple):
        state: Any
        loss: Any = None

    @of_lengths(Fields(Changed, ("state", "loss")))  # type: ignore[arg-type]
    def combine(state: Any) -> Any:
        return Changed(state)

    def look(self: Any) -> Any:
        saved.append(box.a)
        return self[0]

    saved: list[Any] = []
    f, box = s.compile(combine), types.SimpleNamespace(a=s.new())
    for i in range(4):
        if i == 2:
            Changed.state = property(look)  # type: ignore[misc, assignment]
        box.a = f(box.a).state
        s.read(saved)


@strange
def a_field_that_is_not_there(s: Stub) -> None:
    """It is that of a longer tuple."""

    class Long(NamedTuple):
        a: Any
        b: Any
        c: Any

    class Short(Out):
        __slots__ = ()
        loss = Long.__dict__["c"]

    @of_lengths(Fields(Short, ("state", "loss")))  # type: ignore[arg-type]
    def short(state: Any) -> Any:
        return Short(state)

    f, box, x = s.compile(short), types.SimpleNamespace(a=s.new()), s.new()
    for _ in range(2):
        try:
            box.a = f(box.a).loss
        except IndexError:
            s.read(box.a)
        try:
            x = f(x).loss
        except IndexError:
            s.read(x)


@strange
def a_class_with_keys_that_ask(s: Stub) -> None:
    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            if str.__eq__(self, other) is True:
                saved.append(box.a)
            return False

    saved: list[Any] = []
    box = types.SimpleNamespace(a=s.new())
    odd = type("Odd", (Out,), {Key("state"): 1, "__slots__": ()})

    @of_lengths(Fields(odd, ("state", "loss")))  # type: ignore[arg-type]
    def combine(state: Any) -> Any:
        return odd(state)

    f = s.compile(combine)
    for i in range(3):
        odd.z = i  # type: ignore[attr-defined]
        box.a = f(box.a).state
        s.read(saved)
        saved.clear()


@strange
def two_parts_of_one_length(s: Stub) -> None:
    """A field is under the name of another, so what is in it is not known."""

    class Swapped(Out):
        loss = Out.__dict__["state"]

    @of_lengths(Fields(Swapped, ("state", "loss")))  # type: ignore[arg-type]
    def swapped(state: Any) -> Any:
        return Swapped(state, (1, 2))

    f, box = s.compile(swapped), types.SimpleNamespace(a=s.new(), b=0, c=0)
    for _ in range(2):
        try:
            (box.b, box.c), box.a = f(box.a).loss, 0
        except TypeError:
            s.read(box.a)


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_no_deleted_array(program: Any) -> None:
    stub = Stub()
    program(stub)
    stub.read([])
    assert stub.calls


def test_what_is_known_of_a_result() -> None:
    tree = jax.tree.structure(({"b": (1, [2]), "a": Out(1, (2, 3))}, 4))
    assert lengths_of(tree) == ({"a": OUT, "b": (None, (None,))}, None)
    assert lengths_of(jax.tree.structure(1)) is None


def test_a_named_tuple_that_is_registered_as_something_else() -> None:
    class Own(NamedTuple):
        state: Any

    jax.tree_util.register_pytree_node(Own, lambda own: (own, None), lambda _, parts: [*parts])
    assert lengths_of(jax.tree.structure(Own(1))) is None


def test_a_named_tuple_with_a_say_in_its_attributes() -> None:
    class Own(Out):
        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__(name)

    assert lengths_of(jax.tree.structure(Own(1))) is None


def test_around_the_compiler() -> None:
    by_key = pytc.compile(lambda x: {"state": x * 2, "loss": x.sum()}, donate="auto")
    by_name = pytc.compile(lambda x: Out(x * 2, x.sum()), donate="auto")
    box = types.SimpleNamespace(x=jnp.ones(1000), y=jnp.ones(1000), loss=None)

    def loop() -> None:
        for _ in range(4):
            box.x = by_key(box.x)["state"]
            out = by_name(box.y)
            box.y, box.loss = out.state, out.loss

    loop()
    assert box.x.sum() == box.y.sum() == 16_000
    for function in (by_key, by_name):
        (site,) = pytc.explain(function).sites
        assert (site.donated, site.copied_calls, site.kept) == (1, 0, 0), sys.version
