"""Values that a CPU's compiler stores, because the loop that reads them would compute them several times over.

    h = p[parents]                 # a gather
    q = repeat(h, 4, axis=0)       # an output: reads each element of it four times

XLA takes into a loop what that reads, unless the loop reads one element several times and it is expensive; nor does it
take in what is joined of parts (a roll along rows) where it is not read in step (`InstructionFusion`,
`CpuInstructionFusion`). So these are stored, and the loops that make them have read their arguments when the loop that
reads them begins. Taken for a part of it, they would seem to need the arguments for as long as the output is written.
"""

from __future__ import annotations

from pytc.passes.dataflow import DIVISIONS, Flow, Kind, Step
from pytc.passes.temporaries import CHEAP, FUSED

_CHEAP = CHEAP["cpu"] | {*DIVISIONS.values()}
_FUSIBLE = (Kind.ELEMENTWISE, Kind.INDEXED, Kind.JOINED)
_REUSE = frozenset({"broadcast_in_dim", "dynamic_slice"})
"""What reads one element of its operand several times, as far as the compiler knows."""


def reused(flow: Flow) -> set[int]:
    """These values, but for outputs. One walk from the last step to the first."""
    root = flow.roots
    outputs = {root[value] for value in flow.outputs if value is not None}
    found: set[int] = set()
    # What the loop that reads it reads several times, and what not in step with its writing.
    again: set[int] = set()
    elsewhere: set[int] = set()
    for step in reversed(flow.steps):
        kind, made = step.kind, step.makes[0] if step.makes else -1  # a callback that returns nothing
        is_again, is_elsewhere = made in again, made in elsewhere
        if kind is Kind.ELEMENTWISE and not (is_again or is_elsewhere):
            continue  # as most are
        if step.view or not (kind in _FUSIBLE or step.name in FUSED["cpu"]):
            continue
        is_new = (is_again and _is_expensive(step)) or (is_elsewhere and kind is Kind.JOINED)
        if is_new or kind not in _FUSIBLE or made in outputs:
            is_again = is_elsewhere = False
        operands = [root[value] for value in step.reads]
        if is_again or step.name in _REUSE:
            again.update(operands)
        if is_elsewhere or kind is not Kind.ELEMENTWISE:
            elsewhere.update(operands)
        if is_new and made not in outputs:
            found.add(made)
    return found


def _is_expensive(step: Step) -> bool:
    return step.name == "gather" or (step.kind is Kind.ELEMENTWISE and step.name not in _CHEAP)
