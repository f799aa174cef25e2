"""Which leaves a call may take over: by the `donate` option, by what the caller's code reads later, and by the proof.

One executable serves every call of a signature where it can. The first call decides from the caller's code what to
take over (`grads = grad_fn(params, batch)` reads `params` again, so nothing is written there). A later call that
finds such a leaf alive gives the program a private copy, which costs what not donating would have cost. Where that
happens again and again, one more executable is compiled, and never a third; one of the two takes over whatever can be.
(What callers `move` is another matter: each choice of it has an executable of its own.)
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import sys
import types
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from pytc import ownership, passes
from pytc.calls import asking
from pytc.calls.cache import Signature, Staged
from pytc.calls.outcome import outcome_of
from pytc.calls.sites import MOST_SITES, PATIENCE, Plan, Site
from pytc.calls.tracebacks import is_own
from pytc.donation import Policy
from pytc.effort import Choice, Effort, choose
from pytc.emit import Emitted, Retrace, emit_jit
from pytc.errors import DonationError, DonationWarning
from pytc.interrupt import has_room
from pytc.jax_compat.arrays import private_copies
from pytc.jax_compat.avals import short
from pytc.passes.candidates import Candidate
from pytc.passes.subjaxprs import count
from pytc.program import Leaf, Program

MOST_PLANS = 2
"""Executables that are compiled for a signature, besides those that it has inherited."""

TRIFLE = 1024
"""Bytes that are not worth compiling a program of `MANY_EQUATIONS` once more for."""
MANY_EQUATIONS = 100
"""A program of fewer equations is compiled once more even for a trifle: that takes as long as is lost in a few thousand
calls that cannot pass arguments whole (`emit.whole`), because one leaf of an argument is not taken over."""

MOST_EXPLAINED = 2
"""Leaves at a call site whose holders are looked for among all objects there are."""
MOST_GLANCED = 4
"""Leaves at a call site whose holders are looked for among the callers' variables and in their code, which is cheap."""

TOO_MANY = "so many arrays are alive that to look at each takes longer than to copy this"
"""Why leaves are kept where `ownership.is_dear`."""


