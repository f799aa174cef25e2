"""In which order a program returns its outputs, so that JAX makes exactly the program's pairs.

Which output goes into which donated input is JAX's to say: it takes the outputs in order, and gives each the first
donated input that is left of the same shape and dtype. So the outputs are ordered such that exactly the program's
aliases come about: as they are, or from the last to the first, where that does it; else aliased outputs first, in the
order of their inputs, then the others as they are made. (Among inputs and outputs of one shape and dtype, the k-th
donated input then meets the k-th output, and no donated input is left over for a later one. Outputs of other shapes and
dtypes stay where they are.)

A program that `keeps_order` has only pairs that JAX makes of its outputs as they are, since its arguments are in their
order (`Program.passed`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytc.jax_compat.donated import first_come
from pytc.jax_compat.jaxprs import Var
from pytc.program import Alias, Program


def order_of(program: Program, aliased: Sequence[Alias]) -> list[int]:
    """The outputs in an order in which JAX makes exactly the program's pairs: the first of these that does.

    As the function returns them; from the last to the first; the aliased ones in the order of their inputs, and then
    the others as they are made. Outputs of a shape and dtype that no pair has are never paired, wherever they stand, so
    they keep their places: a compiler may schedule a loss that is the first result in far less memory than one that is
    the last. `Program.order` may ask for them first or last, or for everything backwards.
    """
    outputs = list(range(len(program.out_avals)))
    if program.keeps_order:
        return outputs
    in_turn = [alias.output for alias in aliased]
    others = _as_made(program, {*outputs} - {*in_turn})
    if program.order == "backwards":
        return in_turn + others[::-1]
    apart = dict.fromkeys(program.unpaired)
    rest = [k for k in outputs if k not in apart]
    last = in_turn + [k for k in others if k not in apart]
    rest = next((way for way in (rest, rest[::-1]) if _pairs_by_jax(program, aliased, way)), last)
    if program.order != "forwards":
        return [*apart, *rest] if program.order == "unpaired first" else [*rest, *apart]
    remaining = iter(rest)
    return [k if k in apart else next(remaining) for k in outputs]


def _pairs_by_jax(program: Program, aliased: Sequence[Alias], order: Sequence[int]) -> bool:
    """Whether JAX would make these pairs, were their inputs donated in turn, and the outputs in this order."""
    in_avals, out_avals = program.in_avals, program.out_avals
    donated = ((alias.input, in_avals[alias.input]) for alias in aliased)
    pairs = first_come(donated, ((output, out_avals[output]) for output in order))
    return pairs == {alias.output: alias.input for alias in aliased}


def _as_made(program: Program, outputs: Collection[int]) -> list[int]:
    """`outputs` (outvar numbers) in the order in which the program makes them."""
    if not outputs:
        return []
    jaxpr = program.jaxpr.jaxpr
    made = {var: number for number, var in enumerate(var for eqn in jaxpr.eqns for var in eqn.outvars)}
    return sorted(outputs, key=lambda k: (made.get(var, -1) if isinstance(var := jaxpr.outvars[k], Var) else -1, k))
