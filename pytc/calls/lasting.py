"""Which arrays that are one at a call will still be one at the next, if that is given what this one returns.

A state often begins with one array at several leaves that come back as several: `ema = params`, `[zeros] * layers`. A
program that takes the array once serves the first call alone, and the next one needs another. So where the results say
that leaves part, they are taken for several arrays from the beginning: one program serves all calls, as under
`jax.jit`. Weights that come in tied and go out tied are one array throughout.

Which result goes to which argument at the next call is a guess: the first part of the result that has leaves of the
same shapes and dtypes in the same order. A wrong guess costs a copy, or a program for calls that do pass one array each
time (`Lookup`), and never a result: a program that takes two arrays may be given one for both.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeAlias

from jax.tree_util import PyTreeDef

from pytc.program import Computed, Output, Passed, Program

Parting: TypeAlias = tuple[Hashable, ...]
"""For each leaf of the arguments what tells it from others that are the same array and will not be."""


def staged_to_last(stage: Callable[[Parting | None], Program]) -> tuple[Program, Parting | None]:
    """The program for a call and those that follow it, and how leaves that are one array part in it; None if none do.

    `stage` stages and prepares it for leaves that part like that. It is called up to three times, each of which traces:
    leaves that part step by step (a history that begins as `[x] * n`) are parted at once.
    """
    program = stage(None)
    parting = parted(program)
    if parting is None or program.calls_python:
        return program, None
    lasting = stage(parting)
    further = parted(lasting)
    if further is not None:
        of_classes = _classes(lasting)
        apart = {i for leaves in of_classes if len({further[i] for i in leaves}) > 1 for i in leaves}
        parting = tuple((label, i if i in apart else None) for i, label in enumerate(parting))
        lasting = stage(parting)
    return lasting, parting


def parted(program: Program) -> Parting | None:
    """How leaves that are one array part, as far as the results tell; None if all stay together. `program` is prepared,
    so that it is known which of its results are one. Takes time linear in the sizes of the trees, times their depth."""
    shared = _classes(program)
    if not shared:
        return None
    returned = _returned(program)
    labels: list[Hashable] = [None] * len(program.leaves)
    for leaves in shared:
        if all(i in returned for i in leaves):
            for i in leaves:
                labels[i] = returned[i].origin
    parts = any(len({labels[i] for i in leaves}) > 1 for leaves in shared)
    return tuple(labels) if parts else None


def _classes(program: Program) -> list[list[int]]:
    """Leaves (indices) that are one array, where there are several."""
    classes: dict[int, list[int]] = {}
    for i, leaf in enumerate(program.leaves):
        classes.setdefault(i if leaf.same_as is None else leaf.same_as, []).append(i)
    return [leaves for leaves in classes.values() if len(leaves) > 1]


def _returned(program: Program) -> dict[int, Output]:
    """For leaves of the arguments the leaf of the result that comes in its place."""
    if program.in_tree is None:
        return {}
    given = [None if leaf.aval is None else _type(leaf.aval) for leaf in program.leaves]
    made = [_type_of(program, output) for output in program.outputs]
    places: dict[tuple[Hashable, ...], list[int]] = {}
    for start, tree in _subtrees([(0, program.out_tree)]):
        places.setdefault(tuple(made[start : start + tree.num_leaves]), []).append(start)
    found: dict[int, Output] = {}
    taken: set[int] = set()
    arguments = [(0, tree) for tree in program.in_tree.children()]  # of positional ones, and of keywords
    arguments[1:] = [(arguments[0][1].num_leaves, tree) for _, tree in arguments[1:]]
    ahead = collections.deque(part for each in arguments for part in _parts(*each))
    while ahead:
        start, tree = ahead.popleft()
        leaves = range(start, start + tree.num_leaves)
        for place in places.get(tuple(given[start : leaves.stop]), ()):
            outputs = range(place, place + len(leaves))
            if taken.isdisjoint(outputs):
                taken.update(outputs)
                found.update(zip(leaves, (program.outputs[k] for k in outputs), strict=True))
                break
        else:
            ahead += _parts(start, tree)
    return found


def _parts(start: int, tree: PyTreeDef) -> Iterator[tuple[int, PyTreeDef]]:
    """The children of a tree that have leaves, each with the number of its first one."""
    for child in tree.children():
        if child.num_leaves:
            yield start, child
        start += child.num_leaves


def _subtrees(trees: Sequence[tuple[int, PyTreeDef]]) -> Iterator[tuple[int, PyTreeDef]]:
    """All parts that have leaves, the largest first."""
    ahead = collections.deque(each for each in trees if each[1].num_leaves)
    while ahead:
        each = ahead.popleft()
        yield each
        ahead += _parts(*each)


def _type(aval: Any) -> Hashable:
    return getattr(aval, "shape", None), getattr(aval, "dtype", None)


def _type_of(program: Program, output: Output) -> Hashable:
    match output.origin:
        case Computed(index):
            return _type(program.out_avals[index])
        case Passed(leaf):
            return _type(program.leaves[leaf].aval)
    return None
