"""The one data structure that flows through the compiler: stage -> passes -> emit -> explain.

A `Program` is a jaxpr together with what the caller sees of it: the leaves of the arguments, the
leaves of the result, and how the two meet the jaxpr's invars and outvars. It is frozen; a pass takes
one and returns another (`dataclasses.replace`). It speaks of one signature (shapes, dtypes, tree
structure, static leaves) and knows nothing of calls.

    leaves    every leaf of the arguments, in flattening order, static ones too. Never changed by a pass.
    inputs    one for each invar of the jaxpr: a leaf, or an array that the function had captured.
    outputs   every leaf of the result, in flattening order: computed by the jaxpr, a leaf of the
              arguments handed back, or a value that is not an array.
    aliases   which outvar is written into which invar's buffer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

from jax.tree_util import PyTreeDef

from pytc.jax_compat.avals import AbstractValue, held_as, nbytes, of_each, short
from pytc.jax_compat.effects import may_call_python
from pytc.jax_compat.jaxprs import ClosedJaxpr, Var
from pytc.jax_compat.layouts import asks_for_parts, is_over_several


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of the arguments, as the caller passed it."""

    path: str
    """From the parameter's name on: `state['params'][0].weight`."""
    parameter: str
    """The parameter it came in by: `state`; `args[2]` under `*args`, the keyword under `**kwargs`."""
    aval: AbstractValue | None
    """Its shape and dtype, or None for a static leaf."""
    value: Any = None
    """The value of a static leaf."""
    array: bool = False
    """Whether the caller passes a `jax.Array` (rather than NumPy data or a Python scalar, which a call converts)."""
    sharding: Any = None
    """Where the array lives if it is committed there; None for what JAX is free to place."""
    requested: Any = None
    """The sharding that `in_shardings` asks for, or None."""
    axis: int | None = None
    """The axis of it that is mapped, or None: the whole of it goes to every row."""
    same_as: int | None = None
    """The first leaf (an index) that is the same array object; it stands for both."""
    elsewhere: bool = False
    """Whether an earlier leaf is the same array object, but does not stand for both: it is asked for elsewhere, or the
    two will be different arrays at the next call."""

    @property
    def is_static(self) -> bool:
        """Whether its value is part of the program's key, rather than traced."""
        return self.aval is None

    @property
    def placed(self) -> Any:
        """The sharding, or the `Format`, that the program has it in; None for what JAX is free to place."""
        return self.sharding if self.requested is None else self.requested

    @property
    def nbytes(self) -> int:
        """Bytes over all devices; 0 for a static leaf."""
        return 0 if self.aval is None else nbytes(self.aval)


@dataclasses.dataclass(frozen=True)
class Input:
    """What one invar of the jaxpr is given at a call."""

    leaf: int | None
    """Index into `Program.leaves`, or None for an array captured by the function."""
    captured: Any = None
    """A private copy of the captured array. Every call reads it, so its buffer is never written."""


@dataclasses.dataclass(frozen=True)
class Computed:
    """An output that the jaxpr computes: its outvar number `index`."""

    index: int


@dataclasses.dataclass(frozen=True)
class Passed:
    """An output that is leaf `leaf` of the arguments: the caller gets the very same array back."""

    leaf: int


