"""What must be kept: whatever can still be read, by anyone. Each test reads it afterwards."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import gc
import inspect
import operator
import queue
import signal
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pytc import ownership
from pytc.ownership.cpython import interpreter
from tests import interpreters
from tests.ownership.harness import Functions, Stub, both, expect, first, of_length, of_lengths
from tests.ownership.odd_objects import Node
from tests.threads import FOR_LONG


def nothing_dead(stub: Stub) -> None:
    assert [call.dead for call in stub.calls] == [frozenset()] * len(stub.calls)
    assert stub.calls


def test_read_later(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    new = f(x)
    stub.read((x, new))
    nothing_dead(stub)


def test_read_on_one_path(made: Functions) -> None:
    stub, f, _ = made
    for flag in (False, True):
        x = stub.new()
        y = f(x)
        if flag:
            stub.read(x)
        x = y
    nothing_dead(stub)


def test_read_in_the_next_round_of_a_loop(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    for i in range(3):
        if i:
            stub.read(x)
        y = f(x)
        if i == 2:
            x = y
    nothing_dead(stub)


def test_read_behind_comprehensions_with_a_variable_of_its_name(made: Functions) -> None:
    """From CPython 3.12 on they put the function's variable aside, and put it back."""
    stub, f, _ = made
    x = stub.new()
    y = f(x)
    stub.read({k: [x for x in [y, k] if x] for k, x in enumerate([y, y])})
    stub.read([x for z in [y] for x in [z]])
    with contextlib.suppress(AttributeError):
        stub.read([[x for y in x.nothing] for x in [y]])
    stub.read([x for x in [y] if stub.read([x for x in [x]])])  # noqa: C416
    stub.read(x)
    nothing_dead(stub)


def test_read_where_a_comprehension_failed(made: Functions) -> None:
    stub, f, _ = made
    for fails in (False, True):
        x = stub.new()
        y = f(x)
        try:
            stub.read([x.nothing if fails else x for x in [y]])
        except AttributeError:
            stub.read(x)
        x = y
    nothing_dead(stub)


