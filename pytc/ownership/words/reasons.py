"""What holds the leaves of a call: among all objects that there are, or at a glance at the code around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import FrameType
from typing import Any

from pytc.arguments.leaves import ends
from pytc.ownership.call import Call
from pytc.ownership.cpython.interpreter import waits_for_c
from pytc.ownership.frames import FRAME_IS_HELD, frames_beneath
from pytc.ownership.look import Look, look_everywhere
from pytc.ownership.others import collector
from pytc.ownership.others.watchers import onlooker_anywhere, onlooker_in_program, raising_handler
from pytc.ownership.outcome import Outcome
from pytc.ownership.words import holders, variables
from pytc.ownership.words.holders import Held
from pytc.ownership.words.paths import paths_to
from pytc.ownership.words.referrers import Referrers
from pytc.ownership.words.variables import Insides


def reasons(call: Call, wanted: Sequence[int], outcome: Outcome) -> dict[int, Held]:
    """For each leaf of `wanted` that is not proven dead, what holds it. Slow; for messages to people."""
    everywhere = holders.explain_interpreter()
    if everywhere is not None:
        return dict.fromkeys(wanted, everywhere)
    paused = collector.STATE.paused
    try:
        look = look_everywhere(call, len(frames_beneath(call.frame)) + 1, outcome)
    finally:
        if not paused:
            collector.resume()
    kept = look.held(wanted)
    leaves, roots = call.leaves, [*call.args, *call.kwargs.values()]
    paths = [_held_from(path, look) for path in paths_to([leaves[i] for i in kept], roots, ends(leaves))]
    own = call.args, call.kwargs, leaves, roots, look.places, *paths
    ours = {*map(id, own), *look.census.tables()}
    referrers = Referrers([path[-1] for path in paths if path], ours)
    insides = Insides()
    return {
        i: Held("buffer", "another array on the same buffer", remedy="copy")
        if i in look.shared
        else _reason(path, call.frame, look, referrers, insides, outcome)
        for i, path in zip(kept, paths, strict=True)
    }


def _held_from(path: list[Any], look: Look) -> list[Any]:
    """The path, from an argument to a leaf, down to the first object not all of whose references are accounted for;
    empty if there is none."""
    for at in range(len(path)):
        if not look.census.is_open(id(path[at])) or holders.oddity(path[at]):
            return path[: at + 1]
    return []


def _reason(
    path: list[Any], frame: FrameType, look: Look, referrers: Referrers, insides: Insides, outcome: Outcome
) -> Held:
    """What holds the last object of the path."""
    if path:
        value = path[-1]
        if (odd := holders.oddity(value)) is not None:
            return odd
        address = id(value)  # a comprehension would capture the value in a cell, which would hold it
        let_go = {owner for owner, item in variables.letting_go(frame) if item == address}
        found = (
            variables.in_variables(frame, value, insides)
            or holders.in_objects(value, referrers, let_go.union(map(id, path)), variables.sources(frame))
            or variables.in_threads(value)
            or variables.in_members(frame, value, ())
        )
        if found is not None:
            vaguely = f"{found.text}, and something may read it before the result is there"
            return variables.reworded(found, value, frame, look.refusals) or dataclasses.replace(found, text=vaguely)
        if named := variables.in_handlers(frame, value):
            if who := raising_handler():
                return Held("thread", f"{named}: {who} may raise an exception in the midst of the call")
            if outcome.doubt:
                return Held("variable", f"{named}: {outcome.doubt} may raise as it puts the result together")
            if not outcome.atomic:
                return Held("variable", f"{named}: the call may raise after it has donated")
            if goes_on := variables.going_on(frame):
                return Held("variable", f"{named}: `{goes_on}` goes on after the call, and may raise")
    if path and waits_for_c(frame):
        return Held("unknown", f"{holders.BY_C}, which holds the arguments until the call returns", remedy="call")
    if look.refusals:
        refusal = look.refusals[0]
        return Held("introspection", refusal, remedy="traceback" if refusal.startswith(FRAME_IS_HELD) else "local")
    if path and not referrers.are_known_of(path[-1]):
        return Held("unknown", "something that it would take long to look for, as so many leaves are held")
    return Held("unknown", f"{holders.BY_C}, or a suspended function", remedy="call")


def glance(call: Call, wanted: Sequence[int], outcome: Outcome) -> dict[int, Held]:
    """For each leaf of `wanted`, what holds it as far as the callers' variables and the code of the call show. Quick,
    unlike `reasons`, which looks at every object there is; what is not seen so is left out."""
    everywhere = holders.explain_interpreter()
    if everywhere is not None:
        return dict.fromkeys(wanted, everywhere)
    frame, leaves, roots = call.frame, call.leaves, [*call.args, *call.kwargs.values()]
    found: dict[int, Held] = {}
    insides = Insides()
    who = onlooker_in_program(outcome) or onlooker_anywhere() or variables.thread_that_may_read(frame)
    refusals = [who] if who else []
    paths = paths_to([leaves[i] for i in wanted], roots, ends(leaves))
    for i, path in zip(wanted, paths, strict=True):
        for value in path:
            held = (
                variables.in_variables(frame, value, insides)
                or variables.in_members(frame, value, roots)
                or variables.in_members_above(frame, value)
            )
            if held is not None and (told := variables.reworded(held, value, frame, refusals)) is not None:
                found[i] = told
                break
    return found


def where(frame: FrameType) -> str:
    """The call site as people write it: `train.py:57`."""
    return holders.place_in(frame, None)
