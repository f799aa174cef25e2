"""The careful look at one call: every frame above it, and every dead place there that has to do with the arguments.

It takes a tenth of a millisecond and more, and says where to look the next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytc.ownership.arrays import buffers
from pytc.ownership.call import Call
from pytc.ownership.callers import Found, Level, Route, levels, slots_of
from pytc.ownership.others.watchers import onlookers
from pytc.ownership.outcome import Outcome
from pytc.ownership.references import counts, loops

_BARREN = 2
"""How many frames without anything of the arguments are passed over on the way up."""
_MADE = 1500
"""At most so many objects are made and kept as a call site is analysed, in nearly all cases; with three for each of the
result, at most so many are by the first call of a program."""


def look_everywhere(call: Call, depth: int, outcome: Outcome) -> Look:
    """Look at each frame from the caller's up, until some in a row hold nothing of the arguments, and count. The
    caller's frame is `depth` frames up."""
    who = onlookers(outcome, _MADE + 3 * outcome.made)
    slots = slots_of(call, who, outcome)
    look = Look(call)
    for found in levels(call, depth, slots, outcome, look.places, look.refusals):
        if not look.add(found):
            break
    slots.values.clear()
    look.stands = slots.stands(look.places)
    look.settle()
    return look


class Look:
    """The careful look at one call: `add` for each frame from the caller up, then `settle`, then `held`."""

    def __init__(self, call: Call):
        self._call = call
        # By id: while frames are looked at, nothing of ours may refer to what is in the arguments.
        self.parts = counts.Census.of(call).found()
        """The ids of the leaves and of all containers on the way to them."""
        self.census: counts.Census
        """The final count, from `settle` on."""
        self.used: list[Found] = []
        """Dead places that have to do with the arguments."""
        self.places: list[Any] = []
        """What stands in them."""
        self.left: list[Found] = []
        """References left in the iterators of loops, of which `settle` finds out whether they are dead."""
        self.refusals: list[str] = []
        """Why the variables of some frames, or all slots, were not relied on: for messages."""
        self.shared: set[int] = set()
        """Leaves (indices) on whose buffer another array is, from `held` on."""
        self.stands = True
        """Whether the objects of which fields are among the places are in nobody's hands."""
        self.barren = 0
        """How many frames in a row, up to the last one added, held nothing of the arguments."""

    def add(self, found: list[Found]) -> bool:
        """Take over the places of one frame that have to do with the arguments; False when it is time to stop."""
        useful = [place for place in found if counts.has_part(place.value, self.parts)]
        self.left += [place for place in useful if place.left is not None]
        gone_through = {id(place.left.container) for place in self.left if place.left is not None}
        useful_ids = set(map(id, useful))
        used = [p for p in found if p.left is None and (id(p) in useful_ids or id(p.value) in gone_through)]
        self.places += [place.value for place in used]
        self.used += used
        # A loop over a generator, or a method that was handed nothing, may stand between two that hold the object.
        self.barren = 0 if useful else self.barren + 1
        for place in found:
            place.value = None
        return self.barren <= _BARREN

    def settle(self) -> None:
        """Count, now that all places are known: only then can it be told which containers, and so which iterators of
        loops, are dead."""
        dead = loops.dead([place.left for place in self.left if place.left is not None], self.places)
        found = set(map(id, dead))
        self.used += [place for place in self.left if id(place.left) in found]
        self.places += [left.value for left in dead]
        for place in self.left:
            place.left = None
        del dead
        self.census = counts.Census.of(self._call)
        self.census.add(self.places)
        self.census.settle()

    def held(self, wanted: Sequence[int]) -> list[int]:
        """The leaves among `wanted` that are not proven dead."""
        if not self.stands or not self.census.stands():
            return list(wanted)
        leaves = self._call.leaves
        inside = [i for i in wanted if self.census.is_inside(id(leaves[i]))]
        asked = getattr(wanted, "nbytes", None) is None  # by a person, or with `donate="require"`
        shared = buffers.shared([leaves[i] for i in inside], at_any_price=asked)
        self.shared = {i for i, is_shared in zip(inside, shared, strict=True) if is_shared}
        dead = set(inside) - self.shared
        return [i for i in wanted if i not in dead]

    def route(self) -> Route:
        """Where the dead places are that accounted for the arguments, frame by frame. The next call from the same site
        looks only there (`callers.follow`)."""
        depth = max((place.level for place in self.used), default=-1)
        return tuple(self._level(level) for level in range(depth + 1))

    def _level(self, level: int) -> Level:
        used = [(place.kind, place.number) for place in self.used if place.level == level]
        kinds = {kind for kind, _ in used}
        return Level(
            tuple(number for kind, number in used if kind == "local"),
            tuple(dict.fromkeys(number for kind, number in used if kind == "loop")),
            "starred" in kinds,
            "slot" in kinds,
            tuple(dict.fromkeys(number for kind, number in used if kind == "field")),
        )
