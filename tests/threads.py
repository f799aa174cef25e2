"""Other threads, beside which something is tried."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

FOR_LONG = 600.0
"""Seconds. What waits with a time limit may go on by itself: it does not count as waiting."""


@contextlib.contextmanager
def another_thread(name: str | None = None) -> Iterator[None]:
    """A thread that may run at any time, as far as anyone can tell; it only waits, with a time limit."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait, args=(FOR_LONG,), name=name)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
