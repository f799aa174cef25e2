"""What holds a leaf that was not proven dead, in words.

Slow, and only for messages to people (`donate="require"`, `explain`). It is no part of the proof, so it may look
anywhere. If several things hold a leaf, the answer is the one that people can most easily act on.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import gc
import itertools
import operator
import pathlib
import threading
import types
from collections.abc import Sequence, Set
from types import FrameType
from typing import Any, Literal, TypeAlias, get_args

import jax

from pytc.classes import attributes_of, bases_of, defines
from pytc.ownership import counts, interpreter
from pytc.ownership.callers import NotTrusted, flow_of, site_of
from pytc.ownership.interpreter import UNBOUND, contents, variable
from pytc.ownership.liveness import Flow, bits
from pytc.ownership.loops import REUSE_A_TUPLE
from pytc.ownership.referrers import Referrers
from pytc.ownership.slots import Slots
from pytc.ownership.symbolic import Place, Step, loaded
from pytc.ownership.watchers import other_frames

_HIGHEST = 16
_DEEPEST = 3
"""Containers in one another that are looked through: a list of tuples of arrays has two."""
_LARGEST = 4096
"""Containers with more items are not looked through: to do so takes time, and the call waits for it."""
_MOST_ITEMS = 20_000
"""So many items of what one variable has are looked at."""
_MOST_ITEMS_IN_ALL = 200_000
_MOST_ON_PATHS = 20_000
"""So many objects are looked at for the paths to all leaves, and some more where there are many leaves."""

_OfObjects: TypeAlias = Literal["history", "attribute", "global", "closure", "item", "unknown"]
"""Kinds of holders that `gc.get_referrers` finds, those first that people can most easily act on."""
Kind: TypeAlias = Literal[
    _OfObjects, "variable", "weakref", "buffer", "observer", "interpreter", "introspection", "thread", "finaliser"
]


@dataclasses.dataclass(frozen=True)
class Held:
    """What keeps a leaf from being reused."""

    kind: Kind
    text: str
    """In words: "also `best` in train.py:41"."""
    file: str | None = None
    line: int | None = None
    source: Step | None = None
    """If the place that the call loaded the value from holds it: the last step to that place, the attribute `state` in
    `self.state = step(self.state)`."""
    onlooker: str = ""
    """If nothing else holds the value: who may read that place before the result is stored there."""


def place_in(frame: FrameType, line: int | None) -> str:
    """`train.py:57`."""
    return f"{pathlib.Path(frame.f_code.co_filename).name}:{line or frame.f_lineno}"


class Insides:
    """What is in the containers that the callers' variables have: each is opened once, for all values sought.

    It has ids, so that it refers to nothing itself, and is to be used only while the variables stay as they are.
    """

    def __init__(self) -> None:
        self._depths: dict[int, dict[int, int]] = {}
        """By the id of a variable's container: the depth of each object in it, by its id."""
        self._left = _MOST_ITEMS_IN_ALL

    def depth(self, value: Any, container: Any) -> int:
        """How many containers are around the value, this one the outermost; 0 if it is not found."""
        if id(container) not in self._depths:
            self._depths[id(container)], looked_at = _inside(container, min(_MOST_ITEMS, self._left))
            self._left -= looked_at
        return self._depths[id(container)].get(id(value), 0)


def _inside(container: Any, most: int) -> tuple[dict[int, int], int]:
    """How many containers, this one the outermost, are around each object in it, by its id; and how many items were
    looked at. These are not more than `most`, and none of a large container."""
    found: dict[int, int] = {}
    looked_at = 0
    level = [container]
    for depth in range(1, _DEEPEST + 1):
        above, level = level, []
        for each in above:
            if id(each) in found and found[id(each)] < depth - 1:
                continue  # it was opened before
            if looked_at + _items(each) > most:
                return found, looked_at
            looked_at += _items(each)
            parts = gc.get_referents(each)
            for part in parts:
                found.setdefault(id(part), depth)
            level += [part for part in parts if _is_to_be_opened(part)]
    return found, looked_at