@dataclasses.dataclass(frozen=True)
class Planner:
    """Chooses the plan of a call site, and proves at each call what the plan takes over."""

    policy: Policy
    pipeline: tuple[passes.Pass, ...]
    options: Mapping[str, Any]
    effort: Effort = "default"
    emit: Callable[..., Emitted] = emit_jit

    def look(
        self,
        signature: Signature,
        site: Site | None,
        frame: types.FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
    ) -> Site:
        """Decide, from what the caller's code does after the call, which plan this call site uses."""
        program = signature.program
        if site is None:
            site = signature.resumed(frame.f_code, frame.f_lasti)
            if site is not None and not site.to_be_looked_at() and (site.unseen or not site.plan.spared):
                return site
        survivors = ownership.Surviving(frozenset(), frozenset())
        # Where other processes run the same program, what is read later may differ between them, and the executables
        # must not: all take over what they can, and copy what they have to.
        if "auto" in self.policy.modes and jax.process_count() == 1:
            survivors = asking.survivors(frame, args, kwargs, leaves)
        never = self._never(program, leaves)
        lives_on = self._lives_on(program, survivors.expected if site is None else survivors.seen)
        if site is not None:
            # A second look is for leaves that the code lets go of after all, so it only ever adds to what is taken
            # over. That the code keeps another leaf at this very call (a snapshot of every hundredth step, say) tells
            # nothing of the next call; it is copied this once.
            lives_on &= site.plan.program.keep
        plan = self.plan(signature, never | lives_on, leaves, patient=site is None)
        if site is None:
            if len(signature.sites) >= MOST_SITES:
                signature.sites.clear()
            site = Site(frame.f_code, frame.f_lasti, ownership.where(frame), plan)
            site.unseen = lives_on - self._lives_on(program, survivors.seen)
            site = signature.sites.setdefault((id(site.code), site.lasti), site)
        elif plan is not site.plan:
            if site.unseen:
                # On trial: what held these leaves may be gone. If it is not, this very call goes back, with no copy.
                site.streak = PATIENCE - 1
            site.use(plan)
        copies = not lives_on.isdisjoint(plan.proven)
        if (plan.spared or copies) and (unknown := lives_on.difference(site.why)):
            largest = self._largest(program, unknown, MOST_GLANCED)
            found = asking.glance(frame, args, kwargs, leaves, largest)
            site.why = site.why | {i: why.text for i, why in found.items()}
        return site

    def prove(
        self,
        signature: Signature,
        site: Site,
        frame: types.FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
    ) -> tuple[Plan, Sequence[Any]]:
        """The plan for a call, and the leaves to run it with: of each leaf that the plan takes over and that is not
        proven dead, a private copy.

        `leaves` has PRNG keys as their bits. The plan is read from the site once, and proven and returned together with
        its leaves, since another thread may change the site's plan at any moment; so may this method. Raises
        `DonationError` naming each leaf that is not proven dead under `donate="require"`.
        """
        plan, program = site.plan, signature.program
        if site.collects:
            _collect()
        on_trial = plan.emitted.is_new and site.streak == PATIENCE - 1
        held, outcome = _held(plan, frame, args, kwargs, leaves, on_trial)
        if held and (site.streak == PATIENCE - 1 or self._required(program, held)) and _collect():
            # Perhaps only garbage in a cycle refers to them: `flax.nnx.state(model)` leaves such behind at each call.
            held, outcome = _held(plan, frame, args, kwargs, leaves, on_trial)
            site.collects = not held
        if not held:
            site.streak, site.unseen = 0, site.unseen & plan.program.keep
            return plan, leaves
        if required := self._required(program, held):
            why = asking.reasons(frame, args, kwargs, leaves, required, plan.outcome)
            raise _donation_error(program, required, why)
        site.streak += 1
        alive = held
        if site.has_lost_patience() and jax.process_count() == 1:
            # The caller's code lets go of these, but something else has held on to them each time. (Where there are
            # other processes, see `look`.)
            plan = self.plan(signature, plan.program.keep | frozenset(held), leaves, alone=len(signature.sites) == 1)
            site.use(plan)
            site.unseen |= plan.program.keep.intersection(held)
            held, outcome = _held(plan, frame, args, kwargs, leaves)
        first = plan.emitted.is_new
        if (first or not site.asked) and (unknown := [i for i in alive if i not in site.why]):
            site.asked = not first  # what holds leaves at the first call alone is mostly a name for the first state
            site.why = site.why | self._why(plan, not first, frame, args, kwargs, leaves, unknown)
            # Finding out has asked objects of all kinds, which may have kept something: prove the rest once more.
            held = {*held, *asking.alive(plan, outcome, frame, args, kwargs, leaves)}
        return plan, _with_copies(leaves, held)

    def plan(
        self,
        signature: Signature,
        keep: frozenset[int],
        leaves: Sequence[Any],
        *,
        alone: bool = False,
        patient: bool = False,
    ) -> Plan:
        """The plan that leaves `keep` alone: one that is there, a new one, or, when there are `MOST_PLANS` already, the
        one that copies least. `alone` says that no other call site asks for plans; `patient`, that nothing is to be
        compiled that takes over less than what is compiled already: the place may call but once.

        Raises `Retrace` where a new plan would have to be compiled in another context than the program was staged in,
        or for other leaves than those it was staged for (which the fast path may have let pass): what is compiled for
        these would not serve calls with those.
        """
        staged = signature.staged
        never = self._never(signature.program, leaves)
        program = self._paired(staged, keep)
        for plan in signature.plans:
            if _is_for(plan, program):
                return plan
        signature.forget_trials()
        if sum(not plan.inherited for plan in signature.plans) >= MOST_PLANS:
            return min(signature.plans, key=lambda plan: _regret(plan, program))
        if patient and (more := [plan for plan in signature.plans if set(program.donated).issubset(plan.could_donate)]):
            return min(more, key=lambda plan: _regret(plan, program))
        if signature.plans and not alone:
            # One of them takes over as much as can be, so that no caller that lets go of everything comes too late.
            everything = self._paired(staged, never)
            if not any(_takes_as_much(plan, everything) for plan in signature.plans):
                first, *_ = signature.plans
                if set(program.donated).issubset(first.could_donate):
                    return first
                program, keep = everything, never
        could_donate = program.donated
        emitted = staged.compiled.get(could_donate)
        if emitted is None:
            if not (staged.context.is_current() and signature.is_for(leaves)):
                raise Retrace
            emitted = staged.compiled[could_donate] = self.emitted(staged.program, program, leaves)
            emitted.context = staged.context
            self._warn_of_unusable(emitted.program)
        program = emitted.program
        plan = Plan(
            emitted,
            proven=self._proven(program),
            outcome=outcome_of(program, leaves),
            spared=keep != never and self._paired(staged, never).donated != could_donate,
            could_donate=could_donate,
        )
        signature.plans.append(plan)
        return plan

    def inherited(self, plans: Sequence[Plan], leaves: Sequence[Any]) -> list[Plan]:
        """Those of the plans of a program that also serve these leaves, some of which are `jax.Array`s where NumPy data
        or Python scalars were before, or the reverse: the plans that take over nothing but `jax.Array`s of these."""
        return [
            dataclasses.replace(
                plan,
                proven=ownership.Wanted(tuple(plan.proven), plan.proven.nbytes),
                outcome=outcome_of(plan.program, leaves),
                inherited=True,
            )
            for plan in plans
            if all(isinstance(leaves[i], jax.Array) for i in plan.program.donated)
        ]

    def promised(self, leaf: Leaf) -> bool:
        """Whether the caller has promised that this leaf is not read after a call."""
        return self._mode(leaf) in ("all", "warn")

    def plan_moved(self, signature: Signature, leaves: Sequence[Any], moved: frozenset[int]) -> Plan:
        """The plan that takes over exactly what the caller moved."""
        staged = signature.staged
        if moved not in staged.moved:
            if not (staged.context.is_current() and signature.is_for(leaves)):
                raise Retrace
            program = staged.program
            keep = {i if (same := leaf.same_as) is None else same for i, leaf in enumerate(program.leaves)}
            keep -= {i for i in moved if isinstance(leaves[i], jax.Array)}
            paired = self._paired(staged, frozenset(keep))
            emitted = self.emitted(program, paired, leaves)
            emitted.context = staged.context
            staged.moved[moved] = Plan(
                emitted, ownership.Wanted(()), outcome_of(program, leaves), spared=False, could_donate=paired.donated
            )
        return staged.moved[moved]

    def prepared(self, staged: Program) -> Program:
        """A staged program after the passes that every plan shares."""
        return passes.run(staged, (*passes.split(self.pipeline)[0], passes.snapshot))

    def paired(self, program: Program, keep: frozenset[int]) -> Program:
        """A prepared program with its outputs written over leaves that are not in `keep`."""
        return passes.run(dataclasses.replace(program, keep=keep), passes.split(self.pipeline)[1])

    def _paired(self, staged: Staged, keep: frozenset[int]) -> Program:
        """The same, made once."""
        known = staged.paired.get(keep)
        return known if known is not None else staged.paired.setdefault(keep, self.paired(staged.program, keep))

    def emitted(self, prepared: Program, paired: Program, leaves: Sequence[Any]) -> Emitted:
        """A paired program ready for calls; with the pairs that the compiler finds best, where that is asked for."""
        if self.effort == "default":
            return self.emit(paired, **self.options)
        return self.choose(prepared, paired, leaves).emitted

    def choose(
        self,
        prepared: Program,
        paired: Program,
        leaves: Sequence[Any],
        compiler_options: Mapping[str, Any] | None = None,
    ) -> Choice:
        """Of several ways to pair a prepared program, of which `paired` is the first, the one that the compiler finds
        best."""
        prepared = dataclasses.replace(prepared, keep=paired.keep)
        pairing = passes.split(self.pipeline)[1]
        if not pairing:  # the caller's own pipeline, in which nothing is written over anything
            return Choice(self.emit(paired, **self.options))
        later = pairing[1:]

        def replan(candidate: Candidate) -> Program:
            return passes.run(candidate.of(prepared, paired), later)

        return choose(paired, replan, leaves, self.options, compiler_options, self.emit)

    def promised_program(self, staged: Program) -> Program:
        """What the passes make of a staged program where only the caller's word counts: ahead of time."""
        program = self.prepared(staged)
        return self.paired(program, frozenset(i for i, leaf in enumerate(staged.leaves) if not self.promised(leaf)))

    def _why(
        self,
        plan: Plan,
        everywhere: bool,
        frame: types.FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
        held: Sequence[int],
    ) -> dict[int, str]:
        """For the largest of the leaves that are held, what holds them, in words; what is not seen is left out.
        `everywhere` says that it may take long."""
        few, more = (self._largest(plan.program, held, most) for most in (MOST_EXPLAINED, MOST_GLANCED))
        if ownership.is_dear(plan.proven):
            return dict.fromkeys(few, TOO_MANY)
        found = asking.glance(frame, args, kwargs, leaves, more)
        if everywhere:
            found |= asking.reasons(frame, args, kwargs, leaves, few, plan.outcome)
        return {i: holder.text for i, holder in found.items()}

    @staticmethod
    def _largest(program: Program, leaves: Collection[int], most: int) -> list[int]:
        """The largest of `leaves`, at most so many: those whose holders are worth finding out."""
        return sorted(leaves, key=lambda i: -program.leaves[i].nbytes)[:most]

    def _required(self, program: Program, held: Collection[int]) -> list[int]:
        """Those of the leaves that are alive and must not be, by `donate="require"`."""
        return [i for i in held if self._mode(program.leaves[i]) == "require"]

    def _mode(self, leaf: Leaf) -> str:
        return self.policy.of(leaf.parameter)

    def _proven(self, program: Program) -> ownership.Wanted:
        """The leaves that a call must prove dead."""
        proven = [i for i in program.donated if self._mode(program.leaves[i]) in ("auto", "require")]
        required = any(self._mode(program.leaves[i]) == "require" for i in proven)
        return ownership.Wanted(proven, None if required else sum(program.leaves[i].nbytes for i in proven))

    def _never(self, program: Program, values: Sequence[Any]) -> frozenset[int]:
        """The leaves that no output may be written over, whatever the caller does with them."""
        return frozenset(
            i if leaf.same_as is None else leaf.same_as
            for i, leaf in enumerate(program.leaves)
            if not isinstance(values[i], jax.Array) or self._mode(leaf) == "none"
        )

    def _lives_on(self, program: Program, read_later: frozenset[int]) -> frozenset[int]:
        """Those of `read_later` that are the caller's code's to decide on: whose mode is `"auto"`."""
        leaves = program.leaves
        return frozenset(
            i if (same := leaves[i].same_as) is None else same for i in read_later if self._mode(leaves[i]) == "auto"
        )

    def _warn_of_unusable(self, program: Program) -> None:
        """With `donate="warn"`: one warning that names each leaf that could not be reused, and why."""
        lines = [
            f"  {leaf.path}: {short(leaf.aval)}, {leaf.nbytes:,} bytes: {program.why_kept(i)}"
            for i, leaf in enumerate(program.leaves)
            if leaf.array and self._mode(leaf) == "warn" and i not in program.donated
        ]
        if lines:
            what = "1 donated leaf" if len(lines) == 1 else f"{len(lines)} donated leaves"
            text = f"{program.name}: {what} could not be reused:\n" + "\n".join(lines)
            warnings.warn(text, DonationWarning, stacklevel=_frames_to_the_caller())