def test_read_after_a_loop_left_by_break(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    while True:
        y = f(x)
        if len(stub.calls) > 0:
            break
        x = y
    stub.read(x)
    nothing_dead(stub)


def test_read_in_a_handler(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    try:
        y = f(x)
        raise ValueError
    except ValueError:
        stub.read(x)
    else:
        stub.read(y)
    nothing_dead(stub)


def test_read_in_a_handler_after_unpacking_fails(made: Functions) -> None:
    stub = made[0]
    three = stub.compile(of_length(3)(lambda x: (x, x, x)))
    x = stub.new()
    try:
        x, _y = three(x)
    except ValueError:
        stub.read(x)
    nothing_dead(stub)


def test_attributes_after_unpacking_fails(made: Functions) -> None:
    stub = made[0]
    three = stub.compile(of_length(3)(lambda x: (x, x, x)))
    box = types.SimpleNamespace(a=stub.new(), b=None)
    with contextlib.suppress(ValueError):
        box.a, box.b = three(box.a)
    stub.read(box.a)
    nothing_dead(stub)


def test_read_in_a_handler_after_a_tuple_in_the_result_fails(made: Functions) -> None:
    stub = made[0]
    inside = stub.compile(of_lengths(((None, None, None), None))(lambda x, y: ((x, y, y), 0)))
    x, y = stub.new(), stub.new()
    try:
        (x, y), _ = inside(x, y)
    except ValueError:
        stub.read((x, y))
    nothing_dead(stub)


def test_attributes_after_a_tuple_in_the_result_fails(made: Functions) -> None:
    stub = made[0]
    inside = stub.compile(of_lengths(((None, None, None), None))(lambda x, y: ((x, y, y), 0)))
    box = types.SimpleNamespace(a=stub.new(), b=stub.new())
    with contextlib.suppress(ValueError):
        (box.a, box.b), _ = inside(box.a, box.b)
    with contextlib.suppress(IndexError):
        box.a = inside(box.a, box.b)[0][3]
    with contextlib.suppress(IndexError):
        box.b = inside(box.a, box.b)[-3]
    stub.read((box.a, box.b))
    nothing_dead(stub)


class Unpacked:
    """Can be unpacked like a tuple, and then reads what is still there."""

    def __init__(self, read: Callable[[], Any], *parts: Any):
        self.read, self.parts = read, parts

    def __iter__(self) -> Iterator[Any]:
        self.read()
        return iter(self.parts)

    def __getitem__(self, index: int) -> Any:
        self.read()
        return self.parts[index]


def test_a_tuple_that_a_helper_makes_is_of_its_own_length(made: Functions) -> None:
    stub, _, f2 = made
    box = types.SimpleNamespace(a=stub.new(), b=stub.new())

    def with_one_more(x: Any, y: Any) -> Any:
        x, y = f2(x, y)
        return x, y, 0

    def inside_out(x: Any, y: Any) -> Any:
        x, y = f2(x, y)
        return (0, y), x

    with contextlib.suppress(ValueError):
        box.a, box.b = with_one_more(box.a, box.b)
    with contextlib.suppress(ValueError):
        (_, box.b, _), box.a = inside_out(box.a, box.b)
    with contextlib.suppress(TypeError):
        ((box.a, _), _), box.b = inside_out(box.a, box.b)
    x, y = box.a, box.b
    try:
        x, y = with_one_more(x, y)
    except ValueError:
        stub.read((x, y))
    stub.read((box.a, box.b))
    nothing_dead(stub)


@pytest.mark.parametrize("source", ["r = f2(box.a, box.b)\nmod.r = ()\n", "r, s = f2(box.a, box.b)\nmod.r = s\n"])
def test_a_global_that_is_stored_under_another_name(made: Functions, source: str) -> None:
    """What is unpacked then is something else than what the global was given first."""
    stub, _, f2 = made
    box, module = types.SimpleNamespace(a=stub.new(), b=stub.new()), types.ModuleType("script")
    inside = stub.compile(of_lengths(((None, None), None))(lambda x, y: ((x, y), y)))
    vars(module).update(box=box, mod=module, f2=inside if "s =" in source else f2)
    with contextlib.suppress(ValueError, TypeError):
        exec(source + "box.a, box.b = r\n", vars(module))
    stub.read((box.a, box.b))
    nothing_dead(stub)


@pytest.mark.parametrize("source", ["mod.r, r, box.a = f3(box.a)\n", "one.r, other.r, box.a = f3(box.a)\n"])
def test_a_new_name_that_is_stored_twice(made: Functions, source: str) -> None:
    """The second store drops what the first has put there."""
    stub = made[0]
    box, module = types.SimpleNamespace(a=stub.new()), types.ModuleType("script")

    class Loud:
        def __del__(self) -> None:
            stub.read(box.a)

    class Plain:
        pass

    one, other = Plain(), Plain()
    one.__dict__ = other.__dict__ = {}
    three = stub.compile(of_length(3)(lambda x: (Loud(), 0, x)))
    vars(module).update(box=box, mod=module, f3=three, one=one, other=other)
    exec(source, vars(module))
    stub.read(box.a)
    nothing_dead(stub)


def test_attributes_of_what_is_no_tuple_in_the_result(made: Functions) -> None:
    stub = made[0]
    box = types.SimpleNamespace(a=stub.new(), b=stub.new())

    def look() -> None:
        stub.read((box.a, box.b))

    inside = stub.compile(of_lengths((None, None))(lambda x, y: (Unpacked(look, x, y), 0)))
    (box.a, box.b), _ = inside(box.a, box.b)
    box.a = inside(box.a, box.b)[0][0]
    carry, _ = inside(box.a, box.b)
    box.a, box.b = carry
    nothing_dead(stub)


def test_code_of_what_is_dropped_from_the_result(made: Functions) -> None:
    stub = made[0]
    box = types.SimpleNamespace(a=stub.new())

    class Loud:
        def __del__(self) -> None:
            stub.read(box.a)

    @of_length(2)
    def with_more(x: Any) -> Any:
        return x, Loud()

    with_more.classes = (tuple, Loud)  # type: ignore[attr-defined]
    more = stub.compile(with_more)
    box.a = more(box.a)[0]
    nothing_dead(stub)
    more = stub.compile(both)
    box.a = more(box.a, stub.new())[0]
    expect(0 in stub.calls[-1].dead)


def test_read_in_finally(made: Functions) -> None:
    stub, f, _ = made

    def run(x: Any) -> Any:
        try:
            return f(x)
        finally:
            stub.read(x)

    run(stub.new())
    nothing_dead(stub)


def test_call_that_may_raise_after_donating(made: Functions) -> None:
    """Without the promise that a call which raises has donated nothing, its handler counts."""
    stub = Stub(careful_held)
    f = stub.compile(first)
    x = stub.new()
    try:
        x = f(x)
    except ValueError:
        stub.read(x)
    box = types.SimpleNamespace(a=stub.new())
    box.a = f(box.a)
    nothing_dead(stub)


def careful_held(call: Any, wanted: Any, outcome: Any) -> Any:
    outcome = ownership.Outcome(calls_python=False, lengths=outcome.lengths)
    return ownership.held(call, wanted, outcome)


def test_program_that_calls_back(made: Functions) -> None:
    def calling_back(call: Any, wanted: Any, outcome: Any) -> Any:
        return ownership.held(call, wanted, ownership.Outcome(calls_python=True, atomic=True))

    stub = Stub(calling_back)
    f = stub.compile(first)
    box = types.SimpleNamespace(a=stub.new())
    box.a = f(box.a)
    nothing_dead(stub)


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "another name in a list": lambda x: [x],
    "a dict": lambda x: {"k": x},
    "a set of ids and the object": lambda x: (id(x), x),
    "a closure cell": lambda x: lambda: x,
    "a default argument": lambda x: eval("lambda value=x: value", {"x": x}),
    "an iterator": lambda x: iter([x]),
    "a generator": lambda x: (y for y in [x]),
    "a queue": lambda x: _queue(x),
    "an attribute": lambda x: types.SimpleNamespace(a=x),
    "a partial": lambda x: functools.partial(print, x),
    "a bound method": lambda x: types.MethodType(id, x),
    "a cell": lambda x: types.CellType(x),
    "an exception": lambda x: ValueError(x),
    "a weak reference": weakref.ref,
    "a finalizer": lambda x: weakref.finalize(x, int),
    "a lru_cache": lambda x: _cached(x),
    "a numpy view": np.asarray,
    "a memory view": lambda x: memoryview(np.asarray(x)),
    "a dlpack capsule": lambda x: np.from_dlpack(x),
    "a shard": lambda x: x.addressable_data(0),
    "a weak reference to a shard": lambda x: weakref.ref(x.addressable_data(0)),
    "a shard of a shard": lambda x: x.addressable_data(0).addressable_data(0),
    "shards": lambda x: x.addressable_shards,
    "device_put without a copy": lambda x: jax.device_put(x, x.devices().pop()),
    "device_put to an equal sharding": lambda x: jax.device_put(x, x.sharding, may_alias=True),
    "an array made from it": lambda x: jax.make_array_from_single_device_arrays(x.shape, x.sharding, [x]),
    "one on a mesh": lambda x: jax.device_put(
        x, NamedSharding(Mesh(np.array(jax.devices()[:1]), "i"), PartitionSpec())
    ),
    "a thread's local": lambda x: _in_thread_local(x),
}


def _queue(x: Any) -> Any:
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made.put(x)
    return made


def _cached(x: Any) -> Any:
    @functools.lru_cache
    def get(_: int) -> Any:
        return x

    get(0)
    return get


def _in_thread_local(x: Any) -> Any:
    local = threading.local()
    local.x = x
    return local


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS.keys())
def test_held_by(made: Functions, holder: Callable[[Any], Any]) -> None:
    stub, f, _ = made
    x = stub.new()
    value = int(x)
    holds = holder(x)
    x = f(x)
    x = f(x)
    expect(stub.calls[0].dead == set() or _own_copy(holds))
    expect(stub.calls[1].dead == {0})
    read_back(holds, value)


