"""Which variable of the callers holds a leaf, and which place that the call was given it from, in words.

For messages to people alone, as `holders` is, which tells the same of all other objects.
"""

from __future__ import annotations

import bisect
import dataclasses
import gc
import itertools
import operator
import threading
import types
from collections.abc import Sequence, Set
from types import FrameType
from typing import Any, TypeAlias

from pytc.ownership.bytecode.analysed import NotTrusted, flow_of, site_of
from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.bytecode.events import Place, Step, fast
from pytc.ownership.bytecode.instructions import own_names
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.stack import HIGHEST_READ, first_of_stack
from pytc.ownership.bytecode.symbolic import loaded, places_loaded
from pytc.ownership.cpython.interpreter import (
    UNBOUND,
    contents,
    variable,
    variable_elsewhere,
    waits_for_c,
)
from pytc.ownership.cpython.plain import is_key, why_attribute_is_odd, why_item_is_odd
from pytc.ownership.frames import is_shared, own
from pytc.ownership.guesses.read_again import ReadAgain
from pytc.ownership.others.watchers import may_be_interrupted, onlooking_thread, other_frames
from pytc.ownership.references.private import StackVariables
from pytc.ownership.slots import Slots
from pytc.ownership.words.holders import (
    ANY_FUNCTION,
    DEEPEST,
    DICTIONARIES,
    LARGEST,
    Held,
    Sources,
    by_globals,
    is_container,
    key_in_words,
    length,
    place_in,
)
from pytc.set_bits import by_member

_MOST_ITEMS = 20_000
"""So many items of what one variable has are looked at."""
_MOST_ITEMS_IN_ALL = 200_000

Reference: TypeAlias = tuple[int, int]
"""From a container to an item of it, by their ids."""


def in_variables(frame: FrameType, value: Any, insides: Insides | None = None) -> Held | None:
    """The first variable of the callers that has the value and may be read again, by its function or by others.

    `insides` is what to ask for other values, too.
    """
    insides = Insides() if insides is None else insides
    above: FrameType | None = frame
    for _ in range(HIGHEST_READ):
        if above is None:
            return None
        try:
            held = _in_frame(above, value, insides)
        except NotTrusted as why:
            return Held("introspection", str(why), above.f_code.co_filename, above.f_lineno)
        if held is not None:
            return held
        above = above.f_back
    return None


def _in_frame(frame: FrameType, value: Any, insides: Insides) -> Held | None:
    flow, site, code = flow_of(frame.f_code), site_of(frame), frame.f_code
    arguments = {place[0].name for place in loaded(flow, site.at) if len(place) == 1 and place[0].kind != "global"}
    released = letting_go(frame)
    slots = Slots([])
    again = ReadAgain(frame, flow, site, slots, at_once=True, atomic=True)
    # Locals that the function's own code never reads again.
    unread = flow.dead(site.at, site.calm) if site.refusal else frozenset[int]()
    for number, name in enumerate(own_names(code)):
        found = variable(frame, number) if is_shared(frame, number) else own(frame, number)
        if found is UNBOUND or (number in site.dead(True, True) and type(found) is not types.CellType):
            continue
        if found is value and number in unread:
            text = f"`{name}` in {place_in(frame, None)}: {site.refusal}"
            return Held("introspection", text, code.co_filename, frame.f_lineno, remedy="apart")
        if found is value:
            line, by_string = flow.next_read(site.at, number) or (None, False)
            if by_string:
                text = f"`{name}` is named in a string that is used in {place_in(frame, line)}, and may be read by that"
                return Held("introspection", text, code.co_filename, line, remedy="rename")
            if line is not None and number in arguments:
                return Held("variable", f"read again in {place_in(frame, line)}, as `{name}`", code.co_filename, line)
            line = _assigned(flow, site.at, number)
            return Held("variable", f"also `{name}` in {place_in(frame, line)}", code.co_filename, line)
        if type(found) is types.CellType and contents(found) is value and number < len(code.co_varnames):
            text = f"`{name}` in {place_in(frame, None)}, which a nested function can read"
            return Held("closure", text, code.co_filename, frame.f_lineno)
        if not _is_to_be_opened(found):
            continue
        read = again.members(number, 1)
        inside = [found] if read is None else [slots.peek(frame, (*fast(number), step)) for step in read]
        depths = [insides.depth(value, part, released) for part in inside if _is_to_be_opened(part)]
        if any(depths) or any(part is value for part in inside):
            line = _assigned(flow, site.at, number)
            what = "an item of" if read is not None or 1 in depths else "in"
            where = f"`{name}` in {place_in(frame, line)}"
            if _comes_by_odd_key(frame, value):
                return Held("item", f"{what} {where}{_ODD_KEY}", code.co_filename, line, remedy="key")
            if read is None and (source := _passed_from(frame, found)):
                where += f", which is also {source}: others can read that while {code.co_name} makes the result"
            return Held("item", f"{what} {where}", code.co_filename, line)
    return None


