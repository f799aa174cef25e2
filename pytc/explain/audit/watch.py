"""Replacements of `jax.jit`, `jax.pmap`, `equinox.filter_jit` and `flax.nnx.jit` while the script runs.

They wrap each function that the script makes with one of these in a plain Python function: it takes its arguments from
the caller's stack, as the proof needs it, binds as a method, and has the attributes of the wrapped function (`lower`,
`trace`, `clear_cache`, `__wrapped__`, ...). It examines a call and then makes it. Frames of this file are removed from
errors, so that tracebacks read as without the audit.

Functions that libraries make for themselves are left alone. But Equinox and Flax make a `jax.jit` for each of the
script's functions, and only there the program can be seen.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import tree_leaves

from pytc import ownership
from pytc.attributes import give
from pytc.explain.audit.record import Clock, Tracing, WatchedFunction
from pytc.explain.audit.seen import Examined
from pytc.explain.audit.traced import Jit, Pmap
from pytc.explain.places import Place, place_of
from pytc.jax_compat.origins import is_library

MOST_MADE = 8
"""At most so many functions that one expression makes under one name are watched; those that a loop makes are alike."""

_TAPPED = frozenset(["equinox", "flax"])
"""Packages whose own calls of `jax.jit` are watched."""


class Watch:
    """Everything that is watched."""

    def __init__(self) -> None:
        self.functions: list[WatchedFunction] = []
        """What the script has made so far, in order."""
        self.clock = Clock()
        self._expecting = _Expecting()

    def install(self, module: types.ModuleType) -> None:
        """Watch the functions of this module, which was just imported."""
        names = {"jax": ("jit", "pmap"), "equinox": ("filter_jit",), "flax.nnx": ("jit",)}[module.__name__]
        for name in names:
            setattr(module, name, self.watching(f"{module.__name__}.{name}", getattr(module, name)))

    def watching(self, api: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """A replacement of `real` that watches the functions which the script makes with it."""

        def watching(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            place = None if is_library(frame.f_code.co_filename) else place_of(frame)
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            del frame
            try:
                made = real(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = _without_ours(error.__traceback__)
                raise
            options = {name: value for name, value in kwargs.items() if name != "fun"}
            if not args and "fun" not in kwargs:
                # Options first, and the function later: `@jax.jit(static_argnums=0)`.
                return made if place is None else lambda fun: self._watched(api, made(fun), fun, options, place)
            fun = args[0] if args else kwargs["fun"]
            if place is not None:
                return self._watched(api, made, fun, options, place)
            return self._tapped(made, fun, options) if package in _TAPPED and api == "jax.jit" else made

        watching.__code__ = _passed_over(watching.__code__)
        return functools.wraps(real)(watching)

    def _watched(self, api: str, made: Any, fun: Callable[..., Any], options: Mapping[str, Any], place: Place) -> Any:
        """The watched function that the script gets."""
        tracing: Tracing | None = None
        if api == "jax.jit":
            tracing = Jit(made, fun, options)
        elif api == "jax.pmap":
            tracing = Pmap(made, fun, options)
        renewed = _renewed_by_flax if api == "flax.nnx.jit" else None
        function = WatchedFunction(api, fun, options, place, self.clock, tracing, renewed)
        alike = [each for each in self.functions if (each.place, each.name) == (place, function.name)]
        if len(alike) == MOST_MADE:
            alike[0].unwatched += 1
            return made
        self.functions.append(function)
        if api == "equinox.filter_jit" and any(isinstance(leaf, jax.Array) for leaf in tree_leaves(fun)):
            function.trouble = "it is a module with arrays in it, and has to stay one"
            return made
        from_inside = tracing is None

        def watched(*args: Any, **kwargs: Any) -> Any:
            call = ownership.Call(sys._getframe(1), args, kwargs, [])
            try:
                look = function.arrive(call)
                del call
                if look is None:
                    return made(*args, **kwargs)
                if from_inside and look.signature.traced is None:
                    return self._looking_inside(function, look, made, args, kwargs)
                result = made(*args, **kwargs)
                function.left(look, result)
            except BaseException as error:
                error.__traceback__ = _without_ours(error.__traceback__)
                raise
            return result

        return _like(watched, made, function)

    def _looking_inside(
        self, function: WatchedFunction, look: Examined, made: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make the first call of a function of Equinox or Flax; what it passes to `jax.jit` is its program."""
        expected = function, look, function.called(look, args, kwargs)
        calls = self._expecting.calls
        calls.append(expected)
        try:
            result = made(*args, **kwargs)
        finally:
            if expected in calls:
                calls.remove(expected)
        function.left(look, result)
        return result

    def _tapped(self, jitted: Any, fun: Callable[..., Any], options: Mapping[str, Any]) -> Any:
        """A `jax.jit` of Equinox or Flax itself, whose program is read if a call expects it."""
        tracing = Jit(jitted, fun, options)

        def tapped(*args: Any, **kwargs: Any) -> Any:
            try:
                if self._expecting.calls:
                    _look_into(self._expecting.calls.pop(), tracing, args, kwargs)
                return jitted(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = _without_ours(error.__traceback__)
                raise

        return _like(tapped, jitted)


_Expected = tuple[WatchedFunction, Examined, Mapping[int, tuple[str, str]]]
"""A call, and by id the parameter and path of each array in its arguments."""


class _Expecting(threading.local):
    """Of each thread, the calls that are about to call a library's `jax.jit`, where their programs can be seen."""

    def __init__(self) -> None:
        self.calls: list[_Expected] = []


def _look_into(expected: _Expected, tracing: Jit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    function, look, names = expected
    stage = tracing.trace(args, kwargs)
    try:
        look.signature.traced = tracing.read(stage, args, kwargs, names)
    except Exception as error:  # noqa: BLE001 - a fault of ours is for the report, and must not end the script
        function.failed(error)


def _renewed_by_flax(args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]) -> dict[int, list[Any]]:
    """The leaves that Flax variables hold, with these variables: Flax gives each its new value after a call."""
    from flax import nnx

    holders: dict[int, dict[int, Any]] = {}
    for part in tree_leaves((args, kwargs), is_leaf=lambda node: isinstance(node, nnx.Variable)):
        if isinstance(part, nnx.Variable):
            for leaf in tree_leaves(part):
                holders.setdefault(id(leaf), {})[id(part)] = part
    return {i: list(holders[id(leaf)].values()) for i, leaf in enumerate(leaves) if id(leaf) in holders}


def _like(wrapper: Callable[..., Any], made: Any, function: WatchedFunction | None = None) -> Callable[..., Any]:
    """The wrapper with the name, the attributes and the methods of `made`, which is watched as `function`."""
    wrapper.__code__ = _passed_over(wrapper.__code__)
    functools.update_wrapper(wrapper, made)
    wrapper.__wrapped__ = getattr(made, "__wrapped__", made)  # type: ignore[attr-defined]
    # `update_wrapper` copies the object's `__dict__`, and methods are not there.
    names = [name for name in dir(made) if not name.startswith("__") and name not in vars(wrapper)]
    methods = {name: getattr(made, name) for name in names}
    if function is not None:
        methods |= {name: _ahead(function, methods[name]) for name in ("lower", "trace") if name in methods}
    give(wrapper, **methods)
    return wrapper


def _ahead(function: WatchedFunction, real: Callable[..., Any]) -> Callable[..., Any]:
    """A method that returns a program ahead of its calls, and notes that these are not seen."""

    def ahead(*args: Any, **kwargs: Any) -> Any:
        function.ahead = True
        try:
            return real(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = _without_ours(error.__traceback__)
            raise

    ahead.__code__ = _passed_over(ahead.__code__)
    return functools.wraps(real)(ahead)


@functools.cache
def _passed_over(code: types.CodeType) -> types.CodeType:
    """The code of a wrapper, under a file name that `warnings.warn` skips.

    `stacklevel` does not count frames of the import machinery, which it recognises by the file name. So a warning of
    JAX names the same line of the script as without the audit.
    """
    return code.replace(co_filename=_PASSED_OVER)


_PASSED_OVER = "<pytc audit, for warnings as importlib._bootstrap>"


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames of the audit at its beginning."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    return trace


_OURS = {__file__, _PASSED_OVER, WatchedFunction.arrive.__code__.co_filename, Jit.trace.__code__.co_filename}
