"""`in_shardings` and `out_shardings`: from the caller's pytree prefix to one request a leaf."""

from __future__ import annotations

from typing import Any

import jax
from jax.tree_util import tree_broadcast, tree_leaves, tree_map, tree_structure

from pytc.jax_compat.running import executing
from pytc.leaves import StaticArgument

_UNASKED = object()


def for_arguments(in_shardings: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What `in_shardings` asks for each leaf of the arguments (static arguments wrapped), None where nothing.

    As with `jax.jit`, a tuple has one entry for each argument that is not static, and keywords are refused.
    """
    if in_shardings is None:
        return [None] * len(tree_leaves((args, kwargs)))
    if kwargs:
        raise ValueError(f"in_shardings speaks of positional arguments; pass {', '.join(kwargs)} by position")
    traced = tuple(a for a in args if not isinstance(a, StaticArgument))
    asked = iter(_per_leaf("in_shardings", in_shardings, traced))
    return [None if isinstance(leaf, StaticArgument) else next(asked) for leaf in tree_leaves(args)]


def for_result(out_shardings: Any, result: Any) -> list[Any]:
    """What `out_shardings` asks for each leaf of the result, None where nothing."""
    return _per_leaf("out_shardings", out_shardings, result)


def _per_leaf(option: str, prefix: Any, tree: Any) -> list[Any]:
    leaves = tree_leaves(tree)
    if prefix is None:
        return [None] * len(leaves)
    # None asks for nothing, but to JAX's tree functions it is a node without leaves.
    prefix = tree_map(lambda x: _UNASKED if x is None else x, prefix, is_leaf=lambda x: x is None)
    try:
        full = tree_broadcast(prefix, tree)
    except ValueError as error:
        raise ValueError(
            f"{option} must be a pytree prefix of {tree_structure(tree)}, but is {tree_structure(prefix)}: {error}"
        ) from error
    return [None if x is _UNASKED else _over_a_mesh(option, x) for x in tree_leaves(full)]


def _over_a_mesh(option: str, asked: Any) -> Any:
    """A sharding; a `PartitionSpec` alone is over the mesh in force. Raises `RuntimeError` where there is none, as
    `jax.jit` does."""
    if not isinstance(asked, jax.P) or not executing():
        return asked
    mesh: Any = jax.sharding.get_mesh()
    mesh = jax.sharding.get_abstract_mesh() if mesh.empty else mesh
    if mesh.empty:
        raise RuntimeError(
            f"{option} asks for {asked}, but no mesh is in force over which that would be: call under "
            "jax.set_mesh(mesh), or ask for a jax.NamedSharding"
        )
    return jax.NamedSharding(mesh, asked)
