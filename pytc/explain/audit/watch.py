"""What stands in the place of `jax.jit`, `jax.pmap`, `equinox.filter_jit` and `flax.nnx.jit` while the script runs.

What the script makes with one of these is wrapped in a plain function: it takes its arguments over from its caller as
the proof needs it, binds as a method, and has the attributes of what it wraps (`lower`, `trace`, `clear_cache`,
`__wrapped__`, ...). It looks at a call and then makes it. An error loses the frames of this file on its way through,
so that a traceback reads as it would have.

What a library makes for itself is left alone. But Equinox and Flax make a `jax.jit` for each of the script's
functions, and it is there that the program can be seen.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import tree_leaves

from pytc.explain.audit.places import Place, place_of
from pytc.explain.audit.record import Clock, Function, Look, Tracing
from pytc.explain.audit.traced import Jit, Pmap
from pytc.jax_compat import is_library

_clock = Clock()
_functions: list[Function] = []
_expecting: list[tuple[Function, Look, Mapping[int, tuple[str, str]]]] = []
"""The call whose `jax.jit` inside a library is to be looked into, if there is one."""


def functions() -> list[Function]:
    """Everything that the script has made so far, in order."""
    return list(_functions)


def clock() -> Clock:
    """How much time has gone into looking."""
    return _clock


def install(module: types.ModuleType) -> None:
    """Watch what this module, which was imported just now, offers."""
    if module.__name__ == "jax":
        module.jit = _watching("jax.jit", module.jit)  # type: ignore[attr-defined]
        module.pmap = _watching("jax.pmap", module.pmap)  # type: ignore[attr-defined]
    elif module.__name__ == "equinox":
        module.filter_jit = _watching("equinox.filter_jit", module.filter_jit)  # type: ignore[attr-defined]
    else:
        module.jit = _watching("flax.nnx.jit", module.jit)  # type: ignore[attr-defined]


def _watching(api: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """`real`, whose results are watched where the script asks for them."""

    def watching(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        place = None if is_library(frame.f_code.co_filename) else place_of(frame)
        inside = place is None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("equinox", "flax")
        del frame
        try:
            made = real(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = _without_ours(error.__traceback__)
            raise
        if args:
            if inside and api == "jax.jit":
                return _tapped(made, args[0], kwargs)
            return made if place is None else _watched(api, made, args[0], kwargs, place)
        if place is None:
            return made
        # Options first, and the function later: `@jax.jit(static_argnums=0)`.
        decorate, asked_at = made, place
        return lambda fun: _watched(api, decorate(fun), fun, kwargs, asked_at)

    return functools.wraps(real)(watching)


def _watched(api: str, made: Any, fun: Callable[..., Any], options: Mapping[str, Any], place: Place) -> Any:
    """What the script gets."""
    if api == "equinox.filter_jit" and any(isinstance(leaf, jax.Array) for leaf in tree_leaves(fun)):
        # It is a pytree with arrays in it, and has to stay one.
        function = Function(api, fun, options, place, _clock)
        function.trouble = "it is a module with arrays in it, and stays as it is"
        _functions.append(function)
        return made
    tracing: Tracing | None = None
    if api == "jax.jit":
        tracing = Jit(made, fun, options)
    elif api == "jax.pmap":
        tracing = Pmap(made, fun, options)
    renewed = _renewed_by_flax if api == "flax.nnx.jit" else None
    function = Function(api, fun, options, place, _clock, tracing, renewed)
    _functions.append(function)
    needs_program = tracing is None

    def watched(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        try:
            look = function.arrive(frame, args, kwargs)
            del frame
            if look is None:
                return made(*args, **kwargs)
            if needs_program and look.signature.traced is None:
                return _looking_inside(function, look, made, args, kwargs)
            result = made(*args, **kwargs)
            function.left(look, result)
        except BaseException as error:
            error.__traceback__ = _without_ours(error.__traceback__)
            raise
        return result

    return _like(watched, made)


def _looking_inside(function: Function, look: Look, made: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first call of a function of Equinox's or Flax's: what it gives to `jax.jit` is its program."""
    leaves = tree_leaves((args, kwargs))
    names = {id(leaf): name for leaf, name in zip(leaves, look.signature.names, strict=True)}
    del leaves
    _expecting.append((function, look, names))
    try:
        result = made(*args, **kwargs)
    finally:
        if _expecting and _expecting[-1][1] is look:
            _expecting.pop()
    function.left(look, result)
    return result


def _tapped(jitted: Any, fun: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """A `jax.jit` of Equinox's or Flax's own, which is looked into when somebody waits for it."""
    tracing = Jit(jitted, fun, options)

    def tapped(*args: Any, **kwargs: Any) -> Any:
        try:
            if _expecting:
                _look_into(*_expecting.pop(), tracing, args, kwargs)
            return jitted(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = _without_ours(error.__traceback__)
            raise

    return _like(tapped, jitted)


def _look_into(
    function: Function,
    look: Look,
    names: Mapping[int, tuple[str, str]],
    tracing: Jit,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    stage = tracing.trace(args, kwargs)
    try:
        look.signature.traced = tracing.read(stage, args, kwargs, names)
    except Exception as error:  # noqa: BLE001 - a fault of ours is for the report, and must not end the script
        function.trouble = f"{type(error).__name__}: {error}"


def _renewed_by_flax(args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]) -> dict[int, list[Any]]:
    """The leaves that variables of Flax's hold, with those variables: after a call, each is given the new value."""
    from flax import nnx

    holders: dict[int, dict[int, Any]] = {}
    for part in tree_leaves((args, kwargs), is_leaf=lambda node: isinstance(node, nnx.Variable)):
        if isinstance(part, nnx.Variable):
            for leaf in tree_leaves(part):
                holders.setdefault(id(leaf), {})[id(part)] = part
    return {i: list(holders[id(leaf)].values()) for i, leaf in enumerate(leaves) if id(leaf) in holders}


def _like(wrapper: Callable[..., Any], made: Any) -> Callable[..., Any]:
    """The wrapper with the name and the attributes of what it wraps."""
    functools.update_wrapper(wrapper, made)
    for name in dir(made):
        if not name.startswith("__") and name not in vars(wrapper):
            setattr(wrapper, name, getattr(made, name))
    wrapper.__wrapped__ = getattr(made, "__wrapped__", made)  # type: ignore[attr-defined]
    return wrapper


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames of the audit's that it begins with."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    return trace


_OURS = {__file__, Function.arrive.__code__.co_filename, Jit.trace.__code__.co_filename}
