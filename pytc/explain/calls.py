"""What happened at each call site of a compiled function so far, read from what the function remembers."""

from __future__ import annotations

import collections
import dataclasses
import json
import reprlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from pytc import ownership
from pytc.arguments.leaves import unwrapped
from pytc.calls.cache import Signature
from pytc.calls.decide import TOO_MANY
from pytc.calls.function import Function
from pytc.calls.planner import Planner
from pytc.calls.sites import Site
from pytc.explain import calls_text, schema
from pytc.explain.decisions import is_plain
from pytc.jax_compat.avals import short
from pytc.program import Leaf, Passed


@dataclasses.dataclass(frozen=True)
class HeldReport:
    """A leaf that was copied because it was still in use when the program was to take over its memory."""

    path: str
    nbytes: int
    calls: int
    """How many calls found it in use."""
    why: str
    """What held it, in words: "also `best` in train.py:41". The search takes time, so it is made once, and only for the
    largest leaves; for others this is empty. At other calls it may have been something else."""


@dataclasses.dataclass(frozen=True)
class SiteReport:
    """One place in the caller's code, for arguments of one signature."""

    where: str
    """File and line: `train.py:41`; and the column, from 1 on, if other places on that line call, too."""
    arguments: tuple[tuple[str, str], ...]
    """(path, type) of the leaves that tell the signature from the others which that place calls with:
    ("batch", "f32[3]"); or `SETTINGS` and which. Empty if it calls with one only."""
    calls: int
    changed: bool
    """Whether some of these calls took over other leaves than a call does now."""
    donated: int
    """Leaves whose memory a call there takes over now."""
    donated_bytes: int
    kept: int
    """Array leaves that a call there leaves alone."""
    kept_bytes: int
    spared: tuple[str, ...]
    """Those of `kept` that a call could take over, and does not because the code reads them later, or something else
    kept holding them. The largest first."""
    unseen: tuple[str, ...]
    """Those of `spared` that the code there lets go of: something kept holding them, or was expected to."""
    exposed: tuple[str, ...]
    """Those of `spared` that were copied before, or that the code there lets go of, and that nothing was found to hold:
    somebody could read the place that they come from before the result is there."""
    passed_over: tuple[str, ...]
    """Those of `kept` that a call could take over, and does not although nothing there is known to hold them: they are
    too small to compile the program again for, or the two programs that there are suit other places."""
    handed_back: int
    """How many of `kept` are returned as they came."""
    unfit: int
    """How many of `kept` no result can be written over, or none at a gain: `pytc.explain(fun, *args)` tells of each."""
    why: tuple[tuple[str, str], ...]
    """(path, what holds it) for the largest of those: ("state['w']", "read again in train.py:57"). A leaf that was
    copied before it was spared is in `held`, too; then this is what held it at one of those calls."""
    advice: str
    """What would have these reused, in words; empty if nothing is known that would."""
    copied_calls: int
    """Calls that had to copy a leaf still in use."""
    copied_bytes: int
    """Bytes copied, over all calls."""
    held: tuple[HeldReport, ...]
    """The leaves that were copied, most often first."""


@dataclasses.dataclass(frozen=True)
class Calls:
    """Every call site of a compiled function, in the order in which they were first seen."""

    name: str
    """The function's name."""
    sites: tuple[SiteReport, ...]
    forgotten: int = 0
    """Sites that are remembered no longer, since there are too many (`calls.sites.MOST_SITES`)."""
    forgotten_calls: int = 0
    """How many calls had come from these."""

    def to_json(self, **options: Any) -> str:
        """As JSON, by the schema in `pytc/explain/schema.py`. `options` go to `json.dumps`."""
        return json.dumps(schema.of_calls(self), **options)

    def text(self, width: int | None = None, *, colour: bool = False) -> str:
        """The call sites for a terminal of this width; by default the current terminal's."""
        if width is None:
            width = shutil.get_terminal_size((100, 24)).columns
        return calls_text.of_calls(self, width, colour)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __str__(self) -> str:
        return self.text()


def calls_of(function: Function) -> Calls:
    """What happened at the call sites of `function` so far. Calls under a transformation or in a debugging mode go to
    `jax.jit` and are not counted."""
    places: dict[tuple[object, int], list[tuple[Signature, Site]]] = {}
    sites = [*_sites(function)]
    for each in sites:
        places.setdefault((id(each[1].of), each[1].place[1]), []).append(each)  # code has one such reference
    told = {
        id(site): arguments
        for same in places.values()
        for (_, site), arguments in zip(same, _told_apart([signature for signature, _ in same]), strict=True)
    }
    columns: dict[str, set[int | None]] = {}
    for _, site in sites:
        columns.setdefault(site.where, set()).add(site.column)
    reports = (
        _report(function.planner, signature, site, _where(site, len(columns[site.where])), told[id(site)])
        for signature, site in sites
    )
    signatures = function.signatures()
    return Calls(
        function.stageable.name,
        tuple(reports),
        forgotten=sum(each.forgotten for each in signatures),
        forgotten_calls=sum(each.forgotten_calls for each in signatures),
    )


def _where(site: Site, columns: int) -> str:
    """Where a site is, if there are sites at so many columns of its line."""
    return site.where if site.column is None or columns == 1 else f"{site.where}, column {site.column + 1}"


