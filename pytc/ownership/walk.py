"""The quick look at the arguments of a call: whether nothing else refers to their arrays, by position.

`counts.remainder` searches the arguments for containers. Where the same call site has been looked at before, it is
known at which positions of a walk from the arguments down, level by level, the containers and the arrays stand. Then
nothing is searched, and nothing is counted twice: every container on the way must have exactly the references that
the walk itself accounts for, and so must every array.

Why remembered positions are safe. Either the leaves of the arguments are known, and are compared with what stands
there. Or the arguments are not flattened at all; then `jax.jit` checks, before anything is donated, that they have the
very tree that the program was made for. A tree of n arrays made of tuples, lists and dicts (named tuples among them)
has n places for arrays; and the walk, which opens nothing else, meets arrays nowhere else. So if it finds n arrays, no
two of them in one place, it has found all of them, wherever they stood; if it does not, the answer is no. (PRNG keys
are containers of their bits, and users may have attached more to them. So each key must refer to things of the same
types as before, of which none but its bits is an array or could be taken for another container.)
"""

from __future__ import annotations

import gc
import itertools
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, NamedTuple

import jax
from jax.tree_util import tree_leaves

from pytc.classes import defines, may_be_referred_to_weakly
from pytc.jax_compat.keys import bits_of
from pytc.ownership import buffers, counts, endings
from pytc.ownership.interpreter import getrefcount, may_share_attributes, share_attributes
from pytc.ownership.placed import PLAIN, UNKNOWN, Placed, is_plain, stand
from pytc.picking import Picker, picker

_referents = gc.get_referents
_weakrefs = weakref.getweakrefcount
_MOST_SEEN = 100_000
"""If the way to the arrays leads past more objects than that, there is no walk to them."""


