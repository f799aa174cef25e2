"""Odd ends of things behind a call, and odd ways to look: finalisers, keys, classes, handlers and tools that tell lies."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import gc
import re
import signal
import sys
import types
import weakref
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training import train_state

import pytc
from pytc.ownership.cpython import plain
from pytc.ownership.references import endings
from tests.ownership.harness import Stub, both, expect_nothing_deleted, first, of_length
from tests.ownership.odd_objects import Last, LastOfNothing, Node, capturing, looking_at

ALL: list[Any] = []


def strange(program):
    ALL.append(program)
    return program


@jax.tree_util.register_pytree_node_class
class State(Node):
    def value(self):
        return self.x


@jax.tree_util.register_pytree_node_class
class Model(State):
    def directly(self, s, f):
        f(self)
        s.read(super().value())

    def in_two_lines(self, s, f):
        f(self)
        above = super()
        s.read(above.value())


@strange
def super_reads_the_first_argument(s, f, f2):
    for _ in range(3):
        Model(s.new()).directly(s, f)


@strange
def super_without_an_attribute(s, f, f2):
    for _ in range(3):
        Model(s.new()).in_two_lines(s, f)


@strange
def local_of_two_functions_that_return(s, f, f2):
    box = types.SimpleNamespace(a=s.new())

    def inner(last):
        return f(box.a)

    def outer(last):
        return inner(last)

    for _ in range(3):
        box.a = outer(Last(looking_at(s, box)))


def among_the_variables(last):
    """Up to CPython 3.12 this leaves a dictionary behind that has them all."""
    assert sys._getframe(1).f_locals["last"] is last


def as_one_more_variable(last):
    sys._getframe(1).f_locals["more"] = last


def as_what_traces(last):
    sys._getframe(1).f_trace = last


@strange
def left_in_the_frame_of_a_function_that_returns(s, f, f2):
    def outer(leave, last):
        leave(last)
        last = None
        return f(box.a)

    for leave in among_the_variables, as_one_more_variable, as_what_traces:
        box = types.SimpleNamespace(a=s.new())
        for _ in range(3):
            box.a = outer(leave, Last(looking_at(s, box)))


@jax.tree_util.register_pytree_node_class
class Leaving(Node):
    """Leaves something in the frame of the call that flattens it."""

    leave = None

    def tree_flatten(self):
        frame = sys._getframe(1)
        while frame.f_code.co_name != "compiled":
            frame = frame.f_back
        Leaving.leave(frame)
        return super().tree_flatten()


@strange
def left_in_the_frame_of_the_call(s, f, f2):
    box = types.SimpleNamespace(a=Leaving(s.new()))

    def look():
        s.seen.append(box.a.x.is_deleted())

    def leave(frame):
        frame.f_trace = Last(look)

    Leaving.leave = leave
    for _ in range(3):
        box.a = f(box.a)


@strange
def captured_by_a_function_that_returns(s, f, f2):
    box = types.SimpleNamespace(a=s.new())

    def make(last):
        def advance():
            return last and f(box.a)

        def advance_plainly():
            return f(box.a)

        advance_plainly.last = last
        return advance, advance_plainly

    for _ in range(3):
        box.a = make(Last(looking_at(s, box)))[1]()


@strange
def part_of_the_result_that_is_left_behind(s, f, f2):
    box = types.SimpleNamespace(a=s.new())
    look = looking_at(s, box)

    @of_length(2)
    def combine(state, batch):
        return Last(look), state

    combine.classes = {tuple, Last}
    f3 = s.compile(combine)

    def helper():
        loss, new = f3(box.a, s.new())
        return new

    for _ in range(3):
        box.a = helper()


class Key:
    """Equal to nothing, and looks when it is asked."""

    def __init__(self, name, look):
        self.name, self.look = name, look

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        self.look()
        return self is other


@strange
def odd_key_among_the_globals(s, f, f2):
    space: dict[Any, Any] = {}
    exec("def go():\n    global a\n    a = f(a)\n", space)
    space[Key("a", lambda: s.read(list(space.values())))] = 1
    space["a"], space["f"] = s.new(), f
    for _ in range(3):
        space["go"]()


@strange
def odd_key_among_the_attributes(s, f, f2):
    class Box:
        pass

    box = Box()
    box.__dict__[Key("a", lambda: s.read(list(vars(box).values())))] = 1
    box.a = s.new()
    for _ in range(3):
        box.a = f(box.a)


@strange
def odd_key_in_a_module(s, f, f2):
    module = types.ModuleType("module")
    vars(module)[Key("a", lambda: s.read(list(vars(module).values())))] = 1
    module.a = s.new()
    for _ in range(3):
        module.a = f(module.a)


class Anything:
    """Says that it is equal to whatever it is compared with."""

    def __init__(self, function):
        self.function = function

    def __eq__(self, other):
        return True

    __hash__ = None  # type: ignore[assignment]

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self.function, instance)

    def __call__(self, *args):
        return self.function(*args)


@strange
def setattr_that_is_equal_to_anything(s, f, f2):
    class Box:
        pass

    def store(box, name, value):
        s.read(box.a)
        object.__setattr__(box, name, value)

    box = Box()
    box.a = s.new()
    for at in range(4):
        if at == 2:
            Box.__setattr__ = Anything(store)
        box.a = f(box.a)


@strange
def metaclass_that_hides_setattr(s, f, f2):
    class Hiding(type):
        @property
        def __setattr__(cls):
            return object.__setattr__

    class Box(metaclass=Hiding):
        def __setattr__(self, name, value):
            s.read(vars(self))
            object.__setattr__(self, name, value)

    box = Box()
    box.a = s.new()
    for _ in range(3):
        box.a = f(box.a)


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_no_deleted_array(program):
    expect_nothing_deleted(program)


class Handler:
    """Has a method, which alone may refer to it."""

    def __init__(self, last):
        self.last = last

    def method(self):
        pass


def module_with(last):
    module = types.ModuleType("module")
    module.last = last
    return module


def error_with(last):
    def fail(last):
        raise ValueError

    try:
        fail(last)
    except ValueError as error:
        return error.with_traceback(error.__traceback__.tb_next)


@pytest.mark.parametrize(
    "around", [lambda last: Handler(last).method, lambda last: lambda: last, error_with, module_with]
)
@pytest.mark.parametrize("inside", [lambda value: value, lambda value: [value]])
def test_overwritten_first(around, inside):
    stub = Stub()
    stub.seen = []
    f2 = stub.compile(both)
    box = types.SimpleNamespace(a=stub.new(), b=None)
    for at in range(4):
        box.b = inside(around(Last(looking_at(stub, box))) if at % 2 else len)
        box.b, box.a = f2(stub.new(), box.a)
    assert stub.seen == [False, False]
    assert [bool(call.dead & {1}) for call in stub.calls] == [True, False, True, False]


@pytest.mark.parametrize("function", [looking_at, len, jax.numpy.sin, jax.jit(looking_at), Handler(1).method])
@pytest.mark.parametrize("inside", [lambda value: value, lambda value: [value]])
def test_functions_that_live_on(function, inside):
    stub = Stub()
    f2 = stub.compile(both)
    box = types.SimpleNamespace(a=stub.new(), b=None)
    for _ in range(3):
        box.b = inside(function)
        box.b, box.a = f2(stub.new(), box.a)
    assert [bool(call.dead & {1}) for call in stub.calls] == [True, True, True]


class Zone(datetime.tzinfo):
    """Looks when it dies."""

    def __del__(self):
        self.look()


class Text(str):
    """Looks when it dies."""

    def __del__(self):
        self.look()


def noting(value, look):
    """The value, with an attribute that looks when it dies."""
    value.note = Last(look)
    return value


def holding(look):
    """An array of an object that looks when it dies."""
    return np.array([Last(look)], object)


def recorded(look):
    return np.array([(Last(look),)], [("x", object)]).view(np.recarray)


WATCHED: list[Any] = []


def watched(value, look):
    """The value, the end of which is looked at."""
    WATCHED.append(weakref.ref(value, lambda _: look()))
    return value


def in_a_class_of_its_own(look):
    return holding(look).view(type("Matrix", (np.ndarray,), {}))


def at_a_time(look):
    zone = Zone()
    zone.look = look
    return type("Time", (datetime.datetime,), {})(2000, 1, 1, tzinfo=zone)


def searched(look):
    text = Text("text")
    text.look = look
    return re.finditer("x", text)


@pytest.mark.parametrize(
    "old",
    [
        in_a_class_of_its_own,
        lambda look: holding(look)[:, None].view(np.matrix),
        lambda look: np.ma.masked_array(holding(look)),
        recorded,
        at_a_time,
        searched,
        lambda look: watched(np.zeros(8), look)[1:],
        lambda look: np.frombuffer(watched(memoryview(bytes(8)), look), np.uint8)[1:],
        lambda look: noting(np.zeros(8).view(np.ma.MaskedArray), look)[1:].view(np.ndarray),
        lambda look: noting(jnp.ones(3), look),
        lambda look: np.asarray(noting(jnp.ones(3), look)),
        lambda look: noting(jax.random.key(0), look),
        lambda look: jax.random.wrap_key_data(watched(jnp.zeros(2, jnp.uint32), look)),
    ],
)
@pytest.mark.parametrize("inside", [lambda value: value, lambda value: [value]])
def test_what_hides_what_it_holds(old, inside):
    stub = Stub()
    f2 = stub.compile(both)
    box = types.SimpleNamespace(a=stub.new(), b=None)
    seen: list[bool] = []

    def run():
        for _ in range(3):
            box.b = inside(old(lambda: seen.append(box.a.is_deleted())))
            box.b, box.a = f2(stub.new(), box.a)

    run()
    if not seen or any(seen):
        pytest.fail(f"{seen}")


def test_shards_that_an_array_remembers_die_quietly():
    stub = Stub()
    f2 = stub.compile(both)
    box = types.SimpleNamespace(a=stub.new(), b=None)
    for _ in range(3):
        box.b = jnp.ones(3)
        vars(box.b)["addressable_shards"] = [jnp.ones(3)]
        box.b, box.a = f2(stub.new(), box.a)
    assert [bool(call.dead & {1}) for call in stub.calls] == [True, True, True]


def _dead_with_handler(number: int, handler: Any) -> bool:
    stub = Stub()
    f = stub.compile(first)
    box = types.SimpleNamespace(a=stub.new())
    before = signal.signal(number, handler)
    try:
        box.a = f(box.a)
    finally:
        signal.signal(number, before)
    return any(call.dead for call in stub.calls)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGRTMIN, signal.SIGRTMAX])
@pytest.mark.parametrize("handler", [lambda number, frame: abs(number), Anything(lambda number, frame: None)])
def test_a_handler_of_any_signal(number, handler):
    assert _dead_with_handler(number, signal.SIG_DFL)
    assert not _dead_with_handler(number, handler)


if sys.version_info >= (3, 12):

    def test_a_tool_without_a_name():
        stub = Stub()
        f = stub.compile(first)

        def call():
            x = stub.new()
            x = f(x)

        sys.monitoring.use_tool_id(3, "")
        try:
            call()
        finally:
            sys.monitoring.free_tool_id(3)
        call()
        assert [bool(call.dead) for call in stub.calls] == [False, True]


@pytest.mark.parametrize("count", [0, 1, 5, 10, 100, 3000])
def test_a_key_that_is_no_string_is_seen_however_large_the_dictionary(count):
    names = {f"name {n}": n for n in range(count)}
    assert plain.of_strings(names)
    for other in (1, plain, type("Name", (str,), {})("name")):
        odd = {**names, other: None}
        assert not plain.of_strings(odd)
        del odd[other]
        assert plain.of_strings(odd)


@pytest.mark.filterwarnings("ignore:non-string key in the __dict__ of class")
def test_a_class_with_a_key_that_is_no_string():
    """The interpreter remembers what a class has not, but not for ever."""
    stub = Stub()
    f2 = stub.compile(both)
    asked = []
    for key in ("name", Key("b", lambda: asked.append(key))):
        box = type("Box", (), {key: 1})()
        box.a = box.b = stub.new()
        asked.clear()
        box.b, box.a = f2(stub.new(), box.a)
    assert [bool(call.dead & {1}) for call in stub.calls] == [True, False]


def test_what_a_function_beside_the_tree_of_an_argument_has_captured():
    step = pytc.compile(lambda a, b: (Node(a.x + 1), Node(b.x + 1)))
    both = types.SimpleNamespace(a=Node(jnp.zeros(9)), b=Node(jnp.zeros(9)))
    seen = []

    def look():
        seen.append(float(both.b.x[0]))

    def run():
        for _ in range(6):
            both.a.note = capturing(look)
            both.a, both.b = step(both.a, both.b)

    run()
    assert seen == [0, 1, 2, 3, 4, 5]


SEVERAL_NAMES = {
    "a list": "f = g = make(); l = [f]",
    "a list and three names": "f = g = h = make(); l = [f]",
    "a dictionary": "f = g = make(); d = {'f': f}",
    "an attribute": "f = g = make(); o = Node(None); o.f = f",
    "a partial": "f = g = make(); p = functools.partial(f)",
    "a loop": "hooks = [make()]\nfor f in hooks: g = f",
    "a method": "f = g = Handler(make()).method; l = [f]",
    "a jitted function": "f = g = jax.jit(make()); l = [f]",
}


@pytest.mark.parametrize("names", SEVERAL_NAMES)
@pytest.mark.parametrize("within", ["", "inner"])
def test_what_a_function_of_several_names_has_captured(names, within):
    """The proof's own lists refer to it, too; that it has so many references does not mean that it lives on."""
    lines = "\n    ".join(SEVERAL_NAMES[names].splitlines())
    call = "inner(x, y, [f])" if within else "step(x, y)"
    space = globals() | {"step": pytc.compile(lambda x, y: (x + 1, y + 2))}
    exec(f"def inner(x, y, l):\n    return step(x, y)\ndef helper(x, y, make):\n    {lines}\n    return {call}", space)
    helper = space["helper"]
    both = types.SimpleNamespace(a=jnp.zeros(9), b=jnp.zeros(9))
    seen = []

    def look():
        seen.append((float(both.a[0]), float(both.b[0])))

    def run():
        for _ in range(5):
            both.a, both.b = helper(both.a, both.b, lambda: capturing(look))

    run()
    assert seen == [(k, 2 * k) for k in range(5)]


