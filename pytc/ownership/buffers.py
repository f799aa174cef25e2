"""Hidden sharing: two `jax.Array` objects on one device buffer, with nothing of it in either's reference count.

`jax.device_put(x, device_of_x)`, `x.addressable_data(0)`, `x.addressable_shards` and
`jax.make_array_from_single_device_arrays` make such pairs; deleting one of the two deletes the other. A client lists
every array there is, newest first, so two answers are possible:

**By age.** What an execution returns is on buffers of its own. An array that came out of an execution shares with
nothing that is older, and with nothing that came out of another execution; only an array made otherwise, later,
can be on its buffer. So arrays that are known to have come out of executions share with each other never, and if
nothing else has been made since, with nothing. The last executions are remembered by weak references to the newest
of their results, and the oldest that took over an argument's memory, which lives on as the state (`executed`): what
lies between the two in the list of all arrays came out of the same execution, because the results are made in one go,
in C++, with the interpreter's lock held. (Only a garbage collection can come in between, up to CPython 3.11, and run a
finaliser that makes an array; after one, it is looked whether the results are the newest arrays there are.) This reads
no address and waits for no device; it is what happens in a training loop. To list the arrays takes some 50 ns each, so
where there are very many and little memory to win, it is not done either.

**By address.** Otherwise the addresses of all buffers are compared. That costs about 0.1 us for each array that is
alive, so where there are many of them and little memory to win, the answer is "shared" instead: to look would
cost more than the copy that it might save. It is "shared", too, where an array does not tell its address: because its
execution has failed, or because it is not ready yet on a CPU, and cannot be waited for without the danger that the
execution calls Python code that waits in turn.

One array on its buffer does an array keep for itself: JAX 0.10 makes it where the array is asked for its value
(`jax.device_get(state)`, `int(state.step)`), and later versions where it is asked for `addressable_data(0)`. As long as
nothing else refers to it, it is reached through that array alone, and dies with it. So it does not count.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import math
import operator
import sys
import time
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import getweakrefcount

import jax
import numpy as np

from pytc.interrupt import is_from_outside
from pytc.jax_compat.arrays import is_ready, is_told_late, new_shard, shards_of
from pytc.jax_compat.clients import every_array, lister
from pytc.jax_compat.clients import may_be_cut as may_be_cut
from pytc.jax_compat.keys import bits_of
from pytc.ownership import interpreter
from pytc.ownership.counts import Mark, new_marks

if TYPE_CHECKING:
    from pytc.ownership.wanted import Wanted

_FEW = 1024
"""Up to so many arrays alive, all of them are looked at, however little memory is to be won."""
_QUICK = 64
"""Up to so many arrays alive, `alone` compares all addresses before it looks more closely."""
_BYTES_EACH = 200
"""Looking at one array takes about as long as copying this many bytes."""
_AT_A_GLANCE = 8
"""Arrays made since the newest execution, such as a batch, that `newest` looks through for its results."""
_A_COPY = 30 * _BYTES_EACH
"""Making a copy of no bytes takes as long as looking at 30 arrays; in bytes, as above."""
_PATIENCE = 0.1
"""Seconds to wait for an array while that may be in vain."""
_PAUSE = 0.0001
"""Seconds after which it is asked again."""
_ROUND = 10_000
"""More objects than one call makes: if the collector's counts begin anew only after as many, they do not come back to
the same within a call."""
_MOST = 32
"""Executions that are remembered. There may be twice as many until those without results are forgotten."""
_MOST_MISSING = 4
"""Executions found without results at one call, from which on those without results are forgotten at once."""


@dataclasses.dataclass(slots=True, eq=False)
class _Execution:
    """What came out of one execution."""

    marks: tuple[Mark, ...]
    """On its newest result, and on the newest and the oldest of those that took over an argument's memory."""
    results: int
    """How many there were the last time, at most, from the newest to the last that is marked."""

    def is_spent(self) -> bool:
        """Whether its results cannot be found any more."""
        return self.marks[-1]() is None

    def span(self, alive: list[Any], start: int) -> tuple[int, int] | None:
        """From where to where its results are in the list of all arrays, from `start` on; None if not there."""
        oldest = self.marks[-1]()
        if oldest is None or oldest.is_deleted():
            return None
        count = len(alive)
        for mark in self.marks:
            newest = mark()
            if newest is None or newest.is_deleted():
                continue
            first = start
            while first < count and alive[first] is not newest:
                first += 1
            # From the far end: mostly all results are still alive, or all but a few.
            end = min(first + self.results, count)
            while end > first and alive[end - 1] is not oldest:
                end -= 1
            if end == first:
                return None
            self.results = end - first  # no more will be
            return first, end
        return None


