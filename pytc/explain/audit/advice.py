"""Advice from records: which arguments to donate, which not, and what that saves.

`donate_argnums` donates whole arguments. Of a donated argument JAX deletes exactly those leaves into which an output
may be written: one of the same shape and dtype, or failing that with as many elements. It leaves the other leaves
alone, with a warning unless the program does not read them. So an argument can be donated if each leaf that a call
would then delete was dead at every call that was examined; a leaf that something still holds does no harm if no output
fits into it. Which leaves a call deletes is found by lowering the program with that donation.

The saving is the difference between the compiler's figures for the program as the script has it and as advised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence, Set
from typing import Any

from pytc import ownership, passes
from pytc.explain.audit import edit, findings
from pytc.explain.audit.record import WatchedFunction
from pytc.explain.audit.report import ArgumentReport, CallerReport, FunctionReport, Savings, Verdict
from pytc.explain.audit.uses import Use, calls_of, is_vague, use_of
from pytc.explain.subject import footprint_of
from pytc.explain.terminal import counted
from pytc.interrupt import is_from_outside
from pytc.jax_compat.avals import is_extended
from pytc.program import Program


def functions(watched: Sequence[WatchedFunction], figures: bool = True) -> tuple[FunctionReport, ...]:
    """A report for each function, sorted by what its edit saves, most first. Functions of one name that one expression
    of the script has made share a report. Without `figures`, nothing is compiled."""
    groups: dict[Any, list[WatchedFunction]] = {}
    for each in watched:
        groups.setdefault((each.place, each.name, each.api), []).append(each)
    reports = [(_report_or_why_not(group, figures), group[0]) for group in groups.values()]
    said = _agreed(reports)
    return tuple(sorted(said, key=lambda each: -(each.figures.saves if each.figures is not None else 0)))


def _agreed(reports: Sequence[tuple[FunctionReport, WatchedFunction]]) -> list[FunctionReport]:
    """The reports, but with no edit to the source where one expression made several functions that need different
    edits."""
    agreed = []
    for report, function in reports:
        others = [
            other for other, made in reports if made.place == function.place and other is not report and other.calls
        ]
        apart = [other.name for other in others if _option(other) != _option(report)]
        if report.edit is not None and apart:
            note = f"{report.edit.option}, for {report.name} alone: the same line makes {', '.join(apart)}, too"
            report = dataclasses.replace(report, edit=dataclasses.replace(report.edit, before="", after="", note=note))
        agreed.append(report)
    return agreed


def _option(report: FunctionReport) -> str | None:
    return None if report.edit is None else report.edit.option


def _report_or_why_not(group: Sequence[WatchedFunction], figures: bool) -> FunctionReport:
    base = _base(group)
    try:
        return _report(base, group, figures)
    except Exception as error:  # what the compiler says of one function is no reason to say nothing of others
        if is_from_outside(error):
            raise
        said = " ".join(str(error).split())
        return dataclasses.replace(base, note=f"could not be worked out: {type(error).__name__}: {said:.200}")


def _base(group: Sequence[WatchedFunction]) -> FunctionReport:
    """The report without advice: where the function was made and called."""
    first = group[0]
    signatures = [signature for function in group for signature in function.signatures.values()]
    calls = sum(site.calls for function in group for site in function.sites.values())
    seen = sum(each.calls for signature in signatures for each in signature.seen.values())
    return FunctionReport(
        name=first.name,
        api=first.api,
        file=first.place.file,
        line=first.place.line,
        made=len(group) + first.unwatched,
        calls=calls,
        seen=seen,
        sites=_sites(group),
        arguments=(),
        findings=(),
        edit=None,
        figures=None,
        note=_silence(group, calls),
    )


def _report(base: FunctionReport, group: Sequence[WatchedFunction], figures: bool) -> FunctionReport:
    uses = [
        use_of(signature, signature.traced)
        for function in group
        for signature in function.signatures.values()
        if signature.traced is not None and calls_of(signature)
    ]
    if base.note or not uses:
        return dataclasses.replace(base, note=base.note or "no call of it could be looked at")
    report = _advised(base, group[0], uses, figures)
    if report.edit is not None and (unseen := _unseen(group)):
        note = "; ".join(each for each in (report.edit.note, unseen) if each)
        report = dataclasses.replace(report, edit=dataclasses.replace(report.edit, note=note))
    return report


def _unseen(group: Sequence[WatchedFunction]) -> str:
    """Which calls of these functions were not seen, in words; "" if there are none."""
    unseen = []
    if more := group[0].unwatched:
        unseen.append(f"of {counted(more, 'more function')} that this line has made")
    if any(each.ahead for each in group):
        unseen.append("of what its `lower` or `trace` has returned")
    return f"calls {' and '.join(unseen)} were not looked at" if unseen else ""


def _silence(group: Sequence[WatchedFunction], calls: int) -> str:
    trouble = next((each.trouble for each in group if each.trouble), "")
    inner = sum(each.inner_calls for each in group)
    if trouble:
        return f"not watched: {trouble}"
    if not calls:
        return "only called inside other compiled functions" if inner else "never called"
    return ""


def _sites(group: Sequence[WatchedFunction]) -> tuple[CallerReport, ...]:
    merged: dict[tuple[str, int], list[int]] = {}
    for function in group:
        for site in function.sites.values():
            both = merged.setdefault((site.place.file, site.place.line), [0, 0])
            both[0] += site.calls
            both[1] += sum(s.seen[site].calls for s in function.signatures.values() if site in s.seen)
    return tuple(CallerReport(*place, *both) for place, both in merged.items())


def _advised(base: FunctionReport, function: WatchedFunction, uses: Sequence[Use], figures: bool) -> FunctionReport:
    main = max(uses, key=lambda use: use.nbytes)
    names = [name for name in dict.fromkeys(n for use in uses for n in use.traced.as_jit.parameters) if name]
    promised = [name for name in names if any(use.promises(name) for use in uses)]
    wrong = sorted(frozenset().union(*(use.harmed(promised) & use.known for use in uses)), key=names.index)
    used = frozenset().union(*(use.used(promised) for use in uses))
    useless = [name for name in promised if name not in used]
    if function.api == "equinox.filter_jit" and used:
        useless = []  # it donates all arguments or all but the first, so useless ones cannot be left out
    wanted = _choose(function.api, uses, names, promised, main)
    taken = used.union(*(use.used(wanted) for use in uses))
    arguments = tuple(
        argument for name in names if (argument := _argument(name, promised, wanted, uses, main, taken)) is not None
    )
    base = dataclasses.replace(base, arguments=arguments)
    told = [findings.wrong(name, arguments) for name in wrong]
    told += [findings.useless(useless)] if useless else []
    found = best = None
    if figures and (promised or wanted or main.gain(names)):
        added = [name for name in wanted if name not in promised]
        wanted, found, best, little = _compared(main, promised, wanted, function.api)
        if lost := [name for name in added if name not in wanted]:
            told.append(findings.no_gain(_written(lost, taken), little))
    added = [name for name in wanted if name not in promised]
    if added:
        told.append(findings.add(_written(added, taken), found))
    if found is not None and best is not None:
        told += findings.pairing(main, wanted, found, *best)
        told += findings.conditional(main, wanted, found, arguments, uses)
    held = [each for each in arguments if each.verdict == "held"]
    by_site = findings.by_site(function.api, uses, [each for each in held if not each.donated])
    told += by_site
    if found is not None and not by_site:
        told += findings.at_times(main, _but_for(held, function.api, uses, names, wanted, main), found, held, uses)
    change = None
    if set(wanted) != set(promised):
        given = [name for name, value in function.options.items() if value is not None]
        positional = max((use.signature.positional for use in uses), key=len)
        by_name = frozenset().union(*(use.signature.by_name for use in uses))
        change = edit.edit(function.place, edit.option(function.api, wanted, positional, by_name), given)
    return dataclasses.replace(base, findings=tuple(told), edit=change, figures=found)


def _choose(api: str, uses: Sequence[Use], names: Sequence[str], promised: Sequence[str], main: Use) -> list[str]:
    """The arguments to donate: all into which an output fits, except those of which a call would delete a held leaf;
    and of those that the script does not donate, none that never had an array."""
    looked_at = frozenset().union(promised, *(use.looked_at for use in uses))
    if api == "equinox.filter_jit":
        safe = [each for each in _all_or_rest(main, names) if not any(use.broken(each, promised) for use in uses)]
        return next((each for each in safe if main.gain(each)), [])
    gaining = (
        name for name in _donatable(api, uses, names) if name in promised or any(use.gain([name]) for use in uses)
    )
    wanted = [name for name in gaining if name in looked_at]
    while harmed := frozenset().union(*(use.broken(wanted, promised) for use in uses)):
        wanted = [name for name in wanted if name not in harmed]
    used = frozenset().union(*(use.used(wanted) for use in uses))
    return [name for name in wanted if name in used]


def _written(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """Those of the arguments into which an output is written: Equinox donates others with them."""
    return [name for name in names if name in taken] or [*names]


def _donatable(api: str, uses: Sequence[Use], names: Sequence[str]) -> list[str]:
    """The arguments that can be donated at all: `jax.pmap` cannot donate keyword arguments."""
    return [name for name in names if api != "jax.pmap" or not any(name in use.signature.by_name for use in uses)]


def _all_or_rest(main: Use, names: Sequence[str]) -> list[list[str]]:
    """What Equinox can donate: all arguments, or all but the first."""
    first = next(iter(main.signature.positional), None)
    return [each for each in ([*names], [name for name in names if name != first]) if each]


def _but_for(
    held: Sequence[ArgumentReport],
    api: str,
    uses: Sequence[Use],
    names: Sequence[str],
    wanted: Sequence[str],
    main: Use,
) -> list[list[str]]:
    """What could be donated besides, if it were not `held`, the best choice first."""
    if api == "equinox.filter_jit":
        return _all_or_rest(main, names)
    would = _donatable(api, uses, [argument.name for argument in held])
    choices = [would] * (len(would) > 1) + [[name] for name in would]
    return [[name for name in names if name in wanted or name in choice] for choice in choices]


def _argument(
    name: str,
    promised: Sequence[str],
    wanted: Sequence[str],
    uses: Sequence[Use],
    main: Use,
    taken: Collection[str],
) -> ArgumentReport | None:
    mine = [i for i, (parameter, _) in enumerate(main.signature.names) if parameter == name]
    arrays = [i for i in mine if i in set(main.signature.arrays)]
    if not arrays:
        return None
    donated = name in promised
    together = promised if donated else [*wanted, name]
    fits = donated or any(use.gain([name]) for use in uses)
    harmed = fits and any(name in use.harmed(together) for use in uses)
    known = any(name in use.known for use in uses)
    verdict: Verdict = "left alone" if fits and not donated else "no use"
    if harmed:
        verdict = "held" if known else "not proven"
    elif name in taken:
        verdict = "dead"
    path, count, why, site = _explained(name, uses)
    return ArgumentReport(
        name,
        sum(main.signature.nbytes[i] for i in arrays),
        len(arrays),
        donated,
        verdict,
        path,
        count,
        "" if why is None else why.text,
        None if why is None else why.file,
        None if why is None else why.line,
        site,
    )


def _explained(name: str, uses: Sequence[Use]) -> tuple[str, int, ownership.Held | None, str]:
    """One leaf of an argument that was held, if possible by something known: its path, in how many calls it was held,
    by what, and the place of these calls if there are several places."""
    found = [
        (use.signature.names[i][1], seen.held[i], reason, str(site.place))
        for use in uses
        for site, seen in use.signature.seen.items()
        for i, reason in seen.why.items()
        if use.signature.names[i][0] == name
    ]
    several = len({site for use in uses for site in use.signature.seen}) > 1
    for path, count, reason, place in sorted(found, key=lambda each: is_vague(each[2])):
        return path, count, reason, place if several else ""
    return "", 0, None, ""


def _compared(
    main: Use, promised: Sequence[str], wanted: Sequence[str], api: str
) -> tuple[list[str], Savings, tuple[Program, int], int]:
    """The choice among `wanted` that takes least memory; the compiler's figures; the program of `pytc.compile` where it
    takes over only what was dead at every call, with its figure; and how many bytes it would save to donate more that
    are too few for an edit.

    What the script donates already, as far as it is in `wanted`, stays donated. A compiler may copy what it is to write
    over; then donating saves nothing, or costs more. So if donating everything saves less than expected, the arguments
    that would be new are also tried one after the other, and each is left out again if it saves nothing.
    """
    as_jit = main.traced.as_jit
    kept = [name for name in wanted if name in promised]
    now = as_jit.footprint(promised)
    base = now if set(kept) == set(promised) else as_jit.footprint(kept)
    added = [name for name in wanted if name not in promised]
    tried = {tuple(kept): base}
    if added:
        tried[tuple(wanted)] = full = as_jit.footprint(wanted)
        hoped = (main.gain(wanted) - main.gain(kept)) // now.devices
        if len(added) > 1 and api != "equinox.filter_jit" and (base.total - full.total) * 10 < hoped * 9:
            saving, least = [*kept], base.total
            for name in added:
                names = tuple(each for each in wanted if each in saving or each == name)
                tried[names] = as_jit.footprint(names)
                if tried[names].total < least:
                    saving, least = [*names], tried[names].total
    best = min(tried, key=lambda names: (tried[names].total, len(names)))
    little = base.total - tried[best].total
    if findings.pays(little, base.total):
        little = 0
    else:
        best = tuple(kept)
    always = _by_pytc(main, main.held)
    mostly = always if main.mostly == main.held else _by_pytc(main, main.mostly)
    by_pytc = mostly[1] if api in findings.REPLACED else None
    return list(best), Savings(now.total, tried[best].total, by_pytc, now.devices), always, little


def _by_pytc(main: Use, held: Set[str]) -> tuple[Program, int]:
    """The program that `pytc.compile` would run, and its bytes, if the leaves at these paths are held."""
    as_jit = main.traced.as_jit
    leaves = as_jit.staged.leaves
    keep = frozenset(
        i
        for i, leaf in enumerate(leaves)
        if leaf.path in held or not leaf.array or (leaf.aval is not None and is_extended(leaf.aval.dtype))
    )
    program = passes.run(dataclasses.replace(as_jit.staged, keep=keep), passes.pipeline)
    return program, footprint_of(program, as_jit.values, as_jit.options, as_jit.compiler).total