def _own_copy(holds: Any) -> bool:
    """A conversion that copied, so that nothing is shared, holds nothing."""
    return isinstance(holds, jax.Array) and not holds.is_deleted()


def read_back(holds: Any, value: int) -> None:
    """Whatever array can be got out of it still has its value."""
    if isinstance(holds, weakref.ref):
        holds = holds()
    inside = [holds] if isinstance(holds, jax.Array) else gc.get_referents(holds)
    found = [value for value in inside if isinstance(value, jax.Array)]
    for array in found:
        assert int(np.asarray(array)) == value


def test_held_container(made: Functions) -> None:
    """The container has another name, and with it everything below."""
    stub, f, _ = made
    x = {"a": {"b": stub.new()}, "c": stub.new()}
    inner = x["a"]
    x = f(x)
    expect(stub.calls[0].dead == {1})
    stub.read(inner)


def test_weak_reference_to_a_container(made: Functions) -> None:
    stub, f, _ = made

    x = Node(stub.new())
    reference = weakref.ref(x)
    f(x)
    stub.read(reference())
    nothing_dead(stub)


def test_the_dictionary_of_a_container(made: Functions) -> None:
    """Another way to its attributes, which from CPython 3.13 on neither the object's count nor theirs shows."""
    stub, f, _ = made

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class State:
        part: Any

    kept = []

    def run(state: Any, again: int) -> None:
        for _ in range(8):
            if len(stub.calls) == again:
                kept.append(vars(state))
            state = f(state)

    run(State(stub.new()), 0)
    run(State(stub.new()), 14)
    stub.read([dict(attributes) for attributes in kept])
    expect([n for n, call in enumerate(stub.calls) if not call.dead] == [0, 14])


def test_a_dictionary_that_an_object_tells_of_and_that_leaves_the_attributes_out() -> None:
    """As from CPython 3.13.13 on."""
    told = gc.get_referents

    def tells(*values: Any) -> list[Any]:
        return told(*values) + [vars(value) for value in values if hasattr(value, "__dict__")]

    with mock.patch.object(interpreter.gc, "get_referents", tells):
        assert interpreter._find_dictionary() == interpreter.dictionary_before


