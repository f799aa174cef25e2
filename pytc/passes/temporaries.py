"""Whether a copy is worth making: what else needs memory while the copy does not.

A pair costs a copy of the input where, while its output is written or after that, something still reads what was there.
Without the pair the input and the output have a buffer each, from beginning to end. With it they have one, and the copy
the other, but only from when it is made until it has been read: before and after that the memory is there for
temporaries. So the pair gains where a compiler has some. It gains nothing where all of the program is one loop from
arguments to results, and then it takes time.

What is computed within the loop that reads it, and what gets a buffer, is for the compiler to say. To be wrong about it
costs a buffer one way, and a copy the other way. So a pair is given up only where there can be no temporary, but for
those that the loop which writes the output reads as well: they are there with the copy. Taken for a temporary is

    - what a step reads that is no loop over elements (a matrix product, a sort), and what such a step makes;
    - what is read in several places: compilers compute some of it once, and some each time, what is cheap each time;
    - what a step uses by itself: a convolution rearranges what it reads, the body of a loop has values of its own.
      Of steps that are not known it is taken for granted.

On a CPU an output that is not made of the input, as zeros in the place of gradients that have been added up, is copied
as well. So two of these gain nothing either, where all that copies is such pairs; of more, the copies take turns.

Nor is a pair given up where the loop may turn out to read the input in step with its writing, since one operation is
undone by another (`x.T` twice, a slice of a `pad`): XLA takes both away. Nor, on a CPU, where another output can be
written over the copy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from pytc.passes.dataflow import UPDATES, Flow, Kind, Step
from pytc.passes.reads import Reads
from pytc.program import Alias

TINY = 1 << 16
"""Buffers up to this many bytes are not worth a copy."""

_WINDOWS = frozenset("reduce_window reduce_window_max reduce_window_min reduce_window_sum".split())
_REDUCTIONS = _WINDOWS | frozenset(
    "argmax argmin reduce reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor".split()
)
_FUSED = {"cpu": _REDUCTIONS - _WINDOWS, "gpu": _REDUCTIONS}
"""What reads elements that are computed in the same loop."""
_CHEAP = frozenset(
    "abs add add_any and ceil clamp complex conj convert_element_type copy eq floor ge gt imag is_finite le lt max"
    " min mul ne neg not or real round select_n shift_left shift_right_arithmetic shift_right_logical sign square"
    " sub xor".split()
)
"""What XLA computes again wherever it is read rather than store it."""
_LOOPS = frozenset({"cond", "scan", "while"})
_RUNNING = frozenset("cumlogsumexp cummax cummin cumprod cumsum".split())
_KNOWN = _REDUCTIONS | _LOOPS | UPDATES | {"dot_general", "optimization_barrier"}
_AT_ONCE = {"cpu": _KNOWN | {"sort"}, "gpu": _KNOWN | _RUNNING}
"""What has no memory of its own besides operands, results and the values of its body. (Running sums are made in several
stages on a CPU, and a GPU sorts in place what it has copied.)"""
_WORKSPACE = 1 << 22
"""So many bytes a GPU's matrix products have to work in, unless they are large."""
_NONE: frozenset[int] = frozenset()
_IN_MEMORY = (Kind.WHOLE, Kind.IN_PLACE)
_UNDONE = (("transpose", "transpose"), ("rev", "rev"), ("pad", "slice"), ("concatenate", "slice"))
"""An operation, and one that may undo it later."""


def pointless(pairs: Sequence[Alias], memory: Memory) -> list[Alias]:
    """The pairs whose copy takes time and saves nothing, on a CPU or a GPU. Takes a walk over the flow.

    Those are the copies of tiny arrays, and that of a large one where nothing else needs memory. (Several large copies
    can take turns in one place.)
    """
    tiny = [pair for pair in pairs if 0 < pair.copied <= TINY]
    large = [pair for pair in pairs if pair.copied > TINY]
    written = {pair.output for pair in pairs}
    if large and all(memory.is_copied_twice(pair) for pair in large):
        return tiny + ([] if memory.gain_twice(large, written) else large)
    return tiny + [pair for pair in large if len(large) == 1 and not memory.gains(pair, written)]


