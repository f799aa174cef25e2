"""The loop around a call, and what it does each time around."""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pytc.ownership.bytecode.events import Place
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.stores import may_store
from pytc.ownership.bytecode.symbolic import places_loaded, renamed
from pytc.set_bits import set_bits


class Body:
    """The instructions of a loop. What they do, taken together, is found out once: a call asks for each of its
    variables."""

    def __init__(self, instructions: Iterable[int] = ()) -> None:
        self.instructions = frozenset(instructions)
        self._done: _Done | None = None

    def done(self, flow: ControlFlow) -> _Done:
        """What they do with local variables. `flow` is that of the code, which has this object."""
        if self._done is None:
            self._done = _Done.by(flow, sorted(self.instructions))
        return self._done


class _Done(NamedTuple):
    """What instructions do with local variables (numbers, or their bits)."""

    reads: int
    writers: Mapping[int, int]
    """How many write each."""
    renames: frozenset[int]

    @classmethod
    def by(cls, flow: ControlFlow, instructions: Sequence[int]) -> _Done:
        reads = functools.reduce(operator.or_, (flow.reads[n] for n in instructions), 0)
        writers = collections.Counter(number for n in instructions for number in set_bits(flow.writes[n]))
        return cls(reads, writers, frozenset().union(*(renamed(flow, n) for n in instructions)))


@dataclasses.dataclass(frozen=True)
class Loop:
    """The innermost loop around a call. (What a loop further out keeps, it keeps of one call of many.)"""

    flow: ControlFlow
    at: int
    """The call's instruction."""
    of: Body

    @property
    def body(self) -> frozenset[int]:
        """The instructions of the loop; empty if there is none."""
        return self.of.instructions

    def renames(self, local: int) -> bool:
        """Whether something that has a name already is given to a local variable (its number) in the loop, alone or in
        a new container, be it on some ways around only: `if loss < least: best = state, step`. Not if a call makes it:
        `ema = average(ema, state)`."""
        return local in self.of.done(self.flow).renames

    def reads(self, local: int) -> bool:
        """Whether the loop reads a local variable (its number)."""
        return bool(self.of.done(self.flow).reads >> local & 1)

    def always_stores(self, place: Place) -> bool:
        """Whether something is stored to a place each time around, or to one of the same last name: `last = state`."""
        return any(may_store(self.flow, n, place[-1]) for n in self._always_passed)

    def appends(self) -> list[Place]:
        """What each time around is appended to something: `history.append(state)`, `history.append((state, loss))`,
        `history += [state]`. Not if the loop also takes something out of that, or gets the state from elsewhere, as
        from a queue."""
        methods = [n for n in self.body if self.flow.instructions[n].opname in _METHODS]
        emptied = {self._owner(n) for n in methods if self.flow.instructions[n].argval in _EMPTY}
        found: list[Place] = []
        for n in methods:
            history = self._owner(n)
            if self.flow.instructions[n].argval != "append" or not history or history in emptied:
                continue
            if not self._writers(history[0]) and n in self._always_passed:
                found += [place for place in _appended(self.flow, n) if self._writers(place) <= 1]
        for n in self.body:
            history, items = _extended(self.flow, n)
            if history and history not in emptied and self._writers(history[0]) <= 1 and n in self._always_passed:
                found += [place for place in items if self._writers(place) <= 1]
        return found

    @functools.cached_property
    def _always_passed(self) -> frozenset[int]:
        """The instructions that are on every way around the loop, from call to call.

        They are on any one way. Where that is left, what is reached besides it shows how far another way may lead past
        it; what none leads past is on all of them. Each instruction is looked at once. (All are, where there is no way
        around but by an exception.)
        """
        way = self._way_around()
        if not way:
            return self.body
        places = {n: place for place, n in enumerate(way)}
        found: set[int] = set()
        seen: set[int] = set()
        furthest = 0
        for place, n in enumerate(way):
            if place >= furthest:
                found.add(n)
            ahead = [n]
            while ahead:
                for each in self.flow.follows[ahead.pop()]:
                    if each == self.at:
                        furthest = len(way)
                    elif each in places:
                        furthest = max(furthest, places[each])
                    elif each in self.body and each not in seen:
                        seen.add(each)
                        ahead.append(each)
        return frozenset(found)

    def _way_around(self) -> list[int]:
        """The instructions of a shortest way around the loop, from the call on; nothing if there is none."""
        came_from: dict[int, int] = {}
        ahead = collections.deque([self.at])
        while ahead and self.at not in came_from:
            n = ahead.popleft()
            for each in self.flow.follows[n]:
                if each in self.body and each not in came_from:
                    came_from[each] = n
                    ahead.append(each)
        if self.at not in came_from:
            return []
        way = [came_from[self.at]]
        while way[-1] != self.at:
            way.append(came_from[way[-1]])
        return way[::-1]

    def _owner(self, method: int) -> tuple[Place, ...]:
        """What an instruction loads a method of; empty if that is not told."""
        return places_loaded(self.flow, method - 1)[-1:]

    def _writers(self, place: Place) -> int:
        """How many instructions of the loop write the local variable that a place begins with."""
        return self.of.done(self.flow).writers.get(place[0].name, 0) if place[0].kind == "fast" else 0


