"""The instructions around a call, executed symbolically: where its arguments came from, and where its result goes.

A `Place` says where a value is found: a variable, then attributes and items. Places consist of names only. Whether
reading or storing one runs no code depends on the objects, which `slots` examines at each call.
"""

from __future__ import annotations

import dataclasses
import dis
from typing import Any, Literal, TypeAlias

from pytc.interrupt import SUSPENDS
from pytc.ownership.collector import WHILE_ALLOCATING
from pytc.ownership.liveness import ControlFlow

Kind: TypeAlias = Literal["fast", "cell", "global", "attribute", "item"]


@dataclasses.dataclass(frozen=True)
class Step:
    """One step on the way to a value."""

    kind: Kind
    name: Any
    """A local's or cell's number, a global's or attribute's name, an item's key or the `Place` it is in."""


Place: TypeAlias = tuple[Step, ...]


Lengths: TypeAlias = tuple[Any, ...] | None
"""What is known of a result that is taken apart: of a tuple or a list a tuple of the `Lengths` of its items; None of
anything else, and where nothing is known."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the call's result, on the symbolic stack."""

    path: tuple[int, ...]
    """The indices that lead to it."""

    def lengths(self, result: Lengths) -> Lengths:
        """Those of the part, if these are the result's; None if there is no such part."""
        for index in self.path:
            if result is None or not -len(result) <= index < len(result):
                return None
            result = result[index]
        return result


RESULT = Part(())
"""The whole result."""


@dataclasses.dataclass(frozen=True)
class Built:
    """A tuple that was made behind the call, on the symbolic stack."""

    items: tuple[Any, ...]

    def lengths(self, result: Lengths) -> Lengths:
        """Those of the tuple, if these are the result's."""
        return tuple(item.lengths(result) if isinstance(item, Part | Built) else None for item in self.items)


@dataclasses.dataclass(frozen=True)
class Constant:
    """A constant, on the symbolic stack."""

    value: Any


Value: TypeAlias = Place | Constant | Part | Built | None
"""On the symbolic stack. None is an unknown value."""


@dataclasses.dataclass(frozen=True)
class Event:
    """An instruction behind the call that matters: a store, a load that must be plain, or one that takes a part of the
    result apart."""

    does: Literal["store", "load", "unpack", "pick"]
    place: Place = ()
    part: Part = RESULT
    """What is unpacked, or picked from."""
    number: int = 0
    """Into how many items it is unpacked, or the index of the one that is picked; the others are dropped then."""

    def takes_apart(self, lengths: Lengths) -> bool:
        """Whether this takes apart a tuple or a list that has these items, if the result is of these `lengths`: then it
        runs no code, but for what is dropped, and cannot raise."""
        part = self.part.lengths(lengths)
        if part is None:
            return False
        return len(part) == self.number if self.does == "unpack" else -len(part) <= self.number < len(part)


def loaded(flow: ControlFlow, at: int) -> list[Place]:
    """Every place that the expression of instruction `at` loads, as far as can be told: its arguments may come from
    there."""
    starts = flow.once(_starts)
    first = at
    while first not in starts:
        first -= 1
        if not _within(flow.instructions[first].positions, flow.instructions[at].positions):
            break
    return [place for n in range(first, at) for place in places_loaded(flow, n)]


def _starts(flow: ControlFlow) -> frozenset[int]:
    """The instructions that do not just come behind the one before them: what is on the stack there is not told from
    that one alone."""
    targets = {n for follows in flow.follows for n in follows[:1]} | {h for h in flow.handlers if h is not None}
    ends = {n + 1 for n, follows in enumerate(flow.follows) if not follows}
    return frozenset({0} | {n for n in targets if n > 0 and flow.follows[n - 1] != (n,)} | ends)


def places_loaded(flow: ControlFlow, at: int) -> tuple[Place, ...]:
    """The places that instruction `at` loads, as far as can be told from those before it."""
    return _moves(flow, at)[0]


