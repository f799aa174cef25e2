"""Which leaves of a call are proven dead: a quick look where the call site is known, else a careful one (`look`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pytc.interrupt import is_from_outside
from pytc.jax_compat.clients import may_be_cut
from pytc.ownership.arrays import buffers, executions
from pytc.ownership.arrays.alive import is_dear
from pytc.ownership.arrays.walk import Walk
from pytc.ownership.arrays.wanted import Wanted
from pytc.ownership.bytecode.analysed import NotTrusted, known_site, site_of
from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.call import Call
from pytc.ownership.callers import follow, remember
from pytc.ownership.cpython import interpreter
from pytc.ownership.frames import frames_beneath
from pytc.ownership.look import look_everywhere
from pytc.ownership.outcome import Outcome
from pytc.ownership.references import counts
from pytc.ownership.slots import Slots


def held(call: Call, wanted: Wanted, outcome: Outcome) -> Collection[int]:
    """The leaves among `wanted` that are not proven dead once the call has begun; empty when all are.

    The counts rely on what the callers of this function hold (`Call`). A `Wanted` remembers shapes and dtypes, so
    `wanted` must not be used for leaves of others.

    The quick look follows the route that the last careful one has left at this site. If it does not prove everything,
    or there is none yet, the careful look decides, and leaves a new route.
    """
    if not wanted or interpreter.refusal or interpreter.observer() or is_dear(wanted):
        return wanted
    beneath = frames_beneath(call.frame)
    site = known_site(call.frame)
    if site is not None and site.hints:
        try:
            walk = wanted.walk  # a finaliser that runs before slots are counted may itself make a call, and change it
            places, slots = follow(call, site, len(beneath), outcome, walk)
            if _all_dead(call, places, slots, wanted, walk, site) and _stand(slots, places):
                return wanted if _is_taken(call, beneath) else ()
            del places, slots  # which has that list, too
        except (NotTrusted, LookupError) as error:
            if is_from_outside(error):
                raise
    look = look_everywhere(call, len(beneath) + 1, outcome)
    kept, route = look.held(wanted), look.route()
    del look  # which has the call, too
    if site is None:
        site = site_of(call.frame)
    remember(route, site, call.frame)
    _look_further(site, wanted.take(call.leaves))
    return wanted if _is_taken(call, beneath) else kept


def all_dead(call: Call, walk: Walk, site: CallSite, outcome: Outcome) -> bool:
    """Whether every array in the arguments that `walk` is about is proven dead once the call has begun, provided that
    these have the tree that `walk` was made for: `jax.jit` checks that before it donates. Where the answer is no,
    `held` looks more closely.

    Requires what `held` requires; the caller's frame must be three frames up, and `site` the `known_site` of it.
    """
    if not site.hints or interpreter.refusal or interpreter.observer():
        return False
    beneath = frames_beneath(call.frame)
    if len(beneath) != 3:
        return False
    try:
        places, slots = follow(call, site, 3, outcome, walk)
        ending = slots.dying.die_quietly if slots is not None else None
        inside = walk.all_inside(call.args, call.kwargs, places, site.executions, ending=ending)
        return (
            inside is not None
            and (not inside[1] or _on_their_own(*inside, walk))
            and _stand(slots, places)
            and not _is_taken(call, beneath)
        )
    except (NotTrusted, LookupError) as error:
        if is_from_outside(error):
            raise
        return False


def _is_taken(call: Call, beneath: list[int]) -> bool:
    """Whether somebody has a part of the call itself, which is there until it returns: the frame of one of pytc's own
    functions `beneath` the caller's, and with it that of the caller, by `f_back`; the tuple, the dictionary or the list
    of the arguments; or what has all of these.

    Users' code that ran beneath these functions (a `tree_flatten`, the `__hash__` of a static argument, a finaliser)
    can have taken one from the interpreter or the garbage collector. So this is asked last. Cost: 0.3 us.
    """
    if not interpreter.have_one_reference(beneath):  # the interpreter's
        return True
    # Each has `getrefcount`'s argument; the call, a variable of each of these functions and of this one; its parts, the
    # call, and the arguments also variables of the function that was called.
    count = interpreter.getrefcount
    return (
        count(call) > len(beneath) + 2
        or count(call.leaves) > 2
        or count(call.kwargs) > 3
        or (count(call.args) > 3 and call.args != ())  # there is but one empty tuple
    )


def _stand(slots: Slots | None, places: Sequence[Any]) -> bool:
    """Whether the objects of which fields count as dead places are still in nobody's hands."""
    return slots is None or slots.stands(places)


