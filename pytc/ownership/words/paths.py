"""The containers that lead from the arguments of a call down to its leaves: for messages, which name one of them."""

from __future__ import annotations

import gc
import types
from collections.abc import Sequence, Set
from typing import Any

from pytc.ownership.words.holders import LARGEST

_MOST = 20_000
"""So many objects are looked at for the paths to all leaves, and some more where there are many leaves."""


def paths_to(leaves: Sequence[Any], roots: Sequence[Any], ends: Set[int]) -> list[list[Any]]:
    """For each leaf, the objects on a shortest path from one of the roots down to it, both included; only the leaf if
    no path was found.

    `ends` are the ids of all leaves. No path leads through a leaf, such as a static `self`, whose `self.state` is no
    part of the arguments. What stands beside the leaves may lead to the whole program, so only some thousands of
    objects more than there can be containers of leaves are looked at.
    """
    seen, above = [*roots], [-1] * len(roots)
    # By id: where each object is in `seen`.
    places: dict[int, int] = {}
    for place, root in enumerate(roots):
        places.setdefault(id(root), place)
    missing = set(map(id, leaves)) - places.keys()
    left, at = _MOST + 4 * len(ends), 0
    while missing and at < len(seen):
        parts = gc.get_referents(seen[at]) if _leads_on(seen[at], ends) else []
        left -= len(parts)
        if left < 0:
            break
        for part in parts:
            if id(part) not in places and (id(part) in ends or gc.is_tracked(part)):
                places[id(part)] = len(seen)
                seen.append(part)
                above.append(at)
        missing.difference_update(map(id, parts))
        at += 1
    return [_path(places[id(leaf)], seen, above) if id(leaf) in places else [leaf] for leaf in leaves]


def _leads_on(value: Any, ends: Set[int]) -> bool:
    """Whether a path may go on after the value. It may not after one with more items than there are leaves, and some
    thousands: that is not a container of leaves."""
    if id(value) in ends or not gc.is_tracked(value):
        return False
    if isinstance(value, type | types.FunctionType | types.ModuleType):
        return False
    return type(value) not in (list, tuple, dict) or len(value) <= LARGEST + len(ends)


def _path(place: int, seen: Sequence[Any], above: Sequence[int]) -> list[Any]:
    """What leads to the object at a place of `seen`, if `above` tells of each where that is by which it was found."""
    path = []
    while place >= 0:
        path.append(seen[place])
        place = above[place]
    return path[::-1]
