"""What the iterators of loops still refer to, of what they have handed out.

Two things, which nobody can ask an iterator for, and which it does not read again itself:

- `enumerate`, `zip` and the iterator of `dict.items()` hand out tuples. Each keeps the last, to fill it again if by
  then nobody else refers to it. So in `for i, state in enumerate(states): states[i] = step(state)` the state is in the
  list, in the variable, and in that tuple.
- The iterator of a list, a tuple or a dictionary goes on from where it is. In `states = [step(state) for state in
  states]` nothing reads the items that are behind it, if nothing but the iterator and dead places refers to the list.

All of this only of iterators of loops, which lie on the stack of a frame and are referred to from there alone, or from
such an iterator alone. Anybody else could have them go on in the midst of the proof, or copy them (`copy.copy`,
`pickle`), which some do with all that they have passed.
"""

from __future__ import annotations

import collections
import gc
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any, NamedTuple

from pytc.ownership.interpreter import getrefcount, variable

_OF_ITEMS: dict[Any, str] = {type(iter({}.items())): "items()", type(reversed({}.items())): "items()"}
REUSE_A_TUPLE: dict[Any, str] = {enumerate: "enumerate", zip: "zip", **_OF_ITEMS}
"""Types of iterators that fill a tuple again, and what people call them."""
_OF_SEQUENCES: frozenset[Any] = frozenset((type(iter([])), type(iter(()))))
_ITERATORS = frozenset(REUSE_A_TUPLE) | _OF_SEQUENCES
_MOST_ITEMS = 64


class Left(NamedTuple):
    """A reference that an iterator has left to a value."""

    value: Any
    container: Any
    """Of which it is an item; None where the value is in a tuple that is filled again."""
    iterator: Any
    """That goes through the container."""
    position: int
    """Of the iterator on the stack, counted from the first local."""


def handed_out(frame: FrameType, positions: Iterable[int]) -> list[Left]:
    """What the iterators at these positions of a frame's stack still refer to of what they have handed out."""
    found: list[Left] = []
    for position in positions:
        iterator = variable(frame, position)
        if type(iterator) in _ITERATORS:
            # A comprehension gets its iterator as an argument that no code can name.
            is_argument = frame.f_code.co_varnames[:1] == (".0",) and variable(frame, 0) is iterator
            # The stack, and the variable here.
            found += [Left(*each, position) for each in _handed_out(iterator, 2 + is_argument)]
    return found


def _handed_out(iterator: Any, references: int) -> list[tuple[Any, Any, Any]]:
    """The same of one iterator, value, container and iterator each, if there are no more than so many references to
    it."""
    kind = type(iterator)
    parts = gc.get_referents(iterator)
    # The variable here, and `getrefcount`'s own. A hook of `sys.addaudithook` was just shown it, and may have kept it.
    if getrefcount(iterator) != references + 2:
        return []
    if kind in _OF_SEQUENCES:
        if not parts or type(parts[0]) not in (list, tuple):  # at its end, or of a class that may run code
            return []
        return [(value, parts[0], iterator) for value in _passed_last(iterator, parts[0])]
    tuples = [part for part in parts if type(part) is tuple]
    found: list[tuple[Any, Any, Any]] = []
    if tuples and getrefcount(tuples[-1]) == 4:  # the iterator, the two lists here, and `getrefcount`'s own
        found += [(value, None, None) for value in tuples[-1]]
    if kind is enumerate:
        for part in parts:
            if type(part) in _ITERATORS:
                found += _handed_out(part, 3)  # the iterator, the list, and the variable here
    elif kind is zip and len(tuples) > 1 and getrefcount(tuples[0]) == 4:
        for part in tuples[0]:
            if type(part) in _ITERATORS:
                found += _handed_out(part, 2)
    elif kind in _OF_ITEMS and tuples:
        value = tuples[-1][1]
        spaces = [part for part in parts if type(part) is dict]
        found += [(value, space, iterator) for space in spaces if _has_passed(iterator, space, value)]
    return found


def _passed_last(iterator: Any, items: Any) -> Any:
    """The item of a list or tuple that its iterator has passed last, in one; nothing where there is none."""
    at = len(items) - iterator.__length_hint__()
    return items[max(at - 1, 0) : at]


def _has_passed(iterator: Any, items: dict[Any, Any], value: Any) -> bool:
    """Whether the value is in a dictionary, not too large, and not where its iterator still has to go: what was deleted
    and put there again meanwhile is behind what it has passed."""
    if len(items) > _MOST_ITEMS or not any(each is value for each in [*items.values()]):
        return False
    try:
        (ahead,) = iterator.__reduce__()[1]  # which fills no tuple to which somebody else refers, as the caller does
    except RuntimeError:
        return False  # the dictionary has changed its size: the iterator goes nowhere, and says so when asked
    return not any(each is value for _, each in ahead)


def dead(left: Sequence[Left], places: Iterable[Any]) -> list[Left]:
    """Those in places that are dead: in a container only if nothing refers to it but one iterator and `places`, a list
    of what stands in dead places, and only if the iterator is still past it then: until that moment another thread, or
    garbage that is collected, may have had the container, and put the value ahead."""
    if not left:
        return []
    standing = collections.Counter(map(id, places))
    # Of the container: the iterator, `left`, and `getrefcount`'s own; each place, and the list of these.
    return [
        each
        for each in left
        if each.container is None
        or (getrefcount(each.container) == 3 + 2 * standing[id(each.container)] and _is_behind(each))
    ]


def _is_behind(left: Left) -> bool:
    """Whether the value is still where the iterator has been."""
    if type(left.container) is dict:
        return _has_passed(left.iterator, left.container, left.value)
    return any(each is left.value for each in _passed_last(left.iterator, left.container))
