"""Which leaves live on after a call, as far as the callers' code shows.

A plan does not take these over, so that they need not be copied at each call. It is a guess and no part of the proof: a
leaf that is wrongly left out is kept, and one that is wrongly taken over is copied.

The guess is for the calls that follow, too. In

    step(w0, first)                 # to warm up
    w = w0
    for batch in data:
        w = step(w, batch)
    compare(w, w0)

the first argument in the loop lives on as `w0`; but the next one is a result, which `w0` will not be. So a leaf that
the call's own statement overwrites is not held by variables that keep their values while the loop goes around. (`w0` in
the call before the loop is: but if it were `w`, this call would be the only one that finds it alive.) The other way
round, what `history.append(w)` appends to in the loop will probably hold each argument but the first. Such expectations
are for the first call from a place; later ones show whether it is so.
"""

from __future__ import annotations

import collections
import gc
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from types import FrameType
from typing import Any, NamedTuple

from jax.tree_util import all_leaves

from pytc.ownership.bytecode.analysed import NotTrusted, flow_of, site_of
from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.bytecode.events import Place, Step, fast
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.stack import HIGHEST_READ, first_of_stack
from pytc.ownership.bytecode.symbolic import loaded
from pytc.ownership.cpython.interpreter import contents, getrefcount, variable, waits_for_c
from pytc.ownership.frames import is_shared
from pytc.ownership.guesses.loop import Loop, loop_around
from pytc.ownership.guesses.read_again import ReadAgain
from pytc.ownership.guesses.repeats import is_once, is_stored_after
from pytc.ownership.guesses.staying import parameters
from pytc.ownership.others.watchers import may_be_interrupted, onlooker_anywhere, onlooking_thread, raising_handler
from pytc.ownership.outcome import Outcome
from pytc.ownership.references.private import StackVariables
from pytc.ownership.slots import Slots

_MOST = 1000
_MOST_FOR_A_LEAF = 50
"""So many objects in one variable are looked at, and so many more for each leaf: a Flax module has ten for each."""
_CALLS = ("CALL", "CALL_KW")  # what a call with `*` passes is looked at by `starred`

_ANY = -1
"""More references than are known."""

Leaves = frozenset[int]
_NONE = Leaves()


class Surviving(NamedTuple):
    """Leaves that are still held after a call, as their counterparts at the following calls will be."""

    seen: Leaves
    """By variables that are read later; by attributes, items, globals and cells that are not overwritten at once."""
    expected: Leaves
    """The same where nothing is known of other calls from the place: with what C code, exception handlers, other
    threads or a history will hold, and without what a variable holds this once."""


def surviving(
    frame: FrameType,
    roots: Sequence[Any],
    parts: dict[int, Leaves],
    twins: Sequence[Mapping[Place, Leaves]],
    outcome: Outcome,
) -> Surviving:
    """The leaves that live on, as far as the code shows. `parts` has the leaves in each object of the arguments, by id;
    `twins`, for each frame from this one on, by place, those that what is there does not stand for, though they are the
    same arrays."""
    survey = _Survey(roots, parts, outcome.atomic)
    above: FrameType | None = frame
    for level in range(HIGHEST_READ):
        if above is None:
            break
        try:
            flow, site = flow_of(above.f_code), site_of(above)
        except NotTrusted:
            return Surviving(survey.everything, survey.everything)
        if site.refusal and level > 0:
            break
        survey.twins = twins[level] if level < len(twins) else {}
        if not survey.ask(above, flow, site) and level > 0:
            break
        above = above.f_back
    for slot, (_, more) in survey.shared.items():
        if not more:
            survey.read.pop(slot, None)
    replaced = survey.replaced.union(*(has for slot, has in survey.read.items() if slot in survey.stored))
    lasting = survey.survive.union(*(has for slot, has in survey.read.items() if slot not in survey.stored))
    expected = lasting | survey.foreseen
    once = replaced <= expected or is_once(frame)
    return Surviving(lasting | replaced, expected if once else expected | replaced)


