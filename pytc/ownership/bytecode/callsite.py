"""A call site: which of the caller's variables are dead once the call has begun, and which slots it overwrites.

Both follow from the bytecode and are computed once for each call site. `liveness` finds the dead local variables. The
slots (attributes, items, globals, cells: places that other code can reach) are those that the instructions right after
the call overwrite with its result: `self.state = step(self.state, b)`. That this function never reads a slot again is
not enough, because others may; so only instructions that run no Python code may stand between the call and the store.
`continuation` stops at the first that might.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytc.ownership.bytecode.continuation import cannot_raise, continuation, taken_apart
from pytc.ownership.bytecode.events import RESULT, Built, Part, Step
from pytc.ownership.bytecode.fields import members_read
from pytc.ownership.bytecode.introspection import introspects
from pytc.ownership.bytecode.lengths import Lengths
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.managers import entered, passing
from pytc.ownership.bytecode.stack import iterators, starred_call
from pytc.set_bits import set_bits


class CallSite:
    """What the bytecode tells of a call site, and where the last careful looks have found the arguments.

    One of these serves all compiled functions that are called there (`calls.sites.Site` has the plan of each), and each
    frame on the stack above a call has one for the instruction that it is at. The code object is not kept alive;
    `analysed` forgets a site with its code.

    `__init__` settles everything but six attributes, which `callers.remember` and `proof` write:

        not yet proven    `hints` is empty: the quick look is skipped
                          a careful look (`look.look_everywhere`), whatever it proves -> hinted
        hinted            the quick look follows one of `hints` (`callers.follow`)
                          it proves everything                                        -> hinted
                          it does not: a careful look                                 -> hinted, with another hint

    `executions` grows with a careful look, and with a quick one that has to compare all addresses, to what would have
    been enough there.
    """

    def __init__(self, flow: ControlFlow, lasti: int, names: Mapping[str, Any], builtins: Mapping[str, Any]):
        """`names` are the globals that the code sees, and `builtins` what it finds where there is none."""
        code = flow.code
        self.of = flow.of
        """A weak reference to the code object."""
        self.at = flow.index(lasti)
        """The number of the instruction."""
        named = introspects(flow, names, builtins)
        self.refusal = f"{code.co_qualname} uses {_spoken(named)}, which can read any variable" if named else ""
        """Why no variable of the frame counts as dead unless it is overwritten at once; empty if there is no reason."""
        self.taken_apart, last = taken_apart(flow, self.at)
        """How the result is taken apart right after the call."""
        self.calm = 1 + last - self.at
        """So many instructions, from the call on, are known not to raise if the call has donated nothing where it does,
        and the result can be taken apart."""
        self._calm = 0, 1, self.calm
        self.entered = () if self.refusal else entered(flow, self.at)
        """The `with` statements around the call, the innermost first."""
        self.events, self.returns, self._returned = continuation(flow, self.at)
        """What happens right after the call; whether the function then returns; what of the result it returns."""
        stores = [event.place for event in self.events if event.does == "store" and len(event.place) == 1]
        flows = [passing(flow, self.entered[:number]) for number in range(len(self.entered) + 1)]
        self._dead = [
            [frozenset[int]() if self.refusal else each.dead(self.at, calm) for calm in self._calm] for each in flows
        ]
        """Dead locals if all exception handlers count; if that of the call does not; if those of what takes the result
        apart after it do not, either. And each of these by the number of `with` statements that exceptions pass."""
        self.cells = frozenset(set_bits(flow.cells))
        """Those locals that are in cells: dead only where the frame alone refers to the cell."""
        self.evaluated = flow.evaluated(self.at)
        """Locals that the function which is called may read through strings, as long as it runs."""
        self.names = frozenset(name for event in self.events for name in event.names())
        """The names that are read then, or stored to."""
        self.drops = self._returned != RESULT and any(place[0].kind in ("fast", "cell") for place in stores)
        """Whether parts of the result may be left in variables, and die when the function returns."""
        self.may_pass_on = self.returns and cannot_raise(self.events)
        """Whether it returns after the call, and nothing before that can raise but what takes the result apart."""
        self.starred = starred_call(flow, self.at)
        """Where the stack has what a starred call passes; None if this is no such call."""
        self.iterators = iterators(flow, self.at)
        """The positions on the stack, counted from the first local, of the iterators of the loops around the call."""
        self.is_read_by_handlers = len({dead for each in self._dead for dead in each}) > 1
        """Whether an exception handler reads locals that are otherwise dead: these are dead only if a call that raises
        has donated nothing."""
        self.hints: dict[Any, Any] = {}
        """The `callers.Route`s of careful looks: the dead places, here and above, that held arguments. By where the
        frames above were: a helper may be called from several lines, with other variables in each."""
        self.latest: Any = ()
        """The latest of the hints, for callers that have none."""
        self.above = 0
        """How many frames above tell these apart."""
        self.hinted_locals: tuple[int, ...] | None = None
        """The short form of the only hint, where it names only variables of this frame, which no exception handler
        reads: their numbers. Else None."""
        self.hints_cells = False
        """Whether some of these are in cells."""
        self._members: dict[tuple[int, int], frozenset[Step] | None] = {}
        """What `members_read` has found, by local and calm."""
        self.executions = 1
        """The quick look expects the arguments among the results of so many of the latest executions."""

    def dead(self, atomic: bool, fits: bool, passing: int = 0) -> frozenset[int]:
        """The locals that are never read again by this function, by number.

        `atomic` says that nothing is donated if the call raises: then the handler of the call itself does not count,
        nor do those of what takes the result apart after it, if the result `fits` that. So many of the `with`
        statements around the call, from the innermost on, have managers now that let exceptions go on, `passing` them.
        """
        return self._dead[passing][0 if not atomic else 2 if fits else 1]

    def members_read(self, flow: ControlFlow, local: int, atomic: bool, fits: bool) -> frozenset[Step] | None:
        """The members of what the local of this number has that may be read again; None if it may be read as a whole.
        `flow` is that of the code."""
        key = local, self._calm[0 if not atomic else 2 if fits else 1]
        if key not in self._members:
            self._members[key] = None if self.refusal else members_read(flow, self.at, *key)
        return self._members[key]

    def returned(self, lengths: Lengths) -> Lengths:
        """Those of what the function returns right after the call, if these are those of the call's result."""
        return self._returned.lengths(lengths) if isinstance(self._returned, Part | Built) else None

    def passes_on(self, lengths: Lengths) -> bool:
        """Whether the function returns after the call, and nothing before that can raise, if these are the lengths of
        the call's result."""
        return self.may_pass_on and all(
            event.takes_apart(lengths) for event in self.events if event.does in ("unpack", "pick")
        )

    def fits(self, lengths: Lengths) -> bool:
        """Whether a result of these lengths can be taken apart as is done right after the call."""
        for event in self.taken_apart:  # noqa: SIM110 - a generator costs more
            if not event.takes_apart(lengths):
                return False
        return True


def _spoken(named: str) -> str:
    """What can read any variable, in words. (pytest's own name is in no source.)"""
    return "an `assert` that pytest has rewritten" if named.startswith("@py") else f"`{named}`"
