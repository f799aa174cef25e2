"""The plans that there are for a signature: programs compiled to take over these leaves or those.

One executable serves every call of a signature where it can. Where callers go on to hold leaves that it takes over, one
more is compiled, and never a third (`decide` says when); one of the two takes over every leaf that can be taken over.
Besides these, each set of leaves that callers `move` has an executable of its own.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from pytc import ownership, passes
from pytc.calls.cache import Signature, Staged
from pytc.calls.outcome import outcome_of
from pytc.calls.plan import Plan
from pytc.calls.tracebacks import frames_to_the_caller
from pytc.donation import Mode, Policy
from pytc.effort import Choice, Effort, choose
from pytc.emit import Emitted, Retrace, emit_jit
from pytc.errors import DonationWarning
from pytc.jax_compat.avals import nbytes, short
from pytc.passes.candidates import Candidate
from pytc.passes.subjaxprs import count
from pytc.program import Leaf, Program

MOST_PLANS = 2
"""Executables that are compiled for a signature, besides those that it has inherited."""

TRIFLE = 1024
"""Bytes that are not worth compiling a program of `MANY_EQUATIONS` once more for."""
MANY_EQUATIONS = 30
"""A program of fewer equations is compiled once more even for a trifle: that takes as long as is lost in ten thousand
calls that cannot pass arguments whole (`emit.whole`), because one leaf of an argument is not taken over."""


@dataclasses.dataclass(frozen=True)
class Planner:
    """Makes the plans of signatures, and chooses among them."""

    policy: Policy
    pipeline: tuple[passes.Pass, ...]
    options: Mapping[str, Any]
    effort: Effort = "default"
    emit: Callable[..., Emitted] = emit_jit

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
        compiled that takes over less than what other places use: this one may call but once.

        Raises `Retrace` where a new plan would have to be compiled in another context than the program was staged in,
        or for other leaves than those it was staged for (which the fast path may have let pass): what is compiled for
        these would not serve calls with those.
        """
        staged = signature.staged
        never = self.never(signature.program, are_arrays(leaves))
        program = self._paired(staged, keep)
        for plan in signature.plans:
            if _is_for(plan, program):
                return plan
        signature.forget_trials()
        own = [plan for plan in signature.plans if not plan.inherited]
        if len(own) >= MOST_PLANS:
            return min(signature.plans, key=lambda plan: _regret(plan, program))
        if patient and (more := [plan for plan in signature.plans if set(program.donated).issubset(plan.could_donate)]):
            return min(more, key=lambda plan: _regret(plan, program))
        if own and not alone:
            # One of them takes over as much as can be, so that no caller that lets go of everything comes too late.
            everything = self._paired(staged, never)
            if not _takes_as_much(program.donated, everything) and not any(
                _is_for(plan, everything) or _takes_as_much(plan.could_donate, everything) for plan in signature.plans
            ):
                first, *_ = signature.plans
                if set(program.donated).issubset(first.could_donate):
                    return first
                program, keep = everything, never
        could_donate = program.donated
        emitted = staged.compiled.get(could_donate)
        if emitted is None:
            if not (staged.context.is_current() and signature.is_for(leaves)):
                raise Retrace
            emitted = staged.compiled[could_donate] = self.emitted(staged, program, leaves)
            self._warn_of_unusable(emitted.program)
        program = emitted.program
        plan = Plan(
            emitted,
            to_prove=self._to_prove(program),
            outcome=outcome_of(program, leaves, staged.unflattening.doubt),
            spared=_may_spare(program, never) and self._paired(staged, never).donated != could_donate,
            could_donate=could_donate,
        )
        signature.plans.append(plan)
        return plan

    def inherited(self, plans: Sequence[Plan], leaves: Sequence[Any]) -> list[Plan]:
        """Those of the plans of a program that also serve these leaves, some of which are `jax.Array`s where NumPy data
        or Python scalars were before, or the reverse: the plans that take over nothing but `jax.Array`s of these."""
        return [
            dataclasses.replace(
                plan.anew(), outcome=outcome_of(plan.program, leaves, plan.outcome.doubt), inherited=True
            )
            for plan in plans
            if all(isinstance(leaves[i], jax.Array) for i in plan.program.donated)
        ]

    def promised(self, leaf: Leaf) -> bool:
        """Whether the caller has promised that this leaf is not read after a call."""
        return self.mode(leaf) in ("all", "warn")

    def emitted_moved(self, signature: Signature, leaves: Sequence[Any], moved: frozenset[int]) -> Emitted:
        """The program compiled to take over exactly what the caller moved."""
        staged = signature.staged
        if moved not in staged.moved:
            if not (staged.context.is_current() and signature.is_for(leaves)):
                raise Retrace
            same_as = [leaf.same_as for leaf in staged.program.leaves]
            keep = {i if same is None else same for i, same in enumerate(same_as)}
            keep -= {i for i in moved if isinstance(leaves[i], jax.Array)}
            staged.moved[moved] = self.emitted(staged, self._paired(staged, frozenset(keep)), leaves)
        return staged.moved[moved]

    def prepared(self, staged: Program) -> Program:
        """A staged program after the passes that every plan shares."""
        return passes.run(staged.untouchable, (*passes.split(self.pipeline)[0], passes.snapshot))

    def paired(self, program: Program, keep: frozenset[int]) -> Program:
        """A prepared program with its outputs written over leaves that are not in `keep`."""
        return passes.run(dataclasses.replace(program, keep=keep), passes.split(self.pipeline)[1])

    def _paired(self, staged: Staged, keep: frozenset[int]) -> Program:
        """The same, made once."""
        known = staged.paired.get(keep)
        return known if known is not None else staged.paired.setdefault(keep, self.paired(staged.program, keep))

    def emitted(self, staged: Staged, paired: Program, leaves: Sequence[Any]) -> Emitted:
        """A paired program ready for calls; with the pairs that the compiler finds best, where that is asked for."""
        if self.effort == "default":
            emitted = self.emit(paired, **self.options)
        else:
            emitted = self.choose(staged.program, paired, leaves).emitted
        emitted.context = staged.context
        emitted.certain, emitted.depth = not staged.unflattening.doubt, staged.unflattening.depth
        return emitted

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

        # What the passes after `alias` do, no hash tells.
        return choose(paired, replan, leaves, self.options, compiler_options, self.emit, remember=not later)

    def promised_program(self, staged: Program) -> Program:
        """What the passes make of a staged program where only the caller's word counts: ahead of time."""
        program = self.prepared(staged)
        return self.paired(program, frozenset(i for i, leaf in enumerate(staged.leaves) if not self.promised(leaf)))

    def mode(self, leaf: Leaf) -> Mode:
        """What `donate=` says of a leaf. Where nothing can be proven, on some other interpreter, "auto" is "none": what
        takes a leaf over would copy it at each call."""
        mode = self.policy.of(leaf.parameter)
        return "none" if mode == "auto" and ownership.refusal else mode

    def to_be_proven(self, signature: Signature, keep: frozenset[int]) -> ownership.Wanted:
        """The leaves that a call must prove dead if nothing but `keep` is left alone; none if that is compiled already,
        which is done."""
        program = self._paired(signature.staged, keep)
        done = any(_is_for(plan, program) and not plan.emitted.is_new for plan in signature.plans)
        return ownership.Wanted(()) if done else self._to_prove(program)

    def _to_prove(self, program: Program) -> ownership.Wanted:
        """The leaves that a call must prove dead."""
        provable = self.provable(program)
        return self.wanted(program, [i for i in program.donated if i in provable])

    def wanted(self, program: Program, leaves: Sequence[int]) -> ownership.Wanted:
        """These leaves, in rising order, and what the proof that they are dead may cost."""
        required = any(self.mode(program.leaves[i]) == "require" for i in leaves)
        return ownership.Wanted(leaves, None if required else sum(program.leaves[i].nbytes for i in leaves))

    def provable(self, program: Program) -> frozenset[int]:
        """The leaves that are taken over only where they are proven dead: nobody has promised it."""
        leaves = enumerate(program.leaves)
        return frozenset(i for i, leaf in leaves if leaf.same_as is None and self.mode(leaf) in ("auto", "require"))

    def never(self, program: Program, arrays: Iterable[bool]) -> frozenset[int]:
        """The leaves that no output may be written over, whatever the caller does with them. `arrays` says of each leaf
        whether it is a `jax.Array`."""
        return frozenset(
            i if leaf.same_as is None else leaf.same_as
            for i, (leaf, is_array) in enumerate(zip(program.leaves, arrays, strict=True))
            if not is_array or self.mode(leaf) == "none"
        )

    def at_best(self, staged: Staged) -> frozenset[int]:
        """The leaves that would be taken over if the caller let go of everything."""
        program = staged.program
        return frozenset(self._paired(staged, self.never(program, (leaf.array for leaf in program.leaves))).donated)

    def _warn_of_unusable(self, program: Program) -> None:
        """With `donate="warn"`: one warning that names each leaf that could not be reused, and why."""
        lines = [
            f"  {leaf.path}: {short(leaf.aval)}, {leaf.nbytes:,} bytes: {program.why_kept(i)}"
            for i, leaf in enumerate(program.leaves)
            if leaf.array and self.mode(leaf) == "warn" and i not in program.donated
        ]
        if lines:
            what = "1 donated leaf" if len(lines) == 1 else f"{len(lines)} donated leaves"
            text = f"{program.name}: {what} could not be reused:\n" + "\n".join(lines)
            warnings.warn(text, DonationWarning, stacklevel=frames_to_the_caller())


