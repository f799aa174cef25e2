"""Places and events: the words in which a call site's code is told.

A `Place` says where a value is found: a variable, then attributes and items. Places consist of names only. Whether
reading or storing one runs no code depends on the objects, which `slots` examines at each call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from pytc.ownership.bytecode.lengths import Lengths, has, has_as_many, part_of

Kind: TypeAlias = Literal["fast", "cell", "global", "attribute", "item"]


@dataclasses.dataclass(frozen=True)
class Step:
    """One step on the way to a value."""

    kind: Kind
    name: Any
    """A local's or cell's number, a global's or attribute's name, an item's key or the `Place` it is in."""


Place: TypeAlias = tuple[Step, ...]


ANY_NUMBER, ANY_CELL = 0, 1
"""In place of names: a key that is a number, and a variable that closures share."""


def _names(place: Place) -> Iterator[str | int]:
    for step in place:
        if step.kind == "cell":
            yield ANY_CELL
        elif isinstance(step.name, tuple):  # a key that is in another place
            yield from _names(step.name)
            yield ANY_NUMBER
        elif isinstance(step.name, str):
            yield step.name
        elif step.kind != "fast":
            yield ANY_NUMBER


def fast(number: int) -> Place:
    """The place of a local variable."""
    return (Step("fast", number),)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the call's result, on the symbolic stack."""

    path: tuple[Step, ...]
    """The steps that lead to it."""

    def lengths(self, result: Lengths) -> Lengths:
        """Those of the part, if these are the result's; None if there is no such part."""
        for step in self.path:
            result = part_of(result, step.kind, step.name)
        return result


RESULT = Part(())
"""The whole result."""


@dataclasses.dataclass(frozen=True)
class Built:
    """A tuple that was made after the call, on the symbolic stack; for hints also a list, or a dictionary's items."""

    items: tuple[Any, ...]

    def has_result(self) -> bool:
        """Whether a part of the result is in it."""
        return any(isinstance(item, Part) or (isinstance(item, Built) and item.has_result()) for item in self.items)

    def lengths(self, result: Lengths) -> Lengths:
        """Those of the tuple, if these are the result's."""
        return tuple(item.lengths(result) if isinstance(item, Part | Built) else None for item in self.items)


@dataclasses.dataclass(frozen=True)
class Constant:
    """A constant, on the symbolic stack."""

    value: Any


Value: TypeAlias = Place | Constant | Part | Built | None
"""On the symbolic stack. None is an unknown value."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A call with keywords, after the one that all this is about."""

    names: tuple[str, ...]
    """The names of its keywords."""
    positional: int
    """How many other arguments it has, without the `self` of a method."""
    lower: int = 0
    """Where what is called, and `self` or nothing, are on the stack: the lower of two positions."""
    function: Place = ()
    """What is called, if that is loaded only after the call before, for the place of the event."""


@dataclasses.dataclass(frozen=True)
class Event:
    """An instruction after the call that matters: a store; a load that must be plain, also one of a method; arithmetic
    with a place that must have a number; one that takes a part of the result apart, or builds a tuple. A call is the
    last event; its `place` is `self` or the first argument, if that is loaded for it. And a variable is left: not read
    again, where all that was read after the call are attributes of what it has.
    """

    does: Literal["store", "load", "method", "compute", "unpack", "pick", "build", "leave", "call"]
    place: Place = ()
    part: Part = RESULT
    """What is unpacked, or picked from."""
    step: Step | None = None
    """What is picked; the rest is dropped then."""
    number: int = 0
    """Into how many items a part is unpacked."""
    call: Call | None = None
    of_result: bool = False
    """Whether what is stored is the result of the call, a part of it, or a tuple with one."""

    @property
    def reads(self) -> Place:
        """The place that is read or overwritten; for a method, that of the object."""
        return self.place[:-1] if self.does == "method" else self.place

    def names(self) -> Iterator[str | int]:
        """The names of what is read or stored, as `signal_handlers` has them."""
        yield from _names(self.place)
        if self.call is not None:
            yield from _names(self.call.function)

    def takes_apart(self, lengths: Lengths) -> bool:
        """Whether this takes apart something that has these items, if the result is of these `lengths`: then it runs no
        code, but for what is dropped, and cannot raise."""
        part = self.part.lengths(lengths)
        if self.step is not None:
            return has(part, self.step.kind, self.step.name)
        return has_as_many(part, self.number)