def _on_their_own(leaves: Sequence[Any], others: Sequence[Any], known: Wanted | Walk) -> bool:
    """Whether none of `others` is on a buffer of the leaves."""
    if not others:
        return True
    # Shapes and dtypes are the program's, but the shapes of the shards depend on the arrays of this call.
    placed = [leaf.sharding for leaf in leaves] if may_be_cut() else []
    kinds = known.kinds  # read once: another thread may replace it at any moment
    if kinds is None or kinds.placed != placed:
        known.kinds = kinds = buffers.Kinds.of(leaves, placed)
    return not buffers.shares_with_any(leaves, others, kinds)


def _look_further(site: CallSite, leaves: Sequence[Any]) -> None:
    """See to it that the next quick look from this site looks through as many executions as would have been enough for
    these leaves: between two steps of a training there may be as many as an evaluation takes."""
    site.executions = max(site.executions, executions.reaching(leaves))


def _all_dead(
    call: Call,
    places: list[Any],
    slots: Slots | None,
    wanted: Wanted,
    walk: Walk | None,
    site: CallSite,
) -> bool:
    """The quick look: whether the places account for every reference to the leaves, and these are known to be on
    buffers of their own; and, if there are slots among the places, whether no code runs when those arguments die that
    `walk` is about.

    In three steps, from the quickest on: by position (`walk`), by counting (`counts.remainder`) with the age of the
    buffers, and by counting with their addresses. Counting does not mind what else stands in the places, as it does in
    a recursion: with the walk alone, six times as many calls of one would need the careful look.
    """
    leaves: Sequence[Any] = call.leaves
    lists = 1
    if len(leaves) != len(wanted):
        leaves, lists = wanted.take(leaves), 2
    leads_there = walk is not None
    if walk is not None:
        ending = slots.dying.die_quietly if slots is not None else None
        try:
            inside = walk.all_inside(call.args, call.kwargs, places, site.executions, leaves, lists, ending)
        except LookupError as error:
            if is_from_outside(error):
                raise
            inside, leads_there = None, False
        if inside is not None:
            return _on_their_own(*inside, wanted)
        if slots is not None and not slots.dying.end_quietly(walk.arguments(call.args, call.kwargs)):
            return False
    if counts.weakly_referenced(leaves):
        return False
    unshared = executions.fresh(site.executions).arrays
    if not counts.remainder(call.args, call.kwargs, places, leaves, lists, unshared):
        # Proven by counting. Looking for the positions, for the next call, flattens the arguments once more, which may
        # run the code of users' own nodes, so afterwards the careful look decides.
        if wanted.seek(leaves, call):
            return False
        del unshared
        others = executions.fresh(site.executions).others
        # Until it was counted somebody may have made a weak reference of another one. Now nobody can, nor put another
        # array on the buffers.
        return not counts.weakly_referenced(leaves) and _on_their_own(leaves, others, wanted)
    del unshared
    if counts.remainder(call.args, call.kwargs, places, leaves, lists, list(leaves)):
        if not leads_there:
            wanted.seek(leaves, call)  # it may account for more the next time
        return False
    # Everything is accounted for, but not all of it came out of executions that are remembered.
    _look_further(site, leaves)
    return not counts.weakly_referenced(leaves) and buffers.alone(leaves)
