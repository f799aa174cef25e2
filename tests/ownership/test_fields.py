"""State in a field of a container whose other fields are read again: what is dead then, and what must be kept."""

from __future__ import annotations

import _thread
import builtins
import collections
import contextlib
import copy
import dataclasses
import signal
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import flax.struct
import jax.numpy as jnp
import pytest

import pytc
from tests import interpreters
from tests.ownership.harness import Functions, Stub, expect, expect_dead, expect_nothing_deleted


class Named(NamedTuple):
    p: Any
    n: int = 0
    q: Any = None


@dataclasses.dataclass
class Record:
    p: Any
    n: int = 0
    q: Any = None

    def changed(self, **updates: Any) -> Record:
        return dataclasses.replace(self, **updates)


@dataclasses.dataclass(frozen=True, slots=True)
class Slim:
    p: Any
    n: int = 0
    q: Any = None


class Mixed(Slim):
    """One attribute in a slot and one in a `__dict__`."""


@flax.struct.dataclass
class Struct:
    p: Any
    n: int = 0
    q: Any = None


class Plain:
    def __init__(self, p: Any, n: int = 0, q: Any = None):
        self.p, self.n, self.q = p, n, q


class Narrow:
    __slots__ = ("n", "p", "q")
    __init__ = Plain.__init__  # type: ignore[assignment]


OBJECTS = (Named, collections.namedtuple("Fields", "p n q"), Record, Slim, Mixed, Struct, Plain, Narrow)
DATACLASSES = (Record, Slim, Mixed, Struct)


@pytest.fixture(name="kind", params=OBJECTS, ids=lambda kind: kind.__name__)
def _kind(request: Any) -> Any:
    return request.param


# What is dead


def test_a_dictionary_made_anew(made: Functions) -> None:
    stub, f, _ = made
    state = {"p": stub.new(), "n": 0, "q": stub.new()}
    for _ in range(3):
        state = {"p": f(state["p"]), "n": state["n"] + 1, "q": state["q"]}
    expect_dead(stub, 3)
    stub.read(state)


def test_a_list_and_a_tuple_made_anew(made: Functions) -> None:
    stub, f, _ = made
    row: list[Any] = [stub.new(), 0]
    pair: tuple[Any, int] = (stub.new(), 0)
    for _ in range(3):
        row = [f(row[0]), row[-1] + 1]
        pair = (f(pair[0]), pair[1] + 1)
    expect_dead(stub, 6)
    stub.read((row, pair))


def test_a_dictionary_that_is_read_much_later(made: Functions) -> None:
    stub, f, f2 = made
    state = {"p": stub.new(), "n": 0}
    for i in range(3):
        p, loss = f2(state["p"], stub.new())
        stub.read(loss)
        if state["n"] > 1:
            stub.read(p)
        p = f(p)
        while i > state["n"]:
            state["n"]
        state = {"p": p, "n": state["n"] + 1}
    expect_dead(stub, 6)
    stub.read(state)


def test_a_dictionary_for_a_helper(made: Functions) -> None:
    stub, f, _ = made

    def helper(p: Any) -> Any:
        return f(p)

    state = {"p": stub.new(), "n": 0}
    for _ in range(3):
        state = {"p": helper(state["p"]), "n": state["n"] + 1}
    expect_dead(stub, 3)
    stub.read(state)


def test_trees_in_a_dictionary(made: Functions) -> None:
    stub, _, f2 = made
    state = {"params": {"w": stub.new()}, "opt": (stub.new(), [stub.new()]), "step": 0}
    for _ in range(3):
        params, opt = f2(state["params"], state["opt"])
        state = {"params": params, "opt": opt, "step": state["step"] + 1}
    expect_dead(stub, 3, leaves=3)
    stub.read(state)


def test_an_object_made_anew(made: Functions, kind: Any) -> None:
    stub, f, _ = made
    state = kind(stub.new(), 0, stub.new())
    for _ in range(3):
        state = kind(f(state.p), state.n + 1, state.q)
    expect_dead(stub, 3)
    stub.read((state.p, state.q))


def test_an_object_made_anew_in_the_next_statement(made: Functions, kind: Any) -> None:
    stub, _, f2 = made
    state = kind(stub.new(), 0, {"k": stub.new()})
    for _ in range(3):
        p, _loss = f2(state.p, stub.new())
        state = kind(p, q=state.q, n=state.n + 1)
    expect_dead(stub, 3, leaves=2)
    stub.read((state.p, state.q))


def test_two_fields_at_once(made: Functions, kind: Any) -> None:
    stub, _, f2 = made
    state = kind({"k": stub.new()}, 0, [stub.new()])
    for _ in range(3):
        p, q = f2(state.p, state.q)
        state = kind(p, state.n + 1, q)
    expect_dead(stub, 3, leaves=2)
    stub.read((state.p, state.q))


def test_an_object_for_a_helper(made: Functions, kind: Any) -> None:
    stub, f, _ = made

    def helper(p: Any) -> Any:
        return f(p)

    state = kind(stub.new(), 0, None)
    for _ in range(3):
        state = kind(helper(state.p), state.n + 1, state.q)
    expect_dead(stub, 3)
    stub.read(state.p)


def test_an_object_that_the_caller_has_too(made: Functions, kind: Any) -> None:
    """In a variable that the result overwrites."""
    stub, f, _ = made

    def helper(state: Any) -> Any:
        p = f(state.p)
        return kind(p, state.n + 1, state.q)

    def with_more(state: Any) -> Any:
        p = f(state.p)
        return kind(p, state.n, state.q), 0

    def outer(state: Any) -> Any:
        return helper(state)

    state = kind(stub.new(), 0, stub.new())
    for _ in range(3):
        state = helper(state)
        state, _more = with_more(state)
        state = outer(state)
        new = helper(state)
        state = new
        new = None
    expect_dead(stub, 12)
    stub.read((state.p, state.q))