def _is_for(plan: Plan, program: Program) -> bool:
    """Whether a plan serves for `program`: it takes over the same leaves, or all but a `TRIFLE` that was no `jax.Array`
    when the plan was made (a step counter that begins as a Python 0) and is not worth compiling again for."""
    if plan.could_donate == program.donated:
        return True
    donated = frozenset(plan.could_donate)
    missing = [i for i in program.donated if i not in donated]
    return (
        donated.issubset(program.donated)
        and not any(plan.program.leaves[i].array for i in missing)
        and sum(program.leaves[i].nbytes for i in missing) <= TRIFLE
        and count(program.jaxpr.jaxpr) >= MANY_EQUATIONS
    )


def _takes_as_much(plan: Plan, program: Program) -> bool:
    """Whether a plan takes over what `program` does, or as many bytes in other leaves: of an average of the weights and
    the weights, which come to one output, either."""
    leaves = program.leaves
    most = sum(leaves[i].nbytes for i in program.donated)
    return _is_for(plan, program) or sum(leaves[i].nbytes for i in plan.could_donate) >= most


def apart(leaves: Sequence[Any], program: Program) -> Sequence[Any]:
    """The leaves, with a copy of each donated one that is passed as another one, too: an array that is donated may be
    passed only once."""
    places = collections.Counter(id(leaves[i]) for i in program.passed)
    shared = [i for i in program.donated if places[id(leaves[i])] > 1]
    return _with_copies(leaves, shared) if shared else leaves


