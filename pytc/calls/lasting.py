"""Which arrays that are one at a call will still be one at the next, if that is given what this one returns.

A state often begins with one array at several leaves that come back as several: `ema = params`, `[zeros] * layers`. Or
one of them comes back, and the other stays as it was: `params = step(params, target)`, where the target is the first
parameters. A program that takes the array once serves the first call alone, and the next one needs another. So where
the result goes back to where the arguments came from (`ownership.staying`), and says that leaves part, they are taken
for several arrays from the beginning: one program serves all calls, as under `jax.jit`. Weights that come in tied and
go out tied are one array throughout.

Which part of the result goes to which argument is a guess: one that has leaves of the same shapes and dtypes in the
same order; of several, the one that keeps most together, or else the first. A wrong guess costs a copy at each call,
and never a result: a program that takes two arrays may be given one for both.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from typing import Any, TypeAlias

from jax.tree_util import PyTreeDef

from pytc.passes.values import value_numbers
from pytc.program import Computed, Output, Passed, Program

Parting: TypeAlias = tuple[int, ...]
"""For each leaf of the arguments the first that it is one array with, now and at the calls that follow."""

_ROUNDS = 32
"""So many calls are thought through: a history that begins as `[x] * n` parts by one leaf at each."""


def staged_to_last(
    stage: Callable[[Parting | None], Program], staying: Callable[[], Set[int] | None]
) -> tuple[Program, Parting | None]:
    """The program for a call and those that follow it, and how leaves that are one array part in it; None if none do.

    `stage` stages and prepares it for leaves that part like that. It is called up to three times, each of which traces.
    `staying` gives the leaves that will be the same at the next call, if the result goes back to where others came
    from; None if it does not.
    """
    program = stage(None)
    now = tuple(i if leaf.same_as is None else leaf.same_as for i, leaf in enumerate(program.leaves))
    if program.calls_python or len({*now}) == len(now) or (stay := staying()) is None:
        return program, None
    counterparts = _counterparts(program, now, stay)
    if _at_the_next(now, program, counterparts, range(len(program.out_avals))) == now:
        return program, None
    every = tuple(range(len(now)))
    apart = stage(every)
    parting = _lasting(now, apart, counterparts)
    return (apart, every) if parting == every else (stage(parting), parting)


def _lasting(now: Parting, apart: Program, counterparts: Mapping[int, int | None]) -> Parting:
    """What stays one array however often the function is called. `apart` takes all leaves for different arrays. Takes
    time linear in its equations for each round."""
    for _ in range(_ROUNDS):
        first: dict[Hashable, int] = {}
        leaves = enumerate(given.leaf for given in apart.inputs)
        places = [k if leaf is None else first.setdefault(now[leaf], k) for k, leaf in leaves]
        following = _at_the_next(now, apart, counterparts, value_numbers(apart.jaxpr.jaxpr, places))
        if following == now:
            return now
        before, now = now, following
    parting = {was for was, each in zip(before, now, strict=True) if was != each}
    return tuple(i if was in parting else each for i, (was, each) in enumerate(zip(before, now, strict=True)))


def _at_the_next(
    now: Parting, program: Program, counterparts: Mapping[int, int | None], numbers: Sequence[int]
) -> Parting:
    """What is one array at the next call: of the leaves that are `now`, those whose counterparts are one value. The
    outvars of equal `numbers` are."""

    def value(i: int, counterpart: int | None) -> Hashable:
        match Passed(i) if counterpart is None else program.outputs[counterpart].origin:
            case Computed(index):
                return "made", numbers[index]
            case Passed(leaf):
                return "given", now[leaf]
        return None

    values = {i: value(i, counterpart) for i, counterpart in counterparts.items()}
    following: dict[Hashable, int] = {}
    return tuple(following.setdefault((was, values.get(i)), i) for i, was in enumerate(now))


def _counterparts(program: Program, now: Parting, stay: Set[int]) -> dict[int, int | None]:
    """For leaves that are one array with others the leaf of the result (its number) that comes in place of each, or
    None for one of those that `stay` as they are; nothing if some of these have neither."""
    if program.in_tree is None:
        return {}
    classes: dict[int, list[int]] = {}
    for i, first in enumerate(now):
        classes.setdefault(first, []).append(i)
    shared = {i: first for first, leaves in classes.items() if len(leaves) > 1 for i in leaves}
    found: dict[int, int | None] = {i: None for i in shared if i in stay}
    found |= _returned(program, program.in_tree, shared, stay)
    return {i: found[i] for i, first in shared.items() if all(each in found for each in classes[first])}


def _returned(program: Program, tree: PyTreeDef, shared: Mapping[int, int], stay: Set[int]) -> dict[int, int]:
    """For leaves of the arguments, which are of this tree, the leaf of the result that comes in its place; not for
    those that `stay`. `shared` are those that are one array with others, and which."""
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
        ahead += [each for each in _parts(start, arguments) if each[0] not in stay]
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
