"""Whether a copy is worth making: whether other values need memory while the copy does not.

A pair costs a copy of the input if something still reads the input while its output is written, or later. Without the
pair, the input and the output have a buffer each, from beginning to end. With the pair they share one, and the copy has
a second one, but only from when it is made to when it was last read; before and after that, temporaries can use its
memory. So the pair gains if the compiled program has temporaries. It only costs time if the whole program is one loop
from arguments to results.

The compiler decides which values get a buffer and which are computed within the loop that reads them. A wrong guess
costs a buffer one way and a copy the other way. So a pair is dropped only if there can be no temporary, apart from
those that the loop which writes the output reads: these are alive together with the copy. As temporaries count

    - what a step that is no elementwise loop (a matrix product, a sort) reads or makes;
    - what is read in several places: compilers compute it once, unless that is cheap;
    - what a step needs inside: a convolution rearranges its operands, the body of a loop has values of its own. An
      unknown step is assumed to need memory.

On a CPU an output that is not computed from the input, such as zeros in place of accumulated gradients, is copied as
well. So if all copies are for such pairs, two of them gain nothing either; with more, the copies take turns in one
buffer.

A pair is also kept if the loop may in the end read the input in step with its writing, because one operation undoes
another (`x.T` twice, a slice of a `pad`) and XLA removes both; and, on a CPU, if it is the only copy and another output
can be written over it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Literal, NamedTuple, TypeAlias

from pytc.passes.dataflow import UPDATES, Flow, Kind, Step
from pytc.passes.reads import Reads, reads
from pytc.program import Alias
from pytc.set_bits import set_bits

Platform: TypeAlias = Literal["cpu", "gpu"]
"""A TPU counts as a GPU here."""

TINY = 1 << 16
"""In bytes. Buffers up to this size are not worth a copy."""

_WINDOWS = frozenset("reduce_window reduce_window_max reduce_window_min reduce_window_sum".split())
_REDUCTIONS = _WINDOWS | frozenset(
    "argmax argmin reduce reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor".split()
)
FUSED = {"cpu": _REDUCTIONS - _WINDOWS, "gpu": _REDUCTIONS}
"""Steps other than loops over elements that can be fused with what computes their operands."""
_SIMPLE = frozenset(
    "abs add add_any and ceil clamp complex conj convert_element_type copy eq floor ge gt imag is_finite le lt max"
    " min mul ne neg not or real round select_n shift_left shift_right_arithmetic shift_right_logical sign square"
    " sub xor".split()
)
CHEAP = {"cpu": _SIMPLE | {"cos", "integer_pow", "nextafter", "population_count", "sin", "tan"}, "gpu": _SIMPLE}
"""What XLA recomputes for each reader rather than store, by platform."""
_LOOPS = frozenset({"cond", "scan", "while"})
_LOOKED_INTO = frozenset({"call_exported", "pallas_call"})
"""Steps whose inside is not known here, and may be to the compiler."""
_RUNNING = frozenset("cumlogsumexp cummax cummin cumprod cumsum".split())
_KNOWN = _REDUCTIONS | _LOOPS | UPDATES | {"dot_general", "optimization_barrier"}
_AT_ONCE = {"cpu": _KNOWN | {"sort"}, "gpu": _KNOWN | _RUNNING}
"""Steps that need no memory besides operands, results and the values of their bodies. (Running sums are made in several
stages on a CPU, and a GPU sorts a copy in place.)"""
_WORKSPACE = 1 << 22
"""In bytes: the workspace of a GPU's matrix products, whose memory copies of up to this size can use before and after.
"""
_NONE: frozenset[int] = frozenset()
_IN_MEMORY = (Kind.WHOLE, Kind.IN_PLACE)
_UNDONE = (("transpose", "transpose"), ("rev", "rev"), ("pad", "slice"), ("concatenate", "slice"))
"""Pairs of an operation and a later one that may undo it."""


def pointless(pairs: Sequence[Alias], memory: Temporaries) -> list[Alias]:
    """The pairs whose copy costs time and saves no memory, on a CPU or a GPU. Cost: a walk over the flow.

    These are pairs that copy tiny arrays, if they are as good as nothing all together; and one that copies a large
    array, if nothing else needs memory. (Several copies can take turns in one buffer.)
    """
    tiny = [pair for pair in pairs if 0 < pair.copied <= TINY]
    large = [pair for pair in pairs if pair.copied > TINY]
    written = {pair.output for pair in pairs}
    if sum(pair.copied for pair in tiny) > TINY:
        tiny, large = [], large or tiny
    if large and all(memory.is_copied_twice(pair) for pair in large):
        return tiny + ([] if memory.gain_twice(large) else large)
    return tiny + [pair for pair in large if len(large) == 1 and not memory.gains(pair, written)]


class Temporaries:
    """What needs memory in a program besides arguments and results. Each property is computed when first needed."""

    def __init__(self, flow: Flow, read: Reads, stored: Set[int], platform: str) -> None:
        """`stored` is what this is of the flow, for the platform."""
        self.flow, self.read, self._stored = flow, read, stored
        self.platform: Platform = "cpu" if platform == "cpu" else "gpu"
        self._inside: dict[int, bool] = {}
        self._read_by: dict[int, Set[int]] = {}
        self._readers_in: dict[int, Sequence[int]] = {}
        """For each input of a branch of a `cond`, the results that are written while it is read, as bits."""
        self._places_in: dict[int, Mapping[int, Sequence[int]]] = {}

    def gains(self, pair: Alias, written: Set[int]) -> bool:
        """Whether the copy for this pair may take less memory than a buffer for the output, or may not be needed.

        `written` are the outputs that are written over an input.
        """
        if self.has_others([pair.output], pair.copied):
            return True
        others = set(range(len(self.flow.outputs))) - written
        if any(self.can_be_written_over_the_copy(output, pair) for output in others):
            return True
        last = self._maker(pair.output)
        if last is None:
            return True
        if self.platform == "cpu" and len(self.flow.outputs) > 1 and last.name == "transpose":
            return True  # XLA first makes a transpose in another layout if there are several results
        if self.read.read_after(pair.input, pair.output):
            return False
        loop = self._loop(pair.output)
        roots = self.flow.roots
        return roots[self.flow.inputs[pair.input]] not in loop.elsewhere or _may_undo(loop.steps, roots)

    def is_copied_twice(self, pair: Alias) -> bool:
        """Whether the output is copied, too. A CPU's compiler inserts copies before it orders the steps. An output that
        is not computed from the input need not come after the copy of the input, so it is made elsewhere and then
        copied."""
        read = self.read
        near, torn = read.nearest[pair.output], read.torn[pair.output]
        is_made_of_it = pair.input in near or pair.input in torn or read.read_after(pair.input, pair.output)
        return self.platform == "cpu" and pair.copied > 0 and not is_made_of_it

    def is_only_for(self, pair: Alias) -> bool:
        """Whether nothing reads the pair's input but the step that makes the output, which is no loop over elements."""
        last = self._maker(pair.output)
        if last is None or last.kind not in _IN_MEMORY:
            return False
        given, roots = self.flow.roots[self.flow.inputs[pair.input]], self.flow.roots
        return all(
            step is last or step.view or given not in {roots[value] for value in step.reads} for step in self.flow.steps
        )

    def gain_twice(self, pairs: Sequence[Alias]) -> bool:
        """Whether copies of both the inputs and the outputs of these pairs may take less memory than buffers for the
        outputs.

        Temporaries of elementwise steps do not count: they take one buffer at most, and the two copies take two. Nor
        does another output that could be written over a copy, as it leaves the other one.
        """
        most = max(pair.copied for pair in pairs)
        has_temporaries = any(step.kind in _IN_MEMORY and step.nbytes > TINY for step in self.flow.steps)
        take_turns = sum(pair.copied for pair in pairs) > 2 * most
        return take_turns or has_temporaries or self._is_needed_inside_of_steps(most)

    def can_be_written_over_the_copy(self, output: int, pair: Alias) -> bool:
        """Whether a CPU's compiler can write this output over the copy of the pair's input: they are of one size, and
        the output is written in step with reading the copy."""
        if pair.input not in self.read.nearest[output] or pair.input in self.read.torn[output]:
            return False
        sizes = {step.nbytes for k in (output, pair.output) if (step := self._maker(k)) is not None}
        return self.platform == "cpu" and len(sizes) == 1

    def may_cross(self, one: Alias, other: Alias) -> bool:
        """Whether two outputs, each of which is made of the other's input, too, may each need it while it is written.

        Of one `cond` only if the two cross in a branch. (`apart` knows the carries of one loop.)"""
        step = self._maker(one.output)
        if step is None or step is not self._maker(other.output) or step.name != "cond":
            return True
        places = self._places(step)
        first, second = (places.get(self.flow.roots[self.flow.inputs[pair.input]], ()) for pair in (one, other))
        if not (first and second):
            return True  # one is read before
        k, m = (self._position[self.flow.roots[self.flow.outputs[pair.output] or 0]] for pair in (one, other))
        return any(
            any(self._readers(flow, n) >> k & 1 for n in second) and any(self._readers(flow, n) >> m & 1 for n in first)
            for flow in self.flow.branches[step.makes[0]].flows
        )

    def apart(self, pair: Alias) -> int:
        """The outputs, as bits, that do not need the pair's input while they are written, as one step makes them and
        the pair's output.

        Those are all carries of one loop, of which each is written over its own argument, whatever else the loop reads;
        and so it is taken to be in what is not known. Of a `cond` those that read the input in no branch.
        """
        step = self._maker(pair.output)
        if step is None or not self._together.get(step.makes[0], 0) >> pair.output & 1:
            return 0
        needing = 0
        if step.name == "cond":
            places = self._places(step).get(self.flow.roots[self.flow.inputs[pair.input]], ())
            if not places:
                return 0
            made = self._made_by[step.makes[0]]
            for flow in self.flow.branches[step.makes[0]].flows:
                results = functools.reduce(operator.or_, (self._readers(flow, n) for n in places))
                needing |= functools.reduce(operator.or_, (made[k] for k in set_bits(results) if k in made), 0)
        return self._together[step.makes[0]] & ~needing

    def is_read_before(self, pair: Alias) -> bool:
        """Whether a `cond` that makes the output does not have the input as an operand."""
        step = self._maker(pair.output)
        return (
            step is not None
            and step.name == "cond"
            and self.flow.roots[self.flow.inputs[pair.input]] not in self._places(step)
        )

    @functools.cached_property
    def _made_by(self) -> Mapping[int, Mapping[int, int]]:
        """By the first value that a step makes, and by result: the outputs that are this result, as bits."""
        made: dict[int, dict[int, int]] = {}
        for output, value in enumerate(self.flow.outputs):
            step = self._maker(output)
            if value is not None and step is not None:
                of_step, result = made.setdefault(step.makes[0], {}), self._position[self.flow.roots[value]]
                of_step[result] = of_step.get(result, 0) | 1 << output
        return made

    @functools.cached_property
    def _together(self) -> Mapping[int, int]:
        """By the first value that a `cond` or a loop makes: the outputs that it makes, of a loop its carries, as bits.
        Of what is not looked into: those that may be updates."""
        return {
            first: functools.reduce(
                operator.or_, (bits for k, bits in made.items() if step.name == "cond" or step.over[k]), 0
            )
            for first, made in self._made_by.items()
            if (step := self._makers[first]).name in _LOOPS | _LOOKED_INTO
        }

    @functools.cached_property
    def _position(self) -> Mapping[int, int]:
        """Which result of its step a value is."""
        return {value: k for step in self.flow.steps for k, value in enumerate(step.makes)}

    def _places(self, cond: Step) -> Mapping[int, Sequence[int]]:
        """Which operands of a `cond`, by number, a value is. Remembered, as many pairs may be of one `cond`."""
        if cond.makes[0] not in self._places_in:
            places: dict[int, list[int]] = {}
            for n, value in enumerate(self.flow.branches[cond.makes[0]].given):
                if value is not None:
                    places.setdefault(self.flow.roots[value], []).append(n)
            self._places_in[cond.makes[0]] = places
        return self._places_in[cond.makes[0]]

    def _readers(self, branch: Flow, given: int) -> int:
        """The results, as bits, that a branch reads what it is given for, while it writes them."""
        if id(branch) not in self._readers_in:
            readers = [*reads(branch).read_to_write]
            number = {value: n for n, value in enumerate(branch.inputs)}
            for result, value in enumerate(branch.outputs):
                if value in number:
                    readers[number[value]] |= 1 << result
            self._readers_in[id(branch)] = readers
        return self._readers_in[id(branch)][given]

    def has_others(self, outputs: Iterable[int], nbytes: int) -> bool:
        """Whether there are temporaries that the loops which write these outputs, of `nbytes`, do not read."""
        if self._is_needed_inside_of_steps(nbytes):
            return True
        read, count = [self.read_by(output) for output in outputs], len(self.all)
        return sum(map(len, read)) < count or len(_NONE.union(*read)) < count

    def read_by(self, output: int) -> Set[int]:
        """The temporaries that the loop which writes an output reads. Remembered by the step that makes it: each output
        is in many pairs, and all that a step makes (a `cond`, say) is made of the same."""
        maker = self._maker(output)
        if maker is None:
            return _NONE
        if maker.makes[0] not in self._read_by:
            loop = self._loop(output)
            self._read_by[maker.makes[0]] = self.all & (loop.in_step | loop.elsewhere)
        return self._read_by[maker.makes[0]]

    def _is_needed_inside_of_steps(self, nbytes: int) -> bool:
        """Whether a step needs memory inside. Remembered by `nbytes`, since many pairs are of few sizes."""
        if nbytes not in self._inside:
            steps = self.flow.steps
            self._inside[nbytes] = any(_has_memory_of_its_own(step, nbytes, self.platform) for step in steps)
        return self._inside[nbytes]

    @functools.cached_property
    def _makers(self) -> dict[int, Step]:
        return {value: step for step in self.flow.steps if not step.view for value in step.makes}

    @functools.cached_property
    def _outputs(self) -> set[int]:
        return {self.flow.roots[value] for value in self.flow.outputs if value is not None}

    @functools.cached_property
    def all(self) -> Set[int]:
        """The large values that may get a buffer and are no outputs."""
        updated = _updated_in_place(self.flow) if self.platform == "gpu" else _NONE
        return self._stored - self._outputs - updated

    @functools.cached_property
    def in_memory(self) -> set[int]:
        """The values that are stored: inputs, temporaries, outputs."""
        return {*self.flow.inputs, *self._stored, *self._outputs}

    def _maker(self, output: int) -> Step | None:
        """The step that computes an output."""
        value = self.flow.outputs[output]
        return None if value is None else self._makers.get(self.flow.roots[value])

    def _loop(self, output: int) -> Loop:
        """The loop that writes an output. Some step must compute the output."""
        value = self.flow.outputs[output]
        return last_loop(self.flow.roots[value or 0], self._makers, self.in_memory, self.flow.roots)


