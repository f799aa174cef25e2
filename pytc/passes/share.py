"""share: outputs that are one value are one output, returned as one object.

`return tied, tied` computes one value and names it twice. As two outputs it would fill two buffers, and a tree whose
weights are tied would come back untied. The same on the way in, one array object at several leaves, is settled when
the function is staged: it sees one tracer for all.

A function that treats each leaf by itself, as `jax.tree.map` does, then computes the same thing twice: `0.9 * weight`
once for each place that the weight stands at. So where leaves are shared, outputs are one value also if equal
computations make them (`values`), and weights that came in tied go out tied. What is no longer asked for is dead,
and goes in `prune`. Where no leaves are shared, two computations stay two arrays, as `jax.jit` returns them.

Proves that two outvars are one variable of the jaxpr, or have one value number. Cost: one look at each outvar; with
shared leaves one at each equation too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

from pytc.jax_compat.jaxprs import Literal
from pytc.passes.values import value_numbers
from pytc.program import Computed, Program


def share(program: Program) -> Program:
    """Each value is returned once; the outputs that named it again refer to that."""
    outvars = program.jaxpr.jaxpr.outvars
    first: dict[Hashable, int] = {}
    same = [
        i if isinstance(v, Literal) else first.setdefault((value, v.aval), i)
        for i, (v, value) in enumerate(zip(outvars, _values(program), strict=True))
    ]
    outputs, notes = [], []
    twins = {o.origin.index: o for o in reversed(program.outputs) if isinstance(o.origin, Computed)}
    for output in program.outputs:
        if isinstance(output.origin, Computed) and same[output.origin.index] != output.origin.index:
            twin = twins.get(same[output.origin.index])
            if twin is not None and twin.requested == output.requested:
                notes.append(f"result{output.path} is result{twin.path}: one array at both")
                output = dataclasses.replace(output, origin=twin.origin)
        outputs.append(output)
    return program.noted("share", notes, outputs=tuple(outputs)) if notes else program


def _values(program: Program) -> Sequence[Hashable]:
    """What tells the outvars' values apart."""
    if any(leaf.same_as is not None for leaf in program.leaves):
        return value_numbers(program.jaxpr.jaxpr)
    return list(program.jaxpr.jaxpr.outvars)
