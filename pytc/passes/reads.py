"""Who must read an input before it is overwritten, and whether it can be.

One walk over the flat steps answers, for every output and every input at once:

    nearest   which inputs reach the output element by element, and over how many steps: the candidates for a free
              update in place, the nearest first (`params` for the new `params`, the moment for the new moment).
    torn      which inputs the loop that writes the output reads at other places, or whole: written over one of
              these, it would destroy what it has still to read.
    needed_by_readers
              which outputs some reader of an input needs: such a reader runs after the output is written, so if the
              output were written over that input, the input would have to be copied first.
    early     which outputs may be written before some other output that is made straight from the input
              (`read_to_write`). If that other one is written over the input of the first in turn, no order of the two
              does without a copy.
    moved     which inputs the output is in another shape, or an update of that in place: no loop is in between that
              reads the one shape and writes the other.
    late      which outputs do not need all that is `reused` and made straight from the input: nor need they come after.

The sets follow a value only as far as fusion does. A step that makes its result in memory (a matrix product, a loop)
ends the walk, and so does an output, which is in memory too, and what is known to be stored (`rejoined`, `reused`).
That keeps every set small, and the walk linear.

A GPU's compiler has one loop write several outputs, where one is computed element by element from the other
(`MultiOutputFusion`): `q = q + p; return q, p - q`. What such a loop reads in step it has read before it writes either.
(Not with an output that is made of a row's elements and of their sum: that is a kernel of its own, as for a softmax.)
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections import Counter
from collections.abc import Mapping, Sequence, Set

from pytc.passes.dataflow import Flow, Kind, Step
from pytc.set_bits import set_bits

NEAREST = 8
"""How many of the inputs that reach a value are remembered."""
FUSED = 64
"""A compiler does not fuse a loop over more inputs than this."""

_NUMBER = 16
"""The bytes of a single number, at the most."""

_NONE: frozenset[int] = frozenset()
_NOWHERE: Mapping[int, int] = {}


@dataclasses.dataclass(frozen=True)
class Reads:
    """What the walk found. Inputs and outputs are invar and outvar numbers."""

    nearest: tuple[Mapping[int, int], ...]
    """For each output, inputs that reach it element by element: the number of steps."""
    torn: tuple[frozenset[int], ...]
    """For each output, inputs that are not read in step with its writing."""
    moved: tuple[frozenset[int], ...]
    """For each output, inputs in whose buffers it can stay without a loop over their elements."""
    needed_by_readers: tuple[int, ...]
    """For each input, the outputs that a reader of it needs, as the set bits of an integer."""

    read_to_write: tuple[int, ...]
    """For each input, the outputs whose own writing reads it, as bits."""
    needs: tuple[int, ...]
    """For each output, the outputs that must be written before it or with it, itself among them, as bits."""

    flow: Flow
    """The program."""
    read_before: Mapping[int, frozenset[int]]
    """For each value that is `reused`: the inputs that the loop reads which makes it."""

    def read_after(self, given: int, output: int) -> bool:
        """Whether something reads input `given` that needs `output` first."""
        return bool(self.needed_by_readers[given] >> output & 1)

    def early(self, given: int, output: int) -> bool:
        """Whether some other output is made straight from input `given`, and `output` does not need that one first."""
        return bool(self.read_to_write[given] & ~self.needs[output])

    def may_be_before(self, given: int, output: int) -> bool:
        """Whether `output`, if it is no update of input `given`, may be written before all that reads the input."""
        return self.early(given, output) or bool(self.late[given] >> output & 1)

    @functools.cached_property
    def late(self) -> list[int]:
        """For each input, the outputs that do not need everything `reused` that is made straight from it, as bits."""
        late = [0] * len(self.flow.inputs)
        if self.read_before:
            every = (1 << len(self.flow.outputs)) - 1
            for value, needing in _needing(self.flow, self.read_before.keys()).items():
                for given in self.read_before[value]:
                    late[given] |= every & ~needing
        return late

    @functools.cached_property
    def beside(self) -> tuple[int, ...]:
        """For each input, the outputs that are read, or may be, to make one that is made straight from the input; as
        bits. A new gradient, where a new weight is made of that and the last one."""
        # All that one step reads, a `cond` say, is often read to make the same outputs: they are looked through once.
        needs = {
            bits: functools.reduce(operator.or_, (self.needs[k] for k in set_bits(bits)), 0)
            for bits in {*self.read_to_write}
        }
        return tuple(needs[bits] for bits in self.read_to_write)


def reads(
    flow: Flow,
    *,
    rejoined: Set[int] = _NONE,
    reused: Set[int] = _NONE,
    stored: Set[int] = _NONE,
    reductions: Set[str] = frozenset(),
    several_outputs: bool = False,
) -> Reads:
    """Walk `flow` once, in time linear in its steps. Values that are `rejoined` or `reused` no later loop computes;
    `reductions`, by their names, are fused with what computes their operands, if these are not `stored`; and
    `several_outputs` may be written by one loop."""
    return _Walk(flow, rejoined, reused, stored, reductions, several_outputs).run()


class _Walk:
    def __init__(
        self,
        flow: Flow,
        rejoined: Set[int],
        reused: Set[int],
        stored: Set[int],
        reductions: Set[str],
        several_outputs: bool,
    ) -> None:
        self.flow, self.settled, self.reused, self.stored = flow, rejoined | reused, reused, stored
        self.reductions, self.several_outputs = reductions, several_outputs
        n = flow.values
        # Of each value: the inputs that its fusion reads in step, those it reads at other places, the inputs whose
        # bytes it is, those that the step which made it read whole, the nearest inputs, those in whose buffer it stays,
        # and the outputs that it needs.
        self.same = [_NONE] * n
        self.torn = [_NONE] * n
        self.bytes_of = [_NONE] * n
        self.whole = [_NONE] * n
        self.near: list[Mapping[int, int]] = [_NOWHERE] * n
        self.moved = [_NONE] * n
        self.needs = [0] * n
        self.read_before: dict[int, frozenset[int]] = {}
        """`Reads.read_before`."""
        self.together = [0] * n
        """Of each value: the outputs that one loop would write together with it, as bits."""
        self.of_rows = set[int]()
        """Values that a loop makes of what a reduction has left of each row."""
        self.needed_by_readers = [0] * len(flow.inputs)
        self.written_from: dict[frozenset[int], int] = {}
        """By what is read in writing an output: the outputs, as bits. Those that one step makes often read the same."""
        self.position: dict[int, int] = {}
        for position, value in enumerate(flow.outputs):
            if value is not None:
                self.position.setdefault(value, position)
        for number, value in enumerate(flow.inputs):
            self.same[value] = self.bytes_of[value] = self.moved[value] = frozenset([number])
            self.near[value] = {number: 0}
        last = {value: number for number, step in enumerate(flow.steps) for value in step.reads}
        self.read = last.keys()
        self.forgotten = _forgotten(last, {*flow.inputs})

    def run(self) -> Reads:
        found = {
            value: (self.near[value], self.torn[value], 1 << self.position[value])
            for value in self.flow.inputs
            if value in self.position
        }
        for number, step in enumerate(self.flow.steps):
            needs = self.all_needs(step.reads)
            if step.kind is Kind.ELEMENTWISE:
                self.elementwise(step)
            elif step.kind is Kind.INDEXED:
                self.indexed(step)
            elif step.kind is Kind.JOINED:
                self.joined(step)
            else:
                self.read_by(step.reads, needs)
                self.in_memory(step)
            together = needs
            for value in step.makes:
                self.needs[value] = needs
                if value in self.position:
                    together |= 1 << self.position[value]
            if together != needs:
                for value in step.makes:
                    if value in self.position:
                        found[value] = *self.written(value, needs), together
            for value in self.forgotten.get(number, ()):
                self.same[value] = self.torn[value] = self.whole[value] = _NONE
                self.near[value] = _NOWHERE
                self.needs[value] = 0
                if value not in self.position:
                    self.moved[value] = _NONE
        nowhere = (_NOWHERE, _NONE, 0)
        each = [found.get(value, nowhere) if value is not None else nowhere for value in self.flow.outputs]
        return Reads(
            nearest=tuple(near for near, _, _ in each),
            torn=tuple(torn for _, torn, _ in each),
            moved=tuple(_NONE if value is None else self.moved[value] for value in self.flow.outputs),
            needed_by_readers=tuple(self.needed_by_readers),
            read_to_write=tuple(self.read_to_write()),
            needs=tuple(needs for _, _, needs in each),
            flow=self.flow,
            read_before=self.read_before,
        )

    def read_to_write(self) -> list[int]:
        """`Reads.read_to_write`."""
        outputs_of = [0] * len(self.flow.inputs)
        for inputs, outputs in self.written_from.items():
            for given in inputs:
                outputs_of[given] |= outputs
        return outputs_of

    def elementwise(self, step: Step) -> None:
        (made,) = step.makes
        same, torn = self.fused(step.reads)
        if made in self.settled or len(same) + len(torn) > FUSED:
            self.end_at(step, same | torn)
            same = torn = _NONE
        self.same[made], self.torn[made] = same, torn
        if self.several_outputs:
            self.write_together(step)
        self.near[made] = _nearer([self.near[value] for value in step.reads], 0 if step.view else 1)
        if step.view and step.reads:
            self.bytes_of[made] = self.bytes_of[step.reads[0]]
            self.whole[made] = self.whole[step.reads[0]]
            if step.name != "bitcast_convert_type":  # a loop, that converts each element
                self.moved[made] = self.moved[step.reads[0]]

    def end_at(self, step: Step, inputs: frozenset[int]) -> None:
        """No later loop computes what this step makes, by a loop over these inputs."""
        self.read_by(step.reads, self.all_needs(step.reads))
        (made,) = step.makes
        if made in self.reused:
            self.read_before[made] = inputs

    def write_together(self, step: Step) -> None:
        """Note which outputs one loop would write together with what this step makes element by element."""
        (made,) = step.makes
        self.loop_of_rows(step)
        together = 0
        for value in step.reads:
            together |= self.together[value]
        if made in self.position:
            together = 0 if made in self.of_rows else together | 1 << self.position[made]
        self.together[made] = together

    def loop_of_rows(self, step: Step) -> None:
        """Note what a loop makes of rows."""
        if not self.of_rows.isdisjoint(step.reads):
            self.of_rows.update(step.makes)

    def indexed(self, step: Step) -> None:
        (made,) = step.makes
        self.loop_of_rows(step)
        same, torn = self.fused(step.reads)
        if made in self.settled or len(same) + len(torn) > FUSED:
            self.end_at(step, same | torn)
        else:
            self.torn[made] = same | torn
        if step.name in ("transpose", "broadcast_in_dim") and step.reads:
            self.bytes_of[made] = self.bytes_of[step.reads[0]]

    def joined(self, step: Step) -> None:
        """A step whose operands have been made, in memory, when it begins: it destroys nothing that is still read."""
        (made,) = step.makes
        same, torn = self.fused(step.reads)
        if made in self.settled or len(same) + len(torn) > FUSED:
            self.end_at(step, same | torn)
        else:
            self.same[made] = same | torn
        self.near[made] = _nearer([dict.fromkeys(sorted(torn), 1), *(self.near[value] for value in step.reads)], 1)

    def in_memory(self, step: Step) -> None:
        """A step that makes its results in memory: over some operands, with the others read whole."""
        readers = Counter(given for value in {*step.reads} for given in self.bytes_of[value])
        inputs = frozenset(readers)
        if step.name in self.reductions:
            roots = self.flow.roots
            inputs = inputs.union(*self.fused([value for value in step.reads if roots[value] not in self.stored]))
            if step.nbytes > _NUMBER:
                self.of_rows.update(step.makes)
        for number, made in enumerate(step.makes):
            over = step.over[number] if step.over else ()
            self.near[made] = _nearer([self.near[value] for value in over], 1)
            self.moved[made] = _NONE.union(*(self.moved[value] for value in over))
            self.same[made] = _NONE.union(*(self.same[value] for value in over))
            # What it is written over is made in the same buffer. Of the rest only what is read straight from an
            # input's buffer counts; other operands were made in memory before.
            own = Counter(given for value in {*over}.intersection(step.reads) for given in self.bytes_of[value])
            self.whole[made] = (inputs - {given for given, count in own.items() if count == readers[given]}).union(
                *(self.torn[value] | self.whole[value] for value in over)
            )

    def written(self, value: int, needs: int) -> tuple[Mapping[int, int], frozenset[int]]:
        """Close the fusion that writes an output; whoever reads it from here on reads memory."""
        near, torn = self.near[value], self.torn[value] | self.whole[value]
        # Not what steps before have read whole: they read it when they ran (`read_by`), whatever came of it since.
        self.readers(self.torn[value], needs)
        self.readers(self.same[value], needs & ~self.together[value])
        inputs = self.same[value] | torn
        self.written_from[inputs] = self.written_from.get(inputs, 0) | 1 << self.position[value]
        self.same[value] = self.torn[value] = _NONE
        if value in self.read:
            self.needs[value] = needs | 1 << self.position[value]
        return near, torn

    def fused(self, values: Sequence[int]) -> tuple[frozenset[int], frozenset[int]]:
        """The inputs that a loop over `values` reads: in step, and at other places."""
        if len(values) == 1:
            return self.same[values[0]], self.torn[values[0]]
        same, torn = _NONE, _NONE
        for value in values:
            if more := self.same[value]:
                same = same | more if same else more
            if more := self.torn[value]:
                torn = torn | more if torn else more
        return same, torn

    def all_needs(self, values: Sequence[int]) -> int:
        needs = 0
        for value in values:
            needs |= self.needs[value]
        return needs

    def read_by(self, values: Sequence[int], needs: int) -> None:
        """A step that is not fused reads `values`, and so every input that their own loops read."""
        if needs:
            for value in values:
                self.readers(self.same[value] | self.torn[value], needs)

    def readers(self, inputs: frozenset[int], needs: int) -> None:
        if needs:
            for given in inputs:
                self.needed_by_readers[given] |= needs


def _nearer(paths: Sequence[Mapping[int, int]], steps: int) -> Mapping[int, int]:
    """The nearest few inputs over all `paths`, `steps` further away."""
    paths = [path for path in paths if path]
    if not paths:
        return _NOWHERE
    if len(paths) == 1 and not steps:
        return paths[0]
    merged = {given: distance + steps for given, distance in paths[0].items()}
    for path in paths[1:]:
        for given, distance in path.items():
            if given not in merged or distance + steps < merged[given]:
                merged[given] = distance + steps
    if len(merged) > NEAREST:
        merged = dict(sorted(merged.items(), key=lambda item: (item[1], item[0]))[:NEAREST])
    return merged


def _needing(flow: Flow, values: Set[int]) -> dict[int, int]:
    """The outputs that need each of these values, as bits. A walk from the last step to the first."""
    needing: dict[int, int] = {}
    for output, value in enumerate(flow.outputs):
        if value is not None:
            needing[value] = needing.get(value, 0) | 1 << output
    for step in reversed(flow.steps):
        outputs = 0
        for value in step.makes:
            outputs |= (needing.get if value in values else needing.pop)(value, 0)
        if outputs:
            for value in step.reads:
                needing[value] = needing.get(value, 0) | outputs
    return {value: needing.get(value, 0) for value in values}


def _forgotten(last: Mapping[int, int], kept: Set[int]) -> dict[int, list[int]]:
    """For each step, the values but `kept` that nothing reads after it, so that what is known of them can be forgotten.

    `last` has the step that reads a value last.
    """
    forget: dict[int, list[int]] = {}
    for value, number in last.items():
        if value not in kept:
            forget.setdefault(number, []).append(value)
    return forget