class Loop(NamedTuple):
    """The loop over elements that writes an output."""

    steps: set[Step]
    in_step: set[int]
    """Values that it reads or computes element by element, in step with its writing."""
    elsewhere: set[int]
    """Values that it reads or computes at other places, or whole."""


def last_loop(output: int, makers: Mapping[int, Step], in_memory: Set[int], root: Sequence[int]) -> Loop:
    """The loop that writes `output`: all steps from the output back to values that are in memory."""
    loop = Loop(set(), set(), set())
    pending = [(output, loop.in_step)]
    while pending:
        value, read = pending.pop()
        if value in read:
            continue
        read.add(value)
        if value not in makers or (value in in_memory and value != output):
            continue
        step = makers[value]
        loop.steps.add(step)
        over = step.over[step.makes.index(value)] if step.over else ()
        for operand in step.reads:
            is_in_step = step.kind is Kind.ELEMENTWISE or operand in over
            pending.append((root[operand], read if is_in_step else loop.elsewhere))
    return loop


def stored(flow: Flow, platform: Platform, settled: Set[int] = _NONE) -> set[int]:
    """The large values that may get a buffer rather than be computed where they are read; `settled` ones do."""
    root = flow.roots
    fused = FUSED[platform]
    filled = {
        value for step in flow.steps if step.name == "broadcast_in_dim" and not step.reads for value in step.makes
    }
    readers = _readers(flow)

    def is_in_memory(value: int, by: Step) -> bool:
        """Whether this step reads it from memory. (A GPU's scatter fills in a single number by itself.)"""
        fills = platform == "gpu" and by.name in UPDATES and value in filled and value != _updated(by, root)
        return by.kind in _IN_MEMORY and by.name not in fused and not fills

    def is_stored(step: Step, value: int, by: Sequence[Step]) -> bool:
        if step.kind in _IN_MEMORY or value in settled or any(is_in_memory(value, each) for each in by):
            return True
        return len(by) > 1 and bool(step.reads) and step.name not in CHEAP[platform]

    return {
        value
        for step in flow.steps
        if step.nbytes > TINY and not step.view
        for value in step.makes
        if is_stored(step, value, readers.get(value, ()))
    }


