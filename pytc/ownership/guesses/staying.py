"""Where arguments come from, and which will be the same at the next call: those in whose place no result comes; and
which will be a result.

In `params, loss = step(params, target, batch)` the next parameters are a result of this call, and the target stays.
Both may be one array now, as they often are at the first call. Then its memory is not free, but at the next one it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Set
from types import FrameType
from typing import Any, NamedTuple

from jax.tree_util import tree_leaves

from pytc.arguments.leaves import StaticArgument
from pytc.interrupt import SUSPENDS
from pytc.ownership.bytecode.analysed import NotTrusted, flow_of, site_of
from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.bytecode.events import Place
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.stack import HIGHEST_READ
from pytc.ownership.bytecode.symbolic import loaded, passed
from pytc.ownership.call import Call
from pytc.ownership.guesses.loop import loop_around

Leaves = frozenset[int]


def staying(call: Call) -> Leaves | None:
    """The leaves (numbers) of arguments that will be the same at the next call, if the result of this one, or a part of
    it, is stored where the call has loaded something from; None if it is not, or that cannot be told."""
    same = fed_back(call.frame)
    if same is None:
        return None
    found = [numbers for key, numbers in _by_argument(call).items() if key in same]
    return Leaves().union(*found)


def replaced(call: Call) -> Leaves:
    """The leaves (numbers) of arguments from places to which the result of this call, or a part of it, is stored."""
    for _, site, places in _sources(call.frame):
        stored = {event.place for event in site.events if event.of_result}
        ways = {key: {place[:end] for end in range(1, len(place) + 1)} for key, place in places.items()}
        if same := {key for key, way in ways.items() if not stored.isdisjoint(way)}:
            return Leaves().union(*(numbers for key, numbers in _by_argument(call).items() if key in same))
        if not site.returns:
            break
    return Leaves()


def twins(call: Call) -> list[dict[Place, Leaves]]:
    """For each frame from the one that called upwards, by the place that an argument has come from: leaves that are one
    array with leaves of it, but have come from elsewhere. What is there now is not there for them."""
    leaves = call.leaves
    by_array: dict[int, set[int]] = {}
    for i, leaf in enumerate(leaves):
        by_array.setdefault(id(leaf), set()).add(i)
    of_arguments = _by_argument(call)
    found: list[dict[Place, Leaves]] = []
    for source in _sources(call.frame):
        own: dict[Place, set[int]] = {}
        for key, place in source.places.items():
            for end in range(1, len(place) + 1):  # what leads to it stands for it, too
                own.setdefault(place[:end], set()).update(of_arguments.get(key, ()))
        alike = {place: set[int]().union(*(by_array[id(leaves[i])] for i in mine)) for place, mine in own.items()}
        found.append({place: Leaves(alike[place] - mine) for place, mine in own.items()})
    return found


def _by_argument(call: Call) -> dict[int | str, Leaves]:
    """The leaves of each argument, by position (-1 is the last one) or keyword. A static argument is one leaf, whatever
    it is. Nothing where users' code that takes arguments apart does it another way each time."""
    leaves = call.leaves
    given: dict[int | str, Any] = {**dict(enumerate(call.args, -len(call.args))), **dict(sorted(call.kwargs.items()))}
    found: dict[int | str, Leaves] = {}
    end = 0
    for key, argument in given.items():
        is_static = end < len(leaves) and type(leaves[end]) is StaticArgument and leaves[end].value is argument
        start, end = end, end + (1 if is_static else len(tree_leaves(argument)))
        found[key] = Leaves(range(start, end))
    return found if end == len(leaves) else {}


def fed_back(frame: FrameType) -> Set[int | str] | None:
    """The arguments, by position (-1 is the last one) or keyword, from places that nothing is stored to, if the result
    of a call, or a part of it, is stored to another place that the call has loaded something from: by the function that
    calls, or by one further up to which it is returned. None if it is not, or that cannot be told."""
    for flow, site, places in _sources(frame):
        stored = {event.place for event in site.events if event.does == "store"}
        if not {event.place for event in site.events if event.of_result}.isdisjoint(loaded(flow, site.at)):
            named = stored | {place[-1:] for place in stored}
            loop = loop_around(flow, site.at)
            return {key for key, place in places.items() if place not in named and not loop.always_stores(place)}
        if not site.returns:
            break
    return None


class _Source(NamedTuple):
    """Where arguments come from, in one frame."""

    flow: ControlFlow
    site: CallSite
    places: dict[int | str, Place]
    """By argument, as far as that is told: its place; only the last step of it if a frame below has loaded it from
    something that it was passed, or from a global."""


def _sources(frame: FrameType) -> Iterator[_Source]:
    """For each frame from the one that called upwards."""
    above: FrameType | None = frame
    found: _Source | None = None
    for _ in range(HIGHEST_READ):
        if above is None:
            return
        try:
            flow, site = flow_of(above.f_code), site_of(above)
        except NotTrusted:
            return
        places = given = passed(flow, site.at)
        if found is not None:
            places = {key: _from_above(place, found.flow, given) for key, place in found.places.items()}
        found = _Source(flow, site, {key: place for key, place in places.items() if place is not None})
        yield found
        above = above.f_back


def _from_above(place: Place, below: ControlFlow, given: dict[int | str, Place | None]) -> Place | None:
    """What is at a place in a function that was called with these arguments, in the frame that called it; None if that
    is not told."""
    code, first = below.code, place[0]
    if first.kind != "fast" or len(place) > 1:
        return place[-1:] if first.kind != "cell" else None
    if first.name not in parameters(below) or len(given) not in (code.co_argcount, code.co_argcount - 1):
        return None  # one less if it is a method
    return given.get(code.co_varnames[first.name]) or given.get(first.name - code.co_argcount)


def parameters(flow: ControlFlow) -> list[int]:
    """The parameters (numbers) of a function that still have what it was called with. (Whoever resumes a generator or a
    coroutine passes it nothing.)"""
    return flow.once(_parameters)


def _parameters(flow: ControlFlow) -> list[int]:
    code = flow.code
    if code.co_flags & SUSPENDS:
        return []
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    written = functools.reduce(int.__or__, flow.writes, 0)
    return [n for n in range(code.co_argcount + code.co_kwonlyargcount + stars) if not written >> n & 1]