def test_container_with_a_finaliser(made: Functions) -> None:
    stub, f, _ = made

    @jax.tree_util.register_pytree_node_class
    class Node:
        def __init__(self, part: Any):
            self.part = part

        def __del__(self) -> None:
            stub.read(self.part)

        def tree_flatten(self) -> Any:
            return (self.part,), None

        @classmethod
        def tree_unflatten(cls, aux: Any, children: Any) -> Any:
            return cls(*children)

    x = Node(stub.new())
    x = f(x)
    expect(stub.calls[0].dead == set())
    stub.read(x)


def test_flattening_that_returns_what_others_hold(made: Functions) -> None:
    """One reference to each leaf, as for a leaf of a tree, but it is not the tree's."""
    stub, f, _ = made
    registry = {"k": stub.new()}

    @jax.tree_util.register_pytree_node_class
    class Node:
        def tree_flatten(self) -> Any:
            return (registry["k"],), None

        @classmethod
        def tree_unflatten(cls, aux: Any, children: Any) -> Any:
            return cls()

    x = Node()
    for _ in range(3):
        x = f(x)
        stub.read(registry)
    nothing_dead(stub)


def test_attribute_read_between(made: Functions) -> None:
    """`self.log = ...` runs code before the slot is overwritten."""
    stub, f, f2 = made

    class Hooked:
        def __setattr__(self, name: str, value: Any) -> None:
            stub.read(self.__dict__.get("a"))
            self.__dict__[name] = value

    hooked = Hooked()
    hooked.a = stub.new()
    hooked.b, hooked.a = f2(hooked.a, stub.new())
    hooked.a = f(hooked.a)
    expect(0 not in stub.calls[0].dead)
    expect(stub.calls[1].dead == set())


def test_property(made: Functions) -> None:
    stub, f, _ = made

    class Owner:
        def __init__(self) -> None:
            self.kept: list[Any] = [stub.new()]

        @property
        def a(self) -> Any:
            return self.kept[-1]

        @a.setter
        def a(self, value: Any) -> None:
            self.kept.append(value)

    owner = Owner()
    owner.a = f(owner.a)
    stub.read(owner.kept)
    nothing_dead(stub)


def test_class_attribute_behind_an_instance(made: Functions) -> None:
    stub, f, _ = made

    class Owner:
        a = stub.new()

    owner = Owner()
    owner.a = f(owner.a)
    stub.read(Owner.a)
    nothing_dead(stub)


def test_slot_redirected_by_an_earlier_store(made: Functions) -> None:
    stub = made[0]
    box = types.SimpleNamespace(a=stub.new())
    was = box
    other = stub.compile(of_length(2)(lambda x: (types.SimpleNamespace(), x)))
    box, box.a = other(box.a)
    stub.read(was.a)
    expect(stub.calls[0].dead == set())


def test_code_between_the_call_and_the_store(made: Functions) -> None:
    stub, f, _ = made
    box = types.SimpleNamespace(a=stub.new())

    def look(new: Any) -> Any:
        stub.read(box.a)
        return new

    box.a = look(f(box.a))
    nothing_dead(stub)


def test_code_in_a_helper_before_the_store_above(made: Functions) -> None:
    stub, f, _ = made
    box = types.SimpleNamespace(a=stub.new())

    def helper(x: Any) -> Any:
        new = f(x)
        stub.read(box.a)
        return new

    box.a = helper(box.a)
    nothing_dead(stub)


def test_helper_called_where_the_variable_lives_on(made: Functions) -> None:
    """The same inner site, dead the first time and alive the second."""
    stub, f, _ = made

    def helper(x: Any) -> Any:
        return f(x)

    x = stub.new()
    x = helper(x)
    y = helper(x)
    stub.read((x, y))
    expect([call.dead for call in stub.calls] == [{0}, set()])


def test_another_thread(made: Functions) -> None:
    stub, f, _ = made
    box = types.SimpleNamespace(a=stub.new())
    begin = threading.Event()
    thread = threading.Thread(target=lambda: (begin.wait(FOR_LONG), stub.read(box.a)))
    thread.start()
    box.a = f(box.a)
    begin.set()
    thread.join()
    nothing_dead(stub)


def test_another_thread_does_not_hinder_locals(made: Functions) -> None:
    stub, f, _ = made
    begin = threading.Event()
    thread = threading.Thread(target=begin.wait, args=(FOR_LONG,))
    thread.start()
    x = stub.new()
    x = f(x)
    begin.set()
    thread.join()
    stub.read(x)
    expect(stub.calls[0].dead == {0})


def test_signal_handler(made: Functions) -> None:
    stub, f, _ = made
    box = types.SimpleNamespace(a=stub.new())
    before = signal.signal(signal.SIGUSR1, lambda *_: stub.read(box.a))
    try:
        box.a = f(box.a)
    finally:
        signal.signal(signal.SIGUSR1, before)
    nothing_dead(stub)


