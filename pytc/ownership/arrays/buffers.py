"""Hidden sharing, by address: two `jax.Array` objects on one device buffer, with nothing of it in either's count.

`jax.device_put(x, device_of_x)`, `x.addressable_data(0)`, `x.addressable_shards` and
`jax.make_array_from_single_device_arrays` make such pairs; deleting one of the two deletes the other. Where their age
does not tell that there is none (`executions`), the addresses of all buffers are compared. That costs 1 to 3 us for
each array that is alive, so where there are many of them and little memory to win, the answer is "shared" instead: to
look would cost more than the copy that it might save. It is "shared", too, where an array does not tell its address:
because its execution has failed, or because it is not ready yet on a CPU, and cannot be waited for without the danger
that the execution calls Python code that waits in turn.

An array may itself keep one other array on its buffer: JAX 0.10 makes it where the array is asked for its value
(`jax.device_get(state)`, `int(state.step)`), and later versions where it is asked for `addressable_data(0)`. As long as
nothing else refers to it, it is reached through that array alone, and dies with it. So it does not count.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any
from weakref import getweakrefcount

import jax

from pytc.interrupt import is_from_outside
from pytc.jax_compat.arrays import is_ready, is_told_late, new_shard, shards_of
from pytc.jax_compat.clients import every_array
from pytc.jax_compat.keys import bits_of
from pytc.ownership.arrays.alive import FEW, are_too_many
from pytc.ownership.cpython import interpreter

_PATIENCE = 0.1
"""Seconds to wait for an array while that may be in vain."""
_PAUSE = 0.0001
"""Seconds after which it is asked again."""


def _builtin_sleep() -> Callable[[float], None]:
    """`time.sleep` as the interpreter has it, out of a module object of our own. What stands in the one that all share
    may be a program's: gevent runs other code of this thread in there, and a mock counts its calls."""
    spec = importlib.util.find_spec("time")
    if spec is None or spec.loader is None:
        raise ImportError("this Python has no module named time")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sleep: Callable[[float], None] = module.sleep
    return sleep


_sleep = _builtin_sleep()


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


def _address(array: Any) -> int:
    _wait_for_address(array)
    if is_ready(array):
        try:
            _raise_of_failures(array)
        except jax.errors.JaxRuntimeError as error:
            raise _Failed from error
    address: int = array.unsafe_buffer_pointer()
    return address


def _wait_for_address(array: Any) -> None:
    """Wait until an array tells its address. Raises `_NotTold` where that may be in vain."""
    if not is_ready(array) and is_told_late(array) and not _is_ready_soon(array):
        raise _NotTold


_raise_of_failures: Callable[[Any], Any] = jax.block_until_ready
"""Raises if there was no memory for one of these arrays, which are ready. To ask that for its address ends the process.
"""


def _is_ready_soon(array: Any) -> bool:
    """Wait until an array is ready; not for long while there are other threads. One of these may be what the execution
    calls back, and wait for this thread, or for a lock that it has."""
    waited = 0.0
    while not is_ready(array):
        if waited > _PATIENCE:
            return False
        _sleep(_PAUSE)
        waited += 0.0 if interpreter.alone() else _PAUSE
    return True


def _are_ready(leaves: Sequence[Any]) -> bool:
    """Whether all leaves are ready. What is not ready afterwards, in one buffer, is none of theirs, and need not be
    asked. (An array on several devices is not ready as long as one of its buffers is not.)"""
    return all(is_ready(bits_of(leaf)) for leaf in leaves)


def own_shards(array: Any) -> list[Any]:
    """The arrays that an array on several devices consists of. It makes them when first asked, and keeps them."""
    return [] if _is_whole(array) else shards_of(array)


def _is_whole(array: Any) -> bool:
    """Whether all of an array is in one buffer."""
    sharding = array.sharding
    return type(sharding) is jax.sharding.SingleDeviceSharding or len(sharding.device_set) == 1


def shared(leaves: Sequence[Any], at_any_price: bool = False) -> list[bool]:
    """For each leaf, whether another array is on the same buffer, or may be; by address. All may be where that would
    take longer than to copy them, unless it is to be told `at_any_price`."""
    if not leaves:
        return []
    own = [own_shards(leaf) for leaf in leaves]
    # The leaf has a list of them, the list here, and `getrefcount` itself.
    held = [any(count > 3 for count in map(interpreter.getrefcount, shards)) for shards in own]
    weakly = [any(map(getweakrefcount, shards)) for shards in own]
    apart = {id(shard) for shards in own for shard in shards}
    everything = [array for array in every_array() if id(array) not in apart]
    if not at_any_price and _are_too_many(everything, leaves):
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


