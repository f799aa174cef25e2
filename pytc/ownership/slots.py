"""Slots: attributes, items, globals and cells that the instructions right behind the call overwrite.

`callsite` names these slots; `Slots` finds the objects that the names stand for at one call. A slot is dead if

- reaching it runs no code: only plain attributes of plain objects, and items of exact dicts and lists under string or
  integer keys; no property, `__getattr__`, `__setattr__` or descriptor except `__slots__`;
- no earlier store changes the way to it, and no later one drops an object on that way: such an object would count as a
  dead container, and so account for the reference in the slot a second time;
- nothing that dies between the call and the store runs code: old values of slots that were overwritten before, and the
  arguments and local variables of functions that return in between, in whose frames there must be nothing else;
- taking the result apart cannot fail, because the lengths of its tuples are known, and what is dropped then runs no
  code when it dies;
- only bytecode stands between the call and the stores: C code that has called back may do anything next, and the
  interpreter handles signals after it;
- no garbage is collected meanwhile, since it may have finalisers (`collector`);
- nobody else can look meanwhile: no signal handler written in Python, no callback of the compiled program, and no other
  thread, except those known never to read a program's data (`watchers`); or, beside other threads, all that leads to
  the slot is out of their reach (`private`).

Then only the call itself can raise before the last store, and a call that raises has donated nothing: JAX confirms a
donation only once the execution is under way, and `pytc.compile` puts off an interrupt that arrives in between.

**Who holds what.** What dies is looked at; what lives on is not. Most objects are simply taken to die. A returning
frame's variables, and objects of types that mostly live on (`OFTEN_SHARED`: functions, modules, ...), are taken to die
if their reference count is no more than the sum of these references:

    held by                                               references    counted in
    what ends before the next store (`_leaving`)
      a returning frame: a local variable or cell         1 each        `_leaves_quietly`
      a returning frame: the function that runs in it     1             `_leaves_quietly`
      the compiled function's own frame, and C code that
        calls it, if any: the compiled function           1 each        `call`: `references`
      an object that dies: an item, an attribute (also
        by its `__dict__`), a cell's contents, the
        container that an iterator goes through           1 each        `_end`: `shared`
      a slot that is overwritten: its old value           1             `_end`: `shared`
    the proof itself
      the lists `places`, `values` and `variables`        1 each        `_listed`
      the loop variable `value`, and an argument: of
        `getrefcount`, or of `_dies_quietly`              2             `_leaves_quietly`
      `value` in `_walk`, the argument of `_dies_quietly` 2             `_walk`
      the lists `level`, `found` and `nodes`              1 each        `_die_quietly`: `lists`, 3
      the walk's list `seen`                              1             `die_quietly`: `lists`, 4
      the call's list `leaves`, for parts of arguments    1             `_end`

A sum that is too large costs a look in vain; one that is too small lets code run unseen. The sums of `call` and
`_leaves_quietly` have nothing to spare. Those of `_end` have one to spare, unless `leaves` has the object, and two for
a variable's value, which is counted as that, too. Arguments are not counted, but taken to die: all of their
references may be those of the proof and the call (`args`, `kwargs`, ...). The evaluation stack needs no line: a frame
counts as returning only if it takes nothing from beneath the call (`symbolic.behind`), and what a starred call keeps
there are arguments. `interpreter.references` reads a count without adding to it.
"""

from __future__ import annotations

import collections
import gc
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import FrameType
from typing import Any
from weakref import getweakrefcount

import numpy as np

from pytc.classes import defines, is_own_array
from pytc.jax_compat.keys import bits_of
from pytc.ownership import interpreter
from pytc.ownership.callsite import CallSite
from pytc.ownership.collector import WHILE_ALLOCATING
from pytc.ownership.counts import only_marked, weakly_referenced
from pytc.ownership.endings import ARRAYS, BOUND, LIVE_ON, MOST, OFTEN_SHARED, attached, is_loud, reached
from pytc.ownership.interpreter import UNBOUND, variable
from pytc.ownership.plain import NotPlain, attribute, item, of_strings
from pytc.ownership.private import StackVariables, has_own_attributes, is_held_once
from pytc.ownership.stack import first_of_stack
from pytc.ownership.symbolic import Event, Lengths, Place, Step
from pytc.ownership.watchers import NOBODY, Onlookers

