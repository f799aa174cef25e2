"""Arrays in objects that are static, because they are no pytrees: which a function must not read.

What a function has captured besides, in its closure or in the globals, it may read: `jax.jit` takes that for constant,
too. But an object that it is handed is looked up in the cache at each call, and looks the same whatever it holds.
"""

from __future__ import annotations

import contextlib
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
    """Raises `StaticLeafError` where the function has read an array out of a static object that is equal only to
    itself, or out of objects in it. The array is a constant of the program; after the object is given another one, the
    same program would be found for it and would still read the first. (`jax.jit` refuses such an object.)"""
    arrays = {id(value) for value in captured if isinstance(value, jax.Array)}
    for leaf in leaves if arrays else ():
        owner = leaf.value.__self__ if isinstance(leaf.value, types.MethodType) else leaf.value
        if leaf.is_static and (path := _path_in(arrays, owner)) is not None:
            of = f"{leaf.path}.__self__" if owner is not leaf.value else leaf.path
            raise StaticLeafError(
                f"`{of}` (of type {type(owner).__name__}) is not a pytree, so it is static. But the function reads the "
                f"array `{of}{path}` in it, which would stay what it is now. Make it a pytree "
                "(jax.tree_util.register_dataclass), pass the array as an argument, or name the object in "
                "static_argnames."
            )


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
            for step, part in _parts(each):
                if id(part) in arrays:
                    return _in_words((path, step))
                if len(seen) < _MOST and id(part) not in seen and not isinstance(part, _CLOSED):
                    seen[id(part)] = part
                    level.append((part, (path, step)))
    return None


_CLOSED = (str, bytes, int, float, complex, NoneType, np.ndarray, np.generic, type, types.ModuleType)
"""What has nothing in it that a function could read as its own."""


def _in_words(path: _Path) -> str:
    steps = []
    while path is not None:
        path, step = path
        steps.append(step)
    return "".join(reversed(steps))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The items of a container, the children of a pytree, or the attributes of another object, unless that is equal to
    others: then the cache tells it by what is in it."""
    kind: Any = type(value)
    if kind is dict:
        yield from ((f"[{key!r}]", item) for key, item in dict(value).items())
    elif kind is list or kind is tuple:
        yield from ((f"[{k}]", item) for k, item in enumerate(value))
    elif (children := _children(value)) is not None:
        yield from children
    elif kind.__hash__ is object.__hash__:
        yield from ((f".{name}", attribute) for name, attribute in _attributes(value))


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
