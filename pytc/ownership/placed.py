"""What stands in the callers' dead places at a call: arguments, parts of them, and containers that hold some.

A container in a dead place is dead if nothing but dead places refers to it, and then so are the places in it. The quick
look (`walk`) remembers what stood where, and compares it by identity at the next call.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytc.classes import defines, flags_of, has_dictionary, may_be_referred_to_weakly
from pytc.ownership import counts
from pytc.ownership.interpreter import getrefcount, may_share_attributes, share_attributes

_referents = gc.get_referents
_weakrefs = weakref.getweakrefcount
PLAIN = frozenset((tuple, list, dict))

_Standing = Sequence[tuple[int, int]]
"""Pairs: the number of a place, counted on through what dead containers hold; the position of what stands there."""


class _Holders(NamedTuple):
    """Containers in dead places that hold arguments, or parts of them."""

    numbers: tuple[tuple[int, ...], ...]
    """Of each the places where it stands."""
    types: list[type]
    expected: int
    """References: for each place that, and the list that says so; the list of holders, and `getrefcount`'s own."""
    held: int
    """How much they and those of earlier rounds hold."""
    of_people: bool
    """Whether some are of classes that people have written: others may have weak references to these, or their
    attributes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """What stands in the callers' dead places: some of what the walk sees, and containers that hold some of it.

    A container is dead if nothing refers to it but dead places, and then so are the places in it. Whatever stands in
    all these places is compared by identity at each call, so each accounts for one reference that is there. What else
    is in them is for the careful look.
    """

    count: int
    """Of the places themselves."""
    rounds: tuple[_Holders, ...]
    """The containers to open, those in places first, then those in these."""
    arguments: _Standing
    """Arguments in the places themselves."""
    standing: tuple[_Standing, ...]
    """All else, of the walk's containers, level by level, and last of the arrays."""
    references: tuple[int, ...]
    """How many references those in places have more, and those of `standing`, on each level: for each place where one
    stands that, and the list of places, or of what dead containers hold."""
    classes: frozenset[type]
    """The classes of containers to open that people have written."""

    @classmethod
    def of(cls, places: list[Any], seen: list[Any], roots: int, where: Sequence[tuple[int, ...]]) -> Placed:
        """What stands where at this call. The first `roots` of what is seen are arguments, or only these are looked
        for; `where` are the positions that matter, as `standing` has them."""
        known = {id(seen[k]): (level, k) for level, at in enumerate(where) for k in at if k < len(seen)}
        values = list(places)
        rounds: list[_Holders] = []
        start, opened = 0, set(known)
        while len(rounds) < _DEEPEST:
            found: dict[int, list[int]] = {}
            for number in range(start, len(values)):
                if id(values[number]) not in opened and _leads_to(values[number], known):
                    found.setdefault(id(values[number]), []).append(number)
            if not found:
                break
            opened |= found.keys()
            nodes = [values[numbers[0]] for numbers in found.values()]
            expected = sum(2 * len(numbers) + 2 for numbers in found.values())
            start = len(values)
            values += _referents(*nodes)
            held = len(values) - len(places)
            types = [*map(type, nodes)]
            of_people = not PLAIN.issuperset(types)
            rounds.append(_Holders(tuple(map(tuple, found.values())), types, expected, held, of_people))
        arguments: list[tuple[int, int]] = []
        standing: list[list[tuple[int, int]]] = [[] for _ in where]
        references = [0] * len(where)
        for number, value in enumerate(values):
            if id(value) in known:
                level, k = known[id(value)]
                (arguments if number < len(places) and k < roots else standing[level]).append((number, k))
                references[level] += 2
        classes = frozenset(kind for holders in rounds for kind in holders.types if kind not in PLAIN)
        return cls(len(places), tuple(rounds), arguments, tuple(standing), tuple(references), classes)

    def stands_alike(self, places: list[Any], arguments: list[Any]) -> bool:
        """Whether the same arguments stand in the places."""
        if len(places) != self.count:
            return False
        for number, position in self.arguments:  # noqa: SIM110 - a generator costs more
            if places[number] is not arguments[position]:
                return False
        return True

    def open(self, places: list[Any], held: list[Any]) -> list[tuple[Sequence[Any], int]] | None:
        """Put into `held` what the dead containers hold, and return these, with how many references they have; None
        where they are not as they were."""
        opened: list[tuple[Sequence[Any], int]] = []
        for holders in self.rounds:
            nodes = [_at(numbers[0], places, held) for numbers in holders.numbers]
            for k, numbers in enumerate(holders.numbers):
                if any(_at(number, places, held) is not nodes[k] for number in numbers[1:]):
                    return None
            if [*map(type, nodes)] != holders.types:
                return None
            counted: Iterable[int] = map(getrefcount, nodes)
            if holders.of_people:
                counted = itertools.chain(counted, map(_weakrefs, nodes))  # in one go, as on the way to the arrays
            if sum(counted) != holders.expected:
                return None
            if holders.of_people and share_attributes([v for v in nodes if may_share_attributes(type(v))]):
                return None
            held += _referents(*nodes)
            if len(held) != holders.held:
                return None
            opened.append((nodes, holders.expected))
        return opened


UNKNOWN = Placed(-1, (), (), (), (), frozenset())
_MADE_BY_CODE = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`, in the flags of a class."""
_DEEPEST = 3
_MOST_HELD = 64
"""Containers larger than that, or deeper down, are for the careful look."""


def _at(number: int, places: list[Any], held: list[Any]) -> Any:
    """What stands in a place, of which the list of places has the first, and `held` the others."""
    return places[number] if number < len(places) else held[number - len(places)]


def stand(standing: _Standing, places: list[Any], held: list[Any], seen: list[Any]) -> bool:
    """Whether all this stands where it did."""
    return all(_at(number, places, held) is seen[position] for number, position in standing)


def _leads_to(value: Any, known: Mapping[int, Any], depth: int = _DEEPEST) -> bool:
    """Whether a plain container or an object of a class that people have written, not too large, has something of this
    (by id) in it."""
    kind = type(value)
    if not (depth and (is_plain(kind) or (flags_of(kind) & _MADE_BY_CODE and counts.opens(value)))):
        return False
    parts = _referents(value)
    return len(parts) <= _MOST_HELD and any(id(part) in known or _leads_to(part, known, depth - 1) for part in parts)


def is_plain(kind: type) -> bool:
    """Whether what an object of this type refers to is its items, and its keys: all that it takes to open it is that
    nobody else refers to it."""
    return kind in PLAIN or (
        issubclass(kind, tuple)
        and not has_dictionary(kind)
        and not may_be_referred_to_weakly(kind)
        and not defines(kind, "__del__")
    )
