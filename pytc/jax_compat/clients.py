"""The clients of JAX's platforms, each of which lists every array that it holds.

For JAX 0.10 to 0.12: `jax.extend.backend.backends`, `Device.client`, and `live_arrays` and `device_count` of a client.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax.extend import backend


def lister() -> Callable[[], list[Any]]:
    """What lists every array of the default platform that is not deleted: a method of the client, in C++."""
    client: Any = jax.local_devices()[0].client
    arrays: Callable[[], list[Any]] = client.live_arrays
    return arrays


def every_array() -> list[Any]:
    """Every array that is not deleted, in the order in which each platform lists them."""
    return [array for client in _clients() for array in client.live_arrays()]


def may_be_cut() -> bool:
    """Whether there are devices that an array can be spread over."""
    return any(client.device_count() > 1 for client in _clients())


def _clients() -> Iterable[Any]:
    """Those of all platforms. When the interpreter ends, JAX has let go of them, and would make new ones, for which up
    to CPython 3.11 it waits forever: their threads do not start any more. Raises `RuntimeError` then."""
    if sys.is_finalizing():
        raise RuntimeError("the interpreter is about to end")
    return backend.backends().values()
