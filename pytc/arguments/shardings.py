"""`in_shardings` and `out_shardings`: from the caller's pytree prefix to one request a leaf.

A `PartitionSpec` alone speaks of the mesh in context, and is put together with that, as `jax.jit` does when it is
called: what is staged is for one context.
"""

from __future__ import annotations

from typing import Any

from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef, tree_leaves, tree_structure

from pytc.arguments.leaves import StaticArgument
from pytc.arguments.prefix import per_leaf
from pytc.jax_compat.api import UNSPECIFIED
from pytc.jax_compat.running import mesh_in_context


def for_arguments(in_shardings: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What `in_shardings` asks for each leaf of the arguments (static arguments wrapped), None where nothing.

    As with `jax.jit`, a tuple or a list has one entry for each argument that is not static, and keywords are refused.
    Raises `ValueError` where it does not match, and what `for_result` does.
    """
    if in_shardings is None:
        return [None] * len(tree_leaves((args, kwargs)))
    if kwargs:
        raise ValueError(f"in_shardings speaks of positional arguments; pass {', '.join(kwargs)} by position")
    traced = tuple(a for a in args if not isinstance(a, StaticArgument))
    wanted = tuple(in_shardings) if isinstance(in_shardings, list) else in_shardings
    asked = iter(_asked("in_shardings", wanted, tree_structure(traced)))
    return [None if isinstance(leaf, StaticArgument) else next(asked) for leaf in tree_leaves(args)]


def for_result(out_shardings: Any, result: PyTreeDef) -> list[Any]:
    """What `out_shardings` asks for each leaf of a result with this tree, None where nothing.

    Raises `ValueError` where it does not match, `RuntimeError` for a `PartitionSpec` where there is no mesh.
    """
    return _asked("out_shardings", out_shardings, result)


def speaks_of_the_mesh(wanted: Any) -> bool:
    """Whether `in_shardings` or `out_shardings` has a `PartitionSpec` alone."""
    parts = tree_leaves(wanted, is_leaf=lambda part: isinstance(part, PartitionSpec))
    return any(isinstance(part, PartitionSpec) for part in parts)


def _asked(option: str, prefix: Any, tree: PyTreeDef) -> list[Any]:
    parts = per_leaf(option, prefix, tree)
    return [None if wanted is None or wanted is UNSPECIFIED else _placed(option, wanted) for wanted in parts]


def _placed(option: str, wanted: Any) -> Any:
    """A `PartitionSpec` on the mesh in context; anything else unchanged."""
    if not isinstance(wanted, PartitionSpec):
        return wanted
    mesh = mesh_in_context()
    if mesh.empty:
        raise RuntimeError(
            f"{option} asks for {wanted}, which speaks of a mesh in context: jax.set_mesh(mesh), or ask for "
            "jax.NamedSharding(mesh, spec)"
        )
    return NamedSharding(mesh, wanted)
