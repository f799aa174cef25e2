"""Ways to a slot that lead elsewhere by the time it is stored to, and what looks at a slot without being seen."""

from __future__ import annotations

import _thread
import ctypes
import datetime
import signal
import sys
import time
import types
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

import pytc
from pytc.ownership.cpython import interpreter
from tests.ownership.harness import Stub, both, expect_nothing_deleted, first, of_length
from tests.ownership.odd_objects import Last, Node, looking_at

ALL: list[Any] = []


def strange(program):
    ALL.append(program)
    return program


class Box:
    pass


@of_length(2)
def with_a_key(x):
    return "b", x


@of_length(2)
def with_a_node(x):
    return Node(x), x


@strange
def key_under_another_name(s, f, f2):
    step = s.compile(with_a_key)
    config = Box()
    config.key = "a"
    same = config
    slots = {"a": s.new(), "b": None}
    config.key, slots[same.key] = step(slots["a"])
    s.read(slots)


@strange
def key_in_shared_attributes(s, f, f2):
    step = s.compile(with_a_key)
    one, two = Box(), Box()
    one.key = "a"
    two.__dict__ = one.__dict__
    slots = {"a": s.new(), "b": None}
    one.key, slots[two.key] = step(slots["a"])
    s.read(slots)


@strange
def key_that_a_helper_overwrites(s, f, f2):
    step = s.compile(with_a_key)
    key = "a"
    slots = {"a": s.new(), "b": None}

    def helper():
        nonlocal key
        key, new = step(slots["a"])
        return new

    slots[key] = helper()
    s.read(slots)


@strange
def global_key_that_a_helper_overwrites(s, f, f2):
    space = {"step": s.compile(with_a_key), "slots": {"a": s.new(), "b": None}, "key": "a"}
    exec("def helper():\n    global key\n    key, new = step(slots['a'])\n    return new\n", space)
    exec("def go():\n    slots[key] = helper()\n", space)
    space["go"]()
    s.read(space["slots"])


@strange
def way_through_shared_attributes(s, f, f2):
    step = s.compile(with_a_node)
    one, two = Box(), Box()
    one.node = old = Node(s.new())
    two.__dict__ = one.__dict__
    for _ in range(3):
        one.node, two.node.x = step(old.x)
        s.read(old.x)
        old = one.node


@strange
def way_through_a_module(s, f, f2):
    module = types.ModuleType("module")
    space = vars(module)
    space.update(me=module, step=s.compile(with_a_node), node=Node(s.new()))
    exec("def go():\n    me.node, node.x = step(node.x)\n", space)
    for _ in range(3):
        old = module.node
        space["go"]()
        s.read(old.x)


@strange
def what_a_starred_call_keeps(s, f, f2):
    class Steps:
        def step(self, last, x, **more):
            return f(x)

    class Dying(Last):
        def step(self, x):
            return f(x)

    steps = Steps()
    box = Box()
    box.a = s.new()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # else the interpreter might raise behind such a call
    try:
        for _ in range(3):
            box.a = steps.step(*(Last(looking_at(s, box)), box.a))
            box.a = steps.step(None, box.a, **{"more": Last(looking_at(s, box))})
            box.a = Dying(looking_at(s, box)).step(*(box.a,))
    finally:
        signal.signal(signal.SIGINT, before)


@strange
def code_with_a_weak_reference(s, f, f2):
    box = Box()
    box.a = s.new()
    look = looking_at(s, box)
    callbacks = []
    for _ in range(3):
        box.b = compile("1", "nowhere", "eval")
        callbacks.append(weakref.ref(box.b, lambda _: look()))
        box.b, box.a = f2(s.new(), box.a)


@strange
def constant_of_code(s, f, f2):
    box = Box()
    box.a = s.new()
    for _ in range(3):
        box.b = compile("1", "nowhere", "eval").replace(co_consts=(Last(looking_at(s, box)),))
        box.b, box.a = f2(s.new(), box.a)


