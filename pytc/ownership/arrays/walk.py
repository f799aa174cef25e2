"""The quick look at the arguments of a call: whether nothing else refers to their arrays, by remembered positions.

`counts.remainder` searches the arguments for containers. A `Walk` remembers at which positions of a walk from the
arguments down, level by level, the containers and the arrays were found. At the next call nothing is searched: every
container at these positions must have exactly the references that the walk itself accounts for, and so must every
array.

Remembered positions are safe for one of two reasons. Either the leaves of the arguments are known, and are compared
with what is found. Or the arguments are not flattened at all; then `jax.jit` checks, before it donates anything, that
they have the very tree that the program was made for. A tree of n arrays made of tuples (also named ones), lists and
dicts has n places for arrays; the walk opens nothing else, so it meets arrays nowhere else. So if it finds n arrays, no
two of them in one place, it has found all of them, wherever they stood; if it does not, the answer is no.
(PRNG keys are containers of their bits, and users may have attached more to them. So each key must refer to objects of
the same types as before: one array, its bits, and nothing that could be taken for another container.)
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import tree_leaves

from pytc.classes import are_of, defines, ids_of, may_be_referred_to_weakly
from pytc.jax_compat.keys import bits_of
from pytc.ownership.arrays import executions
from pytc.ownership.arrays.alive import listed
from pytc.ownership.arrays.buffers import Kinds
from pytc.ownership.arrays.placed import UNKNOWN, Placed, is_plain, stand
from pytc.ownership.cpython.interpreter import getrefcount, may_share_attributes, share_attributes
from pytc.ownership.cpython.lists import are_same, ids_in
from pytc.ownership.references import counts, endings
from pytc.ownership.references.counts import PLAIN
from pytc.picking import Picker, picker

_referents = gc.get_referents
_weakrefs = weakref.getweakrefcount
_QUIET_ARRAYS = ids_of(bool, int, float, complex, np.ndarray)
"""What `jax.jit` takes for arrays besides its own, and asks for its value in C."""
_WORTH_REMEMBERING = 16
"""What a walk has met is remembered if it is at least so many objects: fewer are looked at as quickly."""
_MOST_CHANGES = 16
"""It is no longer remembered where it was something else so often in a row, as a state is that is always new."""
_MOST_SEEN = 100_000
"""A walk that would meet more objects than that is not made."""


class Walk:
    """Where the containers and the arrays of some arguments are found."""

    def __init__(self, arguments: Sequence[int | str]):
        """A walk from these arguments, given by position or name; `learn` and `to` fill it in."""
        self._roots = len(arguments)
        """How many arguments there are."""
        self._numbered = picker([key for key in arguments if isinstance(key, int)])
        self._names = [key for key in arguments if isinstance(key, str)]
        self._levels: list[_Level] = []
        self._classes: dict[int, type] = {}
        """The classes of containers on the way other than plain ones, by id."""
        self._arrays: Picker = tuple
        """Picks the arrays."""
        self._of_arrays = _QUIET_ARRAYS
        """The types of which something may be where the arrays were, without users' code being run for it."""
        self._alone = _Alone()
        self._where: tuple[tuple[int, ...], ...] = ()
        """The positions of the containers, level by level, and last those of the arrays."""
        self._placed = UNKNOWN
        """What stood in the callers' dead places at the last call."""
        self._results: tuple[int, Picker] = 0, tuple
        """Where the arrays were the last time, as `_among_the_newest` tells."""
        self._tries = 8
        """How often that will still be looked for."""
        self._size = 0
        """How many objects are met, the arrays included."""
        self._others: Picker = tuple
        """Picks what is neither an array nor a container on the way to one."""
        self._types: list[type] = []
        """The types of these others."""
        self._rest: Picker = tuple
        """Picks those of the others that may run code when they die, as far as their types tell."""
        self._is_loud = False
        """Whether a container on the way may run code when it dies."""
        self._keys: list[tuple[int, list[type]]] = []
        """The positions of PRNG keys, each with the types of what it refers to; for calls whose leaves are not known.
        """
        self._last = _Last(b"", [])
        """What was met the last time that something was to be as before."""
        self._changes = 0
        """How often in a row that was something else."""
        self.count = 0
        """How many arrays there are."""
        self.kinds: Kinds | None = None
        """Shapes and dtypes of arrays that may be on the same buffers, from when they are first needed."""

    @classmethod
    def to(
        cls, leaves: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any], static: Set[int] = frozenset()
    ) -> Walk | None:
        """The walk to these arrays, through containers of any class that nothing else refers to. None if there is no
        such walk, or an array is found twice. `static` has the ids of the static arguments, which may be no trees."""
        wanted = set(map(id, leaves))
        every: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        arguments = [(key, value) for key, value in every if id(value) not in static]
        inside = [(key, {id(bits_of(leaf)) for leaf in tree_leaves(value)}) for key, value in arguments]
        walk = cls([key for key, arrays in inside if not wanted.isdisjoint(arrays)])

        def opens(seen: list[Any], at: int) -> bool:
            # References: its container, `seen`, and `getrefcount`'s argument. Arguments and plain containers may also
            # be in dead places, so their references are counted only when the walk is used.
            may_be_placed = at < walk._roots or id(type(seen[at])) in PLAIN
            return (may_be_placed or getrefcount(seen[at]) == 3) and counts.opens(seen[at])

        return walk if walk._learn(args, kwargs, leaves, opens) else None

    def learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Walk to all arrays in the arguments and remember the way. False if an array is found twice, or in a container
        that is not plain."""
        leaves = [bits_of(leaf) for leaf in tree_leaves(self.arguments(args, kwargs)) if isinstance(leaf, jax.Array)]
        if not self._learn(args, kwargs, leaves, _opens_plain):
            return False
        seen = self._seen(args, kwargs)
        self._keys = [(k, [*map(type, _referents(v))]) for k, v in enumerate(seen) if bits_of(v) is not v]
        return all(
            PLAIN.isdisjoint(map(id, types)) and sum(issubclass(kind, jax.Array) for kind in types) == 1
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
            self._classes |= {id(kind): kind for kind in types if id(kind) not in PLAIN}
            seen += _referents(*[seen[k] for k in nodes])
            containers -= {id(seen[k]) for k in nodes}
        places = {id(value): k for k, value in enumerate(seen)}
        if len(wanted) < len(leaves) or not wanted <= places.keys():
            return False
        arrays = [places[id(leaf)] for leaf in leaves]
        self._arrays, self._where = picker(arrays), (*where, tuple(arrays))
        self._of_arrays = _QUIET_ARRAYS.union(map(id, map(type, leaves)))
        self._alone = _Alone(picker(arrays))
        self.count = len(leaves)
        told = opened.union(arrays)
        others = [k for k in range(len(seen)) if k not in told]
        self._size, self._others = len(seen), picker(others)
        self._types = [type(seen[k]) for k in others]
        self._rest = picker([k for k in others if not endings.lives_on(type(seen[k]))])
        self._is_loud = any(not endings.is_told_by_class(type(seen[k])) or endings.is_loud(seen[k]) for k in opened)
        return True

    @property
    def may_change(self) -> bool:
        """Whether the walk meets anything: another time that may be something else."""
        return self._size > 0

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The arguments of a call that the walk starts from. Raises `LookupError` if the call does not have them."""
        found = [*self._numbered(args)]
        if self._names:
            found += [kwargs[name] for name in self._names]
        if len(found) != self._roots:
            raise LookupError("there are fewer arguments")
        return found

    def _seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Everything that the walk meets, level by level, the arguments first."""
        seen = self.arguments(args, kwargs)
        for level in self._levels:
            seen += _referents(*level.pick(seen))
        return seen

    def is_as_before(self, args: tuple[Any, ...], kwargs: dict[str, Any], typed: bool) -> bool:
        """Whether no array is found twice; and, if `typed`, everything is of the same types as before. (Where an array
        was, there may also be a plain number or NumPy's array.)

        Then `jax.jit` runs no users' code for it: it asks numbers and arrays for their values, and dictionaries' keys,
        of which a dictionary tells the collector if they are not all strings, whether they are equal. Raises
        `LookupError` if the arguments are no such tree.

        Mostly they are the very objects of the last call, as the weights of a model that is served. Then all of them
        have the ids that they had, so none is there twice. (Whether they are the same ones does not matter for that.)
        """
        seen = self._seen(args, kwargs)
        if self._size < _WORTH_REMEMBERING or self._changes >= _MOST_CHANGES:
            return self._is_as_learnt(seen)
        now, last = _Last(ids_in(seen), [*map(type, seen)] if typed else []), self._last
        if now.ids == last.ids and ids_in(now.types) == ids_in(last.types):
            self._changes = 0
            return True
        if not self._is_as_learnt(seen):
            return False
        self._last = now
        self._changes += 1
        return True

    def _is_as_learnt(self, seen: list[Any]) -> bool:
        """The same, of what the walk has met, at any call."""
        if len(seen) != self._size or (self._types and not are_of(self._others(seen), self._types)):
            return False
        if not self._of_arrays.issuperset(map(id, map(type, self._arrays(seen)))):
            return False
        if self.count < 2 or self._alone.are_apart(seen):
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
        """Prove that only these arguments and `places` refer to the arrays, and that each array is a result of one of
        the last `most` executions.

        Returns the arrays, and all others made since the oldest of these executions, which may share their buffers;
        None if the proof fails. Raises `LookupError` if the arguments are no such tree, or the arrays stand elsewhere.

        `places` has the value of each dead place of the callers. Containers that only such places refer to are dead
        with all that they hold. `leaves` are what the arrays must be, if that is known; each is in so many `lists` of
        ours. If `ending` is given, nothing may run code when the arguments die; `ending` answers that for the parts
        that are neither arrays nor containers on the way to them.

        Counts are compared in sum. No surplus can hide in a sum, because each reference that is expected is known to
        be there, so no count is below its share. Containers are counted before they are opened, and once more at the
        end: `ending` may run users' code.
        """
        # No variable here may keep anything of `seen`: that would be another reference to it.
        seen = self.arguments(args, kwargs)
        held: list[Any] = []
        placed = self._placed  # read once: another thread may replace it at any moment
        opened = self._open(placed, places, held, seen) if placed.stands_alike(places, seen) else None
        if opened is None:
            # What stands in the places may stand elsewhere than at the last call, in a list that two calls take turns
            # with, say. If that is not it, this fails, too.
            seen = self.arguments(args, kwargs)
            held.clear()
            nothing_else = {*map(id, places)} <= {*map(id, seen)}
            placed = Placed.of(places, seen if nothing_else else self._seen(args, kwargs), self._roots, self._where)
            opened = self._open(placed, places, held, seen)
            self._placed = placed if opened is not None else UNKNOWN
        if opened is None:
            return None
        arrays = self._arrays(seen)
        if len(arrays) != self.count:
            raise LookupError("there are fewer arrays")
        if lists:
            if not are_same(arrays, leaves):
                raise LookupError("the arrays are in another order")
        else:
            for k, types in self._keys:
                if not are_of(_referents(seen[k]), types):
                    return None
        if ending is not None and not self._ends_quietly(seen, arrays, ending):
            return None
        for nodes, expected in opened:
            # References to `nodes`: its tuple in `opened`, the variable, and `getrefcount`'s argument. (Up to CPython
            # 3.11 a hook is shown `nodes` itself.)
            if getrefcount(nodes) != 3 or sum(map(getrefcount, nodes)) != expected:
                return None
        if getrefcount(arrays) != 2:
            return None
        # References to each array: its container, `seen`, `arrays`, `getrefcount`'s argument, and those of the `lists`;
        # to some, those of the dead places.
        return self._none_left(arrays, (4 + lists) * self.count + placed.references[-1], most)

    def _none_left(
        self, arrays: Sequence[Any], accounted_for: int, most: int
    ) -> tuple[Sequence[Any], list[Any]] | None:
        """The end of `all_inside`: whether nothing refers to the arrays but what is `accounted_for`, and each of them
        is a result of one of the last `most` executions.

        Strong and weak references are counted in one go, since one may be turned into the other; any surplus must be
        marks. From then on nobody else can put another array on these buffers, so all arrays can be listed.

        Mostly all arrays are results of the newest execution. Then they are compared, one by one, with those results
        that they were the last time. (That this is remembered rightly does not matter: it only says where to look.)
        Otherwise they are counted once more, while the list of results refers to them.
        """
        weak = sum(itertools.chain(map(getrefcount, arrays), map(_weakrefs, arrays))) - accounted_for
        alive = listed()
        count, among = self._results
        if count:
            start, made, marks = executions.newest(alive)
            if made == count and are_same(arrays, among(alive[start:] if start else alive)):
                return (arrays, alive[:start]) if counts.are_marks(weak, arrays, marks) else None
        fresh = executions.fresh(most, alive)
        del alive  # it refers to the arrays
        if not counts.are_marks(weak, arrays, fresh.marks):
            return None
        before, after = counts.counted_twice(arrays, fresh.arrays)
        # Each array must be among the fresh ones: it has one more reference from their list, and another from `held`.
        if (before, after - before) != (accounted_for + self.count, self.count):
            return None
        if self._tries:
            self._tries -= 1
            # What was true of another call is kept: something else may have been executed in between this once.
            self._results = _among_the_newest(arrays) or self._results
        return arrays, fresh.others

    def _open(
        self, placed: Placed, places: list[Any], held: list[Any], seen: list[Any]
    ) -> list[tuple[Sequence[Any], int]] | None:
        """Open the containers in dead places, whose contents go to `held`, and those on the way, whose contents go to
        `seen`.

        Returns them in groups, each with the sum of its reference counts; None if a count or a type is not as expected.
        """
        if (self._classes or placed.classes) and any(
            defines(kind, "__del__") for kind in (*self._classes.values(), *placed.classes.values())
        ):
            return None
        opened = placed.open(places, held) if placed.rounds else []
        if opened is None:
            return None
        for level, standing, references in zip(self._levels, placed.standing, placed.references, strict=False):
            nodes = level.pick(seen)
            if not are_of(nodes, level.types):
                return None
            if standing and not stand(standing, places, held, seen):
                return None
            counted: Iterable[int] = map(getrefcount, nodes)
            if level.may_be_referred_to_weakly:
                # In one go, so that nobody turns a strong reference into a weak one, or the reverse, in between.
                counted = itertools.chain(counted, map(_weakrefs, nodes))
            # Each has: its container, `seen`, `nodes`, and `getrefcount`'s argument; and those in dead places.
            expected = 4 * len(level.types) + references
            if sum(counted) != expected:
                return None
            if level.may_share_attributes is not None and share_attributes(level.may_share_attributes(seen)):
                return None
            seen += _referents(*nodes)
            opened.append((nodes, expected))
        if placed.standing[-1] and not stand(placed.standing[-1], places, held, seen):
            return None
        return opened

    def _ends_quietly(self, seen: list[Any], arrays: Sequence[Any], ending: Callable[[Sequence[Any]], bool]) -> bool:
        """Whether no code runs when all that the walk has met dies, apart from callbacks of weak references, which are
        counted elsewhere."""
        # `_open` has compared the types of the containers. The arrays are JAX's own if they prove to be fresh.
        if self._is_loud or len(seen) != self._size or not are_of(self._others(seen), self._types):
            return False
        if len(_referents(*arrays)) != len(arrays):  # each refers to its class, and to attributes that users have set
            return False
        rest = self._rest(seen)
        return not rest or ending(rest)


class _Last(NamedTuple):
    """What a walk has met at one call."""

    ids: bytes
    types: list[type]
    """Their types, which are thereby not gone: another one would have another id. None where these do not matter."""


class _Alone(NamedTuple):
    """Two kinds of arrays in `seen`: those that only their containers refer to, as far as is known, and the others."""

    these: Picker = tuple
    others: Picker = picker(())
    positions: frozenset[int] = frozenset()
    """The positions of the others."""

    def are_apart(self, seen: list[Any]) -> bool:
        """Whether no array is there twice. Also False if something besides its container refers to one of `these`."""
        these, others = self.these(seen), self.others(seen)
        # Each has at least: its container, `seen`, `these`, and `getrefcount`'s argument. One that is there twice has
        # more.
        return sum(map(getrefcount, these)) == 4 * len(these) and len(set(map(id, others))) == len(others)

    def without(self, seen: list[Any], where: Sequence[int]) -> _Alone:
        """The two kinds as they are now. The positions of all arrays are `where`."""
        # More than its container, `seen`, and `getrefcount`'s argument.
        others = self.positions.union(k for k in where if getrefcount(seen[k]) > 3)
        return _Alone(picker([k for k in where if k not in others]), picker([*others]), others)


def _among_the_newest(arrays: Sequence[Any]) -> tuple[int, Picker] | None:
    """Where the arrays are, if all are results of the newest execution: how many results it has, and what picks the
    arrays, in their order, out of these, newest first."""
    alive = listed()
    start, made, _ = executions.newest(alive)
    at = {id(array): k for k, array in enumerate(alive[start : start + made])}
    places = [at[id(array)] for array in arrays if id(array) in at]
    return (made, picker(places)) if len(places) == len(arrays) else None


class _Level(NamedTuple):
    """The containers on one level of the walk."""

    pick: Picker
    """Picks them out of what has been seen so far."""
    types: list[type]
    may_be_referred_to_weakly: bool
    may_share_attributes: Picker | None
    """Picks those of them that may share their attributes with a `__dict__` (`interpreter.share_attributes`)."""


def _between(arguments: Sequence[Any], wanted: Set[int], opens: Callable[[list[Any], int], bool]) -> set[int]:
    """The ids of the containers that lead from the arguments to the wanted objects (ids).

    `opens(seen, k)` says whether `seen[k]` may be opened.
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
