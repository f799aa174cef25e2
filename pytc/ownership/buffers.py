"""Hidden sharing: two `jax.Array` objects on one device buffer, with nothing of it in either's reference count.

`jax.device_put(x, device_of_x)`, `x.addressable_data(0)`, `x.addressable_shards` and
`jax.make_array_from_single_device_arrays` make such pairs; deleting one of the two deletes the other. A client lists
every array there is, newest first, so two answers are possible:

**By age.** What an execution returns is on buffers of its own. An array that came out of an execution shares with
nothing that is older, and with nothing that came out of another execution; only an array made otherwise, later,
can be on its buffer. So arrays that are known to have come out of executions share with each other never, and if
nothing else has been made since, with nothing. Two *fences*, tiny arrays of our own made right before and right after
an execution (`begin`, `executed`), tell in the list of all arrays which those are. This reads no address and waits
for no device; it is what happens in a training loop.

**By address.** Otherwise the addresses of all buffers are compared. That costs about 0.1 us for each array that is
alive, so where there are many of them and little memory to win, the answer is "shared" instead: to look would
cost more than the copy that it might save.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import backend

from pytc.jax_compat import new_shard, shards_of
from pytc.ownership import interpreter
from pytc.ownership.slots import other_thread

_FEW = 1024
_QUICK = 64
FEW_LEAVES = 8
"""So many leaves are not worth a fence."""
_BYTES_EACH = 200
"""Looking at one array takes about as long as copying this many bytes."""


@dataclasses.dataclass(slots=True, eq=False)
class _Interval:
    """What was made between two fences came out of an execution."""

    before: Any
    after: Any
    number: int
    """Which execution it was."""
    size: int = 0
    """How many of the arrays in between were alive the last time."""


class _Fences:
    """The fences of this process."""

    def __init__(self) -> None:
        self.client: Any = None
        self.intervals: list[_Interval] = []
        """The last executions, newest first."""
        self.opened: Any = None
        """The thread that is to run the next execution, and the fence before it."""
        self.crowded = False
        """Whether so many arrays are alive that fences are cheaper than addresses, however few the leaves."""
        self.nothing_since = False
        """Whether the fence behind the last execution is the newest array there is."""
        self.executions = 0
        self._last: Any = None
        self._left = 0

    def make(self) -> Any:
        """A new array: a shard of the last fence, which is the cheapest way to make one. (An array holds its shards,
        so an old fence holds all newer ones, and every so often the row is begun anew.)"""
        if not self._left:
            self._start()
        self._left -= 1
        self._last = new_shard(self._last)
        return self._last

    def _start(self) -> None:
        device = jax.local_devices()[0]
        first = jax.device_put(np.int8(0), device)
        second = new_shard(first)
        self._last = third = new_shard(second)
        newest = device.client.live_arrays()[:3]
        # Else the list is not in the order that all this relies on, and addresses are compared.
        if len(newest) == 3 and newest[0] is third and newest[1] is second and newest[2] is first:
            self.client = device.client
        self._left = _ROW


_ROW = 64
_fences = _Fences()
_MOST, _OLDEST = 8, 16


def fresh(most: int) -> tuple[list[Any], list[Any]]:
    """The arrays of the last executions, at most so many, and everything else that has been made meanwhile.

    The first share with none of each other, and with nothing that is older.
    """
    intervals = _fences.intervals
    if not intervals or _fences.client is None:
        _fences.nothing_since = False
        return [], []
    alive = _fences.client.live_arrays()
    count = len(alive)
    _fences.crowded = count > _QUICK
    _fences.nothing_since = bool(alive) and alive[0] is intervals[0].after
    found: list[Any] = []
    others: list[Any] = []
    spent: list[_Interval] = []
    at = 0
    for interval in intervals[:most]:
        after, before = interval.after, interval.before
        if at < count and (at == 0 or alive[at - 1] is not after):  # else it is the fence before the last interval, too
            while at < count and alive[at] is not after:
                others.append(alive[at])
                at += 1
            at += 1
        end = at + interval.size
        if not (end < count and alive[end] is before):
            end = at
            while end < count and alive[end] is not before:
                end += 1
            interval.size = end - at
            if not interval.size:
                spent.append(interval)
        found += alive[at:end]
        at = end + 1
    for interval in spent:
        if interval is not intervals[0]:
            intervals.remove(interval)
    return found, others


def by_address(leaves: int) -> bool:
    """Whether addresses are to be compared for so many leaves, rather than fences looked at."""
    return leaves <= FEW_LEAVES and not _fences.crowded


def begin(leaves: int) -> None:
    """An execution is about to run, and no Python code will run until `executed`: make the fence before it.

    Not for a few leaves, for which comparing addresses is cheaper than making fences.
    """
    if by_address(leaves):
        _fences.opened = None
        return
    # With other threads about, arrays that they make may come to stand between the fences.
    unobserved = not (interpreter.threads() and other_thread())
    if unobserved:
        reused = _fences.nothing_since and _fences.intervals
        _fences.opened = threading.get_ident(), _fences.intervals[0].after if reused else _fences.make()
    else:
        _fences.opened = None
    _fences.nothing_since = False


def executed() -> None:
    """The execution that `begin` announced has returned its arrays: make the fence behind it."""
    opened, _fences.opened = _fences.opened, None
    if opened is not None and opened[0] == threading.get_ident():
        known = _fences.intervals
        _fences.executions += 1
        known.insert(0, _Interval(opened[1], _fences.make(), _fences.executions))
        while len(known) > _MOST or known[-1].number + _OLDEST < _fences.executions:
            known.pop()


def intervals() -> int:
    """How many executions are remembered."""
    return len(_fences.intervals)


def alive() -> list[Any]:
    """Every array that there is and that is not deleted, newest first on each platform."""
    return [array for client in backend.backends().values() for array in client.live_arrays()]


def addresses(array: Any) -> list[int]:
    """Where the buffers of an array are, one for each device of this process that has a part of it."""
    if array.is_deleted() or array.size == 0:
        return []
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        return addresses(jax.random.key_data(array))
    if len(array.sharding.device_set) == 1:
        return [array.unsafe_buffer_pointer()]
    return [shard.unsafe_buffer_pointer() for shard in own_shards(array)]


def own_shards(array: Any) -> list[Any]:
    """The arrays that an array on several devices consists of. It makes them when first asked, and keeps them."""
    return [] if len(array.sharding.device_set) == 1 else shards_of(array)


def shared(leaves: Sequence[Any]) -> list[bool]:
    """For each leaf, whether another array is on the same buffer, or may be; by address."""
    if not leaves:
        return []
    own = [own_shards(leaf) for leaf in leaves]
    # The leaf has a list of them, the list here, and `getrefcount` itself.
    held = [any(count > 3 for count in map(interpreter.getrefcount, shards)) for shards in own]
    apart = {id(shard) for shards in own for shard in shards}
    everything = [array for array in alive() if id(array) not in apart]
    if len(everything) > _FEW and _BYTES_EACH * len(everything) > sum(leaf.nbytes for leaf in leaves):
        return [True] * len(leaves)
    try:
        seen = collections.Counter(address for array in everything for address in addresses(array))
        taken = [any(seen[address] > 1 for address in addresses(leaf)) for leaf in leaves]
        return [any(either) for either in zip(taken, held, strict=True)]
    except RuntimeError:  # a platform that does not tell addresses, or an array that was deleted meanwhile
        return [True] * len(leaves)


def alone(leaves: Sequence[Any]) -> bool:
    """Whether no other array is on a buffer of the leaves; the quick way, for few leaves and arrays."""
    everything = alive()
    _fences.crowded = len(everything) > _QUICK
    if _fences.crowded:
        return not any(shared(leaves))
    try:
        taken = [array.unsafe_buffer_pointer() for array in everything]
        if all(taken.count(leaf.unsafe_buffer_pointer()) == 1 for leaf in leaves):
            return True
    except (RuntimeError, ValueError, TypeError, AttributeError):
        pass  # an array on several devices, one that was deleted, a PRNG key: look more closely
    return not any(shared(leaves))


def shares_with_any(leaves: Sequence[Any], others: Sequence[Any], kinds: frozenset[Any]) -> bool:
    """Whether one of `others` is on a buffer of `leaves`, whose shapes and dtypes, shards' too, are `kinds`."""
    alike = [other for other in others if not kinds.isdisjoint(kinds_of(other))]
    if not alike:
        return False
    try:
        taken = {address for leaf in leaves for address in addresses(leaf)}
        return any(address in taken for other in alike for address in addresses(other))
    except RuntimeError:  # as in `shared`
        return True


def kinds_of(array: Any) -> list[Any]:
    """The shapes and dtypes that an array on the same buffer, or on one of the same buffers, may have."""
    shape, dtype, sharding = array.shape, array.dtype, array.sharding
    if type(sharding) is jax.sharding.SingleDeviceSharding:
        return [(shape, dtype)]
    return [(shape, dtype), (sharding.shard_shape(shape), dtype)]
