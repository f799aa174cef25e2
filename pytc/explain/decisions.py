"""What was decided for each input and output, and by each pass, read from the programs before and after the passes.

Nothing is decided here: a `Program` after its passes says which leaf it reads, hands back or writes over, and its notes
say why. This module makes one record for each input, output and pass.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax

from pytc import ownership
from pytc.arguments.leaves import unwrapped
from pytc.donation import Policy
from pytc.jax_compat.avals import AbstractValue, is_ref, nbytes, short
from pytc.passes import subjaxprs
from pytc.passes.groups import COPIED
from pytc.program import Computed, Kept, Leaf, Note, Passed, Program

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

Verdict = Literal["reused", "kept", "unused", "passed through", "static", "captured", "shared"]


@dataclasses.dataclass(frozen=True)
class InputReport:
    """One leaf of the arguments, or an array that the function captured."""

    path: str
    """The parameter's name and the path in the argument: `state['params'][0].weight`."""
    parameter: str
    """The parameter that it is part of; empty for a captured array."""
    shape: tuple[int, ...] | None
    """None for a static leaf."""
    dtype: str | None
    type: str
    """Shape and dtype in short, `f32[8,128]`; for a static leaf, the name of its type."""
    nbytes: int
    """Over all devices. 0 for a shared leaf, whose bytes are those of `target`."""
    verdict: Verdict
    """`reused`: an output is written into its memory · `kept`: the program reads it and leaves it as it is ·
    `unused`: not passed to the device · `passed through`: handed back as it is · `static`: no array, part of the key
    of the compiled program · `captured`: held by the function · `shared`: the same array as another leaf."""
    target: str | None
    """The output (`result[0].w`) that it is reused for or handed back as, or the leaf that it is shared with."""
    reason: str
    """Why, in words."""
    advice: str
    """For a kept leaf: a change by the caller that would free it; empty if there is none."""
    copied: int
    """Bytes that are copied, as far as is known, because it is reused."""


@dataclasses.dataclass(frozen=True)
class OutputReport:
    """One leaf of the result."""

    path: str
    """`result[0].w`."""
    shape: tuple[int, ...] | None
    """None if it is not an array."""
    dtype: str | None
    type: str
    nbytes: int
    """Over all devices."""
    origin: Literal["computed", "reuses", "passed through", "not an array"]
    source: str | None
    """The leaf whose memory it reuses, or that is handed back."""


@dataclasses.dataclass(frozen=True)
class PassReport:
    """What one pass made of the program. Equations are counted at every depth."""

    name: str
    equations: tuple[int, int]
    """Before and after."""
    inputs: tuple[int, int]
    """Before and after."""
    outputs: tuple[int, int]
    """Computed ones, before and after."""
    notes: tuple[str, ...]
    before: Program = dataclasses.field(repr=False, compare=False)
    after: Program = dataclasses.field(repr=False, compare=False)

    def in_numbers(self, arrow: str = "->") -> str:
        """`13 -> 10 inputs, 11 -> 9 outputs`: the numbers that changed; empty if none did."""
        pairs = ((self.equations, "equations"), (self.inputs, "inputs"), (self.outputs, "outputs"))
        return ", ".join(f"{before:,} {arrow} {after:,} {what}" for (before, after), what in pairs if before != after)

    @property
    def changed(self) -> bool:
        """Whether the pass has notes or changed a number."""
        pairs = (self.equations, self.inputs, self.outputs)
        return bool(self.notes) or any(before != after for before, after in pairs)


def kept_by_the_caller(policy: Policy, leaves: Sequence[Leaf], values: Sequence[Any]) -> dict[int, tuple[str, str]]:
    """By leaf (an index): why it is never written over, whatever the caller does, and what would change that."""
    kept = {}
    for i, (leaf, value) in enumerate(zip(leaves, values, strict=True)):
        if leaf.is_static:
            continue
        first = i if leaf.same_as is None else leaf.same_as
        mode = policy.of(leaf.parameter)
        if mode == "none":
            kept[first] = 'donate="none" says so', 'donate="auto"'
        elif mode in ("auto", "require") and ownership.refusal:
            kept[first] = ownership.refusal, 'donate="all", if nobody reads it after a call'
        elif not is_plain(leaf):
            kept[first] = _no_plain_array(value)
    return kept


def is_plain(leaf: Leaf) -> bool:
    """Whether an output may be written over a leaf of this type: not over NumPy data, a scalar or a `jax.Ref`."""
    return leaf.array and leaf.aval is not None and not is_ref(leaf.aval)


def _no_plain_array(value: Any) -> tuple[str, str]:
    if isinstance(value, jax.Ref):
        return "a jax.Ref, which the program updates itself", ""
    if isinstance(value, bool | int | float | complex):
        return "a Python scalar", ""
    return "NumPy data, which the caller owns", "pass a jax.Array, such as the result of the call before"


def _not_copied(why: str) -> str:
    """Why an output is written over a leaf, where a copy was expected, in which case that is what it says, and none is
    made."""
    return why.replace(f"{COPIED}, as ", "no copy was needed, though ")