_recent: list[_Execution] = []
"""The last executions, newest first."""


class _Client:
    """The client that lists the arrays of the default platform, once it is known to list the newest first."""

    def __init__(self) -> None:
        self.arrays: Callable[[], list[Any]] = self._first
        """Every array that is not deleted, newest first; none where that is not the order."""
        self.in_order = False
        """Whether the results of an execution have been seen to be listed in order, without a gap."""
        self.listed = 0
        """How many arrays there were when they were listed last."""
        self.counts_anew = False

    def are_newest(self, results: Sequence[Any]) -> bool:
        """Whether the results of an execution are the newest arrays there are, with nothing in between."""
        newest = self.arrays()[: len(results)]
        found = len(newest) == len(results) and all(map(operator.is_, newest, reversed(results)))
        self.in_order = self.in_order or (found and len(results) > 1)
        return found

    def _first(self) -> list[Any]:
        arrays = lister()
        self.arrays = arrays if _lists_newest_first(arrays) else list
        return self.arrays()


def _lists_newest_first(arrays: Callable[[], list[Any]]) -> bool:
    with jax.transfer_guard("allow"):
        first = jax.device_put(np.int8(0), jax.local_devices()[0])
        second = new_shard(first)
        third = new_shard(second)
    newest = arrays()[:3]
    return len(newest) == 3 and all(map(operator.is_, newest, (third, second, first)))


_client = _Client()

if sys.version_info < (3, 12):

    def collections_so_far() -> object:
        """What `collected_since` is to be asked with later."""
        return gc.get_count()[1:] + gc.get_threshold()

    def collected_since(before: object) -> bool:
        """Whether there may have been a garbage collection, of which CPython 3.11 may do one at any allocation.

        The collector's counts begin anew when as many objects have been made as the thresholds multiplied. Where these
        are so low that one call could do that, the answer is always yes.
        """
        now = gc.get_count()[1:] + gc.get_threshold()
        return now != before or 0 < math.prod(now[2:]) < _ROUND
else:

    def collections_so_far() -> object:
        """What `collected_since` is to be asked with later."""
        return None

    def collected_since(_: object) -> bool:
        """Never: from CPython 3.12 on there is no garbage collection in the midst of code written in C."""
        return False


def executed(marked: Sequence[Any], count: int, in_one_go: bool, results: Callable[[], Sequence[Any]]) -> None:
    """Remember an execution that has just returned `results`, in the order in which they were made.

    `marked` are the last of them, and the last and the first that took over an argument's memory, as far as they
    differ. Those from that one on are remembered, `count` of them. `in_one_go` says that no Python code can have run
    while they were made; if it can have, they are remembered only if nothing has come in between.
    """
    if not count:
        return
    if not (in_one_go and (_client.in_order or count == 1)):
        made = results()
        if not _client.are_newest(made):
            return
        marked, count = (made[-1], made[0]) if len(made) > 1 else made, len(made)
    # Nothing may be raised here, where the arguments are gone, even if a handler of a signal or another thread changes
    # the list at this moment.
    _recent.insert(0, _Execution(new_marks(marked), count))
    if len(_recent) > 2 * _MOST:
        _forget_spent()


