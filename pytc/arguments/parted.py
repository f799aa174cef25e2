"""Arguments that are passed in parts, and put together where the function is called.

What `jax.jit` is to trace has no static leaves, and an array that stands at two leaves is one. A user-defined class
may convert or check what it is made of, so nothing may stand there for such a leaf: an argument that has one is passed
as a node with its other leaves as children, and made anew of these and what was left out, as the function is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax.tree_util import (
    PyTreeDef,
    all_leaves,
    keystr,
    register_pytree_with_keys,
    tree_flatten_with_path,
    tree_leaves,
    tree_unflatten,
)


@dataclasses.dataclass(frozen=True)
class Hidden:
    """A leaf that is static. The hash that its key had is compared, too: JAX remembers this, and the key may be an
    object that has changed since, and that an unequal one is equal to by now."""

    type: type
    key_hash: int
    key: Any
    value: Any = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Again:
    """A leaf that is the array that leaf number `first` of all arguments is, too."""

    first: int


LeftOut = Hidden | Again | None
"""What was left out at a leaf, if anything."""


@dataclasses.dataclass(frozen=True)
class _Key:
    """Where a child stands in the argument, as JAX's messages write it."""

    path: str

    def __str__(self) -> str:
        return self.path


@dataclasses.dataclass(frozen=True, eq=False)
class Parted:
    """An argument in parts."""

    tree: PyTreeDef
    left_out: tuple[LeftOut, ...]
    keys: tuple[_Key, ...]
    children: Sequence[Any]

    @classmethod
    def of(cls, argument: Any, values: Sequence[Any], left_out: Sequence[LeftOut]) -> Parted:
        """An argument with these values for its leaves, but where one is left out."""
        named, tree = tree_flatten_with_path(argument)
        passed = [k for k, each in enumerate(left_out) if each is None]
        keys = tuple(_Key(keystr(named[k][0])) for k in passed)
        return cls(tree, tuple(left_out), keys, [values[k] for k in passed])

    def put_together(self, leaves: list[Any]) -> Any:
        """The argument; its leaves are appended to those of the arguments before it."""
        start, children = len(leaves), iter(self.children)
        for each in self.left_out:
            match each:
                case None:
                    leaves.append(next(children))
                case Hidden():
                    leaves.append(each.value)
                case Again(first):
                    leaves.append(leaves[first])
        argument = tree_unflatten(self.tree, leaves[start:])
        return argument.put_together([]) if type(argument) is Parted else argument  # in parts twice


register_pytree_with_keys(
    Parted,
    lambda node: ([*zip(node.keys, node.children, strict=True)], (node.tree, node.left_out, node.keys)),
    lambda told, children: Parted(*told, tuple(children)),
    lambda node: (node.children, (node.tree, node.left_out, node.keys)),
)


def part(
    args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any], left_out: Sequence[LeftOut], *, every: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in parts, with other values for their leaves, where something is left out of them; all of them if
    `every`, but for those that are one leaf."""
    at = 0

    def parted(argument: Any) -> Any:
        nonlocal at
        start, at = at, at + len(tree_leaves(argument))
        if any(left_out[start:at]):
            return Parted.of(argument, values[start:at], left_out[start:at])
        if not every:
            return argument
        return values[start] if all_leaves([argument]) else Parted.of(argument, values[start:at], left_out[start:at])

    parted_args = tuple(parted(argument) for argument in args)
    return parted_args, {name: parted(kwargs[name]) for name in sorted(kwargs)}


def put_together(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inverse of `part`."""
    if not any(type(argument) is Parted for argument in (*args, *kwargs.values())):
        return args, kwargs
    leaves: list[Any] = []

    def whole(argument: Any) -> Any:
        if type(argument) is Parted:
            return argument.put_together(leaves)
        leaves.extend(tree_leaves(argument))
        return argument

    whole_args = tuple(whole(argument) for argument in args)
    return whole_args, {name: whole(kwargs[name]) for name in sorted(kwargs)}
