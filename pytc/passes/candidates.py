"""Other ways to pair the outputs and inputs of a program: what `effort="high"` has the compiler judge.

`alias` reasons from the flow of the data; a compiler also schedules, fuses and lays out, and no reasoning of ours knows
how. So these are the plans that could turn out better, the likeliest first:

    - the same pairs, with arguments and results given to the compiler in another order, on which its schedule can
      depend: from the last to the first, or with the results first, or last, that are written over nothing (a loss);
    - nothing written over anything; every pair that fits, also those that seem to gain nothing;
    - the plan without those pairs that are expected to cost a copy: each, and all;
    - where a few arrays can go to few places, every way there is;
    - the pairs that `jax.jit` would make of arguments donated whole, in the order of the results and in the opposite
      one: for every set of up to four arguments, so that no `donate_argnums` does better, whatever the order of the
      results; with more, for each, for all but each, and for the first two, three, and so on.

Every one of them is correct: they differ in where results are written, not in what is computed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, get_args

from pytc.passes.alias import Choices
from pytc.passes.fitting import in_turn
from pytc.passes.groups import Group
from pytc.passes.temporaries import TINY
from pytc.program import Alias, Order, Program

LEFT_OUT = "the compiler needs less memory, or copies less, where no output is written over it"
"""Why a leaf is kept that data flow would have written over."""

MOST_WAYS = 12
"""Up to this many ways to pair the large arrays, every one is a candidate."""
MOST_SINGLE = 4
"""Of how many pairs, the largest, it is tried to leave out each by itself."""
MOST_ARGUMENTS = 4
"""Up to how many arguments every set of them is tried; with more, each alone, all but each, and the first two, three,
and so on."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One plan."""

    name: str
    """The pairs, in words."""
    pairs: tuple[Alias, ...]
    """In the order of the inputs."""
    order: Order = "forwards"
    """`Program.order`."""

    @property
    def key(self) -> str:
        """The same for equal plans of one program, and for no others."""
        return _ORDERS[self.order].sign + " ".join(f"{pair.input}>{pair.output}" for pair in self.pairs)

    def reordered(self, program: Program) -> Iterator[Candidate]:
        """The same pairs, given to the compiler in each other order that differs."""
        for order in get_args(Order):
            if order != self.order and _makes_a_difference(order, dataclasses.replace(program, aliases=self.pairs)):
                yield dataclasses.replace(self, order=order)

    @property
    def told(self) -> str:
        """The plan in words."""
        return self.name + _ORDERS[self.order].words

    def of(self, program: Program, planned: Program) -> Program:
        """The program with this plan in place of that of `alias`, which `planned` has."""
        paired = {pair.input for pair in self.pairs}
        others = [pair.input for pair in planned.aliases if pair.input not in paired]
        told = {note.leaf: note.text for note in planned.notes[len(program.notes) :] if note.leaf is not None}
        told |= {leaf: LEFT_OUT for number in others if (leaf := program.inputs[number].leaf) is not None}
        taken = {program.inputs[number].leaf for number in paired}
        texts = [(leaf, text) for leaf, text in told.items() if leaf not in taken]
        return program.noted("effort", texts, aliases=self.pairs, order=self.order)


def candidates(planned: Program) -> list[Candidate]:
    """The plan that `planned` has, then the others. All are different. Deterministic, and apart from names and places
    in the list independent of the order of the results."""
    chosen = Candidate("by data flow", planned.aliases, planned.order)
    found: dict[str, Candidate] = {}
    for candidate in (chosen, *_others(planned, chosen)):
        found.setdefault(candidate.key, candidate)
    return list(found.values())


class _Told(NamedTuple):
    sign: str
    """In keys."""
    words: str
    """After a plan's name."""


_ORDERS: dict[Order, _Told] = {
    "forwards": _Told("", ""),
    "backwards": _Told("<", "; from the last to the first"),
    "unpaired first": _Told("^", "; results written over nothing first"),
    "unpaired last": _Told("$", "; results written over nothing last"),
}


def _makes_a_difference(order: Order, program: Program) -> bool:
    """Whether the order is another one than that of the function, and may be."""
    if program.keeps_order:
        return False
    if order == "backwards":
        return len(program.passed) > 1 or len(program.out_avals) > 1
    if order == "forwards":
        return True
    places = tuple(range(len(program.out_avals)))
    count = len(program.unpaired)
    return program.unpaired != (places[:count] if order == "unpaired first" else places[len(places) - count :])