def test_saved_traceback(made: Functions) -> None:
    stub, f, _ = made

    def fails() -> None:
        raise ValueError

    saved = None
    x = stub.new()
    try:
        fails()
    except ValueError as error:
        saved = error
    y = f(x)
    frame = saved.__traceback__.tb_frame
    stub.read((frame.f_locals["x"], y))
    nothing_dead(stub)


def test_frame_that_somebody_has(made: Functions) -> None:
    stub, f, _ = made
    frames: list[Any] = []

    def grab() -> None:
        frames.append(sys._getframe(1))

    x = stub.new()
    grab()
    y = f(x)
    stub.read((frames[0].f_locals["x"], y))
    nothing_dead(stub)


def test_frame_that_somebody_has_in_a_later_call(made: Functions) -> None:
    stub, f, _ = made
    frames: list[Any] = []

    def helper(x: Any, late: bool) -> Any:
        if late:
            frames.append(operator.attrgetter("_".join(["", "getframe"]))(sys)())
        return f(x)

    for number in range(4):
        helper(stub.new(), number == 3)
    stub.read(frames[0].f_locals["x"])
    assert [len(call.dead) for call in stub.calls] == [1, 1, 1, 0]


def test_read_in_a_handler_that_matters_only_in_a_later_call(made: Functions) -> None:
    """Another function at the same place in the code, which may raise after it has donated."""
    stub, f, _ = made

    def fails(state: Any) -> Any:
        raise ValueError

    g = stub.compile(fails, atomic=False)

    def run(functions: list[Any]) -> Any:
        x = stub.new()
        for function in functions:
            try:
                x = function(x)
            except ValueError:
                return x
        return x

    stub.read(run([f, f, f, g]))
    assert [len(call.dead) for call in stub.calls] == [1, 1, 1, 0]


class Tools:
    """What has `locals` under another name."""

    here = staticmethod(locals)


INTROSPECTING = {
    "locals": "y = f(x); read(locals()['x'])",
    "vars": "y = f(x); read(vars()['x'])",
    "eval": "y = f(x); read(eval('x'))",
    "exec": "y = f(x); exec('read(x)')",
    "locals by a string": "import builtins; y = f(x); read(getattr(builtins, 'locals')()['x'])",
    "vars by a string": "import builtins; y = f(x); read(getattr(builtins, 'vars')()['x'])",
    "eval by a string": "import builtins; y = f(x); read(getattr(builtins, 'eval')(chr(120)))",
    "vars beside another compile": "import re, builtins; re.compile('a'); look = getattr(builtins, 'vars'); y = f(x);"
    " read(look()['x'])",
    "eval beside another compile": "import re, builtins; re.compile('a'); look = getattr(builtins, 'eval'); y = f(x);"
    " read(look(chr(120)))",
    "eval beside a global of that name": "global compile; compile = id; compile(f); y = f(x);"
    " read(getattr(__builtins__, 'eval', None)(chr(120)))",
    "vars beside the builtin compile": "import builtins; compile('1', '', 'eval'); y = f(x);"
    " read(getattr(builtins, 'vars')()['x'])",
    "vars out of the globals": "y = f(x); read(vars_of(globals()['__builtins__'], 'vars')()['x'])",
    "an attribute of what a string names": "y = f(x); read(space(globals()['__builtins__']).vars()['x'])",
    "an attribute of the owner of a builtin": "y = f(x); read(print.__self__.vars()['x'])",
    "_getframe": "y = f(x); import sys; read(sys._getframe().f_locals['x'])",
    "by C": "from ctypes import py_object, pythonapi; y = f(x); own = pythonapi.PyEval_GetLocals;"
    " own.restype = py_object; read(dict(own())['x'])",
    "currentframe": "import inspect; y = f(x); read(inspect.currentframe().f_locals['x'])",
    "stack": "import inspect; y = f(x); read(getattr(inspect.stack()[0].frame, 'f_' + 'locals')['x'])",
    "stack by name": "from inspect import stack; y = f(x); read(getattr(stack()[0].frame, 'f_' + 'locals')['x'])",
    "global stack": "global stack; y = f(x); read(getattr(stack()[0].frame, 'f_' + 'locals')['x'])",
    "builtins": "import builtins; y = f(x); read(builtins.eval('x'))",
    "builtins by another name": "import builtins as b; y = f(x); read(b.eval('x'))",
    "global builtins by another name": "y = f(x); read(others.eval('x'))",
    "builtins by a string": "y = f(x); read(__import__('builtins').locals()['x'])",
    "builtins among modules": "import sys; y = f(x); read(sys.modules['builtins'].locals()['x'])",
    "out of the builtins": "import builtins; y = f(x); read(builtins.__dict__['locals']()['x'])",
    "out of a dictionary": "y = f(x); read(TABLE['here']()['x'])",
    "of a class": "y = f(x); read(Tools.here()['x'])",
    "of a class above": "y = f(x); read(Derived.here()['x'])",
    "of an object": "y = f(x); read(tools.here()['x'])",
    "of a module": "y = f(x); read(helpers.here()['x'])",
    "in an object": "y = f(x); read(held.here()['x'])",
    "in a list": "y = f(x); read(listed[0]()['x'])",
    "of a function": "y = f(x); read(called.here()['x'])",
    "of a traceback": """import inspect; y = f(x)
    try: raise ValueError
    except ValueError as error: read(inspect.getargvalues(error.__traceback__.tb_frame)[3]['x'])""",
    "of a traceback by a helper": """y = f(x)
    try: raise ValueError
    except ValueError as error: read(told(error.__traceback__.tb_frame)['x'])""",
    "of a traceback by strings": """import inspect; y = f(x)
    try: raise ValueError
    except ValueError as error:
        read(getattr(inspect, 'getinnerframes')(error.__traceback__)[0][0].__getattribute__('f_' + 'locals')['x'])""",
    "outer frames": "y = f(x); read(told((lambda: getattr(__import__('sys'), '_get' + 'frame')())().f_back)['x'])",
    "a traceback walked": """import traceback; y = f(x)
    try: raise ValueError
    except ValueError as error: read(told(next(traceback.walk_tb(error.__traceback__))[0])['x'])""",
    "a hook": "import sys; y = f(x); sys.breakpointhook()",
    "builtins as an argument": "(lambda x, b: (f(x), read(b.locals()['x'])))(x, others)",
    "captured builtins": "import builtins; (lambda x: (f(x), read(builtins.eval('x'))))(x)",
}


