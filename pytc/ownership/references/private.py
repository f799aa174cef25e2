"""Objects that no other thread can reach: all references to them are variables of functions of this thread.

A thread comes by an object from something that refers to it. If each reference is accounted for by a local variable of
a function on this thread's stack, no other thread has one, nor can it get one while those functions wait: the variables
of a function are read by others through its frame alone, so the frames must be in nobody's hands. What only such an
object refers to is out of reach in the same way. So an attribute or an item of it is as good as a variable, whatever
else runs: `trainer = Trainer(); trainer.fit(loader)`, where `fit` overwrites `self.state`, beside threads that load.

Objects are counted from the variables inwards: once an object is known to be private, nobody else can change what it
refers to, or take a new reference to that.
"""

from __future__ import annotations

import collections
import gc
import inspect
import itertools
import weakref
from types import FrameType
from typing import Any

from pytc.ownership.bytecode.stack import HIGHEST, first_of_stack
from pytc.ownership.cpython.interpreter import first_local, getrefcount, may_share_attributes, share_attributes, words
from pytc.ownership.cpython.plain import of_strings

_weakrefs = weakref.getweakrefcount


class StackVariables:
    """How often the local variables of this thread's functions refer to an object.

    `add` frames that nobody else has hold of, from the one that called upwards; those above the last one are looked
    into where they are needed.
    """

    def __init__(self) -> None:
        self._counts = collections.Counter[int]()

    def add(self, frame: FrameType) -> None:
        """Count what the variables of a frame refer to."""
        self._counts.update(addresses(frame))

    def hold_alone(self, nodes: list[Any], frame: FrameType, ours: int) -> bool:
        """Whether nothing refers to the one object in the list `nodes` but variables of the frames that were added, and
        of those above `frame`, the last of these. The proof has so many of `ours` besides that list."""
        address = id(nodes[0])
        left = _references(nodes) - ours - self._counts[address]
        above = frame.f_back
        for _ in range(HIGHEST):
            if left <= 0 or above is None:
                break
            # The interpreter, the variable here, and `getrefcount`'s argument.
            if getrefcount(above) != 3:
                break  # whoever has it has those above it, by `f_back`
            left -= addresses(above).count(address)
            above = above.f_back
        return left == 0


def is_held_once(nodes: list[Any], ours: int) -> bool:
    """Whether a single reference to the one object in the list `nodes` is not the proof's, which has so many of `ours`
    besides that list."""
    return held_by_others(nodes, ours) == 0


def held_by_others(nodes: list[Any], ours: int) -> int:
    """How many references there are to it besides one, and the proof's."""
    return _references(nodes) - ours - 1


def has_own_attributes(nodes: list[Any], name: str, value: Any) -> bool:
    """Whether nobody has the `__dict__` of the one object in the list `nodes`, which has `value` as a plain attribute
    under this name.

    A `__dict__` to which the object refers as to anything else is not told from a dictionary in another attribute that
    has the same item. Then the answer may be no, although nobody has it.
    """
    if may_share_attributes(type(nodes[0])) and share_attributes(nodes):
        return False
    spaces = [part for part in gc.get_referents(*nodes) if type(part) is dict and of_strings(part)]
    # The object, `spaces`, the variable `space`, and `getrefcount`'s argument.
    return all(getrefcount(space) == 4 for space in spaces if name in space and space[name] is value)


def _references(nodes: list[Any]) -> int:
    """The references to the object in `nodes`, weak ones too, but for that list's. In one go: an interpreter that could
    switch to another thread in between might miss a reference that is made strong or weak meanwhile."""
    counted = sum(itertools.chain(map(getrefcount, nodes), map(_weakrefs, nodes)))
    return counted - 2  # the list, and `getrefcount`'s argument


def addresses(frame: FrameType) -> list[int]:
    """The ids of what the local variables of a frame refer to, 0 where one is unbound. (A module's variables are
    globals.)"""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return []
    found: list[int] = words(frame)[first_local : first_local + first_of_stack(code)]
    return found
