"""The callers' frames at one call, and the dead places in them.

`levels` yields all dead places of the frame that called (its dead locals, the slots that its next instructions
overwrite, what its loops and starred calls keep), then those of its caller, and so on for as long as `look` asks for
one more frame. The places that held arguments are remembered with the call site as a `Route`; at the next call `follow`
looks at these alone. Both check for each frame whether others may read its variables.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

from pytc.ownership.arrays.walk import Walk
from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.bytecode.fields import unread
from pytc.ownership.bytecode.instructions import UnknownInstruction
from pytc.ownership.bytecode.lengths import Lengths
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.stack import HIGHEST, Starred
from pytc.ownership.cpython.interpreter import UNBOUND, calls_directly, getrefcount, variable, waits_for_c
from pytc.ownership.others.watchers import Onlookers, interrupter, interruptible, onlookers
from pytc.ownership.references import loops
from pytc.ownership.references.counts import PLAIN, in_one_list
from pytc.ownership.references.private import addresses, held_by_others
from pytc.ownership.references.starred import called_from_the_stack, kept_by
from pytc.ownership.slots import Slots


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is known about the outcome of a call before it happens."""

    calls_python: bool = True
    """Whether the program may call back into Python while it runs."""
    lengths: Lengths = None
    """The lengths of the tuples and lists in the result."""
    atomic: bool = False
    """Whether a call that raises anything, an interrupt included, has donated nothing."""
    classes: tuple[type, ...] | None = None
    """The classes of the containers in the result, if they are known."""
    static: tuple[Any, ...] = dataclasses.field(default=(), compare=False)
    """Objects that the compiled function holds and that may also be in its arguments: static leaves and the like."""
    doubt: str = dataclasses.field(default="", compare=False)
    """What may raise as it puts the result together, in words; empty if nothing may."""

    @functools.cached_property
    def lasting(self) -> frozenset[int]:
        """The ids of these objects, and of what is in tuples among them, which cannot be changed."""
        found: list[Any] = []
        level = [*self.static]
        while level:
            found += level
            level = [part for each in level if type(each) is tuple for part in each]
        return frozenset(map(id, found))


@dataclasses.dataclass(frozen=True)
class Level:
    """The dead places in one frame that held arguments or parts of them."""

    locals: tuple[int, ...]
    """Fast locals, by number."""
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


class NotTrusted(Exception):
    """The bytecode of a frame cannot be analysed; the message says why."""


# By the ids of code objects. An entry is removed when its code dies, unless the stack is full or a signal handler
# raises just then; and the id may be reused. So each entry has a weak reference to its code, which is compared.
_sites: dict[tuple[int, int], CallSite] = {}
_flows: dict[int, tuple[weakref.ref[CodeType], ControlFlow | str]] = {}


def flow_of(code: CodeType) -> ControlFlow:
    """The analysis of a code object, made once and forgotten with it. Raises `NotTrusted` if it cannot be made."""
    key = id(code)
    known = _flows.get(key)
    if known is None or known[0]() is not code:
        # The dictionaries are defaults: this also runs when the interpreter ends and the module's names are gone.
        def forget(_: object, flows: dict[int, Any] = _flows, sites: dict[tuple[int, int], CallSite] = _sites) -> None:
            flows.pop(key, None)
            for place in [place for place in tuple(sites) if place[0] == key]:
                sites.pop(place, None)

        try:
            flow: ControlFlow | str = ControlFlow(code)
        except UnknownInstruction as error:
            flow = f"the bytecode of {code.co_qualname} has an instruction that is not known here, {error}"
        known = _flows[key] = weakref.ref(code, forget), flow
    if isinstance(known[1], str):
        raise NotTrusted(known[1])
    return known[1]


def site_of(frame: FrameType) -> CallSite:
    """The analysis of a frame's current instruction, made once. Raises `NotTrusted` if it cannot be made."""
    site = known_site(frame)
    if site is None:
        code, lasti = frame.f_code, frame.f_lasti
        site = _sites[id(code), lasti] = CallSite(flow_of(code), lasti, frame.f_globals, frame.f_builtins)
    return site


def known_site(frame: FrameType) -> CallSite | None:
    """The analysis of a frame's current instruction if it has been made, else None."""
    code = frame.f_code
    site = _sites.get((id(code), frame.f_lasti))
    return site if site is not None and site.of() is code else None


def distance(frame: FrameType, level: int) -> int:
    """How many frames `frame` is above the function that calls this one, where it is known to be at least `level`.
    Raises `ValueError` if it is not there."""
    above: FrameType | None = sys._getframe(level + 1)
    while above is not None and above is not frame:
        level += 1
        above = above.f_back
    if above is None:
        raise ValueError("the frame is not that of a caller")
    return level


