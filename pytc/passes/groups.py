"""Inputs and outputs of one kind, and what it costs to write one over the other.

An output can be written over an input once everything that reads the input has run. XLA looks for an order of the steps
in which that is so; if there is none, it copies the input first. So each pair has a price, which follows from the data
flow (`reads`): the bytes copied, if any. At equal prices, pairs with fewer steps from the input to the output are
preferred, because they are likely updates; then pairs whose input and output are both read to make another output, so
that a copy of the input is not alive for long; an input from which several outputs are made comes last. The pairs of a
group are those with the lowest total price: a minimum-cost assignment (`matching`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pytc.jax_compat.avals import AbstractValue, nbytes
from pytc.passes.fitting import Keys
from pytc.passes.matching import assign
from pytc.passes.reads import Reads
from pytc.program import Alias

COPY = 1e9
"""The price of a copy. The other prices are in steps from input to output, and only decide between choices with equally
many copies."""
UNRELATED = 1e4
"""The price of an output that is not computed from the input."""
BESIDE = 5e3
"""Taken off where both are read to make another output: they are read at about the same time."""
EARLY = 1e5
"""Added if the output may be written before another one that is made directly from the input (`Reads.early`)."""
TORN = 1e2
"""The price of an output that is computed from the input, but not element by element."""

COPIED = "copied first"
"""What `Alias.why` begins with of a pair that is expected to cost a copy."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Inputs and outputs of one shape, dtype and memory."""

    nbytes: int
    inputs: list[int]
    outputs: list[int]
    made: list[int]
    """For each output, the number of its value in the flow: a tie-breaker that does not depend on the order of results.
    """
    retyped: bool = False
    """Whether inputs and outputs are of different shapes or dtypes of equal size: then no loop can write over what it
    reads."""
    unordered: bool = False
    """Whether the compiler decides on copies before it orders the steps, as a CPU's does. It then also copies an input
    from which another output is made."""

    def near(self, output: int, read: Reads) -> Mapping[int, int]:
        """The inputs that `output` is an elementwise update of, with the number of steps; of another type, those that
        it only is in another shape."""
        near = read.nearest[output]
        return {given: near[given] for given in read.moved[output] if given in near} if self.retyped else near

    def torn(self, output: int, read: Reads) -> frozenset[int]:
        """The inputs that would be overwritten while they are still read to make `output`."""
        torn = read.torn[output]
        return torn | read.nearest[output].keys() - read.moved[output] if self.retyped else torn

    def is_copied(self, given: int, output: int, read: Reads) -> bool:
        """Whether the input would have to be copied before `output` is written over it.

        If the output is an update of the input, everything else that reads the input can come before.
        """
        is_near = given in self.near(output, read)
        too_early = read.read_after(given, output) or (not is_near and read.may_be_before(given, output))
        return too_early or given in self.torn(output, read)

    def price(self, given: int, output: int, read: Reads) -> float:
        """The price of writing `output` over `given`.

        On a CPU an early update is priced as a copy, though `is_copied` denies it: it should be the last choice, but if
        there is no other, the pair is made, as it would be by hand.
        """
        far = TORN if given in self.torn(output, read) else _unrelated(given, output, read)
        early = read.early(given, output)
        copied = self.is_copied(given, output, read) or (early and self.unordered)
        return self.near(output, read).get(given, far) + EARLY * early + COPY * copied

    def _updates(self, output: int, read: Reads) -> Iterator[tuple[int, float]]:
        """The inputs that `output` updates and that need not be copied for it, each with its `price`."""
        torn = self.torn(output, read)
        for given, steps in self.near(output, read).items():
            if given not in torn and not read.read_after(given, output):
                early = read.early(given, output)
                yield given, steps + EARLY * early + COPY * (early and self.unordered)

    def _prices(self, inputs: Sequence[int], output: int, read: Reads) -> list[float]:
        """`price` of many inputs, quickly: if the output is not computed from an input, the price depends only on who
        else reads that input."""
        related = self.near(output, read).keys() | self.torn(output, read)
        others, itself = ~read.needs[output], 1 << output
        return [
            self.price(given, output, read)
            if given in related
            else _unrelated(given, output, read) + EARLY + COPY
            if read.read_to_write[given] & others
            else _unrelated(given, output, read)
            + COPY * bool((read.needed_by_readers[given] | read.late[given]) & itself)
            for given in inputs
        ]

    def matched(self, read: Reads) -> list[Alias]:
        """The cheapest pairs."""
        column = {given: k for k, given in enumerate(self.inputs)}
        order = sorted(range(len(self.outputs)), key=lambda row: self.made[row])
        place = {row: k for k, row in enumerate(order)}
        rank = [place[row] for row in range(len(order))]
        unit = 8.0 * max(len(self.inputs), len(self.outputs))

        def prices(rows: Sequence[int], columns: Sequence[int]) -> NDArray[np.float64]:
            outputs, inputs = [self.outputs[row] for row in rows], [self.inputs[k] for k in columns]
            distance: NDArray[np.float64] = np.array([self._prices(inputs, output, read) for output in outputs])
            distance += abs(np.array(rank)[rows][:, None] - np.array(columns)) / unit
            return distance

        cheap = [
            {
                column[given]: price + abs(rank[row] - column[given]) / unit
                for given, price in self._updates(output, read)
                if given in column
            }
            for row, output in enumerate(self.outputs)
        ]
        found = assign(len(self.outputs), len(self.inputs), prices, cheap, UNRELATED - BESIDE)
        return [self.pair(self.inputs[k], self.outputs[row], read) for row, k in found]

    def free(self, read: Reads) -> list[Alias]:
        """The cheapest pairs, without those that need a copy."""
        return [pair for pair in self.matched(read) if not pair.copied]

    def pair(self, given: int, output: int, read: Reads) -> Alias:
        """The pair of these two, with what it copies and why."""
        if read.read_after(given, output):
            return Alias(given, output, self.nbytes, f"{COPIED}, as it is read after the output is written")
        if given in self.torn(output, read):
            return Alias(given, output, self.nbytes, f"{COPIED}, as all of it is read to write the output")
        early = read.early(given, output)
        if given in self.near(output, read):
            maybe = ", over a copy if another output is still to be made from it" if early and self.unordered else ""
            return Alias(given, output, 0, f"updated in place{maybe}")
        if read.may_be_before(given, output):
            return Alias(given, output, self.nbytes, f"{COPIED}, as it may be read after the output is written")
        return Alias(given, output, 0, "read for the last time before the output is written")


def _unrelated(given: int, output: int, read: Reads) -> float:
    """The price, besides that of a copy, of an output that is not computed from the input."""
    return UNRELATED - BESIDE * (read.beside[given] >> output & 1)


def grouped(
    in_avals: Sequence[AbstractValue], inputs: Keys, results: Keys, outputs: Sequence[int | None], **how: bool
) -> list[Group]:
    """Groups of inputs and outputs with equal keys, without those that have no output. `how` are options of `Group`."""
    groups: dict[Hashable, Group] = {}
    for number, key in inputs.items():
        if key not in groups:
            groups[key] = Group(nbytes(in_avals[number]), [], [], [], **how)
        groups[key].inputs.append(number)
    for number, key in results.items():
        if (group := groups.get(key)) is not None:
            value = outputs[number]
            group.outputs.append(number)
            group.made.append(-1 if value is None else value)
    return [group for group in groups.values() if group.outputs]
