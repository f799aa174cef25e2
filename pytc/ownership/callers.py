"""The callers' frames at one call, and the dead places in them.

`levels` looks everywhere: at every dead local of the frame that called, at what its next instructions overwrite, and so
on up the stack, for as long as its caller (`look`) asks for one more frame. What accounted for the arguments is
remembered with the call site as a `Route`, and `follow` looks at just these places at the next call. Both find out on
the way whether others may read the variables of a frame.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

from pytc.ownership import loops
from pytc.ownership.callsite import Site
from pytc.ownership.interpreter import UNBOUND, calls_directly, getrefcount, variable, waits_for_c
from pytc.ownership.liveness import Flow, Unknown
from pytc.ownership.slots import Slots
from pytc.ownership.stack import Starred
from pytc.ownership.starred import called_from_the_stack, kept_by
from pytc.ownership.walk import Walk
from pytc.ownership.watchers import interrupter, interruptible, onlookers

_HIGHEST = 32  # frames up the stack that are looked at


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is known beforehand of the call that is about to happen."""

    calls_python: bool = True
    """Whether the program may call back into Python while it runs."""
    length: int | None = None
    """The length of the result, where it is a tuple or a list; None where that is not known."""
    atomic: bool = False
    """Whether a call that raises, whatever it raises and an interrupt included, has donated nothing."""
    classes: tuple[type, ...] | None = None
    """The classes of the containers in the result, if they are known."""
    static: tuple[Any, ...] = dataclasses.field(default=(), compare=False)
    """Objects that the compiled function holds, and that may also be in its arguments: what is static there."""


@dataclasses.dataclass(frozen=True)
class Level:
    """The dead places in one frame that accounted for some of the arguments."""

    locals: tuple[int, ...]
    """Fast locals, by number."""
    loops: tuple[int, ...]
    """Iterators of loops, by their positions on the stack."""
    starred: bool
    """Whether what its starred call keeps is among them."""
    slots: bool
    """Whether slots are."""


Route = tuple[Level, ...]
"""From the frame that called on up."""


class NotTrusted(Exception):
    """The bytecode of a frame cannot be analysed; the message says why."""


# By the ids of code objects. An entry is removed when its code dies; but not if the stack is full or a signal handler
# raises just then, and the id may be used anew. So each entry also says whose it is, and that is compared.
_sites: dict[tuple[int, int], Site] = {}
_flows: dict[int, tuple[weakref.ref[CodeType], Flow | str]] = {}


def flow_of(code: CodeType) -> Flow:
    """The analysis of a code object, made once and forgotten with it. Raises `NotTrusted` if it cannot be made."""
    key = id(code)
    known = _flows.get(key)
    if known is None or known[0]() is not code:
        # The dictionaries as defaults: this also runs when the interpreter ends, and this module's names are gone.
        def forget(_: object, flows: dict[int, Any] = _flows, sites: dict[tuple[int, int], Site] = _sites) -> None:
            flows.pop(key, None)
            for place in [place for place in tuple(sites) if place[0] == key]:
                sites.pop(place, None)

        try:
            flow: Flow | str = Flow(code)
        except Unknown as error:
            flow = f"the bytecode of {code.co_qualname} has an instruction that is not known here, {error}"
        known = _flows[key] = weakref.ref(code, forget), flow
    if isinstance(known[1], str):
        raise NotTrusted(known[1])
    return known[1]


def site_of(frame: FrameType) -> Site:
    """The analysis of the instruction that a frame is at, made once. Raises `NotTrusted` if it cannot be made."""
    site = known_site(frame)
    if site is None:
        code, lasti = frame.f_code, frame.f_lasti
        site = _sites[id(code), lasti] = Site(flow_of(code), lasti, frame.f_globals)
    return site


def known_site(frame: FrameType) -> Site | None:
    """The same, if it is known yet."""
    code = frame.f_code
    site = _sites.get((id(code), frame.f_lasti))
    return site if site is not None and site.of() is code else None


def distance(frame: FrameType, level: int) -> int:
    """How many frames `frame` is up from the function that calls this one; it is at least `level` up."""
    above: FrameType | None = sys._getframe(level + 1)
    while above is not None and above is not frame:
        level += 1
        above = above.f_back
    if above is None:
        raise ValueError("the frame is not that of a caller")
    return level


