"""Outputs that are better written over an input that is dead sooner than the one that they update.

    m = 0.9 * m + g
    x = m / norm(m)
    for _ in range(5):           # temporaries
        x = 1.5 * x - x @ x.T @ x
    return p - 0.1 * x, m

The new `p` updates the old one, which is read until the last step: while the temporaries are alive, that pair gives
them no memory. `g` is dead by then. What is to become the new `p` can hold temporaries in its place until then, and
nothing else changes: one of the two arguments is not written over in either case.

Proves that each step which reads the sooner input, or computes something within a loop that does, comes before the
output's own loop: the output needs it. So no copy is needed for the new pair. Cost: a walk over the steps for each
output and each input; so it is done for up to `MOST` of either, in programs of up to `_STEPS` steps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pytc.passes.dataflow import Flow, Kind, Step
from pytc.passes.reads import Reads
from pytc.passes.temporaries import TINY, Temporaries

MOST = 16
_STEPS = 1000
"""Longer programs, as those of whole networks, are left as they are."""


class Sooner:
    """Which inputs of a program are dead sooner than others."""

    def __init__(self, flow: Flow, read: Reads, memory: Temporaries) -> None:
        self._flow, self._read, self._memory = flow, read, memory
        self._readers_of: dict[int, set[int]] = {}

    @staticmethod
    def is_for(flow: Flow) -> bool:
        """Whether the program is short enough to look through it."""
        return len(flow.steps) <= _STEPS

    def than(self, now: int, output: int, inputs: Sequence[int]) -> int | None:
        """Of the `inputs`, which nothing is written over, the one that is read for the last time the soonest, if there
        are temporaries between that and the last time that input `now` is read, over which the output would be written;
        None if there is none."""
        flow, read = self._flow, self._read
        value = flow.outputs[output]
        if value is None:
            return None
        before = self._needed(flow.roots[value])
        readers = self._readers(now)
        if not readers:
            return None  # it is dead from the beginning
        if any(self._takes_memory(flow.steps[n]) for n in readers - before):
            return None  # a temporary made of it for another output may come at any time, and then also needs memory
        until = max(readers) if readers <= before else len(flow.steps)
        found: dict[int, int] = {}
        for given in inputs:
            if read.read_to_write[given] >> output & 1 or read.read_after(given, output) or read.early(given, output):
                continue
            readers = self._readers(given)
            if readers and readers <= before:
                last = max(readers)
                if any(self._takes_memory(flow.steps[n]) for n in before if last < n < until):
                    found[given] = last
        return min(found, key=lambda given: (found[given], given), default=None)

    @functools.cached_property
    def _maker(self) -> dict[int, int]:
        """The step (its number) that makes each value."""
        return {made: n for n, step in enumerate(self._flow.steps) for made in step.makes}

    def _needed(self, value: int) -> set[int]:
        """The steps that come before the one that makes a value, since it needs them."""
        steps, maker = self._flow.steps, self._maker
        needed: set[int] = set()
        ahead = [*steps[maker[value]].reads] if value in maker else []
        while ahead:
            n = maker.get(ahead.pop())
            if n is not None and n not in needed:
                needed.add(n)
                ahead += steps[n].reads
        return needed

    def _readers(self, given: int) -> set[int]:
        """The steps that read an input, and those that a loop over it may compute, up to what is in memory."""
        if given not in self._readers_of:
            reached, readers = {self._flow.inputs[given]}, set[int]()
            for n, step in enumerate(self._flow.steps):
                if not reached.isdisjoint(step.reads):
                    readers.add(n)
                    if step.kind in (Kind.ELEMENTWISE, Kind.INDEXED, Kind.JOINED):
                        reached.update(m for m in step.makes if step.view or m not in self._memory.in_memory)
            self._readers_of[given] = readers
        return self._readers_of[given]

    def _takes_memory(self, step: Step) -> bool:
        """Whether a step makes a large temporary, or needs memory inside."""
        return step.inside > TINY or (step.nbytes > TINY and not self._memory.all.isdisjoint(step.makes))
