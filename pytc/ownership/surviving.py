"""Which leaves live on after a call, as far as the callers' code shows.

A plan does not take these over, so that they need not be copied at each call. It is a guess and no part of the proof: a
leaf that is wrongly left out is kept, and one that is wrongly taken over is copied.
"""

from __future__ import annotations

import types
from collections.abc import Sequence, Set
from types import FrameType
from typing import Any

from pytc.ownership.callers import NotTrusted, flow_of, site_of
from pytc.ownership.interpreter import contents, getrefcount, variable
from pytc.ownership.slots import Slots
from pytc.ownership.symbolic import Place, loaded

_HIGHEST = 16  # frames up the stack that are looked at


def surviving(frame: FrameType, roots: Sequence[Any], parts: dict[int, frozenset[int]]) -> frozenset[int]:
    """The leaves that are still held after the call, as far as the code shows: by variables that are read later, and by
    attributes, items, globals and cells that are not overwritten at once. `parts` has the leaves in each object of the
    arguments, by id."""
    everything = frozenset().union(*parts.values()) if parts else frozenset()
    survive: frozenset[int] = frozenset()
    read: dict[tuple[int, Any], frozenset[int]] = {}
    """Slots that a function on the way reads, and that its callers, as far as is known, do not overwrite."""
    above: FrameType | None = frame
    straight = True
    for level in range(_HIGHEST):
        if above is None:
            break
        try:
            flow, site = flow_of(above.f_code), site_of(above)
        except NotTrusted:
            return everything
        if site.refusal and level > 0:
            break
        related = level == 0
        overwritten = {event.place for event in site.events if event.does == "store"} if straight else set()
        dead = site.dead(True, site.unpacks) | {
            place[0].name for place in overwritten if len(place) == 1 and place[0].kind == "fast"
        }
        slots = Slots(roots, "")
        # What overwritten items hold is released, even if their list or dictionary is read later.
        released: frozenset[int] = frozenset()
        for place in overwritten:
            slot, value = slots.slot(above, place)
            read.pop(slot, None)
            if len(place) > 1:
                released |= _leaves_in(value, parts)
        for number in range(len(above.f_code.co_varnames)):
            value = variable(above, number)
            has = _leaves_in(value, parts)
            related = related or bool(has)
            if number not in dead:
                survive |= has - released
        for place in loaded(flow, site.at):
            if place not in overwritten and _outlives(slots, above, place, dead):
                slot, value = slots.slot(above, place)
                read[slot] = _leaves_in(value, parts) - released
        if not related:
            break
        straight = straight and site.returns
        above = above.f_back
    return survive.union(*read.values())


def _outlives(slots: Slots, frame: FrameType, place: Place, dead: Set[Any]) -> bool:
    """Whether a place that the call loads may still hold its value after the call. A variable does not (`surviving`
    looks at variables itself); nor does an attribute or item of an object that only a `dead` variable holds."""
    if place[0].kind != "fast":
        return True
    if place[0].name not in dead:
        return len(place) > 1
    for end in range(1, len(place)):
        owner = slots.peek(frame, place[:end])
        if getrefcount(owner) != 3:  # what leads to it, the variable `owner`, and `getrefcount`'s argument
            return True
    return False


def _leaves_in(value: Any, parts: dict[int, frozenset[int]], depth: int = 3) -> frozenset[int]:
    """The leaves of the arguments that the value is, or that plain containers in it hold down to `depth`."""
    has = parts.get(id(value))
    if has is not None:
        return has
    if type(value) is types.CellType:
        return _leaves_in(contents(value), parts, depth)
    if depth == 0 or type(value) not in (tuple, list, dict) or len(value) > 256:
        return frozenset()
    inner = value.values() if type(value) is dict else value
    return frozenset().union(*(_leaves_in(part, parts, depth - 1) for part in inner))
