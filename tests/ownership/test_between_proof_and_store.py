"""Whoever gets to run between the proof and the store: code that dies, sorts, hashes, or is asked by the proof itself.

Each program keeps its state in a slot, and has something look at that when it should be too late.
"""

from __future__ import annotations

import copy
import gc
import sys
import types
from typing import Any

import jax
import jax.extend.random as extend_random
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata

import pytc
from pytc.emit import EmittedWhole
from pytc.ownership.others import watchers
from tests import interpreters
from tests.ownership.odd_objects import Last

pytestmark = pytest.mark.unfrozen

BOX = types.SimpleNamespace(a=None)
SEEN: list[bool] = []
"""What those saw that looked: whether an array in the box was deleted."""
STASH: list[Any] = []
"""What they took out of the box."""
ON = [False]


def arrays() -> list[jax.Array]:
    """Those in the box, without flattening anything."""
    found = getattr(BOX.a, "x", BOX.a)
    return [x for x in (dict.values(found) if type(found) is dict else [found]) if type(x) is type(jnp.ones(1))]


def look() -> None:
    SEEN.extend(array.is_deleted() for array in arrays())


def take() -> None:
    if ON[0]:
        ON[0] = False
        STASH.append(arrays())
        ON[0] = True


@pytest.fixture(autouse=True)
def _anew():
    SEEN.clear()
    STASH.clear()
    ON[0] = False


def not_deleted() -> bool:
    """Whether something has looked, and nothing of what it saw was deleted."""
    taken = [array.is_deleted() for each in STASH for array in each]
    return bool(SEEN + taken) and not any(SEEN + taken)


def double(x: Any) -> Any:
    return x * 2


# -- what lay beneath the call --


def in_a_variable(step: Any, x: Any) -> Any:
    _last, new = Last(look), step(x)
    return new


def in_a_tuple(step: Any, x: Any) -> Any:
    _pair = (Last(look), step(x))
    return x


@pytest.mark.parametrize("helper", [in_a_variable, in_a_tuple])
def test_what_a_helper_stores_that_was_there_before_the_call(helper):
    step = pytc.compile(double)

    def once():
        BOX.a = helper(step, BOX.a)

    for _ in range(5):
        BOX.a = jnp.ones(1000)
        once()
    assert not_deleted()


# -- what refers to the same function --


@jax.tree_util.register_pytree_node_class
class State:
    """Beside its array it has a function, which is no part of the tree."""

    def __init__(self, x: Any, function: Any):
        self.x, self.function = x, function

    def tree_flatten(self):
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _, parts):
        return cls(*parts, None)


def test_a_function_that_is_in_an_argument_and_a_helpers_own():
    step = pytc.compile(lambda state: state.x * 2)

    def helper(x):
        last = Last(look)

        def function():
            return last

        return step(State(x, function))

    def once():
        BOX.a = helper(BOX.a)

    BOX.a = jnp.ones(1000)
    for _ in range(5):
        once()
    assert not_deleted()


# -- what is made on the way --


class Callback:
    def __call__(self, x):
        return np.asarray(x)

    def __del__(self):
        look()


def test_what_only_the_program_as_it_was_staged_refers_to():
    captured = jnp.arange(1000.0)

    def body(x):
        jax.pure_callback(Callback(), jax.ShapeDtypeStruct((1000,), jnp.float32), x)
        return x * 2 + captured

    step = pytc.compile(body)

    def once():
        BOX.a = step(BOX.a)

    BOX.a = jnp.ones(1000)
    once()
    assert not_deleted()