def _passed_from(frame: FrameType, value: Any) -> str:
    """The global, attribute or item that one of the functions above a frame has passed the value from, in words; "" if
    there is none."""
    above = frame.f_back
    for _ in range(HIGHEST_READ):
        if above is None:
            break
        if (held := in_members(above, value, [])) is not None:
            return held.text.removeprefix("also ").removesuffix(ANY_FUNCTION)
        above = above.f_back
    return ""


class Insides:
    """What is in the containers that the callers' variables have: each is opened once, for all values sought.

    It has ids, so that it refers to nothing itself, and is to be used only while the variables stay as they are.
    """

    def __init__(self) -> None:
        self._depths: dict[tuple[int, frozenset[Reference]], dict[int, int]] = {}
        """By the id of a variable's container, and the references left out: the depth of each object in it, by its
        id."""
        self._left = _MOST_ITEMS_IN_ALL

    def depth(self, value: Any, container: Any, released: frozenset[Reference]) -> int:
        """How many containers are around the value, this one the outermost; 0 if it is not found. References that are
        `released` do not count."""
        key = id(container), released
        if key not in self._depths:
            self._depths[key], looked_at = _inside(container, min(_MOST_ITEMS, self._left), released)
            self._left -= looked_at
        return self._depths[key].get(id(value), 0)


def _inside(container: Any, most: int, released: Set[Reference]) -> tuple[dict[int, int], int]:
    """How many containers, this one the outermost, are around each object in it, by its id; and how many items were
    looked at. These are not more than `most`, and none of a large container. References that are `released` do not
    count."""
    found: dict[int, int] = {}
    looked_at = 0
    level = [container]
    for depth in range(1, DEEPEST + 1):
        above, level = level, []
        for each in above:
            if id(each) in found and found[id(each)] < depth - 1:
                continue  # it was opened before
            if looked_at + _items(each) > most:
                return found, looked_at
            looked_at += _items(each)
            parts = [part for part in gc.get_referents(each) if (id(each), id(part)) not in released]
            for part in parts:
                found.setdefault(id(part), depth)
            level += [part for part in parts if _is_to_be_opened(part)]
    return found, looked_at


def _is_to_be_opened(value: Any) -> bool:
    return is_container(value) and length(value) <= LARGEST


def _items(container: Any) -> int:
    """How many objects a container refers to."""
    return length(container) * (2 if type(container) in DICTIONARIES else 1)


def _assigned(flow: ControlFlow, at: int, local: int) -> int | None:
    """The line of the last assignment to the local that may come before instruction `at`, which in a loop may stand
    after it; the function's first line if there is none, as for a parameter."""
    code, jumps = flow.instructions, flow.once(_jumps_backward)
    last = next((n for n in jumps if n >= at and code[n].argval <= code[at].offset), at)
    writers = flow.once(_writers).get(local, [])
    before = bisect.bisect_right(writers, last)
    if not before:
        return flow.code.co_firstlineno
    positions = code[writers[before - 1]].positions
    return positions.lineno if positions else None


def _jumps_backward(flow: ControlFlow) -> list[int]:
    """The instructions that jump backwards, the last first."""
    return [n for n, each in enumerate(flow.instructions) if "JUMP_BACKWARD" in each.opname][::-1]


def _writers(flow: ControlFlow) -> dict[int, list[int]]:
    """By local: the instructions that write it."""
    return by_member(flow.writes)


def letting_go(frame: FrameType) -> frozenset[Reference]:
    """What the instructions after the call overwrite in lists, dictionaries and cells that refer to it just once: of
    `for i, state in enumerate(states): states[i] = step(state)` the reference of `states` to `state`."""
    slots, released = Slots([]), set()
    for event in site_of(frame).events:
        if event.does == "store" and event.place[-1].kind in ("item", "cell"):
            value = slots.peek(frame, event.place)
            if len(event.place) == 1:
                released.add((id(variable(frame, event.place[0].name)), id(value)))
                continue
            owner = slots.peek(frame, event.place[:-1])
            if sum(map(operator.is_, gc.get_referents(owner), itertools.repeat(value))) == 1:  # it may be a large one
                released.add((id(owner), id(value)))
    return frozenset(released)


