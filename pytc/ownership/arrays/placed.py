"""What stands in the callers' dead places at a call: arguments, parts of them, and containers that hold some.

If nothing but dead places refers to a container in a dead place, its own items are dead places, too. The quick look
(`walk`) remembers what stood where, and compares it by identity at the next call.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytc.classes import MADE_BY_CODE, are_of, defines, flags_of, has_dictionary, may_be_referred_to_weakly
from pytc.ownership.cpython.facts import Fact
from pytc.ownership.cpython.interpreter import getrefcount, may_share_attributes, share_attributes
from pytc.ownership.cpython.native import native
from pytc.ownership.references import counts
from pytc.ownership.references.counts import PLAIN

_referents = gc.get_referents
_weakrefs = weakref.getweakrefcount

_Standing = Sequence[tuple[int, int]]
"""Pairs of the number of a place, and the position, among what the walk sees, of what stands there. The callers' dead
places come first; what dead containers hold is numbered on from there."""


class _Holders(NamedTuple):
    """Containers in dead places that hold arguments, or parts of them."""

    numbers: tuple[tuple[int, ...], ...]
    """For each holder, the numbers of the places where it stands."""
    types: list[type]
    """The types of the holders."""
    expected: int
    """Reference counts of the holders, summed up. For each place there is the reference in it, and that of our list of
    places or of held objects; and for each holder that of the list of holders, and `getrefcount`'s own."""
    held: int
    """How many objects they and the holders of earlier rounds hold."""
    of_people: bool
    """Whether some are of classes that users have written: there may be weak references to these, or their `__dict__`
    may be in other hands."""


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """What stands in the callers' dead places: some of what the walk sees, and containers that hold some of it.

    What stands in all these places is compared by identity at each call, so each of them accounts for one reference
    that is really there. Whatever else is in them is left to the careful look.
    """

    count: int
    """How many dead places the callers have."""
    rounds: tuple[_Holders, ...]
    """The containers to open: first those in the callers' dead places, then those in these containers, and so on."""
    arguments: _Standing
    """Which arguments stand in the callers' dead places."""
    standing: tuple[_Standing, ...]
    """What else of the walk stands in some place: its containers, level by level, and last the arrays."""
    references: tuple[int, ...]
    """On each level, how many references to what stands in places come from there: for each place the one in it, and
    that of our list of places, or of held objects."""
    classes: dict[int, type]
    """Those classes of the containers to open that users have written, by id."""

    @classmethod
    def of(cls, places: list[Any], seen: list[Any], roots: int, where: Sequence[tuple[int, ...]]) -> Placed:
        """What stands where at this call. The first `roots` objects of `seen` are the arguments; it may have no others,
        if only these need to be looked for. `where` are the positions that matter, in the order of `standing`."""
        known = {id(seen[k]): (level, k) for level, at in enumerate(where) for k in at if k < len(seen)}
        values = list(places)
        rounds: list[_Holders] = []
        start, opened = 0, set(known)
        while len(rounds) < _DEEPEST:
            found: dict[int, list[int]] = {}
            for number in range(start, len(values)):
                if id(values[number]) not in opened and _leads_to(values[number], known):
                    found.setdefault(id(values[number]), []).append(number)
            opened |= found.keys()
            # In one that others refer to, too, nothing is dead. References: `nodes` and `getrefcount`'s argument; and
            # for each number `values`, and a place with its list, or what holds it.
            nodes = [values[numbers[0]] for numbers in found.values()]
            for key, count in zip([*found], map(getrefcount, nodes), strict=True):
                if count != 2 + sum(2 + (number < len(places)) for number in found[key]):
                    del found[key]
            if not found:
                break
            nodes = [values[numbers[0]] for numbers in found.values()]
            expected = sum(2 * len(numbers) + 2 for numbers in found.values())
            start = len(values)
            values += _referents(*nodes)
            held = len(values) - len(places)
            types = [*map(type, nodes)]
            of_people = not PLAIN.issuperset(map(id, types))
            rounds.append(_Holders(tuple(map(tuple, found.values())), types, expected, held, of_people))
        arguments: list[tuple[int, int]] = []
        standing: list[list[tuple[int, int]]] = [[] for _ in where]
        references = [0] * len(where)
        for number, value in enumerate(values):
            if id(value) in known:
                level, k = known[id(value)]
                (arguments if number < len(places) and k < roots else standing[level]).append((number, k))
                references[level] += 2
        classes = {id(kind): kind for holders in rounds for kind in holders.types if id(kind) not in PLAIN}
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
        """Open the dead containers: append what they hold to `held`, and return them, with their counted references.
        None if anything is different from before."""
        opened: list[tuple[Sequence[Any], int]] = []
        for holders in self.rounds:
            nodes = [_at(numbers[0], places, held) for numbers in holders.numbers]
            for k, numbers in enumerate(holders.numbers):
                if any(_at(number, places, held) is not nodes[k] for number in numbers[1:]):
                    return None
            if not are_of(nodes, holders.types):
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


UNKNOWN = Placed(-1, (), (), (), (), {})
_DEEPEST = 3
_MOST_HELD = 64
"""Containers larger than that, or deeper down, are for the careful look."""


def _at(number: int, places: list[Any], held: list[Any]) -> Any:
    """What stands in the place of this number: `places` has the first ones, `held` those after."""
    return places[number] if number < len(places) else held[number - len(places)]


def stand(standing: _Standing, places: list[Any], held: list[Any], seen: list[Any]) -> bool:
    """Whether everything in `standing` is still where it was."""
    return all(_at(number, places, held) is seen[position] for number, position in standing)


def _leads_to(value: Any, known: Mapping[int, Any], depth: int = _DEEPEST) -> bool:
    """Whether the value has something of `known` (by id) in it: if it is a plain container, or an object of a class
    that users have written, and not too large."""
    kind = type(value)
    if not (depth and (is_plain(kind) or (flags_of(kind) & MADE_BY_CODE and counts.opens(value)))):
        return False
    parts = _referents(value)
    return len(parts) <= _MOST_HELD and any(id(part) in known or _leads_to(part, known, depth - 1) for part in parts)


def is_plain(kind: type) -> bool:
    """Whether what an object of this type refers to is its items, and its keys: all that it takes to open it is that
    nobody else refers to it."""
    return id(kind) in PLAIN or _is_plain_tuple(kind)


_is_plain_tuple = Fact(
    lambda kind: (
        issubclass(kind, tuple)
        and native(kind) is tuple
        and not has_dictionary(kind)
        and not may_be_referred_to_weakly(kind)
        and not defines(kind, "__del__")
    )
)
