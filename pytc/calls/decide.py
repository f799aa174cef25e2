"""What a call gives to the program: which plan its place in the caller's code uses, and the proof of it at each call.

The first call from a place decides from the caller's code what to take over (`grads = grad_fn(params, batch)` reads
`params` again, so nothing is written there). A later call that finds such a leaf alive gives the program a private
copy, which costs what not donating would have cost. Where that happens again and again, the place gets a plan that
leaves the leaf alone (`plan`).
"""

from __future__ import annotations

import collections
import functools
import gc
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax

from pytc import ownership
from pytc.calls import asking
from pytc.calls.cache import Signature
from pytc.calls.outcome import outcome_of
from pytc.calls.plan import Plan
from pytc.calls.planner import Planner, are_arrays
from pytc.calls.sites import PATIENCE, Site
from pytc.errors import DonationError
from pytc.fold import fold
from pytc.interrupt import has_room, is_from_outside, put_off
from pytc.jax_compat import callbacks
from pytc.jax_compat.arrays import is_ready, private_copies
from pytc.jax_compat.avals import short
from pytc.program import Program

MOST_EXPLAINED = 2
"""Leaves at a call site whose holders are looked for among all objects there are."""
MOST_GLANCED = 4
"""Leaves at a call site whose holders are looked for among the callers' variables and in their code, which is cheap."""

_ROOM_TO_PUT_OFF = 20
"""More frames than it takes to have signals put off: with fewer, `ctypes` would make an error of its own of a full
stack."""

TOO_MANY = ownership.Held(
    "unknown", "so many arrays are alive that to look at each takes longer than to copy this", remedy="none"
)
"""Why leaves are kept where `ownership.is_dear`."""


def first_look(planner: Planner, signature: Signature, call: ownership.Call) -> Site:
    """Decide, from what the caller's code does after the call, which plan a new call site uses. If an earlier wrapper
    of the same function, which is gone, has left the site here, it keeps its plan, and is looked at again where that
    is due, or may gain something."""
    site = signature.resumed(call.frame)
    if site is not None:
        if site.to_be_looked_at() or (site.plan.spared and not site.unseen):
            look_again(planner, signature, site, call, asks=False)
        return site
    program = signature.program
    outcome = outcome_of(program, call.leaves, signature.staged.unflattening.doubt)
    survivors = _survivors(planner, call, outcome)
    lives_on = _lives_on(planner, program, survivors.expected)
    keep = planner.never(program, are_arrays(call.leaves)) | lives_on
    dear = _too_dear(planner, signature, keep)
    # Plans that another wrapper has left tell nothing of what the callers of this one keep.
    patient = bool(signature.sites) or not signature.is_handed_on
    plan = planner.plan(signature, keep | dear, call.leaves, patient=patient)
    site = Site.at(call.frame, plan)
    site.unseen = dear | lives_on - _lives_on(planner, program, survivors.seen)
    site.why = dict.fromkeys(dear, TOO_MANY)
    site = signature.add(site)
    site.lives_on = lives_on
    _note_holders(site, program, call, asks=False)
    return site


def _too_dear(planner: Planner, signature: Signature, keep: frozenset[int]) -> frozenset[int]:
    """The leaves that a plan which leaves `keep` alone would take over, if to prove that they are dead takes longer
    than to copy them, and those that it would then take over in their place: they are better spared than copied at
    each call. None where other processes, which may have other arrays, run the same program."""
    dear = frozenset[int]()
    if jax.process_count() == 1:
        while (wanted := planner.to_be_proven(signature, keep | dear)) and ownership.is_dear_now(wanted):
            dear |= frozenset(wanted)
    return dear


