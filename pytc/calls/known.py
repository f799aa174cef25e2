"""What has been staged and compiled of a function, through whichever wrapper.

`jax.jit(fun)` made anew, for each call say, finds what an earlier `jax.jit(fun)` compiled. So does `pytc.compile(fun)`
with the same options: its programs belong to the function, and mostly live as long as that. (Where one refers to the
function, as a static leaf may, the function lives as long as its programs: until `jax.clear_caches()`, as with
`jax.jit`, and then the first call of the next wrapper.) Call sites, and what their calls have shown, are each wrapper's
own, and are handed on to one that is made after it is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

from pytc.calls.cache import Shared
from pytc.context import Context
from pytc.interrupt import is_from_outside
from pytc.unheld import told_by_identity

Known = dict[Hashable, dict[tuple[int, ...] | None, Shared]]
"""By the tree of the arguments, the types of their leaves and static values; and then by sharing."""

_of_functions: weakref.WeakKeyDictionary[Any, dict[Hashable, Known]] = weakref.WeakKeyDictionary()
_since: list[Context] = []
"""A context that is spent if JAX has let go of what it has traced since the programs were last looked through."""


def known_of(fun: Callable[..., Any], *options: Any) -> Known:
    """What is known of a function compiled with these options.

    Nothing, and that stays with who asks, where functions like this one are not compared by identity (a method, which
    is made anew each time, is not), or options cannot be hashed.
    """
    if not told_by_identity(fun):
        return {}
    if not _since or _since[0].is_spent():
        _since[:] = [Context()]
        _forget_spent()
    try:
        return _of_functions.setdefault(fun, {}).setdefault(_hashable(options), {})
    except TypeError as error:  # something in the options cannot be hashed
        if is_from_outside(error):
            raise
        return {}


def _forget_spent() -> None:
    """Let go of the programs of all functions that no call will use any more. (Before a call rather than after: what
    goes with them may run code.)"""
    for of_options in list(_of_functions.values()):
        for known in list(of_options.values()):
            for key, by_sharing in list(known.items()):
                for sharing, shared in list(by_sharing.items()):
                    if shared.is_spent():
                        by_sharing.pop(sharing, None)
                if not by_sharing:
                    known.pop(key, None)


def _hashable(value: Any) -> Hashable:
    """What is equal for options that are, through lists and dictionaries."""
    if isinstance(value, dict):
        return dict, frozenset((key, _hashable(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(_hashable(each) for each in value)
    return value  # type: ignore[no-any-return]