def test_a_dictionary_that_the_caller_has_too(made: Functions) -> None:
    stub, f, _ = made

    def helper(state: Any) -> Any:
        p = f(state["p"])
        stub.read(p)
        return {"p": p, "q": state["q"]}

    def outer(state: Any) -> Any:
        return helper(state)

    state = {"p": stub.new(), "q": stub.new()}
    for _ in range(3):
        state = helper(state)
        state = outer(state)
    expect_dead(stub, 6)
    stub.read(state)


@pytest.mark.parametrize("kind", DATACLASSES)
def test_replace_in_a_helper(made: Functions, kind: Any) -> None:
    stub, f, _ = made

    def helper(state: Any) -> Any:
        p = f(state.p)
        return replace(state, p=p, n=state.n + 1)

    def of_named(state: Any) -> Any:
        p = f(state.p)
        return state._replace(p=p, n=state.n + 1)

    state, named = kind(stub.new()), Named(stub.new())
    for _ in range(3):
        state = helper(state)
        named = of_named(named)
    expect_dead(stub, 6)
    stub.read((state.p, named))


def test_replace_of_a_named_tuple(made: Functions) -> None:
    stub, f, f2 = made
    state = Named(stub.new())
    for _ in range(3):
        state = state._replace(p=f(state.p))
        state = state._replace(p=f(state.p), n=state.n + 1)
        state = state._replace(n=2 * state.n - 1, p=f(state.p))
        p, _loss = f2(state.p, stub.new())
        state = state._replace(p=p, n=state.n + 1)
        p = f(state.p)
        state = state._replace(p=p)
        p = None
    expect_dead(stub, 15)
    stub.read(state)


@pytest.mark.parametrize("kind", DATACLASSES)
def test_replace_of_a_dataclass(made: Functions, kind: Any) -> None:
    stub, f, f2 = made
    state = kind(stub.new(), 0, stub.new())
    for _ in range(3):
        state = replace(state, p=f(state.p))
        state = dataclasses.replace(state, p=f(state.p), n=state.n + 1)
        p, _loss = f2(state.p, stub.new())
        state = dataclasses.replace(state, n=state.n + 1, p=p)
        p = f(state.p)
        state = replace(state, p=p)
        p = None
    expect_dead(stub, 12)
    stub.read((state.p, state.q))


@pytest.mark.parametrize(("kind", "name"), [(Record, "changed"), (Struct, "replace")])
def test_methods_that_replace(made: Functions, kind: Any, name: str) -> None:
    stub, f, _ = made
    kind = type(kind.__name__, (kind,), {"made": kind.__dict__[name]})
    state = kind(stub.new(), 0, stub.new())
    for _ in range(3):
        state = state.made(p=f(state.p), n=state.n + 1)
        p = f(state.p)
        state = state.made(n=state.n + 1, p=p)
        p = None
    expect_dead(stub, 6)
    stub.read((state.p, state.q))


def test_an_object_that_only_the_call_has(made: Functions) -> None:
    stub, f, _ = made
    box = [Named(stub.new())]
    for _ in range(3):
        state = box.pop()
        box.append(state._replace(p=f(state.p)))
        state = None  # type: ignore[assignment]
    expect_dead(stub, 3)
    stub.read(box)


def test_around_the_compiler() -> None:
    step = pytc.compile(lambda p, q: (p * 2 + q, q.sum()), donate="auto")

    def loop(kind: Any) -> Any:
        state = kind(jnp.ones(1000), 0, jnp.zeros(1000))
        for _ in range(3):
            p, loss = step(state.p, state.q)
            state = dataclasses.replace(state, p=p, n=state.n + 1)
            p = None
        for _ in range(3):
            p, loss = step(state.p, state.q)
            state = kind(p, state.n + 1, state.q)
            p = None
        pair = {"p": state.p, "q": state.q, "loss": loss}
        state = None
        for _ in range(3):
            p, loss = step(pair["p"], pair["q"])
            print(end="")
            pair = {"p": p, "q": pair["q"], "loss": loss}
            p = None
        return pair["p"]

    for kind in (Record, Slim):
        assert loop(kind).sum() == 512_000
    sites = pytc.explain(step).sites
    assert [site.calls for site in sites] == [6, 6, 6]
    assert [(site.copied_calls, site.donated) for site in sites] == [(0, 1)] * 3


def test_in_words() -> None:
    """What stands in the way is told, rather than the variable that has the container."""
    step = pytc.compile(lambda p: p * 2)

    def read_as_well() -> Any:
        state = {"p": jnp.ones(1000), "n": 0}
        for _ in range(2):
            state = {"p": step(state["p"]), "n": state["n"], "before": state["p"]}
        return state

    def read_elsewhere() -> Any:
        state = {"p": jnp.ones(1000), "n": 0}
        box = types.SimpleNamespace(kept=state["p"])
        for _ in range(2):
            state = {"p": step(state["p"]), "n": state["n"]}
        return state, box.kept

    def with_a_handler() -> None:
        state = Record(jnp.ones(1000))
        before = signal.signal(signal.SIGTERM, lambda *_: len(_))  # it calls something
        try:
            for _ in range(2):
                state = Record(step(state.p), state.n)
        finally:
            signal.signal(signal.SIGTERM, before)

    for function in (read_as_well, read_elsewhere, with_a_handler):
        function()
    reasons = [[each.why for each in site.held] + [why for _, why in site.why] for site in pytc.explain(step).sites]
    assert reasons[0][0].startswith("an item of `state` in test_fields.py:")
    assert "`state`" not in str(reasons[1])
    assert "item 'p'" not in str(reasons[1])
    assert reasons[2] == ["attribute `p` of Record: a handler of SIGTERM may read it"]


