"""Which output is written into which input's buffer.

XLA copies an input first if something still reads it as the output is written, and then the pair saves memory only
while the copy is not alive. So of the outputs and inputs that fit (`fitting`) those are paired that cost the least in
copies (`groups`).

Then pairs that are worse than none are dropped:

    - those whose copy is tiny, or saves nothing because there are no other temporaries (`temporaries`). On a TPU they
      stay, since its copies are made on the chip.
    - on a CPU, one of two whose outputs each need the other's input: `a, b = a + b, a - b` (`crossed`).

And one may be added that costs a copy: the only large output, over an input of another type of the same size, where it
is sorted out of a copy anyway (`Choices.over_other_types`).

If the program is small, what it takes on a CPU is computed, and with other pairs it may be less (`cpu`). Of another one
an output that is written late goes where temporaries can be until then (`sooner`), but for a TPU.

For several TPUs the compiler gets unpaired results, usually a loss, first: its schedule depends on the order of the
results, and sharded training steps take a tenth less memory that way, or far less (`benchmarks/footprints.py`). On a
single TPU it mostly makes no difference.

The choice does not depend on the order of the arguments or results, unless outputs are taken in turn (`fitting`): then
the first ones of a type are paired, and choices that would leave one of these out are not made.

It proves nothing about the compiler: a wrong price costs a copy, never a result. Cost: one walk over the jaxpr with
every call inlined, linear in its size, and the assignments.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from pytc.jax_compat.avals import nbytes, of_each, short
from pytc.jax_compat.jaxprs import Jaxpr
from pytc.jax_compat.layouts import is_over_several
from pytc.jax_compat.running import device_of
from pytc.passes.cpu import Small, smallest
from pytc.passes.crossed import uncrossed
from pytc.passes.dataflow import Flow, flatten
from pytc.passes.fitting import Fitting, are_taken_in_turn, in_turn
from pytc.passes.groups import Group, grouped
from pytc.passes.reads import Reads, reads
from pytc.passes.rejoined import rejoined
from pytc.passes.reused import reused
from pytc.passes.sooner import MOST, Sooner
from pytc.passes.temporaries import FUSED, TINY, Temporaries, pointless, stored
from pytc.program import Alias, Program


def alias(program: Program) -> Program:
    """The program with its `aliases`, and for several TPUs its `order`.

    Leaves that the caller reads again (`program.keep`) or is handed back are never paired, nor are captured arrays. For
    each other leaf that is not reused, a note says why.
    """
    choices = Choices(program)
    read, memory = choices.read, choices.memory
    pairs: list[Alias] = []
    fitting: list[Alias] = []
    declined: dict[int, str] = {}
    for group in choices.groups:
        matched = left = group.matched(read)
        fitting += matched
        if choices.platform == "cpu":
            left = uncrossed(matched, functools.partial(group.pair, read=read), read, memory)
        crossed = {pair.input for pair in matched} - {pair.input for pair in left}
        declined |= dict.fromkeys(crossed, "another output needs it too, and this one the other's")
        pairs += left
    if choices.platform != "tpu":
        dropped = {pair.input: f"would be {pair.why}, and save no memory" for pair in pointless(pairs, memory)}
        pairs = [pair for pair in pairs if pair.input not in dropped]
        declined |= dropped
    if are_taken_in_turn(program):
        pairs = choices.completed(in_turn(program, pairs, fitting))
        return program.noted("alias", choices.unpaired(pairs, declined), aliases=tuple(pairs))
    pairs = choices.without_needless_copies(pairs)
    if choices.platform != "tpu":
        pairs = choices.over_other_types(pairs)
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
    if choices.platform == "tpu" and _is_sharded(program) and not program.keeps_order:
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
    stored: Set[int]
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
        again = reused(flow)
        in_memory = stored(flow, "cpu", again)
        read = reads(flow, rejoined=rejoined(flow), reused=again, stored=in_memory, reductions=FUSED["cpu"])
        found = _LookedAt(flow, read, in_memory, _small(jaxpr, flow))
    else:
        in_memory = stored(flow, "gpu")
        read = reads(flow, stored=in_memory, reductions=FUSED["gpu"], several_outputs=platform != "tpu")
        found = _LookedAt(flow, read, in_memory, None)
    _LATEST[:] = [(weakref.ref(jaxpr), platform, found)]
    return found


def _small(jaxpr: Jaxpr, flow: Flow) -> Small | None:
    if not Small.may_be_for(flow) or not Small.is_for(flow := flatten(jaxpr, "cpu", once=True)):
        return None
    sizes = {value: nbytes(var.aval) for value, var in zip(flow.inputs, jaxpr.invars, strict=True)}
    made = zip(flow.outputs, jaxpr.outvars, strict=True)
    return Small(flow, sizes | {flow.roots[value]: nbytes(var.aval) for value, var in made if value is not None})


class Choices:
    """Which outputs of a program can be written over which inputs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.platform = device_of(leaf.placed for leaf in program.leaves).platform
        self.flow, self.read, in_memory, self.small = _looked_at(program.jaxpr.jaxpr, self.platform)
        self.memory = Temporaries(self.flow, self.read, in_memory, self.platform)
        self._fitting = Fitting(program, self.flow.outputs)
        inputs, results = self._fitting.inputs, self._fitting.results
        self.groups = grouped(program.in_avals, inputs, results, self.flow.outputs, unordered=self.platform == "cpu")
        """Inputs and outputs of equal avals, if there are both."""

    def without_needless_copies(self, pairs: Sequence[Alias]) -> list[Alias]:
        """`completed`, without the pairs that copy if inputs of another type can hold their outputs for free.

        That goes for all outputs of a type or for none: JAX gives a donated input to the first output of its type.
        """
        copied = [pair for pair in pairs if pair.copied]
        if not copied:
            return self.completed(pairs)
        made = self._fitting.out_types
        for_free = {pair.output for pair in self.completed(pair for pair in pairs if not pair.copied)}
        copied_still = {made[pair.output] for pair in copied if pair.output not in for_free}
        return self.completed(pair for pair in pairs if not pair.copied or made[pair.output] in copied_still)

    def over_other_types(self, pairs: Sequence[Alias]) -> list[Alias]:
        """These pairs, and one of different types but equal size that costs a copy, if the copy is made for the step
        that makes the only large output, and that needs memory besides: `argsort` sorts the copy. (A loop over elements
        would read the copy until all is written. And beside another large output it is not known what is alive when.)
        """
        if sum(nbytes(aval) > TINY for aval in self.program.out_avals) != 1:
            return [*pairs]
        others = [pair for group in self._second_choices(pairs) for pair in group.matched(self.read)]
        memory = self.memory
        gain = [
            pair
            for pair in others
            if pair.copied > TINY and memory.is_only_for(pair) and memory.has_others([pair.output], pair.copied)
        ]
        return sorted([*pairs, *gain], key=lambda pair: pair.input)

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
        if not Sooner.is_for(self.flow) or any(pair.copied for pair in pairs):
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
        """Of these pairs those that JAX can be told of (`in_turn`), and the free pairs of different types but equal
        size among what is left; sorted by input."""
        pairs = in_turn(self.program, pairs)
        pairs += [pair for group in self._second_choices(pairs) for pair in group.free(self.read)]
        return sorted(pairs, key=lambda pair: pair.input)

    def unpaired(self, pairs: Sequence[Alias], declined: Mapping[int, str]) -> list[tuple[int, str]]:
        """For each leaf that could have been written over but is not: its number, and why."""
        taken, fitting = {pair.input for pair in pairs}, self._fitting
        shapes = {*of_each(short, self.program.out_avals)}
        texts = []
        for number, (given, aval) in enumerate(zip(self.program.inputs, self.program.in_avals, strict=True)):
            if number in taken or given.leaf is None or given.leaf in fitting.kept or fitting.in_types[number] is None:
                continue
            shape = short(aval)
            others = f"every output {shape} is written elsewhere" if shape in shapes else f"no output is {shape}"
            texts.append((given.leaf, declined.get(number, others)))
        return texts

    def _second_choices(self, pairs: Sequence[Alias]) -> list[Group]:
        """Groups of what is left, of different types but equal size."""
        inputs, results = self._fitting.of_one_size(pair.input for pair in pairs)
        return grouped(self.program.in_avals, inputs, results, self.flow.outputs, retyped=True)
