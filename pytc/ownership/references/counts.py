"""Which leaves nobody outside the call refers to: trial deletion over the argument tree.

This is how CPython's cyclic garbage collector finds garbage: subtract from each object's reference count the references
that come from inside; what has a remainder is held from outside. Inside are the dead places of the callers, the `args`
and `kwargs` of this call, and every container that is itself inside. A container is opened only once every reference to
it is accounted for, so nothing outside is ever walked. One that is never fully accounted for stays shut, and what it
holds keeps a remainder.

This order also keeps the proof valid while other threads run. An object all of whose references are ours cannot be
reached by anybody else, so from that moment on nobody can change its contents or take a new reference to them; and its
contents are looked at only from that moment on.

Some things reach an object, or its contents, without being counted: weak references; a finaliser (`__del__`), which is
given the object when it dies; and, from CPython 3.13 on, the object's `__dict__`, if somebody has that. An object that
has any of them is never opened. Nor is one that others may know by its address: only such are opened as are known
to be counted (`native`).
"""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import operator
import types
import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, Protocol, TypeAlias

import numpy as np

from pytc.classes import defines, ids_of
from pytc.jax_compat.keys import bits_of
from pytc.ownership.call import Call
from pytc.ownership.cpython.facts import Fact
from pytc.ownership.cpython.interpreter import getrefcount, may_share_attributes, share_attributes
from pytc.ownership.cpython.native import is_counted
from pytc.provenance import is_own_array

_referents = gc.get_referents
_weakrefs = weakref.getweakrefcount

ATOMS = (type(None), bool, int, float, complex, str, bytes)
"""Types whose objects refer to nothing."""
_ATOMS = ids_of(*ATOMS)
_shut = {*_ATOMS, *ids_of(
    type, np.ndarray,
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType, types.FrameType,
    types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.CellType,
)}  # fmt: skip
"""Types (ids) that are never opened: they hold no array, or may hold anything. JAX's array type is added when first
seen."""
NUMBERS: tuple[type, ...] = (int, float, complex)
"""Objects of users' classes that derive from these are not opened: JAX asks them for their values after the proof, by
their classes' own code."""
PLAIN = ids_of(tuple, list, dict)
"""Types (ids) that are always opened."""


def opens(value: Any) -> bool:
    """Whether the contents of `value` count as inside once `value` itself does."""
    kind = type(value)
    if id(kind) in PLAIN:
        return True
    # Never `isinstance`, which asks the object for its `__class__`.
    if id(kind) in _shut or issubclass(kind, type) or not gc.is_tracked(value):
        return False
    if issubclass(kind, NUMBERS):
        return False
    if is_own_array(kind) and bits_of(value) is value:  # not a PRNG key, which holds its bits
        _shut.add(id(kind))
        return False
    if not _may_be_opened(kind) or _weakrefs(value):
        return False
    return not (may_share_attributes(kind) and share_attributes([value]))


_may_be_opened = Fact(lambda kind: is_counted(kind) and not defines(kind, "__del__"))


def remainder(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    places: list[Any],
    leaves: Sequence[Any],
    lists: int,
    unshared: list[Any],
) -> int:
    """How many references to `leaves` are not accounted for, in sum. Never too few.

    `places` has the value of each dead place of the callers, and `unshared` the arrays that are known to be on buffers
    of their own; a leaf that is not among them counts as one reference. Each of `leaves` is in `lists` lists of ours,
    that one included. The answer is too large if a leaf or a container is reached twice; `Census` is exact.

    This is quick because it builds no table of objects. The lists here (`roots`, `places`, `opened`) hold everything
    that is referred to from inside, so each reference from inside comes with one of theirs. The references to the
    leaves are counted with these lists, and once more while another list holds all that they and `unshared` hold. The
    difference is the number of references from inside and from `unshared`.
    """
    roots = [*args, *kwargs.values()]
    nodes = _sole(roots, places)
    opened, levels = [], []
    while nodes:
        levels.append((nodes, sum(map(getrefcount, nodes))))
        opened.append(_referents(*nodes))
        nodes = _openable(opened[-1])
    if any(sum(map(getrefcount, level)) != counted for level, counted in levels):
        return 1  # the metaclass of one, asked for `__class__`, has kept another
    before, after = counted_twice(leaves, itertools.chain(roots, places, *opened, unshared))
    # Of each leaf: outside + 2 * inside + lists + unshared + 1 before;
    # outside + 3 * inside + lists + 2 * unshared + 1 after.
    # So this is outside + (1 - unshared), of which neither is negative.
    return 3 * before - 2 * after - lists * len(leaves)


