"""An argument that was deleted before the call: the error names the leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pytc.program import Leaf


def check_not_deleted(error: Exception, leaves: Sequence[Leaf], values: Sequence[Any]) -> None:
    """Raises `RuntimeError` naming the leaf where `error` is about an array that was deleted before the call.

    Only errors that speak of deletion are looked at: a callback that raises ends a program after it has taken over its
    arguments, which are deleted then, too, though the error is about something else.
    """
    if "deleted" not in str(error):
        return
    for leaf, value in zip(leaves, values, strict=True):
        if isinstance(value, jax.Array) and value.is_deleted():
            failed = ", or by this one, which has failed on one of several devices"
            now = failed if len(value.sharding.device_set) > 1 else ""
            raise RuntimeError(
                f"`{leaf.path}` was deleted before this call (moved, donated to another function, or by `.delete()`)"
                f"{now}: {error}"
            ) from error
