"""forward: an output that is an input is handed back by Python and leaves the program.

`return params, loss` need not read `params` and write it out again: the caller gets the very array that it passed.
Such an input is often read by nothing else, and then `prune` takes it out of the program; and since the caller goes
on holding it, it is never donated.

Handed back are only arrays that are what the program would have returned: not NumPy data or Python scalars, which a
call turns into arrays, and none for which a sharding was asked on the way in or out.

A captured array that is returned stays in the program: as with `jax.jit`, each call returns a new array, which the
caller may donate. So does, where there are several devices, an input that nothing else reads: where it is may decide
where all the rest is computed.

Proves nothing: an outvar is an input when it is the invar itself. Cost: one look at each outvar; where there are
several devices, and something could be handed back, one more `prune`, which tells what else reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Any

import jax

from pytc.jax_compat.jaxprs import Literal
from pytc.passes.prune import prune
from pytc.program import Computed, Output, Passed, Program


def forward(program: Program) -> Program:
    """Outputs that are inputs, as `Passed` leaves; their outvars are no longer referred to."""
    handed_back = _without(program, frozenset())
    if handed_back is program or jax.device_count() == 1:
        return handed_back
    read = {given.leaf for given in prune(handed_back).inputs}
    return _without(program, {given.leaf for given in program.inputs} - read)


def _without(program: Program, placing: Set[int | None]) -> Program:
    """The program without the outputs that are inputs, but for those of the leaves that are `placing` the others."""
    number = {var: i for i, var in enumerate(program.jaxpr.jaxpr.invars)}
    outputs, notes = [], []
    for output in program.outputs:
        origin = _origin(program, output, number)
        if origin is not None and origin.leaf not in placing:
            notes.append(f"result{output.path} is {program.leaves[origin.leaf].path}, handed back as it is")
            output = dataclasses.replace(output, origin=origin)
        outputs.append(output)
    return program.noted("forward", notes, outputs=tuple(outputs)) if notes else program


def _origin(program: Program, output: Output, number: Mapping[Any, int]) -> Passed | None:
    if not isinstance(output.origin, Computed) or output.requested is not None:
        return None
    outvar = program.jaxpr.jaxpr.outvars[output.origin.index]
    if isinstance(outvar, Literal) or outvar not in number:
        return None
    given = program.inputs[number[outvar]].leaf
    if given is None or not program.leaves[given].array or program.leaves[given].requested is not None:
        return None
    return Passed(given)
