"""What is written down at a call: who calls, and which leaves nothing else in the program can reach.

A call is looked at as `pytc.compile` would look at it (`pytc.ownership`), and then made as the script wrote it. To
look costs some microseconds a leaf. The first calls of each call site are all looked at; after that, further ones as
long as all looking so far has taken less than `SHARE` of the time that has passed. So where a call takes
milliseconds, as a training step does, each one is looked at, and where it takes microseconds a sample: chosen by the
clock and not by the number of the call, so that nothing that recurs every so many calls stays out of it for ever.

What is claimed afterwards is of the calls that were looked at: "dead at every call seen".
"""

from __future__ import annotations

import collections
import dataclasses
import operator
import time
import types
from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount
from typing import Any, Protocol

import jax
from jax.tree_util import tree_flatten, tree_leaves, tree_structure

from pytc import ownership
from pytc.arguments.leaves import Parameters, StaticArgument
from pytc.attributes import name_of
from pytc.explain.audit.places import Place, place_of
from pytc.explain.audit.traced import Traced
from pytc.jax_compat.keys import bits_of
from pytc.jax_compat.running import Tracer, executing
from pytc.jax_compat.trees import length_of, nodes
from pytc.ownership import buffers
from pytc.ownership import holders as who
from pytc.ownership.counts import only_marked

FIRST = 32
"""Calls of a call site that are looked at whatever it costs."""

SHARE = 0.03
"""The part of the time that looking at further calls may take."""

MOST_EXPLAINED = 8
"""Leaves of a call site for which it is found out what holds them; that looks at every object there is."""


@dataclasses.dataclass
class Clock:
    """How much of the time has gone into looking at calls."""

    started: float = dataclasses.field(default_factory=time.perf_counter)
    spent: float = 0.0
    """Seconds, in all."""
    sampling: float = 0.0
    """Seconds, of calls behind the first ones of their call sites."""

    def charge(self, seconds: float, sampling: bool) -> None:
        """Note that looking has taken so long."""
        self.spent += seconds
        self.sampling += seconds if sampling else 0.0

    def allows(self) -> bool:
        """Whether there is time to look at one more call."""
        return self.sampling <= SHARE * (time.perf_counter() - self.started)


@dataclasses.dataclass(eq=False)
class CallSite:
    """One place in the script that calls the function."""

    code: types.CodeType
    """Held, so that its id stays its own."""
    place: Place
    calls: int = 0


@dataclasses.dataclass(eq=False)
class Seen:
    """What was seen at one call site of calls with one signature."""

    calls: int = 0
    """How many were looked at."""
    held: dict[int, int] = dataclasses.field(default_factory=dict)
    """How many of them found this leaf (an index) held by something."""
    why: dict[int, ownership.Held] = dataclasses.field(default_factory=dict)
    """What held it the first time, for the largest."""


@dataclasses.dataclass(eq=False)
class WatchedSignature:
    """Calls with arguments of one structure, with the same shapes, dtypes and static values."""

    names: tuple[tuple[str, str], ...]
    """(parameter, path) of each leaf."""
    positional: tuple[str, ...]
    """What the positional arguments are called, in order."""
    arrays: ownership.Wanted
    """The leaves that are arrays on a device."""
    nbytes: tuple[int, ...]
    """Bytes of each leaf, over all devices; 0 for what is no array on a device."""
    static: tuple[Any, ...]
    """What is static in the arguments of the first such call: what JAX made of the function holds the same objects."""
    traced: Traced | None = None
    length: int | None = None
    """The length of the result, where it is a tuple or a list and of no other class."""
    returned: bool = False
    """Whether a call has returned."""
    seen: dict[CallSite, Seen] = dataclasses.field(default_factory=dict)

    @property
    def by_name(self) -> frozenset[str]:
        """What the arguments with leaves are called that are passed by keyword."""
        return frozenset(parameter for parameter, _ in self.names) - frozenset(self.positional)

    @property
    def outcome(self) -> ownership.Outcome:
        """What the look at a call may assume. As anybody who writes `donate_argnums` does: that a call which fails is
        not gone on from."""
        calls_python = self.traced is not None and self.traced.calls_python
        return ownership.Outcome(calls_python, self.length, atomic=not calls_python, static=self.static)


