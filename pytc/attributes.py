"""What a function that stands for another one has of its attributes, and what does not go over to what wraps it.

`functools.wraps`, and JAX with it (`jax.grad(f)`, `jax.jit(f)`, ...), copies the attributes of what is wrapped. A
gradient that had the `lower`, `trace` and `explain` of its function would lower, trace and explain the function
instead; `jax.make_jaxpr`, which asks `jax.jit(f).trace`, would return the jaxpr of something else.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
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


def name_of(fun: Callable[..., Any]) -> str:
    """What profiles and messages call a function: of a `functools.partial` without a name of its own that of its
    function, as `jax.jit` does; of a callable object that of its class."""
    fun = _named(fun)
    return str(getattr(fun, "__name__", type(fun).__name__))


def qualname_of(fun: Callable[..., Any]) -> str:
    """The same with what it is defined in, `Trainer.step`, as `jax.jit` calls it in errors."""
    fun = _named(fun)
    return str(getattr(fun, "__qualname__", name_of(fun)))


def _named(fun: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(fun, functools.partial) and not hasattr(fun, "__name__"):
        fun = fun.func
    return fun


def resemble(
    wrapper: Callable[..., Any], fun: Callable[..., Any], updated: Iterable[str] = functools.WRAPPER_UPDATES
) -> None:
    """`functools.update_wrapper`, also of a callable that has no name, or attributes that cannot be copied."""
    with contextlib.suppress(AttributeError, TypeError):
        functools.update_wrapper(wrapper, fun, updated=tuple(updated))
    for name in ("__name__", "__qualname__"):
        if not isinstance(getattr(fun, name, None), str):
            setattr(wrapper, name, name_of(fun))
    # A bound method's dictionary is its function's, where `__wrapped__` may be set already.
    wrapper.__wrapped__ = fun  # type: ignore[attr-defined]


def plain(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun`, or a plain function in its place where there can be no weak references to it, as to an object whose class
    has `__slots__`: `jax.jit` keeps one, and the second `jax.jit` of what refuses it ends the process."""
    try:
        weakref.ref(fun)
    except TypeError:

        def calling(*args: Any, **kwargs: Any) -> Any:
            return fun(*args, **kwargs)

        resemble(calling, fun, updated=())
        return calling
    return fun