@strange
def view_of_an_array_with_a_weak_reference(s, f, f2):
    box = Box()
    box.a = s.new()
    look = looking_at(s, box)
    callbacks = []
    for _ in range(3):
        viewed = jnp.ones(3) + 1
        callbacks.append(weakref.ref(viewed, lambda _: look()))
        box.b = np.asarray(viewed)
        del viewed
        box.b, box.a = f2(s.new(), box.a)


class Zone(datetime.tzinfo):
    def __del__(self):
        self.look()


@strange
def time_zone(s, f, f2):
    box = Box()
    box.a = s.new()
    for _ in range(3):
        zone = Zone()
        zone.look = looking_at(s, box)
        box.b = datetime.datetime(2000, 1, 1, tzinfo=zone)
        del zone
        box.b, box.a = f2(s.new(), box.a)


@strange
def very_many_objects_that_die(s, f, f2):
    """The last of which looks."""
    box = Box()
    box.a = s.new()
    for _ in range(3):
        box.b = [[] for _ in range(5000)]
        box.b[-1].append(Last(looking_at(s, box)))
        box.b, box.a = f2(s.new(), box.a)


if sys.version_info >= (3, 12):

    class Memory:
        """Is told when nobody looks at it any more."""

        def __init__(self, box, seen):
            self.box, self.seen = box, seen

        def __buffer__(self, flags):
            return memoryview(bytearray(8))

        def __release_buffer__(self, view):
            self.seen.append(self.box.a.is_deleted())

    @strange
    def memory_that_is_released(s, f, f2):
        box = Box()
        box.a = s.new()
        memory = Memory(box, s.seen)
        for make in (memoryview, np.frombuffer, lambda memory: np.frombuffer(memory)[:1], lambda m: [memoryview(m)]):
            box.b = make(memory)
            box.b, box.a = f2(s.new(), box.a)

    class Bytes(bytearray):
        """It has memory of its own, and is told all the same."""

        def __release_buffer__(self, view):
            self.seen.append(self.box.a.is_deleted())
            super().__release_buffer__(view)

    @strange
    def memory_of_its_own_that_is_released(s, f, f2):
        box, memory = Box(), Bytes(8)
        box.a, memory.box, memory.seen = s.new(), box, s.seen
        for make in (memoryview, np.frombuffer, lambda m: [memoryview(m)]):
            box.b = make(memory)
            box.b, box.a = f2(s.new(), box.a)
        assert len(s.seen) == 3


class Slotted:
    __slots__ = ("x",)
    b = None