def inputs_of(
    program: Program, kept: Mapping[int, tuple[str, str]], declined: Sequence[str], copies: bool
) -> tuple[InputReport, ...]:
    """A report for each leaf in flattening order, then one for each captured array. `kept` is what `kept_by_the_caller`
    returns; `declined` are paths of donated leaves into which the compiler writes nothing; and `copies` says whether
    it copies any array, as it is expected to for some pairs."""
    number = {given.leaf: i for i, given in enumerate(program.inputs) if given.leaf is not None}
    alias = {pair.input: pair for pair in program.aliases}
    told = {note.leaf: note.text for note in program.notes if note.leaf is not None}
    written: dict[int, list[str]] = {}
    for output in program.outputs:
        if isinstance(output.origin, Computed):
            written.setdefault(output.origin.index, []).append(f"result{output.path}")
    housed = {pair.output for pair in program.aliases}
    homeless = {_shape(aval) for k, aval in enumerate(program.out_avals) if k not in housed}
    passed = {o.origin.leaf: f"result{o.path}" for o in reversed(program.outputs) if isinstance(o.origin, Passed)}

    def decide(i: int, leaf: Leaf) -> tuple[Verdict, str | None, str, str, int]:
        if leaf.is_static:
            return "static", None, f"{_brief(leaf.value)}, compared by equality", "", 0
        if leaf.same_as is not None:
            return "shared", program.leaves[leaf.same_as].path, "the same array", "", 0
        if i in passed:
            return "passed through", passed[i], "handed back as it is", "", 0
        if i not in number:
            return "unused", None, "the program does not read it", "", 0
        pair = alias.get(number[i])
        if pair is not None and leaf.path in declined:
            return "kept", None, "the compiler declined to write an output into it", "", 0
        if pair is not None:
            why, copied = (pair.why, pair.copied) if copies else (_not_copied(pair.why), 0)
            return "reused", ", ".join(written[pair.output]), why, "", copied
        if i in kept:
            reason, advice = kept[i]
            return "kept", None, reason, advice if _shape(leaf.aval) in homeless else "", 0
        return "kept", None, told.get(i, "no output is written over it"), "", 0

    reports = []
    for i, leaf in enumerate(program.leaves):
        verdict, target, reason, advice, copied = decide(i, leaf)
        reports.append(
            InputReport(
                leaf.path,
                leaf.parameter,
                *_describe(leaf.aval, leaf.value),
                leaf.nbytes if leaf.same_as is None else 0,
                verdict,
                target,
                reason,
                advice,
                copied,
            )
        )
    for i, given in enumerate(program.inputs):
        if given.leaf is None:
            aval = program.in_avals[i]
            why = "held by the function, which reads it at every call"
            described = _describe(aval, None)
            reports.append(
                InputReport(program.input_path(i), "", *described, nbytes(aval), "captured", None, why, "", 0)
            )
    return tuple(reports)


def outputs_of(program: Program, declined: Sequence[str]) -> tuple[OutputReport, ...]:
    """A report for each leaf of the result, in order."""
    avals = program.out_avals
    source = {pair.output: program.input_path(pair.input) for pair in program.aliases}
    reports = []
    for output in program.outputs:
        path = f"result{output.path}"
        match output.origin:
            case Computed(index):
                aval = avals[index]
                taken = source.get(index)
                taken = None if taken in declined else taken
                described = _describe(aval, None)
                origin: Literal["computed", "reuses"] = "computed" if taken is None else "reuses"
                reports.append(OutputReport(path, *described, nbytes(aval), origin, taken))
            case Passed(i):
                leaf = program.leaves[i]
                described = _describe(leaf.aval, None)
                reports.append(OutputReport(path, *described, leaf.nbytes, "passed through", leaf.path))
            case Kept(value):
                reports.append(OutputReport(path, *_describe(None, value), 0, "not an array", None))
    return tuple(reports)


def pass_report(name: str, before: Program, after: Program) -> PassReport:
    """The report of what a pass did, from the programs before and after it."""
    equations = subjaxprs.count(before.jaxpr.jaxpr)
    return PassReport(
        name,
        (equations, equations if after.jaxpr is before.jaxpr else subjaxprs.count(after.jaxpr.jaxpr)),
        (len(before.inputs), len(after.inputs)),
        (_count_computed(before), _count_computed(after)),
        tuple(_told(after, note) for note in after.notes[len(before.notes) :]),
        without_memory(before),
        without_memory(after),
    )


def _told(program: Program, note: Note) -> str:
    """A note with the path of the leaf that it is about."""
    return note.text if note.leaf is None else f"{program.leaves[note.leaf].path}: {note.text}"


def _count_computed(program: Program) -> int:
    return len({o.origin.index for o in program.outputs if isinstance(o.origin, Computed)})


def without_memory(program: Program) -> Program:
    """The program without the captured arrays that its inputs hold: to read, not to run."""
    inputs = tuple(dataclasses.replace(given, captured=None) for given in program.inputs)
    return dataclasses.replace(program, inputs=inputs)


def _shape(aval: AbstractValue) -> tuple[Any, Any]:
    return getattr(aval, "shape", None), getattr(aval, "dtype", None)


def _describe(aval: AbstractValue | None, value: Any) -> tuple[tuple[int, ...] | None, str | None, str]:
    if aval is None:
        return None, None, type(unwrapped(value)).__name__
    return tuple(map(int, aval.shape)), str(aval.dtype), short(aval)


def _brief(value: Any) -> str:
    """A static value in a few words: functions by name, and no memory addresses."""
    value = unwrapped(value)
    name = getattr(value, "__name__", None) if callable(value) else None
    text = name if isinstance(name, str) else _ADDRESS.sub("", " ".join(repr(value).split()))
    return text if len(text) <= 40 else text[:37] + "..."
