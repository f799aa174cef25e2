"""Places in callers' code that use a plan: what the calls from there have shown so far."""

from __future__ import annotations

import dataclasses
import itertools
import types
import weakref
from collections.abc import Sequence

from pytc import ownership
from pytc.calls.plan import Plan

MOST_SITES = 1024
"""Call sites that a signature remembers; code made anew again and again (`exec`, notebook cells) makes new ones. Where
there are more, half of them are forgotten: those whose code is gone, then those that have called least."""

MOST_MISSES = 4
"""Misses, calls that should have gone straight to `jax.jit` and could not, after which a site stops trying."""
MANY_CALLS = 64
"""Calls after a miss for which it is remembered."""

PATIENCE = 4
"""Proofs in a row at one site that found leaves alive, after which the plan is changed, if it can be."""

LONGEST = 4096
"""Calls at most after which a site that spares leaves is looked at again."""


@dataclasses.dataclass(eq=False)
class Site:
    """One place in the caller's code that calls with one signature, and what its calls have shown.

    Three things are decided over its calls, independently. Which plan it uses (`decide` writes):

        (no site)         first call: `first_look` at the code          -> spared, or not spared
        either            `PATIENCE`, 8, 16, ... proofs in a row failed -> spared, with a plan that spares these leaves
        spared            `look_again` after 1, 3, 7, ... calls         -> either, with a plan that takes over no less;
                                                                           on trial, if some were spared `unseen`
        on trial          this call's proof fails                       -> spared, as before; nothing was copied
        on trial          it does not                                   -> either, with the new plan
        a new plan        to compile it raises, or is interrupted       -> as before, with the plan from before

    Whether its calls go straight to `jax.jit` (`ways.Ways` writes, and may have a way for the site):

        usual path        a warm call with nothing to copy: `went_well` -> ready
        ready             next call on the usual path: `learn`          -> straight; if that is not possible, a miss
        straight          `jax.jit` does it                             -> straight
        straight          not this time, though nothing had to be copied: a miss -> ready, with the old entry
        straight          `jax.jit` refuses the arguments: a miss       -> usual path, aside
        straight          the plan has changed                          -> usual path
        either            another signature's calls there `learn`, and are told apart -> straight
        either            they are not: a miss                          -> ready
        any of them       the `MOST_MISSES`-th miss, each less than `MANY_CALLS` calls after the last -> given up
        given up          usual path for good, from the next call there on

    A call that copies is no miss, nor one that looks again or learns. What `pytc.explain` tells (`decide` writes):

        (no site)         first call: `why` of leaves that are spared, as far as the code shows
        not asked         first call of a plan that copies leaves       -> not asked: their `why`, as far as it shows
        not asked         first warm call that copies leaves which are not in `why` -> asked: their `why` is added
        not asked         a second look, and nothing shows what holds the spared leaves -> asked: their `why` is added
    """

    of: weakref.ref[types.CodeType]
    """The code. What is known of code must not keep it alive, and its analysis with it: cells of notebooks are compiled
    anew each time that they are run."""
    place: tuple[int, int]
    """What tables know it by: the id of the code, and the instruction. The id may by now be that of other code, so
    whoever finds a site there asks whether it `is_in` the code that calls."""
    where: str
    """File and line, for people."""
    column: int | None
    """And the column, from 0 on; None where the interpreter was told not to keep it (`python -X no_debug_ranges`)."""
    plan: Plan
    """Spared or not: `plan.spared`."""
    earlier: int = 0
    """Calls that have run through wrappers that are gone."""
    calls: int = 0
    """Calls that have run, on either path."""
    copied_calls: int = 0
    """Those that had to copy a leaf."""
    copied_bytes: int = 0
    held: dict[int, int] = dataclasses.field(default_factory=dict)
    """By leaf (an index): how many calls found it alive although the plan takes it over."""
    why: dict[int, ownership.Held] = dataclasses.field(default_factory=dict)
    """By leaf (an index): what held it the first time."""
    asked: bool = False
    """Whether holders were looked for among all objects. That is slow, so it is done once."""
    lives_on: frozenset[int] = frozenset()
    """Leaves (indices) that seemed to live on when the code was last looked at. The plan may spare others, for the sake
    of another place."""
    unseen: frozenset[int] = frozenset()
    """Leaves (indices) that the plan spares although the caller's code does not read them again: something else was
    found to hold them at each call, or is expected to."""
    ran: Plan | None = None
    """The plan that the last call on the usual path has run. If `plan` is a new one and is not compiled, since a
    deadline comes meanwhile, say, the next call uses this one again."""
    changed: bool = False
    """Whether calls have run more than one plan. (One that was on trial in vain was not run.)"""
    collects: bool = False
    """Whether garbage is collected before each proof, because nothing but garbage was found to hold leaves."""
    streak: int = 0
    """Proofs in a row that found leaves alive. One that finds none, or a call that goes straight, sets it to 0."""
    goes_well: bool = False
    """Ready: the last call on the usual path had nothing to copy, so the next one there may `learn` the straight way.
    Implies `missed < MOST_MISSES`."""
    missed: int = 0
    """Misses so far, each less than `MANY_CALLS` calls after the one before. `MOST_MISSES`: given up."""
    missed_at: int = 0
    """`calls` at the last miss."""

    @classmethod
    def at(cls, frame: types.FrameType, plan: Plan) -> Site:
        """The place where this frame is, which has not called yet."""
        code, lasti = frame.f_code, frame.f_lasti
        positions = next(itertools.islice(code.co_positions(), lasti // 2, None), (None, None, None, None))
        return cls(weakref.ref(code), (id(code), lasti), ownership.where(frame), positions[2], plan)

    def is_in(self, code: types.CodeType) -> bool:
        """Whether this is a place in this code."""
        return self.of() is code

    def count(self, plan: Plan, copied: Sequence[int]) -> None:
        """Note a call that has run this plan, for which these leaves were copied."""
        self.changed = self.changed or (plan is not self.ran and self.calls > 0)
        self.ran = plan
        self.calls += 1
        self.copied_calls += bool(copied)
        for i in copied:
            self.copied_bytes += plan.program.leaves[i].nbytes
            self.held[i] = self.held.get(i, 0) + 1

    def to_be_looked_at(self) -> bool:
        """Whether to look at the caller's code again, since the plan spares leaves: after 1, 3, 7, 15, ... calls, and
        from `LONGEST` on after each so many. The site may be in a helper whose next caller does not read them; or what
        has held them may be gone: a profiler, a thread, a variable for the best state so far.

        One less than a power of two, because people save each 10th, 16th or 100th state: the call after that would
        find it held each time that it is the one that looks."""
        following = self.earlier + self.calls + 1
        return self.plan.spared and (following % LONGEST if following > LONGEST else following & (following - 1)) == 0

    def resumed(self) -> Site:
        """The same for a wrapper made anew: nothing is counted yet, and what was found out stays. But who has held what
        may be gone with a wrapper that was there for more than a call."""
        is_old = self.calls > 1
        return Site(
            self.of,
            self.place,
            self.where,
            self.column,
            self.plan,
            earlier=self.earlier + self.calls,
            why={} if is_old else self.why,
            asked=self.asked and not is_old,
            lives_on=self.lives_on,
            unseen=self.unseen,
            collects=self.collects,
            streak=self.streak,
            ran=self.ran,
        )

    def has_lost_patience(self) -> bool:
        """Whether to change the plan, since what it takes over was alive at the last 4, 8, 16, ... calls."""
        return self.streak >= PATIENCE and self.streak & (self.streak - 1) == 0

    def go_back(self) -> None:
        """Use the plan from before again, if the present one was to be compiled, and was not."""
        if self.ran is not None and self.plan.emitted.is_new:
            self.plan = self.ran

    def miss(self) -> None:
        """Note that this call could not go straight to `jax.jit`."""
        self.missed = self.missed + 1 if self.calls - self.missed_at < MANY_CALLS else 1
        self.missed_at = self.calls