def without(program: Program, candidate: Candidate, inputs: Iterable[int]) -> list[Candidate]:
    """The plan without the pairs of all `inputs` (invar numbers), and without each of the first few."""
    paired = {pair.input for pair in candidate.pairs}
    inputs = [number for number in inputs if number in paired]
    left_out = [inputs, *([number] for number in inputs[:MOST_SINGLE])] if len(inputs) > 1 else [inputs] * len(inputs)
    return [
        Candidate(
            f"{candidate.name}, without {_listed([program.input_path(number) for number in some])}",
            tuple(in_turn(program, (pair for pair in candidate.pairs if pair.input not in some))),
            candidate.order,
        )
        for some in left_out
    ]


def _others(program: Program, chosen: Candidate) -> Iterator[Candidate]:
    """Those beside the plan that the program has."""
    choices = Choices(program)
    found, read = choices.groups, choices.read

    def completed(pairs: Iterable[tuple[Group, int, int]]) -> tuple[Alias, ...]:
        return tuple(choices.completed(group.pair(given, output, read) for group, given, output in pairs))

    yield from chosen.reordered(program)
    yield (nothing := Candidate("nothing written over anything", ()))
    yield from nothing.reordered(program)
    matched = [(group, pair.input, pair.output) for group in found for pair in group.matched(read)]
    yield Candidate("every pair that fits", completed(matched))
    copied = sorted((pair for pair in program.aliases if pair.copied), key=lambda pair: (-pair.copied, pair.input))
    yield from without(program, chosen, [pair.input for pair in copied])
    large = [group for group in found if group.nbytes > TINY]
    in_small_groups = {given for group in found if group.nbytes <= TINY for given in group.inputs}
    small = [pair for pair in program.aliases if pair.input in in_small_groups]
    if math.prod(_ways(len(group.inputs), len(group.outputs)) for group in large) <= MOST_WAYS:
        for way in itertools.product(*(_every_way(group) for group in large)):
            pairs = [(group, given, output) for group, some in zip(large, way, strict=True) for given, output in some]
            told = _listed([f"{program.output_paths(out)} over {program.input_path(given)}" for _, given, out in pairs])
            made = [group.pair(given, output, read) for group, given, output in pairs]
            yield Candidate(told or "no large pair", tuple(choices.completed(made + small)))
    for parameters in _argument_sets(_parameters(program, found)):
        for words, backwards in (("as donate_argnums pairs", False), ("the same with the results reversed,", True)):
            pairs = list(_first_come(program, found, parameters, backwards))
            yield Candidate(f"{words} {_listed(parameters)}", completed(pairs))


def _first_come(
    program: Program, found: Sequence[Group], parameters: Sequence[str], backwards: bool
) -> Iterator[tuple[Group, int, int]]:
    """As JAX pairs what is donated: each output in order takes the first input that is left."""
    for group in found:
        inputs = sorted(
            (number for number in group.inputs if _parameter(program, number) in parameters),
            key=lambda number: program.inputs[number].leaf or 0,
        )
        outputs = sorted(group.outputs, reverse=backwards)
        yield from ((group, given, output) for given, output in zip(inputs, outputs, strict=False))


def _argument_sets(parameters: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The sets of arguments that are donated whole, the largest first."""
    count = len(parameters)
    if count <= MOST_ARGUMENTS:
        for size in range(count, 0, -1):
            yield from itertools.combinations(parameters, size)
        return
    yield tuple(parameters)
    for left_out in parameters:
        yield tuple(each for each in parameters if each != left_out)
    for size in range(count - 2, 1, -1):
        yield tuple(parameters[:size])
    yield from ((each,) for each in parameters)


def _parameters(program: Program, found: Sequence[Group]) -> list[str]:
    """The arguments of which some leaf can be written over, in order."""
    numbers = [number for group in found for number in group.inputs]
    numbers.sort(key=lambda number: program.inputs[number].leaf or 0)
    return list(dict.fromkeys(_parameter(program, number) for number in numbers))


def _parameter(program: Program, number: int) -> str:
    leaf = program.inputs[number].leaf
    return "" if leaf is None else program.leaves[leaf].parameter


def _ways(inputs: int, outputs: int) -> int:
    """In how many ways some of the inputs can be paired with as many outputs."""
    return sum(
        math.comb(inputs, size) * math.comb(outputs, size) * math.factorial(size)
        for size in range(min(inputs, outputs, MOST_WAYS) + 1)
    )


def _every_way(group: Group) -> list[tuple[tuple[int, int], ...]]:
    """Every way to pair some of the inputs with as many outputs, the most pairs first."""
    return [
        tuple(zip(some, order, strict=True))
        for size in range(min(len(group.inputs), len(group.outputs)), -1, -1)
        for some in itertools.combinations(group.inputs, size)
        for order in itertools.permutations(group.outputs, size)
    ]


def _listed(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
