"""Which calls go straight to `jax.jit` (`direct`): those from the places in callers' code where that has gone well.

Calls of several signatures may take turns at one place: a server's batches of several lengths, a last batch that is
shorter, a function called in one of JAX's contexts and in another. Where two that are known there differ in something
that is told quickly, that is asked of each call, and the one that it is for is tried. What is told is only where to
look: `jax.jit` checks all leaves.
"""

from __future__ import annotations

import dataclasses
import itertools
import types
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pytc import ownership
from pytc.arguments.leaves import PythonScalars, static_key, unwrapped
from pytc.calls.cache import Signature
from pytc.calls.direct import CONTAINERS, Direct, Path
from pytc.calls.layout import UNPLACED, describe
from pytc.calls.sites import MOST_MISSES, MOST_SITES, Site
from pytc.classes import ids_of
from pytc.interrupt import is_from_outside
from pytc.jax_compat.running import settings

MOST_TURNS = 64
"""Signatures of which calls from one place go straight; those of others take the usual path."""
MOST_QUESTIONS = 8
"""What is asked of a call to find its way, at most: each question takes about a microsecond."""

_STATIC = ids_of(type(None), bool, int, float, complex, str, bytes)
"""Classes of static values that compare themselves in C."""


class Ways(dict[tuple[int, int], "Turns"]):
    """The direct ways of all call sites of a compiled function that have one, by code (id) and instruction."""

    def __init__(self, share: bool, python_scalars: PythonScalars) -> None:
        """Those of a function that was compiled with these options."""
        super().__init__()
        self._share = share
        self._python_scalars = python_scalars

    def find(self, call: ownership.Call) -> Direct | None:
        """The way that a call may go, as far as is told quickly."""
        code = call.frame.f_code
        turns = self.get((id(code), call.frame.f_lasti))
        if turns is None or turns.of() is not code:  # the latter: it is that of code which is gone and had this id
            return None
        return turns.only or turns.find(call.args, call.kwargs)

    def make_room(self, signature: Signature) -> None:
        """Forget all places where there are too many; and the sites that the signature of the next call forgets, since
        their calls would not be counted. Done before the call of a new site, rather than after one: what dies with a
        site may run code, and none may run between a call and the store of its result."""
        if len(self) >= MOST_SITES:
            self.clear()
        for site in signature.forget_sites():
            self._forget(site)

    def learn(self, signature: Signature, site: Site, call: ownership.Call) -> bool:
        """Let the calls after this one go straight if those before it have gone well, and return whether these have. If
        calls cannot go straight, that is a miss; those of a site that has been given up never will again.

        Called before this call, though it is the last one that has shown this: looking at the arguments may run code,
        as may what is forgotten, and none may run between a call and the store of its result.
        """
        if not site.goes_well:
            if site.missed >= MOST_MISSES:
                self._forget(site)
            return False
        site.goes_well = False
        leaves = signature.program.leaves
        # `jax.jit` does not tell a Python scalar from an array of a weak type.
        tells = self._python_scalars != "static" or not any(getattr(leaf.aval, "weak_type", False) for leaf in leaves)
        known = self._of(site)
        has_room = known is None or known.has_room(site)
        direct = Direct.of(signature, site, call, self._share) if tells and has_room else None
        if direct is None:
            site.miss()
            return True
        self[site.place] = Turns.of_all([*(known or ()), direct], () if known is None else known.questions)
        return True

    def went_well(self, site: Site, could_not_go_straight: bool) -> None:
        """Note that a call that took the usual path had nothing to copy, so that those after it may go straight. If it
        could have gone straight, that is a miss."""
        known = self._of(site)
        direct = None if known is None else known.of_site(site)
        if direct is not None and direct.plan is site.plan:
            if could_not_go_straight:
                return
            site.miss()  # it should have gone straight: something stands elsewhere than it did
        site.goes_well = site.missed < MOST_MISSES

    def stay_away(self, direct: Direct) -> None:
        """Let the calls of a site take the usual path again. It is set aside: calls of another signature may have come
        from its place, from which it is then told apart."""
        direct.site.miss()
        if (known := self._of(direct.site)) is not None:
            self[direct.site.place] = known.without(direct.site, aside=(direct,))

    def _of(self, site: Site) -> Turns | None:
        """What is known of a site's place, and not of one in code that had its id."""
        known = self.get(site.place)
        return known if known is not None and known.of is site.of else None

    def _forget(self, site: Site) -> None:
        known = self._of(site)
        if known is not None and any(way.site is site for way in known):
            self[site.place] = rest = known.without(site)
            if not [*rest]:
                self.pop(site.place, None)


