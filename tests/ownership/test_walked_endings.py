"""What dies with an argument that a slot is given a new value for, where the site has seen ordinary ones before.

The call takes two states out of two slots. As the first slot is overwritten, its old state dies; something odd about
that state then looks at the second, which is about to be overwritten, too.
"""

from __future__ import annotations

import datetime
import types
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import pytc
from pytc.ownership.references import dying
from tests.ownership.odd_objects import Last, Node


class Name(str):
    """A key as good as a string."""


class Pair(Node):
    """A tree of one branch, of a class that tests change."""


class Tag:
    """A static leaf that is equal to any other; `str` and others like it have no such parts."""

    def __init__(self):
        self.last = None

    def __eq__(self, other):
        return isinstance(other, Tag)

    def __hash__(self):
        return 0


@jax.tree_util.register_pytree_node_class
class Empty:
    """A tree without leaves."""

    def __init__(self):
        self.parts = []

    def tree_flatten(self):
        return (), None

    @classmethod
    def tree_unflatten(cls, _, __):
        return cls()


class Moment(datetime.datetime):
    """A tree of one branch that does not tell the garbage collector of its time zone."""


class Zone(datetime.tzinfo):
    def __init__(self, offset):
        self.offset = offset

    def utcoffset(self, _):
        return self.offset


jax.tree_util.register_pytree_node_class(Pair)
jax.tree_util.register_pytree_node(Moment, lambda moment: ((moment.x,), None), lambda _, branches: branches[0])


def of_array(x, look):
    if look is not None:
        x.note = Last(look)
    return {"x": x}


def of_kept_array(x, look):
    kept = jnp.zeros((), jnp.int32)
    if look is not None:
        kept.note = Last(look)
    return {"x": x, "y": kept}


def weakly(x, look):
    kept = jnp.zeros((), jnp.int32)
    if look is not None:
        ALIVE.append(weakref.ref(kept, lambda _: look()))
    return {"x": x, "y": kept}


def of_object(x, look):
    node = Node(x)
    if look is not None:
        node.note = Last(look)
    return [node]


def of_class(x, look):
    if look is not None:
        Pair.__del__ = lambda self: look()
    elif hasattr(Pair, "__del__"):
        del Pair.__del__
    return [Pair(x)]


def of_key(x, look):
    key = Name("x")
    if look is not None:
        key.note = Last(look)
    return {key: x}


def of_another_key(x, look):
    key = "x"
    if look is not None:
        key = Name("x")
        key.note = Last(look)
    return {key: x}


def of_empty(x, look):
    empty = Empty()
    if look is not None:
        empty.parts.append(Last(look))
    return {"x": x, "y": empty}


def of_tag(x, look):
    tag = Tag()
    if look is not None:
        tag.last = Last(look)
    return {"x": x, "y": tag}


twice_more = [lambda: None] * 2
"""A function to which others refer, too."""


def of_function(x, look):
    node = Node(x)
    if look is None:
        node.note = twice_more[0]
    else:
        last = Last(look)
        node.note = lambda: last
    return node


def of_time(x, look):
    zone = Zone(datetime.timedelta(0))
    if look is not None:
        zone.last = Last(look)
    moment = Moment(2000, 1, 1, tzinfo=zone)
    moment.x = x
    return moment


def alone(x, look):
    return of_array(x, look)["x"]


ALIVE: list[Any] = []
SEEN = (
    alone, of_array, of_kept_array, weakly, of_object, of_class, of_key, of_another_key, of_empty, of_tag, of_function
)  # fmt: skip
NOT_SEEN = (of_time,)
"""Whether these hold anything odd is not to be seen, so they are kept."""


def step(a, b):
    x = jax.tree.leaves(a)[0]
    return x + 1, b + x


def run(step, make, odd):
    """Whether the odd one sees a deleted array; where the first state was; and the result."""
    a, b = jnp.zeros(9), jnp.zeros(9)
    for _ in range(3):  # what is in no slot may be of any kind, and the way to it is remembered
        a, b = step(make(a, None), b)
    both = types.SimpleNamespace(a=a, b=b)
    del a, b
    seen, places = [], []

    def look():
        seen.append(both.b.is_deleted())

    for i in range(11):
        places.append(both.a.unsafe_buffer_pointer())
        if i > 3:  # and to look at the slots
            both.a = make(both.a, look if i == odd else None)
        both.a, both.b = step(both.a, both.b)
    make(both.a, None)
    ALIVE.clear()
    return seen, places, both.b.tolist()


@pytest.mark.parametrize("make", [*SEEN, *NOT_SEEN], ids=lambda make: make.__name__)
def test_what_is_odd_about_a_later_argument_is_seen(make):
    _, _, expected = run(jax.jit(step) if make is not of_tag else without_tag, make, None)
    for odd in (5, 8):  # parts of the first one live on in what is remembered of the trees
        seen, _, result = run(pytc.compile(step), make, odd)
        assert seen == [False]
        assert result == expected


def without_tag(a, b):
    return jax.jit(step)(jax.tree.leaves(a)[0], b)


class Holder:
    state: Any


def test_what_keys_are_made_by_is_not_looked_for_at_each_call(monkeypatch):
    """It is known to live on."""
    split = pytc.compile(lambda state: {"key": jax.random.split(state["key"])[0], "x": state["x"] + 1})
    holder, searches, reached = Holder(), [], dying.reached
    holder.state = {"key": jax.random.key(0), "x": jnp.ones(8)}
    monkeypatch.setattr(dying, "reached", lambda *args: (searches.append(args), reached(*args))[1])
    places = []
    for _ in range(6):
        holder.state = split(holder.state)
        places.append((holder.state["x"].unsafe_buffer_pointer(), len(searches)))
    assert len({*places[2:]}) == 1


@pytest.mark.parametrize("make", SEEN, ids=lambda make: make.__name__)
def test_ordinary_ones_are_donated(make):
    _, places, _ = run(pytc.compile(step), make, None)
    assert len({*places[6:]}) == 1