def are_arrays(values: Iterable[Any]) -> list[bool]:
    """Which of them are a `jax.Array`."""
    return [isinstance(value, jax.Array) for value in values]


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


def _may_spare(program: Program, never: frozenset[int]) -> bool:
    """Whether a leaf that `program` leaves alone, and not `never`, has the size of a result that has no place of its
    own yet, or one that costs a copy. If none has, to take over others would save nothing, and the passes need not be
    asked again."""
    placed = {pair.output for pair in program.aliases if not pair.copied}
    sizes = {nbytes(aval) for k, aval in enumerate(program.out_avals) if k not in placed}
    return any(program.leaves[i].nbytes in sizes for i in program.keep - never)


def _takes_as_much(donated: Iterable[int], program: Program) -> bool:
    """Whether these leaves are as many bytes as those that `program` takes over, be they others: of an average of the
    weights and the weights, which come to one output, either."""
    leaves = program.leaves
    return sum(leaves[i].nbytes for i in donated) >= sum(leaves[i].nbytes for i in program.donated)


def _regret(plan: Plan, wanted: Program) -> tuple[int, int]:
    """Bytes that the plan would copy where `wanted` keeps them, then bytes that it leaves unused."""
    takes, would_take = set(plan.program.donated), set(wanted.donated)
    copied = sum(wanted.leaves[i].nbytes for i in takes - would_take)
    unused = sum(wanted.leaves[i].nbytes for i in would_take - takes)
    return copied, unused
