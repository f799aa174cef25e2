"""What a compiled function remembers of each layout: its signatures (`calls.function` says what these are,
`calls.sites` has their plans and call sites); and what several compiled functions share that are made of the same
function with the same options.

Lookups are plain dictionary reads and publications plain dictionary writes, each atomic in CPython, so they need no
lock. Only first calls wait for one another (`Shared.being_made`), except those of programs that call Python: two of
these at once compile twice, and one of the results is kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from pytc.calls.layout import UNPLACED, Describe, Described, describe
from pytc.calls.plan import Plan
from pytc.calls.sites import MOST_SITES, Site
from pytc.calls.unflattening import Unflattening, observed
from pytc.context import Context
from pytc.emit import Emitted
from pytc.jax_compat.avals import AbstractValue, of_each
from pytc.jax_compat.keys import is_key_type
from pytc.jax_compat.running import settings
from pytc.program import Program

MOST_HANDED_ON = 64
"""Call sites that are remembered of wrappers that are gone."""

MOST_ALIKE = 1024
"""Signatures that are kept for leaves of the same description: one for each of JAX's contexts (64-bit mode, meshes,
default devices, contexts of users' own)."""


@dataclasses.dataclass(eq=False)
class Staged:
    """A staged and prepared program, and all that has been made of it."""

    program: Program
    describe: Describe
    described: Described
    """`describe` of each leaf that it was staged for."""
    compiled: dict[tuple[int, ...], Emitted] = dataclasses.field(default_factory=dict)
    """Executables, by the leaves that the flow of the data would have them take over (`Plan.could_donate`)."""
    moved: dict[frozenset[int], Emitted] = dataclasses.field(default_factory=dict)
    """Executables for calls in which these leaves (indices) were passed by `pytc.move`."""
    paired: dict[frozenset[int], Program] = dataclasses.field(default_factory=dict)
    """The program with its aliases, by the leaves that are left alone."""
    context: Context = dataclasses.field(default_factory=Context)
    """That of the staging."""

    @functools.cached_property
    def unflattening(self) -> Unflattening:
        """What has been seen of the code that puts a result together."""
        return observed(self.program)