@dataclasses.dataclass(frozen=True, eq=False)
class Turns:
    """The direct ways from one place, by what is told of the calls that they are for.

    Another thread may read it at any moment, so it is replaced rather than changed.
    """

    of: weakref.ref[types.CodeType]
    """The code that the place is in."""
    ways: Mapping[tuple[Hashable, ...], Direct]
    """By the answers to the `questions`."""
    questions: tuple[Question, ...] = ()
    aside: tuple[Direct, ...] = ()
    """Ways that `jax.jit` has refused a call on."""
    only: Direct | None = dataclasses.field(init=False, default=None)
    """The only one, where nothing is asked."""

    def __post_init__(self) -> None:
        if not self.questions:
            object.__setattr__(self, "only", next(iter(self.ways.values()), None))

    @classmethod
    def of_all(cls, ways: Sequence[Direct], questions: tuple[Question, ...]) -> Turns:
        """These ways, the newest of them last, which `questions` tell apart, or others besides. Of two ways that
        nothing tells apart the newest stays, which is a miss for the other one."""
        *older, newest = ways
        kept = []
        for way in (way for way in older if way.site is not newest.site and way.site.missed < MOST_MISSES):
            if _answers(questions, way) == _answers(questions, newest):
                question = next(_telling_apart(way, newest), None)
                if question is None or len(questions) == MOST_QUESTIONS:
                    way.site.miss()
                    continue
                questions += (question,)
                way.site.missed = 0  # where they were taken for one another, they no longer are
            kept.append(way)
        return cls(newest.site.of, {_answers(questions, way): way for way in (*kept, newest)}, questions)

    def __iter__(self) -> Iterator[Direct]:
        yield from self.aside
        yield from self.ways.values()

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Direct | None:
        """The way for a call with these arguments, if one is known."""
        try:
            return self.ways.get(tuple([question.now(args, kwargs) for question in self.questions]))
        except Exception as error:
            # They are no such tree, or something in it is of a user's class, which may raise anything. Neither is an
            # error of the call, so it takes the usual path. What comes from outside is passed on.
            if is_from_outside(error):
                raise
            return None

    def has_room(self, site: Site) -> bool:
        """Whether this site's way may be among them."""
        return len(self.ways) < MOST_TURNS or self.of_site(site) is not None

    def of_site(self, site: Site) -> Direct | None:
        """The way of this very site, rather than of another signature's calls from the same place."""
        return next((way for way in self.ways.values() if way.site is site), None)

    def without(self, site: Site, aside: Iterable[Direct] = ()) -> Turns:
        """The others. These ways are set `aside`, besides those that are."""
        rest = {answers: way for answers, way in self.ways.items() if way.site is not site}
        before = [way for way in self.aside if way.site is not site]
        return Turns(self.of, rest, self.questions, (*before, *aside)[-MOST_TURNS:])


class Question(Protocol):
    """Something that calls from one place differ in."""

    def now(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """The answer of a call."""
        ...

    def of(self, way: Direct) -> Hashable:
        """The answer of the calls that a way is for."""
        ...


def _answers(questions: Iterable[Question], way: Direct) -> tuple[Hashable, ...]:
    return tuple(question.of(way) for question in questions)


def _telling_apart(one: Direct, other: Direct) -> Iterator[Question]:
    """The questions to which two ways have different answers."""
    static = one.emitted.static | other.emitted.static
    about = (_Static(path) if path[0] in static else _Shape(path) for path in one.paths | other.paths)
    questions: Iterator[Question] = itertools.chain((_Settings(),), about)
    return (question for question in questions if question.of(one) != question.of(other))


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What JAX is set to."""

    def now(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        now: Hashable = settings()
        return now

    def of(self, way: Direct) -> Hashable:
        known: Hashable = way.settings
        return known


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Shape and dtype of what may be a leaf."""

    path: Path

    def now(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        value: Any = args if type(self.path[0]) is int else kwargs
        for key in self.path:
            kind = type(value)
            if id(kind) not in CONTAINERS or key not in (value if kind is dict else range(len(value))):
                return None
            value = value[key]
        return None if value is None or id(type(value)) in CONTAINERS else describe(value)

    def of(self, way: Direct) -> Hashable:
        leaf = way.paths.get(self.path)
        return None if leaf is None else way.signature.described[leaf][:UNPLACED]


@dataclasses.dataclass(frozen=True)
class _Static:
    """The value of what may be a static argument, if it is of a class that is known."""

    path: Path

    def now(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        (key,) = self.path
        if type(key) is int:
            return _value(args[key]) if key < len(args) else None
        return _value(kwargs[key]) if key in kwargs else None

    def of(self, way: Direct) -> Hashable:
        leaf = way.paths.get(self.path)
        return None if leaf is None else _value(unwrapped(way.plan.program.leaves[leaf].value))


def _value(value: Any) -> Hashable:
    kind = type(value)
    return (id(kind), static_key(value)) if id(kind) in _STATIC else None