def counted_twice(values: Sequence[Any], more: Iterable[Any]) -> tuple[int, int]:
    """The sum of the reference counts of `values`, as it is, and while one more list holds all of `more`.

    Both are counted with no bytecode in between at which the interpreter could switch threads. Otherwise the list of
    all arrays that another thread's proof has for a moment could be mistaken for the references that `more` adds.
    """
    held: list[Any] = []
    steps: list[Callable[[], Any]] = [
        functools.partial(sum, map(getrefcount, values)),
        functools.partial(held.extend, more),
        functools.partial(sum, map(getrefcount, values)),
    ]
    counts: list[Any] = list(map(operator.call, steps))
    return counts[0], counts[2]


def _sole(roots: list[Any], places: list[Any]) -> list[Any]:
    """The containers in `roots`, the arguments, and in dead `places` that nothing else refers to.

    This is a function of its own so that none of its variables is left when references are counted next.
    """
    nodes = []
    for root in roots:
        if id(type(root)) not in _shut:
            expected = 4  # `args` or `kwargs`, `roots`, the variable `root`, and `getrefcount`'s argument
            for place in places:
                if place is root:
                    expected += 2  # the place itself, and `places`
            if places and place is root:
                expected += 1  # the variable `place`, which has the last one still
            if getrefcount(root) == expected and opens(root):
                nodes.append(root)
    for place in places:
        # The place, `places`, the variable `place`, and `getrefcount`'s argument. An argument has more.
        if id(type(place)) not in _shut and getrefcount(place) == 4 and opens(place):
            nodes.append(place)  # noqa: PERF401 - as above
    return nodes


def _openable(values: list[Any]) -> list[Any]:
    """The containers in `values`, the contents of opened containers, that nothing else refers to."""
    nodes = [value for value in values if id(type(value)) not in _shut]
    # The container that it is in, `values`, `nodes`, the variable `value`, and `getrefcount`'s argument.
    return [value for value in nodes if getrefcount(value) == 5 and (id(type(value)) in PLAIN or opens(value))]


def in_one_list(values: Sequence[Any]) -> list[Any]:
    """Those of the values in a list of the caller's that nothing but this list refers to."""
    counts = [*map(getrefcount, values)]
    if not counts or min(counts) > 2:  # the list, and `getrefcount`'s argument
        return []
    return [value for value, count in zip(values, counts, strict=True) if count == 2]


Mark: TypeAlias = "weakref.ref[Any]"
"""A weak reference of our own, which nobody else has. It has a callback, which does nothing and is written in C:
without one it would be the one weak reference that CPython has for all who ask for a plain one.

(A subclass of `weakref.ref` would not do. Where many nested objects die, CPython delays the end of instances of Python
classes, and up to 3.12 `getweakrefs` still returns them meanwhile.)
"""
_ENDED = collections.deque[Any](maxlen=0).append


class Marked(Protocol):
    """An execution some of whose results are marked."""

    marks: tuple[Mark, ...]


remembered: list[Marked] = []
"""Those that `executions` remembers, newest first. What is none of their marks is a weak reference like any other: one
that was a mark, or that somebody has made with the same callback."""


def new_marks(arrays: Iterable[Any]) -> tuple[Mark, ...]:
    """A new mark on each of the arrays, to be held by nothing but the tuple."""
    return (*map(weakref.ref, arrays, itertools.repeat(_ENDED)),)


def weakly_referenced(leaves: Sequence[Any]) -> bool:
    """Whether anybody else has a weak reference to any of the leaves."""
    return not are_marks(sum(map(_weakrefs, leaves)), leaves)


def are_marks(count: int, leaves: Sequence[Any], marks: Sequence[Mark] = ()) -> bool:
    """Whether the weak references to the leaves, of which `count` were counted, are all marks.

    If all leaves are results of one execution, `executions` has marked the first and the last of them; `marks` are
    those of that execution, and are tried first. Otherwise marks are searched leaf by leaf.
    """
    if not count:
        return True
    first, last = leaves[0], leaves[-1]
    if _of_our_own(marks, first, last) == count:
        return True
    marked = [first] if first is last else [first, last]
    if sum(map(_weakrefs, marked)) != count:
        marked = [leaf for leaf in leaves if _weakrefs(leaf)]
    return sum(map(_weakrefs, marked)) == count and all(only_marked(leaf) for leaf in marked)