# What must be kept. Each of these reads it afterwards.


ALL: list[Any] = []


def strange(program: Callable[[Stub, Any, Any], None]) -> Any:
    ALL.append(program)
    return program


class Number(int):
    """One whose `+` does something, and gives another one."""

    def __new__(cls, value: int, act: Callable[[], None]) -> Number:
        number = super().__new__(cls, value)
        number.act = act
        return number

    act: Callable[[], None]

    def __add__(self, other: int) -> Number:
        self.act()
        return Number(int(self) + other, self.act)


def fresh(kind: Any) -> Any:
    """Another class like this one, which may be changed."""
    if issubclass(kind, tuple):
        return NamedTuple("Fresh", [("p", Any), ("n", Any), ("q", Any)])
    return dataclasses.make_dataclass("Fresh", ["p", "n", "q"])


def changes(kind: Any, saved: list[Any]) -> Callable[[], None]:
    """Give the class a property that reads another field."""

    def act() -> None:
        kind.q = property(lambda self: saved.append(self.p) or 0, lambda self, value: None)

    return act


@strange
def the_field_itself_is_read(s: Stub, f: Any, f2: Any) -> None:
    d, c = {"p": s.new(), "n": 0}, (s.new(), 0)
    for _ in range(3):
        x = f(d["p"])
        s.read(d["p"])
        d = {"p": x, "n": d["n"]}
        y = f(c[0])
        s.read(c[-2])
        c = (y, c[1])


@strange
def the_field_is_read_by_a_variable_key(s: Stub, f: Any, f2: Any) -> None:
    key, d = "p", {"p": s.new(), "n": 0}
    for _ in range(3):
        x = f(d["p"])
        s.read(d[key])
        d = {"p": x, "n": d["n"]}


@strange
def the_container_is_read(s: Stub, f: Any, f2: Any) -> None:
    d, r = {"p": s.new(), "n": 0}, Record(s.new())
    for _ in range(3):
        x = f(d["p"])
        s.read([*d.values()])
        d = {"p": x, "n": d["n"]}
        y = f(r.p)
        n, again = r.n, r
        r = Record(y, n)
        s.read(again.p)


@strange
def the_container_is_read_in_a_handler(s: Stub, f: Any, f2: Any) -> None:
    d, r = {"p": s.new(), "n": 0}, Record(s.new())
    for i in range(3):
        try:
            x = f(d["p"])
            if i:
                raise ValueError
            d = {"p": x, "n": d["n"]}
        except ValueError:
            s.read([*d.values()])
        try:
            r = Record(f(r.p), r.n + (1 if i else "x"))  # type: ignore[operator]
        except TypeError:
            s.read(r.p)


@strange
def the_container_is_elsewhere(s: Stub, f: Any, f2: Any) -> None:
    d, c, r, t = {"p": s.new(), "n": 0}, [s.new(), 0], Record(s.new()), Named(s.new())
    for _ in range(3):
        kept: list[Any] = [d, c, r, t]
        d = {"p": f(d["p"]), "n": d["n"]}
        c = [f(c[0]), c[1]]
        r = Record(f(r.p), r.n)
        t = t._replace(p=f(t.p))
        s.read([kept[0]["p"], kept[1][0], kept[2].p, kept[3].p])


@strange
def the_container_has_a_weak_reference(s: Stub, f: Any, f2: Any) -> None:
    r, other = Record(s.new()), Record(s.new())
    for _ in range(3):
        ref, ref_of_other = weakref.ref(r), weakref.ref(other)
        p, q = f(r.p), r.n
        s.read(ref().p)  # type: ignore[union-attr]
        r = Record(p, q)
        other = replace(other, p=f(other.p), q=s.read(ref_of_other().p))  # type: ignore[union-attr]


@strange
def the_attributes_are_elsewhere(s: Stub, f: Any, f2: Any) -> None:
    r, other = Record(s.new()), Record(s.new())
    for _ in range(3):
        kept, kept_of_other = r.__dict__, other.__dict__
        r = Record(f(r.p), r.n)
        other = replace(other, p=f(other.p))
        s.read([kept["p"], kept_of_other["p"]])


@strange
def the_container_reads_its_fields_as_it_ends(s: Stub, f: Any, f2: Any) -> None:
    class Ending(Record):
        def __del__(self) -> None:
            seen.append(self.p)

    seen: list[Any] = []
    r = Ending(s.new())
    for _ in range(3):
        r = Ending(f(r.p), r.n)
        r = replace(r, p=f(r.p))
        s.read(seen)


@strange
def one_array_in_two_fields(s: Stub, f: Any, f2: Any) -> None:
    x, y, z = s.new(), s.new(), s.new()
    d, r, t = {"p": x, "n": x}, Record(y, 0, y), Named(z, 0, z)
    del x, y, z
    for _ in range(3):
        d = {"p": f(d["p"]), "n": s.read(d["n"])}
        r = Record(f(r.p), r.n, r.q)
        t = t._replace(p=f(t.p))
        s.read((r.q, t.q))


@strange
def a_slot_is_a_field(s: Stub, f: Any, f2: Any) -> None:
    """The field is overwritten, so it is a slot, and must not count as a field as well."""
    r = Record(s.new())
    for _ in range(3):
        x = r.p
        r.p, n = f2(x, r.n)
        s.read((x, n))
        r = Record(r.p, 0)