def looked_up(frame: FrameType, references: int) -> tuple[Site, str]:
    """The site of a frame; and how its variables may be read by other means than its own bytecode, or "".

    The variables of a frame that others may read count as slots. `references` is how many variables of ours refer to
    the frame object, besides the one here. Raises `NotTrusted` if the frame's code cannot be analysed.
    """
    if getrefcount(frame) != references + 3:  # the interpreter's own, the variable here, and `getrefcount`'s
        return site_of(frame), (
            f"something else has hold of the frame of {frame.f_code.co_qualname}: a traceback, a debugger, or code "
            "that asked for it"
        )
    site = site_of(frame)
    return site, site.refusal


def remember(route: Route, site: Site) -> None:
    """Let the next call from `site` look where this one has found everything."""
    site.hint = route
    alone = not route or (len(route) == 1 and route[0] == Level(route[0].locals, (), starred=False, slots=False))
    site.hinted_locals = None
    if alone and not site.refusal and not site.is_read_by_handlers:
        site.hinted_locals = tuple(number for level in route for number in level.locals)


class _Waiting(NamedTuple):
    """How a frame waits for the function in the frame below."""

    starred: Starred | None
    """Where the stack has what its call keeps, if that is a starred call through C code."""
    at_once: bool
    """Whether nothing comes between that function's return and the frame's next instruction."""
    atomic: bool
    """Whether nothing is donated where the frame's call raises."""
    length: int | None
    """The length of what the call returns, where that is known."""


_IN_SOME_WAY = _Waiting(None, at_once=False, atomic=False, length=None)
"""What may be assumed where that is not looked at: nothing."""


def _waiting(
    frame: FrameType,
    site: Site,
    below: FrameType,
    readable: str,
    args: tuple[Any, ...],
    atomic: bool,
    length: int | None,
) -> _Waiting:
    """How `frame` waits for the function in the frame `below`.

    `readable` says how others may read the frame's variables, or is empty. `args`, `atomic` and `length` are about the
    function in `below`: what it was called with, if that is known, and what holds of its result.
    """
    starred = site.starred
    if starred is not None and (readable or not called_from_the_stack(frame, starred, below, args)):
        starred = None
    direct = starred is not None or calls_directly(frame, below)
    at_once = direct and (starred is None or not interruptible())
    atomic = atomic and at_once and not (site.is_read_by_handlers and interrupter())
    return _Waiting(starred, at_once, atomic, length if direct else None)


def follow(
    known: Site,
    frame: FrameType,
    references: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outcome: Outcome,
    walk: Walk | None,
) -> tuple[list[Any], Slots | None]:
    """What stands in the dead places that the hint of `known`, the site of `frame`, names; and the `Slots`, if there
    are slots among them.

    If there are, it has not been looked whether code runs when those arguments die that `walk` is about: that is for
    the walk to find out. Raises `NotTrusted` if the places cannot be relied on at this call, `LookupError` if the call
    has no such arguments.
    """
    found: list[Any] = []
    if known.hinted_locals is not None:
        # As `looked_up` says: nobody else has hold of the frame. Of no place, nothing needs to be known.
        if known.hinted_locals and getrefcount(frame) != references + 3:
            raise NotTrusted
        for number in known.hinted_locals:
            if (value := variable(frame, number)) is not UNBOUND:
                found.append(value)  # noqa: PERF401 - a comprehension would be another frame
        return found, None
    route: Route = known.hint
    left: list[loops.Left] = []
    below = sys._getframe(references)
    references += 1  # the variable here
    atomic, length = outcome.atomic, outcome.length
    overwritten = None
    if any(level.slots for level in route):
        onlooker = onlookers(outcome.calls_python, outcome.atomic)
        walked = walk.arguments(args, kwargs) if walk is not None else ()
        overwritten = slots_of(args, kwargs, onlooker, outcome, walked)
        overwritten.call(below, 1 + waits_for_c(frame))
        del walked
    for level in route:
        site, readable = looked_up(frame, references)
        # How the frame waits matters for slots, for what is on the stack, and for handlers; and for the frames above.
        waits = overwritten is not None or level.starred or site.is_read_by_handlers or len(route) > 1
        given = args if level is route[0] else ()
        way = _waiting(frame, site, below, readable, given, atomic, length) if waits else _IN_SOME_WAY
        starred, at_once, atomic, length = way
        if overwritten is not None:  # first, because it counts references to what the frame has
            quietly = at_once and (starred is None or level is route[0])
            overwritten.add(frame, site, length, quietly, found, bool(readable))
        dead = () if readable else site.dead(atomic, length)
        for number in level.locals:
            # The route is that of the innermost site; the frames above may be elsewhere this time.
            if number in dead and (value := variable(frame, number)) is not UNBOUND:
                found.append(value)  # noqa: PERF401 - a loop is faster where there are one or two
        if level.loops and not readable:
            left += loops.handed_out(frame, {*level.loops}.intersection(site.iterators))
        if level.starred and starred is not None:
            found += kept_by(frame, starred)
        atomic = atomic and site.passes_on
        length = length if site.hands_on else None
        above = frame.f_back
        if above is None:
            break
        below, frame, references = frame, above, 1
        del above
    if overwritten is not None:
        found += overwritten.values
        overwritten.values.clear()
    found += [each.value for each in loops.dead(left, found)]
    return found, overwritten


