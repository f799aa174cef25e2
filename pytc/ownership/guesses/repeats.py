"""Which calls follow a call from the same place or behind it, and what the code does in between: for guesses, and no
part of the proof."""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from types import FrameType

from pytc.ownership.bytecode.events import Place, Step
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.sites import NotTrusted, flow_of, site_of
from pytc.ownership.bytecode.stack import HIGHEST_READ
from pytc.ownership.bytecode.symbolic import places_loaded, renamed


@dataclasses.dataclass(frozen=True)
class Loop:
    """The innermost loop around a call. (What a loop further out keeps, it keeps of one call of many.)"""

    flow: ControlFlow
    at: int
    """The call's instruction."""
    body: frozenset[int]
    """The instructions of the loop; empty if there is none."""

    def renames(self, local: int) -> bool:
        """Whether something that has a name already is given to a local variable (its number) in the loop, alone or in
        a new container, be it on some ways around only: `if loss < least: best = state, step`. Not if a call makes it:
        `ema = average(ema, state)`."""
        return any(local in renamed(self.flow, n) for n in self.body)

    def reads(self, local: int) -> bool:
        """Whether the loop reads a local variable (its number)."""
        return any(self.flow.reads[n] >> local & 1 for n in self.body)

    def always_stores(self, place: Place) -> bool:
        """Whether something is stored to a place each time around, or to one of the same last name: `last = state`."""
        stores = [n for n in self.body if _may_store(self.flow, n, place[-1])]
        return any(self._is_always_passed(n) for n in stores)

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
            if not self._writers(history[0]) and self._is_always_passed(n):
                found += [place for place in _appended(self.flow, n) if self._writers(place) <= 1]
        for n in self.body:
            history, items = _extended(self.flow, n)
            if history and history not in emptied and self._writers(history[0]) <= 1 and self._is_always_passed(n):
                found += [place for place in items if self._writers(place) <= 1]
        return found

    def _is_always_passed(self, n: int) -> bool:
        """Whether no way leads around the loop, from call to call, but through this instruction."""
        return self.at not in _reached(self.flow, self.at, self.body - {n})

    def _owner(self, method: int) -> tuple[Place, ...]:
        """What an instruction loads a method of; empty if that is not told."""
        return places_loaded(self.flow, method - 1)[-1:]

    def _writers(self, place: Place) -> int:
        """How many instructions of the loop write the local variable that a place begins with."""
        if place[0].kind != "fast":
            return 0
        return sum(self.flow.writes[n] >> place[0].name & 1 for n in self.body)


_EMPTY = ("pop", "popleft", "clear", "remove")
"""Methods that take something out of a list or a queue."""
_METHODS = ("LOAD_METHOD", "LOAD_ATTR")


def loop_around(flow: ControlFlow, at: int) -> Loop:
    """The innermost loop around instruction `at`."""
    bodies = [body for body in flow.once(_bodies) if at in body]
    return Loop(flow, at, min(bodies, key=len, default=frozenset()))


def _bodies(flow: ControlFlow) -> list[frozenset[int]]:
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
    return [frozenset(body) for body in bodies.values()]


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


def is_stored_behind(flow: ControlFlow, at: int, place: Place) -> bool:
    """Whether a variable is written on some way from instruction `at` on."""
    (step,) = place
    behind = _reached(flow, at, range(len(flow.follows)))
    return any(_may_store(flow, n, step) for n in behind)


def _reached(flow: ControlFlow, at: int, within: Set[int] | range) -> set[int]:
    """The instructions of `within` that are reached from `at`."""
    reached: set[int] = set()
    ahead = [at]
    while ahead:
        new = {n for n in flow.follows[ahead.pop()] if n in within} - reached
        reached |= new
        ahead += new
    return reached


def _may_store(flow: ControlFlow, n: int, last: Step) -> bool:
    """Whether instruction `n` stores to places that end like this one."""
    instruction = flow.instructions[n]
    if last.kind == "fast":
        return bool(flow.writes[n] >> last.name & 1)
    is_named = last.kind == "item" or last.name in (instruction.arg, instruction.argval)  # a cell by its number
    return is_named and instruction.opname in _STORES[last.kind]


_STORES = {
    "cell": ("STORE_DEREF",),
    "global": ("STORE_GLOBAL", "STORE_NAME"),
    "attribute": ("STORE_ATTR",),
    "item": ("STORE_SUBSCR",),
}


def is_once(frame: FrameType) -> bool:
    """Whether a call happens once in the run of a script or of a notebook's cell: no loop is around it, in any function
    up to there. False if that cannot be told."""
    above: FrameType | None = frame
    for _ in range(HIGHEST_READ):
        if above is None:
            return True
        try:
            flow, site = flow_of(above.f_code), site_of(above)
        except NotTrusted:
            return False
        if loop_around(flow, site.at).body:
            return False
        if above.f_code.co_name == "<module>":
            return True
        above = above.f_back
    return False
