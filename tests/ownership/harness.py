"""A stand-in for `pytc.compile` that shows every wrong proof: what is called dead is deleted at once.

`compile` gives a function whose call path is that of the real thing as far as `ownership` can see (`args`, `kwargs`
and `leaves` refer to the arguments, and each frame on the way holds the caller's frame once), but which computes
nothing: every leaf is replaced by a new array. Whoever can still read an array that was called dead then meets a
deleted one.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import default_registry, tree_flatten, tree_leaves, tree_unflatten

from pytc import ownership

_STORE = 8
_MOST = 128  # leaves of a call: for each number of them something is compiled
_MOST_NODES = 32 * _MOST


@functools.cache
def _maker(count: int) -> Callable[[int], list[jax.Array]]:
    return jax.jit(lambda start: [start * _STORE + number for number in range(count)])


def _arrays() -> Iterator[jax.Array]:
    """New arrays on buffers of their own, with the values 1, 2, ... (many at a time, because that is cheaper)."""
    start = 1
    while True:
        made = _maker(_STORE)(np.int32(start))
        start += 1
        made.reverse()
        while made:
            yield made.pop()


class TooLarge(ValueError):
    """What a program raises that would take hours."""


@dataclasses.dataclass
class Called:
    """What happened at one call."""

    leaves: dict[int, jax.Array]
    """Those that are arrays, and only where `Stub.keeps` is set, because to keep them is to hold them."""
    dead: frozenset[int]


class Stub:
    """Functions that donate as `prover` says, and what was called and read, in order."""

    def __init__(self, prover: Callable[..., Any] | None = ownership.held, keeps: bool = False):
        self.prover = prover
        self.keeps = keeps
        self.calls: list[Called] = []
        self.reads: list[Any] = []
        """The values read; with `keeps`, pairs of the number of calls so far and the array."""
        self.seen: list[bool] = []
        """What a program's own objects saw that looked at an array: whether it was deleted."""
        self.wanted: dict[tuple[int, ...], ownership.Wanted] = {}
        """Each set of leaves as one and the same object, as a plan has it; here also for trees that differ."""
        self._new = _arrays()

    def new(self) -> jax.Array:
        return next(self._new)

    def spill(self) -> None:
        """Keep no arrays for programs to come: JAX and CPython keep some functions, which lead here."""
        self._new = _arrays()

    def read(self, value: Any) -> Any:
        """Read every array in `value`; raises if one was deleted."""
        _check_size(value)
        for leaf in tree_leaves(value):
            if isinstance(leaf, jax.Array):
                self.reads.append((len(self.calls), leaf) if self.keeps else int(np.asarray(leaf)))
        return value

    glance = read
    """The same, of what may have died where two runs share other objects."""

    def compile(self, combine: Callable[..., Any], *, atomic: bool = True) -> Callable[..., Any]:
        """A function that hands its arguments, every array replaced by a new one, to `combine`. `atomic` is what is
        said of calls that raise."""

        def compiled(*args: Any, **kwargs: Any) -> Any:
            _check_size((args, kwargs))
            leaves, tree = tree_flatten((args, kwargs))
            call = ownership.Call(sys._getframe(1), args, kwargs, leaves)
            del leaves
            return self._run(call, tree, combine, atomic)

        return compiled

    def _run(self, call: ownership.Call, tree: Any, combine: Any, atomic: bool) -> Any:
        wanted = tuple(i for i, leaf in enumerate(call.leaves) if isinstance(leaf, jax.Array))
        wanted = self.wanted.setdefault(wanted, ownership.Wanted(wanted))
        if len(wanted) > _MOST:
            raise TooLarge("a program that doubles its state in every round would compile for hours")
        if any(call.leaves[i].is_deleted() for i in wanted):
            raise RuntimeError("an argument has been deleted")
        dead: frozenset[int] = frozenset()
        if self.prover is not None:
            lengths, classes = getattr(combine, "lengths", None), getattr(combine, "classes", frozenset())
            outcome = ownership.Outcome(calls_python=False, lengths=lengths, atomic=atomic, classes=classes)
            dead = frozenset(wanted).difference(self.prover(call, wanted, outcome))
            for leaf in call.leaves:
                if isinstance(leaf, int):
                    int(leaf)  # as JAX asks numbers for their values
        else:
            self.reads.extend((len(self.calls), call.leaves[i]) for i in wanted if self.keeps)
        self.calls.append(Called({i: call.leaves[i] for i in wanted} if self.keeps else {}, dead))
        collections = ownership.collections_so_far()
        landed = _maker(len(wanted))(np.int32(-len(self.calls))) if wanted else []
        in_one_go = not ownership.collected_since(collections)
        ownership.executed(
            (landed[-1], landed[0])[: len(landed)] if landed else (), len(landed), in_one_go, landed.copy
        )
        made = iter(landed)
        del landed
        results = [next(made) if isinstance(leaf, jax.Array) else leaf for leaf in call.leaves]
        for i in dead:
            call.leaves[i].delete()
        new_args, new_kwargs = tree_unflatten(tree, results)
        try:
            result = combine(*new_args, **new_kwargs)
        finally:
            ownership.resume_collections()
        return result


