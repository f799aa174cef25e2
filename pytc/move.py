"""`move`: passing ownership by hand, for one call."""

from __future__ import annotations

from typing import Any

import jax
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten

from pytc.jax_compat.keys import bits_of


class Moved:
    """An argument that its caller gives up; made by `move`. One leaf, whatever it holds."""

    __slots__ = ("value",)

    __hash__ = None  # type: ignore[assignment] # so that a static argument cannot be one, or have one in it

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"pytc.move({self.value!r})"


def move(x: Any) -> Any:
    """Give `x`, an array or a pytree of arrays, to the compiled function that it is passed to: `f(pytc.move(x))`.

    Its memory is reused whatever else refers to it. Once the program runs, all arrays of `x` are unusable, also those
    whose memory found no use (so a PRNG key can be made to serve only once), except those that the function hands back
    as they are. Nothing happens to `x` if the call fails before the program runs, nor where nothing is donated: under a
    transformation such as `jax.grad`, with `jax_disable_jit`, in `pytc.explain(f, pytc.move(x))` and in `f.lower`.

    Raises nothing itself. The call raises `StaticLeafError` if it stands in a static argument; and JAX raises
    `RuntimeError` wherever an array of `x` is read afterwards.
    """
    return x if isinstance(x, Moved) else Moved(x)


def moved_leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[int]:
    """Which leaves of the arguments were moved, by their indices among those of the `unmoved` arguments."""
    moved: list[bool] = []
    for leaf in tree_leaves((args, kwargs)):
        moved += [True] * len(tree_leaves(leaf.value)) if type(leaf) is Moved else [False]
    return frozenset(i for i, is_moved in enumerate(moved) if is_moved)


def unmoved(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments without `Moved`."""
    leaves, tree = tree_flatten((args, kwargs))
    if not any(type(leaf) is Moved for leaf in leaves):
        return args, kwargs
    args, kwargs = tree_unflatten(tree, [leaf.value if type(leaf) is Moved else leaf for leaf in leaves])
    return args, kwargs


def use_up(values: list[Any], result: Any) -> None:
    """Delete the arrays among `values` that the call did not consume and that are not part of its result."""
    returned = {id(bits_of(leaf)) for leaf in tree_leaves(result)}
    for value in values:
        if isinstance(value, jax.Array) and id(bits_of(value)) not in returned and not value.is_deleted():
            value.delete()
