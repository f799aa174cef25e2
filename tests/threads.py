"""Other threads, beside which something is tried."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def another_thread(name: str | None = None) -> Iterator[None]:
    """A thread that may run at any time, as far as anyone can tell; it only waits."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name=name)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