def is_dear(wanted: Wanted) -> bool:
    """Whether so many arrays are alive that to list them takes longer than to copy the `wanted` leaves. To list them
    takes a while itself, so they are counted every other time that they seem to be too many."""
    if _client.listed <= _FEW or wanted.nbytes is None:
        return False
    leaves, nbytes = len(wanted), wanted.nbytes
    if not _too_many(_client.listed, leaves, nbytes):
        return False
    _client.counts_anew = not _client.counts_anew
    if _client.counts_anew:
        _client.listed = len(_client.arrays())
    return _too_many(_client.listed, leaves, nbytes)


def _too_many(arrays: int, leaves: int, nbytes: int) -> bool:
    return arrays > _FEW and _BYTES_EACH * arrays > _A_COPY * leaves + nbytes


def listed() -> list[Any]:
    """Every array of the default platform that is not deleted, newest first."""
    alive = _client.arrays()
    _client.listed = len(alive)
    return alive


def newest(alive: list[Any]) -> tuple[int, int, tuple[Mark, ...]]:
    """The results of the newest execution: where in the list of all arrays they begin, and how many they are, 0 if they
    are not found at a glance; and what remembers that execution."""
    latest = _recent[:1]  # read once: another thread may change the list at any moment
    if not latest:
        return 0, 0, ()
    made, marks = latest[0].results, latest[0].marks
    first, start = marks[0](), 0
    most = min(_AT_A_GLANCE, len(alive) - made)
    while start <= most:
        if alive[start] is first:
            return start, made if alive[start + made - 1] is marks[-1]() else 0, marks
        start += 1
    return 0, 0, marks


class Fresh(NamedTuple):
    """What is known by age alone."""

    arrays: list[Any]
    """The results of some of the last executions: they share with none of each other, and with nothing older."""
    others: list[Any]
    """Everything else that has been made since the oldest of them."""
    marks: tuple[Mark, ...]
    """What remembers the newest of these executions."""


def fresh(most: int, alive: list[Any] | None = None) -> Fresh:
    """The results of the last executions that are still there, at most `most` executions. `alive` is what `listed`
    returns, where that was asked already."""
    alive = listed() if alive is None else alive
    found: list[Any] = []
    others: list[Any] = []
    marks: tuple[Mark, ...] = ()
    at = missing = 0
    for execution in _recent[:most]:
        span = execution.span(alive, at)
        if span is None:
            missing += 1
            continue
        first, end = span
        others += alive[at:first]
        found += alive[first:end]
        marks = marks or execution.marks
        at = end
    if missing > _MOST_MISSING:
        _forget_spent()
    return Fresh(found, others, marks)


def _forget_spent() -> None:
    """Forget executions whose results are gone (an evaluation, a step whose results nobody kept), and the oldest."""
    _recent[:] = [execution for execution in _recent if not execution.is_spent()][:_MOST]


def remembered() -> int:
    """How many executions are remembered."""
    return len(_recent)


def addresses(array: Any, ready: bool = False) -> list[int]:
    """The addresses of an array's buffers, one for each device of this process that has a part of it; not of a key.
    Only of those that are `ready`, if that is said. Raises `_NotTold` where one is not to be had."""
    return [_address(part) for part in _parts(array) if not ready or is_ready(part)]


def _addresses_told(array: Any, ready: bool) -> list[int]:
    """The same, without those of failures."""
    found = []
    for part in _parts(array):
        with contextlib.suppress(_Failed):
            found += addresses(part, ready)
    return found


def _has_failed(array: Any) -> bool:
    """Whether there is nothing in one of an array's buffers, so that it does not tell what else is on that."""
    try:
        addresses(array)
    except _Failed:
        return True
    return False


def _parts(array: Any) -> list[Any]:
    """The arrays, of one buffer each, that an array consists of."""
    if array.is_deleted() or 0 in array.shape:
        return []
    return [array] if _is_whole(array) else own_shards(array)


class _NotTold(RuntimeError):
    """An array does not tell its address."""