class _Survey:
    """What is found frame by frame, from the one that called upwards."""

    def __init__(self, roots: Sequence[Any], parts: dict[int, Leaves], atomic: bool):
        self.roots, self.parts, self.may_raise = roots, parts, not atomic
        self.everything = _NONE.union(*parts.values())
        self.most = _MOST + _MOST_FOR_A_LEAF * len(self.everything)
        self.twins: Mapping[Place, Leaves] = {}
        """Leaves that a place in the frame does not stand for, though what is there has them."""
        self.survive = _NONE
        self.foreseen = _NONE
        """Leaves whose counterparts will be held by something that variables do not show."""
        self.read: dict[tuple[int, Any], Leaves] = {}
        """Slots that a function on the way reads, and that its callers, as far as is known, do not overwrite."""
        self.shared: dict[tuple[int, Any], tuple[int, int]] = {}
        """Those of them in an object that is in a dead variable: the object's id, and how many more refer to it than
        dead variables of the functions so far."""
        self.renewed = _NONE
        """Leaves from places that have part of the result at the next call, if that comes from the same loop."""
        self.once = _NONE
        """Those of them whose loop is further in: variables further out hold them at one call of many."""
        self.released = _NONE
        """Leaves in items that are overwritten, even if their list or dictionary is read later, here or by a caller."""
        self.replaced = _NONE
        """Leaves in variables that the code further on overwrites: other calls, if any, will not find them there."""
        self.stored: set[tuple[int, Any]] = set()
        """Slots of which the same is true."""
        self.passed = self.everything
        """What the function below was passed."""
        self.stack = StackVariables()
        """What the variables of the frames so far refer to."""
        self.straight = True
        """Whether the functions so far return the result at once."""
        self.atomic = atomic
        """Whether nothing has been donated if they raise."""

    def ask(self, frame: FrameType, flow: ControlFlow, site: CallSite) -> bool:
        """Find what one frame holds; return whether the next one may hold anything: whether its variables have any of
        the leaves, or something else refers to the object that leaves are in."""
        slots = Slots(self.roots)
        self.stack.add(frame)
        loop = loop_around(flow, site.at)
        loaded_here = dict.fromkeys(loaded(flow, site.at))
        overwritten = {event.place for event in site.events if event.does == "store"} if self.straight else set()
        # After C code a Ctrl-C may come before the store.
        at_once = not (waits_for_c(frame) and may_be_interrupted())
        self.atomic = self.atomic and at_once and not (site.is_read_by_handlers and raising_handler())
        shared = {n for n in site.dead(True, True) if is_shared(frame, n)}
        by_handlers = site.dead(True, True) - site.dead(self.atomic, True)
        dead = site.dead(self.atomic, True) - shared | {
            place[0].name for place in overwritten if _is_local(frame, place) and place[0].name not in by_handlers
        }
        for place in overwritten:
            slot, value = slots.slot(frame, place)
            self.read.pop(slot, None)
            if len(place) > 1:
                self.released |= self._at(place, value)
            from_there = any(place == each[: len(place)] for each in loaded_here)
            if from_there and (loop.body or not _is_local(frame, place)):  # a frame's own variables end with it
                self.renewed |= self._at(place, value)
            if not _is_local(frame, place) and (not at_once or self.may_raise or self._onlooker(slots, frame, place)):
                self.foreseen |= self._at(place, value)
        value = None  # or it would be one more reference to a container
        if waits_for_c(frame) and flow.instructions[site.at].opname in _CALLS:
            self.foreseen |= self.passed  # to `functools.partial`, `map`, an object with a `__call__`
        self.foreseen |= _NONE.union(*[self.parts.get(id(value), _NONE) for value in _beneath(frame, flow, site)])
        for place in loop.appends():
            self.foreseen |= self._at(place, slots.slot(frame, place)[1]) - self.once
        variables = [self._at(fast(number), variable(frame, number)) for number in range(len(flow.code.co_varnames))]
        again = ReadAgain(frame, flow, site, slots, self.straight, self.atomic)
        self.survive = self.survive.union(*[self._in(value) for value in again.by_copy])
        owners = {place[0].name for place in loaded_here if place[0].kind == "fast"}
        live = [n for n, has in enumerate(variables) if (has or n in owners) and n not in dead]
        read = {n: again.members(n) for n in live}
        for number, has in enumerate(variables):
            if number in by_handlers:
                self.foreseen |= has
            elif number in read:
                steps = read[number]
                ways = [()] if steps is None else [(step,) for step in steps]
                for place in [(*fast(number), *way) for way in ways]:
                    self._variable(place, slots.peek(frame, place), site, loop)
        for place in loaded_here:
            holders = 0 if place in overwritten else _holders(slots, frame, place, dead, read, again.on_stack)
            if holders:
                self._loaded(frame, place, site, loop, slots, holders)
            elif again.depends(place) and (not at_once or self.may_raise or self._onlooker(slots, frame, place)):
                self.foreseen |= self._at(place, slots.peek(frame, place))
        gone = collections.Counter(id(variable(frame, number)) for number in dead)
        self.shared = {slot: (owner, more - gone[owner]) for slot, (owner, more) in self.shared.items()}
        if loop.body:
            self.once |= self.renewed
        self.straight = self.straight and site.returns
        self.atomic = self.atomic and site.may_pass_on
        self.passed = _NONE.union(*(variables[number] for number in parameters(flow)))
        return any(variables) or any(more for _, more in self.shared.values())

    def _onlooker(self, slots: Slots, frame: FrameType, place: Place) -> str:
        """Who may read a place before it is overwritten, in words; empty if nobody."""
        return onlooker_anywhere() or ("" if slots.is_private(frame, place, self.stack) else onlooking_thread())

    def _variable(self, place: Place, value: Any, site: CallSite, loop: Loop) -> None:
        """Ask what a variable has that is read later, or the member of it at this place."""
        # What is in a list or a dictionary may have been put there, and the next one will be, too: in a loop that reads
        # the variable, or by a function that is called.
        number = place[0].name
        fixed = self._at(place, value, movable=bool(loop.body) and not loop.reads(number))
        self.survive |= self._at(place, value) - fixed - self.released
        fixed -= self.once | self.renewed if loop.body and not loop.renames(number) else self.once
        if is_stored_after(loop.flow, site.at, fast(number)):
            self.replaced |= fixed
        else:
            self.survive |= fixed

    def _loaded(self, frame: FrameType, place: Place, site: CallSite, loop: Loop, slots: Slots, holders: int) -> None:
        """Ask a place that the call loads and that lives on, by so many `_holders`."""
        slot, value = slots.slot(frame, place)
        if holders != _ANY:
            self.shared[slot] = id(variable(frame, place[0].name)), holders + 1  # with its own variable, which is gone
        self.read[slot] = self._at(place, value) - self.released - self.once
        if len(place) == 1 and is_stored_after(loop.flow, site.at, place):
            self.stored.add(slot)

    def _at(self, place: Place, value: Any, movable: bool = True) -> Leaves:
        """The leaves that the value of a place stands for."""
        return self._in(value, movable) - self.twins.get(place, _NONE)

    def _in(self, value: Any, movable: bool = True) -> Leaves:
        """The leaves that the value is or has, or that containers in it hold: tuples, and trees of users' classes,
        which may be taken apart for the call; if `movable`, also lists, dictionaries and queues."""
        found: set[int] = set()
        seen: set[int] = set()
        ahead, left = [value], self.most
        while ahead:
            each = ahead.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            has = self.parts.get(id(each))
            inside = _inside(each, movable, self.most) if has is None else ()
            found |= has or _NONE
            left -= len(inside)
            if left < 0:
                break
            ahead += inside
        return Leaves(found)