def sources(frame: FrameType) -> Sources:
    """The `Sources` of the call from a frame."""
    try:
        site, places = site_of(frame), loaded(flow_of(frame.f_code), site_of(frame).at)
    except NotTrusted:
        return {}
    stored = _stored(site)
    return {place[-1]: place[-1] in stored for place in places if place[-1].kind in ("global", "attribute", "item")}


def _stored(site: CallSite) -> set[Step]:
    """The last steps of the places to which the result is assigned at once."""
    return {event.place[-1] for event in site.events if event.does == "store"}


def in_members(frame: FrameType, value: Any, roots: Sequence[Any]) -> Held | None:
    """The global, attribute, item or captured variable that holds the value and that the call's expression loads."""
    try:
        places = loaded(flow_of(frame.f_code), site_of(frame).at)
    except NotTrusted:
        return None
    slots = Slots(roots)
    again = ReadAgain(frame, flow_of(frame.f_code), site_of(frame), slots, at_once=True, atomic=True)
    places = [place for place in places if not again.never(place) or again.depends(place)]
    stands = [(place, slots.peek(frame, place)) for place in places]
    for place, found in stands:
        if found is value:
            if place[-1].kind == "global":
                return by_globals(frame.f_globals, value, sources(frame))
            if place[-1].kind == "cell":
                if not is_shared(frame, place[-1].name):
                    continue  # `in_variables` tells of it
                return Held("closure", _captured(frame, place[-1].name), source=place[-1])
            if held := _member(slots, frame, place):
                return held
    for place, found in stands:  # the arguments of a call with `*` or `**`
        has = type(found) in (tuple, dict) and any(part is value for part in gc.get_referents(found))
        if has and (held := _member(slots, frame, place)):
            return dataclasses.replace(held, text=f"an item of {held.text}")
    return None


def _captured(frame: FrameType, number: int) -> str:
    """A variable that functions share by a cell, in words."""
    code = frame.f_code
    free = number - first_of_stack(code) + len(code.co_freevars)
    if free >= 0:
        return f"`{code.co_freevars[free]}` of the nested function {code.co_qualname}"
    return f"`{own_names(code)[number]}` in {place_in(frame, None)}, which a nested function can read"


def in_members_above(frame: FrameType, value: Any) -> Held | None:
    """The attribute or item that holds the value and that one of the callers has passed on: to a function that does
    more after the call than to return the result, so that this is not assigned at once."""
    below, above = frame, frame.f_back
    for _ in range(HIGHEST_READ):
        try:
            passes_on = site_of(below).may_pass_on
        except NotTrusted:
            break
        if above is None:
            break
        if not passes_on and (held := in_members(above, value, ())) is not None:
            holder = f"{held.text.removesuffix(ANY_FUNCTION)}, passed on in {place_in(above, None)}"
            goes_on = f"`{below.f_code.co_qualname}` goes on after the call before it returns"
            text = f"{holder}, to which the result is not assigned at once: {goes_on}"
            return dataclasses.replace(held, text=text, source=None, remedy="store")
        below, above = above, above.f_back
    return None


def _member(slots: Slots, frame: FrameType, place: Place) -> Held | None:
    """A place in words if it is an attribute or an item, else None."""
    last = place[-1]
    if last.kind not in ("attribute", "item"):
        return None
    owner = type(slots.peek(frame, place[:-1])).__name__
    if last.kind == "attribute":
        return Held("attribute", f"attribute `{last.name}` of {owner}", source=last)
    named = "an item" if isinstance(last.name, tuple) else f"item {key_in_words(last.name)}"
    return Held("item", f"{named} of a {owner}", source=last)


def reworded(held: Held, value: Any, frame: FrameType, refusals: Sequence[str]) -> Held | None:
    """`held`, which holds the value; if it is the place that the call loaded that from, with the reason why the place
    is not dead, or None if none is known.

    `refusals` are the reasons why no slot is dead at this call, although the result is stored there.
    """
    if held.source is None:
        return held
    site = site_of(frame)
    again = ReadAgain(frame, flow_of(frame.f_code), site, Slots([]), at_once=True, atomic=True)
    fields = {place[-1] for place in loaded(flow_of(frame.f_code), site.at) if again.depends(place)}
    if held.source not in _stored(site) | fields:
        if held.kind in ("attribute", "item") and _comes_by_odd_key(frame, value):
            return dataclasses.replace(held, text=held.text + _ODD_KEY, remedy="key")
        elsewhere = "" if held.kind == "global" else ", to which the result is not assigned at once"
        return dataclasses.replace(held, text=held.text + elsewhere, remedy="store")
    if refusals:
        return dataclasses.replace(held, text=f"{held.text}: {refusals[0]}", onlooker=refusals[0])
    if why := _why_odd(frame, held.source):
        return dataclasses.replace(held, text=held.text + why, remedy="plain")
    if waits_for_c(frame) and may_be_interrupted():
        why = ": a Ctrl-C may come before the result is there, since the call has `*` or `**`, or C code makes it"
        return dataclasses.replace(held, text=held.text + why, remedy="call")
    return None