def test_what_a_function_in_several_slots_has_captured():
    step = pytc.compile(lambda x: (1 * x, 2 * x, 3 * x, 4 * x, x + 1))
    both = types.SimpleNamespace(a=jnp.zeros(9))
    seen = []

    def look():
        seen.append(float(both.a[0]))

    def run():
        for _ in range(5):
            both.b = both.c = both.d = capturing(look)
            both.e = [both.b]
            both.b, both.c, both.d, both.e, both.a = step(both.a)

    run()
    assert seen == [0, 1, 2, 3, 4]


class Equal:
    """A static part of a tree, of which others are as good."""

    def __init__(self, function):
        self.function = function

    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 0


@pytest.mark.parametrize("tree", [lambda x, static: {"x": x, "static": static}, lambda x, static: (x, (static,))])
def test_what_a_static_leaf_holds_that_is_only_equal(tree):
    step = pytc.compile(lambda a, b: (b * 2, b + 1))
    both = types.SimpleNamespace(a=None, b=jnp.zeros(9))
    seen = []

    def look():
        seen.append(float(both.b[0]))

    def run():
        for _ in range(6):
            both.a = tree(jnp.zeros(9), Equal(capturing(look)))
            both.a, both.b = step(both.a, both.b)

    run()
    # The first one is the compiled function's own.
    assert seen == [1, 2, 3, 4, 5]


