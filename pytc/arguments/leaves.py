"""Which leaves of the arguments are traced and which are static, and what they are called.

Arrays (JAX and NumPy) and Python scalars are traced, exactly those that `jax.jit` traces. Every other leaf
(a function, a string, an enum, a configuration object) is static: part of the key under which the compiled
program is kept, compared by equality.
"""

from __future__ import annotations

import inspect
import operator
import struct
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.tree_util import FlattenedIndexKey, keystr, tree_flatten_with_path, tree_leaves

from pytc.errors import StaticLeafError
from pytc.interrupt import is_from_outside
from pytc.jax_compat.avals import is_for_jit, is_view_of_ref
from pytc.jax_compat.running import Tracer
from pytc.move import Moved

PythonScalars = Literal["trace", "static"]
LeafKind = Literal["jit", "array", "host", "static"]


def numbers_in(option: str, value: int | Iterable[int]) -> tuple[int, ...]:
    """The numbers that an option names: one (NumPy's, too), or several. Raises `TypeError` for anything else."""
    try:
        return (operator.index(value),)  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        return tuple(map(operator.index, value))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{option} is {value!r}; it can be a number or several: those of arguments") from None


def names_in(option: str, value: str | Iterable[str]) -> tuple[str, ...]:
    """The names that an option has: one, or several. Raises `TypeError` for anything else."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{option} is {value!r}; it can be a name or several: those of parameters")
    return names


class StaticArgument:
    """An argument that `static_argnums` or `static_argnames` names, made one static leaf whatever it holds."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        # By the id of the class: one whose own class cannot be hashed has objects that can be.
        return hash((id(type(self.value)), static_key(self.value)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StaticArgument) or type(self.value) is not type(other.value):
            return False
        try:
            return bool(static_key(self.value) == static_key(other.value))
        except Exception as error:
            if is_from_outside(error):
                raise
            kind = type(self.value).__name__
            what = f"comparing two of type {kind} raised {type(error).__name__}"
            raise ValueError(f"static arguments should be comparable using __eq__: {what}") from error


def unwrapped(value: Any) -> Any:
    """What a static argument was before it was made one leaf; anything else as it is."""
    return value.value if isinstance(value, StaticArgument) else value


def static_in(leaves: Iterable[Any]) -> set[int]:
    """The ids of the static arguments among the leaves: what these are made of is not looked at, even if their classes
    are pytrees."""
    return {id(leaf.value) for leaf in leaves if type(leaf) is StaticArgument}


def ends(leaves: Iterable[Any]) -> set[int]:
    """The ids of what is a leaf: of a static argument, whatever that holds, too."""
    return {*map(id, leaves), *static_in(leaves)}


def static_key(value: Any) -> Hashable:
    """What stands for a static leaf in a key, next to its type. Python's own floats and complex numbers by their bits:
    0.0 is not -0.0, and a NaN is itself. All else as its class says that it is equal."""
    if type(value) is float:
        return _BITS.pack(value)
    if type(value) is complex:
        return _BITS.pack(value.real) + _BITS.pack(value.imag)
    return value  # type: ignore[no-any-return]


_BITS = struct.Struct("d")


def kind_of(leaf: Any, python_scalars: PythonScalars = "trace") -> LeafKind:
    """How a call treats this leaf: `array` for a `jax.Array` or `jax.Ref`, `host` for NumPy data and Python scalars
    (traced too), `static`, or `jit` when a transformation is at work, and for what only `jax.jit` knows how to pass:
    such calls are left to it.

    The answer depends on the leaf's type alone. (A NumPy array of a dtype that JAX does not have is `host`, too, and is
    refused as the function is staged.)
    """
    if isinstance(leaf, Tracer):
        return "jit"
    if isinstance(leaf, jax.Array | jax.Ref):
        return "array"
    if isinstance(leaf, np.ndarray):
        return "host"
    if isinstance(leaf, np.generic):  # before Python's scalars, since `np.float64` is a `float`, too
        return "static" if isinstance(leaf, np.character | np.datetime64 | np.timedelta64 | np.void) else "host"
    if isinstance(leaf, bool | int | float | complex):
        return "host" if python_scalars == "trace" else "static"
    return "jit" if _is_for_jit(leaf) else "static"


_for_jit: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _is_for_jit(value: Any) -> bool:
    """Whether `jax.jit` takes a value that is none of the usual: one of `jax.experimental.hijax`, a part of a
    `jax.Ref`, or a token. Each class is asked about once, since the error by which JAX refuses others shows the value.
    """
    known = _for_jit.get(type(value))
    if known is None:
        try:
            known = is_view_of_ref(value) or is_for_jit(jax.typeof(value))
        except Exception as error:  # JAX's, or one of users' code that shows the value
            if is_from_outside(error):
                raise
            known = False
        _for_jit[type(value)] = known
    return known


class Parameters:
    """The parameters of the wrapped function: what an argument is called, and which are static."""

    def __init__(
        self,
        fun: Callable[..., Any],
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Iterable[str] | None = None,
    ) -> None:
        self.signature: inspect.Signature | None
        try:
            self.signature = inspect.signature(fun)
        except (TypeError, ValueError):  # some functions written in C tell no signature
            self.signature = None
        self.parameters = list(self.signature.parameters.values()) if self.signature else []
        self.positional = [p.name for p in self.parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.positional_only = frozenset(p.name for p in self.parameters if p.kind is p.POSITIONAL_ONLY)
        self.keywords = next((p.name for p in self.parameters if p.kind is p.VAR_KEYWORD), None)
        """What stands for any keyword: `kwargs` in `**kwargs`."""
        self.starred = next((p.name for p in self.parameters if p.kind is p.VAR_POSITIONAL), "")
        """What stands for any further positional argument: `args` in `*args`."""
        self.static_argnums, self.static_argnames = self._resolve_static(static_argnums, static_argnames)

    def _resolve_static(
        self, argnums: int | Sequence[int] | None, argnames: str | Iterable[str] | None
    ) -> tuple[tuple[int, ...], frozenset[str]]:
        """As `jax.jit`: where only one of the two is given, the signature tells the other. Numbers below 0 count from
        the last parameter, or where there is `*args` from the last argument of a call."""
        numbers = None if argnums is None else numbers_in("static_argnums", argnums)
        names = None if argnames is None else names_in("static_argnames", argnames)
        either = [p.name for p in self.parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if numbers is not None:
            self._check_numbers("static_argnums", numbers)
            if self.positional and not self.starred:
                numbers = tuple(i % len(self.positional) for i in numbers)
            if names is None:
                names = tuple(n for i in numbers if (n := self._name_at(i)) in either)
        elif names is not None:
            self.check_names("static_argnames", names)
            numbers = tuple(i for i, name in enumerate(self.positional) if name in names and name in either)
        return numbers or (), frozenset(names or ())

    def _name_at(self, index: int) -> str | None:
        return self.positional[index] if -len(self.positional) <= index < len(self.positional) else None

    def _check_numbers(self, option: str, numbers: tuple[int, ...]) -> None:
        for i in numbers:
            if not self.takes_positional(i + 1 if i >= 0 else -i):
                known = f": {', '.join(self.positional)}" if self.positional else ""
                raise ValueError(f"{option} names argument {i}, but the function takes {len(self.positional)}{known}")

    def check_names(self, option: str, names: Collection[str]) -> None:
        """Raises `ValueError` when `names`, given as `option`, are not all parameters of the function, and `TypeError`
        for one that is no string."""
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"{option} names {name!r}, but parameters are named by strings")
        if self.signature is None or self.keywords is not None:
            return
        for name in names:
            if name not in self.signature.parameters:
                known = ", ".join(self.signature.parameters)
                raise ValueError(f"{option} names {name!r}, which is not a parameter of the function ({known})")

    def takes_positional(self, number: int) -> bool:
        """Whether the function can be called with that many positional arguments, as far as anybody knows."""
        return self.signature is None or bool(self.starred) or number <= len(self.positional)

    def wrap_static(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with each static one made a single leaf."""
        if self.static_argnums:
            static = {i % len(args) for i in self.static_argnums if -len(args) <= i < len(args)}
            args = tuple(StaticArgument(a) if i in static else a for i, a in enumerate(args))
        if self.static_argnames and not self.static_argnames.isdisjoint(kwargs):
            kwargs = {k: StaticArgument(v) if k in self.static_argnames else v for k, v in kwargs.items()}
        return args, kwargs

    def donated_name(self, index: int) -> str | None:
        """What the argument is called that `donate_argnums` numbers, from the last one on where it is below 0; None
        where that may be another one at every call, by which `jax.jit` donates nothing either.

        Raises `ValueError` where the function has no such argument.
        """
        if index < 0 and (self.starred or self.signature is None):
            return None
        self._check_numbers("donate_argnums", (index,))
        return self.positional_name(index if index >= 0 else index + len(self.positional))

    def positional_name(self, index: int) -> str:
        """What the argument at this position is called: a parameter's name, or `args[2]` under `*args`."""
        if index < len(self.positional):
            return self.positional[index]
        return f"{self.starred or 'args'}[{index - len(self.positional)}]"

    def paths(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, str, Any]]:
        """(parameter, path, leaf) for each leaf of the arguments, in flattening order. (A class of users may name its
        children in another order than it has them.)"""
        found = []
        keyed = tree_flatten_with_path((args, kwargs))[0]
        for (path, _), leaf in zip(keyed, tree_leaves((args, kwargs)), strict=True):
            where, which = path[0], path[1]
            parameter = self.positional_name(which.idx) if where.idx == 0 else str(which.key)
            found.append((parameter, parameter + keystr(path[2:]), leaf))
        return found


def key_paths(tree: Any, count: int) -> list[str]:
    """The paths of a tree's `count` leaves, in flattening order: by number if a class of users names more children than
    it has, or fewer."""
    paths = [keystr(path) for path, _ in tree_flatten_with_path(tree)[0]]
    return paths if len(paths) == count else [keystr((FlattenedIndexKey(i),)) for i in range(count)]


def unhashable(path: str, value: Any) -> StaticLeafError:
    """The error for a static leaf that cannot be a key, or for an array whose items are not numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return StaticLeafError(
            f"`{path}`: JAX has no type for a NumPy array of {value.dtype}: {_shown(value)}. Encode it as numbers, or "
            "pass a tuple in its place, which is static."
        )
    if isinstance(value, StaticArgument) and isinstance(value.value, Moved):
        return StaticLeafError(
            f"`{path}`: static_argnums or static_argnames says that it is static, part of the key of the compiled "
            "program, so it cannot be given up. Pass it without pytc.move, or take it out of the static arguments."
        )
    if isinstance(value, StaticArgument):
        why = "static_argnums or static_argnames says that it is static"
        advice = (
            "Pass something hashable (a tuple for a list), or take it out of the static arguments: arrays are traced."
        )
        value = value.value
    else:
        why = "it is neither an array nor a pytree, so it is static"
        advice = (
            "If it holds arrays, make it a pytree (jax.tree_util.register_dataclass); else make it hashable, or "
            "capture it in the function."
        )
    return StaticLeafError(
        f"`{path}`: {why}, part of the key of the compiled program. But its type, {type(value).__name__}, cannot be "
        f"hashed: {_shown(value)}. {advice}"
    )


def _shown(value: Any) -> str:
    return " ".join(f"{value!r:.120}".split())