def _is_to_be_opened(value: Any) -> bool:
    return _is_container(value) and len(value) <= _LARGEST


def _items(container: Any) -> int:
    """How many objects a list, a tuple or a dictionary refers to."""
    return len(container) * (2 if type(container) is dict else 1)


def in_variables(frame: FrameType, value: Any, insides: Insides | None = None) -> Held | None:
    """The first variable of the callers that has the value and may be read again, by its function or by others.

    `insides` is what to ask for other values, too.
    """
    insides = Insides() if insides is None else insides
    above: FrameType | None = frame
    for _ in range(_HIGHEST):
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
    arguments = {place[0].name for place in loaded(flow, site.at) if len(place) == 1 and place[0].kind == "fast"}
    released = letting_go(frame, value)
    # Locals that the function's own code never reads again.
    unread = flow.dead(site.at, 2 if site.unpacks is not None else 1) if site.refusal else frozenset[int]()
    for number, name in enumerate(code.co_varnames):
        found = variable(frame, number)
        if found is UNBOUND or number in site.dead(True, site.unpacks):
            continue
        if found is value and number in unread:
            text = f"`{name}` in {place_in(frame, None)}: {site.refusal}"
            return Held("introspection", text, code.co_filename, frame.f_lineno)
        if found is value:
            line = flow.next_read(site.at, number)
            if line is not None and number in arguments:
                return Held("variable", f"read again in {place_in(frame, line)}", code.co_filename, line)
            line = _assigned(flow, site.at, number)
            return Held("variable", f"also `{name}` in {place_in(frame, line)}", code.co_filename, line)
        if type(found) is types.CellType and contents(found) is value:
            text = f"`{name}` in {place_in(frame, None)}, which a nested function can read"
            return Held("closure", text, code.co_filename, frame.f_lineno)
        if _is_to_be_opened(found) and id(found) not in released and (depth := insides.depth(value, found)):
            line = _assigned(flow, site.at, number)
            what = "an item of" if depth == 1 else "in"
            return Held("item", f"{what} `{name}` in {place_in(frame, line)}", code.co_filename, line)
    return None


def _is_container(value: Any) -> bool:
    """Whether it is a list, a tuple or a dictionary; but not of a module's globals, which `_by_dict` describes."""
    return type(value) in (list, tuple) or (type(value) is dict and "__builtins__" not in value)


def letting_go(frame: FrameType, value: Any) -> set[int]:
    """The ids of lists and dictionaries whose only reference to the value is an item that the instructions behind the
    call overwrite: `states` in `for i, state in enumerate(states): states[i] = step(state)`."""
    slots, ids = Slots([], ""), set()
    for event in site_of(frame).events:
        if event.does == "store" and event.place[-1].kind == "item" and slots.peek(frame, event.place) is value:
            owner = slots.peek(frame, event.place[:-1])
            if sum(map(operator.is_, gc.get_referents(owner), itertools.repeat(value))) == 1:  # it may be a large one
                ids.add(id(owner))
    return ids


def _assigned(flow: Flow, at: int, local: int) -> int | None:
    """The line of the last assignment to the local that may come before instruction `at`, which in a loop may stand
    behind it; the function's first line if there is none, as for a parameter."""
    code, jumps = flow.instructions, flow.once(_jumps_backward)
    last = next((n for n in jumps if n >= at and code[n].argval <= code[at].offset), at)
    writers = flow.once(_writers).get(local, [])
    before = bisect.bisect_right(writers, last)
    if not before:
        return flow.code.co_firstlineno
    positions = code[writers[before - 1]].positions
    return positions.lineno if positions else None


def _jumps_backward(flow: Flow) -> list[int]:
    """The instructions that jump backwards, the last first."""
    return [n for n, each in enumerate(flow.instructions) if "JUMP_BACKWARD" in each.opname][::-1]