@strange
def a_slot_is_in_a_field(s: Stub, f: Any, f2: Any) -> None:
    box = types.SimpleNamespace(a=s.new())
    r = Record(box, 0, None)
    for _ in range(3):
        x = box.a
        box.a, n = f2(r.p.a, r.n)
        s.read((x, n))


@strange
def a_class_that_is_changed_by_a_number(s: Stub, f: Any, f2: Any) -> None:
    saved: list[Any] = []
    for kind in (fresh(Named), fresh(Record)):
        r = kind(s.new(), Number(0, changes(kind, saved)), s.new())
        r = kind(f(r.p), r.n + 1, r.q)
    s.read(saved)


@strange
def a_class_that_is_changed_before_it_is_read(s: Stub, f: Any, f2: Any) -> None:
    saved: list[Any] = []
    for kind in (fresh(Named), fresh(Record)):
        r = kind(s.new(), 0, s.new())
        x = f(r.p)
        changes(kind, saved)()
        r = kind(x, 1, r.q)
    s.read(saved)


@strange
def a_class_that_is_changed_before_the_copy(s: Stub, f: Any, f2: Any) -> None:
    saved: list[Any] = []
    kind = fresh(Record)
    r = kind(s.new(), Number(0, changes(kind, saved)), s.new())
    try:
        r = replace(r, p=f(r.p), n=r.n + 1)
    finally:
        del kind.q
    s.read(saved)


@strange
def fields_that_are_properties(s: Stub, f: Any, f2: Any) -> None:
    class Odd(Record):
        @property  # type: ignore[misc]
        def n(self) -> int:  # type: ignore[override]
            saved.append(self.p)
            return 0

        @n.setter
        def n(self, value: int) -> None:
            pass

    class OddTuple(collections.namedtuple("OddTuple", "p n q")):
        n = property(lambda self: saved.append(self.p) or 0)  # type: ignore[assignment]

    saved: list[Any] = []
    r, t, other = Odd(s.new()), OddTuple(s.new(), 0, 0), Odd(s.new())
    for _ in range(3):
        r = Odd(f(r.p), r.n)
        t = OddTuple(f(t.p), t.n, 0)
        other = replace(other, p=f(other.p))
        s.read(saved)


@strange
def what_looks_like_a_copy(s: Stub, f: Any, f2: Any) -> None:
    class Kept(Named):
        def _replace(self, **changed: Any) -> Any:
            saved.append(self.p)
            return super()._replace(**changed)

        def __iter__(self) -> Any:
            saved.append(self[0])
            return super().__iter__()

    class Walked(Named):
        def __iter__(self) -> Any:
            saved.append(self[0])
            return super().__iter__()

    class Shown(Record):
        def changed(self, **updates: Any) -> Any:
            saved.append(self.p)
            return dataclasses.replace(self, **updates)

    class Asked(Record):
        def __getattribute__(self, name: str) -> Any:
            if name == "n":
                saved.append(self.p)
            return super().__getattribute__(name)

    saved: list[Any] = []
    k, w, r, a = Kept(s.new()), Walked(s.new()), Shown(s.new()), Asked(s.new())
    for _ in range(3):
        k = Kept(*k._replace(p=f(k.p)))
        w = Walked(*w._replace(p=f(w.p)))
        r = r.changed(p=f(r.p))
        a = replace(a, p=f(a.p))
        s.read(saved)


@strange
def what_a_copy_asks(s: Stub, f: Any, f2: Any) -> None:
    """A field that is not there, and a metaclass that is asked for the fields."""

    class Absent(Record):
        def __getattr__(self, name: str) -> Any:
            saved.append(self.p)
            return 0

    class Meta(type):
        @property
        def __dataclass_fields__(cls) -> Any:
            cls.q = property(lambda self: saved.append(self.p) or 0, lambda self, value: None)
            return {}

    saved: list[Any] = []
    odd = types.new_class("Odd", (Record,), {"metaclass": Meta})
    r, o = Absent(s.new()), odd(s.new())
    for _ in range(3):
        r.q = s.new()
        del r.q
        r = replace(r, p=f(r.p))
        o = replace(o, p=f(o.p))
        s.read(saved)


class Timeout(Exception):
    """What a handler of signals raises in the midst of a call."""


def timing_out(*_: Any) -> None:
    raise Timeout


def interrupted(state: Any) -> Any:
    signal.raise_signal(signal.SIGALRM)
    return state


@strange
def read_if_a_signal_comes(s: Stub, f: Any, f2: Any) -> None:
    """The handlers of exceptions read a member only, of a dictionary here and of a tuple in the function above."""

    def helper(p: Any) -> Any:
        return f(p)

    f = s.compile(interrupted)
    before = signal.signal(signal.SIGALRM, timing_out)
    d, t = {"p": s.new(), "n": 0}, (s.new(), 0)
    try:
        p = f(d["p"])
    except Timeout:
        p = d["p"]
    try:
        q = helper(t[0])
    except Timeout:
        q = t[0]
    signal.signal(signal.SIGALRM, before)
    d, t = {"p": p, "n": d["n"]}, (q, t[1])
    s.read((d, t))


@strange
def a_missing_field(s: Stub, f: Any, f2: Any) -> None:
    """The error has the object."""

    @dataclasses.dataclass
    class Fact:
        p: Any
        q: Any = dataclasses.field(default_factory=list)

    r = Fact(s.new())
    del r.q
    try:
        r = replace(r, p=f(r.p))
    except AttributeError as error:
        s.read(error.obj.p)


class Made(Named):
    """One that looks for the old tuple in what goes through its items."""

    @classmethod
    def _make(cls, values: Any) -> Any:
        OLD.append(values.__reduce__()[1][2].__reduce__()[1][0])
        return cls(*values)


