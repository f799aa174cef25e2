"""The compiler's own figures: for the program, for `jax.jit` with nothing donated, and for the best that can be
donated by hand.

Nothing is estimated: each figure is that of an executable that was compiled for it, and not run. The two that the
program is compared with are compiled when they are first asked for, since the search for the best `donate_argnums`
compiles several programs.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax

from pytc.explain import hlo
from pytc.jax_compat import ClosedJaxpr, dce, given_away, is_ref, nbytes, unusable_donations_ignored
from pytc.program import Computed, Leaf, Program

MOST_SEARCHED = 4
"""Arguments of which every subset is tried."""

LEAST_GAIN = 1000
"""An argument that can save less than this part of what donation can save in all is not worth a promise: a counter."""


@dataclasses.dataclass(frozen=True)
class Copy:
    """An array that the compiled program copies, as a whole."""

    path: str | None
    """The leaf that is copied; None for an intermediate value."""
    shape: str
    """As XLA writes it: `f32[8,128]`."""
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Footprint:
    """The memory of one compiled program in bytes, on each device, as the compiler counts it."""

    argument: int
    output: int
    temp: int
    alias: int
    """Bytes of the outputs that are written into arguments."""
    copies: tuple[Copy, ...] = ()
    aliased: tuple[str, ...] = ()
    """Paths of the leaves that an output is written into, read back from the optimised program."""
    devices: int = 1
    """Over how many devices the program is partitioned."""

    @property
    def total(self) -> int:
        """What the program needs at its peak: argument + output + temp - alias."""
        return self.argument + self.output + self.temp - self.alias

    @property
    def copied(self) -> int:
        """Bytes in `copies`."""
        return sum(copy.nbytes for copy in self.copies)


@dataclasses.dataclass(frozen=True)
class ByHand:
    """The best that `donate_argnums` and `donate_argnames` can do, and how it was found."""

    parameters: tuple[str, ...]
    """The arguments to donate; empty where donating none is best."""
    footprint: Footprint
    search: str
    """Which choices were compared, in words."""
    tried: tuple[tuple[tuple[str, ...], Footprint], ...]
    """Each choice that was compiled. Choices for which JAX pairs the same buffers are compiled once."""


@dataclasses.dataclass(frozen=True)
class AsJit:
    """A function as `jax.jit` compiles it: staged, with no pass run, outputs in their own order."""

    staged: Program
    """With every leaf an input of its own; its inputs are its traced leaves in order."""
    values: Sequence[Any]
    """For each leaf what `stand_ins` gives."""
    options: Mapping[str, Any]
    positional: tuple[str, ...] = ()
    """What the positional arguments are called, in order; the others are passed by keyword."""
    given: tuple[str, ...] = ()
    """Names of the options of `jax.jit` that the function was compiled with."""
    shared: Collection[frozenset[int]] = ()
    """Pairs of leaves (indices) that are one array, which `jax.jit` refuses to be given twice where it is donated."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the arguments with leaves are called, in order."""
        return tuple(dict.fromkeys(leaf.parameter for leaf in self.staged.leaves))

    @functools.cached_property
    def _flat(self) -> Callable[..., list[Any]]:
        """The function on its traced leaves; one object for all choices, so that JAX traces it once."""
        closed = self.staged.jaxpr

        def flat(*values: Any) -> list[Any]:
            return list(jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *values))

        return flat

    def lowered(self, donated: Collection[str] = ()) -> jax.stages.Lowered:
        """Lowered with these arguments donated whole. Nothing is compiled."""
        traced = [i for i, leaf in enumerate(self.staged.leaves) if not leaf.is_static]
        leaves = [self.staged.leaves[i] for i in traced]
        shardings: dict[str, Any] = {}
        if any(leaf.requested is not None for leaf in leaves):
            shardings["in_shardings"] = tuple(leaf.requested for leaf in leaves)
        requested = {o.origin.index: o.requested for o in self.staged.outputs if isinstance(o.origin, Computed)}
        if any(wanted is not None for wanted in requested.values()):
            shardings["out_shardings"] = [requested[i] for i in range(len(requested))]
        numbers = tuple(i for i, leaf in enumerate(leaves) if leaf.parameter in donated)
        jitted = jax.jit(self._flat, donate_argnums=numbers, **shardings, **self.options)
        with unusable_donations_ignored():
            lowered: jax.stages.Lowered = jitted.lower(*(self.values[i] for i in traced))
        return lowered

    def footprint(self, donated: Collection[str] = ()) -> Footprint:
        """Compile with these arguments donated whole."""
        leaves = [leaf for leaf in self.staged.leaves if not leaf.is_static]
        compiled = self.lowered(donated).compile()
        return footprint_of(compiled, [leaf.path for leaf in leaves], self._given)

    def deleted(self, donated: Collection[str]) -> frozenset[int]:
        """The leaves (indices) that a call deletes where these arguments are donated whole: those of which JAX thinks
        that an output may be written into them. The others it leaves alone."""
        traced = [i for i, leaf in enumerate(self.staged.leaves) if not leaf.is_static]
        flags = given_away(self.lowered(donated))[-len(self._given) :] if self._given else []
        return frozenset(traced[number] for number, flag in zip(self._given, flags, strict=True) if flag)

    @property
    def _given(self) -> list[int]:
        count = sum(not leaf.is_static for leaf in self.staged.leaves)
        return given_arguments(self.staged.jaxpr, range(count), count, self.options)

    def search(self, undonated: Footprint) -> ByHand:
        """Compile what can be donated by hand, and keep what takes the least memory; of equals, what copies least and
        then what donates least."""
        referring = {leaf.parameter for leaf in self.staged.leaves if leaf.aval is not None and is_ref(leaf.aval)}
        gains = {name: gain for name in self.parameters if name not in referring and (gain := self.gain([name]))}
        useful = [name for name, gain in gains.items() if gain * LEAST_GAIN >= sum(gains.values())]
        largest = sorted(useful, key=lambda name: -gains[name])[:MOST_SEARCHED]
        others = [name for name in useful if name not in largest]
        words = f"every choice among {', '.join(useful)}" if useful else "nothing, since no output fits in an argument"
        if others:
            words = f"every choice among the largest, {', '.join(largest)}, with the other {len(others)} donated or not"
        if small := [name for name in gains if name not in useful]:
            words += f"; not {', '.join(small)}, worth {self.gain(small)} bytes at most"
        tried: dict[tuple[str, ...], Footprint] = {(): undonated}
        seen: set[tuple[tuple[int, int], ...]] = {()}
        for names in _choices(useful, largest, others):
            pairs = self.pairs(names)
            if pairs not in seen and not self._given_twice(names):
                seen.add(pairs)
                tried[names] = self.footprint(names)
        best = min(tried, key=lambda names: (tried[names].total, tried[names].copied, len(names)))
        return ByHand(best, tried[best], words, tuple(tried.items()))

    def pairs(self, donated: Collection[str]) -> tuple[tuple[int, int], ...]:
        """Which outputs JAX writes into which inputs: outputs in order, each the first donated input that fits."""
        free: dict[Any, collections.deque[int]] = {}
        leaves = [leaf for leaf in self.staged.leaves if not leaf.is_static]
        for i, (leaf, aval) in enumerate(zip(leaves, self.staged.in_avals, strict=True)):
            if leaf.parameter in donated and hasattr(aval, "shape"):
                free.setdefault((aval.shape, aval.dtype), collections.deque()).append(i)
        pairs = []
        for output, aval in enumerate(self.staged.out_avals):
            if hasattr(aval, "shape") and (fitting := free.get((aval.shape, aval.dtype))):
                pairs.append((fitting.popleft(), output))
        return tuple(pairs)

    def gain(self, donated: Collection[str]) -> int:
        """The bytes that donating these can save at most."""
        avals = self.staged.in_avals
        return sum(nbytes(avals[given]) for given, _ in self.pairs(donated))

    def _given_twice(self, donated: Collection[str]) -> bool:
        leaves = self.staged.leaves
        return any(all(leaves[i].parameter in donated for i in pair) for pair in self.shared)


