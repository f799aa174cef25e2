"""forward: an output that is an input is handed back by Python and leaves the program.

`return params, loss` need not read `params` and write it out again: the caller gets the very array that it passed.
Such an input is often read by nothing else, and then `prune` takes it out of the program; and since the caller goes
on holding it, it is never donated.

Handed back are only arrays that are what the program would have returned: not NumPy data or Python scalars, which a
call turns into arrays, and none for which a sharding was asked on the way in or out.

A captured array that is returned stays in the program: as with `jax.jit`, each call returns a new array, which the
caller may donate. So does, where there are several devices, an input that nothing else reads: where it is may decide
where all the rest is computed.

Proves nothing: an outvar is an input when it is the invar itself. Cost: one look at each outvar, and at each equation
where there are several devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from pytc.jax_compat.jaxprs import Literal, Var
from pytc.program import Computed, Output, Passed, Program


def forward(program: Program) -> Program:
    """Outputs that are inputs, as `Passed` leaves; their outvars are no longer referred to."""
    jaxpr = program.jaxpr.jaxpr
    number = {var: i for i, var in enumerate(jaxpr.invars)}
    if any(var in number for var in jaxpr.outvars if isinstance(var, Var)) and jax.device_count() > 1:
        read = {var for eqn in jaxpr.eqns for var in eqn.invars if isinstance(var, Var)}
        number = {var: i for var, i in number.items() if var in read}
    outputs, notes = [], []
    for output in program.outputs:
        origin = _origin(program, output, number)
        if origin is not None:
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
