"""The largest batch that fits in a device's memory, found by compiling for one size after another."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from pytc.explain.sizes import size as in_words
from pytc.program import Leaf

MOST = 2**40
"""Sizes beyond this are not tried."""

LEAP = 32
"""The next size to try is at most so many times the largest one that is known to fit."""


class NoLargest(ValueError):
    """The memory of a program does not depend on what was named as its batch."""


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The largest size of a batch with which a program fits."""

    batch: tuple[str, ...]
    """The arguments whose leading axes were sized."""
    size: int
    """The largest that fits; 0 if none does."""
    total_bytes: int
    """The bytes that the program takes on each device with it, as the compiler counts; 0 if none fits."""
    memory: int
    """The bytes that each device has."""
    tried: tuple[tuple[int, int], ...]
    """(size, total bytes) for every size that was compiled for, in order. If the compiler refused, the bytes that it
    said were needed."""

    def __str__(self) -> str:
        names, there = ", ".join(self.batch), in_words(self.memory)
        if not self.size:
            smallest, total = min(self.tried)
            return f"{names}: not even {smallest:,} fits in {there}: it takes {in_words(total)}"
        over = [each for each in self.tried if each[1] > self.memory]
        beyond = f"; {min(over)[0]:,} would take {in_words(min(over)[1])}" if over else ""
        share = self.total_bytes / self.memory
        return f"{names}: {self.size:,} fits in {there}: {in_words(self.total_bytes)}, {share:.0%}{beyond}"


@dataclasses.dataclass(frozen=True)
class Resizable:
    """The arguments of a function, which can be resized, and the memory that the function takes for them."""

    leaves: Sequence[Leaf]
    held: Sequence[Any]
    """For each leaf a value of its type that takes no memory."""
    total: Callable[[Sequence[Any]], int]
    """The bytes that the program takes on each device for such leaves. Compiles it."""

    def batch(self, names: Collection[str]) -> tuple[list[int], int, int]:
        """The leaves that `names` mean, the size of their leading axes, and over how many devices these are split.

        Raises `ValueError` if a name is no argument with a leading axis, or the axes differ in size.
        """
        chosen: list[int] = []
        for name in names:
            found = [i for i, leaf in enumerate(self.leaves) if _is_at(name, leaf.path) and _shape(leaf)]
            if not found:
                known = ", ".join(dict.fromkeys(leaf.parameter for leaf in self.leaves if _shape(leaf)))
                raise ValueError(f"{name!r} is no argument with a leading axis; there are {known or 'none'}")
            chosen += found
        measures = {_shape(self.leaves[i])[0] for i in chosen}
        if len(measures) > 1:
            told = ", ".join(f"{self.leaves[i].path}: {_shape(self.leaves[i])[0]}" for i in chosen[:4])
            raise ValueError(f"the leading axes of a batch are of one size, but these are not: {told}")
        return chosen, measures.pop(), math.lcm(*(_parts(self.leaves[i]) for i in chosen))

    def total_with(self, chosen: Collection[int], measure: int) -> int:
        """The bytes that the program takes if the leading axes of the leaves `chosen` are of size `measure`."""
        return self.total([resized(each, measure) if i in chosen else each for i, each in enumerate(self.held)])


def held(leaf: Leaf, value: Any) -> Any:
    """A value of the leaf's type and kind that takes no memory; for other than arrays, the value itself."""
    if isinstance(value, np.ndarray):
        return np.broadcast_to(np.zeros((), value.dtype), value.shape)
    if isinstance(value, jax.Array) and not isinstance(value, jax.Ref):
        kind = {"weak_type": bool(getattr(value, "weak_type", False)), "sharding": leaf.sharding}
        return jax.ShapeDtypeStruct(value.shape, value.dtype, **kind)  # type: ignore[no-untyped-call]
    return value


def resized(value: Any, measure: int) -> Any:
    """A value from `held`, with another leading axis."""
    shape = (measure, *value.shape[1:])
    return (
        np.broadcast_to(np.zeros((), value.dtype), shape)
        if isinstance(value, np.ndarray)
        else value.update(shape=shape)
    )


def search(
    total: Callable[[int], int], memory: int, start: int, step: int, watch: Callable[[int, Sequence[Any]], None]
) -> list[tuple[int, int]]:
    """Search the largest multiple of `step` with `total(size) <= memory`; returns (size, total) for each size tried.

    `total` must not fall with the size. Mostly it grows linearly, so the next size is where the line through the two
    totals nearest to `memory` crosses it; if that has twice not halved the interval, its middle.

    Raises `ValueError` if `total` does not grow.
    """
    tried: dict[int, int] = {}
    low, high = 0, MOST // step
    guess = max(1, start // step)
    slow = 0
    while low + 1 < high:
        watch(guess * step, list(tried.items()))
        tried[guess] = total(guess * step)
        left = high - low
        if tried[guess] <= memory:
            low = guess
        else:
            high = guess
        slow = slow + 1 if high - low > left / 2 and high < MOST // step else 0
        guess = _next(tried, memory, low, high)
        if slow >= 2:
            guess, slow = (low + high) // 2, 0
    return [(size * step, found) for size, found in tried.items()]


def _next(tried: dict[int, int], memory: int, low: int, high: int) -> int:
    """The size at which the line through the two totals nearest to `memory` crosses it; strictly between `low` and
    `high`."""
    nearest = sorted(tried, key=lambda size: abs(tried[size] - memory))[:2]
    upper = min(high - 1, max(low, 1) * LEAP)
    if len(nearest) < 2:
        return min(max(low * 2, 1), upper) if low else max(1, high // 2)
    one, other = sorted(nearest)
    if tried[other] <= tried[one]:
        if low >= LEAP**4 and tried[low] <= min(tried.values()):
            raise NoLargest("the program takes as much memory with a small batch as with a large one")
        return max(low + 1, upper)
    slope = (tried[other] - tried[one]) / (other - one)
    return min(max(math.floor(one + (memory - tried[one]) / slope), low + 1), upper)


class Progress:
    """A line on a terminal: the size that is being compiled for, and how much memory the largest fitting size takes."""

    WIDTH = 30

    def __init__(self, name: str, memory: int) -> None:
        self._name, self._memory = name, memory
        self._stream = sys.stderr
        self._shown = self._stream.isatty()

    def show(self, measure: int, tried: Sequence[tuple[int, int]]) -> None:
        """Show that `measure` is about to be compiled for."""
        if not self._shown:
            return
        fitting = max((total for _, total in tried if total <= self._memory), default=0)
        full = round(self.WIDTH * fitting / self._memory)
        bar = "#" * full + "-" * (self.WIDTH - full)
        there = f"{in_words(fitting)} of {in_words(self._memory)}"
        self._stream.write(f"\r\033[K{self._name} [{bar}] {there}; trying {measure:,}")
        self._stream.flush()

    def done(self) -> None:
        """Remove the line."""
        if self._shown:
            self._stream.write("\r\033[K")
            self._stream.flush()


def _is_at(name: str, path: str) -> bool:
    return path == name or (path.startswith(name) and path[len(name)] in "[.")


def _shape(leaf: Leaf) -> tuple[int, ...]:
    return () if leaf.aval is None else tuple(getattr(leaf.aval, "shape", ()))


def _parts(leaf: Leaf) -> int:
    """Over how many devices the leading axis is split."""
    if not isinstance(leaf.sharding, NamedSharding):
        return 1
    shape = _shape(leaf)
    return max(1, shape[0] // max(1, int(leaf.sharding.shard_shape(shape)[0])))