def _with_copies(leaves: Sequence[Any], of: Collection[int]) -> list[Any]:
    """The leaves, with copies in place of some."""
    given = list(leaves)
    for i, copy in zip(of, private_copies([leaves[i] for i in of]), strict=True):
        given[i] = copy
    return given


def _held(
    plan: Plan,
    frame: types.FrameType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
    on_trial: bool = False,
) -> tuple[Collection[int], ownership.Outcome]:
    """The leaves that the plan takes over and that are not proven dead, and the outcome that this holds for.

    A plan's first call compiles, and returns through Python code of JAX, which may have to keep leaves that a
    later call takes over. If there are such leaves, the plan is compiled now, and the proof made as for a later call.
    (Not if it is `on_trial` and will not be used, since that would not prove all.)
    """
    outcome = plan.outcome_now
    held = asking.alive(plan, outcome, frame, args, kwargs, leaves)
    if not held or outcome is plan.outcome:
        return held, outcome
    alive = asking.alive(plan, plan.outcome, frame, args, kwargs, leaves)
    ownership.resume_collections()
    if on_trial and alive:
        return alive, outcome
    if len(alive) == len(held) or not has_room():
        return held, outcome
    plan.emitted.compile(leaves)
    return asking.alive(plan, plan.outcome, frame, args, kwargs, leaves), plan.outcome