def test_a_function_that_the_tree_of_an_argument_holds_is_static():
    """An optimiser, and what applies the model."""
    state = train_state.TrainState.create(
        apply_fn=lambda v, x: x, params={"w": jnp.zeros(9)}, tx=optax.chain(optax.adam(1e-2))
    )
    step = pytc.compile(lambda state: state.apply_gradients(grads=state.params))
    holder = types.SimpleNamespace(state=state)
    del state
    places = []
    for _ in range(6):
        holder.state = step(holder.state)
        places.append(holder.state.params["w"].unsafe_buffer_pointer())
    if len({*places[1:]}) != 1:
        pytest.fail(f"{places}: {step.explain()}")


class Registering(type):
    """A metaclass, as many libraries have: what a class refers to is the whole program in the end."""


class Layer(metaclass=Registering):
    def __init__(self, inside):
        self.inside = inside

    def apply(self, x):
        return x + 1


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["layers", "apply"])
@dataclasses.dataclass
class WithLayers:
    w: Any
    layers: Any
    apply: Any


def test_what_is_static_is_looked_at_once():
    """Each object in it, however many ways lead there; and not through its classes, at each call."""
    layers = Layer(None)
    for _ in range(16):
        layers = Layer((layers, layers))
    step = pytc.compile(lambda state: dataclasses.replace(state, w=state.apply(state.w)))
    holder = types.SimpleNamespace(state=WithLayers(jnp.zeros(9), layers, layers.apply))
    seen = []
    referents = gc.get_referents
    with mock.patch.object(endings.gc, "get_referents", lambda *v: (seen.append(len(v)), referents(*v))[1]):
        for _ in range(4):
            holder.state = step(holder.state)
    sites = step.explain().sites
    assert all(site.donated for site in sites)
    assert sum(site.copied_calls for site in sites) == 0
    assert max(seen) < 100
    assert sum(seen) < 4000


