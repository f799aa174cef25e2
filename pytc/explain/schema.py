"""An explanation as JSON. Keys may be added to `pytc.explain/1`, but are never changed or removed.

    schema      "pytc.explain/1"
    name        the function's name
    assumption  what is assumed about the caller
    bytes       {"reused", "kept"}: over all devices
    reused      the share of the outputs' bytes that are written into arguments
    inputs      the fields of `InputReport`, one object for each leaf and captured array
    outputs     the fields of `OutputReport`
    passes      the fields of `PassReport` without the programs; pairs are [before, after]
    device      the fields of `Device`: what was compiled for, and its memory
    fits        whether the program fits in that memory; null if that is not known
    memory      {"program", "undonated", "by_hand"}: the fields of `Footprint` with "total", in bytes on each device;
                if a compiler "refused" because the program does not fit, only "total" is known;
                "declined": leaves that were donated, but into which the compiler writes nothing;
                "by_hand" has "parameters", "search" and "tried" beside its "footprint"
    plans       with effort="high", the fields of `Tried` for each plan considered, figures with "total"; else empty
    jit_call    the nearest `jax.jit` or `jax.pmap` call

The schema of call sites, `pytc.calls/1`, has `name`; `sites`: the fields of `SiteReport`; and `forgotten` and
`forgotten_calls`, as `Calls` has them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytc.effort import Tried
    from pytc.explain.calls import Calls
    from pytc.explain.explanation import Explanation
    from pytc.explain.memory import Footprint

EXPLANATION = "pytc.explain/1"
CALLS = "pytc.calls/1"


def of_explanation(explanation: Explanation) -> dict[str, Any]:
    """The explanation as a value for `json.dumps`."""
    memory = explanation.memory
    return {
        "schema": EXPLANATION,
        "name": explanation.name,
        "assumption": explanation.assumption,
        "bytes": {"reused": explanation.reused_bytes, "kept": explanation.kept_bytes},
        "reused": explanation.reused,
        "inputs": [dataclasses.asdict(each) for each in explanation.inputs],
        "outputs": [dataclasses.asdict(each) for each in explanation.outputs],
        "passes": [
            {
                "name": each.name,
                "equations": each.equations,
                "inputs": each.inputs,
                "outputs": each.outputs,
                "notes": each.notes,
            }
            for each in explanation.passes
        ],
        "device": dataclasses.asdict(explanation.device),
        "fits": explanation.fits,
        "memory": {
            "program": _footprint(memory.program),
            "undonated": _footprint(memory.undonated),
            "declined": memory.declined,
            "by_hand": {
                "parameters": memory.by_hand.parameters,
                "footprint": _footprint(memory.by_hand.footprint),
                "search": memory.by_hand.search,
                "tried": [
                    {"parameters": names, "footprint": _footprint(found)} for names, found in memory.by_hand.tried
                ],
            },
        },
        "plans": [_tried(each) for each in explanation.plans],
        "jit_call": explanation.jit_call,
    }


def of_calls(calls: Calls) -> dict[str, Any]:
    """What happened at each call site, as a value for `json.dumps`."""
    return {"schema": CALLS, **dataclasses.asdict(calls)}


def _tried(plan: Tried) -> dict[str, Any]:
    told = dataclasses.asdict(plan)
    if plan.figures is not None:
        told["figures"]["total"] = plan.figures.total
    return told


def _footprint(found: Footprint) -> dict[str, Any]:
    return {**dataclasses.asdict(found), "total": found.total}