def _are_too_many(everything: Sequence[Any], leaves: Sequence[Any]) -> bool:
    """Whether to ask all arrays for their addresses would take longer than to copy the leaves."""
    count = len(everything)  # compared first, as each `nbytes` takes a microsecond
    return count > FEW and are_too_many(count, len(leaves), sum(leaf.nbytes for leaf in leaves), asked=True)


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
    """Whether `others`, each of which three lists have, are arrays that a leaf, or a shard of it, keeps for itself: the
    leaf's `shards` among them."""
    counted = [*map(interpreter.getrefcount, others)]
    own = {*map(id, shards)}
    # The lists, what keeps it, and `getrefcount` itself; a shard is in `shards`, too.
    if any(count > 5 + (id(other) in own) for count, other in zip(counted, others, strict=True)):
        return False
    if not others or any(map(getweakrefcount, others)):
        return False
    kept = own.union(id(new_shard(part)) for part in (leaf, *shards) if part.is_fully_replicated)
    return kept.issuperset(map(id, others))


def alone(leaves: Sequence[Any]) -> bool:
    """Whether no other array is on a buffer of the leaves; by address, the quick way where that tells."""
    everything = every_array()
    if _are_too_many(everything, leaves):
        return False
    try:
        if _are_seen_alone(leaves, everything):
            return True
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        if is_from_outside(error):
            raise
        # An array on several devices, one that was deleted, has failed, or does not get ready: look more closely.
    del everything  # `shared` counts references
    return not any(shared(leaves))


def _are_seen_alone(leaves: Sequence[Any], everything: Sequence[Any]) -> bool:
    """Whether each of the leaves, which are in one buffer each, is at an address where no other array is. (A function
    of its own, as `_at` is.)"""
    for leaf in leaves:
        _wait_for_address(leaf)
    ready, late = [], []
    for array in everything:
        if is_ready(array):
            ready.append(array)
        elif not is_told_late(array):
            late.append(array)
        elif not _is_whole(array):
            return False  # a part of it may be ready
        # Else it is in a buffer that is not ready, as in `_are_ready`, which is none of theirs.
    _raise_of_failures(ready)
    at = {id(array): array.unsafe_buffer_pointer() for array in ready + late}
    taken = collections.Counter(at.values())  # 0 for None: a leaf that no client lists, as in `shared`
    return all(taken[at.get(id(leaf))] == 1 for leaf in leaves)


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
    microsecond each. The leaves that were found the last time are asked first. Where none were, mostly all is ready and
    nothing shares.
    """
    alike, like = _alike(others, kinds)
    if not alike:
        return False
    try:
        if not kinds.shown and (places := _told_at_once(alike)) is not None:
            own = _told_at_once([leaves[k] for k in like])
            if own is not None and places.isdisjoint(own):
                return False
        ready = _are_ready(leaves)
        there = _at(None, ((other, addresses(other, ready)) for other in alike))
        owners = _owners(leaves, kinds.shown, there)
        if len(owners) < len(there):
            owners = _owners(leaves, like, there)
            kinds.shown = [*dict.fromkeys(owners.values())]
        return not all(_are_kept_by(leaves[k], own_shards(leaves[k]), there[at]) for at, k in owners.items())
    except RuntimeError as error:  # as in `shared`, or one that has failed
        if is_from_outside(error):
            raise
        return True


def _alike(others: Sequence[Any], kinds: Kinds) -> tuple[list[Any], set[int]]:
    """Those of `others` that are of one of these kinds, and the leaves (indices) of theirs. (A function of its own, as
    `_at` is.)"""
    alike, found, where = [], set(), kinds.where
    for other in others:
        is_alike = False
        for kind in kinds_of(other):
            if kind in where:
                is_alike = True
                found.add(kind)
        if is_alike:
            alike.append(other)
    return alike, {k for kind in found for k in where[kind]}


def _told_at_once(arrays: Iterable[Any]) -> set[int] | None:
    """The addresses of arrays of one buffer each that are ready now, without those that were deleted; None if some are
    otherwise. Raises `RuntimeError` of one that has failed, as `addresses` does."""
    there = [array for array in arrays if not array.is_deleted()]
    for array in there:
        if type(array.sharding) is not jax.sharding.SingleDeviceSharding or not array.is_ready():
            return None
    _raise_of_failures(there)  # of all at once: to ask each takes as long as all the rest
    return {array.unsafe_buffer_pointer() for array in there}


def _owners(leaves: Sequence[Any], some: Iterable[int], places: Container[int]) -> dict[int, int]:
    """Which of the places are buffers of some leaves (indices), and of which."""
    return {place: k for k in some for place in addresses(leaves[k]) if place in places}


def kinds_of(array: Any) -> list[Any]:
    """The shapes and dtypes that an array on the same buffer, or on one of the same buffers, may have."""
    shape, dtype, sharding = array.shape, array.dtype, array.sharding
    if type(sharding) is jax.sharding.SingleDeviceSharding:
        return [(shape, dtype)]
    return [(shape, dtype), (sharding.shard_shape(shape), dtype)]
