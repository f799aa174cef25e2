"""What was seen of the calls of a function: by signature and place, which leaves were held, and by what.

All of it is about the examined calls (`record`).
"""

from __future__ import annotations

import dataclasses
import types
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from jax.tree_util import PyTreeDef

from pytc import ownership
from pytc.classes import defines
from pytc.explain.audit.traced import Traced
from pytc.explain.places import Place
from pytc.ownership.bytecode.lengths import FITTING, Lengths, lengths_of
from pytc.ownership.others.watchers import onlooker_in_program


@dataclasses.dataclass(eq=False)
class Caller:
    """One place in the script that calls the function."""

    code: types.CodeType
    """Held, so that its id stays its own."""
    place: Place
    calls: int = 0


@dataclasses.dataclass(eq=False)
class Seen:
    """What was seen of the calls from one call site with one signature."""

    calls: int = 0
    """How many calls were examined."""
    held: dict[int, int] = dataclasses.field(default_factory=dict)
    """By leaf (an index): how many of these calls found it held."""
    why: dict[int, ownership.Held] = dataclasses.field(default_factory=dict)
    """For the largest of these leaves: what held it the first time."""
    deleted: list[tuple[int, weakref.ref[Any]]] = dataclasses.field(default_factory=list)
    """Of the held leaves those that the call deleted, as the script donates them, and that are still there."""
    unread: dict[int, int] = dataclasses.field(default_factory=dict)
    """By leaf: how many such arrays were let go of, so that nobody has found a deleted one."""

    def note(self, held: Iterable[int]) -> None:
        """Count a call that found these leaves held."""
        self.calls += 1
        self.note_too(held)

    def note_too(self, held: Iterable[int]) -> None:
        """Count that the call that was counted last found these leaves held, too."""
        for i in held:
            self.held[i] = self.held.get(i, 0) + 1

    def note_deleted(self, arrays: Iterable[tuple[int, weakref.ref[Any]]]) -> None:
        """Take note of arrays that were held, if the call has deleted them."""
        self.deleted += [(i, array) for i, array in arrays if _is_deleted(array)]
        self.look_for_unread()

    def look_for_unread(self) -> None:
        """Count those of the deleted arrays that were let go of by now."""
        still = []
        for i, array in self.deleted:
            if array() is None:
                self.unread[i] = self.unread.get(i, 0) + 1
            else:
                still.append((i, array))
        self.deleted = still


@dataclasses.dataclass(eq=False)
class WatchedSignature:
    """Calls with arguments of one structure, with the same shapes, dtypes and static values."""

    names: tuple[tuple[str, str], ...]
    """(parameter, path) of each leaf."""
    positional: tuple[str, ...]
    """The names of the positional arguments, in order."""
    arrays: ownership.Wanted
    """The leaves that are arrays on a device."""
    nbytes: tuple[int, ...]
    """Bytes of each leaf, over all devices; 0 for leaves that are not arrays on a device."""
    static: tuple[Any, ...]
    """The static parts of the first such call's arguments: the jitted function holds these objects, too."""
    traced: Traced | None = None
    lengths: Lengths = FITTING
    """How the result can be taken apart. Until it is known, as the script does."""
    classes: tuple[type, ...] = ()
    """The classes of the containers in it, when they are known."""
    returned: bool = False
    """Whether a call has returned."""
    seen: dict[Caller, Seen] = dataclasses.field(default_factory=dict)

    @property
    def by_name(self) -> frozenset[str]:
        """The names of the arguments with leaves that are passed by keyword."""
        return frozenset(parameter for parameter, _ in self.names) - frozenset(self.positional)

    def returns(self, tree: PyTreeDef) -> None:
        """Note that the result has this tree."""
        self.lengths, self.classes = lengths_of(tree), ownership.classes_of(tree)

    @property
    def outcome(self) -> ownership.Outcome:
        """What the proof may assume of a call. Like everybody who writes `donate_argnums`, it assumes that the program
        does not continue after a call that fails."""
        calls_python = self.traced is not None and self.traced.calls_python
        return ownership.Outcome(calls_python, self.lengths, not calls_python, self.classes, self.static)

    @property
    def outcome_at_worst(self) -> ownership.Outcome:
        """The same where nothing is known of the program."""
        return ownership.Outcome(static=self.static)


@dataclasses.dataclass
class Examined:
    """An examined call."""

    signature: WatchedSignature
    seen: Seen
    held: Sequence[tuple[int, weakref.ref[Any]]] = ()
    """The leaves that were held, with their arrays."""
    in_doubt: frozenset[int] = frozenset()
    """Leaves that are held unless the program is what it was taken for before it was known: one that calls no Python,
    and whose result can be taken apart as it is right after the call."""
    sites: Sequence[ownership.CallSite] = ()
    """Where that is done: the site of the call, and those of the functions that pass its result on."""

    def is_other_than_taken(self) -> ownership.Held | None:
        """What may read the leaves in doubt after all, now that the program is known."""
        signature, lengths = self.signature, self.signature.lengths
        if who := onlooker_in_program(signature.outcome):
            return ownership.Held("observer", who, onlooker=who)
        if any(defines(kind, "__del__") for kind in signature.classes):
            return _BY_THE_RESULT
        for site in self.sites:
            apart = (event.takes_apart(lengths) for event in site.events if event.does in ("unpack", "pick"))
            if not (site.fits(lengths) and all(apart)):
                return _BY_THE_RESULT
            lengths = site.returned(lengths)
        return None


def _is_deleted(array: weakref.ref[Any]) -> bool:
    """Whether a call has deleted the array, or it is gone."""
    alive = array()
    return alive is None or alive.is_deleted()


_BY_THE_RESULT = ownership.Held("unknown", "code of the result's own may run, or fail, before it is stored")
