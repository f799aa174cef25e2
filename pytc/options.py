"""What `pytc.compile` and `pytc.pmap` are told for `jax.jit`."""

from __future__ import annotations

import difflib
import enum
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pytc.jax_compat import api


class Missing(enum.Enum):
    """What a decorator takes that is called with options alone. Not None, which is what comes of a function that was
    to return another and does not."""

    FUNCTION = "no function yet"


def check_function(decorator: str, fun: Any) -> None:
    """Raises `TypeError` where a decorator of pytc, of this name, is given what is no function."""
    if isinstance(fun, staticmethod):
        raise TypeError(f"pytc.{decorator} takes a function, not {fun!r}: put @staticmethod above @pytc.{decorator}")
    if not callable(fun):
        raise TypeError(f"pytc.{decorator} takes a function, not {fun!r}")


def check_options(decorator: Callable[..., Any], names: Iterable[str]) -> None:
    """Raises `TypeError` where `jax.jit` has no option of such a name, with the likeliest one that is meant."""
    accepted = _named(api.jit_parameters)
    for name in names:
        if name not in accepted and all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in accepted.values()):
            known = [*_named(inspect.signature(decorator).parameters), *accepted]
            near = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"pytc.{decorator.__name__} has no option {name}, nor has jax.jit{meant}")


def _named(parameters: Mapping[str, inspect.Parameter]) -> dict[str, inspect.Parameter]:
    """Those that can be given by name: not the function."""
    return {name: each for name, each in parameters.items() if each.kind is not inspect.Parameter.POSITIONAL_ONLY}