def renamed(flow: ControlFlow, at: int) -> frozenset[int]:
    """The local variables (numbers) that instruction `at` gives the value of another place, as far as can be told."""
    return _moves(flow, at)[1]


_Moves: TypeAlias = dict[int, tuple[tuple[Place, ...], frozenset[int]]]


def _moves(flow: ControlFlow, at: int) -> tuple[tuple[Place, ...], frozenset[int]]:
    """Both. Instructions are executed from the last one on at which the stack is empty, where one behind it is asked
    for: a call site has to do with few of those of a long function."""
    known, starts = flow.once(_nothing_known), flow.once(_starts)
    if at not in known:
        n = next(n for n in range(at, -1, -1) if n in starts or flow.heights[n] == 0)
        walk = _Walk(lenient=True)
        while n <= at:
            walk.seen.clear()
            walk.renamed.clear()
            walk.step(flow.instructions[n])
            known[n] = tuple(walk.seen), frozenset(walk.renamed)
            n += 1
    return known[at]


def _nothing_known(_: ControlFlow) -> _Moves:
    return {}


def _within(inner: dis.Positions | None, outer: dis.Positions | None) -> bool:
    """Whether a piece of source is part of another; also True if that is not known."""
    if inner is None or outer is None or None in inner or None in outer:
        return True
    start, end = (outer.lineno, outer.col_offset), (outer.end_lineno, outer.end_col_offset)
    return start <= (inner.lineno, inner.col_offset) and (inner.end_lineno, inner.end_col_offset) <= end


def behind(flow: ControlFlow, at: int) -> tuple[tuple[Event, ...], bool, Value]:
    """What happens behind the call at instruction `at`, up to the first instruction that may run Python code; whether
    the function then returns; and what of the call's result it returns, if it does."""
    walk = _Walk(lenient=False)
    walk.stack.append(RESULT)
    for n in range(at + 1, len(flow.instructions)):
        instruction = flow.instructions[n]
        if instruction.opname in ("RETURN_VALUE", "RETURN_CONST"):
            passes_result_on = not walk.stack or not isinstance(walk.stack[-1], tuple)
            # Values that the walk took from beneath the call's result are then in variables or a tuple, and may die as
            # the function returns. At the call they are only on the stack, where `slots` does not look.
            returns = passes_result_on and not walk.digs and not flow.code.co_flags & SUSPENDS
            returned = walk.stack[-1] if returns and instruction.opname == "RETURN_VALUE" and walk.stack else None
            return _needed(walk.events), returns, returned
        if not walk.step(instruction):
            break
    return _needed(walk.events), False, None


def taken_apart(flow: ControlFlow, at: int) -> tuple[tuple[Event, ...], int]:
    """The events that take apart the result of the call at instruction `at`, among the instructions behind it that only
    do that and store the parts in local variables; and the number of the last of them, `at` if there is none."""
    walk, last = _Walk(lenient=False), at
    walk.stack.append(RESULT)
    for n in range(at + 1, len(flow.instructions)):
        name = flow.instructions[n].opname
        if name not in _TAKE_APART or not walk.step(flow.instructions[n]):
            break
        if name in ("UNPACK_SEQUENCE", "BINARY_SUBSCR"):
            last = n
    return tuple(event for event in walk.events if event.does in ("unpack", "pick")), last


_TAKE_APART = {
    *("NOP", "CACHE", "EXTENDED_ARG", "LOAD_CONST", "SWAP", "STORE_FAST", "STORE_FAST_STORE_FAST"),
    *("UNPACK_SEQUENCE", "BINARY_SUBSCR"),
}


def cannot_raise(events: tuple[Event, ...]) -> bool:
    """Whether the events are only stores to variables, and loads of variables stored before: others may be unbound.
    Those that take the result apart are for `Event.takes_apart` to tell of."""
    stored = set()
    for event in events:
        if event.does in ("unpack", "pick"):
            continue
        if len(event.place) != 1 or event.place[0].kind != "fast":
            return False
        if event.does == "store":
            stored.add(event.place)
        elif event.place not in stored:
            return False
    return True


