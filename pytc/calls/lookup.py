"""Which staged program serves a call: one that is known, one made of a known one, or a new one."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from typing import Any

from jax.tree_util import PyTreeDef

from pytc.arguments.shardings import speaks_of_the_mesh
from pytc.calls.cache import Shared, Signature, Signatures, Staged
from pytc.calls.known import Known
from pytc.calls.lasting import Parting, staged_to_last
from pytc.calls.layout import APART, UNSHARED, Describe, Described, Layout, told_apart
from pytc.calls.numpy_data import NumpyData, as_passed, put_all_on_device
from pytc.calls.planner import Planner
from pytc.jax_compat.avals import DESCRIPTIONS
from pytc.jax_compat.running import config, executing_once, mesh_in_context
from pytc.ownership import Call
from pytc.program import Leaf, Program
from pytc.stage import Stageable


class Stopped(Exception):
    """A `StopIteration` that the function has raised as it was traced, which no generator lets pass."""


def _any_mesh() -> None:
    """The same under every mesh."""


@dataclasses.dataclass(eq=False)
class Lookup:
    """The signatures of one function."""

    stageable: Stageable
    planner: Planner
    share: bool
    describe: Describe
    """What tells leaves apart that are of one layout."""
    known: Known
    numpy_data: NumpyData
    """For which NumPy data arrays are to take the place."""
    layouts: dict[Any, Layout] = dataclasses.field(default_factory=dict)
    """By the tree of the arguments, the types of their leaves and the mesh in context, where it matters."""

    def __post_init__(self) -> None:
        asked = self.stageable.in_shardings, self.stageable.out_shardings
        by_mesh = any(speaks_of_the_mesh(each) for each in asked)
        self._mesh: Callable[[], Any] = mesh_in_context if by_mesh else _any_mesh
        """What tells calls apart by their mesh."""

    def __iter__(self) -> Iterator[Signature]:
        """All that are known, the oldest first of those of one layout, static values and sharing."""
        for layout in list(self.layouts.values()):
            for signatures in layout:
                yield from reversed(signatures.newest)

    def find(self, leaves: list[Any], tree: PyTreeDef) -> Signature | None:
        """The quick way: the signature that these leaves may be for, as far as their types, static values, sharing and
        a few shapes tell. None where none is known, and where a call may be `jax.jit`'s.

        The lists of the caller and the containers of the arguments must be all that refers to unshared leaves. NumPy
        data among the leaves may be replaced by arrays.
        """
        if self.numpy_data == "all":
            put_all_on_device(leaves)
        layout = self.layouts.get((tree, (*map(type, leaves),), self._mesh()))
        if layout is None or not executing_once():
            return None
        sharing = None
        if layout.may_share and not layout.are_known_apart(leaves) and max(map(sys.getrefcount, leaves)) > UNSHARED:
            sharing = layout.sharing(leaves)
        signatures = layout.find(leaves, sharing)
        return None if signatures is None else signatures.find(leaves)

    def signatures(self, call: Call, tree: PyTreeDef) -> Signatures | None:
        """What is known of calls with this layout, static values and sharing; None where a transformation or a
        debugging mode is at work, under which a call is `jax.jit`'s, and of what only describes an array.

        Raises `StaticLeafError` naming a static leaf that cannot be hashed.
        """
        leaves = call.leaves
        kinds = self.stageable.kinds(*self.stageable.parameters.wrap_static(call.args, call.kwargs))
        if "jit" in kinds or not executing_once() or config.jax_debug_key_reuse:
            return None
        types = (*map(type, leaves),)
        if any(kind in types for kind in DESCRIPTIONS):
            return None  # it is not there: `jax.jit` says so
        mesh = self._mesh()
        layout = self.layouts.setdefault((tree, types, mesh), Layout(kinds, self.share))
        sharing = layout.sharing(leaves) if layout.may_share else None
        try:
            values = layout.values(leaves)
            found = layout.get(values, sharing)
        except (TypeError, ValueError):  # the latter: of a `memoryview` that can be written
            self.stageable.leaves(call.args, call.kwargs, share=False)  # names the leaf
            raise
        if found is None:
            by_sharing = self.known.setdefault((tree, types, mesh, values), {})
            sharing = told_apart(sharing, by_sharing.keys())
            shared = by_sharing.setdefault(sharing, Shared(self.describe))
            new = Signatures(shared, layout.same_as(sharing), is_apart=sharing == APART)
            found = layout.setdefault(values, sharing, new)
        return found

    def candidates(
        self,
        signatures: Signatures,
        given: Callable[[], tuple[Call, PyTreeDef]],
        staying: Callable[[], Set[int] | None],
    ) -> Generator[Signature, None, None]:
        """The known signatures with leaves like these, those of programs that others have staged, those that serve
        them too, then a newly staged one: JAX accepts one of them.

        Threads that call for the first time at once stage and compile once: all but the first wait for it, as under
        `jax.jit`. (They do not wait while a program runs that calls Python, which may itself wait for one of them. Two
        traces that would wait for each other call each other's function, which is an endless recursion anyway.)

        `given` returns the call and the tree of its arguments, and `staying` the leaves that will be the same at the
        next call, if the result goes back to where others came from. While this waits for the program to run, it has
        no variable with the call: the proof counts the references to it.
        """
        described = signatures.shared.describe_all(given()[0].leaves)
        known = signatures.alike(described)
        yield from known
        with signatures.shared.being_made(described):
            try:
                yield from (signature for signature in signatures.alike(described) if signature not in known)
                del known  # what makes room is let go of there
                for signature in itertools.chain(
                    self.of_others(signatures, described),
                    self.of_other_kinds(*given()),
                    self.of_other_sharing(signatures, described, *given()),
                ):
                    signatures.make_room(signature)
                    yield signature
                # The program as it was staged is not held here: what only it refers to dies now, not after the call.
                try:
                    signature = self.staged(signatures, described, staying, *given())
                except StopIteration as stop:
                    raise Stopped(stop) from stop
                signatures.make_room(signature)
                if not signature.staged.program.calls_python:
                    yield signature
                    return
            finally:
                signatures.shared.was_made(described)
        yield signature

    def of_others(self, signatures: Signatures, described: Described) -> Sequence[Signature]:
        """One with a program that was staged through another wrapper of the function, if there is any."""
        mine = [signature.staged for signature in signatures.newest]
        for signature in signatures.shared.alike(described):
            if signature.staged not in mine and signature.staged.context.is_current():
                return (signature.handed_on(),)
        return ()

    def of_other_kinds(self, call: Call, tree: PyTreeDef) -> Sequence[Signature]:
        """Signatures made of those of calls with arrays where NumPy data or Python scalars are here, or the reverse,
        which `jax.jit` does not tell apart: a counter that begins as 0, a first batch. They are not staged again, and
        mostly not compiled again."""
        leaves = call.leaves
        types = (*map(type, leaves),)
        mesh = self._mesh()
        own = self.layouts.get((tree, types, mesh))
        if own is None or (own.may_share and own.sharing(leaves) is not None):
            return ()
        named, found = None, []
        for (other_tree, other_types, other_mesh), layout in list(self.layouts.items()):
            if layout is own or (other_tree, other_mesh) != (tree, mesh):
                continue
            if not own.differs_in_arrays_alone(types, layout, other_types):
                continue
            known = layout.find(leaves, None)
            for signature in () if known is None else known.newest:
                named = named or self._named(call)
                program = signature.program.for_leaves(named)
                if program is None or program.calls_python or not signature.staged.context.is_current():
                    continue
                plans = self.planner.inherited(signature.plans, leaves)
                compiled = {plan.could_donate: plan.emitted for plan in plans}
                described = tuple(self.describe(leaf) for leaf in leaves)
                found.append(Signature(Staged(program, self.describe, described, compiled), plans))
        return found

    def of_other_sharing(
        self, signatures: Signatures, described: Described, call: Call, tree: PyTreeDef
    ) -> Sequence[Signature]:
        """One of a program that was staged for leaves of which others are one array, and takes these for several."""
        siblings = self._siblings(signatures, call.leaves, tree)
        if not siblings:
            return ()
        known = self._of_known_program(self._named(call, apart=signatures.is_apart), siblings, described)
        return () if known is None else (known,)

    def staged(
        self,
        signatures: Signatures,
        described: Described,
        staying: Callable[[], Set[int] | None],
        call: Call,
        tree: PyTreeDef,
    ) -> Signature:
        """A newly staged one, for the calls that follow this one as well (`lasting`) if its result is fed back: with
        the program of these, if there is one."""

        def stage(parting: Parting | None) -> Program:
            staged = self.stageable.stage(call.args, call.kwargs, share=self.share, parting=parting)
            return self.planner.prepared(dataclasses.replace(staged, leaves=as_passed(staged.leaves, call.leaves)))

        if signatures.is_apart:
            parting: Parting | None = (*range(len(call.leaves)),)
            program = stage(parting)
        else:
            program, parting = staged_to_last(stage, staying)
        siblings = [] if parting is None else self._siblings(signatures, call.leaves, tree)
        known = self._of_known_program(program.leaves, siblings, described)
        return Signature(Staged(program, self.describe, described)) if known is None else known

    def _named(self, call: Call, *, apart: bool = False) -> tuple[Leaf, ...]:
        """The leaves of a call, by their paths; `apart`, as different arrays."""
        parting = range(len(call.leaves)) if apart else None
        named = self.stageable.leaves(call.args, call.kwargs, share=self.share, parting=parting)
        return as_passed(named, call.leaves)

    def _siblings(self, signatures: Signatures, leaves: Sequence[Any], tree: PyTreeDef) -> list[Signatures]:
        """What is known of calls with the same layout and static values, in which other arrays are one."""
        own = self.layouts.get((tree, (*map(type, leaves),), self._mesh()))
        known = () if own is None else own.of_any_sharing(own.values(leaves))
        return [each for each in known if each is not signatures]

    def _of_known_program(
        self, named: Sequence[Leaf], siblings: Sequence[Signatures], described: Described
    ) -> Signature | None:
        """A signature with a program of one of the `siblings` that is for the leaves so `named`, too."""
        for signature in itertools.chain.from_iterable(each.newest for each in siblings):
            program = signature.program.for_leaves(named)
            if program is None or program.calls_python or not signature.staged.context.is_current():
                continue
            staged = Staged(program, self.describe, described, signature.staged.compiled)
            return Signature(staged, [plan.anew() for plan in list(signature.plans)])
        return None