def look_again(planner: Planner, signature: Signature, site: Site, call: ownership.Call, *, asks: bool = True) -> None:
    """Find leaves that the code lets go of after all, so this only ever adds to what is taken over. `asks` says that
    it may take long to find what holds the others.

    That the code keeps another leaf at this very call (a snapshot of every hundredth step, say) tells nothing of the
    next call; it is copied this once. And where what the present plan takes over is held again, that is to be left
    alone first, if it goes on so: a plan that takes over more would be held up by it, too.
    """
    program = signature.program
    if 0 < site.streak < PATIENCE and _held_again(signature, site, call):
        return
    survivors = _survivors(planner, call, site.plan.outcome)
    lives_on = _lives_on(planner, program, survivors.seen) & site.plan.program.keep
    dead = _dead_after_all(signature, site, lives_on, call)
    lives_on -= dead
    keep = planner.never(program, are_arrays(call.leaves)) | lives_on
    dear = _too_dear(planner, signature, keep)
    plan = planner.plan(signature, keep | dear, call.leaves, alone=bool(dead) or len(signature.sites) == 1)
    if plan is not site.plan:
        if site.unseen:
            # On trial: what held these leaves may be gone. If it is not, this very call goes back, with no copy.
            site.streak = PATIENCE - 1
        site.plan = plan
    site.lives_on = lives_on
    site.why = {i: why for i, why in site.why.items() if why is not TOO_MANY or i in dear}
    _note_holders(site, program, call, asks=asks)


def _held_again(signature: Signature, site: Site, call: ownership.Call) -> bool:
    """Whether a leaf is held that the site's plan takes over. Not asked of keys, which are not yet their bits."""
    wanted = ownership.Wanted(sorted(set(site.plan.to_prove).difference(signature.keys)))
    held = asking.held(call, wanted, site.plan.outcome)
    ownership.resume_collections()
    return bool(held)


def _survivors(planner: Planner, call: ownership.Call, outcome: ownership.Outcome) -> ownership.Surviving:
    """The leaves that live on after the call, as far as the code shows.

    None where other processes run the same program: what is read later may differ between them, and the executables
    must not. All take over what they can, and copy what they have to.
    """
    if "auto" in planner.policy.modes and jax.process_count() == 1:
        return asking.survivors(call, outcome)
    return ownership.Surviving(frozenset(), frozenset())


def _note_holders(site: Site, program: Program, call: ownership.Call, *, asks: bool) -> None:
    """Note what holds the largest leaves that live on, as far as the code shows; if that shows nothing and `asks`, once
    also what all objects there are tell."""
    plan = site.plan
    copies = not site.lives_on.isdisjoint(plan.to_prove)
    if (plan.spared or copies) and (unknown := site.lives_on.difference(site.why)):
        largest = _largest(program, unknown, MOST_GLANCED)
        found = asking.glance(call, largest, plan.outcome)
        if asks and not (found or site.asked) and asking.has_time():
            site.asked = True
            found = asking.reasons(call, largest[:MOST_EXPLAINED], plan.outcome)
        site.why = site.why | found


def _dead_after_all(signature: Signature, site: Site, lives_on: frozenset[int], call: ownership.Call) -> frozenset[int]:
    """Those of the leaves that seem to live on that are proven dead, whatever the caller's code looked like.

    None where only some are and there are other sites: a plan for these alone would be the last one, and come between
    the others and one that takes over everything.
    """
    asked = lives_on.difference(signature.keys)  # the proof takes keys as their bits, which these are not yet
    if not asked:
        return frozenset()
    held = asking.held(call, ownership.Wanted(sorted(asked)), site.plan.outcome)
    ownership.resume_collections()
    return asked.difference(held) if not held or len(signature.sites) == 1 else frozenset()