def _of_our_own(marks: Sequence[Mark], first: Any, last: Any) -> int:
    """How many of the marks are on `first` or `last` and referred to by nobody else."""
    own = 0
    for mark in marks:
        target = mark()
        # The tuple `marks`, the variable `mark`, and `getrefcount`'s argument.
        own += (target is first or target is last) and getrefcount(mark) == 3
    return own


def only_marked(leaf: Any) -> bool:
    """Whether all weak references to the leaf are marks that only `executions` has."""
    # References to a mark: the tuple in `executions`, the list here, the variable `mark`, and `getrefcount`'s argument.
    return all(
        type(mark) is weakref.ref and mark.__callback__ is _ENDED and getrefcount(mark) == 4 and _is_mark(mark)
        for mark in weakref.getweakrefs(leaf)
    )


def _is_mark(mark: Mark) -> bool:
    """Whether some execution that is remembered has it: mostly one of the latest."""
    return any(each is mark for marked in remembered for each in marked.marks)


class Census:
    """Trial deletion with a table: for each object found inside, how many of its references are accounted for.

    Exact, and leaf by leaf, unlike `remainder`, but slower.
    """

    def __init__(self, call: Call):
        self._found: dict[int, list[Any]] = {}
        self._new: set[int] = set()
        self._opened: set[int] = set()
        self._account(call.leaves)
        self._account(call.args)
        self._account(call.kwargs.values())

    @classmethod
    def of(cls, call: Call) -> Census:
        """The census of the arguments, with all of their containers opened that nothing else refers to."""
        census = cls(call)
        census.settle()
        return census

    def add(self, places: Sequence[Any]) -> None:
        """Account for two references to each value: that of its dead place, and that of the list `places` itself, which
        must stay for as long as the census is used."""
        self._account(places)
        self._account(places)

    def settle(self) -> None:
        """Open every container that is accounted for by now."""
        while self._new:
            new, self._new = self._new, set()
            for key in new:
                entry = self._found[key]
                if key not in self._opened and self.remains(key) == 0 and opens(entry[0]):
                    self._opened.add(key)
                    self._account(_referents(entry[0]))
                del entry

    def _account(self, values: Iterable[Any]) -> None:
        for value in values:
            entry = self._found.get(id(value))
            if entry is None:
                self._found[id(value)] = [value, 1]
            else:
                entry[1] += 1
            self._new.add(id(value))

    def remains(self, key: int) -> int:
        """How many references to the object of this id are not accounted for."""
        entry = self._found[key]
        return getrefcount(entry[0]) - 2 - int(entry[1])  # 2: the table, and `getrefcount`'s argument

    def is_inside(self, key: int) -> bool:
        """Whether every reference to the leaf of this id is accounted for."""
        leaf = self._found[key][0]
        # Weak references are looked for on both sides of the count: another thread may replace a strong reference by a
        # weak one, or the reverse, in between. 1: the variable `leaf`.
        return only_marked(leaf) and self.remains(key) == 1 and only_marked(leaf)

    def stands(self) -> bool:
        """Whether every reference to each opened container is still accounted for: the metaclass of one, asked for
        `__class__`, may have kept another."""
        return not any(self.remains(key) for key in self._opened)

    def is_open(self, key: int) -> bool:
        """Whether the object of this id is a container that was accounted for and opened."""
        return key in self._opened

    def tables(self) -> set[int]:
        """The ids of this object's own containers that refer to what was found."""
        return {id(self._found), *map(id, self._found.values())}

    def found(self) -> frozenset[int]:
        """The ids of all that was found."""
        return frozenset(self._found)


def has_part(value: Any, parts: Set[int], depth: int = 3) -> bool:
    """Whether the value is one of these `parts` of the arguments (ids), or a container, not too large or deep, that
    holds one."""
    kind = type(value)
    if id(value) in parts and id(kind) not in _ATOMS and not issubclass(kind, type):
        return True
    if depth == 0 or not (issubclass(kind, tuple) or opens(value)):
        return False
    inside = _referents(value)
    return len(inside) <= 64 and any(has_part(part, parts, depth - 1) for part in inside)