@dataclasses.dataclass(frozen=True)
class Kept:
    """An output that is not an array: the value that the function returned when it was traced."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Output:
    """One leaf of the result."""

    path: str
    """Where it stands in the result: `[0]['params'].weight`; empty when the result is one leaf."""
    origin: Computed | Passed | Kept
    requested: Any = None
    """The sharding that `out_shardings` asks for, or None."""


@dataclasses.dataclass(frozen=True)
class Alias:
    """Outvar `output` is written into the buffer of invar `input`."""

    input: int
    output: int
    copied: int = 0
    """Bytes that the pair is expected to cost in copies; 0 when every reader of the input can run before the write. (A
    CPU's compiler, which looks for copies before it has put the steps in order, may make one all the same.)"""
    why: str = ""
    """In plain words, for `explain`."""


@dataclasses.dataclass(frozen=True)
class Note:
    """Something that a pass did or declined, for `explain`."""

    by: str
    """The pass."""
    text: str
    """In plain words, leaves by path."""
    leaf: int | None = None
    """The leaf that it speaks of, if it is one."""


Order: TypeAlias = Literal["forwards", "backwards", "unpaired first", "unpaired last"]
"""As the function has leaves and results; both from the last to the first; the results that are `unpaired` before or
after the others. A program that `keeps_order` has them forwards."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A staged function for one signature of its arguments."""

    name: str
    jaxpr: ClosedJaxpr
    """Its consts are captured arrays that stay constants of the compiled program."""
    leaves: tuple[Leaf, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    out_tree: PyTreeDef
    keep: frozenset[int] = frozenset()
    """Leaves (indices) that the caller will read again: no output is written over them."""
    aliases: tuple[Alias, ...] = ()
    order: Order = "forwards"
    """In which order the compiler is given the leaves and gives the results: it influences the compiler's schedule."""
    notes: tuple[Note, ...] = ()
    in_tree: PyTreeDef | None = None
    """Of `(args, kwargs)`, static arguments as leaves; None where the leaves come from elsewhere."""
    qualname: str = ""
    """What JAX's errors are to call it, if that is not `name`."""

    @functools.cached_property
    def in_avals(self) -> tuple[AbstractValue, ...]:
        """Shape and dtype of each invar."""
        return tuple(v.aval for v in self.jaxpr.jaxpr.invars)

    @functools.cached_property
    def out_avals(self) -> tuple[AbstractValue, ...]:
        """Shape and dtype of each outvar."""
        return tuple(v.aval for v in self.jaxpr.jaxpr.outvars)

    @functools.cached_property
    def calls_python(self) -> bool:
        """Whether Python code may run while the program does."""
        return may_call_python(self.jaxpr)

    @property
    def untouchable(self) -> Program:
        """This program with all leaves in `keep`, as long as nothing is known of what callers let go of."""
        return dataclasses.replace(self, keep=frozenset(range(len(self.leaves))))

    @functools.cached_property
    def keeps_order(self) -> bool:
        """Whether the results are returned in the function's own order, whatever is written over what: where a
        sharding over several devices is asked for, of a result or inside.

        What is computed is then cut by XLA so as to suit what was asked for, and where that asks for two ways, by the
        one that it comes across first. It goes by the results in turn; so in another order a sum may be made of other
        parts, and have another last bit. The order of arguments decides nothing.
        """
        return any(is_over_several(output.requested) for output in self.outputs) or asks_for_parts(self.jaxpr.jaxpr)

    @property
    def passed(self) -> tuple[int, ...]:
        """Leaves (indices) that are passed to the compiled program, in order: an array at several leaves once."""
        passed = tuple(i for i, leaf in enumerate(self.leaves) if leaf.aval is not None and leaf.same_as is None)
        if self.keeps_order:
            return self._in_order_of_outputs(passed)
        return passed[::-1] if self.order == "backwards" else passed

    def _in_order_of_outputs(self, passed: Sequence[int]) -> tuple[int, ...]:
        """Leaves with those that are written over in the order of the outputs that are, in the places of such leaves;
        JAX pairs both in turn."""
        output = {leaf: a.output for a in self.aliases if (leaf := self.inputs[a.input].leaf) is not None}
        in_turn = iter(sorted((leaf for leaf in passed if leaf in output), key=output.__getitem__))
        return tuple(next(in_turn) if leaf in output else leaf for leaf in passed)

    @property
    def unpaired(self) -> tuple[int, ...]:
        """Outvars (numbers) of no shape and dtype that one of a pair has: a loss, as a rule."""
        given, made = of_each(_held_as, self.in_avals), of_each(_held_as, self.out_avals)
        paired = {kind for alias in self.aliases for kind in (given[alias.input], made[alias.output])}
        return tuple(k for k, kind in enumerate(made) if kind not in paired)

    @property
    def donated(self) -> tuple[int, ...]:
        """Leaves (indices, ascending) whose buffer an output is written into."""
        return tuple(sorted(leaf for a in self.aliases if (leaf := self.inputs[a.input].leaf) is not None))

    def noted(self, by: str, texts: Iterable[str | tuple[int, str]], **changes: Any) -> Program:
        """This program with `changes` made by the pass `by`, which notes `texts`; (leaf, text) where one is about a
        leaf."""
        notes = tuple(Note(by, t) if isinstance(t, str) else Note(by, t[1], t[0]) for t in texts)
        return dataclasses.replace(self, notes=self.notes + notes, **changes)

    def for_leaves(self, leaves: Sequence[Leaf]) -> Program | None:
        """This program for leaves of the same types, of which others are `jax.Array`s rather than NumPy data or Python
        scalars, or that are one array where it takes several; None where it would be another program. (An array that is
        returned unchanged is handed back.)"""
        pairs = list(zip(self.leaves, leaves, strict=True))
        converted = tuple(
            mine
            if mine.is_static
            else dataclasses.replace(mine, array=other.array, sharding=other.sharding, elsewhere=other.elsewhere)
            for mine, other in pairs
        )
        if not all(
            (mine.is_static and other.is_static) or mine == other for mine, other in zip(converted, leaves, strict=True)
        ):
            return None
        changed = {i for i, (mine, other) in enumerate(pairs) if mine.array != other.array}
        invars = zip(self.inputs, self.jaxpr.jaxpr.invars, strict=True)
        returned = {var for var in self.jaxpr.jaxpr.outvars if isinstance(var, Var)}
        handed_back = {given.leaf for given, var in invars if var in returned}
        handed_back |= {output.origin.leaf for output in self.outputs if isinstance(output.origin, Passed)}
        return None if changed & handed_back else dataclasses.replace(self, leaves=converted)

    def why_kept(self, leaf: int) -> str:
        """Why no output is written over this leaf, in plain words."""
        if any(o.origin == Passed(leaf) for o in self.outputs):
            return "it is handed back as it is"
        told = [note.text for note in self.notes if note.leaf == leaf]
        return told[-1] if told else "no output is written over it"

    def input_path(self, index: int) -> str:
        """What invar number `index` is called in messages."""
        given = self.inputs[index]
        if given.leaf is not None:
            return self.leaves[given.leaf].path
        return f"<captured {short(self.in_avals[index])}>"

    def output_paths(self, index: int) -> str:
        """Where outvar number `index` stands in the result."""
        return ", ".join(f"result{o.path}" for o in self.outputs if o.origin == Computed(index))

    def __str__(self) -> str:
        return f"{self.name}: {len(self.inputs)} inputs, {len(self.outputs)} outputs\n{self.jaxpr}"


def _held_as(aval: AbstractValue) -> tuple[tuple[int, ...], Any] | None:
    return held_as(aval) if hasattr(aval, "shape") else None