def _collect() -> bool:
    """Collect the garbage made lately, if the collector is on, and return whether it is."""
    ownership.resume_collections()
    if gc.isenabled():
        gc.collect(0)
        return True
    return False


def _regret(plan: Plan, wanted: Program) -> tuple[int, int]:
    """Bytes that the plan would copy where `wanted` keeps them, then bytes that it leaves unused."""
    takes, would_take = set(plan.program.donated), set(wanted.donated)
    copied = sum(wanted.leaves[i].nbytes for i in takes - would_take)
    unused = sum(wanted.leaves[i].nbytes for i in would_take - takes)
    return copied, unused


def _donation_error(program: Program, held: Collection[int], reasons: Mapping[int, ownership.Held]) -> DonationError:
    lines = [
        f"  {leaf.path}: {short(leaf.aval)}, {leaf.nbytes:,} bytes: {reasons[i].text if i in reasons else 'unknown'}"
        for i, leaf in ((i, program.leaves[i]) for i in held)
    ]
    what, they, them = ("1 leaf", "it is", "it") if len(lines) == 1 else (f"{len(lines)} leaves", "they are", "them")
    return DonationError(
        f"{program.name}: the memory of {what} could be reused, but {they} still in use:\n"
        + "\n".join(lines)
        + f'\nLet go of {them} before the call, or use donate="auto", which keeps {them}.'
    )


def _frames_to_the_caller() -> int:
    """The `stacklevel` at which a warning speaks of the code outside of pytc."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and is_own(frame):
        frame, level = frame.f_back, level + 1
    return level
