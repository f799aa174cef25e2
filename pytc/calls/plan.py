"""A plan: a program compiled with one choice of what it takes over, and what has to be proven for it."""

from __future__ import annotations

import dataclasses

from pytc import ownership
from pytc.emit import Emitted
from pytc.program import Program


@dataclasses.dataclass(eq=False)
class Plan:
    """A program compiled with one choice of what may be donated."""

    emitted: Emitted
    to_prove: ownership.Wanted
    """Those of the leaves that it takes over that must be proven dead at each call: the caller has not promised it."""
    outcome: ownership.Outcome
    """What the proof may assume of a call."""
    spared: bool
    """Whether it leaves leaves alone that the program could take over, because they seemed to outlive the call."""
    could_donate: tuple[int, ...]
    """Leaves that it would take over by the flow of the data: plans are compared by these. Those that it does take over
    are `program.donated`: with `effort="high"` the compiler may have found others better."""
    inherited: bool = False
    """Whether it was compiled for another signature, with other kinds of leaves (a counter that begins as 0)."""

    @property
    def outcome_now(self) -> ownership.Outcome:
        """`outcome` for the next call. The first call compiles, unless that was done ahead, and returns through Python
        code of `jax.jit`: so it counts as one that calls Python."""
        if not self.emitted.is_new:
            return self.outcome
        return ownership.Outcome(calls_python=True, lengths=self.outcome.lengths, atomic=False)

    @property
    def outcome_ahead(self) -> ownership.Outcome:
        """`outcome` for a first call that was compiled ahead, while no handler of a signal runs. Another thread may
        raise an exception in the Python code of JAX through which it returns."""
        atomic = self.outcome.atomic and not ownership.onlooking_thread()
        return dataclasses.replace(self.outcome, atomic=atomic)

    def anew(self) -> Plan:
        """The same for other leaves of the same types: what the proof has found out is of where these are."""
        return dataclasses.replace(self, to_prove=ownership.Wanted(tuple(self.to_prove), self.to_prove.nbytes))

    @property
    def program(self) -> Program:
        """The program with its aliases."""
        return self.emitted.program