def by_callback(look):
    value = Node(0)
    WATCHED.append(weakref.ref(value, lambda _: look()))
    return value


def by_finalize(look):
    value = Node(0)
    weakref.finalize(value, look)
    return value


def by_generator(look):
    def suspended():
        try:
            yield
        finally:
            look()

    generator = suspended()
    next(generator)
    return generator


@pytest.mark.parametrize("old", [Last, by_callback, by_finalize, by_generator, lambda look: [1, [Last(look)]]])
@pytest.mark.parametrize("chained", [False, True])
def test_what_two_stores_in_one_step_have_stored(old, chained):
    """CPython 3.11 and 3.12 do two stores to variables in one step, and say that they are at the first."""
    step = pytc.compile(lambda x: x + 1)
    shelf, log, read = [], [], []

    def look():
        x = shelf.pop()
        log.append(step(x))

    def made(i):
        shelf.append(jnp.full(8, float(i)))
        return i, shelf[-1]

    def pair(count):
        for i in range(count):
            b = old(look) if i > 20 else shelf.clear()
            _a, b = made(i)
            read.append(int(b[0]))  # an `assert` here could read any variable

    def both_names(count):
        for i in range(count):
            b = old(look) if i > 20 else shelf.clear()
            _a = b = made(i)[1]
            read.append(int(b[0]))  # an `assert` here could read any variable

    (both_names if chained else pair)(40)
    assert read == [*range(40)]
    assert len(log) == 19


def test_what_a_store_that_also_loads_has_stored():
    """CPython 3.13 stores a variable and loads it in one step, and what it held dies in between."""
    step = pytc.compile(lambda x: x + 1)
    shelf, log = [], []

    def look():
        x = shelf.pop()
        log.append(step(x))

    def states(count):
        for i in range(count):
            yield LastOfNothing(look)
            shelf.append(jnp.full(8, float(i)))
            yield shelf[-1]

    def first_of(states):
        return [state[0] for state in states]

    read = first_of(states(40))
    assert [int(each) for each in read[1::2]] == [*range(40)]
    assert len(log) == 40
