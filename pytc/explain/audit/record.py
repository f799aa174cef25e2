"""What is recorded at a call: who calls, and which leaves nothing else in the program can reach.

A call is examined as `pytc.compile` would do it (`pytc.ownership`), and then made as the script wrote it. That costs
some microseconds for each leaf. The first `FIRST` calls of each call site are examined, and later ones as long as their
examination has taken less than `SHARE` of the elapsed time. So if a call takes milliseconds, as a training step does,
every call is examined; if it takes microseconds, a sample. The sample is chosen by the clock and not by counting, so
that what happens at every n-th call is not missed for ever.

All later claims are about the examined calls: "dead at every call seen".
"""

from __future__ import annotations

import collections
import dataclasses
import operator
import time
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount
from typing import Any, Protocol

import jax
from jax.tree_util import tree_flatten, tree_leaves, tree_structure

from pytc import ownership
from pytc.arguments.leaves import Parameters, StaticArgument
from pytc.attributes import name_of
from pytc.explain.audit.seen import Caller, Examined, Seen, WatchedSignature
from pytc.explain.audit.traced import Traced
from pytc.explain.places import Place, place_of
from pytc.interrupt import is_from_outside
from pytc.jax_compat.keys import bits_of
from pytc.jax_compat.running import Tracer, executing
from pytc.jax_compat.trees import nodes
from pytc.ownership.arrays import buffers
from pytc.ownership.references.counts import only_marked
from pytc.ownership.words.holders import in_objects
from pytc.ownership.words.referrers import Referrers
from pytc.ownership.words.variables import in_variables

FIRST = 32
"""So many calls of each call site are examined in any case."""

SHARE = 0.03
"""The share of the elapsed time that examining further calls may take."""

MOST_EXPLAINED = 8
"""For so many leaves of a call site a holder is searched for, among all objects in the process."""


@dataclasses.dataclass
class Clock:
    """How much of the time has gone into examining calls."""

    started: float = dataclasses.field(default_factory=time.perf_counter)
    spent: float = 0.0
    """Seconds in all."""
    sampling: float = 0.0
    """Seconds for calls after the first `FIRST` of their call sites."""

    def charge(self, seconds: float, sampling: bool) -> None:
        """Note that examining a call has taken so long."""
        self.spent += seconds
        self.sampling += seconds if sampling else 0.0

    def allows(self) -> bool:
        """Whether there is time to examine one more call."""
        return self.sampling <= SHARE * (time.perf_counter() - self.started)


