"""Which outputs of a program can be written over which inputs at all: those of one kind.

Shape and dtype, which JAX compares; and the memory, the layout and the parts over devices, which XLA does. Where the
order of outputs is the function's, JAX can only be told how many of a kind are written over inputs: the first ones.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeAlias

from pytc.jax_compat.avals import AbstractValue, is_array, nbytes, of_each, spec_on_axes
from pytc.jax_compat.layouts import is_by_the_compiler, is_over_several, laid_out, memory_of, sharding_of
from pytc.program import Alias, Computed, Passed, Program

Keys: TypeAlias = dict[int, tuple[Hashable, ...]]
"""By number: what must be equal for an output to be written over an input."""


class Fitting:
    """The inputs of a program that may be written over, and the outputs that may be written there."""

    def __init__(self, program: Program, values: Sequence[int | None]) -> None:
        """`values` are those of the outputs in the data flow."""
        self._program = program
        self.in_types, self.out_types = of_each(_type, program.in_avals), of_each(_type, program.out_avals)
        """What JAX compares when it pairs donated inputs with outputs; None for what is no array with bytes."""
        self.kept = program.keep.union(o.origin.leaf for o in program.outputs if isinstance(o.origin, Passed))
        """The leaves that live on: those that the caller reads again or is handed back."""
        self.inputs, self.results = self._keys(values)

    def of_one_size(self, donated: Iterable[int]) -> tuple[Keys, Keys]:
        """Of what is left if these inputs are donated: keys by the number and total size of elements, as XLA reuses a
        buffer for another type of equal size.

        JAX gives a donated input to an output of its own type if there is one. So there are only inputs whose type no
        output has, and outputs whose type no donated input has.
        """
        in_avals, out_avals = self._program.in_avals, self._program.out_avals
        made, taken = {*self.out_types}, {self.in_types[k] for k in donated}

        def size(aval: AbstractValue, key: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
            return aval.size, nbytes(aval), *key[2:]

        inputs = {k: size(in_avals[k], key) for k, key in self.inputs.items() if self.in_types[k] not in made}
        results = {k: size(out_avals[k], key) for k, key in self.results.items() if self.out_types[k] not in taken}
        return inputs, results

    def _keys(self, values: Sequence[int | None]) -> tuple[Keys, Keys]:
        """`inputs` and `results`."""
        program = self._program
        requested = _requested(program)
        # If shardings are requested for all arrays, the shards of a pair must be of equal size, too.
        traced = [leaf.requested for leaf in program.leaves if not leaf.is_static]
        spread = all(wanted is not None for wanted in (*traced, *requested.values()))
        # Types for which some result is requested in parts. Arrays of these types without a request may be cut in
        # another way.
        in_parts = {self.out_types[k] for k, wanted in requested.items() if is_over_several(wanted)}
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
            kind = self.in_types[number]
            if kind is not None and given.leaf is not None and given.leaf not in self.kept:
                placed = program.leaves[given.leaf].placed
                if placed is not None or kind not in in_parts:
                    inputs[number] = key(aval, placed, kind in in_parts)
        seen: set[int] = set()
        part_of_input, part_of_output = _parts_of(program) if are_taken_in_turn(program) else ({}, {})
        left = collections.Counter(part_of_input[number] for number in inputs if part_of_input)
        for number, (value, aval) in enumerate(zip(values, program.out_avals, strict=True)):
            # Of a value that is returned twice, only the first output is a candidate; the other is a copy. But if
            # outputs are taken in turn, the other keeps its place, and those are candidates that inputs are left for.
            kind, placed = self.out_types[number], requested.get(number)
            is_candidate = value not in seen
            if (part := part_of_output.get(number)) in left:
                is_candidate = left[part] > 0
                left[part] -= 1
            if kind is not None and is_candidate and (placed is not None or kind not in in_parts):
                results[number] = key(aval, placed, kind in in_parts, number in inside)
            if value is not None:
                seen.add(value)
        return inputs, results


def are_taken_in_turn(program: Program) -> bool:
    """Whether the first outputs of a type are those that are written over inputs: where the order of outputs is the
    function's (`keeps_order`), and JAX pairs them. (It leaves that to XLA if it does not know of all results how they
    are cut.)"""
    requested = _requested(program)
    return program.keeps_order and all(requested.get(k) is not None for k in range(len(program.out_avals)))


def in_turn(program: Program, pairs: Iterable[Alias], others: Iterable[Alias] = ()) -> list[Alias]:
    """Of these pairs, those that JAX can be told of.

    If outputs are taken in turn, that is how many of each type are written over inputs, namely the first ones. Gaps
    are filled from `others`, as far as they can be.
    """
    pairs = list(pairs)
    if not are_taken_in_turn(program):
        return pairs
    given, made = _parts_of(program)
    found = [pair for pair in pairs if given[pair.input] != made[pair.output]]  # these are XLA's to make
    chosen = {pair.output: pair for pair in pairs if given[pair.input] == made[pair.output]}
    taken = {pair.input for pair in pairs}
    filling = {pair.output: pair for pair in others if pair.input not in taken}
    left = collections.Counter(made[output] for output in chosen)
    for output, kind in made.items():
        if not left[kind]:
            continue
        if output in chosen:
            found.append(chosen[output])
            left[kind] -= 1
        elif output in filling:
            found.append(filling[output])
        else:  # JAX would give it the input of the next one
            left[kind] = 0
    return found


def _requested(program: Program) -> dict[int, Any]:
    """For outputs the shardings that are asked for, None where none is."""
    return {o.origin.index: o.requested for o in program.outputs if isinstance(o.origin, Computed)}


def _parts_of(program: Program) -> tuple[dict[int, Hashable], dict[int, Hashable]]:
    """What JAX compares, of inputs and outputs, when it knows how all results are cut: what each device holds."""
    requested = _requested(program)
    given = {
        number: _type_of_part(aval, None if each.leaf is None else program.leaves[each.leaf].placed)
        for number, (each, aval) in enumerate(zip(program.inputs, program.in_avals, strict=True))
    }
    return given, {number: _type_of_part(aval, requested[number]) for number, aval in enumerate(program.out_avals)}


def _type(aval: AbstractValue) -> Hashable:
    """Shape and dtype; None if it is not an array with bytes."""
    return (aval.shape, aval.dtype) if _is_array(aval) else None


def _type_of_part(aval: AbstractValue, placed: Any) -> Hashable:
    """Shape and dtype of what each device holds; None if it is not an array with bytes."""
    return (_part(aval, sharding_of(placed)) or aval.shape, aval.dtype) if _is_array(aval) else None


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
    part = _part(aval, sharding)
    return 0 if part is None else int(aval.size // max(1, math.prod(part)))


def _part(aval: AbstractValue, sharding: Any) -> tuple[int, ...] | None:
    """The shape of what each device holds; None if the compiler decides that."""
    if sharding is None:
        return None
    try:
        part: tuple[int, ...] = sharding.shard_shape(aval.shape)
    except (IndexError, ValueError):  # the sharding does not fit the shape, which JAX will report
        return None
    return part


def _memory(aval: AbstractValue, sharding: object) -> str:
    """The kind of memory that an array is in. An aval only distinguishes the device's own memory from "pinned_host"; a
    sharding may also ask for "unpinned_host"."""
    kind = memory_of(sharding)
    in_host_memory = kind == "device" and "host" in str(getattr(aval, "memory_space", "")).lower()
    return "pinned_host" if in_host_memory else kind
