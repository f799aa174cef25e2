"""What `ownership` says of a call, whatever the objects at hand are.

The proof looks at objects of any class, and what their classes raise when they are looked at is no error of the call:
then nothing is proven, and nothing told. What a handler of a signal raises meanwhile is another matter.

Each question is written out: a wrapper with `*args` would hold the arguments in a tuple of its own, which the proof
would count. (A `with` statement holds nothing.)
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from pytc import ownership
from pytc.interrupt import is_from_outside

FIRST_SECONDS = 0.5
SHARE = 0.01
"""What `reasons` may take in all, unasked: so long, and this share of the time since the beginning."""
_looking = [0.0]
"""Seconds that `reasons` have taken so far."""
_STARTED = time.perf_counter()


class _Ended:
    """Ends the `with` block where something raises that is no error of the call."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> bool:
        return isinstance(error, Exception) and not is_from_outside(error)


_WHATEVER_IT_RAISES = _Ended()


def held(call: ownership.Call, wanted: ownership.Wanted, outcome: ownership.Outcome) -> Collection[int]:
    """Those of the leaves `wanted` that are not proven dead; all where to find out raises."""
    with _WHATEVER_IT_RAISES:
        return ownership.held(call, wanted, outcome)
    return wanted


def staying(call: ownership.Call) -> frozenset[int] | None:
    """The leaves that will be the same at the next call, if the result of this one goes back to where others came from;
    None if it does not, or where to find out raises."""
    with _WHATEVER_IT_RAISES:
        return ownership.staying(call)
    return None


def replaced(call: ownership.Call) -> frozenset[int]:
    """The leaves in whose place the result comes; none where to find out raises."""
    with _WHATEVER_IT_RAISES:
        return ownership.replaced(call)
    return frozenset()


def survivors(call: ownership.Call, outcome: ownership.Outcome) -> ownership.Surviving:
    """The leaves that outlive the call for reasons that its site alone shows; none where to find out raises."""
    with _WHATEVER_IT_RAISES:
        return ownership.survivors(call, outcome)
    return ownership.Surviving(frozenset(), frozenset())


def reasons(call: ownership.Call, wanted: Sequence[int], outcome: ownership.Outcome) -> dict[int, ownership.Held]:
    """For each leaf of `wanted` that is not proven dead, what holds it; for none where to find out raises."""
    started = time.perf_counter()
    try:
        with _WHATEVER_IT_RAISES:
            return ownership.reasons(call, wanted, outcome)
        return {}
    finally:
        _looking[0] += time.perf_counter() - started


def has_time() -> bool:
    """Whether to ask for `reasons` at a call that nobody has asked anything of. Each time all objects are looked at,
    which takes a fifth of a second where they are millions."""
    return _looking[0] < FIRST_SECONDS + SHARE * (time.perf_counter() - _STARTED)


def glance(call: ownership.Call, wanted: Sequence[int], outcome: ownership.Outcome) -> dict[int, ownership.Held]:
    """For each leaf of `wanted`, what holds it as far as variables show; for none where to find out raises."""
    with _WHATEVER_IT_RAISES:
        return ownership.glance(call, wanted, outcome)
    return {}