def _check_size(tree: Any) -> None:
    """Raise `TooLarge` for a tree that a program has doubled in every round, with few objects and many paths to them,
    or none to arrays: JAX would flatten it for hours."""
    ahead, count = [tree], 0
    while ahead:
        value = ahead.pop()
        count += 1
        if count > _MOST_NODES:
            raise TooLarge("a program that doubles its state in every round would run for hours")
        if (one_level := default_registry.flatten_one_level(value)) is not None:
            ahead.extend(one_level[0])


# An `assert` in a test module is rewritten by pytest to code that uses `locals()`, which keeps everything alive.


Functions = tuple[Stub, Callable[..., Any], Callable[..., Any]]
"""A stub, and two functions of its own: `first` and `both`."""


def expect_nothing_deleted(program: Callable[..., Any]) -> None:
    """That a program of a stub, and of `first` and `both`, makes calls and meets no deleted array."""
    stub = Stub()
    program(stub, stub.compile(first), stub.compile(both))
    stub.read([])
    assert stub.calls
    assert not any(stub.seen)


def expect(truth: bool) -> None:
    """What `assert` does, for functions whose own variables are looked at."""
    assert truth


def taken_over(box: Any, steps: int) -> list[bool]:
    """For each of so many steps on a state in the attribute `a` of an object, whether the state was taken over."""
    stub = Stub()
    f = stub.compile(first)
    box.a = stub.new()
    for _ in range(steps):
        box.a = f(box.a)
    stub.read(box.a)
    return [bool(call.dead) for call in stub.calls]


def expect_dead(stub: Stub, calls: int, leaves: int = 1) -> None:
    """That there were so many calls, each of which found its first so many leaves dead."""
    assert len(stub.calls) == calls
    assert [call.dead & set(range(leaves)) for call in stub.calls] == [set(range(leaves))] * calls


def of_length(length: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Says that what `combine` returns is a tuple of this length."""
    return of_lengths((None,) * length)


def of_lengths(lengths: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same, with the lengths of tuples in it."""

    def mark(combine: Callable[..., Any]) -> Callable[..., Any]:
        combine.lengths = lengths  # type: ignore[attr-defined]
        return combine

    return mark


def first(state: Any, *rest: Any, **more: Any) -> Any:
    return state


@of_length(2)
def both(state: Any, batch: Any) -> Any:
    return state, batch


@of_lengths(((None, None), None))
def nested(state: Any, other: Any) -> Any:
    return (state, other), 0


def shares(array: jax.Array) -> jax.Array:
    """Another array object on the same buffer."""
    return array.addressable_data(0)


def zeros() -> jax.Array:
    return jnp.zeros(())
