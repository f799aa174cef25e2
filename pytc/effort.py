"""`effort="high"`: several plans are compiled for the device at hand, and the one that needs the least memory is kept.

A plan is judged by the compiler's own figures: bytes in all, then bytes copied; of equals the earlier is kept, and so
the plan that data flow gives unless another is better. After the first round the best plan is taken further: the
compiler's program tells which inputs it copies, and these are left out, as long as that is better.

What is chosen depends on the program and the compiler alone, so that several processes choose alike: nothing is run or
timed. A GPU's compiler times algorithms while it compiles, which could decide between two plans; in what is measured
here it is told not to. What runs is compiled with the options that it would have been compiled with anyway.

Costs a compilation for each plan, `MOST` at most, at the first call of a signature; with JAX's compilation cache on,
once for all (`pytc.measurements`). A plan that could not be smaller than the best so far, had it no temporary at all,
is not compiled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax

from pytc import hlo
from pytc.emit import Emitted, emit_jit
from pytc.jax_compat.avals import nbytes
from pytc.jax_compat.layouts import sharding_of
from pytc.measurements import Figures, Measurements
from pytc.passes.candidates import Candidate, candidates, without
from pytc.program import Program

Effort = Literal["default", "high"]

MOST = 24
"""Plans that are compiled for one program."""

ROUNDING = 1.01
"""Arguments and results that take up to this much more than their elements are not padded."""


@dataclasses.dataclass(frozen=True)
class Tried:
    """A plan that was considered."""

    name: str
    """In words."""
    figures: Figures | None
    """Those of the compiled program; None where nothing was compiled."""
    chosen: bool
    why: str = ""
    """Where there are no figures: why not."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The plan to use."""

    emitted: Emitted
    """The program; compiled already if it was measured here."""
    tried: tuple[Tried, ...] = ()
    """Every plan that was considered, in that order; none where there is only one."""


def choose(
    planned: Program,
    replan: Callable[[Candidate], Program],
    leaves: Sequence[Any],
    options: Mapping[str, Any],
    compiler_options: Mapping[str, Any] | None = None,
    emit: Callable[..., Emitted] = emit_jit,
    *,
    remember: bool = True,
) -> Choice:
    """The best of a few plans.

    Args:
      planned: the program with the plan that data flow gives.
      replan: from another plan to the program with that.
      leaves: of the arguments; arrays, or `jax.ShapeDtypeStruct`s to measure only.
      options: those of `jax.jit` that speak of the whole program.
      compiler_options: further ones for the compilations that only measure, as for a device that is not here.
      emit: from a program to what is run.
      remember: whether the figures may be read from disk, and are written there, if JAX's compilation cache is on.

    Raises `Retrace` as a call would. A plan that the compiler refuses (a TPU's does where memory is too small) is out.
    """
    search = _Search(planned, replan, leaves, options, compiler_options, emit, remember)
    search.run()
    return search.choice()