class Tracing(Protocol):
    """How to get the program of a call before the call is made."""

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """JAX's trace; raises what the call would raise."""

    def read(self, stage: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
        """The program, from what `trace` returned."""


Renewed = Callable[[tuple[Any, ...], dict[str, Any], Sequence[Any]], dict[int, list[Any]]]
"""A function of the arguments and their leaves. It returns the leaves (indices) that the library which made the watched
function replaces after a call, each with the objects that hold it until then."""


class WatchedFunction:
    """A function that the script made by one call of `jax.jit` or the like, and all that was seen of it."""

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
        self.sites: dict[tuple[int, int], Caller] = {}
        self.signatures: dict[Any, WatchedSignature] = {}
        self._last: dict[Any, tuple[list[Any], WatchedSignature]] = {}
        self.trouble = ""
        """Why calls are not examined; empty if they are."""
        self.unwatched = 0
        """How many more functions like this one the script made, which are not watched."""
        self.ahead = False
        """Whether the script has asked for the program ahead of time (`lower`, `trace`), by which it can call it."""
        self.inner_calls = 0
        """Calls under another transformation, where donation means nothing."""
        self._clock = clock
        self._tracing = tracing
        self._renewed = renewed
        try:
            self.parameters = Parameters(fun, numbers, options.get("static_argnames"))
        except Exception as error:  # noqa: BLE001 - a fault of ours is for the report, and must not end the script
            self.failed(error)

    # What comes next is on the way to the proof, and refers to the call by one variable each (`ownership.Call`).

    def arrive(self, call: ownership.Call) -> Examined | None:
        """Examine a call that is about to be made; None if it is only counted.

        Raises what tracing the function raises, as the call itself would.
        """
        if not executing():
            self.inner_calls += 1
            return None
        place = id(call.frame.f_code), call.frame.f_lasti
        site = self.sites.get(place)
        if site is None:
            self.sites[place] = site = Caller(call.frame.f_code, place_of(call.frame))
        site.calls += 1
        if self.trouble or (site.calls > FIRST and not self._clock.allows()):
            return None
        return self._look(site, call)

    def _look(self, site: Caller, call: ownership.Call) -> Examined | None:
        started = time.perf_counter()
        try:
            call.leaves, tree = tree_flatten(self.parameters.wrap_static(call.args, call.kwargs))
            # Fast path: what a program returned has the very same aval objects at every call.
            types_now = [getattr(leaf, "aval", None) for leaf in call.leaves]
            known = self._last.get(tree)
            if known is not None and None not in types_now and all(map(operator.is_, types_now, known[0])):
                return self._record(known[1], site, call, started)
            key = tree, tuple(map(_kind, call.leaves))
            signature = self.signatures.get(key)
            again: Any = tree
            if signature is None:
                again = tree_structure(self.parameters.wrap_static(call.args, call.kwargs))
            if again != tree:
                return None  # flattening made another tree, so the call would not reuse a trace that is made now
        except Exception as error:  # arguments that cannot be hashed or compared: the call itself will complain
            if is_from_outside(error):
                raise
            return None
        if any(isinstance(leaf, Tracer) for leaf in call.leaves):
            self.inner_calls += 1
            site.calls -= 1
            return None
        stage = None
        if signature is None and self._tracing is not None:
            stage = self._tracing.trace(call.args, call.kwargs)
            started = time.perf_counter()  # tracing is not charged: the call would have done it
        if signature is None:
            try:
                signature = self._new_signature(call.args, call.kwargs, call.leaves, stage)
            except Exception as error:  # noqa: BLE001 - a fault of ours is for the report, and must not end the script
                self.failed(error)
                return None
            self.signatures[key] = signature
        self._last[tree] = types_now, signature
        return self._record(signature, site, call, started)

    def _record(
        self, signature: WatchedSignature, site: Caller, call: ownership.Call, started: float
    ) -> Examined | None:
        try:
            seen = signature.seen.setdefault(site, Seen())
            renewed = {} if self._renewed is None else self._renewed(call.args, call.kwargs, call.leaves)
            return self._count(signature, seen, call, renewed)
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
            signature.returns(signature.traced.as_jit.staged.out_tree)
        return signature

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """How many arguments are positional. Equinox passes all by position that can be, and counts its "first" so."""
        if self.api != "equinox.filter_jit" or self.parameters.signature is None:
            return len(args)
        try:
            return len(self.parameters.signature.bind(*args, **kwargs).args)
        except TypeError:  # the call itself will complain
            return len(args)

    def _count(
        self,
        signature: WatchedSignature,
        seen: Seen,
        call: ownership.Call,
        renewed: Mapping[int, list[Any]],
    ) -> Examined:
        held = self._held(signature.arrays, signature.outcome, call, renewed)
        look = Examined(signature, seen)
        if signature.traced is None:
            at_worst = self._held(signature.arrays, signature.outcome_at_worst, call, renewed)
            look.in_doubt, look.sites = frozenset(at_worst).difference(held), _sites_of(call.frame)
        leaves = call.leaves
        seen.note(held)
        asked = self._to_explain(signature, seen, held)
        if asked:
            why = ownership.reasons(call, [i for i in asked if i not in renewed], signature.outcome)
            for i in asked:
                found = _who_else(leaves[i], call.frame, leaves, renewed[i]) if i in renewed else why.get(i)
                # What the second look does not find held any more (a thread has gone on) is asked for again.
                if found is not None or i in repeated(leaves, signature.arrays):
                    seen.why[i] = found or _SHARED
        look.held = [(i, weakref.ref(leaves[i])) for i in held]  # last: a weak reference is a holder, too
        return look

    @staticmethod
    def _held(
        arrays: ownership.Wanted, outcome: ownership.Outcome, call: ownership.Call, renewed: Mapping[int, list[Any]]
    ) -> list[int]:
        """The leaves that something holds, apart from the objects that `renewed` has of some."""
        try:
            held = list(ownership.held(call, arrays, outcome))
        finally:
            ownership.resume_collections()
        if renewed:
            held = [i for i in held if i not in renewed] + _held_elsewhere(call.leaves, renewed)
        return held + [i for i in repeated(call.leaves, arrays) if i not in held]

    @staticmethod
    def _to_explain(signature: WatchedSignature, seen: Seen, held: Sequence[int]) -> list[int]:
        """The largest held leaf of each parameter for which no holder has been searched for yet."""
        known = {signature.names[i][0] for i in seen.why}
        asked: dict[str, int] = {}
        for i in sorted(held, key=lambda i: -signature.nbytes[i]):
            if signature.names[i][0] not in known:
                asked.setdefault(signature.names[i][0], i)
        return list(asked.values())[: max(0, MOST_EXPLAINED - len(seen.why))]

    def called(self, look: Examined, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, tuple[str, str]]:
        """By id, the parameter and path of each array in the arguments of a call."""
        try:
            return _names(tree_leaves(self.parameters.wrap_static(args, kwargs)), look.signature)
        except Exception as error:  # noqa: BLE001 - as above
            self.failed(error)
            return {}

    def left(self, look: Examined, result: Any) -> None:
        """Note that an examined call has returned `result`."""
        started = time.perf_counter()
        signature = look.signature
        try:
            if signature.returned:
                arrays = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
                ownership.executed((), len(arrays), False, lambda: arrays)
            elif self._tracing is None:
                signature.returns(tree_structure(result))
            signature.returned = True
            look.seen.note_deleted(look.held)
            if look.in_doubt and (why := look.is_other_than_taken()) is not None:
                look.seen.note_too(look.in_doubt)
                for i in self._to_explain(signature, look.seen, [*look.in_doubt]):
                    look.seen.why[i] = why
        except Exception as error:  # noqa: BLE001 - as above
            self.failed(error)
        self._clock.charge(time.perf_counter() - started, look.seen.calls > FIRST)

    def failed(self, error: Exception) -> None:
        """Note an error of the audit itself: no further call is examined, and the report says why. What the handler of
        a signal or another thread has raised is the script's, and is raised again."""
        if is_from_outside(error):
            raise error
        self.trouble = f"{type(error).__name__}: {error}"


def _sites_of(frame: types.FrameType) -> list[ownership.CallSite]:
    """The site of a call that was examined, and those of the functions above that return what it returns."""
    sites: list[ownership.CallSite] = []
    above: types.FrameType | None = frame
    while above is not None and (site := ownership.known_site(above)) is not None:
        sites.append(site)
        above = above.f_back if site.returns else None
    return sites


_SHARED = ownership.Held("buffer", "another leaf of the arguments is the same array")


def repeated(leaves: Sequence[Any], arrays: Sequence[int]) -> list[int]:
    """The leaves among `arrays` that are the same array object as another one. JAX does not donate these."""
    if len({id(leaves[i]) for i in arrays}) == len(arrays):
        return []
    places: dict[int, list[int]] = {}
    for i in arrays:
        places.setdefault(id(leaves[i]), []).append(i)
    return [i for same in places.values() if len(same) > 1 for i in same]


def _held_elsewhere(leaves: Sequence[Any], renewed: Mapping[int, list[Any]]) -> list[int]:
    """The leaves among `renewed` that something besides the given objects holds, or that share their buffer."""
    times = collections.Counter(map(id, leaves))
    held = [
        i
        for i, holders in renewed.items()
        # References: `leaves`, the holders, and `getrefcount`'s argument.
        if getrefcount(leaves[i]) != times[id(leaves[i])] + len(holders) + 1 or not only_marked(leaves[i])
    ]
    others = [i for i in renewed if i not in held and isinstance(leaves[i], jax.Array)]
    shared = buffers.shared([leaves[i] for i in others])
    return held + [i for i, is_shared in zip(others, shared, strict=True) if is_shared]


def _who_else(leaf: Any, frame: types.FrameType, leaves: Sequence[Any], holders: list[Any]) -> ownership.Held | None:
    """What holds a leaf besides `holders`."""
    ours = {id(leaves), *map(id, holders), *(id(vars(each)) for each in holders)}
    return in_variables(frame, leaf) or in_objects(leaf, Referrers([leaf], ours), frozenset(), {})


def _names(leaves: Sequence[Any], signature: WatchedSignature) -> dict[int, tuple[str, str]]:
    pairs = zip(leaves, signature.names, strict=True)
    return {id(leaf): name for leaf, name in pairs if isinstance(leaf, jax.Array)}


def _kind(leaf: Any) -> Any:
    """What a signature has of this leaf: shape and dtype of an array, and whether it is on a device; the value of a
    static argument; or the type of anything else."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return leaf.shape, leaf.dtype, isinstance(leaf, jax.Array)
    return leaf if isinstance(leaf, StaticArgument) else type(leaf)
