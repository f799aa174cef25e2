"""JAX's settings at one moment, as far as what is traced depends on them."""

from __future__ import annotations

import weakref
from typing import Any

import jax

from pytc.interrupt import has_room, put_off
from pytc.jax_compat import api
from pytc.jax_compat.running import settings


class Context:
    """64-bit mode, meshes, matmul precision and the like, as they are when this is made.

    JAX finds again what it has traced where they are the same, and only there.
    """

    def __init__(self) -> None:
        def pytc_context() -> None:
            """What JAX's log of what it traces calls it by."""

        self.settings = settings()
        """All of them, as far as JAX tells: enough to guess which of several contexts is the current one."""
        self._witness = api.jit(pytc_context)
        self._traced = weakref.ref(self._trace())

    def is_current(self) -> bool:
        """Whether the settings are these now."""
        return self.settings == settings() and self._trace() is self._traced()

    def is_spent(self) -> bool:
        """Whether JAX has let go of what it traced there (`jax.clear_caches`), so that it would trace anew in any
        context."""
        return self._traced() is None

    def _trace(self) -> Any:
        return put_off(self._traced_now) if has_room() else self._traced_now()

    def _traced_now(self) -> Any:
        """(A Ctrl-C in the midst of it might leave JAX in the trace for good. This takes a moment, so it can wait.)"""
        with jax.no_tracing(False):  # that is about users' functions
            return self._witness.trace().jaxpr
