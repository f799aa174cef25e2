"""Which arguments will be the same at the next call: those in whose place no result comes.

In `params, loss = step(params, target, batch)` the next parameters are a result of this call, and the target stays.
Both may be one array now, as they often are at the first call. Then its memory is not free, but at the next one it is.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from types import FrameType
from typing import Any

from jax.tree_util import tree_leaves

from pytc.ownership.bytecode.events import Place
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.sites import NotTrusted, flow_of, site_of
from pytc.ownership.bytecode.stack import HIGHEST_READ
from pytc.ownership.bytecode.symbolic import loaded, passed
from pytc.ownership.guesses.repeats import loop_around


def staying(
    frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]
) -> frozenset[int] | None:
    """The leaves (numbers) of arguments that will be the same at the next call, if the result of this one, or a part of
    it, is stored where the call has loaded something from; None if it is not, or that cannot be told."""
    same = fed_back(frame)
    if same is None:
        return None
    found = [numbers for key, numbers in _by_argument(args, kwargs, leaves).items() if key in same]
    return frozenset[int]().union(*found)


def twins(
    frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]
) -> dict[Place, frozenset[int]]:
    """By the place that an argument has come from: leaves that are one array with leaves of it, but have come from
    elsewhere. What is there now is not there for them."""
    try:
        places = passed(flow_of(frame.f_code), site_of(frame).at)
    except NotTrusted:
        return {}
    of_place: dict[Place, set[int]] = {}
    for key, numbers in _by_argument(args, kwargs, leaves).items():
        if key in places:
            of_place.setdefault(places[key], set()).update(numbers)
    by_array: dict[int, set[int]] = {}
    for i, leaf in enumerate(leaves):
        by_array.setdefault(id(leaf), set()).add(i)
    alike = {place: set[int]().union(*(by_array[id(leaves[i])] for i in own)) for place, own in of_place.items()}
    return {place: frozenset(alike[place] - own) for place, own in of_place.items()}


def _by_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]
) -> dict[int | str, frozenset[int]]:
    """The leaves of each argument, by position (-1 is the last one) or keyword. Nothing where some are static, which
    are one leaf each, whatever they are."""
    given: dict[int | str, Any] = {**dict(enumerate(args, -len(args))), **dict(sorted(kwargs.items()))}
    found: dict[int | str, frozenset[int]] = {}
    end = 0
    for key, argument in given.items():
        start, end = end, end + len(tree_leaves(argument))
        found[key] = frozenset(range(start, end))
    return found if end == len(leaves) else {}


def fed_back(frame: FrameType) -> Set[int | str] | None:
    """The arguments, by position (-1 is the last one) or keyword, from places that nothing is stored to, if the result
    of a call, or a part of it, is stored to another place that the call has loaded something from: by the function that
    calls, or by one further up to which it is returned. None if it is not, or that cannot be told."""
    above: FrameType | None = frame
    for _ in range(HIGHEST_READ):
        if above is None:
            break
        try:
            flow, site = flow_of(above.f_code), site_of(above)
        except NotTrusted:
            break
        stored = {event.place for event in site.events if event.does == "store"}
        if not stored.isdisjoint(loaded(flow, site.at)):
            return _not_stored(flow, site.at, stored) if above is frame else frozenset()
        if not site.returns:
            break
        above = above.f_back
    return None


def _not_stored(flow: ControlFlow, at: int, stored: Set[Place]) -> Set[int | str]:
    """The arguments of a call from places that are not stored to, behind the call or each time around its loop."""
    loop = loop_around(flow, at)
    return {key for key, place in passed(flow, at).items() if place not in stored and not loop.always_stores(place)}
