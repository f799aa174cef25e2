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
    found = fed_back(frame)
    if found is None:
        return None
    stay: set[int] = set()
    end = 0
    for key, argument in (*enumerate(args, -len(args)), *sorted(kwargs.items())):
        start, end = end, end + len(tree_leaves(argument))
        if key in found:
            stay.update(range(start, end))
    return frozenset(stay) if end == len(leaves) else frozenset()  # a static argument is one leaf, whatever it is


def replaced(stay: Set[int], leaves: Sequence[Any]) -> tuple[frozenset[int], frozenset[int]]:
    """Of leaves that are one array, some of which `stay`: those, and the others."""
    ids = {id(leaves[i]) for i in stay}
    others = frozenset(i for i, leaf in enumerate(leaves) if i not in stay and id(leaf) in ids)
    among = {id(leaves[i]) for i in others}
    return frozenset(i for i in stay if id(leaves[i]) in among), others


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
