"""What was seen of the calls with one signature: which leaves were held, and what a call deletes of what is donated."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Sequence

from pytc import ownership
from pytc.explain.audit.seen import Seen, WatchedSignature
from pytc.explain.audit.traced import Traced
from pytc.program import Leaf

VAGUE = frozenset(["unknown", "introspection", "interpreter", "observer"])
"""Kinds of holders, besides onlookers, for which the proof gave up although nothing is known to hold the array. Then
donation is neither advised nor, if the script donates already, called wrong."""


@dataclasses.dataclass(frozen=True)
class Use:
    """All that was seen of calls with one signature."""

    signature: WatchedSignature
    traced: Traced
    held: frozenset[str]
    """Paths of the leaves that were not proven dead at some examined call."""
    mostly: frozenset[str]
    """Those of them that more than half of these calls found held."""
    known: frozenset[str]
    """Parameters with such a leaf whose holder is known; not of arrays that were deleted, and let go of unread."""
    _deleted_by: dict[frozenset[str], frozenset[int]] = dataclasses.field(default_factory=dict, compare=False)
    """The leaves that a call deletes, by what it donates."""

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays among the arguments."""
        return sum(self.signature.nbytes)

    @property
    def looked_at(self) -> frozenset[str]:
        """The arguments with an array, which the proof was asked about: not NumPy data and Python scalars."""
        return frozenset(self.signature.names[i][0] for i in self.signature.arrays)

    def harmed(self, donated: Collection[str]) -> frozenset[str]:
        """The arguments among `donated` of which a call would delete a leaf that was held."""
        return frozenset(
            leaf.parameter for leaf in self._deleted(donated) if leaf.path in self.held and leaf.parameter in donated
        )

    def used(self, donated: Collection[str]) -> frozenset[str]:
        """The arguments among `donated` into which JAX writes an output."""
        return frozenset(leaf.parameter for leaf in self._deleted(donated))

    def _deleted(self, donated: Collection[str]) -> list[Leaf]:
        key = frozenset(donated)
        if key not in self._deleted_by:
            self._deleted_by[key] = self.traced.as_jit.deleted(key) if key else frozenset()
        return [self.traced.as_jit.staged.leaves[i] for i in self._deleted_by[key]]

    def gain(self, names: Iterable[str]) -> int:
        """The bytes of the outputs that JAX would write into these arguments."""
        return self.traced.as_jit.gain(list(names))

    def promises(self, name: str) -> bool:
        """Whether the script donates this argument."""
        leaves = self.traced.as_jit.staged.leaves
        return any(leaves[i].parameter == name for i in self.traced.donated)

    def broken(self, donated: Collection[str], promised: Collection[str]) -> frozenset[str]:
        """The arguments among `donated` that should not be donated. Those that the script itself donates stay unless
        the holder of a leaf is known."""
        return frozenset(name for name in self.harmed(donated) if name in self.known or name not in promised)


def use_of(signature: WatchedSignature, traced: Traced) -> Use:
    """What was seen of the calls with a signature."""
    times: collections.Counter[str] = collections.Counter()
    for seen in signature.seen.values():
        times.update({signature.names[i][1]: count for i, count in seen.held.items()})
    mostly = frozenset(path for path, count in times.items() if 2 * count > calls_of(signature))
    known = frozenset(
        signature.names[i][0]
        for seen in signature.seen.values()
        for i, reason in seen.why.items()
        if not (is_vague(reason) or _is_never_found(seen, signature.names, i))
    )
    return Use(signature, traced, frozenset(times), mostly, known)


def _is_never_found(seen: Seen, names: Sequence[tuple[str, str]], leaf: int) -> bool:
    """Whether nobody has found a deleted array where this leaf's argument was donated though something held it: all
    were let go of, as by `new = step(state); log(new); state = new`."""
    seen.look_for_unread()
    mine = [i for i in seen.held if names[i][0] == names[leaf][0]]
    return all(seen.unread.get(i, 0) >= seen.held[i] for i in mine)


def calls_of(signature: WatchedSignature) -> int:
    """How many calls with this signature were examined."""
    return sum(seen.calls for seen in signature.seen.values())


def times_held(name: str, uses: Iterable[Use]) -> tuple[int, int]:
    """In how many of the examined calls something held a leaf of this argument, and of how many."""
    held = calls = 0
    for use in uses:
        mine = [i for i, (parameter, _) in enumerate(use.signature.names) if parameter == name]
        held += sum(max((seen.held.get(i, 0) for i in mine), default=0) for seen in use.signature.seen.values())
        calls += calls_of(use.signature) if mine else 0
    return held, calls


def is_vague(reason: ownership.Held) -> bool:
    """Whether the proof gave up although nothing is known to hold the array."""
    return reason.kind in VAGUE or bool(reason.onlooker)
