"""What dies between a call and the stores after it, and whether code runs then.

What dies is looked at; what lives on is not. Most objects are simply taken to die. A returning frame's variables, and
objects of types that mostly live on (`OFTEN_SHARED`: functions, modules, ...), are taken to die if their reference
count is no more than the sum of these references:

    held by                                               references    counted in
    what ends before the next store (`_leaving`)
      a returning frame: a local variable or cell         1 each        `leaves_quietly`
      a returning frame: the function that runs in it     1             `leaves_quietly`
      the compiled function's own frame, and C code that
        calls it, if any: the compiled function           1 each        `Slots.call`
      an object that dies: an item, an attribute (also
        by its `__dict__`), a cell's contents, the
        container that an iterator goes through           1 each        `_end`: `shared`
      a slot that is overwritten: its old value           1             `_end`: `shared`
    the proof itself
      the lists `places`, `values`, `_owners` and
        `variables`                                       1 each        `listed`
      the loop variable `value`, and an argument: of
        `getrefcount`, or of `_dies_quietly`              2             `leaves_quietly`
      `value` in `Slots._overwrite`, that here, and the
        argument of `_dies_quietly`                       3             `is_dropped_quietly`
      the lists `level`, `found` and `nodes`              1 each        `_die_quietly`: `lists`, 3
      the walk's list `seen`                              1             `die_quietly`: `lists`, 4
      the call's list `leaves`, for parts of arguments    1             `_end`

A sum that is too large costs a look in vain; one that is too small lets code run unseen. The sums of `Slots.call` and
`leaves_quietly` have nothing to spare. Those of `_end` have one to spare, unless `leaves` has the object, and two for
a variable's value, which is counted as that, too. Arguments are not counted, but taken to die: all of their
references may be those of the proof and the call (`args`, `kwargs`, ...). The evaluation stack needs no line: a frame
counts as returning only if it takes nothing from beneath the call (`continuation`), and what a starred call keeps
there are arguments. `interpreter.references` reads a count without adding to it.
"""

from __future__ import annotations

import collections
import gc
import itertools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import FrameType
from typing import Any
from weakref import getweakrefcount

import numpy as np

from pytc.classes import ids_of
from pytc.jax_compat.keys import bits_of
from pytc.ownership.bytecode.stack import first_of_stack
from pytc.ownership.cpython import interpreter
from pytc.ownership.cpython.interpreter import UNBOUND, variable
from pytc.ownership.references.counts import PLAIN, only_marked, weakly_referenced
from pytc.ownership.references.endings import ARRAYS, BOUND, LIVE_ON, MOST, OFTEN_SHARED, any_loud, attached, reached
from pytc.provenance import is_own_array

_FUNCTIONS = ids_of(types.FunctionType, types.FrameType)
_base: Callable[[Any], Any] = np.ndarray.__dict__["base"].__get__