class Memory:
    """What needs memory in a program besides arguments and results. It is found out when it is asked for."""

    def __init__(self, flow: Flow, read: Reads, platform: str) -> None:
        self.flow, self.read = flow, read
        self.platform = "cpu" if platform == "cpu" else "gpu"
        self._inside: dict[int, bool] = {}

    def gains(self, pair: Alias, written: Set[int]) -> bool:
        """Whether a copy for this pair can take less memory than a buffer for the output, or may not be needed.

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
            return True  # Of several results, such a one is made in another layout first.
        if self.read.read_after(pair.input, pair.output):
            return False
        loop = self._loop(pair.output)
        return self._root[self.flow.inputs[pair.input]] not in loop.elsewhere or _may_undo(loop.steps, self._root)

    def is_copied_twice(self, pair: Alias) -> bool:
        """Whether the output is copied, too. A CPU's compiler sees to copies before it puts steps in order. To what is
        not made of the input nothing says that it comes after the copy of that, so it is made elsewhere."""
        read = self.read
        near, torn = read.nearest[pair.output], read.torn[pair.output]
        is_made_of_it = pair.input in near or pair.input in torn or read.read_after(pair.input, pair.output)
        return self.platform == "cpu" and pair.copied > 0 and not is_made_of_it

    def gain_twice(self, pairs: Sequence[Alias], written: Set[int]) -> bool:
        """Whether copies for these pairs, of inputs and outputs, can take less memory than buffers for the outputs.

        What elementwise steps may share does not count: it takes one buffer, if any, and the two copies take two.
        """
        most = max(pair.copied for pair in pairs)
        has_temporaries = any(step.kind in _IN_MEMORY and step.nbytes > TINY for step in self.flow.steps)
        if sum(pair.copied for pair in pairs) > 2 * most or has_temporaries or self._is_needed_inside_of_steps(most):
            return True
        others = set(range(len(self.flow.outputs))) - written
        return any(self.can_be_written_over_the_copy(output, pair) for output in others for pair in pairs)

    def can_be_written_over_the_copy(self, output: int, pair: Alias) -> bool:
        """Whether the copy of the pair's input, which a CPU's compiler makes, becomes this output in the end: both have
        one size, and the output is written in step with the reading."""
        if pair.input not in self.read.nearest[output] or pair.input in self.read.torn[output]:
            return False
        sizes = {step.nbytes for k in (output, pair.output) if (step := self._maker(k)) is not None}
        return self.platform == "cpu" and len(sizes) == 1

    def has_others(self, outputs: Iterable[int], nbytes: int) -> bool:
        """Whether there are temporaries, but for those that the loops which write these outputs, of `nbytes`, read."""
        if self._is_needed_inside_of_steps(nbytes):
            return True
        loops = [self._loop(output) for output in outputs if self._maker(output) is not None]
        return not self._temporaries <= _NONE.union(*(loop.in_step | loop.elsewhere for loop in loops))

    def _is_needed_inside_of_steps(self, nbytes: int) -> bool:
        """Whether a step uses memory of its own. It is asked for many pairs of few sizes."""
        if nbytes not in self._inside:
            steps = self.flow.steps
            self._inside[nbytes] = any(_has_memory_of_its_own(step, nbytes, self.platform) for step in steps)
        return self._inside[nbytes]

    @functools.cached_property
    def _root(self) -> list[int]:
        return _roots(self.flow)

    @functools.cached_property
    def _makers(self) -> dict[int, Step]:
        return {value: step for step in self.flow.steps if not step.view for value in step.makes}

    @functools.cached_property
    def _outputs(self) -> set[int]:
        return {self._root[value] for value in self.flow.outputs if value is not None}

    @functools.cached_property
    def _temporaries(self) -> set[int]:
        return _stored(self.flow, self._root, self.platform) - self._outputs

    @functools.cached_property
    def _in_memory(self) -> set[int]:
        return {*self.flow.inputs, *self._temporaries, *self._outputs}

    def _maker(self, output: int) -> Step | None:
        """The step that computes an output."""
        value = self.flow.outputs[output]
        return None if value is None else self._makers.get(self._root[value])

    def _loop(self, output: int) -> _Loop:
        """The one that writes an output, which some step computes."""
        value = self.flow.outputs[output]
        return _last_loop(self._root[value or 0], self._makers, self._in_memory, self._root)


class _Loop(NamedTuple):
    """The loop over elements that writes an output."""

    steps: set[Step]
    in_step: set[int]
    """What it reads, or computes, element by element as it writes."""
    elsewhere: set[int]
    """What it reads, or computes, at other places, or whole."""


def _last_loop(output: int, makers: Mapping[int, Step], in_memory: Set[int], root: Sequence[int]) -> _Loop:
    """From the output back to what is in memory."""
    loop = _Loop(set(), set(), set())
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


def _roots(flow: Flow) -> list[int]:
    """Of each value the one whose bytes it is under another shape."""
    root = list(range(flow.values))
    for step in flow.steps:
        if step.view and step.reads:
            root[step.makes[0]] = root[step.reads[0]]
    return root


def _stored(flow: Flow, root: Sequence[int], platform: str) -> set[int]:
    """The large values that may get a buffer, rather than be computed where they are read."""
    fused = _FUSED[platform]
    readers: dict[int, list[Step]] = {}
    for step in flow.steps:
        if not step.view:
            for value in {root[operand] for operand in step.reads}:
                readers.setdefault(value, []).append(step)

    def is_stored(step: Step, by: Sequence[Step]) -> bool:
        if step.kind in _IN_MEMORY or any(each.kind in _IN_MEMORY and each.name not in fused for each in by):
            return True
        return len(by) > 1 and bool(step.reads) and step.name not in _CHEAP

    return {
        value
        for step in flow.steps
        if step.nbytes > TINY and not step.view
        for value in step.makes
        if is_stored(step, readers.get(value, ()))
    }


def _has_memory_of_its_own(step: Step, nbytes: int, platform: str) -> bool:
    if step.kind not in _IN_MEMORY:
        return False
    if platform == "gpu" and step.name == "dot_general" and nbytes <= _WORKSPACE:
        return True
    return step.inside > TINY or (step.nbytes > TINY and step.name not in _AT_ONCE[platform])


def _may_undo(loop: Iterable[Step], root: Sequence[int]) -> bool:
    """Whether one step of these may undo what another did to what it reads."""
    done: dict[int, frozenset[str]] = {}
    for step in sorted(loop, key=lambda step: step.makes):
        before = frozenset[str]().union(*(done.get(root[value], ()) for value in step.reads))
        if any(step.name == last and first in before for first, last in _UNDONE):
            return True
        done.update((value, before | {step.name}) for value in step.makes)
    return False