@pytest.mark.parametrize(
    "make",
    [
        Slotted, object, dict, lambda: np.zeros(3), lambda: len, lambda: Box().__init__, lambda: (x for x in ()),
        lambda: types.ModuleType("module"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["b", "other", "__class__", "__dict__"])
def test_a_store_that_raises(make, name):
    """What would have been overwritten behind it is still there for all to see."""
    stub = Stub()
    f2 = stub.compile(both)
    space: dict[str, Any] = {"f2": f2, "stub": stub}
    exec(f"def store(box, odd):\n    odd.{name}, box.a = f2(stub.new(), box.a)\n", space)
    for _ in range(3):
        box, odd = Box(), make()
        box.a = stub.new()
        try:
            space["store"](box, odd)
        except (AttributeError, TypeError):
            stub.read(box.a)
    assert len(stub.calls) == 3


class Holding:
    """Has a dictionary in a slot, and no `__dict__`."""

    __slots__ = ("a", "table")


class Posing:
    """Calls a dictionary of its own its `__dict__`."""

    __dict__ = property(lambda self: {})  # type: ignore[assignment]


@pytest.mark.parametrize(("make", "dead"), [(Holding, True), (Posing, False)])
def test_an_object_that_holds_a_dictionary_of_numbers(make, dead):
    stub = Stub()
    f = stub.compile(first)
    box = make()
    box.a, box.table = stub.new(), {1: 2}
    for _ in range(3):
        box.a = f(box.a)
    assert [bool(call.dead) for call in stub.calls] == [dead] * 3


def test_a_module_is_a_slot_like_any_other():
    stub = Stub()
    f = stub.compile(first)
    module = types.ModuleType("module")
    module.a = stub.new()
    for _ in range(3):
        module.a = f(module.a)
    assert [bool(call.dead) for call in stub.calls] == [True, True, True]


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_no_deleted_array(program):
    expect_nothing_deleted(program)


@pytest.mark.parametrize(
    "old",
    [np.arange(3.0), np.zeros((2, 3))[1:], np.float32(1), np.dtype("f4"), object(), b"", ..., np.asarray(jnp.ones(3))],
    ids=["numbers", "view", "number", "dtype", "object", "bytes", "ellipsis", "of an array"],
)
def test_what_dies_quietly(old):
    stub = Stub()
    f2 = stub.compile(both)
    box = Box()
    box.a, box.b = stub.new(), None
    for _ in range(3):
        box.b = [old]
        box.b, box.a = f2(stub.new(), box.a)
    assert [bool(call.dead & {1}) for call in stub.calls] == [True, True, True]


def steps_watched(step, box, done):
    for _ in range(2000):
        box.a = step(box.a)
    done.append(True)


def watching(box, seen, done):
    def look(_=None):
        while not done:
            seen.append(box.a.is_deleted())
        return 0

    return look


@pytest.mark.usefixtures("_switching_often")
def test_a_thread_made_by_c():
    """As those of a user interface: Python does not count them."""
    step = pytc.compile(lambda x: x + 1)
    box = Box()
    box.a = jnp.zeros(10_000)
    seen: list[bool] = []
    done: list[bool] = []
    look = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(watching(box, seen, done))
    thread = ctypes.c_ulong()
    library = ctypes.CDLL(None)
    assert library.pthread_create(ctypes.byref(thread), None, look, None) == 0
    while not seen:
        time.sleep(0.001)
    steps_watched(step, box, done)
    library.pthread_join(thread, None)
    assert float(box.a[0]) == 2000
    assert not any(seen)


def test_a_thread_that_is_about_to_start():
    stub = Stub()
    f = stub.compile(first)
    box = Box()
    box.a = stub.new()
    done: list[bool] = []
    seen: list[bool] = []

    def run():
        before = sys.getswitchinterval()
        sys.setswitchinterval(1)  # so that it does not get to its first line
        try:
            _thread.start_new_thread(watching(box, seen, done), ())
            seen_so_far = len(seen)
            box.a = f(box.a)
        finally:
            sys.setswitchinterval(before)
        return seen_so_far

    seen_so_far = run()
    done.append(True)
    while not interpreter.alone():
        time.sleep(0.001)
    assert seen_so_far == 0
    assert [bool(call.dead) for call in stub.calls] == [False]


def test_memory_that_jax_lets_go_of_in_a_later_call():
    """Arrays in NumPy's memory refer to that, and not all of them let go of it at once."""
    step = pytc.compile(lambda x: x + 1)
    box = Box()
    box.a = jnp.zeros(1000)
    kept: list[Any] = []
    watched = []

    def keep(_):
        kept.append(box.a)

    def put():
        memory = np.zeros(1024 + 64, np.uint8)
        watched.append(weakref.ref(memory, keep))
        start = -memory.ctypes.data % 64  # only what is aligned is used as it is
        return jax.device_put(memory[start : start + 1024])

    def run():
        for _ in range(5):
            arrays = [put() for _ in range(40)]
            del arrays
            box.a = step(box.a)

    run()
    assert kept
    assert not any(array.is_deleted() for array in kept)
    assert float(box.a[0]) == 5


def calling_back(host):
    """A primitive that calls Python, as only its lowering tells."""
    primitive = Primitive("twice")
    primitive.def_abstract_eval(lambda x: x)
    primitive.def_impl(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    mlir.register_lowering(primitive, mlir.lower_fun(primitive.impl, multiple_results=False))
    return primitive


def test_a_primitive_whose_lowering_calls_back():
    box = Box()
    box.a = jnp.ones(1000)
    seen = []

    def host(x):
        seen.append(box.a.is_deleted())
        return 2 * np.asarray(x)

    twice = calling_back(host)
    step = pytc.compile(lambda x: twice.bind(x) + 1)
    for _ in range(5):
        box.a = step(box.a)
        jax.block_until_ready(box.a)
    assert seen == [False] * 5
    assert float(box.a[0]) == 63
