"""Items at given positions of a sequence."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Picker: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]


def picker(positions: Sequence[int]) -> Picker:
    """Picks these positions, in C where there are several."""
    if len(positions) == 1:
        (only,) = positions
        return lambda values: (values[only],)
    return operator.itemgetter(*positions) if positions else lambda _: ()