_EMPTY = ("pop", "popleft", "clear", "remove")
"""Methods that take something out of a list or a queue."""
_METHODS = ("LOAD_METHOD", "LOAD_ATTR")


def loop_around(flow: ControlFlow, at: int) -> Loop:
    """The innermost loop around instruction `at`."""
    bodies = [body for body in flow.once(_bodies) if at in body.instructions]
    return Loop(flow, at, min(bodies, key=lambda body: len(body.instructions), default=_NO_BODY))


_NO_BODY = Body()


def _bodies(flow: ControlFlow) -> list[Body]:
    """The instructions of each loop.

    A jump backwards from `n` to `head` is the end of a loop that begins at `head`. Its instructions are those from
    which `n` is reached without passing `head` (natural loops: Aho, Lam, Sethi, Ullman, "Compilers", 9.6.6).
    """
    bodies: dict[int, set[int]] = {}
    precedes: list[list[int]] = [[] for _ in flow.follows]
    for n, follows in enumerate(flow.follows):
        for m in follows:
            precedes[m].append(n)
            if m <= n:
                bodies.setdefault(m, {m}).add(n)
    for head, body in bodies.items():
        ahead = [n for n in body if n != head]
        while ahead:
            new = {*precedes[ahead.pop()]} - body
            body |= new
            ahead += new
    return [*map(Body, bodies.values())]


def _appended(flow: ControlFlow, method: int) -> list[Place]:
    """The places that are loaded for the call of the method which an instruction loads, if its argument is one of them,
    or a tuple with some."""
    found: list[Place] = []
    for n in range(method + 1, len(flow.instructions) - 1):
        name = flow.instructions[n].opname
        if name in ("PRECALL", "CALL"):
            taken = flow.instructions[n + (2 if name == "PRECALL" else 1)].opname
            return found if taken == "POP_TOP" else []  # else it is another call, for the argument
        if not name.startswith(("LOAD_", "BINARY_SUBSCR", "BUILD_TUPLE", "PUSH_NULL")):
            break
        for place in places_loaded(flow, n):
            found = [each for each in found if each != place[: len(each)]] + [place]
    return []


def _extended(flow: ControlFlow, at: int) -> tuple[tuple[Place, ...], list[Place]]:
    """What `history += [state]` or `+= (state,)` adds to, and the places that it adds, alone or in a tuple; nothing if
    that is not what this instruction does."""
    instruction = flow.instructions[at]
    if (
        instruction.opname != "BINARY_OP"
        or instruction.argrepr != "+="
        or flow.instructions[at - 1].opname not in ("BUILD_LIST", "BUILD_TUPLE")
    ):
        return (), []
    beneath = flow.heights[at]
    found: list[Place] = []
    for n in range(at - 2, 0, -1):
        if flow.instructions[n].opname == "STORE_FAST_LOAD_FAST":  # both statements are on one line
            return places_loaded(flow, n)[:1], found
        if not flow.instructions[n].opname.startswith(("LOAD_", "BINARY_SUBSCR", "BUILD_TUPLE")):
            break
        places = [*places_loaded(flow, n)]
        if beneath is not None and (flow.heights[n] == beneath - 2 or flow.heights[n + 1] == beneath - 1):
            return tuple(places[:1]), found + places[1:]  # an instruction may load two variables
        found += [place for place in places if not any(place == each[: len(place)] for each in found)]
    return (), []