class Made:
    """Made anew each time that a container is flattened."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return type(other) is Made

    def __del__(self):
        look()


@jax.tree_util.register_pytree_node_class
class Beside:
    def __init__(self, x: Any):
        self.x = x

    def tree_flatten(self):
        return (self.x,), Made()

    @classmethod
    def tree_unflatten(cls, _, parts):
        return cls(*parts)


def test_what_flattening_makes_anew():
    step = pytc.compile(lambda node, other: Beside(node.x * 2))

    def once(other):
        BOX.a = step(BOX.a, other)

    BOX.a = Beside(jnp.ones(1000))
    for _ in range(5):
        once(Beside(jnp.ones(3)))
    assert not_deleted()


class Meanwhile:
    """Auxiliary data, or a static argument, that does something when it is compared."""

    does: Any = None

    def __init__(self, mortal=True):
        self.mortal = mortal

    def __hash__(self):
        return 2

    def __eq__(self, other):
        does, Meanwhile.does = Meanwhile.does, None
        if does is not None:
            does()
        return type(other) is Meanwhile

    def __del__(self):
        if self.mortal:
            look()


@jax.tree_util.register_pytree_node_class
class Asking(Beside):
    mortal = True

    def tree_flatten(self):
        return (self.x,), Meanwhile(self.mortal)


class Patient(Asking):
    mortal = False


jax.tree_util.register_pytree_node(Patient, Patient.tree_flatten, lambda _, parts: Patient(*parts))


def test_what_flattening_has_made_for_a_call_that_another_of_the_function_comes_into():
    step = pytc.compile(lambda node: node.x + 1)

    def once(node):
        Meanwhile.does = lambda: step(Patient(jnp.ones(1000)))
        BOX.a = step(node(BOX.a))
        Meanwhile.does = None

    BOX.a = jnp.ones(1000)
    for _ in range(6):
        address = BOX.a.unsafe_buffer_pointer()
        once(Asking)
    assert not_deleted()
    assert BOX.a.unsafe_buffer_pointer() == address


@pytest.mark.parametrize("calls_before", [1, 5])
def test_the_program_of_a_call_in_the_midst_of_which_caches_are_cleared(calls_before):
    step = pytc.compile(lambda x, static: x + 1)

    def once(static):
        BOX.a = step(BOX.a, static)

    BOX.a = jnp.ones(1000)
    for _ in range(3):
        other = Meanwhile(False)
        once(Meanwhile())
        for _ in range(calls_before):
            once(other)
        Meanwhile.does = step.clear_cache
        once(other)
        Meanwhile.does = step.clear_cache
        once(Meanwhile(False))
        assert Meanwhile.does is None
    assert not_deleted()


# -- what JAX asks --


class Key:
    def __init__(self, n: int):
        self.n = n

    def __hash__(self):
        take()
        return hash((Key, self.n))

    def __eq__(self, other):
        return type(other) is Key and self.n == other.n

    def __lt__(self, other):
        take()
        return self.n < other.n


def test_keys_that_are_compared_or_hashed():
    step = pytc.compile(lambda state: {key: x * 2 for key, x in state.items()})

    def once():
        BOX.a = step(BOX.a)

    BOX.a = {Key(n): jnp.ones(1000) * n for n in range(2)}
    for i in range(8):
        ON[0] = i in (0, 6, 7)
        once()
    assert not_deleted()


@pytest.mark.parametrize("outer", [int, float])
def test_a_number_that_is_asked_for_its_value(outer):
    class Number(outer):
        def __int__(self):
            take()
            return 1

        def __float__(self):
            take()
            return 1.0

    step = pytc.compile(lambda x, n: x * 2 + n)
    number = Number(1)

    def once():
        BOX.a = step(BOX.a, number)

    BOX.a = jnp.ones(1000)
    for i in range(8):
        ON[0] = i in (0, 6, 7)
        once()
    assert not any(array.is_deleted() for leaves in STASH for array in leaves)  # not every JAX asks


def asked(kind: type) -> type:
    class Asked(kind):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name):
            take()
            return super().__getattribute__(name)

        def __index__(self):
            take()
            return 1

        def __float__(self):
            take()
            return 1.0

    return Asked


ASKED = {kind: asked(kind) for kind in (int, float, np.ndarray)}
"""Made at once, and kept: JAX takes a class for another one that it has seen in the same memory."""


@pytest.mark.parametrize("kind", ASKED)
def test_what_comes_in_the_place_of_an_array_and_is_asked_for_its_value(kind):
    """The calls before it went straight to `jax.jit`."""
    step = pytc.compile(lambda x, by: x * by)
    array = kind is np.ndarray
    odd: Any = np.ones(8, np.float32).view(ASKED[kind]) if array else ASKED[kind](1)
    plain = jnp.ones(8) if array else jax.jit(lambda: kind(1))()

    def once(by):
        BOX.a = step(BOX.a, by)

    BOX.a = jnp.ones(8)
    for _ in range(8):
        once(plain)
    ON[0] = True
    once(odd)
    once(odd)
    assert not_deleted()


class Name(str):
    __slots__ = ()

    def __hash__(self):
        take()
        return super().__hash__()

    def __eq__(self, other):
        take()
        return super().__eq__(other)

    def __lt__(self, other):
        take()
        return super().__lt__(other)


def test_the_names_of_arguments_that_are_compared(monkeypatch):
    """They look only when the program is about to run: what they take before is seen by the proof."""
    original = EmittedWhole.call_whole

    def call_whole(*arguments: Any) -> None:
        ON[0] = named[0]
        try:
            original(*arguments)
        finally:
            ON[0] = False

    monkeypatch.setattr(EmittedWhole, "call_whole", call_whole)
    step = pytc.compile(lambda x, *, b, c: x + b + c)
    one, two, named = jnp.ones(8), jnp.ones(8), [False]

    def once(names):
        BOX.a = step(BOX.a, **names)

    BOX.a = jnp.ones(8)
    for _ in range(8):
        once({"b": one, "c": two})
    named[0] = True
    for _ in range(3):
        once({Name("c"): two, Name("b"): one})
        assert not any(array.is_deleted() for each in STASH for array in each)
        STASH.clear()


def keep():
    """As `take`, where nothing may be computed."""
    if ON[0]:
        STASH.append([BOX.a])


class Setting(str):
    __slots__ = ()

    def __hash__(self):
        keep()
        return str.__hash__(self)

    def __eq__(self, other):
        keep()
        return str.__eq__(self, other)


MINE = jax.make_user_context(None)
SETTINGS = {"user context": MINE, "metadata": lambda value: set_xla_metadata(mine=value)}


@pytest.mark.parametrize("context", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("at", [(0,), range(1, 8)], ids=["what it was compiled with", "what it is called with"])
def test_what_jax_is_set_to(context, at):
    step = pytc.compile(double)

    def once():
        BOX.a = step(BOX.a)

    BOX.a = jnp.ones(1000)
    for i in range(8):
        with context(Setting("1") if i in at else "".join(["1"])):
            ON[0] = i > 0
            once()
            ON[0] = False
    assert not_deleted()


def test_settings_of_plain_values_and_meshes_do_not_keep_anything():
    step = pytc.compile(double, donate="require")

    def once():
        BOX.a = step(BOX.a)

    BOX.a = jnp.ones(1000)
    mesh = jax.make_mesh((1,), ("x",))
    assert mesh.shape == mesh.abstract_mesh.shape == {"x": 1}  # which meshes have at hand from then on
    for value in (1, "a", (1.5, None), jax.sharding.AxisType.Auto, object(), double):
        for _ in range(4):
            with MINE(value), set_xla_metadata(mine=str(value)), jax.set_mesh(mesh):
                once()
    assert jax.sharding.get_abstract_mesh().shape == {}
    once()


class Part:
    """A function that is a part of an implementation of PRNG keys."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return self.function(*args)

    def __hash__(self):
        keep()
        return 1

    def __eq__(self, other):
        keep()
        return type(other) is Part


