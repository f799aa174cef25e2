"""Which output is written into which input's buffer.

An output can be written over an input of the same shape, dtype and memory once everything that reads the input has
run. XLA looks for an order of the steps in which that is so; if there is none, it copies the input first, and the pair
saves memory only while the copy is not alive. So each pair has a price, which follows from the data flow (`reads`): the
bytes copied, if any. The pairs chosen have the lowest total price: a minimum-cost assignment (`matching`) within every
group of inputs and outputs of equal avals. At equal prices, pairs with fewer steps from the input to the output are
preferred, because they are likely updates; then pairs whose input and output are both read to make another output, so
that a copy of the input is not alive for long; an input from which several outputs are made comes last.

Then pairs that are worse than none are dropped:

    - those whose copy is tiny, or saves nothing because there are no other temporaries (`temporaries`). On a TPU they
      stay, since its copies are made on the chip.
    - on a CPU, one of two whose outputs each need the other's input: `a, b = a + b, a - b` (`crossed`).

If the program is small, what it takes on a CPU is computed, and with other pairs it may be less (`cpu`). Of another one
an output that is written late goes where temporaries can be until then (`sooner`), but for a TPU.

For several TPUs the compiler gets unpaired results, usually a loss, first: its schedule depends on the order of the
results, and sharded training steps take a tenth less memory that way, or far less (`benchmarks/footprints.py`). On a
single TPU it mostly makes no difference.

The choice does not depend on the order of the arguments or results. It proves nothing about the compiler: a wrong price
costs a copy, never a result. Cost: one walk over the jaxpr with every call inlined, linear in its size, and the
assignments.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytc.jax_compat.avals import AbstractValue, is_array, nbytes, of_each, short, spec_on_axes
from pytc.jax_compat.jaxprs import Jaxpr
from pytc.jax_compat.layouts import is_by_the_compiler, is_over_several, laid_out, memory_of, sharding_of
from pytc.jax_compat.running import device_of
from pytc.passes.cpu import Small, smallest
from pytc.passes.crossed import uncrossed
from pytc.passes.dataflow import Flow, flatten
from pytc.passes.matching import assign
from pytc.passes.reads import Reads, reads
from pytc.passes.rejoined import rejoined
from pytc.passes.sooner import MOST, Sooner
from pytc.passes.temporaries import FUSED, TINY, Temporaries, pointless, stored
from pytc.program import Alias, Computed, Passed, Program

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


def alias(program: Program) -> Program:
    """The program with its `aliases`, and for several TPUs its `order`.

    Leaves that the caller reads again (`program.keep`) or is handed back are never paired, nor are captured arrays. For
    each other leaf that is not reused, a note says why.
    """
    choices = Choices(program)
    read, memory = choices.read, choices.memory
    pairs: list[Alias] = []
    declined: dict[int, str] = {}
    for group in choices.groups:
        matched = left = group.matched(read)
        if choices.platform == "cpu":
            left = uncrossed(matched, functools.partial(group.pair, read=read), read, memory)
        crossed = {pair.input for pair in matched} - {pair.input for pair in left}
        declined |= dict.fromkeys(crossed, "another output needs it too, and this one the other's")
        pairs += left
    if choices.platform != "tpu":
        dropped = {pair.input: f"would be {pair.why}, and save no memory" for pair in pointless(pairs, memory)}
        pairs = [pair for pair in pairs if pair.input not in dropped]
        declined |= dropped
    pairs = choices.without_needless_copies(pairs)
    if choices.small is not None:
        chosen = choices.smallest(pairs, choices.small)
        left_out = {pair.input for pair in pairs} - {pair.input for pair in chosen}
        declined |= dict.fromkeys(
            left_out, "a CPU's compiler should need less memory where no output is written over it"
        )
        pairs = chosen
    elif choices.platform != "tpu":
        pairs = choices.over_what_is_dead_sooner(pairs)
    paired = program.noted("alias", choices.unpaired(pairs, declined), aliases=tuple(pairs))
    if choices.platform == "tpu" and _is_sharded(program):
        first = paired.unpaired
        if first != tuple(range(len(first))):
            return dataclasses.replace(paired, order="unpaired first")
    return paired


def _is_sharded(program: Program) -> bool:
    return any(is_over_several(leaf.placed) for leaf in program.leaves)


class _LookedAt(NamedTuple):
    """What is known of a jaxpr for a platform."""

    flow: Flow
    read: Reads
    small: Small | None
    """The program as a small one for a CPU, if it is one."""


_LATEST: list[tuple[weakref.ref[Jaxpr], str, _LookedAt]] = []
"""The jaxpr that was looked at last, and for which platform. (Threads may replace it at any time.)"""


def _looked_at(jaxpr: Jaxpr, platform: str) -> _LookedAt:
    """The data flow of a jaxpr, and who reads what.

    Remembered for the latest jaxpr, since a program is paired several times: for the arguments that its caller lets go
    of, and as if it let go of all.
    """
    for known, target, found in _LATEST:
        if known() is jaxpr and target == platform:
            return found
    flow = flatten(jaxpr, platform)
    if platform == "cpu":
        read = reads(flow, rejoined(flow), FUSED["cpu"], stored(flow, "cpu"))
        found = _LookedAt(flow, read, _small(jaxpr, flow))
    else:
        read = reads(flow, frozenset(), FUSED["gpu"], stored(flow, "gpu"), several_outputs=platform != "tpu")
        found = _LookedAt(flow, read, None)
    _LATEST[:] = [(weakref.ref(jaxpr), platform, found)]
    return found


def _small(jaxpr: Jaxpr, flow: Flow) -> Small | None:
    if not Small.is_known(flow):
        return None
    sizes = {value: nbytes(var.aval) for value, var in zip(flow.inputs, jaxpr.invars, strict=True)}
    made = zip(flow.outputs, jaxpr.outvars, strict=True)
    return Small(flow, sizes | {flow.roots[value]: nbytes(var.aval) for value, var in made if value is not None})


_Keys = dict[int, tuple[Hashable, ...]]


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
    """Whether inputs and outputs are of different dtypes of equal size: then no loop can write over what it reads."""
    unordered: bool = False
    """Whether the compiler decides on copies before it orders the steps, as a CPU's does. It then also copies an input
    from which another output is made."""

    def near(self, output: int, read: Reads) -> Mapping[int, int]:
        """The inputs that `output` is an elementwise update of, with the number of steps."""
        return {} if self.retyped else read.nearest[output]

    def torn(self, output: int, read: Reads) -> frozenset[int]:
        """The inputs that would be overwritten while they are still read to make `output`."""
        return read.torn[output] | read.nearest[output].keys() if self.retyped else read.torn[output]

    def is_copied(self, given: int, output: int, read: Reads) -> bool:
        """Whether the input would have to be copied before `output` is written over it.

        If the output is an update of the input, everything else that reads the input can come before.
        """
        is_near = given in self.near(output, read)
        too_early = read.read_after(given, output) or (not is_near and read.early(given, output))
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
            if read.loops[given] & others
            else _unrelated(given, output, read) + COPY * bool(read.needed[given] & itself)
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
            return Alias(given, output, self.nbytes, "copied first, as it is read after the output is written")
        if given in self.torn(output, read):
            return Alias(given, output, self.nbytes, "copied first, as all of it is read to write the output")
        early = read.early(given, output)
        if given in self.near(output, read):
            maybe = ", over a copy if another output is still to be made from it" if early and self.unordered else ""
            return Alias(given, output, 0, f"updated in place{maybe}")
        if early:
            return Alias(given, output, self.nbytes, "copied first, as it may be read after the output is written")
        return Alias(given, output, 0, "read for the last time before the output is written")


def _unrelated(given: int, output: int, read: Reads) -> float:
    """The price, besides that of a copy, of an output that is not computed from the input."""
    return UNRELATED - BESIDE * (read.beside[given] >> output & 1)


class Choices:
    """Which outputs of a program can be written over which inputs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.platform = device_of(leaf.placed for leaf in program.leaves).platform
        self.flow, self.read, self.small = _looked_at(program.jaxpr.jaxpr, self.platform)
        self.memory = Temporaries(self.flow, self.read, self.platform)
        self._in_types, self._out_types = of_each(_type, program.in_avals), of_each(_type, program.out_avals)
        self._kept = _kept(program)
        self._inputs, self._results = self._candidates()
        self.groups = _grouped(
            program, self._inputs, self._results, self.flow.outputs, unordered=self.platform == "cpu"
        )
        """Inputs and outputs of equal avals, if there are both."""

    def without_needless_copies(self, pairs: Sequence[Alias]) -> list[Alias]:
        """`completed`, without the pairs that copy if inputs of another type can hold their outputs for free.

        That goes for all outputs of a type or for none: JAX gives a donated input to the first output of its type.
        """
        copied = [pair for pair in pairs if pair.copied]
        if not copied:
            return self.completed(pairs)
        made = self._out_types
        for_free = {pair.output for pair in self.completed(pair for pair in pairs if not pair.copied)}
        copied_still = {made[pair.output] for pair in copied if pair.output not in for_free}
        return self.completed(pair for pair in pairs if not pair.copied or made[pair.output] in copied_still)

    def smallest(self, pairs: Sequence[Alias], small: Small) -> list[Alias]:
        """These pairs, or others of equal avals with which the program, a small one, takes less memory on a CPU. These,
        if some are of different types: JAX makes such pairs of what is left over."""
        groups = {(given, output): group for group in self.groups for given in group.inputs for output in group.outputs}
        if any((pair.input, pair.output) not in groups for pair in pairs):
            return [*pairs]
        large = [(group.inputs, group.outputs) for group in self.groups if group.nbytes > TINY]
        chosen = smallest(frozenset((pair.input, pair.output) for pair in pairs), large, small)
        return [groups[pair].pair(*pair, self.read) for pair in sorted(chosen)]

    def over_what_is_dead_sooner(self, pairs: Sequence[Alias]) -> list[Alias]:
        """These pairs, with inputs that are dead sooner in place of some that outputs update (`sooner`)."""
        if not Sooner.is_known(self.flow) or any(pair.copied for pair in pairs):
            return [*pairs]
        found = {pair.output: pair for pair in pairs}
        taken = {pair.input for pair in pairs}
        dead = Sooner(self.flow, self.read, self.memory)
        for group in self.groups:
            free = [given for given in group.inputs if given not in taken]
            if group.nbytes <= TINY or not free or max(len(group.inputs), len(group.outputs)) > MOST:
                continue
            for _, output in sorted(zip(group.made, group.outputs, strict=True)):
                pair = found.get(output)
                if pair is not None and pair.input in group.near(output, self.read):
                    given = dead.than(pair.input, output, free)
                    if given is not None:
                        free.remove(given)
                        found[output] = group.pair(given, output, self.read)
        return sorted(found.values(), key=lambda pair: pair.input)

    def completed(self, pairs: Iterable[Alias]) -> list[Alias]:
        """These pairs, and the free pairs of different types but equal size among what is left; sorted by input."""
        pairs = list(pairs)
        pairs += [pair for group in self._second_choices(pairs) for pair in group.free(self.read)]
        return sorted(pairs, key=lambda pair: pair.input)

    def unpaired(self, pairs: Sequence[Alias], declined: Mapping[int, str]) -> list[tuple[int, str]]:
        """For each leaf that could have been written over but is not: its number, and why."""
        taken = {pair.input for pair in pairs}
        shapes = {*of_each(short, self.program.out_avals)}
        texts = []
        for number, (given, aval) in enumerate(zip(self.program.inputs, self.program.in_avals, strict=True)):
            if number in taken or given.leaf is None or given.leaf in self._kept or self._in_types[number] is None:
                continue
            shape = short(aval)
            others = f"every output {shape} is written elsewhere" if shape in shapes else f"no output is {shape}"
            texts.append((given.leaf, declined.get(number, others)))
        return texts

    def _second_choices(self, pairs: Sequence[Alias]) -> list[Group]:
        """Groups of what is left, by the number and total size of elements: XLA reuses a buffer for another type of
        equal size.

        JAX gives a donated input to an output of its own type if there is one. So the groups have only inputs whose
        type no output has, and outputs whose type no donated input has.
        """
        in_avals, out_avals = self.program.in_avals, self.program.out_avals
        made = {*self._out_types}
        donated = {self._in_types[pair.input] for pair in pairs}

        def size(aval: AbstractValue, key: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
            return aval.size, nbytes(aval), *key[2:]

        inputs = {k: size(in_avals[k], key) for k, key in self._inputs.items() if self._in_types[k] not in made}
        results = {k: size(out_avals[k], key) for k, key in self._results.items() if self._out_types[k] not in donated}
        return _grouped(self.program, inputs, results, self.flow.outputs, retyped=True)

    def _candidates(self) -> tuple[_Keys, _Keys]:
        """The inputs that may be written over, and the outputs that may be written there; each with its `_key`, which
        must be equal for a pair."""
        program = self.program
        requested = {o.origin.index: o.requested for o in program.outputs if isinstance(o.origin, Computed)}
        # If shardings are requested for all arrays, the shards of a pair must be of equal size, too.
        traced = [leaf.requested for leaf in program.leaves if not leaf.is_static]
        spread = all(wanted is not None for wanted in (*traced, *requested.values()))
        # Types for which some result is requested in parts. Arrays of these types without a request may be cut in
        # another way.
        in_parts = {self._out_types[k] for k, wanted in requested.items() if is_over_several(wanted)}
        # Outputs whose layout is constrained inside the program: JAX leaves it to the compiler.
        inside = laid_out(program.jaxpr.jaxpr)
        known: dict[tuple[int, int, bool], tuple[Hashable, ...]] = {}

        def key(aval: AbstractValue, placed: Any, is_in_parts: bool, is_laid_out: bool = False) -> tuple[Hashable, ...]:
            at = id(aval), id(placed), is_laid_out  # the program holds both objects, so their ids are not reused
            if at not in known:
                known[at] = _key(aval, placed, spread or is_in_parts, is_laid_out)
            return known[at]

        inputs, results = {}, {}
        for number, (given, aval) in enumerate(zip(program.inputs, program.in_avals, strict=True)):
            kind = self._in_types[number]
            if kind is not None and given.leaf is not None and given.leaf not in self._kept:
                placed = program.leaves[given.leaf].placed
                if placed is not None or kind not in in_parts:
                    inputs[number] = key(aval, placed, kind in in_parts)
        seen: set[int] = set()
        for number, (value, aval) in enumerate(zip(self.flow.outputs, program.out_avals, strict=True)):
            # Of a value that is returned twice, only the first output is a candidate; the other is a copy.
            kind, placed = self._out_types[number], requested.get(number)
            if kind is not None and value not in seen and (placed is not None or kind not in in_parts):
                results[number] = key(aval, placed, kind in in_parts, number in inside)
            if value is not None:
                seen.add(value)
        return inputs, results


def _kept(program: Program) -> frozenset[int]:
    """The leaves that live on: those that the caller reads again or is handed back."""
    return program.keep.union(o.origin.leaf for o in program.outputs if isinstance(o.origin, Passed))


def _grouped(
    program: Program, inputs: _Keys, results: _Keys, outputs: Sequence[int | None], **how: bool
) -> list[Group]:
    """Groups of inputs and outputs with equal keys, without those that have no output. `how` are options of `Group`."""
    groups: dict[Hashable, Group] = {}
    in_avals = program.in_avals
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


def _type(aval: AbstractValue) -> Hashable:
    """What JAX compares when it pairs donated inputs with outputs; None if it is not an array with bytes."""
    return (aval.shape, aval.dtype) if _is_array(aval) else None


def _is_array(aval: AbstractValue) -> bool:
    """Whether values of this type have bytes that can be reused: not a `Ref`, a token, `float0` or an empty array."""
    return is_array(aval) and nbytes(aval) > 0


def _key(aval: AbstractValue, placed: Any, spread: bool, is_laid_out: bool) -> tuple[Hashable, ...]:
    """What must be equal for an output to be written over an input. `placed` is a sharding, with a layout (a `Format`)
    or without; `spread` says whether both must be divided over equally many devices."""
    sharding = sharding_of(placed)
    # JAX refuses to pair an array whose layout the compiler chooses with one that has a layout.
    by_compiler = is_by_the_compiler(placed) or is_laid_out
    parts = _parts(aval, sharding) if spread else 0
    return aval.shape, aval.dtype, _memory(aval, sharding), by_compiler, spec_on_axes(aval), parts


def _parts(aval: AbstractValue, sharding: Any) -> int:
    """Over how many devices the elements are divided; 0 if the compiler decides that."""
    if sharding is None:
        return 0
    try:
        shape = sharding.shard_shape(aval.shape)
    except (IndexError, ValueError):  # the sharding does not fit the shape, which JAX will report
        return 0
    return int(aval.size // max(1, math.prod(shape)))


def _memory(aval: AbstractValue, sharding: object) -> str:
    """The kind of memory that an array is in. An aval only distinguishes the device's own memory from "pinned_host"; a
    sharding may also ask for "unpinned_host"."""
    kind = memory_of(sharding)
    in_host_memory = kind == "device" and "host" in str(getattr(aval, "memory_space", "")).lower()
    return "pinned_host" if in_host_memory else kind
