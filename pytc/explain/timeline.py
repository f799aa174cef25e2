"""What is alive when: the memory that a program holds while it goes through its equations, one after another.

An array is there from the equation that makes it to the last that reads it. Arguments are there all the time, since
the caller holds them; those that are reused are the outputs' from the equation that makes the output. This is the
program in the order in which it is written: XLA fuses equations and reorders them, so most of what is temporary here
never exists as an array, and the compiler's own total is usually lower. What it shows is where the memory goes and who
wrote the line.

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
"""`kept`: inputs that stay as they are · `reused`: inputs that an output will be written into · `taken`: outputs in
memory of inputs · `output`: outputs in memory of their own · `temporary`."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One equation, and the bytes alive while it runs, over all devices."""

    number: int
    """Which equation it is, from 0; the number of equations for the end of the program."""
    primitive: str
    """`dot_general`; `return` for the end of the program."""
    source: str
    """The user's line: `train.py:88 (loss)`; empty where JAX does not know it."""
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
        """`size` bytes in `layer` from step `start` up to, and without, step `stop`."""
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
    """At most `most` of the steps, of each stretch the one at which the most is alive; the first and the last stay."""
    if len(steps) <= most:
        return tuple(steps)
    edges = [round(k * (len(steps) - 2) / (most - 2)) + 1 for k in range(most - 1)]
    middle = [max(steps[a:b], key=lambda step: step.total) for a, b in itertools.pairwise(edges) if a < b]
    return (steps[0], *middle, steps[-1])


def _what(eqn: JaxprEqn | None) -> tuple[str, str]:
    return ("return", "") if eqn is None else (str(eqn.primitive.name), source_line(eqn))


def _bytes(var: object) -> int:
    """Bytes of a var; none for a token and the like."""
    aval = getattr(var, "aval", None)
    return nbytes(aval) if aval is not None and hasattr(aval, "shape") and hasattr(aval, "dtype") else 0
