"""A better order of the results, for a function that JAX's pairs of arguments and results cost memory.

JAX takes the results in order, and gives each the first donated leaf left that has its shape and dtype. So the order of
a tuple of results determines the pairs. This module tries every order of a short tuple, takes the one whose pairs are
nearest to those that pytc chooses by data flow, and compiles that.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from pytc.explain.by_hand import AsJit
from pytc.jax_compat.avals import nbytes
from pytc.jax_compat.rewriting import with_outputs
from pytc.jax_compat.trees import container
from pytc.program import Computed, Program

MOST = 4
"""Tuples of more results are not reordered."""


@dataclasses.dataclass(frozen=True)
class Better:
    """An order of the results that takes less memory."""

    text: str
    """`result[1], result[2], result[0]`."""
    total: int
    """Bytes on each device."""


def better(as_jit: AsJit, donated: Sequence[str], wanted: Program, below: int) -> Better | None:
    """The order of the results whose pairs are nearest to those of `wanted`, if it takes less than `below` bytes."""
    groups = _groups(as_jit.staged)
    if not 1 < len(groups) <= MOST:
        return None
    pairs = {(alias.input, alias.output) for alias in wanted.aliases}
    places = [given.leaf for given in wanted.inputs]
    staged_place = {given.leaf: i for i, given in enumerate(as_jit.staged.inputs)}
    origin = _origins(wanted)
    aimed = {(staged_place[places[i]], origin[k]) for i, k in pairs if places[i] in staged_place and k in origin}
    avals = as_jit.staged.out_avals

    def agreement(permuted: AsJit, flat: Sequence[int]) -> int:
        return sum(nbytes(avals[flat[out]]) for given, out in permuted.pairs(donated) if (given, flat[out]) in aimed)

    best: tuple[int, tuple[int, ...], AsJit] | None = None
    identity = tuple(range(len(groups)))
    for chosen in itertools.permutations(identity):
        flat = [i for number in chosen for i in groups[number]]
        permuted = dataclasses.replace(as_jit, staged=_permuted(as_jit.staged, flat))
        found = agreement(permuted, flat)
        if best is None or found > best[0]:
            best = found, chosen, permuted
    if best is None or best[1] == identity:
        return None
    total = best[2].footprint(donated).total
    if total >= below:
        return None
    return Better(", ".join(f"result[{number}]" for number in best[1]), total)


def _groups(staged: Program) -> list[list[int]]:
    """The numbers of the outputs in each element of the result, if that is a tuple or a list; else empty."""
    result = container(staged.out_tree)
    if result is None or result.kind not in (tuple, list):
        return []
    groups, first = [], 0
    for child in result.children:
        groups.append(list(range(first, first + child.num_leaves)))
        first += child.num_leaves
    return groups


def _origins(program: Program) -> dict[int, int]:
    """For each outvar of a program after its passes, the number of the first result that it is."""
    return {o.origin.index: i for i, o in reversed(list(enumerate(program.outputs))) if isinstance(o.origin, Computed)}


def _permuted(staged: Program, flat: Sequence[int]) -> Program:
    outputs = tuple(dataclasses.replace(staged.outputs[i], origin=Computed(k)) for k, i in enumerate(flat))
    return dataclasses.replace(staged, jaxpr=with_outputs(staged.jaxpr, flat), outputs=outputs)
