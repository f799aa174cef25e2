"""`in_shardings` and `out_shardings`: from the caller's pytree prefix to one request a leaf.

A `PartitionSpec` alone speaks of the mesh in context, and is put together with that, as `jax.jit` does when it is
called: what is staged is for one context.
"""

from __future__ import annotations

from typing import Any

from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import tree_broadcast, tree_leaves, tree_map, tree_structure

from pytc.jax_compat.running import mesh_in_context
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
    return [None if x is _UNASKED else _placed(option, x) for x in tree_leaves(full)]


def _placed(option: str, wanted: Any) -> Any:
    """A spec on the mesh in context; what is no spec as it is."""
    if not isinstance(wanted, PartitionSpec):
        return wanted
    mesh = mesh_in_context()
    if mesh.empty:
        raise RuntimeError(
            f"{option} asks for {wanted}, which speaks of a mesh in context: jax.set_mesh(mesh), or ask for "
            "jax.NamedSharding(mesh, spec)"
        )
    return NamedSharding(mesh, wanted)