def prove(planner: Planner, signature: Signature, site: Site, call: ownership.Call) -> tuple[Plan, Sequence[Any]]:
    """The plan for a call, and the leaves to run it with: of each leaf that the plan takes over and that is not
    proven dead, a private copy.

    The call has PRNG keys as their bits. The plan is read from the site once, and proven and returned together with
    its leaves, since another thread may change the site's plan at any moment; so may this function. Raises
    `DonationError` naming each leaf that is not proven dead under `donate="require"`.
    """
    plan, program = site.plan, signature.program
    if site.collects:
        _collect()
    on_trial = plan.emitted.is_new and site.streak == PATIENCE - 1
    held, outcome = _held(plan, call, on_trial)
    if held and (site.streak == PATIENCE - 1 or _required(planner, program, held)) and _collect():
        # Perhaps only garbage in a cycle refers to them: `flax.nnx.state(model)` leaves such behind at each call.
        held, outcome = _held(plan, call, on_trial)
        site.collects = not held
    if not held:
        site.streak, site.unseen = 0, site.unseen & plan.program.keep
        return plan, call.leaves
    if required := _required(planner, program, held):
        why = asking.reasons(call, required, plan.outcome)
        raise _donation_error(program, required, why)
    site.streak += 1
    at_first = held
    if site.has_lost_patience() and jax.process_count() == 1:
        # The caller's code lets go of these, but something else has held on to them each time. (Where there are
        # other processes, see `_survivors`.)
        never = planner.never(program, are_arrays(call.leaves))
        besides = _held_besides(planner, plan, never, call)
        if ownership.is_dear(plan.to_prove):
            site.why = _too_many(plan, call, held, besides.difference(site.lives_on, site.unseen)) | site.why
        keep = never | site.lives_on | site.unseen | frozenset(held) | besides
        plan = planner.plan(signature, keep, call.leaves, alone=len(signature.sites) == 1)
        site.plan = plan
        site.unseen |= plan.program.keep.intersection(held)
        held, outcome = _held(plan, call)
    first = plan.emitted.is_new
    if (first or not site.asked) and (unknown := [i for i in at_first if i not in site.why]):
        site.asked = not first  # what holds leaves at the first call alone is mostly a name for the first state
        site.why = site.why | _why(plan, not first, call, unknown)
        # Finding out has asked objects of all kinds, which may have kept something: prove the rest once more.
        held = {*held, *asking.held(call, plan.to_prove, outcome)}
    return plan, _with_copies(call.leaves, held, program)


def _held_besides(planner: Planner, plan: Plan, never: frozenset[int], call: ownership.Call) -> frozenset[int]:
    """Those of the leaves that a plan leaves alone that are held at this call, or too dear to be asked for: a plan that
    is to leave others alone would take over these in their place, and copy them."""
    others = planner.provable(plan.program) - never - set(plan.to_prove)
    held = asking.held(call, planner.wanted(plan.program, sorted(others)), plan.outcome) if others else ()
    ownership.resume_collections()
    return frozenset(held)


def _too_many(
    plan: Plan, call: ownership.Call, held: Collection[int], besides: Collection[int]
) -> dict[int, ownership.Held]:
    """Where `ownership.is_dear`: why the leaves that are held were not looked at, and the largest of those `besides`,
    unless the code shows what holds them anyway."""
    largest = _largest(plan.program, besides, MOST_GLANCED)
    return dict.fromkeys((*held, *largest), TOO_MANY) | asking.glance(call, largest, plan.outcome)


def _why(plan: Plan, everywhere: bool, call: ownership.Call, held: Sequence[int]) -> dict[int, ownership.Held]:
    """For the largest of the leaves that are held, what holds them; what is not seen is left out.
    `everywhere` says that it may take long."""
    few, more = (_largest(plan.program, held, most) for most in (MOST_EXPLAINED, MOST_GLANCED))
    if ownership.is_dear(plan.to_prove):
        return dict.fromkeys(held, TOO_MANY)
    outcome = plan.outcome_ahead if plan.emitted.is_new else plan.outcome
    found = asking.glance(call, more, outcome)
    if everywhere and asking.has_time():
        found |= asking.reasons(call, few, outcome)
    return found


def _largest(program: Program, leaves: Collection[int], most: int) -> list[int]:
    """The largest of `leaves`, at most so many: those whose holders are worth finding out."""
    return sorted(leaves, key=lambda i: -program.leaves[i].nbytes)[:most]


def _required(planner: Planner, program: Program, held: Collection[int]) -> list[int]:
    """Those of the leaves that are alive and must not be, by `donate="require"`."""
    return [i for i in held if planner.mode(program.leaves[i]) == "require"]


def _lives_on(planner: Planner, program: Program, read_later: frozenset[int]) -> frozenset[int]:
    """Those of `read_later` that are the caller's code's to decide on: whose mode is `"auto"`."""
    leaves = program.leaves
    return frozenset(
        i if (same := leaves[i].same_as) is None else same for i in read_later if planner.mode(leaves[i]) == "auto"
    )


