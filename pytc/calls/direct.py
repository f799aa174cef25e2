"""Calls that go straight to `jax.jit`, with nothing flattened.

A call mostly comes with arguments like those of the last one from the same place in the caller's code. If the program
there takes whole arguments (`emit.whole`), `jax.jit` itself checks that they have the tree, the shapes and the dtypes
that the program is for, before anything runs; and the proof walks them by the positions at which arrays were the last
time (`ownership.Walk`). Static arguments are compared here. A call that is not alike takes the usual path
(`calls.function`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from jax.tree_util import PyTreeDef, tree_leaves

from pytc import ownership
from pytc.arguments.leaves import static_key, unwrapped
from pytc.calls.cache import Signature
from pytc.calls.deleted import check_not_deleted
from pytc.calls.plan import Plan
from pytc.calls.sites import Site
from pytc.classes import ids_of
from pytc.emit import EmittedWhole, Retrace
from pytc.interrupt import is_from_outside
from pytc.jax_compat.running import is_of_no_tracing, settings

Path: TypeAlias = tuple[Any, ...]
"""The keys on the way to a leaf, the first of them the position or the name of an argument."""
CONTAINERS = ids_of(tuple, list, dict)
_KEYS = ids_of(int, str)
_DEEPEST = 8
"""The keys on the way are at most one more. (A tree may be deeper than the stack.)"""
_STRINGS = ids_of(str)


@dataclasses.dataclass(frozen=True, eq=False)
class Direct:
    """A call site whose plan takes whole arguments, and what has to hold for a call to go straight to `jax.jit`."""

    signature: Signature
    site: Site
    plan: Plan
    emitted: EmittedWhole
    proven: tuple[ownership.Walk, ownership.CallSite] | None
    """The arguments that must be proven dead, and what the bytecode tells of the site; None if there are none."""
    static: Static | None
    """The values of the static arguments, if there are any."""
    settings: Any
    """What JAX was set to."""
    others: ownership.Walk | None
    """The other arguments that are passed, if they must be compared with those of before: an array may be in them
    twice, or something may have come into them that `jax.jit` runs users' code for."""

    @functools.cached_property
    def paths(self) -> dict[Path, int]:
        """The leaves (indices) that a few plain containers lead to, by the keys on the way from `(args, kwargs)`."""
        tree: PyTreeDef = self.plan.program.in_tree
        args, kwargs = tree.unflatten(range(tree.num_leaves))
        return {path: leaf for leaf, path in sorted(_plain_paths((*enumerate(args), *kwargs.items())))}

    @classmethod
    def of(cls, signature: Signature, site: Site, call: ownership.Call, share: bool) -> Direct | None:
        """For calls with arguments like these; None where such calls cannot go straight."""
        plan = site.plan
        emitted = plan.emitted
        if type(emitted) is not EmittedWhole:
            return None
        tree: PyTreeDef = plan.program.in_tree
        numbered_args, numbered_kwargs = tree.unflatten(range(tree.num_leaves))
        arguments = [*enumerate(numbered_args), *numbered_kwargs.items()]
        must = [key for key, leaves in arguments if not set(plan.to_prove).isdisjoint(tree_leaves(leaves))]
        static = {key: number for key, number in arguments if key in emitted.static}
        rest = [key for key, _ in arguments if key not in must and key not in emitted.static]
        args, kwargs = call.args, call.kwargs
        proven, others = (ownership.Walk(keys) for keys in (must, rest))
        if not (proven.learn(args, kwargs) and others.learn(args, kwargs)):
            return None
        place = ownership.known_site(call.frame)
        if proven.count and place is None:
            return None
        return cls(
            signature,
            site,
            plan,
            emitted,
            (proven, place) if proven.count and place is not None else None,
            Static({k: plan.program.leaves[i].value for k, i in static.items()}, args, kwargs) if static else None,
            settings(),
            others
            if (proven.count and others.may_change) or (others.count > 1 and (share or plan.program.donated))
            else None,
        )

    def call(self, call: ownership.Call, landed: list[Any]) -> bool | None:
        """Make the call, if it is like those before it at this site.

        True: it was made, and `landed` is [emitted, (), results]. False: not this time (the proof failed, JAX is set to
        something else, a class was changed, or it is time to look at the site again); nothing ran. None: nothing ran,
        and this way is to be forgotten, since `jax.jit` refused the arguments, or looking at them raised.

        Raises whatever running the program raises.
        """
        site, plan, emitted = self.site, self.plan, self.emitted
        if site.plan is not plan or (plan.spared and site.to_be_looked_at()):
            return False
        try:
            if self.settings != settings():
                return False
            # The names of arguments may be of a user's class derived from `str`: `jax.jit` compares them.
            if call.kwargs and not _STRINGS.issuperset(map(id, map(type, call.kwargs))):
                return False
            # The proof comes last: nothing is looked into between it and the call.
            if self.static is not None and not self.static.are_in(call.args, call.kwargs):
                return False
            # After users' `__hash__`, which may change a class.
            others, proven = self.others, self.proven
            typed = proven is not None
            if not emitted.are_as_staged() or not (
                others is None or others.is_as_before(call.args, call.kwargs, typed)
            ):
                return False
            if proven is not None:
                walk, place = proven
                if ownership.is_dear(plan.to_prove) or not ownership.all_dead(call, walk, place, plan.outcome):
                    return False
        except Exception as error:
            # Looking at the arguments raised: they are not a tree like the last (`LookupError`), or of users' classes,
            # which may raise anything. Neither is an error of the call, so it takes the usual path. What the handler of
            # a signal or another thread has raised in the meantime is passed on.
            if is_from_outside(error):
                raise
            return None
        try:
            landed[:] = emitted, ()
            collections = ownership.collections_so_far()
            emitted.call_whole(call.args, call.kwargs, landed)
        except (Retrace, TypeError, LookupError) as error:
            if len(landed) > 2 or is_from_outside(error):
                raise
            landed.clear()  # not for this program, or for none
            return None
        except (RuntimeError, ValueError) as error:
            if len(landed) == 2:
                if is_of_no_tracing(error):
                    landed.clear()
                    return None
                leaves = tree_leaves(emitted.without_static(call.args, call.kwargs))
                check_not_deleted(error, [plan.program.leaves[i] for i in plan.program.passed], leaves)
            raise
        in_one_go = not (plan.outcome.calls_python or ownership.collected_since(collections))
        emitted.remember(landed[2], in_one_go)
        site.calls += 1
        site.streak = 0
        return True