_ODD_KEY = ", which the result replaces under a key that is worked out there, or is neither a string nor an integer"


def _comes_by_odd_key(frame: FrameType, value: Any) -> bool:
    """Whether the result of the call is stored at once as an item of what the value is an item of, by a key that is not
    told, or not plain: `d[i % 2] = step(d[i % 2])`."""
    flow, site, slots = flow_of(frame.f_code), site_of(frame), Slots([])
    stores = [event.place for event in site.events if event.does == "store" and event.place[-1].kind == "item"]
    keys = ((place[:-1], place[-1].name) for place in stores)
    odd = [owner for owner, key in keys if isinstance(key, tuple) and not is_key(slots.peek(frame, key))]
    if not site.events:
        odd += _stored_by_unknown_key(flow, site.at)
    return any(part is value for place in odd for part in gc.get_referents(slots.peek(frame, place)))


def _stored_by_unknown_key(flow: ControlFlow, at: int) -> list[Place]:
    """The container, if it is told, in which the result of the call at `at` is stored right after the container and
    the key have been put above it on the stack."""
    heights, first = flow.heights, at + 1
    beneath = heights[first]
    container: list[Place] = []
    if beneath is None:
        return []
    for n in range(first, len(heights)):
        height = heights[n]
        if flow.instructions[n].opname == "STORE_SUBSCR":
            return container if height == beneath + 2 else []
        if height is None or (n > first and height <= beneath) or flow.follows[n] != (n + 1,):
            return []
        if n == first or heights[n + 1] == beneath + 1:
            container = [*places_loaded(flow, n)[:1]]
    return []


def _why_odd(frame: FrameType, member: Step) -> str:
    """Why the attribute or item that the result of the call is stored in is not plain, as words after it; empty if
    nothing is known of that, or it is neither."""
    slots = Slots([])
    for event in site_of(frame).events:
        if event.does == "store" and event.place[-1] == member and member.kind in ("attribute", "item"):
            kind = type(slots.peek(frame, event.place[:-1]))
            if kind is type(UNBOUND):
                continue
            return why_attribute_is_odd(kind, member.name) if member.kind == "attribute" else why_item_is_odd(kind)
    return ""


def thread_that_may_read(frame: FrameType) -> str:
    """Another thread that may read a place that the instructions after the call overwrite, in words; empty if there is
    none, or all these are out of its reach."""
    if not (thread := onlooking_thread()):
        return ""
    try:
        places = [event.place for event in site_of(frame).events if event.does == "store"]
    except NotTrusted:
        return thread
    slots, stack = Slots([]), StackVariables()
    stack.add(frame)
    return "" if places and all(slots.is_private(frame, place, stack) for place in places) else thread


def in_handlers(frame: FrameType, value: Any) -> str:
    """The variable of the callers that has the value and is read again only if the call raises, in words; else ""."""
    above: FrameType | None = frame
    for _ in range(HIGHEST_READ):
        if above is None:
            break
        site, names = site_of(above), own_names(above.f_code)
        for number in site.dead(True, True) - site.dead(False, False):
            if own(above, number) is value:
                return f"`{names[number]}` in {place_in(above, None)}, which an exception handler reads"
        above = above.f_back
    return ""


def going_on(frame: FrameType) -> str:
    """The first function, from that of a frame on up, that does more after the call than to return what it returns, by
    its name; "" if there is none."""
    above: FrameType | None = frame
    for _ in range(HIGHEST_READ):
        if above is None:
            break
        if not site_of(above).may_pass_on:
            return above.f_code.co_qualname
        above = above.f_back
    return ""


def in_threads(value: Any) -> Held | None:
    """The variable of another thread that has the value."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, top in other_frames().items():
        frame: FrameType | None = top
        while frame is not None:
            for number, name in enumerate(frame.f_code.co_varnames):
                if variable_elsewhere(frame, number) is value:
                    text = f"`{name}` in thread {names.get(ident, ident)!r}, {place_in(frame, None)}"
                    return Held("thread", text, frame.f_code.co_filename, frame.f_lineno)
            frame = frame.f_back
    return None