class Open(Named):
    """One with a `__dict__`."""


OLD: list[Any] = []


@strange
def a_constructor_of_its_own(s: Stub, f: Any, f2: Any) -> None:
    r, o = Made(s.new()), Open(s.new())
    r = r._replace(p=f(r.p))
    o._make = Made._make  # type: ignore[method-assign, assignment]
    o = o._replace(p=f(o.p))
    s.read([OLD.pop().p, OLD.pop().p])


@strange
def one_field_under_two_names(s: Stub, f: Any, f2: Any) -> None:
    class Alias(collections.namedtuple("Base", "p n q")):
        pass

    Alias.n = Alias.__mro__[1].q  # type: ignore[misc, attr-defined]
    r = Alias(0, s.new(), 7)
    r = r._replace(p=f(r[1]), q=r.n)
    s.read(r[1])


class Node(NamedTuple):
    """What a store puts in the place of a function, a module or a number."""

    state: Any

    def __call__(self, record: Any, **changes: Any) -> Any:
        OLD.append(record.p)
        return REPLACE(record, **changes)

    replace = __call__

    def __add__(self, other: Any) -> Any:  # type: ignore[override]
        OLD.append(BOX.p)
        return 0


REPLACE = replace
BOX = types.SimpleNamespace()
STATE: Any = None


@strange
def the_function_is_overwritten(s: Stub, f: Any, f2: Any) -> None:
    global replace
    module = sys.modules[__name__]
    r, node = Record(s.new()), Node(s.new())
    module.replace, p = f2(node, r.p)  # type: ignore[attr-defined]
    r = replace(r, p=p)
    replace = REPLACE
    s.read(OLD.pop())


@strange
def what_a_method_calls_is_overwritten(s: Stub, f: Any, f2: Any) -> None:
    global dataclasses
    module = dataclasses
    r, node = Record(s.new()), Node(s.new())
    dataclasses, p = f2(node, r.p)
    r = r.changed(p=p)
    dataclasses = module
    s.read(OLD.pop())


@strange
def a_number_is_overwritten(s: Stub, f: Any, f2: Any) -> None:
    one = other = types.SimpleNamespace(n=1)
    BOX.p, node = s.new(), Node(s.new())
    one.n, p = f2(node, BOX.p)
    n = other.n + 1
    BOX.p = p
    s.read((OLD.pop(), n))


@strange
def what_has_a_method_is_overwritten(s: Stub, f: Any, f2: Any) -> None:
    class Asked(NamedTuple):
        state: Any

        @property
        def changed(self) -> Any:
            OLD.append(BOX.p)
            return dict

    one = other = types.SimpleNamespace(n=Record(0))
    BOX.p, asked = s.new(), Asked(s.new())
    for _ in range(2):
        one.n, p = f2(asked, BOX.p)
        other.n.changed(q=(p, s.read(OLD)))
        BOX.p = p
        one.n = Record(0)
        OLD.clear()


@strange
def what_has_a_method_is_overwritten_before_a_global(s: Stub, f: Any, f2: Any) -> None:
    global STATE

    class Asked(NamedTuple):
        state: Any

        @property
        def changed(self) -> Any:
            OLD.append(STATE)
            return dict

    one = other = types.SimpleNamespace(n=Record(0))
    STATE, asked = s.new(), Asked(s.new())
    for _ in range(2):
        one.n, p = f2(asked, STATE)
        other.n.changed(q=(STATE := p))
        s.read(OLD)
        one.n = Record(0)
        OLD.clear()


@strange
def a_module_of_another_class(s: Stub, f: Any, f2: Any) -> None:
    class Module(types.ModuleType):
        replace = property(lambda self: Node(0))

    r = Record(s.new())
    dataclasses.__class__ = Module  # type: ignore[assignment]
    try:
        r = r.changed(p=f(r.p))
    finally:
        dataclasses.__class__ = types.ModuleType
    s.read(OLD.pop())


@strange
def one_name_for_two_fields(s: Stub, f: Any, f2: Any) -> None:
    kind = collections.namedtuple("kind", "p n")
    replacing = kind._replace  # type: ignore[attr-defined]
    cells = dict(zip(replacing.__code__.co_freevars, replacing.__closure__, strict=True))
    cells["field_names"].cell_contents = ("p", "p")
    r = kind(0, s.new())
    r = r._replace(p=f(r[1]))
    s.read(r[1])