@pytest.mark.parametrize("body", INTROSPECTING.values(), ids=INTROSPECTING.keys())
def test_introspection(made: Functions, body: str) -> None:
    stub, f, _ = made
    space: dict[str, Any] = {"f": f, "read": stub.read, "stack": inspect.stack, "others": builtins}
    space |= {"TABLE": {"here": locals}, "Tools": Tools, "tools": Tools(), "helpers": types.ModuleType("helpers")}
    space |= {"held": types.SimpleNamespace(here=locals), "listed": [locals], "called": lambda: None}
    space["called"].here = locals
    space["Derived"] = type("Derived", (Tools,), {})
    space["helpers"].here = locals
    space["told"] = lambda frame: frame.f_locals
    space |= {"__builtins__": builtins, "vars_of": getattr, "space": lambda module: module}
    exec(f"def run(x):\n    {body}\n", space)

    def look() -> None:
        stub.read(sys._getframe(1).f_locals["x"])

    with mock.patch.object(sys, "breakpointhook", look):
        space["run"](stub.new())
    nothing_dead(stub)


ORDINARY = {
    "methods": "y = model.eval(f(x))",
    "attributes": "model.eval = model.vars = False; y = f(x); del model.vars",
    "a table of functions": "y = OTHERS['abs'](f(x))",
    "a module of functions": "import math; y = f(x); math.sqrt(4.0)",
    "where it failed": "import traceback; y = f(x); traceback.format_exc()",
    "words": "y = f(x); name = 'builtins'",
    "a mode of compile": "y = f(x); getattr(model, 'eval', None); compile('1', '', 'eval')",
}


@pytest.mark.parametrize("body", ORDINARY.values(), ids=ORDINARY.keys())
def test_what_is_no_introspection(made: Functions, body: str) -> None:
    stub, f, _ = made
    space: dict[str, Any] = {"f": f, "model": types.SimpleNamespace(eval=id), "OTHERS": {"abs": id}, "new": stub.new}
    exec(f"def run():\n    x = new()\n    {body}\n", space)
    space["run"]()
    assert stub.calls[-1].dead


@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
def test_tracer(made: Functions, install: Callable[[Any], None]) -> None:
    stub, f, _ = made
    before = sys.gettrace() if install is sys.settrace else sys.getprofile()
    install(lambda *_: None)
    try:
        x = f(stub.new())
    finally:
        install(before)
    stub.read(x)
    nothing_dead(stub)


def test_monitoring_tool(made: Functions) -> None:
    stub, f, _ = made
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        expect(sys.version_info < (3, 12))
        return
    monitoring.use_tool_id(4, "somebody")
    try:
        x = f(stub.new())
    finally:
        monitoring.free_tool_id(4)
    stub.read(x)
    nothing_dead(stub)


def test_history_of_a_notebook(made: Functions) -> None:
    stub, f, _ = made
    space: dict[str, Any] = {"__name__": "__main__", "f": f, "x": stub.new(), "Out": {}}
    space["Out"][3] = space["_"] = space["x"]
    exec(compile("x = f(x)", "<cell>", "exec"), space)
    stub.read((space["Out"], space["_"]))
    nothing_dead(stub)


