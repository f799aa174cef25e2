"""What an explanation is about: a function for some arguments on some device, staged, planned and compiled."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import tree_flatten

from pytc import passes
from pytc.arguments.leaves import unwrapped
from pytc.arguments.parted import part
from pytc.attributes import name_of
from pytc.calls.function import Function
from pytc.calls.lasting import Parting, staged_to_last
from pytc.effort import Tried
from pytc.emit import Emitted
from pytc.errors import DeviceError
from pytc.explain.by_hand import AsJit
from pytc.explain.decisions import PassReport, kept_by_the_caller, pass_report
from pytc.explain.device import Target
from pytc.explain.largest import Resizable, held
from pytc.explain.memory import FAST, Compiler, Footprint, compiler_here, stand_ins
from pytc.explain.placement import Placement
from pytc.explain.pmap_call import pmap_options
from pytc.hlo import given_arguments
from pytc.jax_compat import jaxprs
from pytc.jax_compat.jaxprs import Jaxpr
from pytc.passes import subjaxprs
from pytc.program import Computed, Program
from pytc.stage_mapped import MappedStageable


class Subject:
    """A function for these arguments. The constructor traces, plans and compiles it; nothing is run."""

    def __init__(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], target: Target | None
    ) -> None:
        """`target` is the device to compile for; None means the device that is here."""
        self.function = function
        self._args, self._kwargs, self._target = args, kwargs, target
        planner = function.planner
        values, _ = tree_flatten(function.parameters.wrap_static(args, kwargs))
        self._placement = None if target is None else self._place(target, values)
        self._staged = self._stage(share=function.share)
        leaves = enumerate(self._staged.leaves)
        self._shared = {frozenset((i, leaf.same_as)) for i, leaf in leaves if leaf.same_as is not None}
        """Leaves that are one array."""
        if self._shared and (parting := self._parting()) is not None:
            self._staged = self._stage(share=True, parting=parting)
        self.kept = kept_by_the_caller(planner.policy, self._staged.leaves, values)
        """By leaf that is never written over: why, and what would change that."""
        before, pairing = passes.split(planner.pipeline)
        prepared, reports = _run(self._staged.untouchable, before)
        if self._placement is not None:
            prepared = self._placement.captured(prepared)
        self.program, more_reports = _run(dataclasses.replace(prepared, keep=frozenset(self.kept)), pairing)
        self.reports = _mapped(self._staged) + reports + more_reports
        self._given = stand_ins(self._staged.leaves, values)
        self._compiler = compiler_here() if target is None else _compiler(target)
        self.plans: tuple[Tried, ...] = ()
        """With `effort="high"`, the plans that were considered."""
        if planner.effort == "high":
            told = None if target is None else target.compiler_options
            choice = planner.choose(prepared, self.program, self._given, told)
            self.program, self.plans = choice.emitted.program, choice.tried
        self.footprint = footprint_of(self.program, self._given, planner.options, self._compiler)

    def resizable(self) -> Resizable:
        """The function with the types of its arguments, to be compiled for batches of other sizes."""
        wrapped = self.function.parameters.wrap_static(self._args, self._kwargs)
        values = jax.tree.leaves(wrapped)
        leaves = self.function.stageable.leaves(self._args, self._kwargs, share=False)
        function, target = self.function, self._target  # `total` must not refer to `self`, which has the arguments
        tree: Any = jax.tree.structure(part(*wrapped, values, [None] * len(values), every=True))

        def total(given: Sequence[Any]) -> int:
            args, kwargs = tree.unflatten(given)
            args = tuple(map(unwrapped, args))
            kwargs = {name: unwrapped(value) for name, value in kwargs.items()}
            return Subject(function, args, kwargs, target).footprint.total

        return Resizable(leaves, tuple(map(held, leaves, values)), total)

    @property
    def declined(self) -> tuple[str, ...]:
        """Leaves that were donated for an output, but into which the compiler writes none."""
        if self.footprint.refused:
            return ()
        donated = [self.program.leaves[i].path for i in self.program.donated]
        return tuple(path for path in donated if path not in self.footprint.aliased)

    def as_jit(self) -> AsJit:
        """The same function as `jax.jit` compiles it."""
        function, shared = self.function, self._shared
        staged = self._stage(share=False) if shared else self._staged
        return AsJit(
            self.program if not shared and self._is_only_unwrapped() else staged,
            self._given,
            function.planner.options,
            self._positional(),
            (*function.stageable.shardings, *function.planner.options),
            tuple(shared),
            self._mapped_by_hand(),
            self._compiler,
            isinstance(function.stageable.fun, types.FunctionType),
        )

    def _positional(self) -> tuple[str, ...]:
        parameters, number = self.function.parameters, len(self._args)
        if isinstance(self.function.stageable, MappedStageable):
            number = max(number, len(parameters.positional))  # `jax.pmap` donates nothing that is passed by keyword
        return tuple(map(parameters.positional_name, range(number)))

    def _mapped_by_hand(self) -> list[str] | None:
        stageable = self.function.stageable
        if not isinstance(stageable, MappedStageable):
            return None
        return pmap_options(stageable, self._args, self._kwargs, self._staged)

    def _is_only_unwrapped(self) -> bool:
        """Whether the passes did only what XLA does anyway: removed wrappers, and dead equations and inputs outside of
        loops. Then `jax.jit` compiles their program to the same as the function. Often that is also the very program
        that pytc compiled, which need not be compiled again."""
        before, after = self._staged, self.program
        of_before = [o.origin.index if isinstance(o.origin, Computed) else None for o in before.outputs]
        of_after = [o.origin.index if isinstance(o.origin, Computed) else None for o in after.outputs]
        only_leaves = all(given.leaf is not None for given in after.inputs)
        return only_leaves and of_before == of_after and _looped(before.jaxpr.jaxpr) == _looped(after.jaxpr.jaxpr)

    def _place(self, target: Target, values: Sequence[Any]) -> Placement:
        if not jax.sharding.get_abstract_mesh().empty:
            raise DeviceError(
                "under jax.set_mesh a program is tied to the devices of that mesh: explain it for "
                f"{target.device.name} outside, with its mesh in the shardings of the arguments"
            )
        leaves = self.function.stageable.leaves(self._args, self._kwargs, share=False)
        for leaf, value in zip(leaves, values, strict=True):
            if isinstance(value, jax.Ref):
                raise DeviceError(f"`{leaf.path}` is a jax.Ref, which cannot be moved to {target.device.name}")
        return Placement(target, (each for leaf in leaves for each in (leaf.sharding, leaf.requested)))

    def _stage(self, *, share: bool, parting: Parting | None = None) -> Program:
        stageable, placement = self.function.stageable, self._placement
        place = None if placement is None else placement.leaf
        staged = stageable.stage(self._args, self._kwargs, share=share, parting=parting, place=place)
        return staged if placement is None else placement.program(staged)

    def _parting(self) -> Parting | None:
        """How leaves that are one array part, as in a call."""
        prepared = self.function.planner.prepared
        return staged_to_last(lambda parting: prepared(self._stage(share=True, parting=parting)), frozenset)[1]


def _mapped(staged: Program) -> tuple[PassReport, ...]:
    """For a mapped function, a report on its results that are the same on every row, as found when it was staged."""
    return (pass_report("axes", dataclasses.replace(staged, notes=()), staged),) if staged.notes else ()


def _run(program: Program, pipeline: Sequence[passes.Pass]) -> tuple[Program, tuple[PassReport, ...]]:
    """The program after the pipeline, and a report for each pass."""
    reports = []
    for each in pipeline:
        after = passes.run(program, (each,))
        reports.append(pass_report(name_of(each), program, after))
        program = after
    return program, tuple(reports)


def footprint_of(program: Program, values: Sequence[Any], options: Mapping[str, Any], compiler: Compiler) -> Footprint:
    """The figures of what pytc runs for a program; `values` are what `stand_ins` gives for its leaves."""
    # With flat arguments, as in `by_hand`, so that equal programs have one text and are compiled once.
    emitted = Emitted(program, options)
    given = given_arguments(program.jaxpr, emitted.arguments.place_of_input, len(emitted.arguments), options)
    captured = [program.input_path(i) for i, each in enumerate(program.inputs) if each.leaf is None]
    paths = [program.leaves[i].path for i in program.passed] + captured
    return compiler.footprint(emitted.lower(values), paths, given)


def _compiler(target: Target) -> Compiler:
    return Compiler(FAST if target.device.platform == "cpu" else target.compiler_options)


def _looped(jaxpr: Jaxpr) -> list[int]:
    """For each outermost loop or `cond`, in order, the number of equations inside."""
    counts = []
    for eqn in jaxpr.eqns:
        inside = list(jaxprs.subjaxprs(eqn))
        if eqn.primitive.name in ("scan", "while", "cond"):
            counts.append(sum(map(subjaxprs.count, inside)))
        else:
            counts += [count for sub in inside for count in _looped(sub)]
    return counts
