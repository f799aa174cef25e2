"""Values that a CPU's compiler stores, because a step reads them beside what was made of them by way of memory.

    p = p - dt * force(q)        # half a step
    q = q + dt * p               # an output
    p = p - dt * force(q)        # reads the half step, and `q`, which was made of it

XLA has each loop that reads a value compute it anew only where the value can be fused with all that leads on from it
(`InstructionFusion`, `CanFuseOnAllPaths`). Here one way leads through an output, which is in memory: so there are
two loops, one after the other, and the half step is stored for the second. The loop that makes it has then read the
arguments before either output is written. Taken for a part of both loops instead, the half step would seem to need
each argument for as long as the other one's output is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from pytc.passes.dataflow import Flow, Kind
from pytc.passes.temporaries import TINY

_MOST = 64
"""So many values are followed at once, those made last."""
_ROUNDS = 4
"""What is stored may have others stored in turn, which is looked for as often."""
_NONE: frozenset[int] = frozenset()


def rejoined(flow: Flow) -> frozenset[int]:
    """These values, of the large ones that are computed element by element. Takes time linear in the steps."""
    computed = {
        step.makes[0]
        for step in flow.steps
        if step.kind is Kind.ELEMENTWISE and step.nbytes > TINY and step.reads and not step.view
    }
    if not computed:
        return _NONE
    root = flow.roots
    last: dict[int, int] = {}
    several: set[int] = set()
    for number, step in enumerate(flow.steps):
        if not step.view:
            for value in step.reads:
                value = root[value]
                if last.get(value, number) != number:
                    several.add(value)
                last[value] = number
    in_memory = {root[value] for value in flow.outputs if value is not None}
    in_memory.update(made for step in flow.steps if step.kind in (Kind.WHOLE, Kind.IN_PLACE) for made in step.makes)
    candidates = (computed & several) - in_memory
    found: set[int] = set()
    for _ in range(_ROUNDS):
        if not candidates or not (new := _found(flow, candidates, in_memory, last)):
            break
        found |= new
        in_memory |= new
        candidates -= new
    return frozenset(found)


def _found(flow: Flow, candidates: Set[int], in_memory: Set[int], last: Mapping[int, int]) -> set[int]:
    """Those of the candidates that a step reads beside what was made of them by way of something in memory. `last` has
    the step that reads a value last."""
    root = flow.roots
    found: set[int] = set()
    # Of each value, the candidates that it is made of: within its own loop, and by way of memory.
    within: dict[int, frozenset[int]] = {}
    beyond: dict[int, frozenset[int]] = {}
    for number, step in enumerate(flow.steps):
        if step.view:
            continue
        near = far = _NONE
        for value in step.reads:
            value = root[value]
            near |= within.get(value, _NONE)
            far |= beyond.get(value, _NONE)
        if far:
            found.update(value for operand in step.reads if (value := root[operand]) in far)
        near, far = (_followed(values, last, number) if values else _NONE for values in (near, far))
        for made in step.makes:
            if made in in_memory:
                here, there = _NONE, far | near
            else:
                here, there = (near | {made} if made in candidates else near), far
            if here:
                within[made] = here
            if there:
                beyond[made] = there
    return found


def _followed(values: Set[int], last: Mapping[int, int], number: int) -> frozenset[int]:
    """Those of the values that are read again after step `number`: at most `_MOST`."""
    alive = frozenset([value for value in values if last[value] > number])
    return alive if len(alive) <= _MOST else frozenset(sorted(alive)[-_MOST:])
