"""Which arrays that are one at a call will still be one at the next, if that is given what this one returns.

A state often begins with one array at several leaves that come back as several: `ema = params`, `[zeros] * layers`. A
program that takes the array once serves the first call alone, and the next one needs another. So where the result goes
back to where the arguments came from (`ownership.is_fed_back`), and says that leaves part, they are taken for several
arrays from the beginning: one program serves all calls, as under `jax.jit`. Weights that come in tied and go out tied
are one array throughout.

Which part of the result goes to which argument is a guess: one that has leaves of the same shapes and dtypes in the
same order; of several, the one that keeps most together, or else the first. A wrong guess costs a copy at each call,
and never a result: a program that takes two arrays may be given one for both.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeAlias

from jax.tree_util import PyTreeDef

from pytc.passes.values import value_numbers
from pytc.program import Computed, Output, Passed, Program

Parting: TypeAlias = tuple[int, ...]
"""For each leaf of the arguments the first that it is one array with, now and at the calls that follow."""

_ROUNDS = 32
"""So many calls are thought through: a history that begins as `[x] * n` parts by one leaf at each."""


def staged_to_last(
    stage: Callable[[Parting | None], Program], is_fed_back: Callable[[], bool]
) -> tuple[Program, Parting | None]:
    """The program for a call and those that follow it, and how leaves that are one array part in it; None if none do.

    `stage` stages and prepares it for leaves that part like that. It is called up to three times, each of which traces.
    `is_fed_back` says whether the result goes back to where arguments came from.
    """
    program = stage(None)
    counterparts = _counterparts(program)
    if not counterparts or program.calls_python or not is_fed_back():
        return program, None
    now = tuple(i if leaf.same_as is None else leaf.same_as for i, leaf in enumerate(program.leaves))
    returned = {(now[i], program.outputs[k].origin) for i, k in counterparts.items()}
    if len(returned) == len({now[i] for i in counterparts}):
        return program, None  # each array comes back as one
    every = tuple(range(len(now)))
    apart = stage(every)
    parting = _lasting(now, apart, counterparts)
    return (apart, every) if parting == every else (stage(parting), parting)


def _lasting(now: Parting, apart: Program, counterparts: Mapping[int, int]) -> Parting:
    """What stays one array however often the function is called. `apart` takes all leaves for different arrays. Takes
    time linear in its equations for each round."""
    for _ in range(_ROUNDS):
        following = _at_the_next(now, apart, counterparts)
        if following == now:
            return now
        before, now = now, following
    parting = {was for was, each in zip(before, now, strict=True) if was != each}
    return tuple(i if was in parting else each for i, (was, each) in enumerate(zip(before, now, strict=True)))


def _at_the_next(now: Parting, program: Program, counterparts: Mapping[int, int]) -> Parting:
    """What is one array at the next call: of the leaves that are `now`, those whose counterparts are one value."""
    first: dict[Hashable, int] = {}
    leaves = enumerate(given.leaf for given in program.inputs)
    places = [k if leaf is None else first.setdefault(now[leaf], k) for k, leaf in leaves]
    numbers = value_numbers(program.jaxpr.jaxpr, places)

    def value(output: Output) -> Hashable:
        match output.origin:
            case Computed(index):
                return "made", numbers[index]
            case Passed(leaf):
                return "given", now[leaf]
        return None

    values = {i: value(program.outputs[k]) for i, k in counterparts.items()}
    following: dict[Hashable, int] = {}
    return tuple(following.setdefault((was, values.get(i)), i) for i, was in enumerate(now))


def _counterparts(program: Program) -> dict[int, int]:
    """For leaves that are one array with others the leaf of the result (its number) that comes in place of each; none
    if some of these have none."""
    classes: dict[int, list[int]] = {}
    for i, leaf in enumerate(program.leaves):
        classes.setdefault(i if leaf.same_as is None else leaf.same_as, []).append(i)
    classes = {first: leaves for first, leaves in classes.items() if len(leaves) > 1}
    if not classes or program.in_tree is None:
        return {}
    shared = {i: first for first, leaves in classes.items() for i in leaves}
    returned = _returned(program, program.in_tree, shared)
    return {i: returned[i] for leaves in classes.values() if all(i in returned for i in leaves) for i in leaves}


def _returned(program: Program, tree: PyTreeDef, shared: Mapping[int, int]) -> dict[int, int]:
    """For leaves of the arguments, which are of this tree, the leaf of the result that comes in its place. `shared` are
    those that are one array with others, and which."""
    given = [None if leaf.aval is None else _type(leaf.aval) for leaf in program.leaves]
    made = [_type_of(program, output) for output in program.outputs]
    origins = [output.origin for output in program.outputs]
    places: dict[tuple[Hashable, ...], list[int]] = {}
    for start, part in _subtrees(program.out_tree):
        places.setdefault(tuple(made[start : start + part.num_leaves]), []).append(start)
    found: dict[int, int] = {}
    taken: set[int] = set()
    ahead = collections.deque[tuple[int, PyTreeDef]]()
    for start, arguments in _parts(0, tree):  # those that are positional, and keywords
        ahead += _parts(start, arguments)
    while ahead:
        start, part = ahead.popleft()
        count = part.num_leaves
        fitting = places.get(tuple(given[start : start + count]), ())
        free = [place for place in fitting if taken.isdisjoint(range(place, place + count))]
        if free:
            # How many different arrays would come in place of those that are shared.
            kinds = [
                len({(shared[start + k], origins[place + k]) for k in range(count) if start + k in shared})
                for place in free
            ]
            place = free[kinds.index(min(kinds))]
            taken.update(range(place, place + count))
            found.update((start + k, place + k) for k in range(count))
        else:
            ahead += _parts(start, part)
    return found


def _parts(start: int, tree: PyTreeDef) -> Iterator[tuple[int, PyTreeDef]]:
    """The children of a tree that have leaves, each with the number of its first one."""
    for child in tree.children():
        if child.num_leaves:
            yield start, child
        start += child.num_leaves


def _subtrees(tree: PyTreeDef) -> Iterator[tuple[int, PyTreeDef]]:
    """All parts that have leaves, the largest first."""
    ahead = collections.deque([(0, tree)] if tree.num_leaves else [])
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
