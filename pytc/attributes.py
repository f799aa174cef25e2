"""Attributes of a function that do not go over to what wraps it.

`functools.wraps`, and JAX with it (`jax.grad(f)`, `jax.jit(f)`, ...), copies the attributes of what is wrapped. A
gradient that had the `lower`, `trace` and `explain` of its function would lower, trace and explain the function
instead; `jax.make_jaxpr`, which asks `jax.jit(f).trace`, would return the jaxpr of something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Attributes(dict[str, Any]):
    """A function's `__dict__` in which some names are found and not listed. Copying goes by the list."""

    def __init__(self, listed: dict[str, Any], own: dict[str, Any]) -> None:
        super().__init__(listed)
        self._own = frozenset(own)
        super().update(own)

    # What copies a dictionary asks a subclass for its keys only where `__iter__` is its own.
    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if name not in self._own)

    def keys(self) -> Any:
        """The names that are listed."""
        return dict.fromkeys(self).keys()


def give(function: Callable[..., Any], **own: Any) -> None:
    """Give a function attributes of its own: `function.lower` and the like, that nothing copies."""
    function.__dict__ = Attributes(function.__dict__, own)
