"""The compiler's own figures: for the program, for `jax.jit` with nothing donated, and for the best donation by hand.

Nothing is estimated: each figure is from an executable that was compiled for it, and not run. The two to compare with
are compiled when first needed, since the search for the best `donate_argnums` compiles several programs.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from pytc import hlo
from pytc.jax_compat.avals import stand_in
from pytc.program import Leaf

if TYPE_CHECKING:
    from pytc.explain.by_hand import AsJit, ByHand

FAST = {"xla_backend_optimization_level": 0}
"""Options for a CPU's compiler not to optimise machine code that is never run. They do not affect the memory."""


@dataclasses.dataclass(frozen=True)
class Copy:
    """A whole array that the compiled program copies."""

    path: str | None
    """The leaf that is copied; None for an intermediate value."""
    shape: str
    """As XLA writes it: `f32[8,128]`."""
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Footprint(hlo.Bytes):
    """The memory of one compiled program, and what it copies."""

    copies: tuple[Copy, ...] = ()
    aliased: tuple[str, ...] = ()
    """Paths of the leaves that an output is written into, read back from the optimised program."""
    devices: int = 1
    """Over how many devices the program is partitioned."""
    refused: str = ""
    """The compiler's message if it gave up because the program does not fit. Then only the total is known: `temp` has
    it, and the other figures are 0."""

    @property
    def copied(self) -> int:
        """Bytes in `copies`."""
        return sum(copy.nbytes for copy in self.copies)


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory of the program, and of the same function without pytc."""

    program: Footprint
    declined: tuple[str, ...]
    """Leaves that were donated for an output, but into which the compiler writes none."""
    as_jit: AsJit = dataclasses.field(repr=False, compare=False)

    @functools.cached_property
    def undonated(self) -> Footprint:
        """`jax.jit(fun)`. Compiled when first needed."""
        return self.as_jit.footprint()

    @functools.cached_property
    def by_hand(self) -> ByHand:
        """`jax.jit(fun, donate_argnums=...)` with the best choice. Compiles several programs when first needed."""
        return self.as_jit.search(self.undonated)


class Compiler:
    """Compiles programs for their figures alone; programs with the same text once."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` are for the compiler, in addition to those that a program was lowered with."""
        self._options = dict(options)
        self._known: dict[bytes, Footprint] = {}

    def footprint(self, lowered: jax.stages.Lowered, paths: Sequence[str], given: Sequence[int]) -> Footprint:
        """The figures of a lowered program. `paths` names its flat arguments, in order; `given` are the numbers of
        those that JAX passes to it.

        Raises `RuntimeError` if the backend's compiler reports no memory figures, and whatever compiling raises, except
        if the program does not fit (`Footprint.refused`).
        """
        key = hashlib.sha256("\0".join([lowered.as_text(), *(paths[i] for i in given)]).encode()).digest()
        if key not in self._known:
            self._known[key] = self._compile(lowered, paths, given)
        return self._known[key]

    def _compile(self, lowered: jax.stages.Lowered, paths: Sequence[str], given: Sequence[int]) -> Footprint:
        try:
            compiled = lowered.compile(compiler_options=self._options or None)
        except jax.errors.JaxRuntimeError as error:
            total = needed(str(error))
            if total is None:
                raise
            return Footprint(0, 0, total, 0, refused=str(error).splitlines()[0])
        told = hlo.measured(compiled, given)
        if told is None:
            raise RuntimeError(hlo.SILENT)
        optimised = told.optimised
        return Footprint(
            told.argument,
            told.output,
            told.temp,
            told.alias,
            tuple(Copy(None if c.argument is None else paths[c.argument], c.shape, c.nbytes) for c in optimised.copies),
            tuple(paths[i] for i in sorted(optimised.aliased)),
            optimised.partitions,
        )


def compiler_here() -> Compiler:
    """The compiler for the device that programs run on here."""
    return Compiler(FAST if jax.default_backend() == "cpu" else {})


def stand_ins(leaves: Sequence[Leaf], values: Sequence[Any]) -> tuple[Any, ...]:
    """For each leaf a value to lower for that takes no memory, since an explanation outlives the arrays that it is
    about. Only a `jax.Ref`, which has an identity, is returned itself."""
    return tuple(
        value if leaf.aval is None or isinstance(value, jax.Ref) else stand_in(leaf.aval, leaf.sharding)
        for leaf, value in zip(leaves, values, strict=True)
    )


def needed(message: str) -> int | None:
    """The total bytes that a program needs, read from the message of a compiler that gave up for lack of memory; None
    if the message is about something else.

    A TPU's compiler makes no program that does not fit: "the total memory required ... (18.26G) exceeds available HBM
    (15.75G)".
    """
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    figures = re.findall(r"(?:required[^(]*\(|Used )([\d.]+)([KMGT]?)", message)
    if not figures:
        return None
    number, unit = figures[0]
    return math.ceil(float(number) * float(1024 ** " KMGT".index(unit or " ")))