def _told_apart(signatures: Sequence[Signature]) -> list[tuple[tuple[str, str], ...]]:
    """For each signature that one place calls with, the leaves that are not the same in all of them, with their types;
    whether it is that of calls of which each may share other arrays; and if some differ in none of that, in which of
    JAX's settings they were traced."""
    if len(signatures) == 1:
        return [()]
    each = [{leaf.path: _type(i, one) for i, leaf in enumerate(one.program.leaves)} for one in signatures]
    paths = dict.fromkeys(path for kinds in each for path in kinds)
    differ = [path for path in paths if len({kinds.get(path) for kinds in each}) > 1]
    told = [
        (*((path, kinds.get(path, "absent")) for path in differ), *([SHARED] if _is_apart(one) else []))
        for kinds, one in zip(each, signatures, strict=True)
    ]
    if len({*told}) == len(told):
        return told
    settings = [*dict.fromkeys(one.staged.context.settings for one in signatures)]
    return [
        (*words, (SETTINGS, f"no. {1 + settings.index(one.staged.context.settings)}"))
        for words, one in zip(told, signatures, strict=True)
    ]


SETTINGS = "JAX's settings"
"""What tells signatures apart that differ in no leaf: x64 mode, the default device, matmul precision, a mesh, ..."""

SHARED = ("which arrays are one", "another at each call")
"""Said of the signature of calls that share arrays in more ways than have programs of their own."""


def _is_apart(signature: Signature) -> bool:
    of = None if signature.owner is None else signature.owner()
    return of is not None and of.is_apart


def _type(i: int, signature: Signature) -> str:
    """What of a leaf (its number) belongs to the signature, in words."""
    leaves = signature.program.leaves
    leaf, of = leaves[i], None if signature.owner is None else signature.owner()
    if leaf.aval is None:
        return reprlib.repr(unwrapped(leaf.value))
    same_as = leaf.same_as if of is None else of.same_as.get(i)
    if same_as is not None:
        return f"the same array as {leaves[same_as].path}"
    words = [short(leaf.aval)]
    if getattr(leaf.aval, "weak_type", False):
        words.append("weakly typed")
    if not leaf.array:
        words.append("not a jax.Array")
    if leaf.placed is not None:
        words.append(f"on {leaf.placed}")
    if leaf.requested is not None and leaf.array:
        words.append("there already" if leaf.sharding == leaf.requested else "put there by the call")
    return ", ".join(words)


def _sites(function: Function) -> Iterator[tuple[Signature, Site]]:
    for signature in function.signatures():
        for site in list(signature.sites.values()):
            if site.calls:  # some calls raise, or turn out to be of another signature
                yield signature, site


def _aval(leaf: Leaf) -> str:
    return "" if leaf.aval is None else short(leaf.aval)


def _report(
    planner: Planner, signature: Signature, site: Site, where: str, arguments: tuple[tuple[str, str], ...]
) -> SiteReport:
    program = site.plan.program
    donated = set(program.donated)
    leaves = signature.program.leaves  # the plan may have been made for leaves of other kinds, such as Python scalars
    arrays = [i for i, leaf in enumerate(leaves) if leaf.array and leaf.same_as is None]
    kept = [i for i in arrays if i not in donated]
    handed_back = {i for i in kept if any(output.origin == Passed(i) for output in program.outputs)}
    left_alone = [
        i
        for i in kept
        if i in program.keep and i not in handed_back and planner.mode(leaf := leaves[i]) == "auto" and is_plain(leaf)
    ]
    # Of several leaves of a type, `at_best` has as many as there are results for: any of them could be in their place.
    at_best, taken = (
        collections.Counter(_aval(program.leaves[i]) for i in which)
        for which in (planner.at_best(signature.staged), donated)
    )
    missing = at_best - taken
    fit = [i for i in left_alone if _aval(program.leaves[i]) in missing and site.why.get(i) is not TOO_MANY]
    fit.sort(key=lambda i: -program.leaves[i].nbytes)
    lives_on = site.lives_on | site.unseen | site.held.keys()
    spared = tuple(program.leaves[i].path for i in fit if i in lives_on)
    let_go = [i for i in fit if i in site.unseen or i in site.held]
    known = [site.why[i].is_only_exposed for i in let_go if i in site.why]
    # The holders of small leaves were not looked for: they are where the others are.
    rest_exposed = bool(known) and all(known)
    exposed = [i for i in let_go if (site.why[i].is_only_exposed if i in site.why else rest_exposed)]
    unfit = {note.leaf for note in program.notes if note.leaf is not None and note.by == "alias"}
    unfit |= {i for i in left_alone if _aval(program.leaves[i]) not in missing}
    unfit |= set(kept) - program.keep - {given.leaf for given in program.inputs}  # the program does not even read it
    held = [
        HeldReport(program.leaves[i].path, program.leaves[i].nbytes, calls, site.why[i].text if i in site.why else "")
        for i, calls in sorted(site.held.items(), key=lambda item: (-item[1], item[0]))
    ]
    unseen = {program.leaves[i].path for i in site.unseen}
    why = {i: found.text for i, found in site.why.items() if i in kept and i not in unfit}
    if ownership.refusal:
        why = dict.fromkeys((i for i in kept if planner.policy.of(leaves[i].parameter) == "auto"), ownership.refusal)
    return SiteReport(
        where=where,
        arguments=arguments,
        calls=site.calls,
        changed=site.changed,
        donated=len(donated),
        donated_bytes=sum(program.leaves[i].nbytes for i in donated),
        kept=len(kept),
        kept_bytes=sum(program.leaves[i].nbytes for i in kept),
        spared=spared,
        unseen=tuple(path for path in spared if path in unseen),
        exposed=tuple(program.leaves[i].path for i in exposed),
        passed_over=tuple(program.leaves[i].path for i in fit if i not in lives_on),
        handed_back=len(handed_back),
        unfit=len(unfit.intersection(kept) - handed_back),
        why=tuple((program.leaves[i].path, text) for i, text in why.items()),
        advice=calls_text.advice(site.why[i].remedy for i in why if i in site.why),
        copied_calls=site.copied_calls,
        copied_bytes=site.copied_bytes,
        held=tuple(held),
    )
