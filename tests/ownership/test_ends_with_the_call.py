"""What ends with a call besides arrays, and looks then: the function itself, keywords, what is static, odd containers.

Each program takes a state out of a slot and puts the next one there. What looks dies in between.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.ownership.others import watchers
from pytc.ownership.references import dying
from tests.ownership.harness import Stub, both
from tests.ownership.odd_objects import Last, Node

Look = Callable[[], None]


def add(a, b, *_):
    return a + 1, b + a


def of_nodes(a, b):
    return a.x + 1, b + a.x


def run(call: Callable[[Any, Look | None], None], odd: Callable[[int], bool]) -> tuple[list[bool], list[int]]:
    """Whether those that look see a deleted array, and where the second state was; `call` makes one call with the
    states in a box, in which something looks if it is given a look."""
    box = types.SimpleNamespace(a=jnp.zeros(9), b=jnp.zeros(9))
    seen: list[bool] = []
    places = []

    def look():
        seen.append(box.b.is_deleted())

    for i in range(12):
        places.append(box.b.unsafe_buffer_pointer())
        call(box, look if odd(i) else None)
    return seen, places


WEAK: list[Any] = []


def watched(value: Any, look: Look | None) -> Any:
    """The value, the end of which is looked at."""
    if look is not None:
        WEAK.append(weakref.ref(value, lambda _: look()))
    return value


class Equal:
    """As good as any other of its kind."""

    def __init__(self, part=None):
        self.part = part

    def __eq__(self, other):
        return type(other) is type(self)

    def __hash__(self):
        return 0

    def __call__(self, *_):
        pass


@jax.tree_util.register_pytree_node_class
class Tree(Equal):
    """The same, and a tree of what is in it."""

    def tree_flatten(self):
        return (self.part,), None

    @classmethod
    def tree_unflatten(cls, _, parts):
        return cls(*parts)


class Owner:
    def method(self):
        pass


OWNER, LIST = Owner(), [0]


def last_in_a_function(look: Look | None) -> Any:
    last = None if look is None else Last(look)
    return lambda: last


STATIC = {
    "equal": lambda look: Equal(last_in_a_function(look)),
    "in a tuple": lambda look: (Equal(last_in_a_function(look)),),
    "a tree when it is not static": lambda look: Tree(last_in_a_function(look)),
    "method": lambda look: watched(OWNER.method, look),
    "method written in C": lambda look: watched(LIST.copy, look),
    "method of what is only equal": lambda look: types.MethodType(Equal(last_in_a_function(look)), OWNER),
}


@pytest.mark.parametrize("make", STATIC.values(), ids=STATIC.keys())
def test_static_argument_that_is_only_equal(make):
    def call():
        step = pytc.compile(add, static_argnums=2)

        def once(box, look):
            box.a, box.b = step(box.a, box.b, make(look))

        return once

    for odd in (lambda i: True, lambda i: i > 5):
        seen, _ = run(call(), odd)
        assert seen
        assert not any(seen[1:])  # the first one is the compiled function's own


@pytest.mark.parametrize("make", [STATIC["method"], STATIC["method written in C"]])
@pytest.mark.parametrize("tree", [lambda x, f: {"x": x, "f": f}, lambda x, f: [(x, (f,))]])
def test_static_leaf_that_is_only_equal(make, tree):
    def call():
        step = pytc.compile(lambda a, b: (jax.tree.leaves(a)[-1 if isinstance(a, dict) else 0] + 1, b + 1))

        def once(box, look):
            box.a = tree(jnp.zeros(9), make(look))
            box.a, box.b = step(box.a, box.b)

        return once

    for odd in (lambda i: True, lambda i: i > 5):
        seen, _ = run(call(), odd)
        assert not any(seen)


def test_method_that_is_handed_over_at_each_call():
    def call():
        step = pytc.compile(add, static_argnums=2)

        def once(box, look):
            box.a, box.b = step(box.a, box.b, OWNER.method)

        return once

    _, places = run(call(), lambda i: False)
    assert len({*places[2:]}) == 1


class Model:
    """Equal to nothing but itself."""


@pytest.mark.parametrize("attached", [False, True])
def test_slot_of_a_static_argument(attached):
    """The compiled function has the argument, but not for long what is in its slot."""

    def call():
        step = pytc.compile(lambda a, b, model: of_nodes(a, b), static_argnums=2)
        model = Model()

        def once(box, look):
            node = Node(jnp.zeros(9))
            model.note = last_in_a_function(look)
            if attached:
                node.note = model.note
            box.a = [node]
            del node
            model.note, box.b = step(box.a.pop(), box.b, model)

        return once

    for odd in (lambda i: True, lambda i: i > 5):
        seen, _ = run(call(), odd)
        assert seen
        assert not any(seen)


@pytest.mark.parametrize("something_before", [False, True])
def test_slot_of_a_static_argument_whose_value_another_slot_has_too(something_before):
    """The function dies with the second of the two, and not with the model, which lives on."""

    def call():
        step = pytc.compile(lambda a, b, c, model: (c, b[:3], Node(a.x + 1), b + 1), static_argnums=3)
        model, before = Model(), types.SimpleNamespace(c=Node(None))
        model.lives_on, living = OWNER.method, []

        def once(box, look):
            if not isinstance(box.a, Node):
                box.a = Node(box.a)
            model.note = box.a.note = last_in_a_function(look)
            if look is None:
                living.extend([model.note] * 9)
            if something_before:
                before.c.note = model.lives_on
            before.c, model.note, box.a, box.b = step(box.a, box.b, before.c, model)

        return once

    for odd in (lambda i: True, lambda i: i > 5):
        seen, _ = run(call(), odd)
        assert seen
        assert not any(seen)
    _, places = run(call(), lambda i: False)
    assert len({*places[2:]}) == 1


class Name(str):
    """A keyword as good as a string."""


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("wrap", [lambda x: x, Node])
def test_keyword_that_looks(name, wrap):
    def call():
        step = pytc.compile(lambda a, b: (jax.tree.map(lambda x: x + 1, a), b + 1))

        def once(box, look):
            if not isinstance(box.a, Node):
                box.a = wrap(box.a)
            keyword = Name(name)
            if look is not None:
                keyword.note = Last(look)
            given = [{keyword: vars(box)[name], **{other: vars(box)[other] for other in "ab" if other != name}}]
            del keyword
            box.a, box.b = step(**given.pop())

        return once

    for odd in (lambda i: True, lambda i: i > 5):
        seen, _ = run(call(), odd)
        assert not any(seen)


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: types.MethodType(f, Node(jnp.zeros(3)))])
def test_compiled_function_that_ends_with_its_call(wrap):
    """With it goes what it has captured."""
    box = types.SimpleNamespace(a=jnp.zeros(9))
    seen = []

    def make():
        last = Last(lambda: seen.append(box.a.is_deleted()))

        def advance(*args):
            return args[-1] + (last is not None)

        return wrap(pytc.compile(advance))

    functions = [make()] * 8
    starred = [make()] * 8

    def once():
        box.a = functions.pop()(box.a)

    def once_more():
        box.a = starred.pop()(*(box.a,))

    places = []
    for each in (once, once_more):
        for _ in range(8):
            each()
            places.append(box.a.unsafe_buffer_pointer())
    assert seen == [False, False]
    assert len({*places[1:7]}) == 1


def _in_a_list(step, state, look):
    pair = [state, None if look is None else Last(look)]
    del state
    first = pair[0]
    return step(first)


def _in_a_list_of_a_helpers(step, state, look):
    pair = [state, None if look is None else Last(look)]
    del state
    return _first_of(step, pair)


def _first_of(step, pair):
    first = pair[0]
    return step(first)


@pytest.mark.parametrize("helper", [_in_a_list, _in_a_list_of_a_helpers])
@pytest.mark.parametrize("first", [0, 6])
def test_list_of_a_helper_that_has_the_argument_in_it_too(helper, first):
    def call():
        step = pytc.compile(lambda b: b + 1)

        def once(box, look):
            box.b = helper(step, box.b, look)

        return once

    seen, _ = run(call(), lambda i: i >= first)
    assert seen
    assert not any(seen)
    _, places = run(call(), lambda i: False)
    assert len({*places[2:]}) == 1


@jax.tree_util.register_pytree_node_class
class Matrix(np.ndarray):
    """A container with memory."""

    def tree_flatten(self):
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _, parts):
        return matrix(*parts, None)


def matrix(x: Any, look: Look | None) -> Matrix:
    made = (np.zeros(1) if look is None else np.array([Last(look)], object)).view(Matrix)
    made.x = x
    return made


def test_container_whose_memory_is_of_objects_this_time():
    """Its class is as before."""
    step = pytc.compile(of_nodes)

    def call():
        def once(box, look):
            box.a = matrix(box.a, look)
            box.a, box.b = step(box.a, box.b)

        return once

    def in_variables(a, b):
        for _ in range(4):
            a, b = step(matrix(a, None), b)

    in_variables(jnp.zeros(9), jnp.zeros(9))
    for odd in (lambda i: i > 8, lambda i: True, lambda i: i > 5):
        seen, _ = run(call(), odd)
        assert seen
        assert not any(seen)


def test_way_to_the_arguments_that_is_forgotten_meanwhile(monkeypatch):
    """As when JAX lets go of something whose finaliser makes the same call with other arguments."""
    stub = Stub()
    f2 = stub.compile(both)
    box = types.SimpleNamespace(a=Node(stub.new()), b=stub.new())
    seen: list[bool] = []
    known: list[bool] = []
    let_go = watchers.let_go

    def forget():
        for wanted in stub.wanted.values():
            known.append(wanted.walk is not None)
            wanted.walk = None
        return let_go()

    def run():
        for i in range(10):
            if i == 8:
                box.a.note = Last(lambda: seen.append(box.b.is_deleted()))
                monkeypatch.setattr(watchers, "let_go", forget)
            box.a, box.b = f2(box.a, box.b)
            monkeypatch.setattr(watchers, "let_go", let_go)

    run()
    assert known[0]
    assert seen == [False]


if sys.version_info >= (3, 13):

    def test_capsule_in_an_argument():
        """It has an array, and does not say so."""

        def call():
            step = pytc.compile(of_nodes)

            def once(box, look):
                node = Node(box.a)
                node.note = watched(np.zeros(3), look).__dlpack__()
                box.a = node
                del node
                box.a, box.b = step(box.a, box.b)

            return once

        seen, _ = run(call(), lambda i: i > 5)
        assert seen
        assert not any(seen)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Configured:
    """A state with a part that is static by its class."""

    x: Any
    settings: Any = dataclasses.field(metadata={"static": True})


class Settings:
    """Many objects, compared by identity."""

    def __init__(self):
        self.all = [object() for _ in range(100)]


LARGE = Settings()


@pytest.mark.parametrize("large", [jax.nn.relu, LARGE, ("one", (LARGE,))], ids=["relu", "leaf", "tuple"])
@pytest.mark.parametrize(
    "make", [lambda large: {"x": jnp.zeros(9), "large": large}, lambda large: Configured(jnp.zeros(9), large)]
)
def test_what_is_static_is_not_examined_at_each_call(monkeypatch, make, large):
    """The compiled function has it, too, so it lives on; and `relu` is part of a module."""
    step = pytc.compile(lambda state: jax.tree.map(lambda v: v + 1 if isinstance(v, jax.Array) else v, state))
    box = types.SimpleNamespace(state=make(large))

    def loop(calls):
        for _ in range(calls):
            box.state = step(box.state)

    loop(3)
    monkeypatch.setattr(dying, "MOST", 60)
    loop(12)
    (site,) = pytc.explain(step).sites
    assert (site.donated, site.copied_calls) == (1, 0)
