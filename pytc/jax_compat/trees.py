"""Trees of nothing but what JAX takes apart itself.

For JAX 0.10 to 0.12: `PyTreeDef.__getstate__`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax.tree_util import PyTreeDef


def is_plain_tree(tree: PyTreeDef) -> bool:
    """Whether a tree consists of what JAX itself takes apart, item by item: tuples, lists, dicts, None and named tuples
    that are not registered as anything else. False where JAX does not tell."""
    return bool(_PLAIN_NODES) and _kinds_of_nodes(tree) <= _PLAIN_NODES


def _kinds_of_nodes(tree: PyTreeDef) -> set[int]:
    """JAX's numbers for the kinds of nodes in a tree: `PyTreeDef.__getstate__`, as of JAX 0.10 to 0.12."""
    _, nodes = tree.__getstate__()
    return {node[0] for node in nodes}


class _Named(NamedTuple):
    leaf: int


def _kinds_of_plain_nodes() -> set[int]:
    try:
        return _kinds_of_nodes(jax.tree.structure([(_Named(0), None), {"": 0}]))
    except (AttributeError, TypeError, ValueError, IndexError):
        return set()


_PLAIN_NODES = _kinds_of_plain_nodes()
