"""Tracebacks and warnings that speak of the caller's code, as those of `jax.jit` do."""

from __future__ import annotations

import sys
from types import FrameType

from pytc.jax_compat.running import config


def leave_out_own_frames(raised: BaseException) -> None:
    """Leave out of a traceback the frames of this package, but for the first. JAX has left out its own by then; what
    keeps it from doing so (`JAX_TRACEBACK_FILTERING=off`) keeps these, too."""
    if config.jax_traceback_filtering == "off":
        return
    kept = raised.__traceback__
    while kept is not None:
        following = kept.tb_next
        while following is not None and is_own(following.tb_frame):
            following = following.tb_next
        kept.tb_next = following
        kept = following


def is_own(frame: FrameType) -> bool:
    """Whether a frame is of this package."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "pytc"


def frames_to_the_caller() -> int:
    """The `stacklevel` at which a warning speaks of the code outside of pytc."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and is_own(frame):
        frame, level = frame.f_back, level + 1
    return level
