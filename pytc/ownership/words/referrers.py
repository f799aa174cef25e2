"""Who refers to an object, and who to those in turn, found in a few looks at everything there is.

`gc.get_referrers` visits every object that the collector knows: that takes tens of milliseconds in a program of usual
size, and a second in a large one. It can be asked for many objects at once, in hardly more time. So each look here asks
for all that may be asked for next: with the first, for all the values; with the second, for the containers that they
are in; and so on outwards.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Set
from typing import Any

_MOST_LOOKS = 6
"""After so many looks no more is found."""
_MOST_AT_ONCE = 64
"""How many objects a look asks for. Every reference that it visits is compared with each of them."""
_CONTAINERS = frozenset((dict, list, tuple, set, frozenset))


class Referrers:
    """What refers to some values, and to what that is in."""

    def __init__(self, values: Iterable[Any], ours: Set[int]) -> None:
        """`ours` are the ids of objects that were made in order to ask: they are no answer."""
        self._ahead = [*values]
        """What no look has asked for yet, and may be asked for."""
        self._found: dict[int, list[Any]] = {}
        """By the id of each object asked for, what refers to it."""
        self._ours = {*ours, id(self._ahead), id(self._found)}
        self._looks = 0

    def of(self, value: Any) -> list[Any]:
        """What refers to one of the values, or to what was found so; nothing if there were too many looks already."""
        if id(value) not in self._found and self._looks < _MOST_LOOKS:
            self._look(value)
        return self._found.get(id(value), [])

    def are_known_of(self, value: Any) -> bool:
        """Whether a look has asked for the value."""
        return id(value) in self._found

    def _look(self, value: Any) -> None:
        self._looks += 1
        asked = {id(value): value}
        while self._ahead and len(asked) < _MOST_AT_ONCE:
            each = self._ahead.pop(0)
            if id(each) not in self._found:
                asked[id(each)] = each
        self._found.update((key, []) for key in asked)
        self._ours.update(id(self._found[key]) for key in asked)
        values = (*asked.values(),)
        referrers = gc.get_referrers(*values)
        self._ours |= {id(asked), id(values)}
        for referrer in referrers:
            if id(referrer) in self._ours:
                continue
            for key in asked.keys() & set(map(id, gc.get_referents(referrer))):
                self._found[key].append(referrer)
            if type(referrer) in _CONTAINERS and not _is_of_globals(referrer):
                self._ahead.append(referrer)
        self._ours -= {id(asked), id(values)}


def _is_of_globals(container: Any) -> bool:
    return type(container) is dict and "__builtins__" in container