def apart(leaves: Sequence[Any], program: Program) -> Sequence[Any]:
    """The leaves, with a copy of each donated one that is passed as another one, too: an array that is donated may be
    passed only once. (Where all its leaves are donated, that is at one of them.)"""
    if not program.donated:
        return leaves
    places, taken = (collections.Counter(id(leaves[i]) for i in which) for which in (program.passed, program.donated))
    itself = {address: i for i in program.donated if taken[address := id(leaves[i])] == places[address]}
    shared = [i for i in program.donated if places[id(leaves[i])] > 1 and itself.get(id(leaves[i])) != i]
    return _with_copies(leaves, shared, program) if shared else leaves


def _with_copies(leaves: Sequence[Any], of: Collection[int], program: Program) -> list[Any]:
    """The leaves, with copies in place of some.

    A CPU runs a small program at once where its arguments are there, so that the call raises what a callback raises
    (`equinox.error_if`). It should not come later for the copies, so they are waited for where their originals were
    there: not else, since the caller may have to do something for these first. Nor should it run later beside a program
    that calls Python: one that waits there for the result of this one may keep XLA from ever beginning it.

    A signal strikes after the copies: JAX makes them with Python code that its caches call, which make a `ValueError`
    of what is raised there.
    """
    given = list(leaves)
    originals = [leaves[i] for i in of]
    make = functools.partial(private_copies, originals)
    copies = put_off(make) if has_room(_ROOM_TO_PUT_OFF) else make()
    if (program.calls_python or callbacks.are_there()) and all(is_ready(array) for array in originals):
        for copy in copies:
            try:
                copy.block_until_ready()
            except RuntimeError as error:  # of the original's execution: raised to whoever reads what is made of it
                if program.calls_python or is_from_outside(error):
                    raise
    for i, copy in zip(of, copies, strict=True):
        given[i] = copy
    return given


def _held(plan: Plan, call: ownership.Call, on_trial: bool = False) -> tuple[Collection[int], ownership.Outcome]:
    """The leaves that the plan takes over and that are not proven dead, and the outcome that this holds for.

    A plan's first call compiles, and returns through Python code of JAX, which may have to keep leaves that a
    later call takes over. If there are such leaves, the plan is compiled now, and the proof made as for a later call.
    (Not if it is `on_trial` and will not be used, since that would not prove all.)
    """
    outcome = plan.outcome_now
    held = asking.held(call, plan.to_prove, outcome)
    if not held or outcome is plan.outcome:
        return held, outcome
    held_ahead = asking.held(call, plan.to_prove, plan.outcome_ahead)
    ownership.resume_collections()
    if on_trial and held_ahead:
        return held_ahead, outcome
    if len(held_ahead) == len(held) or not has_room():
        return held, outcome
    try:
        plan.emitted.compile(call.leaves)
        outcome = plan.outcome_ahead
    except (RuntimeError, ValueError, NotImplementedError) as error:  # the call, which compiles next, raises it
        if is_from_outside(error):
            raise
        # And says it as a call of `jax.jit` does, which `lower().compile()` says otherwise.
    return asking.held(call, plan.to_prove, outcome), outcome  # anew: a listener of JAX's may have started a thread


def _collect() -> bool:
    """Collect the garbage made lately, if the collector is on, and return whether it is."""
    ownership.resume_collections()
    if gc.isenabled():
        gc.collect(0)
        return True
    return False


_NOT_FOUND = "not proven dead, and nothing was found that holds it (pytc.move gives it away on your word)"


def _donation_error(program: Program, held: Collection[int], reasons: Mapping[int, ownership.Held]) -> DonationError:
    leaves = [(program.leaves[i], reasons[i].text if i in reasons else _NOT_FOUND) for i in held]
    lines = []
    for alike in fold(leaves, lambda each: (each[0].path,), lambda each: (short(each[0].aval), each[1])):
        (leaf, why), count = alike.members[0], alike.count
        what = f"{count} x {short(leaf.aval)}" if count > 1 else short(leaf.aval)
        lines.append(f"  {alike.texts[0]}: {what}, {count * leaf.nbytes:,} bytes: {why}")
    what, they, them = ("1 leaf", "it is", "it") if len(held) == 1 else (f"{len(held)} leaves", "they are", "them")
    return DonationError(
        f"{program.name}: the memory of {what} could be reused, but {they} still in use:\n"
        + "\n".join(lines)
        + f'\nLet go of {them} before the call, or use donate="auto", which keeps {them}.'
    )