def _plain_paths(items: Iterable[tuple[Any, Any]], above: Path = ()) -> Iterator[tuple[int, Path]]:
    """Each leaf, by number, that a few plain containers with plain keys lead to, with its path."""
    for key, value in items:
        if id(type(key)) in _KEYS:
            if type(value) is int:
                yield value, (*above, key)
            elif id(type(value)) in CONTAINERS and len(above) < _DEEPEST:
                inside = value.items() if type(value) is dict else enumerate(value)
                yield from _plain_paths(inside, (*above, key))


class Static:
    """The values of static arguments, which tell programs apart as in the cache (`Layout.values`)."""

    def __init__(self, values: Mapping[int | str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`values` are those that the program is for, and equal to those of the call with these arguments."""
        self._counts = len(args), len(kwargs)
        self._known = []
        for k, value in values.items():
            value = unwrapped(value)
            now = static_key(args[k] if isinstance(k, int) else kwargs[k])
            self._known.append((k, type(value), static_key(value), hash(now)))

    def are_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call has as many arguments, and equal static ones.

        The hash is asked for at each call, even of the same object: it is what tells of a change in it. Raises whatever
        users' classes raise, and `LookupError` where an argument is not there.
        """
        if (len(args), len(kwargs)) != self._counts:
            return False
        for argument, kind, known, known_hash in self._known:
            value = args[argument] if isinstance(argument, int) else kwargs[argument]
            if type(value) is not kind:
                return False
            key = static_key(value)
            if hash(key) != known_hash or not (key is known or key == known):
                return False
        return True
