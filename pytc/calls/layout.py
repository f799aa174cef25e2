"""What tells calls apart: the tree of the arguments and the types of their leaves, a layout; within one, static values
and which arrays are one; and then shapes, dtypes and places of the leaves.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np

from pytc.arguments.leaves import LeafKind, static_key
from pytc.interrupt import is_from_outside
from pytc.jax_compat.arrays import place_of
from pytc.ownership.cpython.lists import ids_in
from pytc.picking import picker

if TYPE_CHECKING:
    from pytc.calls.cache import Signatures

Describe: TypeAlias = Callable[[Any], tuple[Hashable, ...]]
"""`describe`, or `describe_placed`."""
Described: TypeAlias = tuple[tuple[Hashable, ...], ...]
"""That of each leaf."""


def describe(leaf: Any) -> tuple[Hashable, ...]:
    """Shape and dtype of a leaf, and whether that is weak; a Python scalar and a static leaf, which may be of any
    class, are told by their layout."""
    kind = type(leaf)
    if not issubclass(kind, _DESCRIBED):
        return (None, None, False)
    return (leaf.shape, leaf.dtype, issubclass(kind, jax.Array) and getattr(leaf, "weak_type", False))


def describe_placed(leaf: Any) -> tuple[Hashable, ...]:
    """The same, and where an array is as far as `jax.jit` traces anew for that. What the function was traced for names
    the mesh: it cannot serve arguments on another one, or on none."""
    described = describe(leaf)
    return (*described, *place_of(leaf)) if issubclass(type(leaf), jax.Array) else described


MOST_SHARINGS = 8
"""In so many ways arrays of a layout and static values may be one with a program for each way. Calls that share them in
yet others (`mate(*random.choices(population, k=6))`) have one in common, which takes all leaves for different arrays,
as that of `jax.jit` does."""

APART: tuple[int, ...] = ()
"""Stands for those others, in place of a sharing."""

UNPLACED = 3
"""How many parts of what `describe_placed` tells are `describe`'s."""
_DESCRIBED = (jax.Array, jax.Ref, np.ndarray, np.generic)


def told_apart(sharing: tuple[int, ...] | None, known: Collection[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """The sharing by which a call is told from others, of which these are `known` of the function."""
    is_one = sharing is None or sharing in known or len(known) - (None in known) < MOST_SHARINGS
    return sharing if is_one else APART


@dataclasses.dataclass(eq=False)
class Layout:
    """A tree of arguments with the types of its leaves."""

    kinds: tuple[LeafKind, ...]
    share: bool
    _known: dict[Hashable, dict[Hashable, Signatures]] = dataclasses.field(default_factory=dict)
    """What is known of calls, by static values and then by sharing."""

    def __post_init__(self) -> None:
        self.static = tuple(i for i, kind in enumerate(self.kinds) if kind == "static")
        self.arrays = tuple(i for i, kind in enumerate(self.kinds) if kind == "array")
        self.may_share = self.share and len(self.arrays) > 1
        self._apart = b""
        """The ids of the leaves of a call whose arrays were all different. (Whether these are the same arrays does not
        matter: where ids are alike, it is the same ones of them that are one.)"""
        self._pick_arrays = picker(self.arrays)

    def differs_in_arrays_alone(self, types: Sequence[type], other: Layout, other_types: Sequence[type]) -> bool:
        """Whether another layout of the same tree has static leaves of the same types in the same places. These are the
        types of either's leaves."""
        leaves = zip(self.kinds, types, other.kinds, other_types, strict=True)
        return all(a is b or "static" not in (mine, others) for mine, a, others, b in leaves)

    def __iter__(self) -> Iterator[Signatures]:
        """All that is known of calls."""
        for of_values in list(self._known.values()):
            yield from list(of_values.values())

    def values(self, leaves: Sequence[Any]) -> tuple[Hashable, ...]:
        """The static values, which distinguish calls of this layout, as sharing does, beyond shapes and dtypes."""
        return tuple([static_key(leaves[i]) for i in self.static]) if self.static else ()

    def get(self, values: Hashable, sharing: tuple[int, ...] | None) -> Signatures | None:
        """What is known of calls with these static values and this sharing, if anything. Raises `TypeError` for a value
        that cannot be hashed."""
        of_values = self._known.get(values)
        if of_values is None:
            return None
        found = of_values.get(sharing)
        return found if found is not None or sharing is None else of_values.get(APART)

    def setdefault(self, values: Hashable, sharing: tuple[int, ...] | None, new: Signatures) -> Signatures:
        """The same; if nothing is, from now on `new`."""
        return self._known.setdefault(values, {}).setdefault(sharing, new)

    def of_any_sharing(self, values: Hashable) -> Sequence[Signatures]:
        """What is known of calls with these static values, whichever of their arrays are one."""
        return [*self._known.get(values, {}).values()]

    def find(self, leaves: Sequence[Any], sharing: tuple[int, ...] | None) -> Signatures | None:
        """What is known of calls with the static values of these leaves and this sharing, if anything."""
        try:
            return self.get(self.values(leaves), sharing)
        except (TypeError, ValueError) as error:
            if is_from_outside(error):
                raise
            return None  # of what cannot be hashed nothing is; `Lookup.signatures` names the leaf

    def are_known_apart(self, leaves: list[Any]) -> bool:
        """Whether the array leaves are all different, as far as that is known without looking at each: if they are
        those of the last call, as in a model that is served."""
        return ids_in(leaves) == self._apart

    def sharing(self, leaves: list[Any]) -> tuple[int, ...] | None:
        """For each array leaf the first that is the same object, or None where they are all different."""
        if len(set(map(id, self._pick_arrays(leaves)))) == len(self.arrays):
            self._apart = ids_in(leaves)
            return None
        first: dict[int, int] = {}
        return tuple(first.setdefault(id(leaves[i]), i) for i in self.arrays)

    def same_as(self, sharing: tuple[int, ...] | None) -> dict[int, int]:
        """For each leaf that is the same object as an earlier one at each call with this sharing, which."""
        return {i: first for i, first in zip(self.arrays, sharing or self.arrays, strict=True) if i != first}


def _references_of_an_unshared_leaf() -> int:
    leaf = object()
    tree = {"leaf": leaf}
    leaves = [leaf]
    del leaf
    count = max(map(sys.getrefcount, leaves))
    del tree
    return count


UNSHARED = _references_of_an_unshared_leaf()
"""The reference count, as `max(map(sys.getrefcount, leaves))` sees it, of a leaf that only one container and the
list of leaves refer to. An object at two leaves is in that list twice, so its count is larger."""