def _inside(value: Any, movable: bool, most: int) -> Sequence[Any]:
    """What a container holds, found without running user code; nothing of a list or a dictionary with more items."""
    kind = type(value)
    if kind is types.CellType:
        return (contents(value),)
    if issubclass(kind, tuple):
        return [*tuple.__iter__(value)]
    if kind in (list, collections.deque) or issubclass(kind, dict):
        of: Any = dict if issubclass(kind, dict) else kind
        if not movable or of.__len__(value) > most:
            return ()
        return [*dict.values(value)] if of is dict else [*value]
    if all_leaves([value]):
        return ()
    parts = gc.get_referents(value)
    attributes = [inner for part in parts if type(part) is dict for inner in part.values()]
    return [*attributes, *(part for part in parts if type(part) is not dict and not issubclass(type(part), type))]


def _is_local(frame: FrameType, place: Place) -> bool:
    """Whether a place is a local variable that no other function reads."""
    of_frame = place[0].kind == "fast" or (place[0].kind == "cell" and not is_shared(frame, place[0].name))
    return len(place) == 1 and of_frame


def _beneath(frame: FrameType, flow: ControlFlow, site: CallSite) -> Iterator[Any]:
    """What is on the stack beneath a call and what it passes: `last, x = x, step(x)`."""
    height = flow.heights[site.at + 1] if flow.instructions[site.at].opname.startswith("CALL") else None
    first = first_of_stack(flow.code)
    for position in range(first, first + (height or 1) - 1):
        yield variable(frame, position)


def _holders(
    slots: Slots, frame: FrameType, place: Place, dead: Set[Any], read: Mapping[int, Set[Step] | None], on_stack: int
) -> int:
    """By how many references a place that the call loads may still hold its value after the call, `_ANY` if that is not
    known. A variable does not (`surviving` looks at variables itself); nor does an attribute or item of an object that
    only a `dead` variable holds, or one of which only other members are `read`. If more refer to the object in a dead
    variable, these may be variables of the callers."""
    is_dead = place[0].name in dead
    if place[0].kind == "cell" and is_dead and len(place) == 1:
        return 0
    if place[0].kind != "fast":
        return _ANY
    if not is_dead:
        members = read.get(place[0].name)
        if len(place) == 1 or members is None or place[1] in members:
            return _ANY if len(place) > 1 else 0
    found = 0
    for end in range(1, len(place)):
        owner = slots.peek(frame, place[:end])
        # What leads to it, the variable `owner`, and `getrefcount`'s argument.
        more = getrefcount(owner) - 3 - (id(owner) == on_stack)
        if end == 1 and not is_dead:
            continue  # `read` tells that no more have it
        if more and end > 1:
            return _ANY
        found += more
    return found
