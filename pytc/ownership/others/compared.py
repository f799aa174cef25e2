"""Whether JAX runs users' code when it looks up what it has compiled, between the proof and the execution.

It compares and hashes its settings, among which users may have put values of their own (`jax.make_user_context`,
`set_xla_metadata`), and the shardings of the arguments.
"""

from __future__ import annotations

import datetime
import enum
import gc
import operator
import weakref
from collections.abc import Iterable
from types import WrapperDescriptorType
from typing import Any

import jax

from pytc.classes import defined, shares, subclasses_of
from pytc.jax_compat.running import settings
from pytc.provenance import JAX, is_of, says_it_is_of

_ASKING = (weakref.ref, datetime.datetime, datetime.time)
"""Classes written in C that ask another object, as theirs are compared: what is referred to, a time zone."""
_MOST = 4096
"""Objects that are looked at."""


def _shardings_of_jax() -> list[type]:
    """Those that there are now. (Of some it has a class written in C, too, and knows the other no more.)"""
    found: list[type] = [jax.sharding.Sharding]
    for base in found:  # which grows
        found += [kind for kind in subclasses_of(base) if says_it_is_of(kind, JAX)]
    return found


_shardings: list[type] = _shardings_of_jax()
"""The classes of shardings the last time that they were looked at, if all were JAX's own."""
_last_settings: list[Any] = []
"""What JAX was set to the last time that it was looked at, if nothing was `odd`."""


def odd(values: Iterable[Any]) -> str:
    """What of these values, or in them, may be compared or hashed by users' code, in words; empty if nothing."""
    seen: set[int] = set()
    level = [*values]
    while level:
        new = {id(v): v for v in level if id(v) not in seen}
        seen.update(new)
        if len(seen) > _MOST:
            return "more than can be looked at"
        parts = [value for value in new.values() if not _is_compared_by_itself(type(value))]
        for kind in map(type, parts):
            if not (is_of(kind, JAX) or _is_compared_in_c(kind)):
                return f"a {kind.__qualname__}"
        level = gc.get_referents(*parts)
    return ""


def _is_compared_by_itself(kind: type) -> bool:
    """Whether nothing that objects of the class refer to is asked as they are compared: they are equal to themselves
    alone."""
    if issubclass(kind, enum.Enum):
        return shares(kind, enum.Enum, "__eq__", "__hash__", "__getattribute__")
    return shares(kind, object, "__eq__", "__hash__")


def _is_compared_in_c(kind: type) -> bool:
    """Whether code written in C compares objects of the class, with what they tell the collector of, and hashes them,
    if that can be done at all."""
    equal, hashed = defined(kind, "__eq__"), defined(kind, "__hash__")
    in_c = type(equal) is WrapperDescriptorType and (hashed is None or type(hashed) is WrapperDescriptorType)
    return in_c and not issubclass(kind, _ASKING)


def odd_setting() -> str:
    """What is `odd` among JAX's settings, in words; empty if nothing."""
    now = settings()
    if now is None:
        return "something unknown"
    if len(now) == len(_last_settings) and all(map(operator.is_, now, _last_settings)):
        return ""
    if not (found := odd(now)):
        _last_settings[:] = now
    return found


def odd_sharding() -> str:
    """The name of a class that a user has derived from one of JAX's shardings; empty if there is none. Then no array
    can have a sharding that runs users' code when it is compared or hashed, or dies with the array."""
    # A class lives as long as one that is derived from it. So as long as their number is the same, so are the classes.
    if sum(map(len, map(subclasses_of, _shardings))) == len(_shardings) - 1:
        return ""
    found: dict[int, type] = {id(kind): kind for kind in _shardings}
    level = _shardings
    while level:
        level = [kind for base in level for kind in subclasses_of(base) if id(kind) not in found]
        if people := [kind for kind in level if not is_of(kind, JAX)]:
            return people[0].__qualname__
        found |= {id(kind): kind for kind in level}
    _shardings[:] = found.values()
    return ""
