"""What has been staged and compiled of a function, through whichever wrapper.

`jax.jit(fun)` made anew, for each call say, finds what an earlier `jax.jit(fun)` compiled. So does `pytc.compile(fun)`
with the same options: its programs belong to the function, and mostly live as long as that. (Not where one refers to
the function by itself: a static leaf that does, for one.) Call sites, and what their calls have shown, are each
wrapper's own, and are handed on to one that is made after it is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

from pytc.calls.cache import Shared
from pytc.interrupt import is_from_outside
from pytc.unheld import told_by_identity

Known = dict[Hashable, Shared]
"""By the tree of the arguments, the types of their leaves, static values and sharing."""

_of_functions: weakref.WeakKeyDictionary[Any, dict[Hashable, Known]] = weakref.WeakKeyDictionary()


def known_of(fun: Callable[..., Any], *options: Any) -> Known:
    """What is known of a function compiled with these options.

    Nothing, and that stays with who asks, where functions like this one are not compared by identity (a method, which
    is made anew each time, is not), or options cannot be hashed.
    """
    if not told_by_identity(fun):
        return {}
    try:
        return _of_functions.setdefault(fun, {}).setdefault(_hashable(options), {})
    except TypeError as error:  # something in the options cannot be hashed
        if is_from_outside(error):
            raise
        return {}


def _hashable(value: Any) -> Hashable:
    """What is equal for options that are, through lists and dictionaries."""
    if isinstance(value, dict):
        return dict, frozenset((key, _hashable(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(_hashable(each) for each in value)
    return value  # type: ignore[no-any-return]