def _writers(flow: Flow) -> dict[int, list[int]]:
    """By local: the instructions that write it."""
    writers: dict[int, list[int]] = {}
    for n, written in enumerate(flow.writes):
        for local in bits(written):
            writers.setdefault(local, []).append(n)
    return writers


def sources(frame: FrameType) -> frozenset[Step]:
    """The last steps of the places that the call's expression loads: its globals, attributes and items."""
    try:
        places = loaded(flow_of(frame.f_code), site_of(frame).at)
    except NotTrusted:
        return frozenset()
    return frozenset(place[-1] for place in places if place[-1].kind in ("global", "attribute", "item"))


def in_members(frame: FrameType, value: Any, roots: Sequence[Any]) -> Held | None:
    """The global, attribute or item that holds the value and that the call's expression loads."""
    try:
        places = loaded(flow_of(frame.f_code), site_of(frame).at)
    except NotTrusted:
        return None
    slots = Slots(roots, "")
    stands = [(place, slots.peek(frame, place)) for place in places]
    for place, found in stands:
        if found is value:
            if place[-1].kind == "global":
                return _by_globals(frame.f_globals, value, sources(frame))
            if held := _member(slots, frame, place):
                return held
    for place, found in stands:  # the arguments of a call with `*` or `**`
        has = type(found) in (tuple, dict) and any(part is value for part in gc.get_referents(found))
        if has and (held := _member(slots, frame, place)):
            return dataclasses.replace(held, text=f"an item of {held.text}")
    return None


def _member(slots: Slots, frame: FrameType, place: Place) -> Held | None:
    """A place in words if it is an attribute or an item, else None."""
    last = place[-1]
    if last.kind not in ("attribute", "item"):
        return None
    owner = type(slots.peek(frame, place[:-1])).__name__
    if last.kind == "attribute":
        return Held("attribute", f"attribute `{last.name}` of {owner}", source=last)
    named = f"item {last.name!r} of a {owner}" if isinstance(last.name, str | int) else f"a {owner}"
    return Held("item", named, source=last)


def lasting(held: Held, frame: FrameType, refusals: Sequence[str]) -> Held:
    """`held`; if it is the place that the call loaded the value from, with the reason why that place is not dead.

    `refusals` are the reasons why no slot is dead at this call, although the result is stored there.
    """
    if held.source is None:
        return held
    stored = {event.place[-1] for event in site_of(frame).events if event.does == "store"}
    if held.source not in stored:
        if held.kind == "global":
            return held  # its text says enough
        why = ", to which the result is not assigned at once"
    elif refusals:
        return dataclasses.replace(held, text=f"{held.text}: {refusals[0]}", onlooker=refusals[0])
    else:
        why = ", and something may read it before the result is there"
    return dataclasses.replace(held, text=held.text + why)


def in_handlers(frame: FrameType, value: Any) -> str:
    """The variable of the callers that has the value and is read again only if the call raises, in words; else ""."""
    above: FrameType | None = frame
    for _ in range(_HIGHEST):
        if above is None:
            break
        site, names = site_of(above), above.f_code.co_varnames
        for number in site.dead(True, site.unpacks) - site.dead(False, None):
            if variable(above, number) is value:
                return f"`{names[number]}` in {place_in(above, None)}, which an exception handler reads"
        above = above.f_back
    return ""


def in_objects(value: Any, referrers: Referrers, dead: Set[int], arguments: frozenset[Step]) -> Held | None:
    """An object that refers to the value, in words. Not one of the `dead` (ids), whose references are accounted for;
    `arguments` are the `sources` of the call."""
    found: list[Held] = []
    for referrer in referrers.of(value):  # a loop, because a comprehension would capture the value in a cell
        if id(referrer) not in dead and (held := _by(referrer, value, referrers, arguments)) is not None:
            found.append(held)  # noqa: PERF401
    order = get_args(_OfObjects)
    return min(found, key=lambda held: (held.source is not None, order.index(held.kind)), default=None)


