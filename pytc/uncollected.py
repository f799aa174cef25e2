"""No garbage collection while programs are made.

A jaxpr is thousands of objects that live on and none that is garbage in a cycle; but the collector counts what is made,
and each time that it looks, it looks at all that JAX remembers. With thousands of leaves that is a tenth of the time
until the first result.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside, if the collector is on; afterwards it is on again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
