"""Warnings of JAX that are not for those who call pytc, by their text.

For JAX 0.10 to 0.12.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")


def unusable_donations_ignored(make: Callable[[], Made]) -> Made:
    """What `make` returns, with no warning about donated buffers that JAX found no use for: those who call pytc have
    donated nothing themselves."""
    return _ignored(re.compile("Some donated buffers were not usable"), make)


def places_ignored(make: Callable[[], Made]) -> Made:
    """What `make` returns, with no warning about `device=` and `backend=`, which pytc's own caller has been warned
    of."""
    return _ignored(re.compile("backend and device argument on jit is deprecated"), make)


def _ignored(text: re.Pattern[str], make: Callable[[], Made]) -> Made:
    """By a filter of its own, which is taken out again wherever it is. (`warnings.catch_warnings` would put all filters
    back, and undo what another thread has set, or leaves, meanwhile. That this is no context manager, and takes it out
    without a loop, is for a Ctrl-C: see `pytc.uncollected`.)"""
    before: Any = warnings.filters
    own = ("ignore", text, Warning, None, 0)  # one that is equal, by another thread, is as good
    try:
        before.insert(0, own)
        return make()
    finally:
        try:
            if own in before:
                before.remove(own)
        finally:
            now: Any = warnings.filters
            if now is not before and own in now:
                now.remove(own)