class Walk:
    """Where the containers and the arrays of some arguments are found."""

    def __init__(self, arguments: Sequence[int | str]):
        """A walk from these arguments, by position and by name; `learn` and `to` fill it in."""
        self._roots = 0
        """How many arguments there are."""
        self._numbered = picker([key for key in arguments if isinstance(key, int)])
        self._names = [key for key in arguments if isinstance(key, str)]
        self._levels: list[_Level] = []
        self._classes: frozenset[type] = frozenset()
        """The classes of containers that people have written."""
        self._arrays: Picker = tuple
        self._alone = _Alone()
        self._where: tuple[tuple[int, ...], ...] = ()
        """The positions of the containers, level by level, and last those of the arrays."""
        self._placed = UNKNOWN
        self._size = 0
        """How many objects are seen on the way, the arrays included."""
        self._others: Picker = tuple
        """Picks what is neither an array nor a container on the way to one."""
        self._types: list[type] = []
        """The types of these others."""
        self._rest: Picker = tuple
        """Picks those of the others whose type does not tell that they run no code when they die."""
        self._is_loud = False
        """Whether a container on the way may run code when it dies."""
        self._keys: list[tuple[int, list[type]]] = []
        """Positions of PRNG keys, each with the types of what it refers to; for calls in which leaves are not known."""
        self.count = 0
        """How many arrays there are."""
        self.kinds: buffers.Kinds | None = None
        """Shapes and dtypes of arrays that may be on the same buffers, once that was needed."""

    @classmethod
    def to(cls, leaves: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Walk | None:
        """The walk to these arrays, through containers of any class that nothing else refers to; None if there is none,
        or one of them is there twice."""
        wanted = set(map(id, leaves))
        arguments: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        inside = [(key, {id(bits_of(leaf)) for leaf in tree_leaves(value)}) for key, value in arguments]
        walk = cls([key for key, arrays in inside if not wanted.isdisjoint(arrays)])

        def opens(seen: list[Any], at: int) -> bool:
            # What it is in, the list of what is seen, and `getrefcount`'s own; of what may be in a dead place, all this
            # is for later.
            may_be_placed = at < walk._roots or type(seen[at]) in PLAIN
            return (may_be_placed or getrefcount(seen[at]) == 3) and counts.opens(seen[at])

        return walk if walk._learn(args, kwargs, leaves, opens) else None

    def learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Walk to all arrays in the arguments, and remember the way; False where an array is there twice, or not in
        plain containers."""
        leaves = [bits_of(leaf) for leaf in tree_leaves(self.arguments(args, kwargs)) if isinstance(leaf, jax.Array)]
        if not self._learn(args, kwargs, leaves, _opens_plain):
            return False
        seen = self._seen(args, kwargs)
        self._keys = [(k, [*map(type, _referents(v))]) for k, v in enumerate(seen) if bits_of(v) is not v]
        return all(
            PLAIN.isdisjoint(types) and sum(issubclass(kind, jax.Array) for kind in types) == 1
            for _, types in self._keys
        )

    def _learn(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
        opens: Callable[[list[Any], int], bool],
    ) -> bool:
        wanted = set(map(id, leaves))
        seen = self.arguments(args, kwargs)
        self._roots = len(seen)
        containers = _between(seen, wanted, opens)
        where: list[tuple[int, ...]] = []
        opened: set[int] = set()
        start = 0
        while nodes := [k for k in range(start, len(seen)) if id(seen[k]) in containers]:
            start = len(seen)
            opened.update(nodes)
            where.append(tuple(nodes))
            types = [type(seen[k]) for k in nodes]
            weakly = any(may_be_referred_to_weakly(kind) for kind in types)
            sharing = [k for k, kind in zip(nodes, types, strict=True) if may_share_attributes(kind)]
            self._levels.append(_Level(picker(nodes), types, weakly, picker(sharing) if sharing else None))
            self._classes |= {kind for kind in types if kind not in PLAIN}
            seen += _referents(*[seen[k] for k in nodes])
            containers -= {id(seen[k]) for k in nodes}
        places = {id(value): k for k, value in enumerate(seen)}
        if len(wanted) < len(leaves) or not wanted <= places.keys():
            return False
        arrays = [places[id(leaf)] for leaf in leaves]
        self._arrays, self._where = picker(arrays), (*where, tuple(arrays))
        self._alone = _Alone(picker(arrays))
        self.count = len(leaves)
        others = [k for k in range(len(seen)) if k not in opened.union(arrays)]
        self._size, self._others = len(seen), picker(others)
        self._types = [type(seen[k]) for k in others]
        self._rest = picker([k for k in others if not endings.lives_on(type(seen[k]))])
        self._is_loud = any(not endings.is_told_by_class(type(seen[k])) or endings.is_loud(seen[k]) for k in opened)
        return True

    @property
    def may_change(self) -> bool:
        """Whether something else than arrays is seen, or may be another time: a dictionary tells the collector of its
        keys where they are not all plain strings."""
        return bool(self._types) or any(dict in level.types for level in self._levels)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Those of a call. Raises `LookupError` where the call has none such."""
        found = list(self._numbered(args))
        return found + [kwargs[name] for name in self._names] if self._names else found

    def _seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Everything that is met on the way, level by level, the arguments first."""
        seen = self.arguments(args, kwargs)
        for level in self._levels:
            seen += _referents(*level.pick(seen))
        return seen

    def is_as_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether no array is there twice, and everything else is of the same types as before, so that `jax.jit` runs
        no users' code for it: numbers, which it asks for their values, and keys of dictionaries. Raises `LookupError`
        where the arguments are not such a tree."""
        seen = self._seen(args, kwargs)
        if len(seen) != self._size or [*map(type, self._others(seen))] != self._types:
            return False
        if self._alone.are_apart(seen):
            return True
        self._alone = self._alone.without(seen, self._where[-1])
        return self._alone.are_apart(seen)

    def all_inside(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: list[Any],
        most: int,
        leaves: Sequence[Any] = (),
        lists: int = 0,
        ending: Callable[[Sequence[Any]], bool] | None = None,
    ) -> tuple[Sequence[Any], list[Any]] | None:
        """Whether nothing refers to the arrays but these arguments and `places`, and each came out of one of the last
        executions, at most `most`: then the arrays and everything else that has been made since the oldest of these
        executions, else None.

        `places` has what stands in each dead place of the callers. Containers of arguments, or of parts of them, that
        nothing but such places refers to are dead with all that they hold. `leaves` are what the arrays have to be,
        where that is known, and each is in so many `lists` of ours. Where `ending` is given, no code may run when the
        arguments die, and it says whether that is so of the parts that are neither containers on the way nor these
        arrays. Raises `LookupError` where the arguments are not such a tree.

        Each number here is of references that are there in any case, so none of them can make up for another.
        Containers are counted before they are opened, and once more at the end: a hook of `sys.addaudithook` is shown
        what is looked into, and `ending` may ask what people have written.
        """
        seen, held = self.arguments(args, kwargs), list[Any]()
        placed = self._placed
        if not placed.stands_alike(places, seen):
            # No variable here may have what is seen: that would be another reference to it.
            nothing_else = {*map(id, places)} <= {*map(id, seen)}
            placed = Placed.of(places, seen if nothing_else else self._seen(args, kwargs), self._roots, self._where)
            self._placed = placed
        opened = self._open(placed, places, held, seen)
        if opened is None:
            return None
        arrays = self._arrays(seen)
        for k, types in () if lists else self._keys:
            if [*map(type, _referents(seen[k]))] != types:
                return None
        if lists and not (len(leaves) == self.count and all(map(operator.is_, arrays, leaves))):
            return None
        if ending is not None and not self._ends_quietly(seen, arrays, ending):
            return None
        for nodes, expected in opened:
            # What it is in, the variable here, and `getrefcount`'s own: up to CPython 3.11 a hook is shown the tuple.
            if getrefcount(nodes) != 3 or sum(map(getrefcount, nodes)) != expected:
                return None
        if getrefcount(arrays) != 2:
            return None
        # As a container has. Whatever is more must be marks: strong references and weak ones in one go, as somebody may
        # make one of the other. From here on nobody else can put another array on the buffers, so they can be listed.
        accounted_for = (4 + lists) * self.count + placed.references[-1]
        weak = sum(itertools.chain(map(getrefcount, arrays), map(_weakrefs, arrays))) - accounted_for
        fresh = buffers.fresh(most)
        if not counts.are_marks(weak, arrays, fresh.marks):
            return None
        before, after = counts.counted_twice(arrays, fresh.arrays)
        # The fresh ones have one more, and another the second time.
        return (arrays, fresh.others) if (before, after - before) == (accounted_for + self.count, self.count) else None

    def _open(
        self, placed: Placed, places: list[Any], held: list[Any], seen: list[Any]
    ) -> list[tuple[Sequence[Any], int]] | None:
        """Open all containers, those in dead places, of which the contents go to `held`, and those on the way, of which
        they go to `seen`; return them, with how many references they have, or None if there are others."""
        if (self._classes or placed.classes) and any(defines(k, "__del__") for k in self._classes | placed.classes):
            return None
        opened = placed.open(places, held)
        if opened is None:
            self._placed = UNKNOWN
            return None
        for level, standing, references in zip(self._levels, placed.standing, placed.references, strict=False):
            nodes = level.pick(seen)
            if [*map(type, nodes)] != level.types:
                return None
            if standing and not stand(standing, places, held, seen):
                self._placed = UNKNOWN
                return None
            counted: Iterable[int] = map(getrefcount, nodes)
            if level.may_be_referred_to_weakly:
                # In one go, so that nobody makes a strong reference of a weak one, or the reverse, in between.
                counted = itertools.chain(counted, map(_weakrefs, nodes))
            # What it is in, the list of what is seen, that of the nodes, and `getrefcount`'s own.
            expected = 4 * len(level.types) + references
            if sum(counted) != expected:
                return None
            if level.may_share_attributes is not None and share_attributes(level.may_share_attributes(seen)):
                return None
            seen += _referents(*nodes)
            opened.append((nodes, expected))
        if placed.standing[-1] and not stand(placed.standing[-1], places, held, seen):
            self._placed = UNKNOWN
            return None
        return opened

    def _ends_quietly(self, seen: list[Any], arrays: Sequence[Any], ending: Callable[[Sequence[Any]], bool]) -> bool:
        """Whether no code runs when all of this dies. That nothing refers to it weakly is for the counts to say."""
        # Of the containers this has been looked at, and arrays are what they are if they are among the fresh ones.
        if self._is_loud or len(seen) != self._size or [*map(type, self._others(seen))] != self._types:
            return False
        if len(_referents(*arrays)) != len(arrays):  # its class each, and what people have attached to it
            return False
        rest = self._rest(seen)
        return not rest or ending(rest)


class _Alone(NamedTuple):
    """Which arrays of what is seen nothing else refers to than what they are in, as far as is known."""

    these: Picker = tuple
    others: Picker = picker(())
    positions: frozenset[int] = frozenset()
    """Of the others."""

    def are_apart(self, seen: list[Any]) -> bool:
        """Whether none of all of them is there twice. False also where something else refers to one of these."""
        these, others = self.these(seen), self.others(seen)
        # What it is in, the list of what is seen, the tuple here, and `getrefcount`'s own: no less than that each.
        return sum(map(getrefcount, these)) == 4 * len(these) and len(set(map(id, others))) == len(others)

    def without(self, seen: list[Any], where: Sequence[int]) -> _Alone:
        """Without those to which something else refers now. All arrays are at `where`."""
        # What it is in, the list of what is seen, and `getrefcount`'s own.
        others = self.positions.union(k for k in where if getrefcount(seen[k]) > 3)
        return _Alone(picker([k for k in where if k not in others]), picker([*others]), others)


class _Level(NamedTuple):
    """The containers on one level of the walk."""

    pick: Picker
    """Picks them out of what has been seen so far."""
    types: list[type]
    may_be_referred_to_weakly: bool
    may_share_attributes: Picker | None
    """Picks those of them that may share their attributes with a `__dict__` of which nothing tells."""


def _between(arguments: Sequence[Any], wanted: Set[int], opens: Callable[[list[Any], int], bool]) -> set[int]:
    """The containers (ids) through which the way leads from the arguments to the wanted objects (ids).

    `opens(seen, k)` says whether the container `seen[k]` may be opened.
    """
    seen = list(arguments)
    above: list[int | None] = [None] * len(seen)
    opened: set[int] = set()
    between: set[int] = set()
    at = 0
    while at < len(seen) < _MOST_SEEN:
        if id(seen[at]) in wanted:
            way = above[at]
            while way is not None and id(seen[way]) not in between:
                between.add(id(seen[way]))
                way = above[way]
        elif id(seen[at]) not in opened and opens(seen, at):
            opened.add(id(seen[at]))
            seen += _referents(seen[at])
            above += [at] * (len(seen) - len(above))
        at += 1
    return between


def _opens_plain(seen: list[Any], at: int) -> bool:
    return is_plain(type(seen[at])) or bits_of(seen[at]) is not seen[at]
