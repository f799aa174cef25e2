"""What holds of a class for as long as neither it nor any that it inherits from is changed, and so is asked once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytc.ownership.cpython.interpreter import version, versions

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


class Holding:
    """Whether something holds of all of some classes, as they are now. Quick to ask again and again: as long as none is
    changed, that is 0.2 us for all of them together."""

    def __init__(self, holds: Callable[[type], bool], kinds: Sequence[type]):
        self._holds, self._kinds = holds, kinds
        self._versions = versions(kinds)
        self._known: Any = None
        """The versions that it was found to hold of."""

    def __call__(self) -> bool:
        """Whether it does."""
        now = self._versions()  # before the classes are looked at: what is changed meanwhile has another version
        if now == self._known:
            return True
        if not all(self._holds(kind) for kind in self._kinds):
            return False
        if all(now):  # a class that was just changed has none yet, and in the end none any more
            self._known = now
        return True