def slots_of(
    args: tuple[Any, ...], kwargs: dict[str, Any], onlooker: str, outcome: Outcome, walked: Iterable[Any] = ()
) -> Slots:
    """The `Slots` of a call, with nothing in them yet. The names of keyword arguments are among the roots, since they
    may be of a user's class, derived from `str`, and die with the arguments."""
    return Slots([*args, *kwargs, *kwargs.values()], onlooker, outcome.classes, walked, outcome.static)


@dataclasses.dataclass
class Found:
    """What stands in one dead place."""

    level: int
    kind: Literal["local", "loop", "starred", "slot"]
    value: Any
    number: int = -1
    """Of the local variable, or the position on the stack of the loop's iterator."""
    left: loops.Left | None = None
    """For a loop: what tells whether the place is dead, once all other places are known (`loops.dead`)."""


def levels(
    frame: FrameType,
    references: int,
    args: tuple[Any, ...],
    slots: Slots,
    outcome: Outcome,
    places: Sequence[Any],
    refusals: list[str],
) -> Iterator[list[Found]]:
    """The dead places of each frame from `frame` up, in turn; ends at a frame that cannot be analysed.

    On the way `slots` is filled; and `refusals`, with the reasons why the variables of a frame, or all slots, are not
    relied on. `places` is the caller's list of the values found so far that it holds on to, which the counts take into
    account. (This is a generator function, and not a class, so that it is known how many variables refer to the frame.)
    """
    below = sys._getframe(references)
    references += 1  # the variable here
    atomic, length = outcome.atomic, outcome.length
    slots.call(below, 1 + waits_for_c(frame))
    if slots.onlooker:
        refusals.append(slots.onlooker)
    for level in range(_HIGHEST):
        try:
            site, readable = looked_up(frame, references)
        except NotTrusted as why:
            refusals.append(str(why))
            slots.forget()
            return
        if readable:
            refusals.append(readable)
        given = args if level == 0 else ()
        starred, at_once, atomic, length = _waiting(frame, site, below, readable, given, atomic, length)
        known = len(slots.values)
        # First, because it counts references to what the frame has; as loops do next.
        # What a starred call of a helper keeps dies with the call, before the store, and nothing else tells of it.
        slots.add(frame, site, length, at_once and (starred is None or level == 0), places, bool(readable))
        left = [] if readable else loops.handed_out(frame, site.iterators)
        found = [Found(level, "loop", each.value, each.position, each) for each in left]
        left.clear()
        found += [
            Found(level, "local", value, number)
            for number in (() if readable else site.dead(atomic, length))
            if (value := variable(frame, number)) is not UNBOUND
        ]
        if starred is not None:
            found += [Found(level, "starred", value) for value in kept_by(frame, starred)]
        atomic = atomic and site.passes_on
        length = length if site.hands_on else None
        found += [Found(level, "slot", value) for value in slots.values[known:]]
        value = None
        yield found
        above = frame.f_back
        if above is None:
            return
        below, frame, references = frame, above, 1
        del above