_CONTAINERS = frozenset((tuple, list, dict))
_base: Callable[[Any], Any] = np.ndarray.__dict__["base"].__get__


class Slots:
    """The old values of the slots that the frames of a call overwrite right behind it, in order.

    Fill it frame by frame, from the caller up: `call`, then `add` for each frame. `values` then has the values of the
    slots that are proven dead.

    `roots` are the arguments. `onlookers` says who may read slots before they are overwritten; where it is not only
    another thread, no slot is dead. `classes` are those of the containers in the result, if they are known. `walked`
    are arguments whose end is not examined here: the `Walk` asks `die_quietly` about their parts. `static` are objects
    that the compiled function holds: they, and what they refer to, live on, except for what the stores overwrite in
    them. `lasting` has the ids of those of them in which no store can change that.
    """

    def __init__(
        self,
        roots: Iterable[Any],
        onlookers: Onlookers = NOBODY,
        classes: Iterable[type] | None = None,
        walked: Iterable[Any] = (),
        static: Iterable[Any] = (),
        lasting: Set[int] = frozenset(),
    ):
        self.onlooker = onlookers.anywhere
        """Who may have read slots, so that none is dead, in words; empty if nobody."""
        self._thread = onlookers.thread
        self._stack = StackVariables() if self._thread else None
        """What the variables of the frames that were added refer to: asked beside other threads alone."""
        self._classes = classes
        self._walked = frozenset(map(id, walked))
        self._static = static
        self._lasting = lasting
        self._living = {*lasting}
        """Ids of parts of `static` that are known to live on, given the stores so far."""
        self.values: list[Any] = []
        self._open = not self.onlooker
        """Whether further slots may be dead. Once False, it stays so."""
        self._roots = [] if self.onlooker else [*roots]
        self._arguments = frozenset(map(id, self._roots))
        self._quiet: set[int] = set()
        """Ids of objects that were examined: they run no code when they die, or the answer was no."""
        self._overwritten: set[tuple[int, Any]] = set()
        """Slots stored to so far: the id of the container, and the key."""
        self._counted: set[tuple[Any, int]] = set()
        """Those of them outside of frames: the key, and the value's id."""
        self._loaded: set[int] = set()
        """Ids of values that are read behind the call."""
        self._ways: set[int] = set()
        """Ids of the objects that the ways to slots lead through. A way is read behind the call, so the variable that
        it begins with is alive then. Only a store could make one of these objects a dead container; none may."""
        self._leaving: dict[int, int] = collections.defaultdict(int)
        """By id, how many references end before the next store."""
        self._listed: dict[int, int] = collections.defaultdict(int)
        """By id, how many references are those of `places`, `values` and the list of a frame's variables."""

    def call(self, below: FrameType, references: int) -> None:
        """Note the compiled function that is called, in the frame `below`, and how many references to it end with the
        call.

        If it has no others, it dies with the call, and so does what it has captured and compiled: then no slot is dead.
        Nor is any if somebody has left something in its frame.
        """
        function = interpreter.running(below)
        self._leaving[function] += references
        self._open = (
            self._open and interpreter.references(function) > references and not interpreter.refers_to_more(below)
        )

    def add(
        self,
        frame: FrameType,
        site: CallSite,
        lengths: Lengths,
        at_once: bool,
        places: Sequence[Any],
        readable: bool = False,
    ) -> None:
        """Add the slots that the instructions behind `site` overwrite in `frame`, up to the first that may run code.

        `lengths` are those of the tuples and lists in the result. `at_once` says that no C code runs between the
        compiled function's return and these instructions. `places` is the list of the values found in dead places so
        far: besides `values`, nothing else of the proof may refer to what the frames hold. `readable` says that others
        can read the frame's own variables, which then count as slots.
        """
        roots = self.forget()
        self._listed = collections.defaultdict(int)
        _count(self._listed, map(id, places))
        _count(self._listed, map(id, self.values))
        if self._stack is not None and not readable:
            self._stack.add(frame)
        self._open = (
            self._open
            and at_once
            and bool(site.events or site.returns)
            and self._end_quietly(roots, frame)
            and (self._stack is None or self._are_private(frame, site.events, readable, self._stack))
            and self._walk(frame, site.events, lengths, readable)
            and site.returns
            and not (site.drops and self._may_end_loudly())
            and self._leaves_quietly(frame)
        )

    def forget(self) -> list[Any]:
        """Return the arguments, and drop this object's references to them, so that others can count theirs."""
        roots, self._roots = self._roots, []
        return roots

    def _end_quietly(self, roots: list[Any], frame: FrameType) -> bool:
        """Whether the arguments that end with the call itself, rather than with a variable of `frame`, run no code
        then."""
        roots = [root for root in roots if id(root) not in self._walked and not _is_quiet(root)]
        if roots:
            variables = {id(value) for value in _variables(frame)}
            return self.end_quietly(root for root in roots if id(root) not in variables)
        return True

    def end_quietly(self, arguments: Iterable[Any]) -> bool:
        """Whether these arguments run no code when they die."""
        self._quiet.clear()  # a `die_quietly` that has failed leaves objects there that were not fully examined
        return all(self._dies_quietly(argument, None) for argument in arguments)

    def _are_private(self, frame: FrameType, events: Iterable[Event], readable: bool, stack: StackVariables) -> bool:
        """Whether all places that the instructions behind the call read or overwrite are out of the reach of other
        threads; if not, one of these is an onlooker."""
        if not readable and all(self.is_private(frame, event.place, stack) for event in events if event.place):
            return True
        self.onlooker = self._thread
        return False

    def _may_end_loudly(self) -> bool:
        """Whether code may run when a part of the result dies."""
        return self._classes is None or any(defines(kind, "__del__") for kind in self._classes)

    def _leaves_quietly(self, frame: FrameType) -> bool:
        """Whether no code runs when the frame's function returns and what only it refers to dies. What others refer to
        as well lives on, or dies with something else that is examined here."""
        variables = _variables(frame)
        function = interpreter.running(frame)
        _count(self._leaving, map(id, variables))
        _count(self._listed, map(id, variables))
        self._leaving[function] += 1
        if interpreter.references(function) <= self._leaving[function] + self._listed[function]:
            return False  # the function dies with its frame, and so does what it has captured
        if interpreter.refers_to_more(frame):
            return False
        for at in range(len(variables)):
            value = variables[at]
            # References of this frame and of those left before; of `variables`, `places` and `values`; of `value` and
            # `getrefcount`. (To arguments the proof has more.)
            most = self._leaving[id(value)] + self._listed[id(value)] + 2
            ends = id(value) in self._arguments or interpreter.getrefcount(value) <= most
            if ends and id(value) not in self._walked and not self._dies_quietly(value, 2):
                return False
        return True

    def _walk(self, frame: FrameType, events: Iterable[Event], lengths: Lengths, readable: bool) -> bool:
        for event in events:
            if event.does in ("unpack", "pick"):
                if not event.takes_apart(lengths) or (event.does == "pick" and self._may_end_loudly()):
                    return False
                continue
            try:
                container, key, value = self._locate(frame, event.place, event.does == "store")
            except NotPlain:
                return False
            if event.does == "load":
                if value is UNBOUND:
                    return False
                self._read(value)
                continue
            if (id(container), key) in self._overwritten:
                return False  # the second store drops a part of the result, which may run code
            self._overwritten.add((id(container), key))
            if container is not frame:
                # Two objects may share a `__dict__`, or a module and what its globals are. So equal names with the same
                # value, or none yet, may be one slot.
                if (key, id(value)) in self._counted and type(container) not in (list, types.CellType):
                    return False
                self._counted.add((key, id(value)))
                self._living = {*self._lasting}
            if value is UNBOUND:
                if WHILE_ALLOCATING and event.place[-1].kind == "attribute":
                    return False  # the object may need a `__dict__` for it
                continue
            # The value lives on elsewhere (`z, x = x, z`), or slots in it were counted (`o.d["x"], o.d = ...`).
            if id(value) in self._loaded or id(value) in self._ways:
                return False
            if container is not frame or readable:  # `liveness` decides about the frame's other variables
                self.values.append(value)
                self._listed[id(value)] += 1
            ours = None if id(value) in self._arguments else 2  # the variable here, and the argument below
            if id(value) not in self._walked and not self._dies_quietly(value, ours):
                return False
        return True

    def _read(self, value: Any) -> None:
        """Note that the value is read behind the call, so that it may live on once its slot is overwritten."""
        self._loaded.add(id(value))

    def peek(self, frame: FrameType, place: Place) -> Any:
        """The value of a place, or `UNBOUND` if there is none or reading it may run code."""
        return self.slot(frame, place)[1]

    def slot(self, frame: FrameType, place: Place) -> tuple[tuple[int, Any], Any]:
        """Which slot a place names, whatever else names it: the id of the object that it is in, and the key there; and
        its value, or `UNBOUND` if there is none or reading it may run code."""
        try:
            container, key, value = self._locate(frame, place, False)
        except NotPlain:
            return (0, None), UNBOUND
        return (id(container), key), value

    def is_private(self, frame: FrameType, place: Place, stack: StackVariables) -> bool:
        """Whether a place is out of the reach of other threads: a variable, or in objects that nothing refers to but
        variables of functions of this thread, those of `frame` and those beneath it on `stack`, and one another."""
        first, *steps = place
        if first.kind != "fast":
            return False  # anybody may have the function whose cell or globals these are
        nodes = [variable(frame, first.name)]
        for step in steps:
            if nodes[0] is UNBOUND:
                return False
            ours = self._listed.get(id(nodes[0]), 0)
            if not (stack.hold_alone(nodes, frame, ours) if step is steps[0] else is_held_once(nodes, ours)):
                return False
            try:
                key = step.name
                if step.kind == "attribute":
                    value = attribute(nodes[0], key, False)
                    if not has_own_attributes(nodes, key, value):
                        return False
                else:
                    if isinstance(key, tuple):
                        if not self.is_private(frame, key, stack):
                            return False
                        key = self._locate(frame, key, False)[-1]
                    value = item(nodes[0], key, False)
            except NotPlain:
                return False
            nodes = [value]
            del value
        return True

    def _dies_quietly(self, value: Any, ours: int | None) -> bool:
        """Whether no code runs when the value dies, and with it what only it refers to.

        `ours` is how many references to the value the proof has besides its lists; None for an argument, to which it
        may have all.
        """
        return _is_quiet(value) or self._die_quietly([value], 3, sys.maxsize if ours is None else ours, ours is None)

    def die_quietly(self, values: Sequence[Any]) -> bool:
        """The same for parts of the arguments. The caller must have each of them in one list of its own, as often as in
        `values`."""
        return self._die_quietly(values, 4, 0, True)

    def _die_quietly(self, level: Sequence[Any], lists: int, ours: int, of_arguments: bool) -> bool:
        """The same for all of `level`: the values, then what they refer to, and so on. That is quick, as most of it are
        loops in C. Each of so many `lists` of the proof has a value as often as `level` has it."""
        while level:
            found = [each for each in level if type(each) not in LIVE_ON]
            arrays = [v for v in found if type(v) in ARRAYS]
            if weakly_referenced(arrays):
                return False
            hidden = attached(arrays) if arrays else []
            seen = self._quiet | self._living if of_arguments else self._quiet
            nodes = [*{id(v): v for v in found if type(v) not in ARRAYS and id(v) not in seen}.values()]
            self._quiet.update(map(id, nodes))
            if len(self._quiet) > MOST:
                return False
            if not _CONTAINERS.issuperset(map(type, nodes)):
                if new := {type(v) for v in nodes if is_own_array(type(v)) and bits_of(v) is v}:
                    ARRAYS.update(new)
                    self._quiet.difference_update(map(id, nodes))
                    continue
                nodes = [node for node in nodes if not issubclass(type(node), type)]
                if any(is_loud(node) for node in nodes):
                    return False
                hidden += [_base(v) for v in nodes if issubclass(type(v), np.ndarray)]  # what its memory belongs to
                if shared := collections.Counter(id(v) for v in level if type(v) in OFTEN_SHARED):
                    ending = self._end(shared, nodes, lists, ours, of_arguments)
                    self._quiet.difference_update(shared.keys() - ending)
                    nodes = [node for node in nodes if type(node) not in OFTEN_SHARED or id(node) in ending]
                    if any(type(node) in (types.FunctionType, types.FrameType) for node in nodes):
                        return False  # it refers to its globals, or to a stack, which are not examined
            if any(map(getweakrefcount, nodes)):
                return False
            level = gc.get_referents(*nodes) + hidden
            lists, ours = 3, 0
        return True

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
            if interpreter.references(key) <= self._leaving[key] + self._listed[key] + lists * count + ours + 1
        }
        if of_arguments:
            ending.update(id(v) for v in nodes if type(v) in BOUND)  # the call's `leaves` and trees may hold methods
            if unknown := ending - self._living:
                overwritten = {value for _, value in self._counted}
                self._living |= reached(unknown, self._static, overwritten)
                ending -= self._living
        return ending

    def _locate(self, frame: FrameType, place: Place, storing: bool) -> tuple[Any, Any, Any]:
        """The object that contains a slot, the slot's key there, and its value. Raises `NotPlain` if that may run code,
        or if an earlier store may have changed the way."""
        container, key, value = self._variable(frame, place[0], storing and len(place) == 1)
        for step in place[1:]:
            if value is UNBOUND or self._is_overwritten(container, key, value):
                raise NotPlain
            container = value
            if storing:
                self._ways.add(id(container))
            if step.kind == "attribute":
                key, value = step.name, attribute(container, step.name, storing and step is place[-1])
            else:
                key = step.name
                if isinstance(key, tuple):
                    of, name, key = self._locate(frame, key, False)
                    if self._is_overwritten(of, name, key):
                        raise NotPlain
                value = item(container, key, storing and step is place[-1])
                if type(container) is list and key < 0:
                    key += len(container)
        return container, key, value

    def _is_overwritten(self, container: Any, key: Any, value: Any) -> bool:
        """Whether an earlier store may have replaced `value` here: in this very slot, or in one of the same name and
        value, which may be the same slot of a `__dict__` that two objects share."""
        return (id(container), key) in self._overwritten or (key, id(value)) in self._counted

    def _variable(self, frame: FrameType, step: Step, storing: bool) -> tuple[Any, Any, Any]:
        if step.kind == "global":
            space = frame.f_globals
            if type(space) is not dict or not of_strings(space):
                raise NotPlain  # looking for the name might call the `__eq__` of another key
            if not frame.f_code.co_flags & 1 and interpreter.namespace(frame) != id(space):
                raise NotPlain  # a class body, or `exec` with variables of its own
            value = space.get(step.name, UNBOUND)
            if value is UNBOUND and not storing:
                raise NotPlain
            return space, step.name, value
        value = variable(frame, step.name)
        if step.kind == "cell":
            if type(value) is not types.CellType:
                raise NotPlain
            try:
                return value, "cell_contents", value.cell_contents
            except ValueError as error:
                if interpreter.comes_from_python(error):
                    raise
                return value, "cell_contents", UNBOUND
        return frame, step.name, value


def _count(counts: dict[int, int], keys: Iterable[int]) -> None:
    """Add one for each of the keys. (Of ids, so that no variable here refers to what is counted.)"""
    for key in keys:
        counts[key] += 1


def _is_quiet(value: Any) -> bool:
    """Whether the value refers to nothing but its class, as most arrays do, so that no code runs when it dies."""
    kind = type(value)
    if kind in ARRAYS:
        return len(gc.get_referents(value)) == 1 and (not getweakrefcount(value) or only_marked(value))
    return kind in LIVE_ON


def _variables(frame: FrameType) -> list[Any]:
    """The values of a frame's local variables; for cell variables, the cells."""
    code = frame.f_code
    if not code.co_flags & 1:
        return []  # a module's variables are globals, which live on
    return [value for number in range(first_of_stack(code)) if (value := variable(frame, number)) is not UNBOUND]