class _Search:
    def __init__(
        self,
        planned: Program,
        replan: Callable[[Candidate], Program],
        leaves: Sequence[Any],
        options: Mapping[str, Any],
        compiler_options: Mapping[str, Any] | None,
        emit: Callable[..., Emitted],
        remember: bool,
    ) -> None:
        self.planned, self.replan, self.leaves, self.options = planned, replan, leaves, options
        self.emitter = emit
        self.plans = candidates(planned)
        self.size = sum(_on_a_device(planned, number) for number in range(len(planned.inputs)))
        self.emitted: dict[str, Emitted] = {}
        self.tried: dict[str, tuple[Candidate, Figures | None, str]] = {}
        self.asked = 0
        """Of how many plans the compiler was asked, now or earlier."""
        self.is_silent = False
        """Whether it has turned out to tell nothing."""
        self.best: Candidate = self.plans[0]
        self.least: tuple[int, int] | None = None
        if len(self.plans) > 1:
            first = self.emit(self.best)
            self.lowered: dict[str, jax.stages.Lowered] = {self.best.key: first.lower(leaves)}
            lowered = self.lowered[self.best.key]
            self.known = Measurements.of(lowered, planned, options, compiler_options, remember=remember)

    def run(self) -> None:
        """Try the plans, then what the compiler's programs suggest."""
        if len(self.plans) == 1:
            return
        for candidate in self.plans:
            self.try_one(candidate)
        before = None
        while self.best is not before:
            before = self.best
            for candidate in self.suggested(before):
                self.try_one(candidate)
        self.known.save()

    def suggested(self, candidate: Candidate) -> Iterator[Candidate]:
        """The plan in other orders, and without pairs whose input the compiler copies, the largest first."""
        yield from candidate.reordered(self.planned)
        figures = self.tried[candidate.key][1]
        if figures is not None:
            avals = self.planned.in_avals
            copied = sorted(figures.copied_inputs, key=lambda number: (-nbytes(avals[number]), number))
            yield from without(self.planned, candidate, copied)

    def try_one(self, candidate: Candidate) -> None:
        """Have the plan judged, unless it was, or cannot win."""
        if candidate.key in self.tried:
            return
        figures, why = None, ""
        if self.is_silent:
            why = hlo.SILENT
        elif self.asked >= MOST:
            why = f"not compiled, as {MOST} others were"
        elif self.is_hopeless(candidate):
            why = "not compiled, as it saves too little to be the best"
        else:
            self.asked += 1
            figures, why = self.measured(candidate)
        self.tried[candidate.key] = candidate, figures, why
        if figures is not None and (self.least is None or (figures.total, figures.copied) < self.least):
            self.best, self.least = candidate, (figures.total, figures.copied)

    def is_hopeless(self, candidate: Candidate) -> bool:
        """Whether the plan would take more than the best so far even if it needed no temporary at all.

        Only told where arguments take the bytes of their elements, without padding.
        """
        figures = self.tried[self.plans[0].key][1] if self.tried else None
        if figures is None or self.least is None:
            return False
        if not self.size / ROUNDING <= figures.argument <= self.size * ROUNDING:
            return False
        saved = sum(_on_a_device(self.planned, pair.input) for pair in candidate.pairs)
        return figures.argument + figures.output - saved * ROUNDING > self.least[0]

    def measured(self, candidate: Candidate) -> tuple[Figures | None, str]:
        """The compiler's figures for the plan, or what it had to say instead."""
        if (known := self.known.get(candidate.key)) is not None:
            return known, ""
        emitted = self.emit(candidate)
        lowered = self.lowered.pop(candidate.key, None) or emitted.lower(self.leaves)
        try:
            compiled = lowered.compile(self.known.compiler_options)
        except jax.errors.JaxRuntimeError as error:
            return None, f"does not compile: {str(error).partition(chr(10))[0]}"
        figures = _figures(compiled, emitted, self.options)
        if figures is None:
            self.is_silent = True
            return None, hlo.SILENT
        self.known.add(candidate.key, figures)
        return figures, ""

    def emit(self, candidate: Candidate) -> Emitted:
        if candidate.key not in self.emitted:
            program = self.planned if candidate is self.plans[0] else self.replan(candidate)
            self.emitted[candidate.key] = self.emitter(program, **self.options)
        return self.emitted[candidate.key]

    def choice(self) -> Choice:
        """The best plan, and what was tried on the way to it."""
        tried = tuple(Tried(c.told, figures, c is self.best, why) for c, figures, why in self.tried.values())
        return Choice(self.emit(self.best), tried)


def _on_a_device(program: Program, number: int) -> int:
    """The bytes of an input on each device."""
    aval, leaf = program.in_avals[number], program.inputs[number].leaf
    sharding = None if leaf is None else sharding_of(program.leaves[leaf].placed)
    if not isinstance(sharding, jax.sharding.Sharding) or not aval.size:
        return nbytes(aval)
    shard: int = nbytes(aval) * math.prod(sharding.shard_shape(aval.shape)) // aval.size
    return shard


def _figures(compiled: jax.stages.Compiled, emitted: Emitted, options: Mapping[str, Any]) -> Figures | None:
    program = emitted.program
    given = hlo.given_arguments(program.jaxpr, emitted.arguments.place_of_input, len(emitted.arguments), options)
    told = hlo.measured(compiled, given)
    if told is None:
        return None
    copies = told.optimised.copies
    number = {place: k for k, place in enumerate(emitted.arguments.place_of_input)}
    copied = {number[c.argument] for c in copies if c.argument is not None and c.argument in number}
    return Figures(
        told.argument,
        told.output,
        told.temp,
        told.alias,
        len(copies),
        sum(copy.nbytes for copy in copies),
        tuple(sorted(copied)),
    )
