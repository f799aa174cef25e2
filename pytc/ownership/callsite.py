"""A call site: which of the caller's variables are dead once the call has begun, and which slots it overwrites.

Two questions about one place in one code object, answered once and looked up afterwards. The dead local variables
come from `liveness`. The slots (an attribute, an item, a global, a cell: places that other code can reach) are
those that the instructions right behind the call overwrite with its result: `self.state = step(self.state, b)`.
For a slot it is not enough that this function never reads it again, because others may; so only instructions that
run no Python code at all may stand between the call and the store, and the walk ends at the first that might.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytc.ownership.introspection import introspects
from pytc.ownership.liveness import Flow
from pytc.ownership.stack import iterators, starred_call
from pytc.ownership.symbolic import behind, cannot_raise


class Site:
    """What the bytecode tells of a call site, whatever the call. The code object itself is not kept alive."""

    def __init__(self, flow: Flow, lasti: int, names: Mapping[str, Any]):
        """`names` are the globals that the code sees."""
        code = flow.code
        self.of = flow.of
        self.at = flow.index(lasti)
        named = introspects(flow, names)
        self.refusal = f"{code.co_qualname} uses `{named}`, which can read any variable" if named else ""
        self._dead = [frozenset[int]() if self.refusal else flow.dead(self.at, calm) for calm in (0, 1, 2)]
        following = flow.instructions[self.at + 1] if self.at + 1 < len(flow.instructions) else None
        self.unpacks = following.arg if following is not None and following.opname == "UNPACK_SEQUENCE" else None
        """How many values the result is unpacked into, if it is right away."""
        self.events, self.returns, self.hands_on = behind(flow, self.at)
        """What happens right behind the call, whether the function then returns, and whether it returns the result."""
        self.drops = not self.hands_on and any(
            event.does == "store" and len(event.place) == 1 and event.place[0].kind in ("fast", "cell")
            for event in self.events
        )
        """Whether parts of the result may be left in variables, and die when the function returns."""
        self.passes_on = self.returns and cannot_raise(self.events)
        """Whether nothing happens behind the call but that the function returns, so that nothing can raise."""
        self.starred = starred_call(flow, self.at)
        """What is on the stack, if this is a starred call."""
        self.iterators = iterators(flow, self.at)
        """Where on the stack, counted from the first local, the iterators lie of the loops that the call is in."""
        self.is_read_by_handlers = len(set(self._dead)) > 1
        """Whether an exception handler reads locals that are otherwise dead: then these are dead only if a call that
        raises has donated nothing."""
        self.hint: Any = None
        """The `callers.Route` of the last careful look: the dead places, here and above, that mattered."""
        self.hinted_locals: tuple[int, ...] | None = None
        """The variables that `hint` names, if it names nothing but variables of this frame."""
        self.executions = 1
        """Among the results of how many of the latest executions its arguments are looked for."""

    def dead(self, atomic: bool, length: int | None) -> frozenset[int]:
        """The fast locals that are never read again, by number.

        `atomic` says that nothing is donated if the call raises: then the handler of the call itself does not count,
        nor that of the unpacking behind it if the result has the right `length`.
        """
        return self._dead[0 if not atomic else 2 if self.unpacks is not None and self.unpacks == length else 1]
