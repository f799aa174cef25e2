"""References that the iterators of loops keep to items they have already returned, and which of these are dead.

There are two kinds. An iterator never reads them again, and nobody can ask it for them:

- `enumerate`, `zip` and the iterator of `dict.items()` return tuples. Each keeps the last one, to fill it again if
  nobody else refers to it by then. So in `for i, state in enumerate(states): states[i] = step(state)` the state is in
  the list, in the variable, and in that tuple.
- The iterator of a list, a tuple or a dictionary refers to the whole container but continues from its position. In
  `states = [step(state) for state in states]` nothing reads the items before that position, if nothing but the iterator
  and dead places refers to the list.

This holds only for a loop's iterator that lies on the stack of a frame and is referred to from there alone, or from
another such iterator alone. Anybody else who has an iterator could advance it during the proof, or copy it
(`copy.copy`, `pickle`); some copies contain all that the iterator has passed.
"""

from __future__ import annotations

import collections
import gc
from collections.abc import Container, Iterable, Sequence
from types import FrameType
from typing import Any, NamedTuple

from pytc.classes import ids_of
from pytc.ownership.cpython.interpreter import getrefcount, variable

_ITEMS: list[Any] = [iter({}.items()), reversed({}.items())]
REUSE_A_TUPLE: dict[Any, str] = {enumerate: "enumerate", zip: "zip", **dict.fromkeys(map(type, _ITEMS), "items()")}
"""Types of iterators that reuse a tuple, and their names for people."""
_OF_ITEMS = ids_of(*map(type, _ITEMS))
_OF_SEQUENCES = ids_of(type(iter([])), type(iter(())))
_ITERATORS = ids_of(*REUSE_A_TUPLE) | _OF_SEQUENCES
_SEQUENCES = ids_of(list, tuple)
_MOST_ITEMS = 64  # in a dictionary: its iterator is asked for all items ahead


class Left(NamedTuple):
    """A reference that an iterator keeps to a value it has returned."""

    value: Any
    container: Any
    """The container that has the value; None if the value is in a reused tuple."""
    iterator: Any
    """The iterator over the container."""
    filled: Any
    """Of an iterator of `dict.items()`: its reused tuple. While this refers to it, the iterator does not fill it."""
    position: int
    """The loop's position on the stack, counted from the first local."""


def handed_out(frame: FrameType, positions: Iterable[int], dead: Container[int]) -> list[Left]:
    """The references that the iterators at these positions of a frame's stack keep to items they have returned. `dead`
    are the numbers of the frame's dead local variables."""
    found: list[Left] = []
    for position in positions:
        iterator = variable(frame, position)
        if id(type(iterator)) in _ITERATORS:
            # A comprehension gets its iterator as an argument, which nothing reads again.
            is_argument = 0 in dead and frame.f_code.co_varnames[:1] == (".0",) and variable(frame, 0) is iterator
            # The variable here, the stack, and the argument `.0`.
            found += [Left(*each, position) for each in _handed_out(iterator, 2 + is_argument)]
    return found


def _handed_out(iterator: Any, references: int) -> list[tuple[Any, Any, Any, Any]]:
    """The same for one iterator, without the position; empty unless it has exactly so many references.

    `references` leaves out those of the variable `iterator` and of `getrefcount`'s argument.
    """
    kind = type(iterator)
    parts = gc.get_referents(iterator)
    if getrefcount(iterator) != references + 2:
        return []
    if id(kind) in _OF_SEQUENCES:
        if not parts or id(type(parts[0])) not in _SEQUENCES:  # exhausted, or over a class that may run code
            return []
        return [(value, parts[0], iterator, None) for value in _passed_last(iterator, parts[0])]
    tuples = [part for part in parts if type(part) is tuple]
    found: list[tuple[Any, Any, Any, Any]] = []
    if tuples and getrefcount(tuples[-1]) == 4:  # the iterator, `parts`, `tuples`, and `getrefcount`'s argument
        found += [(value, None, None, None) for value in tuples[-1]]
    if kind is enumerate:
        for part in parts:
            if id(type(part)) in _ITERATORS:
                found += _handed_out(part, 3)  # the outer iterator, `parts`, and the variable `part`
    elif kind is zip and len(tuples) > 1 and getrefcount(tuples[0]) == 4:  # its tuple of iterators
        for part in tuples[0]:
            if id(type(part)) in _ITERATORS:
                found += _handed_out(part, 2)
    elif id(kind) in _OF_ITEMS and tuples:
        value = tuples[-1][1]
        spaces = [part for part in parts if type(part) is dict]
        found += [(value, space, iterator, tuples[-1]) for space in spaces if _has_passed(iterator, space, value)]
    return found


def _passed_last(iterator: Any, items: Any) -> Any:
    """A slice with the item of a list or tuple that its iterator returned last; empty if there is none."""
    at = len(items) - iterator.__length_hint__()
    return items[max(at - 1, 0) : at]


def _has_passed(iterator: Any, items: dict[Any, Any], value: Any) -> bool:
    """Whether the value is in a dictionary, not too large, and its iterator will not return it again. It would if the
    value was deleted and added again meanwhile, which moves it to the end."""
    if len(items) > _MOST_ITEMS or not any(each is value for each in [*items.values()]):
        return False
    try:
        # The list of the items ahead, from a copy of the iterator. The caller refers to the reused tuple, so the copy
        # does not fill it.
        (ahead,) = iterator.__reduce__()[1]
    except RuntimeError:
        return False  # the dictionary has changed its size
    return not any(each is value for _, each in ahead)


def dead(left: Sequence[Left], places: Iterable[Any]) -> list[Left]:
    """Those of `left` that are dead; `places` is the list of the values of all dead places.

    A reference from a container is dead only if nothing refers to the container but one iterator and dead places, and
    if the iterator is still past the value then. That comes last: until nobody else has the container, another
    thread, or garbage that is collected, may move the value ahead of the iterator.
    """
    if not left:
        return []
    standing = collections.Counter(map(id, places))
    # References to the container: the iterator, `left`, `getrefcount`'s argument; and each dead place, and `places`.
    return [
        each
        for each in left
        if each.container is None
        or (getrefcount(each.container) == 3 + 2 * standing[id(each.container)] and _has_been_passed(each))
    ]


def _has_been_passed(left: Left) -> bool:
    """Whether the iterator is still past the value."""
    if type(left.container) is dict:
        return _has_passed(left.iterator, left.container, left.value)
    return any(each is left.value for each in _passed_last(left.iterator, left.container))
