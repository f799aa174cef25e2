"""What is known of a value while a function that builds is executed symbolically."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any, TypeAlias

from pytc.calls.building.code import ATOMS
from pytc.classes import is_among


class Kind(enum.Enum):
    """Of what is known by its kind alone."""

    LEAF = enum.auto()
    """An array, which may be the same one as another leaf."""
    ATOM = enum.auto()
    """A number or a text, or what an array's type tells."""
    STATIC = enum.auto()
    """An object that was there before, and that others may have."""
    UNKNOWN = enum.auto()
    """Any of these."""
    NULL = enum.auto()
    """Nothing: what the interpreter puts on the stack beside a function."""
    SUPER = enum.auto()
    """`super()`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """An object that is the same one each time and does not change: code, or a constant."""

    value: Any
    literal: bool = False
    """Whether the function's code has it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and other.value is self.value and other.literal == self.literal

    def __hash__(self) -> int:
        return hash((id(self.value), self.literal))


@dataclasses.dataclass(frozen=True)
class Text:
    """One of these texts, which the function's code has."""

    among: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Made:
    """An object that is new, of a class that `is_open`."""

    kind: type


@dataclasses.dataclass(frozen=True)
class Container:
    """One of the interpreter's containers that is new, or does not change; or a slice."""

    kind: type
    items: tuple[Value, ...] | None = None
    """Those of a tuple, or the bounds of a slice; None if they are not told."""
    new: bool = True


@dataclasses.dataclass(frozen=True)
class Several:
    """An iterator."""

    item: Value


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of a container."""

    of: Container
    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class Bound:
    """A method of an object or a class, written in Python."""

    function: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Inherited:
    """What `super()` has under a name."""

    name: str
    value: Any


@dataclasses.dataclass(frozen=True)
class Truth:
    """The outcome of a comparison by identity; None if it is not told."""

    value: bool | None


Value: TypeAlias = Kind | Known | Text | Made | Container | Several | Method | Bound | Inherited | Truth


class Odd(Exception):
    """The function may do something else the next time, or something that is not looked at."""


def joined(
    one: tuple[tuple[Value, ...], dict[str, Value]], other: tuple[tuple[Value, ...], dict[str, Value]]
) -> tuple[tuple[Value, ...], dict[str, Value]]:
    """What is known where two ways meet."""
    if len(one[0]) != len(other[0]):
        raise Odd
    stack = tuple(a if a == b else Kind.UNKNOWN for a, b in zip(one[0], other[0], strict=True))
    names = {name: a if a == other[1][name] else Kind.UNKNOWN for name, a in one[1].items() if name in other[1]}
    return stack, names


def items_of(value: Value) -> tuple[Value, ...] | None:
    """The items of a container, if they are told. Raises `Odd` for anything else."""
    match value:
        case Container(kind, items) if kind is not slice:
            return items
        case Known(tuple() as constant):
            return tuple(Known(each, literal=True) for each in constant)
    raise Odd


def item_of(value: Value) -> Value:
    """What each item of a container or an iterator is."""
    if isinstance(value, Several):
        return value.item
    items = items_of(value)
    if items and all(each == items[0] for each in items):
        return items[0]
    texts = [each.value for each in items or () if isinstance(each, Known) and each.literal and type(each.value) is str]
    if texts and len(texts) == len(items or ()):
        return Text(frozenset(texts))
    return Kind.ATOM if items and all(is_atom(each) for each in items) else Kind.UNKNOWN


def spread(value: Value) -> tuple[Value, ...]:
    """What is passed by `*` or `**`."""
    items = items_of(value)
    return (Kind.UNKNOWN,) if items is None else items


def is_atom(value: Value) -> bool:
    """Whether it is a number, a text, or None."""
    return (
        value is Kind.ATOM
        or isinstance(value, Text)
        or (isinstance(value, Known) and is_among(type(value.value), ATOMS))
    )


def check_keys(values: Iterable[Value]) -> None:
    """Raises `Odd` for what may not be a key, or runs users' code as one (`__hash__`, `__eq__`)."""
    if not all(is_atom(each) for each in values):
        raise Odd


def check_pairs(value: Value) -> None:
    """Raises `Odd` unless a dictionary can be made of it the next time, too."""
    match value:
        case Container(kind) if kind is dict:
            return
        case Several(Container(_, (key, _))):
            check_keys([key])
            return
    raise Odd


def part_of(owner: Value, key: Value) -> Value:
    """An item or a slice of a container, under a key that the code itself has."""
    if isinstance(key, Container) and key.kind is slice:
        if owner is Kind.ATOM:
            return owner
        items, bounds = items_of(owner), key.items or ()
        told = [each.value for each in bounds if isinstance(each, Known) and each.literal]
        cut = items[slice(*told)] if items and len(told) == len(bounds) else None
        return Container(owner.kind if isinstance(owner, Container) else tuple, cut)
    if not (isinstance(key, Known) and key.literal):
        raise Odd
    if owner is Kind.ATOM:
        return owner
    items = items_of(owner)
    if items is None:
        return Kind.UNKNOWN
    if type(key.value) is not int or not -len(items) <= key.value < len(items):
        raise Odd
    return items[key.value]


def is_new(value: Value) -> bool:
    """Whether it is a container that was made here, and may be changed."""
    return isinstance(value, Container) and value.new and is_among(value.kind, (list, dict, set))


def identity(a: Value, b: Value) -> bool | None:
    """Whether two values are one, if that is told. Raises `Odd` where it may differ the next time."""
    known, other = (a, b) if isinstance(a, Known) else (b, a)
    if not isinstance(known, Known) or isinstance(other, Bound | Inherited):
        raise Odd
    if isinstance(other, Known):
        both = known.value, other.value
        return known.value is other.value if not any(is_among(type(each), ATOMS[1:]) for each in both) else None
    if known.value is None and (other is Kind.STATIC or isinstance(other, Made | Container)):
        return False
    return False if other is Kind.LEAF and not is_among(type(known.value), ATOMS[1:]) else None


def is_none(value: Value) -> bool | None:
    """Whether it is None, if that is told."""
    return identity(value, Known(None))


def truth(value: Value) -> bool | None:
    """The outcome of a comparison, if it is told. Raises `Odd` where it may differ the next time."""
    if is_atom(value):
        return None
    if not isinstance(value, Truth):
        raise Odd
    return value.value
