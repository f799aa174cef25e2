"""Programs that no one would write, each of which meets a deleted array if one step of the proof is left out.

Odd hooks (`__del__`, `__eq__`, `__setattr__`, weak references' and the collector's callbacks, signal handlers) that look
between the call and the store; C code that calls twice, or goes on with what it was handed; one slot under two names;
values that are not the call's result after all. None may meet a deleted array, or a wrong number of results.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

import jax
import numpy as np
import pytest

from tests.ownership.harness import expect_nothing_deleted, of_length

ALL: list[Any] = []


def strange(program):
    ALL.append(program)
    return program


@strange
def helper_returns_none(s, f, f2):
    def helper(x):
        f2(x, s.new())

    x = s.new()
    try:
        x, y = helper(x)
    except TypeError:
        s.read(x)


@strange
def helper_returns_none_slots(s, f, f2):
    def helper(x):
        f2(x, s.new())

    box = types.SimpleNamespace(a=s.new(), b=0)
    try:
        box.a, box.b = helper(box.a)
    except TypeError:
        s.read(box.a)


@strange
def helper_returns_triple_slots(s, f, f2):
    def helper(x):
        return f2(x, x), 1, 2

    box = types.SimpleNamespace(a=s.new(), b=0)
    try:
        box.a, box.b = helper(box.a)
    except ValueError:
        s.read(box.a)


@strange
def helper_unbound_load(s, f, f2):
    def helper(x, flag=0):
        if flag:
            z = 1
        y = f(x)
        z
        return y

    x = s.new()
    try:
        x = helper(x)
    except UnboundLocalError:
        s.read(x)


@jax.tree_util.register_pytree_node_class
class Dying:
    def __init__(self, part, act=None):
        self.part = part
        self.act = act

    def __del__(self):
        if self.act is not None:
            self.act()

    def tree_flatten(self):
        return (self.part,), None

    @classmethod
    def tree_unflatten(cls, aux, ch):
        return cls(*ch)


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, part):
        self.part = part

    def tree_flatten(self):
        return (self.part,), None

    @classmethod
    def tree_unflatten(cls, aux, ch):
        return cls(*ch)


@strange
def root_with_del_reads_next_slot(s, f, f2):
    bad = []
    box = types.SimpleNamespace(a=None, b=s.new())
    box.a = Dying(s.new(), lambda: bad.append(box.b.is_deleted()))
    box.a, box.b = f2(box.a, box.b)
    if any(bad):
        raise RuntimeError("deleted")


@strange
def root_inner_del_reads_next_slot(s, f, f2):
    bad = []
    box = types.SimpleNamespace(a=None, b=s.new())
    box.a = {"k": Dying(s.new(), lambda: bad.append(box.b.is_deleted()))}
    box.a, box.b = f2(box.a, box.b)
    if any(bad):
        raise RuntimeError("deleted")


@strange
def root_weakref_callback(s, f, f2):
    bad = []
    box = types.SimpleNamespace(a=None, b=s.new())
    box.a = Node(s.new())
    r = weakref.ref(box.a, lambda _: bad.append(box.b.is_deleted()))
    box.a, box.b = f2(box.a, box.b)
    if any(bad):
        raise RuntimeError("deleted")


@strange
def dying_argument(s, f, f2):
    bad = []
    box = types.SimpleNamespace(a=s.new())
    box.a = f(box.a, Dying(s.new(), lambda: bad.append(box.a.is_deleted())))
    if any(bad):
        raise RuntimeError("deleted")


@strange
def object_array_dies(s, f, f2):
    bad = []

    class Guard:
        def __del__(self):
            bad.append(box.b.is_deleted())

    box = types.SimpleNamespace(a=None, b=s.new())
    arr = np.empty(1, object)
    arr[0] = Guard()
    box.a = arr
    del arr
    box.a, box.b = f2(s.new(), box.b)
    if any(bad):
        raise RuntimeError("deleted")


@strange
def dict_key_dies(s, f, f2):
    bad = []

    class Guard:
        def __del__(self):
            bad.append(box.b.is_deleted())

    box = types.SimpleNamespace(a={Guard(): 1}, b=s.new())
    box.a, box.b = f2(s.new(), box.b)
    if any(bad):
        raise RuntimeError("deleted")


@strange
def cyclic_list_dropped(s, f, f2):
    l = []
    l.append(l)
    box = types.SimpleNamespace(a=l, b=s.new())
    box.a, box.b = f2(s.new(), box.b)


@strange
def result_dropped(s, f, f2):
    bad = []
    make = s.compile(lambda x: Dying(x, lambda: bad.append(box.a.is_deleted())))
    box = types.SimpleNamespace(a=s.new())
    make(box.a)
    box.a = None
    if any(bad):
        raise RuntimeError("deleted")


@strange
def result_part_dropped(s, f, f2):
    bad = []
    make = s.compile(of_length(3)(lambda x: (Dying(x, lambda: bad.append(box.a.is_deleted())), x, x)))
    box = types.SimpleNamespace(a=s.new())
    y, y, box.a = make(box.a)
    if any(bad):
        raise RuntimeError("deleted")


@strange
def evil_key(s, f, f2):
    class Evil:
        def __init__(self, k):
            self.h = hash(k)

        def __hash__(self):
            return self.h

        def __eq__(self, other):
            if armed:
                s.read([v for v in d.values()])
            return False

    armed = []
    d = {Evil("k"): s.new(), "k": s.new()}
    armed.append(1)
    d["k"] = f(d["k"])


@strange
def conditional_star(s, f, f2):
    def g():
        return [s.new()]

    for flag in (1, 0, 1, 0, 1):
        x = s.new()
        f(*(g() if flag else (x,)))
        f(*([s.new()] if flag else (x,)))


@strange
def conditional_star_kw(s, f, f2):
    class M(dict):
        pass

    for flag in (1, 0, 1, 0, 1):
        x = s.new()
        f(**(M(state=s.new()) if flag else {"state": x}))


@strange
def star_into_c(s, f, f2):
    @jax.tree_util.register_pytree_node_class
    class Key:
        def __init__(self, part):
            self.part = part

        def tree_flatten(self):
            return (self.part,), None

        @classmethod
        def tree_unflatten(cls, aux, ch):
            return cls(*ch)

        def __hash__(self):
            return 1

        def __eq__(self, other):
            s.read(other.part)
            f(other)
            return False

    d = {Key(s.new()): 0, Key(s.new()): 1}
    key = Key(s.new())
    d.get(*(key,))


@strange
def star_into_c2(s, f, f2):
    @jax.tree_util.register_pytree_node_class
    class Key:
        def __init__(self, part):
            self.part = part

        def tree_flatten(self):
            return (self.part,), None

        @classmethod
        def tree_unflatten(cls, aux, ch):
            return cls(*ch)

        def __hash__(self):
            return 1

        def __eq__(self, other):
            s.read(other.part)
            f(other)
            return False

    def run(d, *args):
        return d.get(*args)

    d = {Key(s.new()): 0, Key(s.new()): 1}
    run(d, Key(s.new()))


@strange
def store_runs_del(s, f, f2):
    box = []

    class Old:
        def __del__(self):
            f(box.pop())

    v = s.new()
    box.append(v)
    x = Old()
    x = v
    s.read(x)


@strange
def store_two_runs_del(s, f, f2):
    box = []

    class Old:
        def __del__(self):
            f(box.pop())

    v = s.new()
    box.append(v)
    x = Old()
    y = Old.__class__
    x, y = v, 1
    del v
    s.read(x)


@strange
def key_called_twice(s, f, f2):
    box = types.SimpleNamespace(a=s.new())
    box.a = max(range(2), key=lambda i: f(box.a))


@strange
def key_called_twice_b(s, f, f2):
    box = types.SimpleNamespace(a=s.new())

    def call(i):
        y = f(box.a)
        return y

    box.a = functools.reduce(lambda a, b: call(b), range(3))


@strange
def key_called_twice_cell(s, f, f2):
    x = s.new()
    x = functools.reduce(lambda a, b: f(x), range(3))


@strange
def c_unpack_other(s, f, f2):
    def helper(_, x=None):
        nonlocal cell
        return f2(cell, s.new())

    cell = s.new()
    try:
        cell, y = max([(1, 2, 3)], key=lambda t: helper(t))
    except ValueError:
        s.read(cell)


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_no_deleted_array(program):
    expect_nothing_deleted(program)
