"""Items at given positions of a sequence, picked by C code alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Picker: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]


def picker(positions: Sequence[int]) -> Picker:
    """Picks these positions, in their order, out of a list or a tuple.

    Positions in a row, up or down, are cut out as a slice, of a thousand items as quickly as of one. What is cut out of
    a sequence that is too short is shorter; otherwise that raises `IndexError`.
    """
    if not positions:
        return operator.itemgetter(slice(0))
    first, last = positions[0], positions[-1]
    if [*positions] == [*range(first, last + 1)]:
        return operator.itemgetter(slice(first, last + 1))
    if [*positions] == [*range(first, last - 1, -1)]:
        return operator.itemgetter(slice(first, last - 1 if last else None, -1))
    return operator.itemgetter(*positions)