def test_global_that_is_not_overwritten_at_once(made: Functions) -> None:
    stub, f, _ = made
    space: dict[str, Any] = {"__name__": "__main__", "f": f, "x": stub.new(), "read": stub.read}
    exec(compile("def show():\n    read(x)\ny = f(x)\nshow()\nx = y\n", "script.py", "exec"), space)
    nothing_dead(stub)


def test_class_body(made: Functions) -> None:
    stub, f, _ = made
    space: dict[str, Any] = {"f": f, "new": stub.new, "read": stub.read}
    exec("class C:\n    x = new()\n    y = f(x)\nread(C.x)\n", space)
    nothing_dead(stub)


# -- calls from C, which may hold the only other reference, and may use it afterwards ---


def after(x: Any) -> bool:
    return x is not None


FROM_C: dict[str, Callable[[Callable[..., Any], Any], Any]] = {
    "map": lambda f, xs: (list(map(f, xs)), xs),
    "map over what nobody else has": lambda f, xs: [x for x in [next(map(f, iter([xs.pop()])))] if False],
    "filter": lambda f, xs: list(filter(f, (xs.pop() for _ in range(2)))),
    "filterfalse": lambda f, xs: next(filter(f, (xs.pop() for _ in range(1)))),
    "sorted": lambda f, xs: sorted([xs.pop()], key=lambda x: (f(x), 0)[1]),
    "sorted by it": lambda f, xs: max([xs.pop()], key=f),
    "min over a generator": lambda f, xs: min((xs.pop() for _ in range(1)), key=f),
    "reduce": lambda f, xs: functools.reduce(lambda a, b: (f(a), a)[1], [xs.pop(), 1, 2]),
    "partial": lambda f, xs: (functools.partial(f, xs[0])(), xs),
    "operator.call": lambda f, xs: (operator.call(f, xs[0]), xs),
    "lru_cache": lambda f, xs: _through_cache(f, xs),
    "callable object": lambda f, xs: _through_object(f, xs.pop()),
    "added": lambda f, xs: _through_add(f, xs),
    "dict.setdefault": lambda f, xs: {}.setdefault(0, (f(xs[0]), xs)),
}


def _through_cache(f: Callable[..., Any], xs: Any) -> Any:
    holder = [xs.pop()]
    get = functools.lru_cache(lambda i: f(holder[i]))
    get(0)
    return holder


def _through_object(f: Callable[..., Any], x: Any) -> Any:
    class Callable_:
        def __call__(self, value: Any) -> Any:
            new = f(value)
            return value, new

    return Callable_()(x)


def _through_add(f: Callable[..., Any], xs: Any) -> Any:
    class Number:
        def __init__(self, x: Any):
            self.x = x

        def __add__(self, other: Any) -> Any:
            f(self.x)
            return self.x

    return Number(xs.pop()) + 1


@pytest.mark.parametrize("call", FROM_C.values(), ids=FROM_C.keys())
def test_call_from_c(made: Functions, call: Callable[..., Any]) -> None:
    stub, f, _ = made
    stub.read(call(f, [stub.new(), stub.new()]))


def test_filter_gives_out_what_it_has_called_with(made: Functions) -> None:
    stub, f, _ = made

    def states() -> Iterator[Any]:
        for _ in range(3):
            yield stub.new()

    it = filter(f, states())
    for x in it:
        stub.read(x)
    nothing_dead(stub)


def test_argument_still_on_the_stack(made: Functions) -> None:
    stub, f, _ = made

    def run(x: Any) -> Any:
        return [x, f(x)]

    stub.read(run(stub.new()))
    nothing_dead(stub)


def test_generator_that_is_resumed(made: Functions) -> None:
    stub, f, _ = made

    def steps(x: Any) -> Iterator[Any]:
        yield f(x)
        yield x

    stub.read(list(steps(stub.new())))
    nothing_dead(stub)