@strange
def a_dictionary_that_looks_like_the_attributes(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    r = Record(s.new(), x, {"n": x})
    del x
    for _ in range(2):
        r = Record(f(r.p), r.n, r.q)
        s.read((r.n, r.q))


@strange
def a_method_of_another_object(s: Stub, f: Any, f2: Any) -> None:
    r, o = Record(0), Open(0)
    r.changed = types.MethodType(Record.changed, Record(0, 0, s.new()))  # type: ignore[method-assign]
    p = f(r.changed.__self__.q)  # type: ignore[attr-defined]
    r = r.changed(p=p)
    s.read(r.q)
    o._replace = types.MethodType(Named._replace, Named(0, 0, s.new()))  # type: ignore[method-assign]
    p = f(o._replace.__self__.q)  # type: ignore[attr-defined]
    o = o._replace(p=p)
    s.read(o.q)


@strange
def what_makes_a_copy_is_patched(s: Stub, f: Any, f2: Any) -> None:
    """It looks up these functions, and hands them the object."""

    def keeping(true: Any) -> Any:
        def mine(value: Any, *more: Any, **changes: Any) -> Any:
            if type(value) is Record:
                saved.append(value.__dict__["p"])
            return true(value, *more, **changes)

        return mine

    saved: list[Any] = []
    for owner, name in ((dataclasses, "_is_dataclass_instance"), (builtins, "getattr"), (dataclasses, "_replace")):
        true = owner.__dict__.get(name)
        if true is None:
            continue  # of a newer CPython
        owner.__dict__[name] = keeping(true)
        try:
            for _ in range(2):
                r = Record(s.new())
                r = replace(r, p=f(r.p))
        finally:
            owner.__dict__[name] = true
        s.read(saved)
        saved.clear()


class Key(str):
    """A name that looks when it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        if str.__eq__(self, other) is True and "p" in BOX.__dict__:
            OLD.append(BOX.p)
        return False


@strange
def a_class_with_keys_that_ask(s: Stub, f: Any, f2: Any) -> None:
    odd = type("Odd", (Named,), {Key("p"): 1, Key("_make"): 2, "__slots__": ()})
    r = odd(s.new())
    for i in range(3):
        odd.z = i  # so that names are looked up anew
        BOX.p = r.p
        r = r._replace(p=f(r.p))
        del BOX.p
        s.read(OLD)
        OLD.clear()


class Looking(str):
    """A name that takes the first array it finds in the function that asks whether it is equal."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        for each in sys._getframe(1).f_locals.values():
            if isinstance(each, Named | Record):
                OLD.append(each.p)
            if type(each) is dict and "p" in each:
                OLD.append(each["p"])
        return False


@strange
def a_copy_whose_class_has_keys_that_ask(s: Stub, f: Any, f2: Any) -> None:
    """They are asked as `_replace` looks for `_make`."""
    odd = type("Odd", (Named,), {Looking("_make"): 0, Looking("_replace"): 0, "__slots__": ()})
    r = odd(s.new())
    for i in range(3):
        odd.z = i
        r = r._replace(p=f(r[0]))
        p = f(r[0])
        r = r._replace(p=p)
        s.read(OLD)
        OLD.clear()


@strange
def a_dataclass_with_keys_that_ask(s: Stub, f: Any, f2: Any) -> None:
    odd = type("Odd", (Record,), {Looking("__dataclass_fields__"): 0, Looking("changed"): 0})
    r = odd(s.new())
    for i in range(3):
        odd.z = i
        r = replace(r, p=f(r.p))
        p = f(r.p)
        r = r.changed(p=p)
        s.read(OLD)
        OLD.clear()


@strange
def what_a_constructor_calls_is_another(s: Stub, f: Any, f2: Any) -> None:
    kind = collections.namedtuple("kind", "p n")
    make = kind._make.__func__  # type: ignore[attr-defined]
    cells = dict(zip(make.__code__.co_freevars, make.__closure__, strict=True))

    def new(cls: Any, values: Any) -> Any:
        OLD.append(values.__reduce__()[1][2].__reduce__()[1][0])
        return tuple.__new__(cls, values)

    cells["tuple_new"].cell_contents = new
    r = kind(s.new(), 0)
    for _ in range(3):
        r = r._replace(p=f(r.p))
        s.read(OLD.pop()[0])


@strange
def an_item_beside_a_key_that_asks(s: Stub, f: Any, f2: Any) -> None:
    d: dict[Any, Any] = {"p": s.new(), Looking("n"): 0, "n": 0}
    for _ in range(3):
        d = {"p": f(d["p"]), Looking("n"): 0, "n": d["n"]}
        s.read(OLD)
        OLD.clear()


@strange
def an_item_that_is_not_there(s: Stub, f: Any, f2: Any) -> None:
    def run(row: list[Any]) -> Any:
        for _ in range(2):
            row = [f(row[0]), row[1]]
        return row

    with pytest.raises(IndexError):
        run([s.new()])


class Wide(Record):
    """Its constructor takes more than it has fields."""

    def __init__(self, **given: Any):
        self.given = given
        super().__init__(given["p"])


@dataclasses.dataclass
class More:
    extra: Any = None


EXTRA = More.__dataclass_fields__["extra"]  # type: ignore[attr-defined]


@strange
def an_object_with_fields_of_its_own(s: Stub, f: Any, f2: Any) -> None:
    """`dataclasses.replace` asks the object for them."""
    r = Wide(p=0)
    r.extra, r.__dataclass_fields__ = s.new(), {"extra": EXTRA}  # type: ignore[attr-defined, misc]
    r = replace(r, p=f(r.extra))  # type: ignore[attr-defined]
    s.read(r.given["extra"])


class Field(types.SimpleNamespace):
    """What is not the same each time that it is asked."""

    @property
    def name(self) -> str:
        self.asked += 1
        return "n" if self.asked == 1 else "extra"


@strange
def a_field_that_is_none_of_dataclasses(s: Stub, f: Any, f2: Any) -> None:
    class Odd(Wide):
        extra: Any

    Odd.__dataclass_fields__ = {"extra": Field(asked=0, init=True, _field_type=None)}  # type: ignore[assignment]
    r = Odd(p=0)
    r.extra = s.new()
    r = replace(r, p=f(r.extra))
    s.read([*r.given.values()])


class Alike(str):
    """A name that says it is another one, too, but is not found under that."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str(self) == other or other == "p"

    def __hash__(self) -> int:
        return hash(str(self))


@strange
def a_field_whose_name_is_no_plain_text(s: Stub, f: Any, f2: Any) -> None:
    class Odd(Wide):
        extra: Any

    field = copy.copy(EXTRA)
    field.name = Alike("extra")
    Odd.__dataclass_fields__ = {"extra": field}
    r = Odd(p=0)
    r.extra = s.new()
    r = replace(r, p=f(r.extra))
    s.read([*r.given.values()])


@strange
def a_method_whose_module_has_a_key_that_asks(s: Stub, f: Any, f2: Any) -> None:
    class Odd(Record):
        pass

    space: dict[Any, Any] = {Looking("dataclasses"): 0, "dataclasses": dataclasses}
    Odd.changed = types.FunctionType(Record.changed.__code__, space)  # type: ignore[method-assign]
    r = Odd(s.new())
    for _ in range(3):
        r = r.changed(p=f(r.p))
        s.read(OLD)
        OLD.clear()


@strange
def a_copy_by_a_method_that_is_passed_too_much(s: Stub, f: Any, f2: Any) -> None:
    class Odd(Record):
        made = replace

    r, other = Odd(s.new()), Odd(s.new())
    for _ in range(2):
        try:
            r = other.made(r, p=f(r.p))  # type: ignore[call-arg]
        except TypeError:
            s.read((r.p, other.p))


@strange
def a_slot_of_another_class(s: Stub, f: Any, f2: Any) -> None:
    class Other(Record):
        n = Narrow.__dict__["n"]

    r = object.__new__(Other)
    r.p = s.new()
    for _ in range(2):
        try:
            r.n = f(r.p)
        except TypeError:
            s.read(r.p)


@strange
def a_tuple_that_is_too_short(s: Stub, f: Any, f2: Any) -> None:
    r = tuple.__new__(Named, (s.new(),))
    try:
        r = r._replace(p=f(r.p), n=r.n)
    except IndexError:
        s.read([*r])


@strange
def a_helper_evaluates_a_string(s: Stub, f: Any, f2: Any) -> None:
    def evaluated(text: str, p: Any) -> Any:
        p = f(p)
        s.read(sys._getframe(1).f_locals[text.partition(".")[0]].p)
        return p

    r, t = Record(s.new()), Named(s.new())
    for _ in range(3):
        r = replace(r, p=evaluated("r.p + 1", r.p))
        t = t._replace(p=evaluated("t.p + 1", t.p))


@strange
def other_names_are_replaced(s: Stub, f: Any, f2: Any) -> None:
    t, r = Named(s.new()), Record(s.new())
    for _ in range(3):
        t = t._replace(q=f(t.p))
        r = replace(r, q=f(r.p))
        s.read((t, r.p))


@strange
def the_old_one_is_a_new_value(s: Stub, f: Any, f2: Any) -> None:
    t, r = Named(s.new()), Record(s.new())
    for _ in range(3):
        t = t._replace(p=f(t.p), q=t.p)
        r = replace(r, p=f(r.p), q=r.p)
        s.read((t.q, r.q))
        x, y = f2(t.p, r.p)
        t = t._replace(p=x, q=t)
        r = replace(r, p=y, q=r)
        s.read((t.q.p, r.q.p))
        t, r = Named(x), Record(y)


@strange
def the_old_one_is_passed_twice(s: Stub, f: Any, f2: Any) -> None:
    r = Record(s.new())
    for _ in range(3):
        x = f(r.p)
        r = replace(r, p=r)
        s.read(r.p.p)
        r = Record(x)


@strange
def the_copy_is_another(s: Stub, f: Any, f2: Any) -> None:
    t, r = Named(s.new()), Record(s.new())
    for _ in range(3):
        u = t._replace(p=f(t.p))
        v = replace(r, p=f(r.p))
        s.read((t.p, r.p, u.p, v.p))


@strange
def the_copy_raises(s: Stub, f: Any, f2: Any) -> None:
    t, r = Named(s.new()), Record(s.new())
    for _ in range(3):
        try:
            t = t._replace(p=f(t.p), z=1)
        except (ValueError, TypeError):
            s.read(t)
        try:
            r = replace(r, p=f(r.p), z=1)
        except TypeError:
            s.read(r.p)


@strange
def read_by_a_string(s: Stub, f: Any, f2: Any) -> None:
    def evaluated(text: str) -> Any:
        return s.read(sys._getframe(1).f_locals[text.partition(".")[0]].p)

    r = Record(s.new())
    for _ in range(3):
        r = Record(f(r.p), r.n, evaluated("r.p + 1"))


@strange
def read_by_a_closure(s: Stub, f: Any, f2: Any) -> None:
    d, r = {"p": s.new(), "n": 0}, Record(s.new())

    def look() -> None:
        s.read((d["p"], r.p))

    for _ in range(3):
        x, y = f(d["p"]), f(r.p)
        look()
        d, r = {"p": x, "n": d["n"]}, Record(y, r.n)


@strange
def keys_that_ask(s: Stub, f: Any, f2: Any) -> None:
    class Key(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            saved.append(d["p"] if other == str(self) and len(saved) % 2 == 0 else None)
            return str(self) == other

        __hash__ = str.__hash__

    saved: list[Any] = []
    d: dict[str, Any] = {"p": s.new(), Key("n"): 0}
    for _ in range(3):
        x = f(d["p"])
        d["n"]
        s.read(saved)
        d = {"p": x, Key("n"): 0}


@strange
def numbers_of_a_class_of_its_own(s: Stub, f: Any, f2: Any) -> None:
    """The program makes a call that makes its own, in which it looks at the old value."""
    saved: list[Any] = []

    def act() -> None:
        saved.append(holder[0].p)

    r = Record(s.new(), Number(0, act), s.new())
    holder = [r]
    for _ in range(3):
        r = Record(f(r.p), r.n + 1, r.q)
        s.read(saved)
        holder = [r]


# What a caller has, too


def of_dict(p: Any, n: int) -> dict[str, Any]:
    return {"p": p, "n": n}


def helped(s: Stub, f: Any, after: Callable[[], None] = lambda: None) -> Iterator[tuple[Any, Any]]:
    """Objects, and helpers that make a new one of the old one's fields; `after` runs in them behind the call."""

    def of_an_object(state: Any) -> Any:
        p = f(state.p)
        return type_(p, state.n + 1)

    def of_a_dictionary(state: Any) -> Any:
        p = f(state["p"])
        after()
        return {"p": p, "n": state["n"] + 1}

    for type_ in (Plain, Named, Slim):
        yield type_(s.new(), 0), of_an_object
    yield of_dict(s.new(), 0), of_a_dictionary


def parts(state: Any) -> Any:
    return state if type(state) is dict else (state.p, state.q)


@strange
def callers_that_read_the_object_later(s: Stub, f: Any, f2: Any) -> None:
    for state, helper in helped(s, f):
        for _ in range(3):
            new = helper(state)
            s.read(parts(state))
            state = new
        s.read(parts(state))


@strange
def callers_of_callers_that_read_the_object_later(s: Stub, f: Any, f2: Any) -> None:
    def outer(helper: Any, state: Any) -> Any:
        return helper(state)

    for state, helper in helped(s, f):
        for _ in range(3):
            new = outer(helper, state)
            s.read(parts(state))
            state = new


@strange
def callers_that_have_the_object_under_two_names(s: Stub, f: Any, f2: Any) -> None:
    for state, helper in helped(s, f):
        for _ in range(3):
            other = state
            state = helper(state)
            s.read((parts(other), parts(state)))


@strange
def callers_that_have_the_object_in_a_list(s: Stub, f: Any, f2: Any) -> None:
    for state, helper in helped(s, f):
        held = []
        for _ in range(3):
            held.append(state)
            state = helper(state)
        s.read([parts(each) for each in held])


@strange
def callers_whose_handlers_read_the_object(s: Stub, f: Any, f2: Any) -> None:
    def fail() -> None:
        if len(s.calls) % 2:
            raise ValueError

    for state, helper in helped(s, f, fail):
        for _ in range(4):
            try:
                state = helper(state)
            except ValueError:
                s.read(parts(state))


@strange
def callers_that_read_the_object_in_the_end(s: Stub, f: Any, f2: Any) -> None:
    def fail() -> None:
        if len(s.calls) % 2:
            raise ValueError

    def run(state: Any, helper: Any) -> None:
        try:
            state = helper(state)
        finally:
            s.read(parts(state))

    for state, helper in helped(s, f, fail):
        for _ in range(4):
            with contextlib.suppress(ValueError):
                run(state, helper)
            state = Plain(s.new()) if type(state) is Plain else state
            if helper.__name__ == "of_an_object":
                break


@strange
def callers_that_cannot_unpack(s: Stub, f: Any, f2: Any) -> None:
    for state, helper in helped(s, f):
        for _ in range(3):
            try:
                state, _more, _most = helper(state), 0
            except ValueError:
                s.read(parts(state))
                state = of_dict(s.new(), 0) if type(state) is dict else type(state)(s.new(), 0)


@strange
def callers_whose_variable_is_a_cell(s: Stub, f: Any, f2: Any) -> None:
    for state, helper in helped(s, f):

        def look(state: Any = None) -> None:
            s.read(parts(box()))

        kept = state

        def box() -> Any:
            return kept  # noqa: B023 - it is asked at once

        new = helper(kept)
        look()
        s.read(parts(new))


@strange
def callers_that_resume(s: Stub, f: Any, f2: Any) -> None:
    def states(state: Any, helper: Any) -> Iterator[Any]:
        for _ in range(3):
            new = helper(state)
            yield new
            s.read(parts(state))
            state = new

    for state, helper in helped(s, f):
        for new in states(state, helper):
            s.read(parts(new))


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_no_deleted_array(program: Any) -> None:
    for _ in range(2):
        expect_nothing_deleted(program)


def test_a_thread_that_begins_with_the_helper(made: Functions) -> None:
    """There is no function above it, unlike where it was called before; what called it has the arguments."""
    stub, f, _ = made
    ended = threading.Event()

    def helper(x: Any) -> Any:
        return f(x)

    def alone(x: Any) -> None:
        try:
            helper(x)
        finally:
            ended.set()

    def outer(x: Any) -> Any:
        return helper(x)

    x = stub.new()
    for _ in range(3):
        x = outer(x)
    expect_dead(stub, 3)
    for function in (alone, helper):
        given = (x,)
        ended.clear()
        _thread.start_new_thread(function, given)
        while len(stub.calls) < 4 + (function is helper):
            ended.wait(0.01)
        stub.read(given)


FEWER = """
from tests.ownership.harness import Stub, first

stub = Stub()
step = stub.compile(first)

def helper(p):
    return step(p)

def many():
    a = b = c = d = e = f = g = h = i = j = k = 0
    state = {"p": stub.new(), "n": 0}
    for _ in range(3):
        state = {"p": helper(state["p"]), "n": state["n"]}

def fewer(p):
    return helper(p)

for _ in range(3):
    many()
    fewer(stub.new())
print(*(len(call.dead) for call in stub.calls))
"""


def in_a_process(program: str) -> str:
    """What a program prints, in a process of its own."""
    return interpreters.printed(["-c", program])


def test_a_helper_with_callers_of_fewer_variables() -> None:
    """What was found in one caller's frame is not there in the next one's: it was read behind the frame's end."""
    assert in_a_process(FEWER).split() == ["1"] * 12


def test_copy_replace_keeps(made: Functions) -> None:
    """It asks the class for `__replace__`, which is not followed."""
    stub, f, _ = made
    if not hasattr(copy, "replace"):
        pytest.skip("new in CPython 3.13")
    state = Named(stub.new())
    state = copy.replace(state, p=f(state.p))
    expect(stub.calls[0].dead == set())
    stub.read(state)
