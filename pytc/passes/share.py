"""share: outputs that are one value are one output, returned as one object.

`return tied, tied` computes one value and names it twice. As two outputs it would fill two buffers, and a tree whose
weights are tied would come back untied. (The same on the way in, one array object at several leaves, is settled when
the function is staged: it sees one tracer for all.)

Proves nothing: two outvars are one value when they are one variable of the jaxpr. Cost: one look at each outvar.
"""

from __future__ import annotations

import dataclasses

from pytc.jax_compat import Literal
from pytc.program import Computed, Program


def share(program: Program) -> Program:
    """Each variable of the jaxpr is returned once; the outputs that named it again refer to that."""
    outvars = program.jaxpr.jaxpr.outvars
    first: dict[object, int] = {}
    same = [i if isinstance(v, Literal) else first.setdefault(v, i) for i, v in enumerate(outvars)]
    outputs, notes = [], []
    for output in program.outputs:
        if isinstance(output.origin, Computed) and same[output.origin.index] != output.origin.index:
            known = Computed(same[output.origin.index])
            twin = next(o for o in program.outputs if o.origin == known)
            if twin.requested == output.requested:
                notes.append(f"result{output.path} is result{twin.path}: one array at both")
                output = dataclasses.replace(output, origin=known)
        outputs.append(output)
    return program.noted("share", notes, outputs=tuple(outputs)) if notes else program