def _choices(useful: Sequence[str], largest: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every subset of the largest, alone and with all the others; the arguments in their order."""
    for size in range(len(largest) + 1):
        for chosen in itertools.combinations(largest, size):
            for rest in [others, ()] if others else [()]:
                taken = {*chosen, *rest}
                yield tuple(name for name in useful if name in taken)


@dataclasses.dataclass(frozen=True)
class Memory:
    """What the program takes, and what the same function takes without pytc."""

    program: Footprint
    declined: tuple[str, ...]
    """Leaves that were donated for an output and into which the compiler writes none."""
    as_jit: AsJit = dataclasses.field(repr=False, compare=False)

    @functools.cached_property
    def undonated(self) -> Footprint:
        """`jax.jit(fun)`. Compiled when first asked for."""
        return self.as_jit.footprint()

    @functools.cached_property
    def by_hand(self) -> ByHand:
        """`jax.jit(fun, donate_argnums=...)` with the best choice. Compiles several programs when first asked for."""
        return self.as_jit.search(self.undonated)


def given_arguments(jaxpr: ClosedJaxpr, places: Sequence[int], count: int, options: Mapping[str, Any]) -> list[int]:
    """Which of `count` flat arguments JAX gives to the compiled program: those that are read, unless `keep_unused` says
    all. `places` are the numbers of the flat arguments that the jaxpr's invars are."""
    if options.get("keep_unused"):
        return list(range(count))
    _, read = dce(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.outvars))
    return sorted(place for place, is_read in zip(places, read, strict=True) if is_read)


def footprint_of(compiled: jax.stages.Compiled, paths: Sequence[str], given: Sequence[int]) -> Footprint:
    """The figures of a compiled program. `paths` names its flat arguments, in order; `given` are the numbers of those
    that JAX gives to it.

    Raises `RuntimeError` where the backend's compiler counts no memory.
    """
    counted = compiled.memory_analysis()
    text = compiled.as_text()
    if counted is None or text is None:
        raise RuntimeError("the compiler of this backend tells nothing of the memory that its programs need")
    optimised = hlo.read(text, given)
    return Footprint(
        counted.argument_size_in_bytes,
        counted.output_size_in_bytes,
        counted.temp_size_in_bytes,
        counted.alias_size_in_bytes,
        tuple(Copy(None if c.argument is None else paths[c.argument], c.shape, c.nbytes) for c in optimised.copies),
        tuple(paths[i] for i in sorted(optimised.aliased)),
        optimised.partitions,
    )


def stand_ins(leaves: Sequence[Leaf], values: Sequence[Any]) -> tuple[Any, ...]:
    """For each leaf something to lower for that holds no memory, since an explanation outlives the arrays that it was
    asked about. Only of a `jax.Ref`, whose whole point is to be one thing, there is no stand-in."""
    given = []
    for leaf, value in zip(leaves, values, strict=True):
        if leaf.aval is None or isinstance(value, jax.Ref):
            given.append(value)
        else:
            described = {"weak_type": bool(leaf.aval.weak_type), "sharding": leaf.sharding}
            stand_in = jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype, **described)  # type: ignore[no-untyped-call]
            given.append(stand_in)
    return tuple(given)
