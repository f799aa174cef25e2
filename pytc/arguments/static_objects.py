"""Arrays in objects that are static, because they are no pytrees: which a function must not read.

What a function has captured besides, in its closure or in the globals, it may read: `jax.jit` takes that for constant,
too. But an object that it is handed is looked up in the cache at each call, and looks the same whatever it holds.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import types
from collections.abc import Iterator, Sequence, Set
from types import NoneType
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from pytc.errors import StaticLeafError
from pytc.program import Leaf

_MOST = 50_000
"""How many objects are looked at in a static one, those that are nearest to it first: half a second at most."""


def check_not_of_static(leaves: Sequence[Leaf], captured: Sequence[Any]) -> None:
    """Raises `StaticLeafError` where the function has read an array out of one of the static `owners`, or out of
    objects in it. The array is a constant of the program; after the object is given another one, the same program would
    be found for it and would still read the first. (`jax.jit` refuses such an object.)"""
    arrays = {id(value) for value in captured if isinstance(value, jax.Array)}
    for of, owner in owners(leaves) if arrays else ():
        if (path := _path_in(arrays, owner)) is not None:
            raise StaticLeafError(
                f"`{of}` (of type {type(owner).__name__}) is not a pytree, so it is static. But the function reads the "
                f"array `{of}{path}` in it, which would stay what it is now. Make it a pytree "
                "(jax.tree_util.register_dataclass), pass the array as an argument, or name the object in "
                "static_argnames."
            )


def owners(leaves: Sequence[Leaf]) -> Iterator[tuple[str, Any]]:
    """The static objects that are equal only to themselves, whatever is in them, with their paths. What is equal to
    others the cache tells by what is in it; and what an option says is static is so under `jax.jit`, too."""
    for leaf in leaves:
        if leaf.is_static:
            value = leaf.value
            kind: Any = type(value)
            if kind is types.MethodType:
                yield f"{leaf.path}.__self__", value.__self__
            elif kind.__hash__ is object.__hash__ and (kind is not types.FunctionType or [*_own(value)]):
                yield leaf.path, value


_Path: TypeAlias = tuple["_Path", str] | None
"""Steps that lead from an object to another: those before the last, and the last."""


def _path_in(arrays: Set[int], owner: Any) -> str | None:
    """Where one of these arrays (ids) is in an object: in its attributes, in containers there, in the attributes of
    objects in those, and so on, however they refer to one another; None if nowhere."""
    level: list[tuple[Any, _Path]] = [(owner, None)]
    seen = {id(owner): owner}  # the objects, too: some were made to look at them, and another could take their place
    while level:
        above, level = level, []
        for each, path in above:
            for step, part in _parts(each, each is owner):
                if id(part) in arrays:
                    return _in_words((path, step))
                if len(seen) < _MOST and id(part) not in seen and not _is_closed(part):
                    seen[id(part)] = part
                    level.append((part, (path, step)))
    return None


_CLOSED = (
    *(str, bytes, int, float, complex, NoneType, np.generic, jax.Array, type, types.ModuleType),
    *(types.CodeType, types.FrameType, types.CellType, types.GeneratorType, types.CoroutineType),
)
"""What has nothing in it that a function could read as its own."""


def _is_closed(value: Any) -> bool:
    """Whether it is one of these. (Asked of its type: its `__class__` may be a user's property.)"""
    kind = type(value)
    return issubclass(kind, _CLOSED) or (issubclass(kind, np.ndarray) and not value.dtype.hasobject)


def _in_words(path: _Path) -> str:
    steps = []
    while path is not None:
        path, step = path
        steps.append(step)
    return "".join(reversed(steps))


def _parts(value: Any, is_root: bool) -> Iterator[tuple[str, Any]]:
    """The items of a container, the children of a pytree, or the attributes of another object, those of its class
    included if it `is_root`, and what else it refers to. Of a function its attributes alone: what it has captured is
    constant."""
    kind: Any = type(value)
    if kind is dict:
        yield from ((f"[{key!r}]", item) for key, item in dict(value).items())
    elif kind is list or kind is tuple:
        yield from ((f"[{k}]", item) for k, item in enumerate(value))
    elif kind is types.FunctionType:
        yield from _own(value)
    elif kind is types.MethodType:
        yield ".__self__", value.__self__
    elif kind is functools.partial:
        yield ".func", value.func  # its arguments are as constant as what a function captures
    elif issubclass(kind, np.ndarray):
        yield from ((f".flat[{k}]", item) for k, item in enumerate(value.flat))
    elif (children := _children(value)) is not None:
        yield from children
    else:
        yield from ((f".{name}", attribute) for name, attribute in _attributes(value))
        if is_root:
            yield from (each for base in kind.__mro__ for each in _own(base))
        if not isinstance(value, type):
            yield from (("[...]", part) for part in gc.get_referents(value))


def _own(value: Any) -> Iterator[tuple[str, Any]]:
    """What a function or a class has in its `__dict__`, but for what the interpreter puts there; nothing of a function
    that wraps another, since a decorator has put that there."""
    own = dict(vars(value))
    if "__wrapped__" not in own:
        yield from ((f".{name}", each) for name, each in own.items() if not name.startswith("__"))


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """The children of a node of a pytree, by the keys that JAX names them by; None if it is none."""
    try:
        children = tree_flatten_with_path(value, is_leaf=lambda part: part is not value)[0]
    except (TypeError, ValueError):  # JAX cannot flatten it, as an `OrderedDict` whose keys cannot be sorted
        return None
    if any(child is value for _, child in children):
        return None
    return [(keystr(path), child) for path, child in children]


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that an object has itself, in its `__dict__` or in slots."""
    yield from dict(getattr(owner, "__dict__", {})).items()
    for base in type(owner).__mro__:
        for name, slot in vars(base).items() if "__slots__" in vars(base) else ():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # it is empty
                    yield name, slot.__get__(owner)