def _readers(flow: Flow) -> dict[int, list[Step]]:
    """The steps that read each value, or a view of it."""
    readers: dict[int, list[Step]] = {}
    for step in flow.steps:
        if not step.view:
            for value in {flow.roots[operand] for operand in step.reads}:
                readers.setdefault(value, []).append(step)
    return readers


def _updated_in_place(flow: Flow) -> set[int]:
    """The values that only an update reads, which is written over them: the two are one in memory."""
    return {value for value, by in _readers(flow).items() if len(by) == 1 and value == _updated(by[0], flow.roots)}


def _updated(step: Step, root: Sequence[int]) -> int | None:
    """The value that an update is written over; None if it is none, or one of a number."""
    return root[step.over[0][0]] if step.name in UPDATES and step.over[0] else None


def _has_memory_of_its_own(step: Step, nbytes: int, platform: str) -> bool:
    if step.kind not in _IN_MEMORY:
        return False
    if platform == "gpu" and step.name == "dot_general" and nbytes <= _WORKSPACE:
        return True
    return step.inside > TINY or (step.nbytes > TINY and step.name not in _AT_ONCE[platform])


def _may_undo(loop: Iterable[Step], root: Sequence[int]) -> bool:
    """Whether one of these steps may undo what an earlier one did to its operand."""
    done: dict[int, frozenset[str]] = {}
    for step in sorted(loop, key=lambda step: step.makes):
        before = frozenset[str]().union(*(done.get(root[value], ()) for value in step.reads))
        if any(step.name == last and first in before for first, last in _UNDONE):
            return True
        done.update((value, before | {step.name}) for value in step.makes)
    return False