class _Failed(_NotTold):
    """The execution that an array should have come out of did not get to its end. All arrays on its buffer fail at the
    same moment, so as long as one tells its address, all do."""


def _address(array: Any, patient: bool = True) -> int:
    if not is_ready(array) and is_told_late(array) and not (patient and _is_ready_soon(array)):
        raise _NotTold
    # If there was no memory for the array, asking for its address ends the process; waiting for it only raises.
    if is_ready(array):
        try:
            array.block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            raise _Failed from error
    address: int = array.unsafe_buffer_pointer()
    return address


def _is_ready_soon(array: Any) -> bool:
    """Wait until an array is ready; not for long while there are other threads. One of these may be what the execution
    calls back, and wait for this thread, or for a lock that it has."""
    waited = 0.0
    while not is_ready(array):
        if waited > _PATIENCE:
            return False
        time.sleep(_PAUSE)
        waited += 0.0 if interpreter.alone() else _PAUSE
    return True


def _are_ready(leaves: Sequence[Any]) -> bool:
    """Whether all leaves are ready. What is not ready afterwards is on no buffer of theirs, and need not be asked."""
    return all(is_ready(bits_of(leaf)) for leaf in leaves)


def own_shards(array: Any) -> list[Any]:
    """The arrays that an array on several devices consists of. It makes them when first asked, and keeps them."""
    return [] if _is_whole(array) else shards_of(array)


def _is_whole(array: Any) -> bool:
    """Whether all of an array is in one buffer."""
    sharding = array.sharding
    return type(sharding) is jax.sharding.SingleDeviceSharding or len(sharding.device_set) == 1


def shared(leaves: Sequence[Any]) -> list[bool]:
    """For each leaf, whether another array is on the same buffer, or may be; by address."""
    if not leaves:
        return []
    own = [own_shards(leaf) for leaf in leaves]
    # The leaf has a list of them, the list here, and `getrefcount` itself.
    held = [any(count > 3 for count in map(interpreter.getrefcount, shards)) for shards in own]
    weakly = [any(map(getweakrefcount, shards)) for shards in own]
    apart = {id(shard) for shards in own for shard in shards}
    everything = [array for array in every_array() if id(array) not in apart]
    if _too_many(len(everything), len(leaves), sum(leaf.nbytes for leaf in leaves)):
        return [True] * len(leaves)
    try:
        ready = _are_ready(leaves)
        found = {id(array): _addresses_told(array, ready) for array in everything}
        seen = collections.Counter(address for places in found.values() for address in places)
        several = {address for address, count in seen.items() if count > 1}
        there = _at(several, ((array, found[id(array)]) for array in everything)) if several else {}
        taken = []
        for leaf, shards in zip(leaves, own, strict=True):
            places = several.intersection(found.get(id(leaf)) or _addresses_told(bits_of(leaf), ready))
            others = [[array for array in there[place] if array is not leaf] for place in places]
            taken.append(not all(_are_kept_by(bits_of(leaf), shards, some) for some in others))
        # A leaf that no client lists belongs to a client that JAX has let go of (`clear_backends`). So would others on
        # its buffer, which nobody lists either: it counts as shared.
        unlisted = [id(bits_of(leaf)) not in found for leaf in leaves]
        # Only now: until a leaf fails, all that are on its buffer have told their addresses.
        failed = [_has_failed(bits_of(leaf)) for leaf in leaves]
        return [any(each) for each in zip(taken, held, weakly, unlisted, failed, strict=True)]
    except RuntimeError as error:  # a platform that does not tell addresses, or an array that was deleted meanwhile
        if is_from_outside(error):
            raise
        return [True] * len(leaves)


def _at(places: Container[int] | None, arrays: Iterable[tuple[Any, Sequence[int]]]) -> dict[int, list[Any]]:
    """Those of the arrays, each with its addresses, that have a buffer at one of these places; at any if None. (A
    function of its own, so that none of its variables is left when references are counted next.)"""
    there: dict[int, list[Any]] = {}
    for array, own in arrays:
        for address in own:
            if places is None or address in places:
                there.setdefault(address, []).append(array)
    return there


