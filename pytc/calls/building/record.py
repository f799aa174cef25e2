"""What has been seen of the functions that put one result together."""

from __future__ import annotations

from typing import Any

from pytc.calls.building.newcomers import Newcomers


class Record:
    """What has been seen so far of the functions that put one result together."""

    def __init__(self) -> None:
        self.new = Newcomers()
        self.certain: set[Any] = set()
        """Functions, with kinds of arguments, of which it is known that they only build."""
        self.methods: set[str] = set()
        """The names under which methods of objects were found in their classes."""
        self.stored: set[str] = set()
        """Attributes that something was assigned to."""
        self.stores_anything = False
        """Whether attributes of any name may have been assigned."""

    def hides_methods(self) -> bool:
        """Whether an attribute of an object may have been in the place of a method of its class."""
        return bool(self.methods) and (self.stores_anything or not self.methods.isdisjoint(self.stored))
