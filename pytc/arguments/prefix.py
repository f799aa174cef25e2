"""Pytree prefixes: what is asked for a subtree is asked for each of its leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.tree_util import PyTreeDef, tree_flatten

from pytc.jax_compat.trees import Container, container, keys_of


def per_leaf(what: str, prefix: Any, tree: PyTreeDef, of: str = "") -> list[Any]:
    """What a prefix of `tree` has for each leaf of it; None is a leaf of the prefix, and asks for nothing.

    Nodes are compared, and none is made: a user-defined one may check what it is made of. Raises `ValueError`, which
    calls the prefix `what`, where it is none, and tells the place in it, or in `of` if that is what the tree is called.
    """
    asked, asked_tree = tree_flatten(prefix, is_leaf=lambda x: x is None)
    found: list[Any] = []
    try:
        _spread(asked_tree, tree, iter(asked), of or what, found)
    except _Different as different:
        raise ValueError(
            f"{what} must be a pytree prefix of {tree}, but is {asked_tree}: {different}. Give it the same containers, "
            "or one value in place of a whole container"
        ) from None
    return found


class _Different(Exception):
    """Where a prefix is none, and why, in words."""


def _spread(prefix: PyTreeDef, tree: PyTreeDef, asked: Iterator[Any], path: str, found: list[Any]) -> None:
    """Append what is asked for each leaf of `tree` to what was found."""
    wanted, there = container(prefix), container(tree)
    if wanted is None:
        found += [next(asked)] * tree.num_leaves
        return
    if there is None:
        raise _Different(f"a {wanted.kind.__name__} for a leaf at `{path}`")
    if (difference := _difference(wanted, there)) is not None:
        raise _Different(f"{difference} at `{path}`")
    for key, part, of in zip(keys_of(tree), wanted.children, there.children, strict=True):
        _spread(part, of, asked, path + key, found)


def _difference(wanted: Container, there: Container) -> str | None:
    kind = wanted.kind.__name__
    if there.kind is not wanted.kind:
        return f"different types, {kind} and {there.kind.__name__},"
    if len(wanted.children) != len(there.children):
        return f"different lengths of {kind}"
    if wanted.data != there.data:
        return f"different {'keys' if issubclass(wanted.kind, dict) else 'data'} of {kind}"
    return None
