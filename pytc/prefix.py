"""Pytree prefixes: what is asked for a subtree is asked for each of its leaves."""

from __future__ import annotations

import re
from typing import Any

from jax.tree_util import tree_broadcast, tree_leaves, tree_map, tree_structure

_NONE = object()  # stands for None, which to JAX's tree functions is a node without leaves


def per_leaf(what: str, prefix: Any, tree: Any) -> list[Any]:
    """What a prefix of `tree` has for each leaf of it; None is a leaf of the prefix, and asks for nothing.

    Raises `ValueError`, which calls the prefix `what`, where it is none.
    """
    if prefix is None:  # a node that checks what it is made of is not to be made of anything else
        return [None] * len(tree_leaves(tree))
    prefix = tree_map(lambda x: _NONE if x is None else x, prefix, is_leaf=lambda x: x is None)
    try:
        full = tree_broadcast(prefix, tree)
    except ValueError as error:
        raise ValueError(
            f"{what} must be a pytree prefix of {tree_structure(tree)}, but is {tree_structure(prefix)}"
            f"{_difference(what, str(error))}. Give it the same containers, or one value in place of a whole container"
        ) from error
    return [None if x is _NONE else x for x in tree_leaves(full)]


def _difference(what: str, said: str) -> str:
    """What JAX says is different: the first line of its message, and the path in the second."""
    pattern = r"(?:pytree structure error: )?(different .*) at key path\s*broadcast_prefix prefix_tree(.*)"
    found = re.match(pattern, said)
    return f": {found[1]} at `{what}{found[2]}`" if found else ""