class Tracing(Protocol):
    """How to come by the program of a call before it is made."""

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """JAX's trace; raises what the call would raise."""

    def read(self, stage: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
        """What there is to know of it."""


Renewed = Callable[[tuple[Any, ...], dict[str, Any], Sequence[Any]], dict[int, list[Any]]]
"""From the arguments and their leaves to those leaves (indices) which the library that made the function replaces by
itself after a call, each with the objects that hold it until then."""


class WatchedFunction:
    """What the script made by one call of `jax.jit` or its like, and all that was seen of it."""

    def __init__(
        self,
        api: str,
        fun: Callable[..., Any],
        options: Mapping[str, Any],
        place: Place,
        clock: Clock,
        tracing: Tracing | None = None,
        renewed: Renewed | None = None,
    ) -> None:
        self.api = api
        self.name = name_of(fun)
        self.place = place
        self.options = dict(options)
        static = [options.get(name) for name in ("static_argnums", "static_broadcasted_argnums")]
        numbers = next((each for each in static if each is not None), None)
        self.sites: dict[tuple[int, int], CallSite] = {}
        self.signatures: dict[Any, WatchedSignature] = {}
        self._last: dict[Any, tuple[list[Any], WatchedSignature]] = {}
        self.trouble = ""
        """Why calls are not looked at, if that is so."""
        self.unwatched = 0
        """How many more functions like this one the script made."""
        self.inner_calls = 0
        """Calls under another transformation, where donation means nothing."""
        self._clock = clock
        self._tracing = tracing
        self._renewed = renewed
        try:
            self.parameters = Parameters(fun, numbers, options.get("static_argnames"))
        except Exception as error:  # noqa: BLE001 - a fault of ours is for the report, and must not end the script
            self.failed(error)

    # The frames between the caller's and `ownership` refer to the caller's by one variable each, and nothing but
    # `args`, `kwargs` and `leaves` refers to the arguments: the proof counts on it.

    def arrive(self, frame: types.FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Look | None:
        """Look at a call that is about to be made; None where it is only counted.

        Raises what tracing the function raises, as the call itself would.
        """
        if not executing():
            self.inner_calls += 1
            return None
        site = self.sites.get((id(frame.f_code), frame.f_lasti))
        if site is None:
            site = CallSite(frame.f_code, place_of(frame))
            self.sites[id(frame.f_code), frame.f_lasti] = site
        site.calls += 1
        if self.trouble or (site.calls > FIRST and not self._clock.allows()):
            return None
        return self._look(site, frame, args, kwargs)

    def _look(
        self, site: CallSite, frame: types.FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Look | None:
        started = time.perf_counter()
        try:
            leaves, tree = tree_flatten(self.parameters.wrap_static(args, kwargs))
            # What a program returns has the same types, objects and all, at every call; so they are compared first.
            types_now = [getattr(leaf, "aval", None) for leaf in leaves]
            known = self._last.get(tree)
            if known is not None and None not in types_now and all(map(operator.is_, types_now, known[0])):
                return self._record(known[1], site, frame, args, kwargs, leaves, started)
            key = tree, tuple(map(_kind, leaves))
            signature = self.signatures.get(key)
            again: Any = tree if signature is not None else tree_structure(self.parameters.wrap_static(args, kwargs))
            if again != tree:
                return None  # the call would not find the trace that is made for it
        except Exception:  # noqa: BLE001 - arguments that cannot be hashed or compared: the call itself will complain
            return None
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            self.inner_calls += 1
            site.calls -= 1
            return None
        stage = None
        if signature is None and self._tracing is not None:
            stage = self._tracing.trace(args, kwargs)
            started = time.perf_counter()  # it is the call's own time that this took
        if signature is None:
            try:
                signature = self._new_signature(args, kwargs, leaves, stage)
            except Exception as error:  # noqa: BLE001 - a fault of ours is for the report, and must not end the script
                self.failed(error)
                return None
            self.signatures[key] = signature
        self._last[tree] = types_now, signature
        return self._record(signature, site, frame, args, kwargs, leaves, started)

    def _record(
        self,
        signature: WatchedSignature,
        site: CallSite,
        frame: types.FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
        started: float,
    ) -> Look | None:
        try:
            seen = signature.seen.setdefault(site, Seen())
            renewed = {} if self._renewed is None else self._renewed(args, kwargs, leaves)
            return self._count(signature, seen, frame, args, kwargs, leaves, renewed)
        except Exception as error:  # noqa: BLE001 - as above
            self.failed(error)
            return None
        finally:
            self._clock.charge(time.perf_counter() - started, site.calls > FIRST)

    def _new_signature(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any], stage: Any
    ) -> WatchedSignature:
        wrapped = self.parameters.wrap_static(args, kwargs)
        signature = WatchedSignature(
            tuple((parameter, path) for parameter, path, _ in self.parameters.paths(*wrapped)),
            tuple(map(self.parameters.positional_name, range(self._positional(args, kwargs)))),
            ownership.Wanted([i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]),
            tuple(leaf.nbytes if isinstance(leaf, jax.Array) else 0 for leaf in leaves),
            (
                *(data for _, data in nodes(tree_structure(wrapped))),
                *(leaf.value for leaf in leaves if type(leaf) is StaticArgument),
                *(leaf.dtype for leaf in leaves if bits_of(leaf) is not leaf),
            ),
        )
        if self._tracing is not None:
            signature.traced = self._tracing.read(stage, args, kwargs)
            signature.length = signature.traced.length
        return signature

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """How many arguments are positional. Equinox makes those so that can be, and its "first" is the first then."""
        if self.api != "equinox.filter_jit" or self.parameters.signature is None:
            return len(args)
        try:
            return len(self.parameters.signature.bind(*args, **kwargs).args)
        except TypeError:  # of which the call itself will complain
            return len(args)

    def _count(
        self,
        signature: WatchedSignature,
        seen: Seen,
        frame: types.FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
        renewed: Mapping[int, list[Any]],
    ) -> Look:
        held = list(ownership.held(frame, args, kwargs, leaves, signature.arrays, signature.outcome))
        ownership.resume_collections()
        if renewed:
            held = [i for i in held if i not in renewed] + _held_elsewhere(leaves, renewed)
        held += [i for i in repeated(leaves, signature.arrays) if i not in held]
        if held and signature.traced is None:
            return Look(signature, seen, False)
        seen.calls += 1
        for i in held:
            seen.held[i] = seen.held.get(i, 0) + 1
        asked = self._to_explain(signature, seen, held)
        if asked:
            why = ownership.reasons(
                frame, args, kwargs, leaves, [i for i in asked if i not in renewed], signature.outcome
            )
            for i in asked:
                found = _who_else(leaves[i], frame, leaves, renewed[i]) if i in renewed else why.get(i)
                seen.why[i] = found or _SHARED
        return Look(signature, seen, True)

    @staticmethod
    def _to_explain(signature: WatchedSignature, seen: Seen, held: Sequence[int]) -> list[int]:
        """The largest leaf of each parameter that is held and of which nothing is known yet."""
        known = {signature.names[i][0] for i in seen.why}
        asked: dict[str, int] = {}
        for i in sorted(held, key=lambda i: -signature.nbytes[i]):
            if signature.names[i][0] not in known:
                asked.setdefault(signature.names[i][0], i)
        return list(asked.values())[: max(0, MOST_EXPLAINED - len(seen.why))]

    def called(self, look: Look, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, tuple[str, str]]:
        """What each array among the arguments of a call is called, by its id."""
        try:
            return _names(tree_leaves(self.parameters.wrap_static(args, kwargs)), look.signature)
        except Exception as error:  # noqa: BLE001 - as above
            self.failed(error)
            return {}

    def left(self, look: Look, result: Any) -> None:
        """A call that was looked at has returned."""
        started = time.perf_counter()
        signature = look.signature
        try:
            if signature.returned:
                arrays = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
                ownership.executed((), len(arrays), False, lambda: arrays)
            elif signature.length is None:
                signature.length = length_of(tree_structure(result))
            signature.returned = True
        except Exception as error:  # noqa: BLE001 - as above
            self.failed(error)
        self._clock.charge(time.perf_counter() - started, look.seen.calls > FIRST)

    def failed(self, error: Exception) -> None:
        """Note a fault of the audit's own: no further call is looked at, and the report says why."""
        self.trouble = f"{type(error).__name__}: {error}"


@dataclasses.dataclass
class Look:
    """A call that was looked at."""

    signature: WatchedSignature
    seen: Seen
    counted: bool
    """False for a first call of which too little was known beforehand to count what was found held."""


_SHARED = ownership.Held("buffer", "another leaf of the arguments is the same array")


def repeated(leaves: Sequence[Any], arrays: Sequence[int]) -> list[int]:
    """The leaves among `arrays` that are one array object with another one; JAX donates none such."""
    if len({id(leaves[i]) for i in arrays}) == len(arrays):
        return []
    places: dict[int, list[int]] = {}
    for i in arrays:
        places.setdefault(id(leaves[i]), []).append(i)
    return [i for same in places.values() if len(same) > 1 for i in same]


def _held_elsewhere(leaves: Sequence[Any], renewed: Mapping[int, list[Any]]) -> list[int]:
    """The leaves among `renewed` that something else than those objects holds, or whose buffer another array is on."""
    times = collections.Counter(map(id, leaves))
    held = [
        i
        for i, holders in renewed.items()
        # The list of leaves, the holders, and `getrefcount`'s own.
        if getrefcount(leaves[i]) != times[id(leaves[i])] + len(holders) + 1 or not only_marked(leaves[i])
    ]
    others = [i for i in renewed if i not in held and isinstance(leaves[i], jax.Array)]
    shared = buffers.shared([leaves[i] for i in others])
    return held + [i for i, is_shared in zip(others, shared, strict=True) if is_shared]


def _who_else(leaf: Any, frame: types.FrameType, leaves: Sequence[Any], holders: list[Any]) -> ownership.Held | None:
    """What holds a leaf besides these."""
    ours = {id(leaves), *map(id, holders), *(id(vars(each)) for each in holders)}
    return who.in_variables(frame, leaf) or who.in_objects(leaf, ours, frozenset())


def _names(leaves: Sequence[Any], signature: WatchedSignature) -> dict[int, tuple[str, str]]:
    pairs = zip(leaves, signature.names, strict=True)
    return {id(leaf): name for leaf, name in pairs if isinstance(leaf, jax.Array)}


def _kind(leaf: Any) -> Any:
    """What distinguishes calls by this leaf: shape and dtype of an array, the value of a static argument, or the type
    of anything else."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return leaf.shape, leaf.dtype
    return leaf if isinstance(leaf, StaticArgument) else type(leaf)
