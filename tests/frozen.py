"""What no collection of garbage looks at, nor a search for what refers to something."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """All objects that are there.

    Within another `frozen` those that have come since are looked at: `gc.unfreeze` lets go of all that are frozen."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
