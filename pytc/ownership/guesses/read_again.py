"""What is read again of the containers that a frame's variables have, as far as its code shows.

For guesses and messages: what `fields` and `slots` prove is found out in the same way, without what a call has to do
with it.
"""

from __future__ import annotations

from collections.abc import Set
from types import FrameType
from typing import Any

from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.bytecode.events import Call, Event, Place, Step, fast
from pytc.ownership.bytecode.fields import attributes_read
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.replacing import copied
from pytc.ownership.cpython.interpreter import variable
from pytc.ownership.cpython.plain import NotPlain
from pytc.ownership.frames import dead_above
from pytc.ownership.references.counts import PLAIN
from pytc.ownership.references.private import held_by_others
from pytc.ownership.slots import Slots


class ReadAgain:
    """What is read again of containers at one call site.

    `at_once` says that what is after the call comes right after it, and `atomic` that nothing is donated if the call
    raises.
    """

    def __init__(self, frame: FrameType, flow: ControlFlow, site: CallSite, slots: Slots, at_once: bool, atomic: bool):
        self._frame, self._flow, self._site, self._atomic = frame, flow, site, atomic
        self._events = site.events if at_once else ()
        self.by_copy: list[Any] = []
        """What is read of an object, to make a changed copy of it right after the call."""
        self.on_stack = 0
        """The id of this object, if it is on the stack meanwhile."""
        self._copied: Place = ()
        """The variable that is read last as that object, if it is not on the stack."""
        if self._events and (call := self._events[-1].call) is not None:
            self._find_copied(call, self._events[-1].place, slots)

    def _find_copied(self, call: Call, of: Place, slots: Slots) -> None:
        try:
            found = copied(self._frame, call, of, slots.peek)
        except NotPlain:
            return
        if found is not None:
            nodes, read = found
            self.by_copy += [value for _, value in read]
            self._copied = of
            self.on_stack = 0 if of else id(nodes[0])

    def members(self, local: int, ours: int = 0) -> Set[Step] | None:
        """The members of what a variable (a number) has that are read again, without those that a copy reads. None if
        that is read as a whole, or if others may refer to it than dead variables of the callers. The caller has so many
        references of `ours`."""
        nodes, place = [variable(self._frame, local)], fast(local)
        more = held_by_others(nodes, ours + (id(nodes[0]) == self.on_stack))
        if more and more != dead_above(self._frame, self._site, self._atomic, None, id(nodes[0]), more):
            return None
        if id(type(nodes[0])) in PLAIN:
            return self._site.members_read(self._flow, local, self._atomic, True)
        is_left = place == self._copied or Event("leave", place) in self._events
        return attributes_read(self._events, place) if is_left else None

    def never(self, place: Place) -> bool:
        """Whether a member of what a variable has is not read again, although others are."""
        if len(place) == 1 or place[0].kind != "fast":
            return False
        members = self.members(place[0].name)
        copied = id(variable(self._frame, place[0].name)) == self.on_stack
        return copied or (members is not None and place[1] not in members)

    def depends(self, place: Place) -> bool:
        """Whether that is so only if nothing runs code after the call before those others are read."""
        return self.never(place) and id(type(variable(self._frame, place[0].name))) not in PLAIN
