"""Which output is written into which input's buffer.

An output can be written over an input of the same shape, dtype and memory once everything that reads the input has
read it. XLA sees to the order; where there is none, it copies the input first, and nothing is gained but the time at
which the copy can go. So each pair has a price, in bytes copied, that the flow of the data decides (`reads`), and the
pairs chosen are those that cost least over all: a minimum-cost assignment within every group of equal avals. Of pairs
that cost the same the one is taken whose output is computed from that input in the fewest steps, since that is how an
update looks. Then pairs go that are worse than none:

    - a copy is made that saves nothing, since there are no other temporaries, or that is tiny (`temporaries`). On a TPU
      such a pair stays: its copies are made on the chip.
    - on a CPU, two outputs that each need the other's input, `a, b = a + b, a - b`: its compiler copies both inputs;
      with one of the pairs left out it copies one. Others compute both outputs in one loop.

For several TPUs the compiler is given first the results that are written over nothing, a loss as a rule: it schedules
by the order of the results, and sharded training steps take a tenth less memory so, or far less
(`benchmarks/footprints.py`). On a single one it makes no difference, as a rule.

The choice does not depend on the order of the arguments or results. It costs a walk over the jaxpr, linear in its
size.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from pytc.jax_compat.avals import AbstractValue, nbytes, short, spec_on_axes
from pytc.jax_compat.jaxprs import Jaxpr
from pytc.jax_compat.layouts import is_by_the_compiler, sharding_of
from pytc.jax_compat.running import device_of
from pytc.passes.cycles import bits, break_cycles
from pytc.passes.dataflow import Flow, flatten
from pytc.passes.matching import assign
from pytc.passes.reads import Reads, reads
from pytc.passes.temporaries import pointless
from pytc.program import Alias, Computed, Passed, Program

COPY = 1e9
"""What one copy weighs against steps between input and output."""
UNRELATED = 1e4
"""The distance of an output that is not computed from the input element by element."""


def alias(program: Program) -> Program:
    """Fill `program.aliases`, and for several TPUs `program.order`.

    Never pairs an input that the caller will read again (`program.keep`) or is handed back, or an array that the
    function captured.
    Notes, for each leaf that could have been reused and is not, why.
    """
    choices = Choices(program)
    read, platform = choices.read, device_of(leaf.sharding for leaf in program.leaves).platform
    pairs = [pair for group in choices.groups for pair in group.matched(read)]
    declined: dict[int, str] = {}
    if platform == "cpu":
        crossed = "another output needs it too, and this one the other's"
        declined |= {pair.input: crossed for pair in _crossed(pairs, read, choices.flow.outputs)}
    if platform != "tpu":
        left = [pair for pair in pairs if pair.input not in declined]
        declined |= {
            pair.input: f"would be {pair.why}, and save no memory" for pair in pointless(left, choices.flow, platform)
        }
    pairs = [pair for pair in pairs if pair.input not in declined]
    # Where an input of another type can be written over for free, no copy is made for that output.
    for_free = {pair.output for pair in choices.completed(pair for pair in pairs if not pair.copied)}
    pairs = choices.completed(pair for pair in pairs if not (pair.copied and pair.output in for_free))
    paired = program.noted("alias", _unpaired(program, pairs, declined), aliases=tuple(pairs))
    first = paired.unpaired
    if platform == "tpu" and _is_sharded(program) and first != tuple(range(len(first))):
        return dataclasses.replace(paired, order="unpaired first")
    return paired


def _is_sharded(program: Program) -> bool:
    return any(len(getattr(leaf.sharding, "device_set", ())) > 1 for leaf in program.leaves)


_LATEST: list[tuple[weakref.ref[Jaxpr], Flow, Reads]] = []


def _looked_at(jaxpr: Jaxpr) -> tuple[Flow, Reads]:
    """The flow of the data, and who reads what. Kept for the jaxpr looked at last: what a caller reads again is asked
    twice over, with it and without it."""
    for known, flow, read in _LATEST:
        if known() is jaxpr:
            return flow, read
    flow = flatten(jaxpr)
    read = reads(flow)
    _LATEST[:] = [(weakref.ref(jaxpr), flow, read)]
    return flow, read


@dataclasses.dataclass(frozen=True)
class Group:
    """Inputs and outputs of one shape, dtype and memory."""

    nbytes: int
    inputs: list[int]
    outputs: list[int]
    made: list[int]
    """When each output is made: a tie-breaker that does not depend on the order of the results."""
    retyped: bool = False
    """Whether outputs are of another type than inputs: a loop then cannot write over what it reads."""

    def near(self, output: int, read: Reads) -> Mapping[int, int]:
        """Inputs that `output` updates, and in how many steps."""
        return {} if self.retyped else read.nearest[output]

    def torn(self, output: int, read: Reads) -> frozenset[int]:
        """Inputs that would be destroyed while they are read."""
        return read.torn[output] | read.nearest[output].keys() if self.retyped else read.torn[output]

    def matched(self, read: Reads) -> list[Alias]:
        """The cheapest pairs."""
        column = {given: k for k, given in enumerate(self.inputs)}
        order = sorted(range(len(self.outputs)), key=lambda row: self.made[row])
        rank = np.empty(len(order))
        rank[order] = np.arange(len(order))
        unit = 8.0 * max(len(self.inputs), len(self.outputs))

        def prices(rows: Sequence[int], columns: Sequence[int]) -> NDArray[np.float64]:
            matrix: NDArray[np.float64] = UNRELATED + abs(rank[rows][:, None] - np.array(columns)) / unit
            at = {self.inputs[k]: place for place, k in enumerate(columns)}
            which = {self.outputs[row]: place for place, row in enumerate(rows)}
            mask = sum(1 << output for output in which)
            for output, row in which.items():
                for given, steps in self.near(output, read).items():
                    if given in at:
                        matrix[row, at[given]] += steps - UNRELATED
                for given in self.torn(output, read):
                    if given in at:
                        matrix[row, at[given]] += COPY
            for given, place in at.items():
                for output in bits(read.needed[given] & mask):
                    matrix[which[output], place] += COPY
            return matrix

        cheap = [
            {
                column[given]: steps + abs(rank[row] - column[given]) / unit
                for given, steps in self.near(output, read).items()
                if given in column and given not in read.torn[output] and not read.read_after(given, output)
            }
            for row, output in enumerate(self.outputs)
        ]
        found = assign(len(self.outputs), len(self.inputs), prices, cheap)
        return [self.pair(self.inputs[k], self.outputs[row], read) for row, k in found]

    def free(self, read: Reads) -> list[Alias]:
        """The cheapest pairs, without those that cost a copy."""
        return [pair for pair in self.matched(read) if not pair.copied]

    def pair(self, given: int, output: int, read: Reads) -> Alias:
        """These two as a pair, with what it costs."""
        if read.read_after(given, output):
            return Alias(given, output, self.nbytes, "copied first, as it is read after the output is written")
        if given in self.torn(output, read):
            return Alias(given, output, self.nbytes, "copied first, as all of it is read to write the output")
        if given in self.near(output, read):
            return Alias(given, output, 0, "updated in place")
        return Alias(given, output, 0, "read for the last time before the output is written")


class Choices:
    """What can be written over what in a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.flow, self.read = _looked_at(program.jaxpr.jaxpr)
        self._inputs, self._results = _candidates(program, self.flow.outputs)
        self.groups = _grouped(program, self._inputs, self._results, self.flow.outputs, retyped=False)
        """Inputs and outputs of equal avals, where there are both."""

    def completed(self, pairs: Iterable[Alias]) -> list[Alias]:
        """These pairs, and those for free of what then is left and has another type of the same size; by input."""
        pairs = list(pairs)
        second = _second_choices(self.program, pairs, self._inputs, self._results, self.flow.outputs)
        pairs += [pair for group in second for pair in group.free(self.read)]
        return sorted(pairs, key=lambda pair: pair.input)