def looked_up(frame: FrameType, references: int) -> tuple[CallSite, str]:
    """The site of a frame, and how something other than its own bytecode may read its variables; "" if nothing may.

    Variables that others may read count as slots. `references` is how many variables of ours refer to the frame object,
    without the one here. Raises `NotTrusted` if the frame's code cannot be analysed.
    """
    if getrefcount(frame) != references + 3:  # the interpreter, the variable here, and `getrefcount`'s argument
        return site_of(frame), (
            f"something else has hold of the frame of {frame.f_code.co_qualname}: a traceback, a debugger, or code "
            "that asked for it"
        )
    site = site_of(frame)
    return site, site.refusal


def remember(route: Route, site: CallSite) -> None:
    """Remember `route` for the next call from `site`; also in short form if it names nothing but local variables of the
    frame that called, and nothing else can read these."""
    site.hint = route
    alone = not route or (len(route) == 1 and route[0] == Level(route[0].locals, (), starred=False, slots=False))
    site.hinted_locals = None
    if alone and not site.refusal and not site.is_read_by_handlers:
        site.hinted_locals = tuple(number for level in route for number in level.locals)


class _Waiting(NamedTuple):
    """How a frame waits for the function in the frame below."""

    starred: Starred | None
    """Where the stack has what the frame's call keeps, if that is a starred call through C code; else None."""
    at_once: bool
    """Whether nothing runs between that function's return and the frame's next instruction."""
    atomic: bool
    """Whether nothing has been donated if the frame's call raises."""
    lengths: Lengths
    """Those of what the call returns."""


_IN_SOME_WAY = _Waiting(None, at_once=False, atomic=False, lengths=None)
"""For frames where this is not looked at: nothing is assumed."""


def _waiting(
    frame: FrameType,
    site: CallSite,
    below: FrameType,
    readable: str,
    args: tuple[Any, ...],
    atomic: bool,
    lengths: Lengths,
) -> _Waiting:
    """How `frame` waits for the function in the frame `below`.

    `readable` says how others may read the frame's variables, or is empty. `args` are the positional arguments of the
    function in `below`, if they are known; `atomic` and `lengths` are about its outcome.
    """
    starred = site.starred
    if starred is not None and (readable or not called_from_the_stack(frame, starred, below, args)):
        starred = None
    direct = starred is not None or calls_directly(frame, below)
    at_once = direct and (starred is None or not interruptible())
    atomic = atomic and at_once and not (site.is_read_by_handlers and interrupter())
    return _Waiting(starred, at_once, atomic, lengths if direct else None)


def _dead(site: CallSite, calls_compiled: bool, atomic: bool, lengths: Lengths) -> frozenset[int]:
    """The dead locals of a frame at `site`. The compiled function evaluates no strings in it; any other function that
    runs above the frame may yet do so."""
    dead = site.dead(atomic, site.fits(lengths))
    return dead if calls_compiled or not site.evaluated else dead - site.evaluated


def dead_above(frame: FrameType, site: CallSite, atomic: bool, lengths: Lengths, address: int, most: int) -> int:
    """How many dead variables of the functions that have called `frame`'s refer to the object at this address. Up to
    `most` are looked for; the other arguments are what is known in `frame`, as for `_dead`.

    In `state = helper(state)` the helper's parameter has what the caller has in a variable that the result overwrites.

    No code that the callers still run reads what they have in such variables. So an object to which nothing else refers
    but a variable of `frame`'s function is as good as that function's own. The variables are looked at in the frames
    themselves, each of which waits and is in nobody's hands, so what was counted of them stays so.
    """
    found = 0
    below, above = frame, frame.f_back
    for _ in range(HIGHEST):
        atomic, lengths = atomic and site.passes_on(lengths), site.returned(lengths)
        if found >= most or above is None:
            break
        try:
            site, readable = looked_up(above, 1)
        except NotTrusted:
            break
        if readable:
            break
        _, _, atomic, lengths = _waiting(above, site, below, readable, (), atomic, lengths)
        if at := [n for n, each in enumerate(addresses(above)) if each == address]:
            found += len(_dead(site, False, atomic, lengths).intersection(at))
        below = above
        above = below.f_back
    return found


def _unread(
    frame: FrameType, site: CallSite, local: int, calls_compiled: bool, atomic: bool, lengths: Lengths
) -> list[Any]:
    """What is in a local variable's dictionary, list or tuple and is not read again; see `_dead`. Others that refer to
    that may be dead variables of the callers."""
    flow, fits = flow_of(frame.f_code), site.fits(lengths)
    # The route belongs to the innermost site: another function may be here this time, with fewer variables.
    if not flow.locals >> local & 1 or (local in site.evaluated and not calls_compiled):
        return []
    nodes = [variable(frame, local)]
    if type(nodes[0]) not in PLAIN:
        return []
    read = site.members_read(flow, local, atomic, fits)
    # A handler of signals may raise in the midst of the call, once that has donated.
    if atomic and read != (handled := site.members_read(flow, local, False, fits)) and interrupter():
        read = handled
    if read is None:
        return []
    more = held_by_others(nodes, 0)
    return unread(nodes, read, more and dead_above(frame, site, atomic, lengths, id(nodes[0]), more))


