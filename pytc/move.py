"""`move`: passing ownership by hand, for one call."""

from __future__ import annotations

from typing import Any

import jax
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten

from pytc.jax_compat.keys import bits_of


class Moved:
    """An argument that its caller gives up; made by `move`. One leaf, whatever it holds."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"pytc.move({self.value!r})"


def move(x: Any) -> Any:
    """Give `x`, an array or a pytree of arrays, to the compiled function that it is passed to: `f(pytc.move(x))`.

    Its memory is reused whatever else refers to it, and once the call has begun to run its arrays are unusable, those
    too whose memory found no use; so a PRNG key can be made to serve once. Arrays that the function hands back as they
    are stay usable. Nothing happens to `x` if the call fails before it runs, nor where nothing is donated: under a
    transformation such as `jax.grad`, with `jax_disable_jit`, in `pytc.explain(f, pytc.move(x))` and in `f.lower`.

    Raises (when used): `RuntimeError` from JAX, wherever an array of `x` is read afterwards.
    """
    return x if isinstance(x, Moved) else Moved(x)


def unwrap(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], frozenset[int]]:
    """The arguments without `Moved`, and which of their leaves (indices) were moved."""
    wrapped, tree = tree_flatten((args, kwargs))
    moved: set[int] = set()
    count = 0
    for leaf in wrapped:
        inside = len(tree_leaves(leaf.value)) if isinstance(leaf, Moved) else 1
        if isinstance(leaf, Moved):
            moved.update(range(count, count + inside))
        count += inside
    args, kwargs = tree_unflatten(tree, [leaf.value if isinstance(leaf, Moved) else leaf for leaf in wrapped])
    return args, kwargs, frozenset(moved)


def unmoved(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments without `Moved`, where there is no call to take them over."""
    if any(isinstance(leaf, Moved) for leaf in tree_leaves((args, kwargs))):
        args, kwargs, _ = unwrap(args, kwargs)
    return args, kwargs


def use_up(values: list[Any], result: Any) -> None:
    """Delete the arrays among `values` that the call did not consume and that are not part of its result."""
    returned = {id(bits_of(leaf)) for leaf in tree_leaves(result)}
    for value in values:
        if isinstance(value, jax.Array) and id(bits_of(value)) not in returned and not value.is_deleted():
            value.delete()