class Dying:
    """What dies at one call, before the slots that it is about are overwritten.

    `arguments` are the ids of the call's arguments; `walked` those of them whose end is not examined here: the `Walk`
    asks `die_quietly` about their parts. `static` are objects that the compiled function holds: they, and what they
    refer to, live on, except for what the stores overwrite in them. `unchanging` has the ids of those of them in which
    no store can change that.
    """

    def __init__(self, arguments: Set[int], walked: Set[int], static: Iterable[Any], unchanging: Set[int]):
        self._arguments = arguments
        self._walked = walked
        self._static = static
        self._unchanging = unchanging
        self._reached = set[int]()
        """Ids of further parts of `static` that are known to live on, given the stores so far."""
        self._overwritten: set[int] = set()
        """Ids of the old values of slots that were stored to so far."""
        self._quiet: set[int] = set()
        """Ids of objects that were examined: they run no code when they die, or the answer was no."""
        self._leaving: dict[int, int] = collections.defaultdict(int)
        """By id, how many references end before the next store."""
        self._globals: list[dict[str, Any]] = []
        """The globals of the functions on the stack."""
        self._lists: tuple[Sequence[Any], ...] = ()
        """The proof's lists `places`, `values` and `_owners`, and that of a frame's variables."""

    def lose(self, address: int, references: int) -> None:
        """Note that so many references to an object end before the next store."""
        self._leaving[address] += references

    def keep(self, names: dict[str, Any]) -> None:
        """Note the globals of a function on the stack: what they have lives on, but for what is overwritten there."""
        self._globals.append(names)

    def count_lists(self, *lists: Sequence[Any]) -> None:
        """Note the proof's lists, in place of those noted before."""
        self._lists = lists

    def listed(self, address: int) -> int:
        """How many references to the object at this address are those of the proof's lists."""
        return sum([[*map(id, values)].count(address) for values in self._lists])

    def overwrite(self, value: Any) -> None:
        """Note the old value of a slot that is stored to, `UNBOUND` if it had none."""
        self._overwritten.add(id(value))
        self._reached.clear()

    def is_walked(self, value: Any) -> bool:
        """Whether the `Walk` examines the value, and what it refers to."""
        return id(value) in self._walked

    def end_quietly(self, arguments: Iterable[Any], variables: Sequence[Any] = ()) -> bool:
        """Whether these arguments run no code when they die. What `variables` of the caller have as attributes lives on
        until then; they must not end before the last store, unless they are looked at by themselves."""
        self._quiet.clear()  # a `die_quietly` that has failed leaves objects there that were not fully examined
        lists = self._lists
        self._lists = *lists, variables
        try:
            return all(self._dies_quietly(argument, None, variables) for argument in arguments)
        finally:
            self._lists = lists

    def leaves_quietly(self, frame: FrameType) -> bool:
        """Whether no code runs when the frame's function returns and what only it refers to dies. What others refer to
        as well lives on, or dies with something else that is examined here."""
        variables = variables_of(frame)
        lists = self._lists
        self._lists = *lists, variables
        try:
            return self._leaves_quietly(frame, variables)
        finally:
            self._lists = lists  # or `variables` would live on, and its references would count as somebody else's

    def _leaves_quietly(self, frame: FrameType, variables: Sequence[Any]) -> bool:
        """The same, with the values of the frame's variables."""
        function = interpreter.running(frame)
        for address in map(id, variables):
            self._leaving[address] += 1
        self._leaving[function] += 1
        if interpreter.references(function) <= self._leaving[function] + self.listed(function):
            return False  # the function dies with its frame, and so does what it has captured
        if interpreter.refers_to_more(frame):
            return False
        for at in range(len(variables)):
            value = variables[at]
            # References of this frame and of those left before; of `variables`, `places` and `values`; of `value` and
            # `getrefcount`. (To arguments the proof has more.)
            most = self._leaving[id(value)] + self.listed(id(value)) + 2
            ends = id(value) in self._arguments or interpreter.getrefcount(value) <= most
            if ends and id(value) not in self._walked and not self._dies_quietly(value, 2):
                return False
        return True

    def is_dropped_quietly(self, value: Any) -> bool:
        """Whether no code runs when a slot drops its old value, which the caller has in one variable."""
        ours = None if id(value) in self._arguments else 3  # the caller's, the variable here, and the argument below
        return id(value) in self._walked or self._dies_quietly(value, ours)

    def _dies_quietly(self, value: Any, ours: int | None, holders: Sequence[Any] = ()) -> bool:
        """Whether no code runs when the value dies, and with it what only it refers to.

        `ours` is how many references to the value the proof has besides its lists; None for an argument, to which it
        may have all. What the `holders` have as attributes lives on.
        """
        return is_quiet(value) or self._die_quietly(
            [value], 3, sys.maxsize if ours is None else ours, ours is None, holders
        )

    def die_quietly(self, values: Sequence[Any]) -> bool:
        """The same for parts of the arguments. The caller must have each of them in one list of its own, as often as in
        `values`."""
        return self._die_quietly(values, 4, 0, True)

    def _die_quietly(
        self, level: Sequence[Any], lists: int, ours: int, of_arguments: bool, holders: Sequence[Any] = ()
    ) -> bool:
        """The same for all of `level`: the values, then what they refer to, and so on. That is quick, as most of it are
        loops in C. Each of so many `lists` of the proof has a value as often as `level` has it."""
        something_lives_on = False
        while level:
            found = [each for each in level if id(type(each)) not in LIVE_ON]
            arrays = [v for v in found if id(type(v)) in ARRAYS]
            if weakly_referenced(arrays):
                return False
            hidden = attached(arrays) if arrays else []
            unseen = {id(v): v for v in found if id(v) not in self._quiet and id(type(v)) not in ARRAYS}
            if of_arguments:
                unseen = {
                    key: v for key, v in unseen.items() if key not in self._unchanging and key not in self._reached
                }
            nodes = [*unseen.values()]
            self._quiet.update(unseen)
            if len(self._quiet) > MOST:
                return False
            del unseen  # which refers to them, too
            kinds = {id(type(v)): type(v) for v in nodes}
            if not PLAIN.issuperset(kinds):
                own = [key for key, kind in kinds.items() if is_own_array(kind)]
                if own and (new := {id(type(v)) for v in nodes if id(type(v)) in own and bits_of(v) is v}):
                    ARRAYS.update(new)
                    self._quiet.difference_update(map(id, nodes))
                    continue
                nodes = [node for node in nodes if not issubclass(type(node), type)]
                if any_loud(nodes, [kind for kind in kinds.values() if not issubclass(kind, type)]):
                    return False
                hidden += [_base(v) for v in nodes if issubclass(type(v), np.ndarray)]  # what its memory belongs to
                often = [id(v) for v in level if id(type(v)) in OFTEN_SHARED]
                if of_arguments:  # what lasts never ends, so its references need not be counted
                    often = [key for key in often if key not in self._unchanging]
                if often:
                    shared = collections.Counter(often)
                    ending = self._end(shared, nodes, lists, ours, of_arguments)
                    self._quiet.difference_update(shared.keys() - ending)
                    nodes = [node for node in nodes if id(type(node)) not in OFTEN_SHARED or id(node) in ending]
                    if any(id(type(node)) in _FUNCTIONS for node in nodes):
                        return False  # it refers to its globals, or to a stack, which are not examined
            if any(map(getweakrefcount, nodes)):
                # Mostly NumPy data that a compiled function has captured: JAX has a weak reference to that.
                watched = {id(node): node for node in nodes if getweakrefcount(node)}
                if not all(self._lives_on(node, holders) for node in watched.values()):
                    return False
                nodes = [node for node in nodes if id(node) not in watched]
                something_lives_on = True
                del watched
            level = gc.get_referents(*nodes) + hidden
            lists, ours = 3, 0
        if something_lives_on:
            self._quiet.clear()  # what leads there ends quietly now, and may not when another holder ends
        return True

    def _lives_on(self, value: Any, holders: Sequence[Any]) -> bool:
        """Whether a global variable of the functions on the stack has the value, or one of the `holders` has it as an
        attribute, and none of the stores so far has overwritten that."""
        if id(value) in self._overwritten:
            return False
        parts = [part for holder in holders for part in gc.get_referents(holder)]
        attributes = (part for part in parts if type(part) is dict)
        names = (dict.values(each) for each in (*self._globals, *attributes))
        return any(map(operator.is_, itertools.chain(parts, *names), itertools.repeat(value)))

    def _end(
        self, shared: Mapping[int, int], nodes: Sequence[Any], lists: int, ours: int, of_arguments: bool
    ) -> set[int]:
        """The ids of those of `nodes` that die although objects of their types mostly live on.

        `shared` has the ids of all candidates, with how many references of dying objects each has; these are added to
        `_leaving`.
        """
        for key, count in shared.items():
            self._leaving[key] += count
        # One more for `leaves` of the call, which has some parts of the arguments; for all else it is one too many.
        ending = {
            key
            for key, count in shared.items()
            if interpreter.references(key) <= self._leaving[key] + self.listed(key) + lists * count + ours + 1
        }
        if of_arguments:
            # The call's `leaves` and trees may hold methods.
            ending.update(id(v) for v in nodes if id(type(v)) in BOUND)
            # One by one: there may be very many that last.
            ending = {key for key in ending if key not in self._unchanging and key not in self._reached}
            if ending:
                self._reached |= reached(ending, self._static, self._overwritten)
                ending -= self._reached
        return ending


def is_quiet(value: Any) -> bool:
    """Whether the value refers to nothing but its class, as most arrays do, so that no code runs when it dies."""
    kind = type(value)
    if id(kind) in ARRAYS:
        return len(gc.get_referents(value)) == 1 and (not getweakrefcount(value) or only_marked(value))
    return id(kind) in LIVE_ON


def variables_of(frame: FrameType) -> list[Any]:
    """The values of a frame's local variables; for cell variables, the cells."""
    code = frame.f_code
    if not code.co_flags & 1:
        return []  # a module's variables are globals, which live on
    return [value for number in range(first_of_stack(code)) if (value := variable(frame, number)) is not UNBOUND]
