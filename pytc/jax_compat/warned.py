"""Warnings of JAX that are not for those who call pytc, by their text.

For JAX 0.10 to 0.12.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import Any


def unusable_donations_ignored() -> contextlib.AbstractContextManager[None]:
    """No warning about donated buffers that JAX found no use for: those who call pytc have donated nothing
    themselves."""
    return _ignored(re.compile("Some donated buffers were not usable"))


def places_ignored() -> contextlib.AbstractContextManager[None]:
    """No warning about `device=` and `backend=`, which pytc's own caller has been warned of."""
    return _ignored(re.compile("backend and device argument on jit is deprecated"))


@contextlib.contextmanager
def _ignored(text: re.Pattern[str]) -> Iterator[None]:
    """By a filter of its own, which is taken out again wherever it is. (`warnings.catch_warnings` would put all filters
    back, and undo what another thread has set, or leaves, meanwhile.)"""
    before: Any = warnings.filters
    own = ("ignore", text, Warning, None, 0)
    before.insert(0, own)
    try:
        yield
    finally:
        now: Any = warnings.filters
        for filters in (before, now):
            for k, each in enumerate(filters):
                if each is own:
                    del filters[k]
                    break
