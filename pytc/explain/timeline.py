"""Liveness over time: the memory that is alive at each equation of a program, in the order of the jaxpr.

An array is alive from the equation that makes it to the last one that reads it. Arguments are alive all the time, since
the caller holds them; the memory of a reused argument counts as the output's from the equation that makes the output.
XLA fuses and reorders equations, so most temporaries here never exist as arrays, and the compiler's own total is
usually lower. What the timeline shows is where the memory goes, and by which source line.

Cost: one walk over the equations at the top level; a loop counts as one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from pytc.jax_compat.avals import nbytes
from pytc.jax_compat.jaxprs import JaxprEqn, Var
from pytc.jax_compat.origins import source_line
from pytc.program import Program

LAYERS = ("kept", "reused", "taken", "output", "temporary")
"""`kept`: inputs that stay as they are · `reused`: inputs until an output is written into them · `taken`: outputs in
memory of inputs · `output`: outputs in memory of their own · `temporary`: everything else."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One equation, and the bytes alive while it runs, over all devices."""

    number: int
    """The number of the equation, from 0; for the end of the program, the number of equations."""
    primitive: str
    """`dot_general`; `return` for the end of the program."""
    source: str
    """The user's line: `train.py:88 (loss)`; empty if JAX does not know it."""
    layers: tuple[int, ...]
    """Bytes of each of `LAYERS`."""
    without: int
    """Bytes alive if nothing were reused."""

    @property
    def total(self) -> int:
        """Bytes alive."""
        return sum(self.layers)


def timeline(program: Program) -> tuple[Step, ...]:
    """A step for each equation of the program at the top level, and one for its end."""
    jaxpr = program.jaxpr.jaxpr
    end = len(jaxpr.eqns)
    made = {var: i for i, eqn in enumerate(jaxpr.eqns) for var in eqn.outvars}
    last: dict[Var, int] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        last.update((var, i) for var in eqn.invars if isinstance(var, Var))

    change = {name: [0] * (end + 2) for name in (*LAYERS, "without")}

    def alive(layer: str, size: int, start: int, stop: int) -> None:
        """Add `size` bytes to `layer` from step `start` up to, but not including, step `stop`."""
        change[layer][start] += size
        change[layer][stop] -= size

    outputs = {pair.output: pair.input for pair in program.aliases}
    reused = set(outputs.values())
    returned: dict[Var, int] = {}
    for index, outvar in enumerate(jaxpr.outvars):
        size = _bytes(outvar)
        start = made.get(outvar, end) if isinstance(outvar, Var) else end
        first = not isinstance(outvar, Var) or returned.setdefault(outvar, index) == index
        if index in outputs:
            alive("reused", size, 0, start)
            alive("taken", size, start, end + 1)
        elif first or start == end:
            alive("output", size, start, end + 1)
        alive("without", size, start, end + 1)
    for number, var in enumerate(jaxpr.invars):
        if number not in reused:
            alive("kept", _bytes(var), 0, end + 1)
        alive("without", _bytes(var), 0, end + 1)
    for i, eqn in enumerate(jaxpr.eqns):
        for var in eqn.outvars:
            if var not in returned:
                for layer in ("temporary", "without"):
                    alive(layer, _bytes(var), i, last.get(var, i) + 1)

    now = dict.fromkeys(change, 0)
    steps = []
    for i in range(end + 1):
        for layer, by in change.items():
            now[layer] += by[i]
        made_by = jaxpr.eqns[i] if i < end else None
        layers = tuple(now[layer] for layer in LAYERS)
        steps.append(Step(i, *_what(made_by), layers, now["without"]))
    return tuple(steps)


def thinned(steps: Sequence[Step], most: int) -> tuple[Step, ...]:
    """At most `most` of the steps: the first, the last, and of each stretch in between the one with the most alive."""
    if len(steps) <= most:
        return tuple(steps)
    edges = [round(k * (len(steps) - 2) / (most - 2)) + 1 for k in range(most - 1)]
    middle = [max(steps[a:b], key=lambda step: step.total) for a, b in itertools.pairwise(edges) if a < b]
    return (steps[0], *middle, steps[-1])


def _what(eqn: JaxprEqn | None) -> tuple[str, str]:
    return ("return", "") if eqn is None else (str(eqn.primitive.name), source_line(eqn))


def _bytes(var: object) -> int:
    """Bytes of a var; 0 for a token and the like."""
    aval = getattr(var, "aval", None)
    return nbytes(aval) if aval is not None and hasattr(aval, "shape") and hasattr(aval, "dtype") else 0
