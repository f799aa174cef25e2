"""No garbage collection while programs are made.

A jaxpr is thousands of objects that live on and none that is garbage in a cycle; but the collector counts what is made,
and each time that it looks, it looks at all that JAX remembers. With thousands of leaves that is a tenth of the time
until the first result.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")


def uncollected(make: Callable[[], Made]) -> Made:
    """What `make` returns. Meanwhile there is no garbage collection, if the collector is on; afterwards it is on again.

    This is no context manager, since a Ctrl-C could strike as that is entered or left, and leave the collector off: the
    interpreter looks for signals as a Python function begins, and after a call of a C function. Here all of that is
    within the `try`, and nothing is called behind it before the collector is on again.
    """
    was_on = gc.isenabled()
    try:
        if was_on:
            gc.disable()
        return make()
    finally:
        if was_on:
            gc.enable()
