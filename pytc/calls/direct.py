"""Calls that go straight to `jax.jit`, with nothing flattened.

A call mostly comes with arguments like those of the last one from the same place in the caller's code. If the program
there takes whole arguments (`emit.whole`), `jax.jit` itself checks that they have the tree, the shapes and the dtypes
that the program is for, before anything runs; and the proof walks them by the positions that it has seen
(`ownership.Walk`). What is otherwise this time goes the usual way.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from typing import Any

import jax
from jax.tree_util import tree_leaves

from pytc import ownership
from pytc.arguments.leaves import PythonScalars
from pytc.calls.cache import MOST_MISSES, MOST_SITES, Plan, Signature, Site
from pytc.emit import EmittedWhole, Retrace
from pytc.interrupt import is_from_outside
from pytc.jax_compat.running import is_of_no_tracing


@dataclasses.dataclass(frozen=True, eq=False)
class Direct:
    """One call site with a plan that takes whole arguments."""

    signature: Signature
    site: Site
    plan: Plan
    emitted: EmittedWhole
    proven: ownership.Walk | None
    """The arguments that must be proven dead."""
    others: ownership.Walk | None
    """The other arguments, where an array might be in them twice, or something else than there was."""

    @classmethod
    def of(
        cls, signature: Signature, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any], share: bool
    ) -> Direct | None:
        """For calls with arguments like these; None where they are not for this."""
        plan = site.plan
        emitted = plan.emitted
        if type(emitted) is not EmittedWhole:
            return None
        numbered_args, numbered_kwargs = emitted.tree.unflatten(range(emitted.tree.num_leaves))
        arguments = [*enumerate(numbered_args), *numbered_kwargs.items()]
        must = [key for key, leaves in arguments if not set(plan.proven).isdisjoint(tree_leaves(leaves))]
        proven, others = (ownership.Walk(keys) for keys in (must, [key for key, _ in arguments if key not in must]))
        if not (proven.learn(args, kwargs) and others.learn(args, kwargs)):
            return None
        return cls(
            signature,
            site,
            plan,
            emitted,
            proven if proven.count else None,
            others
            if (proven.count and others.may_change) or (others.count > 1 and (share or plan.program.donated))
            else None,
        )

    def call(
        self, frame: types.FrameType, args: tuple[Any, ...], kwargs: dict[str, Any], landed: list[Any]
    ) -> bool | None:
        """Make the call if it is like the others here, and append its result to `landed`; False where it is not, None
        where JAX says so.

        Raises whatever running the program raises.
        """
        site, plan, emitted = self.site, self.plan, self.emitted
        if site.plan is not plan or site.to_be_looked_at():
            return False
        try:
            # The proof comes last: nothing is looked into between it and the call.
            if self.others is not None and not self.others.is_as_before(args, kwargs):
                return False
            if self.proven is not None and (
                ownership.is_dear(plan.proven) or not ownership.all_dead(frame, args, kwargs, self.proven, plan.outcome)
            ):
                return False
        except Exception as error:  # the arguments are others, or of classes that raise when they are looked at
            if is_from_outside(error):
                raise
            return None
        try:
            landed[:] = emitted, ()
            collections = ownership.collections_so_far()
            emitted.call_whole(args, kwargs, landed)
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
                check_not_deleted(error, self.signature, tree_leaves((args, kwargs)))
            raise
        in_one_go = not plan.outcome.calls_python and ownership.collections_so_far() == collections
        emitted.remember(landed[2], in_one_go)
        site.calls += 1
        site.streak = 0
        return True


class Ways(dict[tuple[int, int], Direct]):
    """The call sites whose calls go straight to `jax.jit`, by code (id) and instruction."""

    def __init__(self, share: bool, python_scalars: PythonScalars) -> None:
        """Those of a function that was compiled with these options."""
        super().__init__()
        self._share = share
        self._python_scalars = python_scalars

    def make_room(self) -> None:
        """Before a call from a site that is new, rather than behind one: what goes with these may run code."""
        if len(self) >= MOST_SITES:
            self.clear()

    def learn(self, signature: Signature, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let the calls after this one go straight, if they can.

        To look at the arguments may run code. So that is done before this call, and not behind the last.
        """
        site.goes_well = False
        leaves = signature.program.leaves
        if self._python_scalars == "static" and any(getattr(leaf.aval, "weak_type", False) for leaf in leaves):
            return  # `jax.jit` does not tell a Python scalar from such an array
        if direct := Direct.of(signature, site, args, kwargs, self._share):
            self[id(site.code), site.lasti] = direct

    def went_well(self, site: Site, looked: bool) -> None:
        """Note that a call has gone as it must for those from here to go straight; `looked` if that one could not
        have."""
        known = self.get((id(site.code), site.lasti))
        if known is not None and known.plan is site.plan:
            if looked:
                return
            site.miss()  # it should have gone straight: something stands elsewhere than it did
            if site.missed >= MOST_MISSES:
                self.pop((id(site.code), site.lasti), None)
        site.goes_well = site.missed < MOST_MISSES

    def stay_away(self, direct: Direct) -> None:
        """Forget a way that has turned out to be none."""
        direct.site.miss()
        self.pop((id(direct.site.code), direct.site.lasti), None)


def check_not_deleted(error: Exception, signature: Signature, leaves: Sequence[Any]) -> None:
    """Raises `RuntimeError` with the path of the leaf where `error` came of an array that was deleted already.

    A callback that raises may end a program after it has taken over its arguments: they are deleted then, too, and
    that is not what the error speaks of.
    """
    if "deleted" not in str(error):
        return
    for leaf, value in zip(signature.program.leaves, leaves, strict=True):
        if isinstance(value, jax.Array) and value.is_deleted():
            raise RuntimeError(
                f"`{leaf.path}` was deleted before this call (donated to another function, or by `.delete()`): {error}"
            ) from error
