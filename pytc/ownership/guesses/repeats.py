"""Whether other calls follow from the same place, and what the code stores before: for guesses, and no part of the
proof."""

from __future__ import annotations

import functools
import operator
from types import FrameType

from pytc.ownership.bytecode.analysed import NotTrusted, flow_of, site_of
from pytc.ownership.bytecode.events import Place, Step
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.stack import HIGHEST_READ
from pytc.ownership.bytecode.stores import stored
from pytc.ownership.guesses.loop import loop_around


def is_stored_after(flow: ControlFlow, at: int, place: Place) -> bool:
    """Whether a variable is written on some way from instruction `at` on."""
    (step,) = place
    numbers, later = flow.once(_stored_after)
    return bool(later[at] >> numbers[step] & 1) if step in numbers else False


def _stored_after(flow: ControlFlow) -> tuple[dict[Step, int], list[int]]:
    """A number for each variable or attribute that is written, and for each instruction those, as bits, that are
    written on some way from there on: backward data flow, as in `liveness`."""
    numbers: dict[Step, int] = {}
    own = []
    for n in range(len(flow.instructions)):
        places = (1 << numbers.setdefault(step, len(numbers)) for step in stored(flow, n))
        own.append(functools.reduce(operator.or_, places, 0))
    later = [0] * len(own)
    changed = True
    while changed:
        changed = False
        for n in range(len(own) - 1, -1, -1):
            now = functools.reduce(operator.or_, (own[m] | later[m] for m in flow.follows[n]), 0)
            if now != later[n]:
                later[n], changed = now, True
    return numbers, later


def is_once(frame: FrameType) -> bool:
    """Whether a call happens once in the run of a script or of a notebook's cell: no loop is around it, in any function
    up to there. False if that cannot be told."""
    above: FrameType | None = frame
    for _ in range(HIGHEST_READ):
        if above is None:
            return True
        try:
            flow, site = flow_of(above.f_code), site_of(above)
        except NotTrusted:
            return False
        if loop_around(flow, site.at).body:
            return False
        if above.f_code.co_name == "<module>":
            return True
        above = above.f_back
    return False