def test_keys_of_an_implementation_that_is_made_anew():
    like = extend_random.threefry_prng_impl
    step = pytc.compile(lambda x, key: (x * 2, jax.random.key_data(key)[0]))

    def key():
        parts = {name: Part(getattr(like, name)) for name in ("seed", "split", "random_bits", "fold_in")}
        impl = extend_random.define_prng_impl(key_shape=like.key_shape, name="mine", tag="mine", **parts)
        return jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl=impl)

    def once(key):
        BOX.a, _ = step(BOX.a, key)

    BOX.a = jnp.ones(1000)
    for i in range(8):
        made = key()
        ON[0] = i > 3
        once(made)
        ON[0] = False
    assert not_deleted()


PLACED = """
import sys, types
import jax, jax.numpy as jnp
import pytc
from pytc.emit import EmittedWhole
from pytc.ownership.others import watchers

box, kept, seen, on = types.SimpleNamespace(a=jnp.ones(1000)), [], [], [False]

class Dying(jax.sharding.SingleDeviceSharding):
    def __del__(self):
        if on[0]:
            seen.append(box.a.is_deleted())

class Asked(jax.sharding.SingleDeviceSharding):
    def __eq__(self, other):
        if on[0]:
            kept.append(box.a)
        return type(other) is Asked

    def __hash__(self):
        if on[0]:
            kept.append(box.a)
        return 1

def batch(kind):
    return jax.make_array_from_single_device_arrays((1000,), kind(jax.devices()[0]), [jnp.ones(1000) + 0])

step = pytc.compile(lambda x, batch: x + batch)

def once(i):
    if sys.argv[1] == 'dying':
        on[0] = i > 3
        box.a = step(box.a, batch(Dying))
    else:
        asked = batch(Asked)
        on[0] = i > 3
        box.a = step(box.a, asked)
    on[0] = False

for i in range(8):
    once(i)
assert kept + seen and not any(seen) and not any(x.is_deleted() for x in kept)
"""


