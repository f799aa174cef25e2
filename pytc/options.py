"""What `pytc.compile` and `pytc.pmap` are told, besides the function."""

from __future__ import annotations

import difflib
import enum
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from pytc import passes as _passes
from pytc.arguments.leaves import PythonScalars, names_in, numbers_in
from pytc.calls.tracebacks import frames_to_the_caller
from pytc.donation import Donate, check_donate
from pytc.effort import Effort
from pytc.jax_compat import api
from pytc.mapping import Mapped

_DEPRECATED = (
    "backend and device argument on jit is deprecated, and on pytc.compile: put the arguments there with jax.device_put"
)
"""It begins as JAX's warning does, by which programs filter it."""


class Options(NamedTuple):
    """The options of a compiled function. `pytc.compile` describes them."""

    donate: Donate
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Iterable[str] | None
    python_scalars: PythonScalars
    share: bool
    passes: Sequence[_passes.Pass]
    effort: Effort
    jit: dict[str, Any]
    """What else is for `jax.jit`."""
    mapped: Mapped | None = None
    """What is mapped, and where: of `pytc.pmap`."""

    def checked(self, decorator: Callable[..., Any]) -> Options:
        """The same with numbers and names of parameters as tuples, and without what is JAX's word for no option.

        Raises `TypeError` or `ValueError` for what no function could be compiled with, and warns where JAX does. (What
        depends on the function, such as which parameters there are, is checked with that.)
        """
        _check_names(decorator, self.jit)
        check_donate(self.donate)
        _check_is_among("python_scalars", self.python_scalars, PythonScalars)
        _check_is_among("effort", self.effort, Effort)
        if not isinstance(self.share, bool):
            raise TypeError(f"share is {self.share!r}; it can be True or False")
        if not isinstance(self.passes, Sequence) or not all(map(callable, self.passes)):
            raise TypeError(
                f"passes is {self.passes!r}; it can be a list or tuple of functions from Program to Program"
            )
        jit = {name: value for name, value in self.jit.items() if value is not api.UNSPECIFIED}
        if api.says_where(jit):
            warnings.warn(_DEPRECATED, DeprecationWarning, stacklevel=frames_to_the_caller())
        jit |= {name: _read(name, jit[name]) for name in ("donate_argnums", "donate_argnames") if name in jit}
        return self._replace(
            static_argnums=_read("static_argnums", self.static_argnums),
            static_argnames=_read("static_argnames", self.static_argnames),
            jit=jit,
        )

    @property
    def pipeline(self) -> tuple[_passes.Pass, ...]:
        """The passes, without what other options rule out."""
        passes = tuple(self.passes)
        if api.says_where(self.jit):
            passes = tuple(each for each in passes if each is not _passes.forward)  # what is returned is put there, too
        if self.jit.get("keep_unused"):  # `jax.jit` leaves dead code to XLA then
            passes = tuple(_passes.prune_outputs if each is _passes.prune else each for each in passes)
        return passes


class Missing(enum.Enum):
    """What a decorator takes that is called with options alone. Not None, which is what comes of a function that was
    to return another and does not."""

    FUNCTION = "no function yet"


def check_function(decorator: Callable[..., Any], fun: Any) -> None:
    """Raises `TypeError` where a decorator of pytc is given what is no function."""
    name = decorator.__name__
    for outer in (staticmethod, classmethod, property):
        if isinstance(fun, outer):
            raise TypeError(f"pytc.{name} takes a function, not {fun!r}: put @{outer.__name__} above @pytc.{name}")
    if not callable(fun):
        raise TypeError(f"pytc.{name} takes a function, not {fun!r}")


def _check_names(decorator: Callable[..., Any], names: Iterable[str]) -> None:
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


def _read(option: str, given: Any) -> Any:
    """The numbers or names that an option has; None if it is not given."""
    read = numbers_in if option.endswith("nums") else names_in
    return None if given is None else read(option, given)


def _check_is_among(option: str, value: Any, choices: Any) -> None:
    """Raises `ValueError` where an option is none of its values, a `Literal`."""
    if value not in get_args(choices):
        raise ValueError(f"{option} is {value!r}; it can be {' or '.join(map(repr, get_args(choices)))}")
