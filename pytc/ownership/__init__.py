"""What is dead at a call: which leaves of the arguments nothing in the running program can read again.

Nothing sees the future of a Python program, but a call can count. All references to an object are in its reference
count. If each of them is accounted for, and the place it stands in is dead, the object is dead; a reference that
is not accounted for means: keep. So ignorance is always safe. The places are

- `args`, `kwargs` and `leaves` of this very call, and every container that only they refer to (`counts`);
- local variables of the caller, and of its callers, that are never read again (`liveness`), found by looking into
  the frame whether the object really stands there (`interpreter`);
- what C code keeps of the call until it is over (`starred`, `handed_on`);
- attributes, items, globals and cells that the next instructions overwrite (`callsite`, `slots`, `plain`).

Because what stands in a place is compared by identity, the argument does not depend on how the call came about. A
call from C (`map`, `functools.reduce`, a property) holds references of its own, which no place accounts for.

What no count shows is looked at by itself: weak references and finalisers (`counts`), two arrays on one buffer
(`buffers`), whoever watches the thread and could read any variable (`interpreter`) or may read a slot meanwhile
(`watchers`, `compared`), code that reads variables by other means than its bytecode shows (`callsite`), and who else
has hold of a frame object.

`docs/proof.md` has the whole argument, and where it gives up.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from types import FrameType
from typing import Any

import jax
from jax.tree_util import all_leaves, tree_leaves

from pytc.interrupt import is_from_outside
from pytc.ownership import buffers, collector, counts, holders, interpreter, loops
from pytc.ownership.buffers import collections_so_far, executed
from pytc.ownership.callers import (
    Found,
    Level,
    NotTrusted,
    Outcome,
    Route,
    distance,
    follow,
    known_site,
    levels,
    remember,
    site_of,
    slots_of,
)
from pytc.ownership.callsite import Site
from pytc.ownership.collector import resume as resume_collections
from pytc.ownership.holders import Held
from pytc.ownership.slots import Slots
from pytc.ownership.walk import Walk
from pytc.ownership.wanted import Wanted
from pytc.ownership.watchers import interrupter, onlookers

__all__ = [
    "Held",
    "Outcome",
    "Walk",
    "Wanted",
    "all_dead",
    "collections_so_far",
    "executed",
    "glance",
    "held",
    "is_dear",
    "reasons",
    "resume_collections",
    "survivors",
    "where",
]

UNKNOWN = Outcome()
_BARREN = 2
"""How many frames without anything of the arguments are passed over on the way up."""


def held(
    frame: FrameType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
    wanted: Wanted,
    outcome: Outcome = UNKNOWN,
) -> Collection[int]:
    """The leaves among `wanted` that are not proven dead once the call has begun; empty when all are.

    `frame` is the frame that made the call. Each frame between it and this function refers to `frame` by exactly
    one variable, and nothing but `args`, `kwargs` and `leaves` refers to the arguments. `wanted` is one and the same
    object for leaves of the same shapes and dtypes only.
    """
    if not wanted or interpreter.refusal or interpreter.observer() or is_dear(wanted):
        return wanted
    references = distance(frame, 1)
    site = known_site((id(frame.f_code), frame.f_lasti))
    if site is not None and site.hint is not None:
        try:
            walk = wanted.walk  # a finaliser that runs before slots are counted may itself make a call, and change it
            places, slots = follow(site, frame, references, args, kwargs, outcome, walk)
            if _all_dead(args, kwargs, places, slots, leaves, wanted, walk, site):
                return ()
            del places
        except (NotTrusted, LookupError) as error:
            if is_from_outside(error):
                raise
    look = _look(frame, references + 1, args, kwargs, leaves, outcome)
    kept = look.held(wanted)
    if site is None:
        site = site_of(frame)
    remember(look.route(), site)
    site.executions = max(1, min(2 * site.executions, buffers.remembered()))
    return kept


def all_dead(
    frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any], walk: Walk, outcome: Outcome = UNKNOWN
) -> bool:
    """Whether every array of those arguments that `walk` is of is proven dead once the call has begun, provided that
    they have the tree that it was made for. Where it says no, `held` looks more closely.

    As for `held`, but that no list of leaves refers to the arguments, and that `frame` is three up.
    """
    site = known_site((id(frame.f_code), frame.f_lasti))
    if site is None or site.hint is None or interpreter.refusal or interpreter.observer():
        return False
    if sys._getframe(3) is not frame:
        return False
    try:
        places, slots = follow(site, frame, 3, args, kwargs, outcome, walk)
        ending = slots.die_quietly if slots is not None else None
        inside = walk.all_inside(args, kwargs, places, site.executions, ending=ending)
        return inside is not None and (not inside[1] or _on_their_own(*inside, walk))
    except (NotTrusted, LookupError) as error:
        if is_from_outside(error):
            raise
        return False


def is_dear(wanted: Wanted) -> bool:
    """Whether so many arrays are alive that to look at them takes longer than to copy those that are `wanted`."""
    return wanted.nbytes is not None and buffers.are_too_many(len(wanted), wanted.nbytes)


def _on_their_own(leaves: Sequence[Any], others: Sequence[Any], known: Wanted | Walk) -> bool:
    """Whether none of `others` is on a buffer of the leaves."""
    if not others:
        return True
    # The shapes are those of the program, but how they are cut into shards is for the arrays of this call to say.
    placed = [leaf.sharding for leaf in leaves] if buffers.may_be_cut() else []
    kinds = known.kinds  # another thread may remember others at any moment
    if kinds is None or kinds.placed != placed:
        kinds = buffers.Kinds(placed, frozenset(kind for leaf in leaves for kind in buffers.kinds_of(leaf)))
        known.kinds = kinds
    return not buffers.shares_with_any(leaves, others, kinds.alike)


def _all_dead(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    places: list[Any],
    slots: Slots | None,
    leaves: Sequence[Any],
    wanted: Wanted,
    walk: Walk | None,
    site: Site,
) -> bool:
    """Whether the places account for every reference, and the leaves are known to be on buffers of their own; and, if
    there are slots among the places, whether no code runs when the arguments die that `walk` is of."""
    lists = 1
    if len(leaves) != len(wanted):
        leaves, lists = wanted.take(leaves), 2
    if walk is not None:
        ending = slots.die_quietly if slots is not None else None
        try:
            inside = walk.all_inside(args, kwargs, places, site.executions, leaves, lists, ending)
        except LookupError as error:
            if is_from_outside(error):
                raise
            inside = None
        if inside is not None:
            return _on_their_own(*inside, wanted)
        if slots is not None and not slots.end_quietly(walk.arguments(args, kwargs)):
            return False
    if counts.weakly_referenced(leaves):
        return False
    unshared = buffers.fresh(site.executions).arrays
    if not counts.remainder(args, kwargs, places, leaves, lists, unshared):
        # To look for the way flattens the arguments again, by code that may be people's own. So everything is looked at
        # once more, and the arrays that this code may have made among the rest.
        sought = wanted.seek(leaves, args, kwargs)
        if sought and (
            counts.weakly_referenced(leaves) or counts.remainder(args, kwargs, places, leaves, lists, unshared)
        ):
            return False
        del unshared
        return _on_their_own(leaves, buffers.fresh(site.executions).others, wanted)
    del unshared
    if counts.remainder(args, kwargs, places, leaves, lists, list(leaves)):
        if walk is None:
            wanted.seek(leaves, args, kwargs)  # it may account for more the next time
        return False
    # Everything is accounted for, but not all of it came out of executions that are remembered.
    site.executions = max(1, min(2 * site.executions, buffers.remembered()))
    return buffers.alone(leaves)


def _look(
    frame: FrameType,
    references: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
    outcome: Outcome,
) -> _Look:
    """Look everywhere."""
    onlooker = onlookers(outcome.calls_python, outcome.atomic)
    slots = slots_of(args, kwargs, onlooker, outcome)
    look = _Look(args, kwargs, leaves)
    for found in levels(frame, references, args, slots, outcome, look.places, look.refusals):
        if not look.add(found):
            break
    slots.values.clear()
    look.settle(args, kwargs)
    return look


class _Look:
    """The careful look at one call."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]):
        self.leaves = leaves
        # By id: while frames are looked at, nothing of ours may refer to what is in the arguments.
        self.parts = counts.Census.of(args, kwargs, leaves).found()
        self.census: counts.Census
        self.used: list[Found] = []
        self.places: list[Any] = []
        self.left: list[Found] = []
        """In loops."""
        self.refusals: list[str] = []
        self.shared: set[int] = set()
        self.barren = 0

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

    def settle(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count, now that the places are known, and so what iterators have left in dead places."""
        dead = loops.dead([place.left for place in self.left if place.left is not None], self.places)
        found = set(map(id, dead))
        self.used += [place for place in self.left if id(place.left) in found]
        self.places += [left.value for left in dead]
        for place in self.left:
            place.left = None
        del dead
        self.census = counts.Census.of(args, kwargs, self.leaves)
        self.census.add(self.places)
        self.census.settle()

    def held(self, wanted: Sequence[int]) -> list[int]:
        if not self.census.stands():
            return list(wanted)
        inside = [i for i in wanted if self.census.is_inside(id(self.leaves[i]))]
        shared = buffers.shared([self.leaves[i] for i in inside])
        self.shared = {i for i, is_shared in zip(inside, shared, strict=True) if is_shared}
        dead = set(inside) - self.shared
        return [i for i in wanted if i not in dead]

    def route(self) -> Route:
        depth = max((place.level for place in self.used), default=-1)
        return tuple(self._level(level) for level in range(depth + 1))

    def _level(self, level: int) -> Level:
        used = [(place.kind, place.number) for place in self.used if place.level == level]
        kinds = {kind for kind, _ in used}
        return Level(
            tuple(number for kind, number in used if kind == "local"),
            tuple(dict.fromkeys(number for kind, number in used if kind == "loop")),
            "kept" in kinds,
            "slot" in kinds,
        )


def survivors(frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]) -> frozenset[int]:
    """The leaves (indices) that outlive the call for reasons that its site alone shows, without counting.

    `params` in `grads = grad_fn(params, batch)` where the variable is read later; an attribute that the next
    instructions do not overwrite. A leaf that is held for reasons that may differ at the next call is not among them.
    For deciding what to compile at the first call; nothing is proven by it.
    """
    if holders.explain_interpreter() is not None:
        return frozenset()
    numbers: dict[int, frozenset[int]] = {}
    for i, leaf in enumerate(leaves):
        numbers[id(leaf)] = numbers.get(id(leaf), frozenset()) | {i}
    roots = [*args, *kwargs.values()]
    parts = dict(numbers)
    for value in _nodes(roots):
        parts[id(value)] = frozenset().union(*(numbers.get(id(leaf), frozenset()) for leaf in tree_leaves(value)))
    arrays = frozenset(i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array))
    return holders.surviving(frame, roots, parts) & arrays


def _nodes(roots: Sequence[Any]) -> list[Any]:
    """The containers of the arguments, as far down as plain containers go."""
    nodes = []
    ahead = list(roots)
    while ahead:
        value = ahead.pop()
        if not all_leaves([value]):
            nodes.append(value)
            if type(value) in (tuple, list, dict):
                ahead.extend(value.values() if type(value) is dict else value)
    return nodes


def reasons(
    frame: FrameType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
    wanted: Sequence[int],
    outcome: Outcome = UNKNOWN,
) -> dict[int, Held]:
    """For each leaf of `wanted` that is not proven dead, what holds it. Slow; for messages to people."""
    everywhere = holders.explain_interpreter()
    if everywhere is not None:
        return dict.fromkeys(wanted, everywhere)
    paused = collector.PAUSED[0]
    look = _look(frame, distance(frame, 1) + 1, args, kwargs, leaves, outcome)
    if not paused:
        collector.resume()
    kept = look.held(wanted)
    roots = [*args, *kwargs.values()]
    ours = {id(args), id(kwargs), id(leaves), id(look.places), id(roots), *look.census.tables()}
    return {
        i: Held("buffer", "another array on the same buffer")
        if i in look.shared
        else _reason(leaves[i], frame, look, roots, ours)
        for i in kept
    }


def _reason(leaf: Any, frame: FrameType, look: _Look, roots: list[Any], ours: set[int]) -> Held:
    path = holders.path_to(leaf, roots)
    ours = ours | {id(path)}
    for value in path:
        if look.census.is_open(id(value)) and not holders.oddity(value):
            continue  # everything that refers to it is accounted for
        if (odd := holders.oddity(value)) is not None:
            return odd
        found = holders.in_variables(frame, value) or holders.in_objects(
            value, ours | holders.letting_go(frame, value) | set(map(id, path)), holders.sources(frame)
        )
        if found is not None or (found := holders.in_threads(value)) is not None:
            return holders.lasting(found, frame, look.refusals)
        if (named := holders.in_handlers(frame, value)) and (who := interrupter()):
            return Held("thread", f"{named}: {who}, may raise an exception in the midst of the call")
        break
    if look.refusals:
        return Held("introspection", look.refusals[0])
    return Held("unknown", "code written in C (an iterator, `map`, a sort key, ...), or a suspended function")


def glance(
    frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any], wanted: Sequence[int]
) -> dict[int, Held]:
    """For each leaf of `wanted`, what holds it as far as the callers' variables and the code of the call show. Quick,
    unlike `reasons`, which looks at every object there is; what is not seen so is left out."""
    everywhere = holders.explain_interpreter()
    if everywhere is not None:
        return dict.fromkeys(wanted, everywhere)
    roots = [*args, *kwargs.values()]
    found: dict[int, Held] = {}
    for i in wanted:
        for value in holders.path_to(leaves[i], roots):
            held = holders.in_variables(frame, value) or holders.in_members(frame, value, roots)
            if held is not None:
                found[i] = holders.lasting(held, frame, ())
                break
    return found


def where(frame: FrameType) -> str:
    """The call site as people write it: `train.py:57`."""
    return holders.place_in(frame, None)
