"""Arrays in objects that are static, because they are no pytrees: which a function must not read.

What a function has captured besides, in its closure or in the globals, it may read: `jax.jit` takes that for constant,
too. But an object that it is handed is looked up in the cache at each call, and looks the same whatever it holds.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Sequence, Set
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from pytc.errors import StaticLeafError
from pytc.program import Leaf

_DEPTH = 6
"""How far down in a static object arrays are looked for: attributes of attributes."""


def check_not_of_static(leaves: Sequence[Leaf], captured: Sequence[Any]) -> None:
    """Raises `StaticLeafError` where the function has read an array out of a static object that is equal only to
    itself, or out of objects in it. The array is a constant of the program; after the object is given another one, the
    same program would be found for it and would still read the first. (`jax.jit` refuses such an object.)"""
    arrays = {id(value) for value in captured if isinstance(value, jax.Array)}
    for leaf in leaves if arrays else ():
        owner = leaf.value.__self__ if isinstance(leaf.value, types.MethodType) else leaf.value
        if leaf.is_static and (path := _path_in(arrays, owner, {id(owner)})) is not None:
            of = f"{leaf.path}.__self__" if owner is not leaf.value else leaf.path
            raise StaticLeafError(
                f"`{of}` (of type {type(owner).__name__}) is not a pytree, so it is static. But the function reads the "
                f"array `{of}{path}` in it, which would stay what it is now. Make it a pytree "
                "(jax.tree_util.register_dataclass), pass the array as an argument, or name the object in "
                "static_argnames."
            )


def _path_in(arrays: Set[int], owner: Any, seen: set[int], depth: int = _DEPTH) -> str | None:
    """Where in the attributes of an object one of these arrays (ids) is, or in those of an object in them; None if
    nowhere, or if the object is equal to others, or is a class or a module."""
    kind: Any = type(owner)
    if kind.__hash__ is not object.__hash__ or isinstance(owner, type | types.ModuleType):
        return None
    for name, value in _attributes(owner):
        try:
            parts = tree_flatten_with_path(value)[0]
        except (TypeError, ValueError):  # JAX cannot flatten it, as a dictionary whose keys cannot be sorted
            continue
        for path, part in parts:
            where = f".{name}{keystr(path)}"
            if id(part) in arrays:
                return where
            if depth and id(part) not in seen:
                seen.add(id(part))
                if (deeper := _path_in(arrays, part, seen, depth - 1)) is not None:
                    return where + deeper
    return None


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that an object has itself, in its `__dict__` or in slots."""
    yield from dict(getattr(owner, "__dict__", {})).items()
    for base in type(owner).__mro__:
        for name, slot in vars(base).items() if "__slots__" in vars(base) else ():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # it is empty
                    yield name, slot.__get__(owner)
