"""Several leaves in one line: `params['layers'][0..23].wq` for 24 leaves of which the same is true.

Things are folded if they differ only in the numbers in their texts.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

FEWEST = 3
"""Fewer things than this are folded only if they differ by index: `layers[0..1]` says all, but `w1`, `w2` is easier to
read than `w1..2`."""

MOST_RANGES = 4
"""Of more ranges than this the middle ones are left out."""

_NUMBER = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class Fold(Generic[T]):
    """Things that were folded, and their common texts."""

    members: tuple[T, ...]
    texts: tuple[str, ...]
    """Each text by which they were folded, with ranges for the numbers that vary."""

    @property
    def count(self) -> int:
        """How many things were folded."""
        return len(self.members)


def fold(things: Iterable[T], texts: Callable[[T], Sequence[str]], same: Callable[[T], Hashable]) -> list[Fold[T]]:
    """Fold things whose `same` is equal and whose `texts` differ in numbers alone. Folds are in the order of their
    first members.

    Cost: linear in the length of the texts.
    """
    groups: dict[Hashable, list[T]] = {}
    for thing in things:
        key = (same(thing), *(_NUMBER.sub("#", text) for text in texts(thing)))
        groups.setdefault(key, []).append(thing)
    folds: list[Fold[T]] = []
    for members in groups.values():
        columns = list(zip(*(texts(member) for member in members), strict=True))
        if len(members) < FEWEST and not all(_differ_by_index(column) for column in columns):
            folds += [Fold((member,), tuple(texts(member))) for member in members]
        else:
            folds.append(Fold(tuple(members), tuple(_merge(column) for column in columns)))
    return folds


def _differ_by_index(texts: Sequence[str]) -> bool:
    """Whether every number in which the texts differ is alone in brackets."""
    around = _NUMBER.split(texts[0])
    numbers = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    return all(
        len(set(column)) == 1 or (before.endswith("[") and after.startswith("]"))
        for column, (before, after) in zip(numbers, itertools.pairwise(around), strict=True)
    )


def _merge(texts: Sequence[str]) -> str:
    """Texts that differ in numbers alone, as one text with ranges for the numbers that vary."""
    if all(text == texts[0] for text in texts):
        return texts[0]
    between = _NUMBER.split(texts[0])
    columns = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    numbers = [column[0] if len(set(column)) == 1 else _ranges(sorted(set(map(int, column)))) for column in columns]
    return "".join(text + number for text, number in zip(between, [*numbers, ""], strict=True))


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, as ranges without gaps; of many, the first few and the last: `0..3,8`, `0,2,4,...,16`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}..{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    if len(texts) > MOST_RANGES:
        texts[MOST_RANGES - 1 : -1] = ["..."]
    return ",".join(texts)