def _second_choices(
    program: Program, pairs: Sequence[Alias], inputs: _Keys, results: _Keys, outputs: Sequence[int | None]
) -> list[Group]:
    """What is left, grouped by the number and size of elements: XLA reuses a buffer for another type of as many bytes.

    JAX takes part in the pairing: an input goes to an output of its own type if there is one. So this is for inputs
    whose type no output has, and outputs whose type no donated input has.
    """
    in_avals, out_avals = program.in_avals, program.out_avals
    made = set(map(_type, out_avals))
    donated = {_type(in_avals[pair.input]) for pair in pairs}

    def size(aval: AbstractValue, key: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
        return aval.size, nbytes(aval), *key[2:]

    inputs = {k: size(in_avals[k], key) for k, key in inputs.items() if _type(in_avals[k]) not in made}
    results = {k: size(out_avals[k], key) for k, key in results.items() if _type(out_avals[k]) not in donated}
    return _grouped(program, inputs, results, outputs, retyped=True)


def _kept(program: Program) -> frozenset[int]:
    """The leaves that live on: the caller reads them again, or is handed them back."""
    return program.keep.union(o.origin.leaf for o in program.outputs if isinstance(o.origin, Passed))


_Keys = dict[int, tuple[Hashable, ...]]


def _candidates(program: Program, outputs: Sequence[int | None]) -> tuple[_Keys, _Keys]:
    """The inputs that may be written and the outputs that may be written there, with what must be equal of both."""
    inputs, results = {}, {}
    kept = _kept(program)
    requested = {o.origin.index: o.requested for o in program.outputs if isinstance(o.origin, Computed)}
    # Where it is said how all arrays are spread over devices, their parts must be of one size too.
    traced = [leaf.requested for leaf in program.leaves if not leaf.is_static]
    spread = all(wanted is not None for wanted in (*traced, *requested.values()))
    for number, (given, aval) in enumerate(zip(program.inputs, program.in_avals, strict=True)):
        if given.leaf is not None and given.leaf not in kept and _is_array(aval):
            leaf = program.leaves[given.leaf]
            inputs[number] = _key(aval, leaf.sharding if leaf.requested is None else leaf.requested, spread)
    seen: set[int] = set()
    for number, (value, aval) in enumerate(zip(outputs, program.out_avals, strict=True)):
        # The same array twice: one buffer holds it, the other is a copy.
        if _is_array(aval) and value not in seen:
            results[number] = _key(aval, requested.get(number), spread)
        if value is not None:
            seen.add(value)
    return inputs, results


def _grouped(
    program: Program, inputs: _Keys, results: _Keys, outputs: Sequence[int | None], *, retyped: bool
) -> list[Group]:
    groups: dict[Hashable, Group] = {}
    in_avals = program.in_avals
    for number, key in inputs.items():
        groups.setdefault(key, Group(nbytes(in_avals[number]), [], [], [], retyped)).inputs.append(number)
    for number, key in results.items():
        if (group := groups.get(key)) is not None:
            value = outputs[number]
            group.outputs.append(number)
            group.made.append(-1 if value is None else value)
    return [group for group in groups.values() if group.outputs]


def _type(aval: AbstractValue) -> Hashable:
    """What JAX compares."""
    return (aval.shape, aval.dtype) if _is_array(aval) else None


def _is_array(aval: AbstractValue) -> bool:
    """Whether values of this type have bytes that can be reused: not a `Ref`, a token, `float0` or empty."""
    return type(aval) is jax.core.ShapedArray and nbytes(aval) > 0


def _key(aval: AbstractValue, placed: Any, spread: bool) -> tuple[Hashable, ...]:
    """What must be equal for one to be written over the other. `placed` is a sharding, with a layout (a `Format`) or
    without; `spread` says that over how many devices the elements are divided is among it."""
    sharding = sharding_of(placed)
    # JAX refuses to pair an array whose layout the compiler chooses with one that has a layout.
    by_compiler = is_by_the_compiler(placed)
    parts = _parts(aval, sharding) if spread else 0
    return aval.shape, aval.dtype, _memory(aval, sharding), by_compiler, spec_on_axes(aval), parts


def _parts(aval: AbstractValue, sharding: Any) -> int:
    """Over how many devices the elements are divided; 0 where that is for the compiler to say."""
    if sharding is None:
        return 0
    return int(aval.size // max(1, math.prod(sharding.shard_shape(aval.shape))))


def _memory(aval: AbstractValue, sharding: object) -> str:
    """The kind of memory that an array lives in. A type tells the host's memory beside a device, "pinned_host", from
    the device's own; a sharding may also ask for "unpinned_host"."""
    kind = getattr(sharding, "memory_kind", None) or "device"
    in_host_memory = kind == "device" and "host" in str(getattr(aval, "memory_space", "")).lower()
    return "pinned_host" if in_host_memory else str(kind)


def _crossed(pairs: Sequence[Alias], read: Reads, outputs: Sequence[int | None]) -> list[Alias]:
    """Pairs to leave out so that the others' outputs can be written one after another."""
    place = {pair.output: k for k, pair in enumerate(pairs)}
    paired = sum(1 << pair.output for pair in pairs)
    before = []
    for pair in pairs:
        # Whatever reads this input comes first: the outputs whose own loops read it, and those that a reader needs.
        readers = (read.loops[pair.input] | read.needed[pair.input]) & paired & ~(1 << pair.output)
        before.append(sum(1 << place[output] for output in bits(readers)))
    return [pairs[k] for k in break_cycles(before, lambda k: (-pairs[k].copied, outputs[pairs[k].output] or 0))]


def _unpaired(program: Program, pairs: Sequence[Alias], declined: dict[int, str]) -> list[tuple[int, str]]:
    """Why each leaf that could have been written is not."""
    taken = {pair.input for pair in pairs}
    shapes = {short(aval) for aval in set(program.out_avals)}
    texts = []
    kept = _kept(program)
    for number, (given, aval) in enumerate(zip(program.inputs, program.in_avals, strict=True)):
        if number in taken or given.leaf is None or given.leaf in kept or not _is_array(aval):
            continue
        shape = short(aval)
        others = f"every output {shape} is written elsewhere" if shape in shapes else f"no output is {shape}"
        texts.append((given.leaf, declined.get(number, others)))
    return texts