def _by(referrer: Any, value: Any, referrers: Referrers, arguments: frozenset[Step]) -> Held | None:
    if isinstance(referrer, FrameType):
        return None
    if isinstance(referrer, dict):
        return _by_dict(referrer, value, referrers, arguments)
    if isinstance(referrer, types.CellType):
        return Held("closure", "a nested function that has captured it")
    if isinstance(referrer, list | tuple | set | frozenset):
        if type(referrer) is tuple and (iterator := _hands_out(referrer, referrers)):
            return Held("item", f"the `{iterator}` of a loop, which holds what it has handed out until the next")
        name = _named(referrer, referrers)
        return Held("item", f"an item of {name or f'a {type(referrer).__name__}{_around(referrer, referrers)}'}")
    if isinstance(referrer, types.GeneratorType | types.CoroutineType):
        return Held("unknown", f"the suspended {referrer.__qualname__}")
    if type(referrer).__name__ == "managedbuffer":
        return Held("unknown", "a NumPy array or a memoryview that shows its memory")
    names = _attributes(referrer, value)
    if names:
        return _by_name("attribute", names, f"attribute `{{}}` of {type(referrer).__name__}", arguments)
    return Held("unknown", f"a {type(referrer).__qualname__}")


def _by_name(kind: Literal["attribute", "item"], names: Sequence[Any], text: str, arguments: frozenset[Step]) -> Held:
    """The holder of the value under one of `names` in one object: if possible, a name that the call did not read."""
    others = [name for name in names if Step(kind, name) not in arguments]
    return Held(kind, text.format((others or names)[0]), source=None if others else Step(kind, names[0]))


def _by_dict(space: dict[Any, Any], value: Any, referrers: Referrers, arguments: frozenset[Step]) -> Held | None:
    """The dictionary `space`, which refers to the value."""
    if "__name__" in space and "__builtins__" in space:
        return _by_globals(space, value, arguments)
    keys = [key for key, item in space.items() if item is value]
    if not keys:
        return None
    key = keys[0]
    owners = referrers.of(space)
    if isinstance(key, int) and any(isinstance(owner, dict) and owner.get("Out") is space for owner in owners):
        return Held("history", f"IPython's Out[{key}]")
    for owner in owners:
        if not isinstance(owner, type) and _own(owner) is space:
            return _by_name("attribute", keys, f"attribute `{{}}` of {type(owner).__name__}", arguments)
    name = _named(space, referrers)
    text = f"{name}[{{!r}}]" if name else f"item {{!r}} of a {type(space).__name__}{_around(space, referrers)}"
    return _by_name("item", keys, text, arguments)


def _by_globals(space: dict[Any, Any], value: Any, arguments: frozenset[Step] = frozenset()) -> Held | None:
    """The globals of a module, which refer to the value."""
    keys = [key for key, item in space.items() if item is value]
    if not keys:
        return None
    file = space.get("__file__")
    where = f" in {pathlib.Path(file).name}" if isinstance(file, str) else ""
    others = [key for key in keys if Step("global", key) not in arguments]
    text = f"also `{others[0]}`{where}" if others else f"the global `{keys[0]}`{where}, which any function can read"
    source = None if others else Step("global", keys[0])
    return Held("global", text, file if isinstance(file, str) else None, source=source)