@dataclasses.dataclass(eq=False)
class Signature:
    """A staged program, and the plans of it that calls use."""

    staged: Staged
    plans: list[Plan] = dataclasses.field(default_factory=list)
    sites: dict[tuple[int, int], Site] = dataclasses.field(default_factory=dict)
    forgotten: int = 0
    """Call sites that are no longer known: there was no room for them, or their code has made room for other code."""
    forgotten_calls: int = 0
    """The calls that had run there by then."""
    before: dict[tuple[int, int], Site] = dataclasses.field(default_factory=dict)
    """The call sites of wrappers that are gone."""
    is_handed_on: bool = False
    """Whether it began with the plans of another wrapper, whose callers may keep other leaves."""
    owner: weakref.ref[Signatures] | None = None
    """The table of the wrapper that it belongs to, as long as there is one."""

    def __post_init__(self) -> None:
        self.program, self.described = self.staged.program, self.staged.described
        avals: list[AbstractValue] = [leaf.aval for leaf in self.program.leaves]
        keys = {i: avals[i].dtype for i, is_key in enumerate(of_each(is_key_type, avals)) if is_key}
        self.keys = tuple(keys)
        """Leaves (indices) that are PRNG keys."""
        self.key_dtypes = [*keys.values()]
        """The dtypes of these keys, which their bits do not tell."""
        self.passes_one_twice = any(leaf.elsewhere for leaf in self.program.leaves)
        """Whether an array at two leaves is passed twice."""

    def handed_on(self) -> Signature:
        """For a wrapper made anew: a signature of the same program with the same executables; if the wrapper that this
        one belonged to is gone, with all that its calls have shown."""
        plans = list(self.plans)
        if self.owner is None or self.owner() is not None:
            return Signature(self.staged, [plan.anew() for plan in plans], is_handed_on=True)
        before = {**self.before, **self.sites}
        return Signature(self.staged, plans, before=dict([*before.items()][-MOST_HANDED_ON:]), is_handed_on=True)

    def site(self, frame: types.FrameType) -> Site | None:
        """The call site where this frame is; None if none has called there."""
        site = self.sites.get((id(frame.f_code), frame.f_lasti))
        return site if site is not None and site.is_in(frame.f_code) else None

    def add(self, new: Site) -> Site:
        """Add a call site, and return it; or the one that another thread has added there meanwhile. One in code that is
        gone, whose id this code has now, is forgotten."""
        site = self.sites.setdefault(new.place, new)
        if site.of is not new.of:
            self._forget(site)
            site = self.sites.setdefault(new.place, new)
        return site

    def resumed(self, frame: types.FrameType) -> Site | None:
        """The call site where this frame is, as a wrapper that is gone left it; None if none has called there."""
        before = self.before.get((id(frame.f_code), frame.f_lasti))
        if before is None or not before.is_in(frame.f_code):
            return None
        site = self.add(before.resumed())
        if site.plan not in self.plans:
            self.plans.append(site.plan)
        return site

    def forget_sites(self) -> list[Site]:
        """Forget half of the call sites, those whose code is gone and then those that have called least, the oldest
        first, if there is no room for another one; return those forgotten."""
        if len(self.sites) < MOST_SITES:
            return []
        called = [site for site in list(self.sites.values()) if site.calls]  # or its first call is under way
        forgotten = sorted(called, key=lambda site: (site.of() is not None, site.calls))[: MOST_SITES // 2]
        for site in forgotten:
            self._forget(site)
        return forgotten

    def _forget(self, site: Site) -> None:
        """Forget a call site, and count what is forgotten."""
        if self.sites.pop(site.place, None) is site:
            self.forgotten += 1
            self.forgotten_calls += site.calls

    def forget_trials(self) -> None:
        """Drop the plans that were tried in vain: that were never run, and that no site uses."""
        used = {id(site.plan) for site in list(self.sites.values())}
        self.plans[:] = [each for each in self.plans if not each.emitted.is_new or each.inherited or id(each) in used]

    def is_for(self, leaves: Sequence[Any]) -> bool:
        """Whether it was staged for leaves like these, of which keys may be their bits."""
        pairs = enumerate(zip(self.described, leaves, strict=True))
        return all(i in self.keys or was == self.staged.describe(leaf) for i, (was, leaf) in pairs)


class _Alike(dict[Described, tuple[Signature, ...]]):
    """The signatures for leaves of each description, newest first."""

    def add(self, newest: Signature) -> None:
        """Put this first among those of its description."""
        before = self.get(newest.described, ())
        self[newest.described] = (newest, *(each for each in before if each is not newest))

    def oldest(self, new: Signature) -> tuple[Signature, ...]:
        """Those for which there is no room beside a new one of their description."""
        return self.get(new.described, ())[MOST_ALIKE - 1 :]

    def drop(self, dropped: Set[Signature]) -> None:
        """Forget these."""
        for described in {each.described for each in dropped}:
            if kept := tuple(each for each in self.get(described, ()) if each not in dropped):
                self[described] = kept
            else:
                self.pop(described, None)


@dataclasses.dataclass(eq=False)
class Shared:
    """What all compiled functions that are made of the same function have for one layout, static values and sharing."""

    describe: Describe
    _known: _Alike = dataclasses.field(init=False, default_factory=_Alike)
    """The newest signature of each staged program."""
    _replaced: set[Signature] = dataclasses.field(init=False, default_factory=set)
    """Those that the latest has replaced, with their call sites. They are dropped when room is made, before a call:
    what dies with them may run code, and none may run right after a call."""
    _being_made: dict[Described, contextlib.AbstractContextManager[Any]] = dataclasses.field(
        init=False, default_factory=dict
    )

    def describe_all(self, leaves: Sequence[Any]) -> Described:
        """`describe` of each leaf."""
        return tuple(self.describe(leaf) for leaf in leaves)

    def alike(self, described: Described) -> tuple[Signature, ...]:
        """A signature of every staged program for leaves like these, newest first."""
        return self._known.get(described, ())

    def being_made(self, described: Described) -> contextlib.AbstractContextManager[Any]:
        """The lock of the thread that stages and compiles for leaves like these, which others wait for. It is one of
        the interpreter's own, in C, of which no Ctrl-C can come between."""
        return self._being_made.setdefault(described, threading.RLock())

    def was_made(self, described: Described) -> None:
        """Forget that lock if nothing was published; so a thread that comes then may compile the same as one that has
        waited."""
        if described not in self._known:
            self._being_made.pop(described, None)

    def is_spent(self) -> bool:
        """Whether no call will use any of the staged programs any more."""
        known = [*itertools.chain.from_iterable(list(self._known.values()))]
        return bool(known) and all(each.staged.context.is_spent() for each in known)

    def make_room(self, signature: Signature) -> None:
        """As `Signatures.make_room`."""
        known = itertools.chain.from_iterable(list(self._known.values()))
        dropped = {*self._known.oldest(signature), *(each for each in known if each.staged.context.is_spent())}
        self._known.drop(dropped)
        self._replaced = set()
        for described in {each.described for each in dropped} - {signature.described, *self._known}:
            self._being_made.pop(described, None)

    def add(self, signature: Signature) -> None:
        """Publish a signature as the newest. Not one that calls Python: its callback may refer to the function, which
        this table would then keep alive for ever; and its calls may wait for one another."""
        if signature.staged.program.calls_python:
            return
        before = self._known.get(signature.described, ())
        replaced = {each for each in before if each.staged is signature.staged and each is not signature}
        self._replaced |= replaced
        self._known.drop(replaced)
        self._known.add(signature)


@dataclasses.dataclass(eq=False)
class Probe:
    """Some of the leaves, which tell all signatures of one layout, static values and sharing apart that are not for
    leaves of the same description."""

    leaves: tuple[int, ...] = ()
    by_place: bool = False
    """Whether some signatures differ in nothing but where leaves are: only then is that asked, which takes longer."""
    found: dict[Described, Signature] = dataclasses.field(default_factory=dict)
    """The newest signature, by what these leaves tell."""

    def add(self, signature: Signature, others: Sequence[Signature]) -> Probe:
        """This, or another one that asks one leaf more, with a signature that is newer than all others.

        It has to be told apart only from those that this finds in its place, and these are all of one description: so
        it is compared with one of them.
        """
        told = self.told(signature.described)
        found = self.found.get(told)
        if found is None or found.described == signature.described:
            self.found[told] = signature
            return self
        pairs = enumerate(zip(signature.described, found.described, strict=True))
        differ = [(a[:UNPLACED] == b[:UNPLACED], i) for i, (a, b) in pairs if a != b]
        only_placed, leaf = min(differ)
        probe = Probe(tuple(sorted({*self.leaves, leaf})), self.by_place or only_placed)
        return probe.refilled((signature, *others))

    def refilled(self, newest: Sequence[Signature]) -> Probe:
        """The same leaves, for these signatures, which it tells apart."""
        found = {self.told(each.described): each for each in reversed(newest)}
        return Probe(self.leaves, self.by_place, found)

    def told(self, described: Described) -> Described:
        """What is asked of leaves that are described like this."""
        return tuple(described[i] if self.by_place else described[i][:UNPLACED] for i in self.leaves)


@dataclasses.dataclass(eq=False)
class Signatures:
    """All signatures of one layout, static values and sharing.

    To describe every leaf at every call would take long. So only those leaves are described that some two signatures
    differ in (`Probe`), and `jax.jit` checks the others.
    """

    shared: Shared
    same_as: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """For each leaf that is one array with an earlier one, which: also where a program takes them for two."""
    is_apart: bool = False
    """Whether calls differ in which arrays are one (`layout.MOST_SHARINGS`): their program takes them all for several.
    """
    newest: tuple[Signature, ...] = ()
    _alike: _Alike = dataclasses.field(default_factory=_Alike)
    _probe: Probe = dataclasses.field(default_factory=Probe)
    _were_called: bool = False
    _differ_in_context: bool = False
    """Whether some signatures differ in nothing but JAX's settings when they were staged."""

    def note_call(self) -> bool:
        """Note a call, and return whether it is the first; not if a program is known already."""
        were_called, self._were_called = self._were_called, True
        return not (were_called or self.newest)

    def find(self, leaves: Sequence[Any]) -> Signature | None:
        """The signature for these leaves as far as the probed ones and JAX's settings tell; JAX checks the others."""
        probe = self._probe
        if not probe.leaves:
            found = self.newest[0] if self.newest else None
        else:
            tell = self.shared.describe if probe.by_place else describe
            found = probe.found.get(tuple(tell(leaves[i]) for i in probe.leaves))
        if found is None or not self._differ_in_context:
            return found
        # It is the newest of its description, and `jax.jit` takes milliseconds to refuse one of another context.
        return next(self._alike_now(found.described), None)

    def alike(self, described: Described) -> tuple[Signature, ...]:
        """Every signature for leaves like these that was staged with JAX set as it is now, newest first. (To refuse one
        that was not takes `jax.jit` a trace.)"""
        return tuple(self._alike_now(described))

    def _alike_now(self, described: Described) -> Iterator[Signature]:
        now = settings()
        return (each for each in self._alike.get(described, ()) if each.staged.context.settings == now)

    def make_room(self, signature: Signature) -> None:
        """Drop what no call will use any more, and the oldest of many like this new one: its context may be gone for
        good. (Before the new one is called rather than after: what goes with it may run code.)"""
        self.shared.make_room(signature)
        spent = (each for each in self.newest if each.staged.context.is_spent())
        if dropped := {*self._alike.oldest(signature), *spent}:
            self._alike.drop(dropped)
            self.newest = tuple(each for each in self.newest if each not in dropped)
            self._probe = self._probe.refilled(self.newest)

    def add(self, signature: Signature) -> None:
        """Publish a signature as the newest."""
        signature.owner = weakref.ref(self)
        self.shared.add(signature)
        others = tuple(each for each in self.newest if each is not signature)
        self._alike.add(signature)
        self._differ_in_context = self._differ_in_context or len(self._alike[signature.described]) > 1
        self.newest = (signature, *others)
        self._probe = self._probe.add(signature, others)
