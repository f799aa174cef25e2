"""Hidden sharing, by age: what came out of an execution shares its buffer with nothing that is older.

What an execution returns is on buffers of its own. An array that came out of an execution shares with nothing that is
older, and with nothing that came out of another execution; only an array made otherwise, later, can be on its buffer.
So arrays that are known to have come out of executions share with each other never, and if nothing else has been made
since, with nothing.

The last executions are remembered by weak references to the newest of their results, and the oldest that took over an
argument's memory, which lives on as the state (`executed`): what lies between the two in the list of all arrays came
out of the same execution, because the results are made in one go, in C++, with the interpreter's lock held. (Only a
garbage collection can come in between, up to CPython 3.11, and run a finaliser that makes an array; after one, it is
looked whether the results are the newest arrays there are.) This reads no address and waits for no device; it is what
happens in a training loop. What it leaves open is for `buffers`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from pytc.ownership.arrays.alive import FEW, listed
from pytc.ownership.references.counts import Mark, new_marks, remembered

_AT_A_GLANCE = 8
"""Arrays made since the newest execution, such as a batch, that `newest` looks through for its results."""
_MOST = 2 * FEW
"""Executions that are remembered, and half as many whenever that is too many: so it is not looked each time. Half are
those of `FEW` states that take turns; where there are more, each is copied rather."""
_FEW = 16
"""So many more than twice those that had results when it was last looked, until it is looked again. (Not hundreds: each
is some objects that Python's garbage collector counts, and what is made and let go of within few calls has it collect
nothing.)"""
_MOST_MISSING = 4
"""Executions found without results at one call, from which on those without results are forgotten at once."""


@dataclasses.dataclass(slots=True, eq=False)
class _Execution:
    """What came out of one execution."""

    marks: tuple[Mark, ...]
    """On its newest result, and on the newest and the oldest of those that took over an argument's memory."""
    results: int
    """How many there were the last time, at most, from the newest to the last that is marked."""

    def is_spent(self) -> bool:
        """Whether its results cannot be found any more."""
        oldest = self.marks[-1]()
        return oldest is None or bool(oldest.is_deleted())

    def span(self, alive: list[Any], start: int) -> tuple[int, int] | None:
        """From where to where its results are in the list of all arrays, from `start` on; None if not there."""
        oldest = self.marks[-1]()
        if oldest is None or oldest.is_deleted():
            return None
        count = len(alive)
        for mark in self.marks:
            newest = mark()
            if newest is None or newest.is_deleted():
                continue
            first = start
            while first < count and alive[first] is not newest:
                first += 1
            # From the far end: mostly all results are still alive, or all but a few.
            end = min(first + self.results, count)
            while end > first and alive[end - 1] is not oldest:
                end -= 1
            if end == first:
                return None
            self.results = end - first  # no more will be
            return first, end
        return None


_recent = cast("list[_Execution]", remembered)
"""The last executions, newest first."""
_limit = [_FEW]
"""From how many on those without results are forgotten."""
_IN_ORDER = [False]
"""Whether the results of an execution have been seen to be listed in order, without a gap."""


def executed(marked: Sequence[Any], count: int, in_one_go: bool, results: Callable[[], Sequence[Any]]) -> None:
    """Remember an execution that has just returned `results`, in the order in which they were made.

    `marked` are the last of them, and the last and the first that took over an argument's memory, as far as they
    differ. Those from that one on are remembered, `count` of them. `in_one_go` says that no Python code can have run
    while they were made; if it can have, they are remembered only if nothing has come in between.
    """
    if not count:
        return
    if not (in_one_go and (_IN_ORDER[0] or count == 1)):
        made = results()
        if not _are_newest(made):
            return
        marked, count = (made[-1], made[0]) if len(made) > 1 else made, len(made)
    # Nothing may be raised here, where the arguments are gone, even if a handler of a signal or another thread changes
    # the list at this moment.
    _recent.insert(0, _Execution(new_marks(marked), count))
    if len(_recent) > min(_limit[0], _MOST):
        _forget_spent()


def _are_newest(results: Sequence[Any]) -> bool:
    """Whether the results of an execution are the newest arrays there are, with nothing in between."""
    found = listed()[: len(results)]
    if len(found) < len(results) or not all(map(operator.is_, found, reversed(results))):
        return False
    _IN_ORDER[0] = _IN_ORDER[0] or len(results) > 1
    return True


def newest(alive: list[Any]) -> tuple[int, int, tuple[Mark, ...]]:
    """The results of the newest execution: where in the list of all arrays they begin, and how many they are, 0 if they
    are not found at a glance; and what remembers that execution."""
    latest = _recent[:1]  # read once: another thread may change the list at any moment
    if not latest:
        return 0, 0, ()
    made, marks = latest[0].results, latest[0].marks
    first, start = marks[0](), 0
    most = min(_AT_A_GLANCE, len(alive) - made)
    while start <= most:
        if alive[start] is first:
            return start, made if alive[start + made - 1] is marks[-1]() else 0, marks
        start += 1
    return 0, 0, marks


class Fresh(NamedTuple):
    """What is known by age alone."""

    arrays: list[Any]
    """The results of some of the last executions: they share with none of each other, and with nothing older."""
    others: list[Any]
    """Everything else that has been made since the oldest of them."""
    marks: tuple[Mark, ...]
    """What remembers the newest of these executions."""


def fresh(most: int, alive: list[Any] | None = None) -> Fresh:
    """The results of the last executions that still have some, at most `most` executions. `alive` is what `listed`
    returns, where that was asked already."""
    alive = listed() if alive is None else alive
    found: list[Any] = []
    others: list[Any] = []
    marks: tuple[Mark, ...] = ()
    start = at = missing = there = 0  # `start`: where the results begin that follow each other without a gap up to `at`
    count = len(alive)
    for execution in _recent[:]:
        # Mostly its results come next and are all there, and this may be one of hundreds.
        end = at + execution.results
        if not (end <= count and alive[at] is execution.marks[0]() and alive[end - 1] is execution.marks[-1]()):
            span = execution.span(alive, at)
            if span is None:
                missing += 1
                continue
            first, end = span
            found += alive[start:at]
            others += alive[at:first]
            start = first
        marks = marks or execution.marks
        at = end
        there += 1
        if there == most:
            break
    found += alive[start:at]
    if missing > _MOST_MISSING:
        _forget_spent()
    return Fresh(found, others, marks)


def _forget_spent() -> None:
    """Forget executions whose results are gone (an evaluation, a step whose results nobody kept), and the oldest."""
    kept = [execution for execution in _recent if not execution.is_spent()][: _MOST // 2]
    _limit[0] = 2 * len(kept) + _FEW
    _recent[:] = kept


def reaching(arrays: Sequence[Any]) -> int:
    """How many of the last executions to look through, as `fresh` does, to find all of these arrays among the results:
    a power of two. 0 if some of the arrays are not there."""
    alive, missing, at = listed(), set(map(id, arrays)), 0
    there = 0
    for execution in _recent[:]:
        span = execution.span(alive, at)
        if span is not None:
            first, at = span
            missing.difference_update(map(id, alive[first:at]))
            there += 1
        if not missing:
            return 1 << max(there - 1, 0).bit_length()
    return 0