def _attributes(owner: Any, value: Any) -> list[str]:
    names = [name for name, attribute in _own(owner).items() if attribute is value]
    for base in bases_of(type(owner)):
        for name, kind in attributes_of(base).items():
            if isinstance(kind, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # it is not set
                    names += [name] if kind.__get__(owner) is value else []
    return names


def _own(owner: Any) -> dict[str, Any]:
    """The `__dict__` of an object, read without running code of its class."""
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return own if isinstance(own, dict) else {}


def _hands_out(container: tuple[Any, ...], referrers: Referrers) -> str:
    """The iterator that reuses this tuple for each item, in words; "" if none does."""
    owners = (REUSE_A_TUPLE.get(type(owner)) for owner in referrers.of(container))
    return next((name for name in owners if name is not None), "")


def _named(container: Any, referrers: Referrers) -> str:
    """The global or attribute that a container is stored in, in words; "" if there is none."""
    for referrer in referrers.of(container):
        if isinstance(referrer, dict):
            if "__name__" in referrer and "__builtins__" in referrer and (held := _by_globals(referrer, container)):
                return held.text.removeprefix("also ")
            keys = [key for key, item in referrer.items() if item is container]
            for owner in referrers.of(referrer):
                if keys and not isinstance(owner, type | dict) and _own(owner) is referrer and not _is_ours(owner):
                    return f"attribute `{keys[0]}` of {type(owner).__name__}"
        elif isinstance(referrer, FrameType | list | tuple | type) or _is_ours(referrer):
            continue
        elif names := _attributes(referrer, container):
            return f"attribute `{names[0]}` of {type(referrer).__name__}"
    return ""


def _is_ours(owner: Any) -> bool:
    """Whether it is of a class of pytc's: the proof's own lists have what it looks at."""
    return str(type(owner).__module__).partition(".")[0] == "pytc"


def _around(container: Any, referrers: Referrers, levels: int = _DEEPEST - 1) -> str:
    """`_named` of what is around a container that has no name itself, as words behind it; "" if there is nothing."""
    for referrer in referrers.of(container):
        if _is_container(referrer):
            if name := _named(referrer, referrers):
                return f" in {name}"
            if levels > 1 and (further := _around(referrer, referrers, levels - 1)):
                return further
    return ""


def in_threads(value: Any) -> Held | None:
    """The variable of another thread that has the value."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, top in other_frames().items():
        frame: FrameType | None = top
        while frame is not None:
            for number, name in enumerate(frame.f_code.co_varnames):
                if variable(frame, number) is value:
                    text = f"`{name}` in thread {names.get(ident, ident)!r}, {place_in(frame, None)}"
                    return Held("thread", text, frame.f_code.co_filename, frame.f_lineno)
            frame = frame.f_back
    return None


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
    left, at = _MOST_ON_PATHS + 4 * len(ends), 0
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
    """Whether a path may go on behind the value. It may not behind one with more items than there are leaves, and some
    thousands: that is not a container of leaves."""
    if id(value) in ends or not gc.is_tracked(value):
        return False
    if isinstance(value, type | types.FunctionType | types.ModuleType):
        return False
    return type(value) not in (list, tuple, dict) or len(value) <= _LARGEST + len(ends)


def _path(place: int, seen: Sequence[Any], above: Sequence[int]) -> list[Any]:
    """What leads to the object at a place of `seen`, if `above` tells of each where that is by which it was found."""
    path = []
    while place >= 0:
        path.append(seen[place])
        place = above[place]
    return path[::-1]


def oddity(value: Any) -> Held | None:
    """What reaches the value without a counted reference to it, if anything does."""
    if not counts.only_marked(value):
        return Held("weakref", "a weak reference")
    if defines(type(value), "__del__") and not isinstance(value, jax.Array):
        return Held("finaliser", f"{type(value).__name__}.__del__, which can read it")
    if interpreter.may_share_attributes(type(value)) and interpreter.share_attributes([value]):
        return Held("attribute", f"the `__dict__` of {type(value).__name__}, which something else has")
    return None


def explain_interpreter() -> Held | None:
    """Why nothing at all can be proven now, if so."""
    if interpreter.refusal:
        return Held("interpreter", interpreter.refusal)
    observer = interpreter.observer()
    return Held("observer", observer) if observer else None
