"""Slots: attributes, items, globals and cells that the instructions right after the call overwrite.

`callsite` names these slots; `Slots` finds the objects that the names stand for at one call. (A cell that nothing but
the frame refers to is a variable like any other.) A slot is dead if

- reaching it runs no code: only plain attributes of plain objects, and items of exact dicts and lists under string or
  integer keys; no property, `__getattr__`, `__setattr__` or descriptor except `__slots__`;
- no earlier store changes the way to it, and no later one drops an object on that way: such an object would count as a
  dead container, and so account for the reference in the slot a second time;
- nothing that dies between the call and the store runs code: old values of slots that were overwritten before, and the
  arguments and local variables of functions that return in between, in whose frames there must be nothing else;
- taking the result apart cannot fail, because what its containers hold is known (`lengths`), and what is dropped then
  runs no code when it dies;
- only bytecode stands between the call and the stores: C code that has called back may do anything next, and the
  interpreter handles signals after it;
- no garbage is collected meanwhile, since it may have finalisers (`collector`);
- nobody else can look meanwhile: no signal handler written in Python, no callback of the compiled program, and no other
  thread, except those known never to read a program's data (`watchers`); or, beside other threads, all that leads to
  the slot is out of their reach (`private`).

Then only the call itself can raise before the last store, and a call that raises has donated nothing: JAX confirms a
donation only once the execution is under way, and `pytc.compile` puts off an interrupt that arrives in between.

Under the same conditions those fields of an object are dead that the function does not read, if nothing but a variable
refers to the object, and that is not read again once the others have been (`fields`).
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence, Set
from types import FrameType
from typing import Any

from pytc.classes import defines, ids_of
from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.bytecode.events import Event, Place, Step, fast
from pytc.ownership.bytecode.fields import attributes_read, fields_but
from pytc.ownership.bytecode.lengths import Lengths
from pytc.ownership.bytecode.replacing import copied
from pytc.ownership.cpython import interpreter
from pytc.ownership.cpython.interpreter import UNBOUND, variable
from pytc.ownership.cpython.plain import NotPlain, attribute, is_small_number, item, method, of_strings, read
from pytc.ownership.frames import dead_above
from pytc.ownership.others.collector import MOST
from pytc.ownership.others.watchers import NOBODY, Onlookers
from pytc.ownership.references.counts import PLAIN, opens
from pytc.ownership.references.dying import Dying, is_quiet, variables_of
from pytc.ownership.references.private import (
    StackVariables,
    addresses,
    has_own_attributes,
    held_by_others,
    is_held_once,
)

_CANNOT_SHARE = ids_of(list, types.CellType)
"""Types whose objects have slots that no other object has."""


class Slots:
    """The old values of the slots that the frames of a call overwrite right after it, in order.

    Fill it frame by frame, from the caller up: `call`, then `add` for each frame, and `leave` where the next one
    follows. `values` then has the values of the slots that are proven dead.

    `roots` are the arguments. `onlookers` says who may read slots before they are overwritten; where it is not only
    another thread, no slot is dead. `classes` are those of the containers in the result, if they are known. `walked`
    are arguments whose end is not examined here: the `Walk` asks `die_quietly` about their parts. `static` are objects
    that the compiled function holds: they, and what they refer to, live on, except for what the stores overwrite in
    them. `unchanging` has the ids of those of them in which no store can change that.
    """

    def __init__(
        self,
        roots: Iterable[Any],
        onlookers: Onlookers = NOBODY,
        classes: Iterable[type] | None = None,
        walked: Iterable[Any] = (),
        static: Iterable[Any] = (),
        unchanging: Set[int] = frozenset(),
    ):
        self.onlooker = onlookers.anywhere
        """Who may have read slots, so that none is dead, in words; empty if nobody."""
        self._thread = onlookers.thread
        self._flags = onlookers.flags
        """What handlers of signals may set meanwhile, by name."""
        self._stack = StackVariables() if self._thread else None
        """What the variables of the frames that were added refer to: asked beside other threads alone."""
        self._classes = classes
        self._added: tuple[CallSite, bool, Lengths]
        """What was told of the frame that was added last."""
        self.values: list[Any] = []
        self._own: Set[int] = frozenset()
        """The variables in cells that belong to the frame that was added last."""
        self._open = not self.onlooker
        """Whether further slots may be dead. Once False, it stays so."""
        self._roots = [] if self.onlooker else [*roots]
        self.dying = Dying(frozenset(map(id, self._roots)), frozenset(map(id, walked)), static, unchanging)
        self._overwritten: set[tuple[int, Any]] = set()
        """Slots stored to so far: the id of the container, and the key."""
        self._counted: set[tuple[Any, int]] = set()
        """Those of them outside of frames: the key, and the value's id."""
        self._made = 0
        """How many objects are made before the next store, at the most."""
        self._loaded: set[int] = set()
        """Ids of values that are read after the call."""
        self._owners: list[Any] = []
        """Objects of which fields were added."""
        self._variables: list[int] = []
        """For each of them, how many variables have it, those of the callers included, without the one reference that
        may be a variable's or the stack's."""
        self._ways: set[int] = set()
        """Ids of the objects that the ways to slots lead through. A way is read after the call, so the variable that
        it begins with is alive then. Only a store could make one of these objects a dead container; none may."""

    def call(self, below: FrameType, references: int) -> None:
        """Note the compiled function that is called, in the frame `below`, and how many references to it end with the
        call.

        If it has no others, it dies with the call, and so does what it has captured and compiled: then no slot is dead.
        Nor is any if somebody has left something in its frame.
        """
        function = interpreter.running(below)
        self.dying.lose(function, references)
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
        atomic: bool = True,
        own: Set[int] = frozenset(),
    ) -> None:
        """Add the slots that the instructions after `site` overwrite in `frame`, up to the first that may run code.

        `lengths` tell how the result can be taken apart. `at_once` says that no C code runs between the
        compiled function's return and these instructions, and `atomic` that nothing has been donated if what the frame
        calls raises. `places` is the list of the values found in dead places so far: besides `values`, nothing else of
        the proof may refer to what the frames hold. `readable` says that others can read the frame's own variables,
        which then count as slots. `own` are the numbers of dead variables in cells that the frame alone refers to: they
        are no slots, but variables like any other, so no reference is counted as that of both.
        """
        roots = self.forget()
        self._own = own
        self._added = site, atomic, lengths
        self.dying.keep(frame.f_globals)
        self.dying.count_lists(places, self.values, self._owners)
        if self._stack is not None and not readable:
            self._stack.add(frame)
        self._open = (
            self._open
            and at_once
            and bool(site.events or site.returns)
            and self._flags.isdisjoint(site.names)
            and self._end_quietly(roots, frame, site.returns)
            and (self._stack is None or self._are_private(frame, site.events, readable, self._stack))
            and self._walk(frame, site.events, lengths, readable, site.dead(True, site.fits(lengths)))
        )

    def leave(self, frame: FrameType, site: CallSite) -> None:
        """Go on to the frame above `frame`, which was added last: its slots may be dead if the function of `frame`
        returns right after its stores, and nothing that ends with it runs code."""
        self._open = (
            self._open
            and site.returns
            and not (site.drops and self._may_end_loudly())
            and self.dying.leaves_quietly(frame)
        )

    def forget(self) -> list[Any]:
        """Return the arguments, and drop this object's references to them, so that others can count theirs."""
        roots, self._roots = self._roots, []
        return roots

    def _end_quietly(self, roots: list[Any], frame: FrameType, returns: bool) -> bool:
        """Whether the arguments that end with the call itself, rather than with a variable of `frame`, run no code
        then. If its function `returns` right after the call, its variables end, too, and are looked at with these."""
        roots = [root for root in roots if not self.dying.is_walked(root) and not is_quiet(root)]
        if roots:
            variables = variables_of(frame)
            known = {*map(id, variables)}
            ending = (root for root in roots if id(root) not in known)
            return self.dying.end_quietly(ending, () if returns else variables)
        return True

    def _are_private(self, frame: FrameType, events: Iterable[Event], readable: bool, stack: StackVariables) -> bool:
        """Whether all places that the instructions after the call read or overwrite are out of the reach of other
        threads; if not, one of these is an onlooker."""
        if not readable and all(self.is_private(frame, event.reads, stack) for event in events if event.reads):
            return True
        self.onlooker = self._thread
        return False

    def _may_end_loudly(self) -> bool:
        """Whether code may run when a part of the result dies."""
        return self._classes is None or any(defines(kind, "__del__") for kind in self._classes)

    def _walk(
        self, frame: FrameType, events: Sequence[Event], lengths: Lengths, readable: bool, dead: Iterable[int] = ()
    ) -> bool:
        """Add what the events after the call make dead, up to the first that may run code; whether there is none.
        `dead` are the local variables that are not read after it."""
        gone = {*dead}
        try:
            for event in events:
                if not self._runs_no_code(frame, event, events, lengths, readable, gone):
                    return False
        except NotPlain:
            return False
        return True

    def _runs_no_code(
        self,
        frame: FrameType,
        event: Event,
        events: Iterable[Event],
        lengths: Lengths,
        readable: bool,
        gone: set[int],
    ) -> bool:
        """Whether one event runs no code. Raises `NotPlain` if to get at its place may. `gone` are the local variables
        that are not read again."""
        if event.does in ("unpack", "pick"):
            if event.does == "unpack" and not self._may_make_one():  # an iterator
                return False
            return event.takes_apart(lengths) and not (event.does == "pick" and self._may_end_loudly())
        if event.does == "build":
            return self._may_make_one()
        if event.does in ("leave", "call"):
            if not readable:
                self._unread(frame, event, events, gone)
            return True
        if event.does == "method" and self._is_method(frame, event):
            return True
        if event.does == "store":
            return self._overwrite(frame, event.place, readable)
        container, key, value = self._locate(frame, event.place, False)
        if value is UNBOUND and event.place[-1].kind == "attribute":
            value = read(container, key)  # it may have the same value as one of the class
        if event.does == "compute":
            return is_small_number(value) and not self._is_overwritten(container, key, value)
        self._read(value)
        return value is not UNBOUND

    def _may_make_one(self) -> bool:
        """Count an object that is made before the next store. False if there are too many: garbage may be collected."""
        self._made += 1
        return self._made <= MOST

    def _overwrite(self, frame: FrameType, place: Place, readable: bool) -> bool:
        """Whether a store runs no code. If the slot has a value that is not read again before, that is added."""
        container, key, value = self._locate(frame, place, True)
        if (id(container), key) in self._overwritten:
            return False  # the second store drops a part of the result, which may run code
        self._overwritten.add((id(container), key))
        if container is not frame:
            # Two objects may share a `__dict__`, or a module and what its globals are. So equal names with the same
            # value, or none yet, may be one slot.
            if (key, id(value)) in self._counted and id(type(container)) not in _CANNOT_SHARE:
                return False
            self._counted.add((key, id(value)))
            self.dying.overwrite(value)
        if value is UNBOUND:
            return self._may_make_one()  # a `__dict__`
        # The value lives on elsewhere (`z, x = x, z`), or slots in it were counted (`o.d["x"], o.d = ...`).
        if id(value) in self._loaded or id(value) in self._ways:
            return False
        if container is not frame or readable:  # `liveness` decides about the frame's other variables
            self.values.append(value)
        return self.dying.is_dropped_quietly(value)

    def _is_method(self, frame: FrameType, event: Event) -> bool:
        """Whether a method is made of a function of the object's class; False for a function of a module, which is an
        attribute. Raises `NotPlain` if it is anything else."""
        container, key, target = self._locate(frame, event.reads, False)
        if self._is_overwritten(container, key, target):
            raise NotPlain
        return type(target) is not types.ModuleType and bool(method(target, event.place[-1].name))

    def _unread(self, frame: FrameType, event: Event, events: Iterable[Event], gone: set[int]) -> None:
        """Add the fields of an object that nobody reads again: of one that a variable has that is left, or that a call
        makes a changed copy of. Nothing else may refer to it but variables that are `gone`, to which that one is added,
        and dead variables of the callers.

        What was read of these variables after the call are attributes, found plain; to store one would read the
        variable as a whole. Each field is a reference of its own; what is also the value of an attribute that is read
        is left out. (`fields.unread` is about exact dictionaries, lists and tuples.) Raises `NotPlain` if to read an
        attribute may run code.
        """
        if event.place:
            gone.add(event.place[0].name)
        if event.call is None:
            nodes, fields = [variable(frame, event.place[0].name)], list[tuple[str, Any]]()
        elif self._counted or (found := copied(frame, event.call, event.place, self.peek)) is None:
            return  # a store may have changed what is called, or what that looks up
        else:
            nodes, fields = found
        variables = [n for n, address in enumerate(addresses(frame)) if address == id(nodes[0])]
        if id(type(nodes[0])) in PLAIN or not gone.issuperset(variables):
            return
        ours = self.dying.listed(id(nodes[0])) + len(variables) - bool(event.place)
        more = held_by_others(nodes, ours)
        if more != (above := more and dead_above(frame, *self._added, id(nodes[0]), more)):
            return
        if not opens(nodes[0]):
            return
        for step in {step for n in variables for step in attributes_read(events, fast(n))}:
            fields.append((step.name, read(nodes[0], step.name)))
        self.values += fields_but(nodes, fields)
        self._owners += nodes
        self._variables.append(len(variables) - bool(event.place) + above)

    def stands(self, places: Sequence[Any]) -> bool:
        """Whether still nothing else refers to the objects of which fields were added: the metaclass of something that
        was looked at, asked for `__class__`, may have kept one. `places` has the values of all dead places."""
        for at, ours in enumerate(self._variables):
            nodes = [self._owners[at]]
            ours += 1 + sum([value is nodes[0] for value in places])  # `_owners`, and `places`
            if not is_held_once(nodes, ours):
                return False
        return True

    def _read(self, value: Any) -> None:
        """Note that the value is read after the call, so that it may live on once its slot is overwritten."""
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
        if first.kind == "cell" and first.name in self._own:
            return not steps
        if first.kind != "fast":
            return False  # anybody may have the function whose cell or globals these are
        nodes = [variable(frame, first.name)]
        for step in steps:
            if nodes[0] is UNBOUND:
                return False
            ours = self.dying.listed(id(nodes[0]))
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
            container, key = (frame, step.name) if step.name in self._own else (value, "cell_contents")
            try:
                return container, key, value.cell_contents
            except ValueError as error:
                if interpreter.comes_from_python(error):
                    raise
                return container, key, UNBOUND
        return frame, step.name, value
