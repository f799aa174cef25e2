"""forward: an output that is an input is handed back by Python and leaves the program.

`return params, loss` need not read `params` and write it out again: the caller gets the very array that it passed.
Such an input is often read by nothing else, and then `prune` takes it out of the program; and since the caller goes
on holding it, it is never donated.

Handed back are only arrays that are what the program would have returned: not NumPy data or Python scalars, which a
call turns into arrays, and none for which a sharding was asked on the way in or out.

A captured array that is returned stays in the program: as with `jax.jit`, each call returns a new array, which the
caller may donate. So does, where there are several devices, an input that nothing else reads: where it is may decide
where all the rest is computed. And so does an input of one element that something else reads: XLA divides by a scalar,
or multiplies by its inverse, which may differ by the last bit, depending on whether anything else uses the scalar.

Proves nothing: an outvar is an input when it is the invar itself. Cost: one look at each outvar; where one of these two
may stay, one more `prune`, which tells what else is read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Set
from typing import Any

import jax

from pytc.jax_compat.avals import AbstractValue
from pytc.jax_compat.jaxprs import Literal
from pytc.jax_compat.running import is_elsewhere
from pytc.passes.prune import prune
from pytc.program import Computed, Output, Passed, Program


def forward(program: Program) -> Program:
    """Outputs that are inputs, as `Passed` leaves; their outvars are no longer referred to."""
    handed_back = _without(program, frozenset())
    passed = {output.origin.leaf for output in handed_back.outputs if isinstance(output.origin, Passed)}
    single = {leaf for leaf in passed if _is_of_one_element(program.leaves[leaf].aval)}
    several_devices = jax.device_count() > 1 or any(is_elsewhere(leaf.placed) for leaf in program.leaves)
    if not single and not (passed and several_devices):
        return handed_back
    read = {given.leaf for given in prune(handed_back).inputs}
    return _without(program, single & read | (passed - read if several_devices else set()))


def _is_of_one_element(aval: AbstractValue | None) -> bool:
    return aval is not None and math.prod(aval.shape) == 1


def _without(program: Program, staying: Set[int]) -> Program:
    """The program without the outputs that are inputs, but for those of the leaves that are `staying`."""
    number = {var: i for i, var in enumerate(program.jaxpr.jaxpr.invars)}
    outputs, notes = [], []
    for output in program.outputs:
        origin = _origin(program, output, number)
        if origin is not None and origin.leaf not in staying:
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
