"""The choice of pairs for which a small program takes the fewest bytes on a CPU, as far as that is known here.

There are too many choices to compute each. So it begins with the pairs that data flow suggests, and with none, and
changes one thing at a time (a pair less, a pair more, an input for another, two outputs swapped) for as long as that
saves memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from pytc.passes.cpu.buffers import temporaries
from pytc.passes.cpu.copies import copied
from pytc.passes.cpu.fusion import Fused, fused
from pytc.passes.cpu.schedule import schedule
from pytc.passes.dataflow import UPDATES, Flow, Kind
from pytc.passes.temporaries import FUSED, TINY

_KNOWN = FUSED["cpu"] | UPDATES | {"broadcast_in_dim", "concatenate", "dot_general", "iota", "rev", "slice"}
"""Steps besides those on elements that `Small` knows."""
_STEPS = 128
"""A program of more steps is not small."""
_MOST = 500
"""The number of choices looked at, times the size of the program, is about this at most: some milliseconds."""

Pairs: TypeAlias = frozenset[tuple[int, int]]
"""Of inputs and outputs, by number."""
Groups: TypeAlias = Collection[tuple[Sequence[int], Sequence[int]]]
"""Inputs and outputs of equal avals."""


def smallest(pairs: Pairs, groups: Groups, program: Small) -> Pairs:
    """These pairs, or others of inputs and outputs of a group with which the program takes less. If none takes less,
    these are left, also where they cost a copy and save nothing: what is not known here may need the memory."""
    if program.need(pairs)[0] <= program.least(groups) + TINY:
        return pairs
    # All that are looked at here, also those that an earlier call has computed: on that the outcome must not depend.
    seen: set[Pairs] = set()
    found = min((_improved(start, groups, program, seen) for start in (pairs, Pairs())), key=program.need)
    return found if program.need(found)[0] < program.need(pairs)[0] - TINY else pairs


def _improved(pairs: Pairs, groups: Groups, program: Small, seen: set[Pairs]) -> Pairs:
    """These pairs, changed for as long as that saves memory and there is time."""
    while True:
        better = pairs
        for changed in _changed(pairs, groups):
            if len(seen) >= program.most:
                break
            seen.add(changed)
            better = min(better, changed, key=lambda each: (program.need(each), len(each), sorted(each)))
        if program.need(better)[0] >= program.need(pairs)[0]:
            return pairs
        pairs = better


def _changed(pairs: Pairs, groups: Groups) -> Iterator[Pairs]:
    """The choices that differ from this one in one thing."""
    for pair in sorted(pairs):
        yield pairs - {pair}
    for inputs, outputs in groups:
        for given, output in itertools.product(inputs, outputs):
            if (given, output) not in pairs:
                others = frozenset([pair for pair in pairs if pair[0] != given and pair[1] != output])
                yield others | {(given, output)}
    for (given, output), (other, its) in itertools.combinations(sorted(pairs), 2):
        if any(given in inputs and other in inputs for inputs, _ in groups):
            yield pairs - {(given, output), (other, its)} | {(given, its), (other, output)}


class Small:
    """A small program, and what it takes with each choice of pairs that has been asked for."""

    def __init__(self, flow: Flow, sizes: Mapping[int, int]) -> None:
        """`sizes` are the bytes of inputs and outputs, by value."""
        self._flow = flow
        self._outputs = [None if value is None else flow.roots[value] for value in flow.outputs]
        self._results = {value for value in self._outputs if value is not None}
        self._sizes = {value: step.nbytes // len(step.makes) for step in flow.steps for value in step.makes}
        self._sizes.update(sizes)
        self.most = _MOST // (len(flow.steps) + len(flow.inputs) + len(flow.outputs)) + 1
        """So many choices there is time to look at."""
        self._known: dict[Pairs, tuple[int, int]] = {}
        self._fused: dict[tuple[int, ...], Fused] = {}
        """By the order of the results, which many choices have in common."""

    @staticmethod
    def may_be_for(flow: Flow) -> bool:
        """Whether a program has few enough steps, before those that compute the same are one."""
        return len(flow.steps) <= 2 * _STEPS

    @staticmethod
    def is_for(flow: Flow) -> bool:
        """Whether the program is small, and enough is known here of all that happens in it: steps on elements, matrix
        products, updates, rolls, and reductions to what no large step reads, which the compiler may fuse with it.

        Not of transposes, which it may do without by another layout; of padding, which it stores or not; of powers,
        which are several steps; of loops over time, and of what needs memory inside. Nor of results that are made of
        nothing, or are arguments under another shape or type. With no steps at all, there is nothing to be chosen.
        """
        steps = [step for step in flow.steps if not step.view]
        made = {value for step in steps if step.reads for value in step.makes}
        if not 0 < len(steps) <= _STEPS or any(
            value is not None and flow.roots[value] not in made for value in flow.outputs
        ):
            return False
        reduced: set[int] = set()
        for step in steps:
            reads_reduced = not reduced.isdisjoint(flow.roots[value] for value in step.reads)
            if step.kind is Kind.ELEMENTWISE:
                if step.name == "integer_pow" or (reads_reduced and step.nbytes > TINY):
                    return False
            elif step.name not in _KNOWN:
                return False
            if step.name in FUSED["cpu"] or (step.name == "broadcast_in_dim" and reads_reduced):
                reduced.update(step.makes)
        return True

    def least(self, groups: Groups) -> int:
        """The bytes that no choice of pairs does without: those of the results for which there is no input."""
        over = sum(min(map(len, group)) * self._sizes[self._flow.inputs[group[0][0]]] for group in groups)
        return sum(self._sizes[value] for value in self._results) - over

    def need(self, pairs: Pairs) -> tuple[int, int]:
        """The bytes that it takes besides its arguments, and those of copies."""
        if pairs not in self._known:
            self._known[pairs] = self._need(pairs)
        return self._known[pairs]

    def _need(self, pairs: Pairs) -> tuple[int, int]:
        flow, size = self._flow, self._sizes
        over = {
            value: flow.inputs[given] for given, output in sorted(pairs) if (value := self._outputs[output]) is not None
        }
        # The results in the order in which the program will be emitted: those that are written over an input first.
        order = (*over, *(value for value in self._outputs if value is not None and value not in over))
        if order not in self._fused:
            self._fused[order] = fused(flow, order)
        program = copied(self._fused[order], over, flow.values)
        size = {**size, **{copy: size[value] for copy, value in program.original.items()}}
        apart = sum(size[value] for value in self._results if value not in over)
        more = temporaries(program, schedule(program, flow.inputs), self._results, over, size)
        return apart + more, sum(size[copy] for copy in program.original)