def test_captured_and_read_by_a_nested_function(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()

    def show() -> Any:
        return stub.read(x)

    y = f(x)
    show()
    stub.read(y)
    nothing_dead(stub)


def test_live_arguments_of_a_starred_call(made: Functions) -> None:
    stub, f, _ = made
    t = (stub.new(), stub.new())
    new = f(*t)
    stub.read((t, new))
    nothing_dead(stub)


@pytest.mark.parametrize("made_of", [tuple, list])
def test_starred_result_that_somebody_has(made: Functions, made_of: Callable[..., Any]) -> None:
    stub, _, f2 = made
    kept = []

    def given() -> Any:
        kept.append(made_of((stub.new(), stub.new())))
        return kept[-1]

    new = f2(*given())
    stub.read((kept, new))
    nothing_dead(stub)


def test_another_tuple_of_what_a_starred_call_is_given(made: Functions) -> None:
    """One as young as the interpreter's own, and with the same in it."""
    stub, _, f2 = made
    kept = []

    def given() -> Any:
        pair = [stub.new(), stub.new()]
        kept.append(tuple(pair))
        return pair

    new = f2(*given())
    stub.read((kept, new))
    nothing_dead(stub)


def test_a_starred_call_while_somebody_fills_a_tuple(made: Functions) -> None:
    """`tuple` has one with room for ten items in the making, and none in it, when it asks for the first."""
    stub, _, _ = made
    f10 = stub.compile(lambda *arrays: arrays)

    def given() -> Any:
        return [stub.new() for _ in range(10)]

    expect(len(tuple(map(lambda _: f10(*given()), range(3)))) == 3)  # noqa: C417 - `map` is what this is about


def test_many_arrays_alive(made: Functions) -> None:
    """Where looking for hidden sharing would cost more than it can save, nothing is given away."""
    stub, f, _ = made
    many = [stub.new() for _ in range(1200)]
    x = stub.new()
    shard = x.addressable_data(0)
    x = f(x)
    stub.read((shard, many[0], x))
    nothing_dead(stub)


def test_another_array_on_the_buffer_where_jax_has_forgotten_all_clients() -> None:
    """`clear_backends`: a client that JAX makes after that does not list the arrays of those before, which live on."""
    code = """
import jax, jax.numpy as jnp, pytc
from jax.extend.backend import clear_backends
step = pytc.compile(lambda x: x + 1)
def run():
    x = jax.device_put(jnp.zeros(3), jax.devices()[0])
    other = jax.device_put(x, x.device)
    clear_backends()
    for _ in range(3):
        x = step(x)
    print(float(x[0]), float(other[0]))
run()
"""
    ran = interpreters.run(["-c", code])
    assert (ran.stdout, ran.stderr) == ("3.0 0.0\n", "")


def test_another_array_on_the_buffer_of_a_failure() -> None:
    """An execution that fails after it was dispatched leaves arrays that raise its error when they are read."""
    code = """
import contextlib, itertools, time, jax, jax.numpy as jnp, pytc
step = pytc.compile(lambda x: x + 1)
slow = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda _, x: x @ x * 1e-3, x))
def fail(_):
    time.sleep(0.2)  # so that the calls behind it are made first
    raise ValueError("it has failed")
@jax.jit
def failing(x):
    return jax.pure_callback(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x)[0] + 1
def shard(x):
    return x.addressable_data(0)
def put(x):
    return jax.device_put(x, x.device)
def failing_later():
    while True:  # what it waits for may be over before the call is made, which raises itself then
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            return failing(slow(jnp.ones((1000, 1000))))
def run(another, steps, waits):
    x = jnp.ones(1000)
    for _ in range(4):
        x = step(x)
    x = failing_later()
    for _ in range(steps):
        x = step(x)
    other = another(x)
    if waits:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            x.block_until_ready()
    x = step(x)
    for array in (x, other):
        try:
            array.block_until_ready()
        except Exception as error:
            print("it has failed" if "it has failed" in str(error) else error)
slow(jnp.ones((1000, 1000)))
for each in itertools.product((shard, put), (0, 1), (False, True)):
    run(*each)
"""
    ran = interpreters.run(["-c", code])
    assert ran.stdout == 16 * "it has failed\n", ran.stderr


def test_executions_that_call_python_are_not_waited_for() -> None:
    """What they call may itself wait for this thread, or for what this thread has."""
    code = """
import faulthandler, itertools, threading, time, jax, jax.numpy as jnp, pytc
faulthandler.dump_traceback_later(60, exit=True)
step = pytc.compile(lambda x: x + 1)
slow = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda _, x: x @ x * 1e-3, x)[0])
lock = threading.Lock()
results, does = [], []
def train(x):
    other = x.addressable_data(0)
    for _ in range(3):
        x = step(x)
    return x
def nothing():
    pass
def waits():
    with lock:
        pass
def trains():
    train(slow(jnp.ones((1000, 1000))))
def trains_result():
    train(results[-1])
def called(x):
    time.sleep(0.05)  # so that the result is there
    does[-1]()
    return x
@jax.jit
def calling(x):
    return jax.pure_callback(called, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1
trains()
for each, of_result in itertools.product((nothing, waits, trains, trains_result), (False, True)):
    does.append(each)
    results.append(calling(slow(jnp.ones((1000, 1000)))))  # that is waited for, so that this call does not wait
    with lock:
        x = train(results[-1] if of_result else jnp.ones(1000))
    jax.block_until_ready((x, results))
print("came through")
"""
    ran = interpreters.run(["-c", code])
    assert ran.stdout == "came through\n", ran.stderr
