"""The callers' frames at one call, and the dead places in them.

`levels` yields all dead places of the frame that called (its dead locals, the slots that its next instructions
overwrite, what its loops and starred calls keep), then those of its caller, and so on for as long as `look` asks for
one more frame. The places that held arguments are remembered with the call site as a `Route`; at the next call `follow`
looks at these alone. Both go the same way, frame by frame, and check for each whether others may read its variables:
what is said of a frame in one has its counterpart in the other.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from types import FrameType
from typing import Any, Literal

from pytc.ownership.arrays.walk import Walk
from pytc.ownership.bytecode.analysed import NotTrusted, flow_of
from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.bytecode.lengths import Lengths
from pytc.ownership.bytecode.stack import HIGHEST
from pytc.ownership.call import Call
from pytc.ownership.cpython.interpreter import UNBOUND, getrefcount, variable, waits_for_c
from pytc.ownership.frames import IN_SOME_WAY, dead_locals, looked_up, own, unread_in, waiting
from pytc.ownership.others.watchers import Onlookers, onlookers
from pytc.ownership.outcome import Outcome
from pytc.ownership.references import loops
from pytc.ownership.references.counts import in_one_list
from pytc.ownership.references.starred import kept_by
from pytc.ownership.slots import Slots


@dataclasses.dataclass(frozen=True)
class Level:
    """The dead places in one frame that held arguments or parts of them."""

    locals: tuple[int, ...]
    """Local variables, by number, also in cells."""
    loops: tuple[int, ...]
    """Iterators of loops, by their positions on the stack."""
    starred: bool
    """Whether what its starred call keeps is among these places."""
    slots: bool
    """Whether slots are among them."""
    containers: tuple[int, ...] = ()
    """Fast locals, by number, whose dictionary, list or tuple has some that nobody reads again."""


Route = tuple[Level, ...]
"""One level for each frame, from the frame that called upwards."""
_MOST_HINTS = 64
"""How many callers' routes are remembered with a call site."""


def remember(route: Route, site: CallSite, frame: FrameType) -> None:
    """Remember `route` for the next call from `site`, that of `frame`, by the same callers; also in short form if it
    names nothing but local variables of the frame that called, and nothing else can read these."""
    site.hinted_locals = None
    if len(route) - 1 > site.above:
        site.hints, site.above = {}, len(route) - 1
    site.latest = route
    site.hints[_above(frame, site.above)] = route
    if len(site.hints) > _MOST_HINTS:
        site.hints = dict([*site.hints.items()][1:])  # anew: another thread may be about to read it
    alone = not route or route == (Level(route[0].locals, (), starred=False, slots=False),)
    if alone and not site.above and not site.refusal and not site.is_read_by_handlers:
        site.hinted_locals = tuple(number for level in route for number in level.locals)
        site.hints_cells = any(flow_of(frame.f_code).cells >> number & 1 for number in site.hinted_locals)


def _above(frame: FrameType, most: int) -> tuple[tuple[int, int], ...]:
    """Where that many frames above this one are: the ids of their code, and the instructions. (An id may by now be that
    of other code. A hint only says where to look: what is found there is counted, and asked whether it is dead.)"""
    places: list[tuple[int, int]] = []
    above: FrameType | None = frame
    while len(places) < most and above is not None and (above := above.f_back) is not None:
        places.append((id(above.f_code), above.f_lasti))
    return tuple(places)


def _standing(
    frame: FrameType,
    site: CallSite,
    level: Level,
    dead: Set[int],
    calls_compiled: bool,
    atomic: bool,
    lengths: Lengths,
) -> list[Any]:
    """What stands in those `dead` variables of a frame, and in containers that others have, that a route names."""
    found: list[Any] = []
    for number in level.locals:
        # The route belongs to the innermost site; the frames above may be at other instructions this time.
        if number in dead and (value := own(frame, number)) is not UNBOUND:
            found.append(value)  # noqa: PERF401 - a loop is faster where there are one or two
    for number in level.containers:
        found += unread_in(frame, site, number, calls_compiled, atomic, lengths)
    return found