def _standing(
    frame: FrameType, site: CallSite, level: Level, calls_compiled: bool, atomic: bool, lengths: Lengths
) -> list[Any]:
    """What stands in those variables of a frame, and in containers that these have, that a route names."""
    found: list[Any] = []
    dead = _dead(site, calls_compiled, atomic, lengths)
    for number in level.locals:
        # The route belongs to the innermost site; the frames above may be at other instructions this time.
        if number in dead and (value := variable(frame, number)) is not UNBOUND:
            found.append(value)  # noqa: PERF401 - a loop is faster where there are one or two
    for number in level.containers:
        found += _unread(frame, site, number, calls_compiled, atomic, lengths)
    return found


def follow(
    known: CallSite,
    frame: FrameType,
    references: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
    outcome: Outcome,
    walk: Walk | None,
) -> tuple[list[Any], Slots | None]:
    """The values of the dead places that the hint of `known`, the site of `frame`, names; and the `Slots`, if slots are
    among these places.

    The `Slots` have not examined the end of those arguments that `walk` is about; the walk must do that. Raises
    `NotTrusted` if the places cannot be relied on at this call, and `LookupError` if the call has no such arguments.
    """
    found: list[Any] = []
    hinted = known.hinted_locals  # read once: another thread may change it at any moment
    if hinted is not None:
        # As in `looked_up`: nobody else may have the frame. That does not matter if no place is relied on.
        if hinted and getrefcount(frame) != references + 3:
            raise NotTrusted
        for number in hinted:
            if (value := variable(frame, number)) is not UNBOUND:
                found.append(value)  # noqa: PERF401 - a comprehension would be another frame
        return found, None
    route: Route = known.hint
    left: list[loops.Left] = []
    below = sys._getframe(references)
    references += 1  # the variable here
    atomic, lengths = outcome.atomic, outcome.lengths
    overwritten = None
    if any(level.slots for level in route):
        who = onlookers(outcome.calls_python, outcome.atomic, outcome.doubt)
        walked = walk.arguments(args, kwargs) if walk is not None else ()
        overwritten = slots_of(args, kwargs, leaves, who, outcome, walked)
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
        given = args if level is route[0] else ()
        way = _waiting(frame, site, below, readable, given, atomic, lengths) if waits else _IN_SOME_WAY
        starred, at_once, atomic, lengths = way
        if overwritten is not None:  # first, because it counts the references to what the frame has, as loops do next
            quietly = at_once and (starred is None or level is route[0])
            overwritten.add(frame, site, lengths, quietly, found, bool(readable), atomic)
        if level.loops and not readable:
            left += loops.handed_out(frame, {*level.loops}.intersection(site.iterators))
        if not readable:
            found += _standing(frame, site, level, level is route[0], atomic, lengths)
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
    found += [each.value for each in loops.dead(left, found)]
    return found, overwritten


def slots_of(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
    who: Onlookers,
    outcome: Outcome,
    walked: Iterable[Any] = (),
) -> Slots:
    """The `Slots` of a call, with no frame added yet.

    Among the roots are the names of keyword arguments, which may be of a user's class derived from `str`, and those of
    the `leaves` that a custom node's `tree_flatten` has made for this call: all of these die with the arguments.
    """
    roots = [*args, *kwargs, *kwargs.values()]
    roots += in_one_list(leaves)
    return Slots(roots, who, outcome.classes, walked, outcome.static, outcome.lasting, dead_above)


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
    frame: FrameType,
    references: int,
    args: tuple[Any, ...],
    slots: Slots,
    outcome: Outcome,
    places: Sequence[Any],
    refusals: list[str],
) -> Iterator[list[Found]]:
    """The dead places of each frame, from `frame` upwards; ends at a frame that cannot be analysed.

    Fills `slots`; and `refusals`, with the reasons why a frame's variables, or all slots, do not count as dead.
    `places` is the caller's list of values found so far, whose references the counts allow for. (This is a generator
    function rather than a class, so that it is known how many variables refer to the frame.)
    """
    below = sys._getframe(references)
    references += 1  # the variable here
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
        given = args if level == 0 else ()
        starred, at_once, atomic, lengths = _waiting(frame, site, below, readable, given, atomic, lengths)
        known = len(slots.values)
        # First, because it counts the references to what the frame has, as loops do next. What a helper's starred call
        # keeps dies before the store and is not examined, so from such a helper upwards no slot is dead.
        quietly = at_once and (starred is None or level == 0)
        slots.add(frame, site, lengths, quietly, places, bool(readable), atomic)
        if slots.onlooker not in ("", *refusals):
            refusals.append(slots.onlooker)
        left = [] if readable else loops.handed_out(frame, site.iterators)
        found = [Found(level, "loop", each.value, each.position, each) for each in left]
        left.clear()
        dead = () if readable else _dead(site, level == 0, atomic, lengths)
        if not readable:
            for number in range(len(frame.f_code.co_varnames)):
                inside = [] if number in dead else _unread(frame, site, number, level == 0, atomic, lengths)
                found += [Found(level, "field", value, number) for value in inside]
                inside.clear()
        found += [
            Found(level, "local", value, number) for number in dead if (value := variable(frame, number)) is not UNBOUND
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
