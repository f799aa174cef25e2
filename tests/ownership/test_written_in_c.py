"""Objects of classes that somebody has written in C: others may know their address, and code may run as they die."""

from __future__ import annotations

import abc
import cProfile
import ctypes
import enum
import sys
import types
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pytest

from pytc.ownership.cpython.native import is_counted, is_quiet, native
from tests.ownership.harness import Stub, expect_nothing_deleted, first
from tests.ownership.odd_objects import looking_at, written_in_c

ALL: list[Any] = []
HANDLE = written_in_c("elsewhere.Handle")
PAIR = written_in_c("elsewhere.Pair", base=tuple)


class Derived(HANDLE):
    """Inherits from such a class."""


class DerivedWithSlots(HANDLE):
    """The same, with a field of its own."""

    __slots__ = ("more",)


def program(function):
    ALL.append(function)
    return function


def at(address):
    """What C code finds at an address that it was given."""
    return ctypes.cast(address, ctypes.py_object).value


@program
def handle_in_a_variable(s, f, f2):
    for kind in (HANDLE, Derived, DerivedWithSlots):
        x = s.new()
        handle = kind()
        handle.value = x
        address = id(handle)
        x = f(x)
        s.read((x, at(address).value))


@program
def handle_in_arguments(s, f, f2):
    for kind in (HANDLE, Derived, DerivedWithSlots):
        handle = kind()
        handle.value = s.new()
        address = id(handle)
        x = f(handle.value, handle)
        s.read((x, at(address).value))


@program
def handle_in_a_field(s, f, f2):
    for kind in (HANDLE, Derived, DerivedWithSlots):
        handle = kind()
        handle.value = x = s.new()
        address = id(handle)
        state = {"x": x, "handle": handle, "n": 0}
        x = handle = None
        new = f(state["x"])
        s.read((new, at(address).value))
        s.read(state["n"])


@program
def handle_that_is_a_tuple(s, f, f2):
    x = s.new()
    for kind in [tuple] * 5 + [PAIR] * 3:
        pair = kind((x,))
        address = id(pair)
        x = f(x)
        if kind is PAIR:
            s.read((x, at(address)[0]))


LOUD = {
    "a class": ("elsewhere.Loud", {}),
    "one without a field": ("elsewhere.Loud", {"base": object}),
    "one without a dot in its name": ("builtins.Loud", {}),
    "a tuple": ("elsewhere.Loud", {"base": tuple}),
}


def watched(s):
    """Boxes with a state, and for each a class of `LOUD`, whose objects look at that as they die."""
    for name, like in LOUD.values():
        box = types.SimpleNamespace(a=s.new())
        yield box, written_in_c(name, looking_at(s, box), **like)


@program
def what_looks_as_a_variable_dies(s, f, f2):
    def helper(box, loud):
        guard = loud()  # noqa: F841
        return f(box.a)

    for box, loud in watched(s):
        for _ in range(3):
            box.a = helper(box, loud)


@program
def what_looks_as_an_argument_dies(s, f, f2):
    for box, loud in watched(s):
        for _ in range(3):
            box.a = f(box.a, loud())


@program
def what_looks_before_it_stores(s, f, f2):
    box, on = None, []
    box = written_in_c("elsewhere.Record", attributes=True, stores=lambda: on and looking_at(s, box)())()
    box.a = s.new()
    on.append(True)
    for _ in range(3):
        box.a = f(box.a)


@program
def what_asks_for_the_time_as_it_dies(s, f, f2):
    if sys.version_info >= (3, 12):
        f(s.new())
        return  # there a profiler that is not stopped stops every proof
    box = types.SimpleNamespace(a=s.new())
    look = looking_at(s, box)

    def helper():
        profiler = cProfile.Profile(lambda: look() or 0)
        profiler.enable()
        sys.setprofile(None)
        return f(box.a)

    for _ in range(3):
        box.a = helper()


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_no_deleted_array(program):
    expect_nothing_deleted(program)


def test_what_a_class_statement_adds():
    assert native(HANDLE) is native(Derived) is native(DerivedWithSlots) is HANDLE
    first = [made(base, *names) for base in (object, list, dict) for names in ALL_NAMES]
    second = [made(base, *names) for base in first for names in ((), ("c",), (None,))]
    of_tuples = [type("Made", (tuple,), {"__slots__": ()}), type("Made", (tuple, *first[:1]), {})]
    assert {native(kind) for kind in first + second} == {object, list, dict}
    assert {native(kind) for kind in of_tuples} == {tuple}
    assert native(type("Made", (OSError,), {})) is OSError
    assert native(type("Made", (ctypes.Structure,), {})) is not object


T = TypeVar("T")


class Named(NamedTuple, Generic[T]):
    x: T


class Attributes(Generic[T]):
    x: T


class Slots(Generic[T]):
    __slots__ = ("x",)


class Likeness(Protocol[T]):
    x: T


class Like(Likeness[T]):
    pass


@pytest.mark.parametrize("kind", [Attributes, Slots, Like, enum.Enum("Kinds", "A B"), type("A", (abc.ABC,), {})])
def test_classes_that_others_are_made_of(kind):
    """From CPython 3.12 on, `typing.Generic` is written in C."""
    assert is_counted(kind)
    assert is_quiet(kind)


@pytest.mark.parametrize("kind", [Attributes, Slots, Like])
def test_state_in_an_object_of_a_generic_class(kind):
    stub = Stub()
    f = stub.compile(first)
    box = kind()
    box.x = stub.new()
    for _ in range(3):
        box.x = f(box.x)
    pair = Named(stub.new())
    for _ in range(3):
        pair = Named(f(pair.x))
    other = kind()
    other.x = stub.new()
    x = f(other.x)
    stub.read((box.x, pair.x, x))
    assert [bool(call.dead) for call in stub.calls] == [True] * 7


def made(base, *names):
    """A class with slots of these names, or without `__slots__` for None."""
    return type("Made", (base,), {} if None in names else {"__slots__": names})


ALL_NAMES = [(), ("a", "__b"), ("a", "__weakref__"), ("a", "__dict__"), ("__dict__", "__weakref__"), (None,)]