def follow(
    call: Call, known: CallSite, depth: int, outcome: Outcome, walk: Walk | None
) -> tuple[list[Any], Slots | None]:
    """The values of the dead places that the hint of `known`, the site of the caller's frame, names for these callers,
    or the latest one if it has none for them; and the `Slots`, if slots are among these places. The caller's frame is
    `depth` frames above that of the function which calls this one.

    The `Slots` have not examined the end of those arguments that `walk` is about; the walk must do that. Raises
    `NotTrusted` if the places cannot be relied on at this call, and `LookupError` if the call has no such arguments.
    """
    found: list[Any] = []
    frame = call.frame
    hinted = known.hinted_locals  # read once: another thread may change it at any moment
    if hinted is not None:
        # As in `looked_up`: nobody else may have the frame. That does not matter if no place is relied on.
        if hinted and getrefcount(frame) != 4:
            raise NotTrusted
        read = own if known.hints_cells else variable
        for number in hinted:
            if (value := read(frame, number)) is not UNBOUND:
                found.append(value)  # noqa: PERF401 - a comprehension would be another frame
        return found, None
    # Who comes by more ways than are remembered (a recursion) has mostly the same variables in each.
    route: Route = known.hints.get(_above(frame, known.above), known.latest)
    left: list[loops.Left] = []
    below = sys._getframe(depth)
    references = 2  # the call, and the variable here
    atomic, lengths = outcome.atomic, outcome.lengths
    overwritten = None
    if True in [level.slots for level in route]:
        who = onlookers(outcome, outcome.made)
        walked = walk.arguments(call.args, call.kwargs) if walk is not None else ()
        overwritten = slots_of(call, who, outcome, walked)
        overwritten.call(below, 1 + waits_for_c(frame))
        del walked
    reader = ""
    for level in route:
        site, readable = looked_up(frame, references)
        readable = reader = reader or readable  # whoever has a frame has those above it, by `f_back`
        # How the frame waits matters to slots, to what is on the stack, to handlers, and to the frames above.
        waits = (
            overwritten is not None or level.starred or level.containers or site.is_read_by_handlers or len(route) > 1
        )
        given = call.args if level is route[0] else ()
        way = waiting(frame, site, below, readable, given, atomic, lengths) if waits else IN_SOME_WAY
        starred, at_once, atomic, lengths = way
        asked = not readable and (level.locals or level.loops or site.cells)
        dead = dead_locals(frame, site, level is route[0], atomic, lengths) if asked else frozenset[int]()
        if overwritten is not None:  # first, because it counts the references to what the frame has, as loops do next
            quietly = at_once and (starred is None or level is route[0])
            overwritten.add(frame, site, lengths, quietly, found, bool(readable), atomic, site.cells & dead)
            if level is not route[-1]:
                overwritten.leave(frame, site)
        if level.loops and not readable:
            left += loops.handed_out(frame, {*level.loops}.intersection(site.iterators), dead)
        if not readable:
            found += _standing(frame, site, level, dead, level is route[0], atomic, lengths)
        if level.starred and starred is not None:
            found += kept_by(frame, starred)
        if level is route[-1]:
            break
        atomic = atomic and site.passes_on(lengths)
        lengths = site.returned(lengths)
        above = frame.f_back
        if above is None:
            break
        below, frame, references = frame, above, 1
        del above
    if overwritten is not None:
        found += overwritten.values
        overwritten.values.clear()
    found += [each.value for each in loops.dead(left, found)] if left else ()
    return found, overwritten


def slots_of(call: Call, who: Onlookers, outcome: Outcome, walked: Iterable[Any] = ()) -> Slots:
    """The `Slots` of a call, with no frame added yet.

    Among the roots are the names of keyword arguments, which may be of a user's class derived from `str`, and those of
    the `leaves` that a custom node's `tree_flatten` has made for this call: all of these die with the arguments.
    """
    roots = [*call.args, *call.kwargs, *call.kwargs.values()]
    roots += in_one_list(call.leaves)
    return Slots(roots, who, outcome.classes, walked, outcome.static, outcome.unchanging)


@dataclasses.dataclass
class Found:
    """One dead place and its value."""

    level: int
    """How many frames above the one that called."""
    kind: Literal["local", "field", "loop", "starred", "slot"]
    value: Any
    number: int = -1
    """The number of the local variable, for a field the one that has the container, or the stack position of the loop's
    iterator."""
    left: loops.Left | None = None
    """For a loop: the input of `loops.dead`, which decides once all other places are known."""


def levels(
    call: Call,
    depth: int,
    slots: Slots,
    outcome: Outcome,
    places: Sequence[Any],
    refusals: list[str],
) -> Iterator[list[Found]]:
    """The dead places of each frame, from the caller's upwards; ends at a frame that cannot be analysed. The caller's
    frame is `depth` frames above that of the function which asks for them.

    Fills `slots`; and `refusals`, with the reasons why a frame's variables, or all slots, do not count as dead.
    `places` is the caller's list of values found so far, whose references the counts allow for. (This is a generator
    function rather than a class, so that it is known how many variables refer to the frame.)
    """
    frame, below = call.frame, sys._getframe(depth)
    references = 2  # the call, and the variable here
    atomic, lengths = outcome.atomic, outcome.lengths
    slots.call(below, 1 + waits_for_c(frame))
    if slots.onlooker:
        refusals.append(slots.onlooker)
    reader = ""
    for level in range(HIGHEST):
        try:
            site, readable = looked_up(frame, references)
        except NotTrusted as why:
            refusals.append(str(why))
            slots.forget()
            return
        readable = reader = reader or readable  # whoever has a frame has those above it, by `f_back`
        if readable:
            refusals.append(readable)
        given = call.args if level == 0 else ()
        starred, at_once, atomic, lengths = waiting(frame, site, below, readable, given, atomic, lengths)
        known = len(slots.values)
        # First, because it counts the references to what the frame has, as loops do next. What a helper's starred call
        # keeps dies before the store and is not examined, so from such a helper upwards no slot is dead.
        quietly = at_once and (starred is None or level == 0)
        dead = frozenset[int]() if readable else dead_locals(frame, site, level == 0, atomic, lengths)
        slots.add(frame, site, lengths, quietly, places, bool(readable), atomic, site.cells & dead)
        slots.leave(frame, site)
        if slots.onlooker not in ("", *refusals):
            refusals.append(slots.onlooker)
        left = [] if readable else loops.handed_out(frame, site.iterators, dead)
        found = [Found(level, "loop", each.value, each.position, each) for each in left]
        left.clear()
        if not readable:
            for number in range(len(frame.f_code.co_varnames)):
                inside = [] if number in dead else unread_in(frame, site, number, level == 0, atomic, lengths)
                found += [Found(level, "field", value, number) for value in inside]
                inside.clear()
        found += [
            Found(level, "local", value, number) for number in dead if (value := own(frame, number)) is not UNBOUND
        ]
        if starred is not None:
            found += [Found(level, "starred", value) for value in kept_by(frame, starred)]
        atomic = atomic and site.passes_on(lengths)
        lengths = site.returned(lengths)
        found += [Found(level, "slot", value) for value in slots.values[known:]]
        value = None
        yield found
        above = frame.f_back
        if above is None:
            return
        below, frame, references = frame, above, 1
        del above