_END = Event("unpack")


def _needed(events: list[Event]) -> tuple[Event, ...]:
    """The events without the loads that only begin the place of the store that follows: whoever examines the store
    examines these, too."""
    return tuple(
        event
        for event, following in zip(events, [*events, _END][1:], strict=True)
        if event.does != "load" or following.does != "store" or event.place != following.place[:-1][: len(event.place)]
    )


_METHODS_ARE_ATTRIBUTES = "LOAD_SUPER_ATTR" in dis.opmap
"""Whether `LOAD_ATTR` also loads methods for calls, with a bit set in its argument: from CPython 3.12 on."""


class _Walk:
    """Executes consecutive instructions on a symbolic stack.

    If it is `lenient`, it steps over unknown instructions, and `seen` has only hints; otherwise it stops there.
    """

    def __init__(self, lenient: bool):
        self.lenient = lenient
        self.stack: list[Value] = []
        self.digs = False
        """Whether a value was taken that was on the stack, beneath the call's, before the call."""
        self.events: list[Event] = []
        self.seen: list[Place] = []
        """Every place that was loaded."""
        self.renamed: set[int] = set()
        """The local variables that were given the value of a place."""
        self.stored: dict[Place, Value] = {}
        """What each place was given: the result or a part of it, or None for something else."""
        self.taken: Value = None
        """The value that is about to be stored."""

    def pop(self) -> Value:
        if self.stack:
            return self.stack.pop()
        self.digs = True
        return None

    def new(self) -> bool:
        """Take the value that is about to be stored. False if it was loaded from a place, and so may be older than the
        call: it would live on in its new place when the old one is overwritten."""
        self.taken = self.pop()
        return not isinstance(self.taken, tuple) or self.lenient

    def load(self, place: Place | None) -> None:
        # A place that was stored has part of the result, not what it had at the call.
        known = place is not None and place in self.stored and not self.lenient
        self.stack.append(self.stored[place] if known and place is not None else place)
        if place is not None:
            self.seen.append(place)
            if not (known and len(place) == 1):  # a variable that was stored is bound
                self.events.append(Event("load", place))

    def store(self, place: Place) -> None:
        if isinstance(self.taken, tuple) and len(place) == 1 and place[0].kind == "fast":
            self.renamed.add(place[0].name)
        self.stored[place] = self.taken if isinstance(self.taken, Part) and len(place) == 1 else None
        if len(place) > 1:  # an attribute of a module, or an item of its `__dict__`, is a global
            self.stored.update((other, None) for other in [*self.stored] if other[0].kind != "fast")
        self.events.append(Event("store", place))

    def fast(self, number: int) -> Place:
        return (Step("fast", number),)

    def step(self, instruction: dis.Instruction) -> bool:
        """Execute an instruction. False if it may run Python code, unless `lenient`."""
        for does in (self._with_variables, self._with_members, self._with_the_stack):
            done = does(instruction.opname, instruction.arg or 0, instruction.argval)
            if done is not None:
                return done
        if self.lenient:
            self._skip(instruction)
        return self.lenient

    def _with_variables(self, name: str, argument: int, named: Any) -> bool | None:
        high, low = self.fast(argument >> 4), self.fast(argument & 15)
        stores: tuple[Place, ...] = ()
        loads: tuple[Place, ...] = ()
        match name:
            case "LOAD_FAST" | "LOAD_FAST_CHECK":
                loads = (self.fast(argument),)
            case "LOAD_FAST_LOAD_FAST":
                loads = high, low
            case "STORE_FAST":
                stores = (self.fast(argument),)
            case "STORE_FAST_STORE_FAST":
                stores = high, low
            case "STORE_FAST_LOAD_FAST":
                stores, loads = (high,), (low,)
            case "LOAD_DEREF":
                loads = ((Step("cell", argument),),)
            case "STORE_DEREF":
                stores = ((Step("cell", argument),),)
            case "LOAD_GLOBAL" | "LOAD_NAME":
                if name == "LOAD_GLOBAL" and argument & 1:
                    self.stack.append(None)
                loads = ((Step("global", named),),)
            case "STORE_GLOBAL" | "STORE_NAME":
                stores = ((Step("global", named),),)
            case _:
                return None
        for place in stores:
            if not self.new():
                return False
            self.store(place)
        for place in loads:
            self.load(place)
        return True

    def _with_members(self, name: str, argument: int, named: Any) -> bool | None:
        match name:
            case "LOAD_ATTR" if not (_METHODS_ARE_ATTRIBUTES and argument & 1):
                return self._member("attribute", named, self.pop())
            case "BINARY_SUBSCR":
                key, target = self.pop(), self.pop()
                if isinstance(target, Part) and isinstance(key, Constant) and type(key.value) is int:
                    self.events.append(Event("pick", part=target, number=key.value))
                    self.stack.append(Part((*target.path, key.value)))
                    return True
                return self._member("item", key, target)
            case "STORE_ATTR":
                target = self.pop()
                return self.new() and self._store_member("attribute", named, target)
            case "STORE_SUBSCR":
                key, target = self.pop(), self.pop()
                return self.new() and self._store_member("item", key, target)
            case _:
                return None

    def _with_the_stack(self, name: str, argument: int, named: Any) -> bool | None:
        match name:
            case "NOP" | "CACHE" | "EXTENDED_ARG":
                pass
            case "PUSH_NULL":
                self.stack.append(None)
            case "LOAD_CONST":
                self.stack.append(Constant(named))
            case "UNPACK_SEQUENCE":
                whole = self.pop()
                if isinstance(whole, Part):
                    self.events.append(Event("unpack", part=whole, number=argument))
                    self.stack.extend(Part((*whole.path, index)) for index in reversed(range(argument)))
                    return True
                self.stack.extend([None] * argument)
                return self.lenient  # the length of anything but the result is unknown, so this may raise
            case "POP_TOP":
                # Dropping the result, or a part of it, may run code.
                return isinstance(self.pop(), tuple | Constant) or self.lenient
            case "COPY" if len(self.stack) >= argument:
                self.stack.append(self.stack[-argument])
            case "SWAP" if len(self.stack) >= argument:
                self.stack[-1], self.stack[-argument] = self.stack[-argument], self.stack[-1]
            case "BUILD_TUPLE":
                new, items = True, []
                for _ in range(argument):
                    new = self.new() and new
                    items.append(self.taken)
                self.stack.append(Built(tuple(reversed(items))))
                return new and not (WHILE_ALLOCATING and argument)
            case _:
                return None
        return True

    def _member(self, kind: Kind, name: Any, target: Value) -> bool:
        place = _member_place(kind, name, target)
        self.load(place)
        return self.lenient or place is not None

    def _store_member(self, kind: Kind, name: Any, target: Value) -> bool:
        place = _member_place(kind, name, target)
        if place is None:
            return False
        self.store(place)
        return True

    def _skip(self, instruction: dis.Instruction) -> None:
        """Step over an instruction by its effect on the height of the stack."""
        jump = False if instruction.opcode in (*dis.hasjrel, *dis.hasjabs) else None
        has_argument = instruction.opcode >= dis.HAVE_ARGUMENT
        change = dis.stack_effect(instruction.opcode, instruction.arg if has_argument else None, jump=jump)
        # Which entries it replaces is unknown, so all are.
        for _ in range(-change):
            self.pop()
        self.stack = [None] * (len(self.stack) + max(change, 0))


def _member_place(kind: Kind, name: Any, target: Value) -> Place | None:
    """The place of a member; None if the place of its owner or the key is unknown."""
    if not isinstance(target, tuple):
        return None
    if kind == "item":
        if isinstance(name, Constant):
            if type(name.value) not in (str, int):
                return None
            name = name.value
        elif not isinstance(name, tuple):
            return None
    return (*target, Step(kind, name))