def _are_kept_by(leaf: Any, shards: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether `others`, each of which three lists have, are arrays that a leaf, or a shard of it, keeps for itself."""
    # The lists, what keeps it, and `getrefcount` itself.
    if not others or max(map(interpreter.getrefcount, others)) > 5 or any(map(getweakrefcount, others)):
        return False
    kept = {id(new_shard(part)) for part in (leaf, *shards) if part.is_fully_replicated}
    return kept.issuperset(map(id, others))


def alone(leaves: Sequence[Any]) -> bool:
    """Whether no other array is on a buffer of the leaves; by address, the quick way where few arrays are alive."""
    everything = every_array()
    if len(everything) <= _QUICK:
        try:
            taken = [_address(array, patient=False) for array in everything]
            if all(taken.count(leaf.unsafe_buffer_pointer()) == 1 for leaf in leaves):
                return True
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            if is_from_outside(error):
                raise
            # An array on several devices, one that was deleted, has failed, or is not ready: look more closely.
    del everything
    return not any(shared(leaves))


@dataclasses.dataclass(slots=True, eq=False)
class Kinds:
    """Shapes and dtypes of arrays that may be on a buffer of some leaves; other arrays need not be looked at."""

    placed: list[Any]
    """The shardings of the leaves, where they may differ."""
    where: dict[Any, list[int]]
    """Which leaves (indices) have each shape and dtype, or shards that do."""
    shown: Sequence[int] = ()
    """Leaves on whose buffers other arrays were found the last time: a loop that prints a number from its state asks
    for the same one at each step. These are asked first."""

    @classmethod
    def of(cls, leaves: Sequence[Any], placed: list[Any]) -> Kinds:
        """The kinds of these leaves, whose shardings are `placed`."""
        where: dict[Any, list[int]] = {}
        for k, leaf in enumerate(leaves):
            for kind in dict.fromkeys(kinds_of(leaf)):
                where.setdefault(kind, []).append(k)
        return cls(placed, where)


def shares_with_any(leaves: Sequence[Any], others: Sequence[Any], kinds: Kinds) -> bool:
    """Whether one of `others` is on a buffer of `leaves`, which are of these `kinds`, and each on buffers of its own.

    An address is on one leaf only. So once its leaf is known, the others need not be asked for theirs, which takes a
    microsecond each. The leaves that were found the last time are asked first.
    """
    alike = [other for other in others if not kinds.where.keys().isdisjoint(kinds_of(other))]
    if not alike:
        return False
    try:
        ready = _are_ready(leaves)
        there = _at(None, ((other, addresses(other, ready)) for other in alike))
        owners = _owners(leaves, kinds.shown, there)
        if len(owners) < len(there):
            like = {k for other in alike for kind in kinds_of(other) for k in kinds.where.get(kind, ())}
            owners = _owners(leaves, like, there)
            kinds.shown = [*dict.fromkeys(owners.values())]
        return not all(_are_kept_by(leaves[k], own_shards(leaves[k]), there[at]) for at, k in owners.items())
    except RuntimeError as error:  # as in `shared`, or one that has failed
        if is_from_outside(error):
            raise
        return True


def _owners(leaves: Sequence[Any], some: Iterable[int], places: Container[int]) -> dict[int, int]:
    """Which of the places are buffers of some leaves (indices), and of which."""
    return {place: k for k in some for place in addresses(leaves[k]) if place in places}


def kinds_of(array: Any) -> list[Any]:
    """The shapes and dtypes that an array on the same buffer, or on one of the same buffers, may have."""
    shape, dtype, sharding = array.shape, array.dtype, array.sharding
    if type(sharding) is jax.sharding.SingleDeviceSharding:
        return [(shape, dtype)]
    return [(shape, dtype), (sharding.shard_shape(shape), dtype)]
