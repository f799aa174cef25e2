"""Which objects are new, so that nobody else has them."""

from __future__ import annotations

import gc
from typing import Any

_MANY = 100_000
"""With more young objects than that it is not looked for which are new."""


class Newcomers:
    """Which objects are new: made since this was, while no garbage was collected."""

    def __init__(self) -> None:
        self.are_told = gc.get_count()[0] < _MANY
        if self.are_told:
            gc.collect(0)  # what is young from now on is new
        self._new: set[int] = set()

    def has(self, value: Any) -> bool:
        """Whether the object is new."""
        if id(value) in self._new:
            return True
        found = self.are_told and any(each is value for each in reversed(gc.get_objects(0)))
        if found:
            self._new.add(id(value))
        return found
