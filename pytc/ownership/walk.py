"""The quick look at a call whose arguments are plain trees: what is inside, by position.

`counts.remainder` searches the arguments for containers. Where the same call site has been looked at before, it is
known at which positions of a walk from the arguments down, level by level, the containers and the arrays stand. Then
nothing is searched, and nothing is counted twice: every container on the way must have exactly the references that
the walk itself accounts for, and so must every array.

Why positions remembered are safe. They are only used together with `jax.jit`'s own check, before anything is donated,
that the arguments have the very tree that the program was made for. In a tree of that many arrays made of tuples, lists
and dicts (named tuples among them), there are that many places for arrays, and none elsewhere: the walk opens nothing
else. So if it finds that many arrays, no two of them in one place, it has found all of them, wherever they stood; if
it does not, the answer is no.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import tree_leaves

from pytc.ownership import buffers, counts
from pytc.ownership.buffers import Fresh
from pytc.ownership.interpreter import getrefcount

_referents = gc.get_referents
_PLAIN = frozenset((tuple, list, dict))
_Picker = Callable[[Sequence[Any]], Sequence[Any]]


class Walk:
    """Where the containers and the arrays of some arguments are found."""

    def __init__(self, arguments: Sequence[int | str]):
        """Of these arguments, by position and by name."""
        self._numbers = [key for key in arguments if isinstance(key, int)]
        self._names = [key for key in arguments if isinstance(key, str)]
        self._levels: list[_Picker] = []
        self._arrays: _Picker = tuple
        self._roots: tuple[bool, ...] = ()
        """Of each argument, whether it is an array itself."""
        self.count = 0
        """How many arrays there are."""
        self.kinds: frozenset[Any] | None = None
        """Their shapes and dtypes, and those of their shards, once somebody has asked."""

    def learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Walk the arguments, and remember the way; False where an array is there twice, or not in plain containers."""
        seen = self.arguments(args, kwargs)
        leaves = [leaf for leaf in tree_leaves(seen) if isinstance(leaf, jax.Array)]
        self._roots = tuple(isinstance(value, jax.Array) for value in seen)
        start = 0
        while nodes := [k for k in range(start, len(seen)) if _has_arrays(seen[k])]:
            if not all(map(_is_plain, {type(seen[k]) for k in nodes})):
                return False
            start = len(seen)
            self._levels.append(picker(nodes))
            seen += _referents(*self._levels[-1](seen))
        places = {id(value): k for k, value in enumerate(seen)}
        if len({id(leaf) for leaf in leaves}) < len(leaves) or not all(id(leaf) in places for leaf in leaves):
            return False
        self._arrays = picker([places[id(leaf)] for leaf in leaves])
        self.count = len(leaves)
        return True

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Those of a call. Raises `LookupError` where the call has none such."""
        found = [args[k] for k in self._numbers]
        return found + [kwargs[name] for name in self._names] if self._names else found

    def found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """The arrays, in flattening order. Raises `LookupError` where the arguments are not such a tree."""
        seen = self.arguments(args, kwargs)
        for level in self._levels:
            seen += _referents(*level(seen))
        return self._arrays(seen)

    def distinct(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether no array is there twice. Raises `LookupError` where the arguments are not such a tree."""
        arrays = self.found(args, kwargs)
        # What it is in, the tuple here, and `getrefcount`'s own: no less than that each.
        return sum(map(getrefcount, arrays)) == 3 * self.count or len(set(map(id, arrays))) == self.count

    def all_inside(self, args: tuple[Any, ...], kwargs: dict[str, Any], places: list[Any], most: int) -> Fresh | None:
        """Whether nothing refers to the arrays but these arguments and `places`, and each came out of one of the last
        executions, at most `most`: then what these are, else None.

        `places` has what stands in each dead place of the callers. Raises `LookupError` where the arguments are not
        such a tree.

        Each number here is of references that are there in any case, so none of them can make up for another.
        """
        seen = self.arguments(args, kwargs)
        of_arrays = 0
        if places:
            roots = list(map(id, seen))
            for number in map(id, places):
                if number not in roots:
                    return None  # a container of arguments, or a part of one, is for the careful look
                of_arrays += self._roots[roots.index(number)]
        extra = 2 * (len(places) - of_arrays)  # the place, and the list of them
        for level in self._levels:
            nodes = level(seen)
            if not _PLAIN.issuperset(map(type, nodes)) and not all(map(_is_plain, {*map(type, nodes)})):
                return None
            # What it is in, the list of what is seen, that of the nodes, and `getrefcount`'s own.
            if sum(map(getrefcount, nodes)) != 4 * len(nodes) + extra:
                return None
            seen += _referents(*nodes)
            extra = 0
        arrays = self._arrays(seen)
        before = sum(map(getrefcount, arrays))
        fresh = buffers.fresh(most)
        if counts.weakly_referenced(arrays, fresh.marks):
            return None
        after = sum(map(getrefcount, arrays))
        # As a container has; and those that are in the list of fresh ones have one more the second time. What somebody
        # has got hold of in between, by a weak reference that is gone by now, would be counted, too.
        return fresh if before == 4 * self.count + 2 * of_arrays and after - before == self.count else None


def _has_arrays(value: Any) -> bool:
    return not isinstance(value, jax.Array | type) and any(isinstance(leaf, jax.Array) for leaf in tree_leaves(value))


def _is_plain(kind: type) -> bool:
    """Whether what an object of this type refers to is its items, and its keys: all that it takes to open it is that
    nobody else refers to it."""
    return kind in _PLAIN or (
        issubclass(kind, tuple)
        and not kind.__dictoffset__
        and not kind.__weakrefoffset__
        and not hasattr(kind, "__del__")
    )


def picker(positions: Sequence[int]) -> _Picker:
    """Picks these positions, in C where there are several."""
    if len(positions) == 1:
        (only,) = positions
        return lambda values: (values[only],)
    return operator.itemgetter(*positions) if positions else lambda _: ()