@pytest.mark.parametrize("kind", ["dying", "asked"])
def test_shardings_of_peoples_own_classes(kind):
    interpreters.printed(["-c", PLACED, kind])  # such a class may be in JAX's caches for good


# -- what the proof asks --


class Asked:
    @property
    def __class__(self):
        take()
        return Asked


class Meta(type):
    def __getattr__(cls, name):
        take()
        raise AttributeError(name)


class Class(metaclass=Meta):
    pass


@pytest.mark.parametrize("config", [Asked(), Class()])
def test_objects_that_may_be_asked_what_they_are(config):
    step = pytc.compile(lambda state: {"w": state["w"] * 2, "config": state["config"]})

    def once():
        BOX.a = step(BOX.a)

    for first in range(9):  # a first call asks
        BOX.a = {"w": jnp.ones(1000), "config": config}
        for i in range(9):
            ON[0] = i >= first
            once()
    assert not_deleted() or (type(config) is Class and not STASH)  # the classes of classes are not asked


def test_objects_that_are_asked_in_search_of_what_holds_a_leaf():
    holder = Asked()
    step = pytc.compile(lambda x, y: (x * 2, y * 3))

    def once():
        y = holder.y
        BOX.a, y = step(BOX.a, y)
        return y

    BOX.a = holder.y = jnp.ones(1000)
    BOX.a = BOX.a + 1
    for _ in range(6):
        ON[0] = True
        once()
        ON[0] = False
    assert not_deleted()


# -- iterators that are no loop's, and frames that others read --


def test_an_iterator_that_is_copied():
    step = pytc.compile(double)

    def advanced(states):
        through = iter(states)
        next(through)
        return through

    def both(through, _):
        return copy.deepcopy(through)

    for _ in range(3):
        states = [jnp.ones(1000), jnp.ones(1000)]
        first = states[0]
        ahead = both(advanced(states), step(first))
        del states
        assert len([*ahead]) == 1


def test_an_iterator_that_its_function_can_read():
    step = pytc.compile(double)

    def run():
        state = {}
        states = [jnp.ones(1000), jnp.ones(1000)]
        through, states = states, None
        return [
            *(
                (step(state.pop("x")), SEEN.extend(x.is_deleted() for x in locals()[".0"].__reduce__()[1][0]))
                for state["x"] in through
            )
        ]

    for _ in range(3):
        run()
    assert not_deleted()


def test_a_variable_that_is_free_and_a_comprehensions():
    class Owner:
        def method(self, *args):
            return step(args[0])

    step = pytc.compile(double)

    def outer(*args):
        x = 1

        def inner():
            y = x
            w = [
                1,
            ]
            return Owner().method(args[0], *args), y, w

        return inner()

    for _ in range(3):
        assert float(outer(jnp.ones(10))[0][0]) == 2


def test_no_garbage_is_collected_while_it_is_asked_who_may_look(monkeypatch):
    """Its finalisers might start a thread that the answer does not know of."""
    box = types.SimpleNamespace(a=jnp.zeros(8))
    step = pytc.compile(lambda x: x + 1)
    collecting = []

    def advance():
        box.a = step(box.a)

    for _ in range(3):  # the first call looks at the place
        advance()
    monkeypatch.setattr(watchers, "unknown_thread", lambda: "another")
    answer = [True]

    def alone():
        asking = sys._getframe(2)  # `onlooking_thread` is in between
        if asking.f_code is watchers.onlookers.__code__:  # the proof; a look at the caller's code asks as well
            collecting.append(gc.isenabled())
        return answer[0]

    monkeypatch.setattr(watchers.interpreter, "alone", alone)
    for answer[0] in (True, False):
        advance()
        assert gc.isenabled()
    assert collecting
    assert not any(collecting)
