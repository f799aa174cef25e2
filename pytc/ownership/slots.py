"""Slots: attributes, items, globals and cells that the instructions right behind the call overwrite.

`callsite` says which slots those are by name; here the names meet the objects of one call. A slot is dead if

- the way to it runs no code: plain attributes of plain objects, items of exact dicts and lists under string or
  integer keys, no property, no `__getattr__`, no `__setattr__`, no descriptor but `__slots__`;
- no earlier store changes the way to it, and no later one drops an object on that way: that object would count as a
  dead container, and the reference in the slot would be accounted for twice;
- no code runs when something dies between the call and the store: old values of slots that were overwritten before, and
  the arguments and local variables of functions that return in between;
- unpacking the result cannot fail: its length is known;
- what is between the call and the stores is bytecode alone: C code that has called back may go on to anything, and
  the interpreter looks for signals behind it;
- no garbage is collected meanwhile, since it may have finalisers (`collector`);
- nothing else can look in the meantime. Other threads can, at any moment, so there must be none but those that are
  known never to read a program's data; so can a signal handler written in Python, and a callback that the compiled
  program makes, so there must be none of these.

What may raise between the call and the store is then the call alone, and a call that raises has donated nothing:
JAX confirms a donation only once the execution is under way, and `pytc.compile` puts off an interrupt that arrives
between the two.
"""

from __future__ import annotations

import collections
import gc
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any
from weakref import getweakrefcount

import numpy as np

from pytc.classes import defines, is_own_array
from pytc.jax_compat.keys import bits_of
from pytc.ownership import interpreter
from pytc.ownership.callsite import Site
from pytc.ownership.collector import WHILE_ALLOCATING
from pytc.ownership.counts import only_marked, weakly_referenced
from pytc.ownership.endings import ARRAYS, BOUND, LIVE_ON, MOST, OFTEN_SHARED, attached, is_loud, reached
from pytc.ownership.interpreter import UNBOUND, variable
from pytc.ownership.plain import NotPlain, attribute, item, of_strings
from pytc.ownership.stack import first_of_stack
from pytc.ownership.symbolic import Event, Place, Step

_CONTAINERS = frozenset((tuple, list, dict))
_base: Callable[[Any], Any] = np.ndarray.__dict__["base"].__get__


