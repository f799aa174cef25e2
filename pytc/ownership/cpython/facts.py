"""What holds of a class for as long as neither it nor any that it inherits from is changed, and so is asked once."""

from __future__ import annotations

from collections.abc import Callable

from pytc.ownership.cpython.interpreter import version

_MOST = 1024


class Fact:
    """Something that may hold of classes; where it does, that is remembered.

    By the `version` that a class had before it was looked at: if it was changed meanwhile, it never has that again.
    """

    def __init__(self, holds: Callable[[type], bool]):
        self._holds = holds
        self._known: set[int] = set()

    def __call__(self, kind: type) -> bool:
        """Whether it holds of this class."""
        number = version(kind)
        if number and number in self._known:
            return True
        if not self._holds(kind):
            return False
        if number:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known.add(number)
        return True
