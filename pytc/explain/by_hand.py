"""The best donation by hand: the memory that `jax.jit` of the same function takes, for each choice of arguments."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax

from pytc.explain.memory import Compiler, Footprint, compiler_here
from pytc.hlo import given_arguments
from pytc.jax_compat import api, rules
from pytc.jax_compat.avals import is_ref
from pytc.jax_compat.donated import first_come, given_away, of_one_size
from pytc.jax_compat.warned import unusable_donations_ignored
from pytc.passes import subjaxprs
from pytc.program import Computed, Program

MOST_SEARCHED = 4
"""Every subset of the largest arguments, at most so many, is tried."""

LARGE = 1000
"""A program of more equations takes long to compile, so only donating nothing and everything are compared."""

LEAST_GAIN = 1000
"""An argument that can save less than 1/`LEAST_GAIN` of what donation can save in all, such as a counter, is left out.
"""


@dataclasses.dataclass(frozen=True)
class ByHand:
    """The best choice of `donate_argnums` and `donate_argnames`, and how it was found."""

    parameters: tuple[str, ...]
    """The arguments to donate; empty if donating none is best."""
    footprint: Footprint
    search: str
    """Which choices were compared, in words."""
    tried: tuple[tuple[tuple[str, ...], Footprint], ...]
    """Each choice that was compiled. Of choices for which JAX makes the same pairs, only one is compiled."""
    refusal: str = ""
    """What the compiler said of a choice that it does not compile; empty if there is none."""


@dataclasses.dataclass(frozen=True)
class AsJit:
    """A function as `jax.jit` compiles it: its arguments and results as they are, in their own order."""

    staged: Program
    """The program, with no pass run except those that make no difference to the compiler. Each leaf that is read is an
    input of its own; the inputs are traced leaves in order."""
    values: Sequence[Any]
    """For each leaf what `stand_ins` gives."""
    options: Mapping[str, Any]
    """Options of `jax.jit` besides shardings and donation."""
    positional: tuple[str, ...] = ()
    """The names of the positional arguments, in order; the others are passed by keyword. Of a mapped function, all that
    can be positional, since `jax.pmap` donates no others."""
    given: tuple[str, ...] = ()
    """The names of the options of `jax.jit` that the function was compiled with."""
    shared: Collection[frozenset[int]] = ()
    """Pairs of leaves (indices) that are the same array. `jax.jit` refuses a donated array that is passed twice."""
    mapped: Sequence[str] | None = None
    """For a mapped function, the options of `jax.pmap` as source."""
    compiler: Compiler = dataclasses.field(default_factory=compiler_here)
    named: bool = True
    """Whether the program's name is that of the callable itself, a function. A `partial`, a method or an object takes
    other arguments than the function that has the name."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the arguments with leaves, in order."""
        return tuple(dict.fromkeys(leaf.parameter for leaf in self.staged.leaves))

    @property
    def called(self) -> str:
        """`jax.jit` or `jax.pmap`."""
        return "jax.jit" if self.mapped is None else "jax.pmap"

    @functools.cached_property
    def _traced(self) -> list[int]:
        return [i for i, leaf in enumerate(self.staged.leaves) if not leaf.is_static]

    @functools.cached_property
    def _places(self) -> list[int]:
        """For each input, its number among the traced leaves."""
        place = {leaf: number for number, leaf in enumerate(self._traced)}
        return [place[given.leaf] for given in self.staged.inputs if given.leaf is not None]

    @functools.cached_property
    def _flat(self) -> Callable[..., list[Any]]:
        """The function of its traced leaves. One object for all choices, so that JAX traces it once."""
        closed = self.staged.jaxpr

        def flat(*values: Any) -> list[Any]:
            return rules.evaluate(closed, [values[i] for i in self._places])

        flat.__name__ = flat.__qualname__ = self.staged.name
        return flat

    def lowered(self, donated: Collection[str] = ()) -> jax.stages.Lowered:
        """Lower the function with these arguments donated whole. Nothing is compiled."""
        leaves = [self.staged.leaves[i] for i in self._traced]
        shardings: dict[str, Any] = {}
        if any(leaf.requested is not None for leaf in leaves):
            shardings["in_shardings"] = tuple(leaf.requested for leaf in leaves)
        requested = {o.origin.index: o.requested for o in self.staged.outputs if isinstance(o.origin, Computed)}
        if any(wanted is not None for wanted in requested.values()):
            shardings["out_shardings"] = [requested[i] for i in range(len(requested))]
        numbers = tuple(i for i, leaf in enumerate(leaves) if leaf.parameter in donated)
        jitted = api.jit(self._flat, donate_argnums=numbers, **shardings, **self.options)
        given = [self.values[i] for i in self._traced]
        lowered: jax.stages.Lowered = unusable_donations_ignored(lambda: jitted.lower(*given))
        return lowered

    def footprint(self, donated: Collection[str] = ()) -> Footprint:
        """The figures of the function, compiled with these arguments donated whole."""
        paths = [self.staged.leaves[i].path for i in self._traced]
        return self.compiler.footprint(self.lowered(donated), paths, self._given)

    def deleted(self, donated: Collection[str]) -> frozenset[int]:
        """The leaves (indices) that a call deletes if these arguments are donated whole: those into which, as far as
        JAX can tell, an output may be written. It leaves the others alone."""
        flags = given_away(self.lowered(donated))[-len(self._given) :] if self._given else []
        return frozenset(self._traced[number] for number, flag in zip(self._given, flags, strict=True) if flag)

    @functools.cached_property
    def _given(self) -> list[int]:
        """The numbers of the traced leaves that are passed to the compiled program."""
        return given_arguments(self.staged.jaxpr, self._places, len(self._traced), self.options)

    def search(self, undonated: Footprint) -> ByHand:
        """Compile choices of arguments to donate, and return the one that takes the least memory; of equals, the one
        that copies least, then the one that donates least.

        Choices that can save most come first. A choice that could not beat the best so far even if it saved all that it
        can is not compiled.
        """
        referring = {leaf.parameter for leaf in self.staged.leaves if leaf.aval is not None and is_ref(leaf.aval)}
        given = [name for name in self.parameters if self.mapped is None or name in self.positional]
        gains = {name: gain for name in given if name not in referring and (gain := self.gain([name]))}
        useful = [name for name, gain in gains.items() if gain * LEAST_GAIN >= sum(gains.values())]
        largest = sorted(useful, key=lambda name: -gains[name])[:MOST_SEARCHED]
        others = [name for name in useful if name not in largest]
        words = f"every choice among {', '.join(useful)}" if useful else "nothing, since no output fits in an argument"
        if others:
            words = f"every choice among the largest, {', '.join(largest)}, with the other {len(others)} donated or not"
        choices = sorted(_choices(useful, largest, others), key=lambda names: -self.gain(names))
        if subjaxprs.count(self.staged.jaxpr.jaxpr) > LARGE and len(useful) > 1:
            words = f"nothing and all of {', '.join(useful)}, since it takes long to compile the program"
            choices = [tuple(useful)]
        if small := [name for name in gains if name not in useful]:
            words += f"; not {', '.join(small)}, worth {self.gain(small)} bytes at most"
        tried: dict[tuple[str, ...], Footprint] = {(): undonated}
        least, hopeless, refusals = undonated.total, 0, list[str]()
        seen: set[tuple[tuple[int, int], ...]] = {()}
        for names in choices:
            pairs = self.pairs(names)
            if pairs in seen or self._given_twice(names):
                continue
            seen.add(pairs)
            if undonated.total - self.gain(names) >= least:
                hopeless += 1
                continue
            try:
                tried[names] = self.footprint(names)
            except jax.errors.JaxRuntimeError as error:
                refusals.append(str(error).partition("\n")[0])
                continue
            least = min(least, tried[names].total)
        if hopeless:
            words += f", but for {hopeless} that could not save as much"
        if refusals:
            words += f", but for {len(refusals)} that the compiler refuses: {refusals[0]}"
        best = min(tried, key=lambda names: (tried[names].total, tried[names].copied, len(names)))
        return ByHand(best, tried[best], words, tuple(tried.items()), refusals[0] if refusals else "")

    def pairs(self, donated: Collection[str]) -> tuple[tuple[int, int], ...]:
        """Pairs of a traced leaf and the output that is written into it, by number: JAX takes the outputs in order, and
        gives each the first donated leaf that fits; what is left of both XLA may pair if they are of one size."""
        leaves = [self.staged.leaves[i] for i in self._traced]
        given = [(k, leaf.aval) for k, leaf in enumerate(leaves) if leaf.parameter in donated and leaf.aval is not None]
        outputs = [*enumerate(self.staged.out_avals)]
        pairs = first_come(given, outputs)
        taken = {*pairs.values()}
        left = [(k, aval) for k, aval in given if k not in taken]
        pairs |= of_one_size(left, [(output, aval) for output, aval in outputs if output not in pairs])
        return tuple((number, output) for output, number in pairs.items())

    def gain(self, donated: Collection[str]) -> int:
        """The most bytes that donating these arguments can save."""
        return sum(self.staged.leaves[self._traced[given]].nbytes for given, _ in self.pairs(donated))

    def _given_twice(self, donated: Collection[str]) -> bool:
        leaves = self.staged.leaves
        return any(all(leaves[i].parameter in donated for i in pair) for pair in self.shared)


def _choices(useful: Sequence[str], largest: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every subset of `largest`, alone and with all of `others`; the arguments in their own order."""
    for size in range(len(largest) + 1):
        for chosen in itertools.combinations(largest, size):
            for rest in [others, ()] if others else [()]:
                taken = {*chosen, *rest}
                yield tuple(name for name in useful if name in taken)