class Slots:
    """What stands in the slots that the frames of a call overwrite right behind it, in order.

    Fill it frame by frame, from the caller up: `call`, then `add` for each frame. `values` then has what stands in the
    slots that count.

    `roots` are the arguments. `onlooker` is who may read slots before they are overwritten; if it is not empty, no slot
    counts. `classes` are those of the containers in the result, if they are known. `walked` are those of the arguments
    of which it is not looked here whether code runs when they die: the `Walk` asks `die_quietly` about their parts.
    `static` are objects that the compiled function holds: they, and what they refer to, live on, except for what the
    stores overwrite in them.
    """

    def __init__(
        self,
        roots: Iterable[Any],
        onlooker: str,
        classes: Iterable[type] | None = None,
        walked: Iterable[Any] = (),
        static: Iterable[Any] = (),
    ):
        self.onlooker = onlooker
        self._classes = classes
        self._walked = frozenset(map(id, walked))
        self._static = static
        self._living: set[int] = set()
        """The ids of parts of `static` that are known to live on, given the stores so far."""
        self.values: list[Any] = []
        self._open = not onlooker
        self._roots = [] if onlooker else [*roots]
        self._arguments = frozenset(map(id, self._roots))
        self._quiet: set[int] = set()
        self._overwritten: set[tuple[int, Any]] = set()
        self._counted: set[tuple[Any, int]] = set()
        self._loaded: set[int] = set()
        self._ways: set[int] = set()
        """The ids of the objects that the ways to slots lead through. A way is read behind the call, so the variable
        that it begins with is alive then. Only a store can make one of these a dead container, and none may."""
        self._leaving: dict[int, int] = collections.defaultdict(int)
        """By id, how many references belong to functions that return before the next store."""

    def call(self, below: FrameType, references: int) -> None:
        """Take note of the compiled function that is called, in the frame `below`, and of how many references to it end
        with the call. If it has no others it dies with the call, with what it has captured and compiled, so no slot
        counts; nor does any if somebody has left something in its frame."""
        function = interpreter.running(below)
        self._leaving[function] += references
        self._open = (
            self._open and interpreter.references(function) > references and not interpreter.refers_to_more(below)
        )

    def add(
        self,
        frame: FrameType,
        site: Site,
        length: int | None,
        at_once: bool,
        places: Sequence[Any],
        readable: bool = False,
    ) -> None:
        """Add the slots that the instructions behind `site` overwrite in `frame`, up to the first that may run code.

        `length` is the length of the result, if it is a tuple or a list. `at_once` says that no C code is between the
        compiled function's return and these instructions. `places` is the list of what stands in dead places of the
        frames so far: it and `values` are all that the proof itself refers to of what the frames hold. `readable` says
        that others can read the frame's own variables, which are then slots like any other.
        """
        roots = self.forget()
        self._open = (
            self._open
            and at_once
            and bool(site.events or site.returns)
            and self._end_quietly(roots, frame)
            and self._walk(frame, site.events, length, readable)
            and site.returns
            and not (site.drops and self._may_end_loudly())
            and self._leaves_quietly(frame, places)
        )

    def forget(self) -> list[Any]:
        """Let go of the arguments, so that they can be counted."""
        roots, self._roots = self._roots, []
        return roots

    def _end_quietly(self, roots: list[Any], frame: FrameType) -> bool:
        """Whether those arguments that end with the call itself run no code then."""
        roots = [root for root in roots if id(root) not in self._walked and not _is_quiet(root)]
        if roots:
            variables = {id(value) for value in _variables(frame)}
            return self.end_quietly(root for root in roots if id(root) not in variables)
        return True

    def end_quietly(self, arguments: Iterable[Any]) -> bool:
        """Whether these arguments run no code when they die."""
        self._quiet.clear()  # `die_quietly` may have got stuck in the midst of one
        return all(self._dies_quietly(argument, None) for argument in arguments)

    def _may_end_loudly(self) -> bool:
        """Whether code may run when a part of the result dies."""
        return self._classes is None or any(defines(kind, "__del__") for kind in self._classes)

    def _leaves_quietly(self, frame: FrameType, places: Sequence[Any]) -> bool:
        """Whether no code runs when the frame's function returns, and what only it refers to dies. What others refer to
        as well lives on, or dies with something else that is looked at here."""
        ours = collections.Counter(map(id, itertools.chain(places, self.values)))
        variables = _variables(frame)
        own = collections.Counter(map(id, variables))
        function = interpreter.running(frame)
        self._leave(own)
        self._leaving[function] += 1
        if interpreter.references(function) <= self._leaving[function] + own[function] + ours[function]:
            return False  # it dies with its frame, and what it has captured with it
        if interpreter.refers_to_more(frame):
            return False
        for at in range(len(variables)):
            value = variables[at]
            # The frame's references and those of frames that are left before, those of the list here and of places, the
            # variable here, and `getrefcount`'s own. (Of arguments, the proof has more.)
            most = self._leaving[id(value)] + own[id(value)] + ours[id(value)] + 2
            ends = id(value) in self._arguments or interpreter.getrefcount(value) <= most
            if (
                ends
                and id(value) not in self._walked
                and not self._dies_quietly(value, own[id(value)] + ours[id(value)] + 2)
            ):
                return False
        return True

    def _leave(self, references: Mapping[int, int]) -> None:
        for key, count in references.items():
            self._leaving[key] += count

    def _walk(self, frame: FrameType, events: Iterable[Event], length: int | None, readable: bool) -> bool:
        for event in events:
            if event.does == "unpack":
                if event.place[0].name != length:
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
                return False  # a part of the result is let go of, and that may run code
            self._overwritten.add((id(container), key))
            if value is UNBOUND:
                if WHILE_ALLOCATING and event.place[-1].kind == "attribute":
                    return False  # the object may need a `__dict__` for it
                continue
            # Read before it was overwritten: `z, x = x, z`. Or slots in it are accounted for: `o.d["x"], o.d = ...`.
            if id(value) in self._loaded or id(value) in self._ways:
                return False
            if container is not frame:
                # Two objects may share their attributes, so what has one name and one value is counted once.
                if (key, id(value)) in self._counted and type(container) not in (list, types.CellType):
                    return False
                self._counted.add((key, id(value)))
                self._living = set()
            if container is not frame or readable:  # else it is for `liveness` to call it dead
                self.values.append(value)
            if id(value) not in self._walked and not self._dies_quietly(
                value, None if id(value) in self._arguments else 3
            ):
                return False
        return True

    def _read(self, value: Any) -> None:
        """Note that the value is read behind the call: it may live on elsewhere once its slot is overwritten."""
        self._loaded.add(id(value))

    def peek(self, frame: FrameType, place: Place) -> Any:
        """What stands in a place, or `UNBOUND` where looking may run code."""
        return self.slot(frame, place)[1]

    def slot(self, frame: FrameType, place: Place) -> tuple[tuple[int, Any], Any]:
        """Which slot a place is, whatever it is called elsewhere: the object that it is in (its id), and the key there;
        and what stands in it, or `UNBOUND` where looking may run code."""
        try:
            container, key, value = self._locate(frame, place, False)
        except NotPlain:
            return (0, None), UNBOUND
        return (id(container), key), value

    def _dies_quietly(self, value: Any, ours: int | None) -> bool:
        """Whether no code runs when the value, and what only it refers to, is let go of.

        `ours` is how many references to the value we have ourselves; None for an argument, to which all may be ours.
        """
        return _is_quiet(value) or self._die_quietly([value], 3, sys.maxsize if ours is None else ours, ours is None)

    def die_quietly(self, values: Sequence[Any]) -> bool:
        """The same of parts of the arguments, each of which is in one list of the asker's as often as it is here."""
        return self._die_quietly(values, 4, 0, True)

    def _die_quietly(self, level: Sequence[Any], lists: int, ours: int, of_arguments: bool) -> bool:
        """The same of several values, each of which stands in so many `lists` as often as in `level`. Level by level,
        for most of this is loops in C."""
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
                        return False  # it refers to its globals, or to a stack, of which nothing can be told
            if any(map(getweakrefcount, nodes)):
                return False
            level = gc.get_referents(*nodes) + hidden
            lists, ours = 3, 0
        return True

    def _end(
        self, shared: Mapping[int, int], nodes: Sequence[Any], lists: int, ours: int, of_arguments: bool
    ) -> set[int]:
        """Which of those of `nodes` that mostly live on do not (ids). `shared` says how often each was referred to."""
        self._leave(shared)
        # Besides, one variable refers to the last that was looked at, or a `Census` to what it has opened.
        ending = {
            key
            for key, count in shared.items()
            if interpreter.references(key) <= self._leaving[key] + lists * count + ours + 1
        }
        if of_arguments:
            ending.update(id(v) for v in nodes if type(v) in BOUND)  # `leaves` may have it, too, or a tree of the call
            if unknown := ending - self._living:
                overwritten = {value for _, value in self._counted}
                self._living |= reached(unknown, self._static, overwritten)
                ending -= self._living
        return ending

    def _locate(self, frame: FrameType, place: Place, storing: bool) -> tuple[Any, Any, Any]:
        """The object that a slot is in, the key that tells it from others there, and its value."""
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
        """Whether an earlier store may have put something else where `value` is: under this name of the slot, or under
        another, for what two objects share under one name has one value."""
        return (id(container), key) in self._overwritten or (key, id(value)) in self._counted

    def _variable(self, frame: FrameType, step: Step, storing: bool) -> tuple[Any, Any, Any]:
        if step.kind == "global":
            space = frame.f_globals
            if type(space) is not dict or not of_strings(space):
                raise NotPlain  # another key might have an `__eq__`, and be asked
            if not frame.f_code.co_flags & 1 and frame.f_locals is not space:
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


def _is_quiet(value: Any) -> bool:
    """Whether no code runs when the value dies: of one that refers to nothing but its class, as most arrays do."""
    kind = type(value)
    if kind in ARRAYS:
        return len(gc.get_referents(value)) == 1 and (not getweakrefcount(value) or only_marked(value))
    return kind in LIVE_ON


def _variables(frame: FrameType) -> list[Any]:
    """What the local variables of a frame refer to, cells included."""
    code = frame.f_code
    if not code.co_flags & 1:
        return []  # a module's are globals, which live on
    return [value for number in range(first_of_stack(code)) if (value := variable(frame, number)) is not UNBOUND]
