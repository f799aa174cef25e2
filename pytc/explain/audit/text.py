"""An audit as text: for each function first what to do, then why."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from pytc.explain.audit.report import ArgumentReport, Audit, FunctionReport
from pytc.explain.sizes import size
from pytc.explain.terminal import NARROWEST, Paint, counted, painter, wrapped

MOST_SITES = 4
"""At most so many call sites are listed for one function."""


def of_audit(audit: Audit, width: int, colour: bool) -> str:
    """The whole text."""
    width = max(width, NARROWEST)
    paint = painter(colour)
    called = [each for each in audit.functions if each.calls or each.note.startswith("not watched")]
    lines = wrapped(_headline(audit), width, 2)
    lines[0] = paint(lines[0], "headline")
    for each in called:
        lines += ["", *_function(each, width, paint)]
    idle = [each for each in audit.functions if each not in called]
    if idle:
        named = ", ".join(f"{each.name} ({_where(each.file, each.line)}, {each.note})" for each in idle)
        lines += ["", *wrapped(f"nothing to say of {named}", width, 2)]
    return "\n".join(lines)


def _headline(audit: Audit) -> str:
    script = pathlib.Path(audit.script).name
    ended = f", which ended with {audit.ended}" if audit.ended else ""
    edits = [each for each in audit.functions if each.edit is not None]
    watched = counted(len([each for each in audit.functions if each.calls]), "compiled function")
    if not edits:
        more = [each for each in audit.functions if any(finding.kind != "no gain" for finding in each.findings)]
        said = f"no edit to make, but see {more[0].name}" if more else "nothing to change"
    else:
        saved = [each.figures for each in edits if each.figures is not None and each.figures.saves > 0]
        said = counted(len(edits), "edit")
        if saved:
            most = max(saved, key=lambda figures: figures.saves)
            which = "the largest " if len(saved) > 1 else ""
            said += f", {which}saving {size(most.saves)} of {size(most.now)}"
    return f"pytc audit of {script}{ended}: {watched}, {said}"


def _function(report: FunctionReport, width: int, paint: Paint) -> list[str]:
    where = _where(report.file, report.line)
    times = f", made {report.made} times" if report.made > 1 else ""
    lines = wrapped(f"{report.name}, {report.api} in {where}{times}: {_calls(report)}", width, 2)
    lines = [paint(line, "headline") for line in lines]
    if report.note:
        return [*lines, *wrapped(f"  {report.note}", width, 4)]
    lines += _edit(report, width, paint)
    for finding in report.findings:
        if finding.kind != "add":
            lines += [paint(line, finding.kind) for line in wrapped(f"  {finding.text}", width, 4)]
    if not report.findings and report.edit is None:
        lines.append("  nothing to change")
    if report.figures is not None and report.figures.now != report.figures.advised:
        lines += wrapped(_figures(report), width, 4)
    lines += _arguments(report.arguments, width, paint)
    return lines


def _calls(report: FunctionReport) -> str:
    sites = [f"{_where(site.file, site.line)}" for site in report.sites[:MOST_SITES]]
    more = f" and {len(report.sites) - MOST_SITES} more places" if len(report.sites) > MOST_SITES else ""
    seen = "" if report.seen == report.calls else f", {report.seen} of them looked at"
    return f"{counted(report.calls, 'call')} from {', '.join(sites)}{more}{seen}" if sites else "never called"


def _edit(report: FunctionReport, width: int, paint: Paint) -> list[str]:
    change = report.edit
    if change is None:
        return []
    saves = report.figures.saves if report.figures is not None else 0
    does = f"add {change.option}" if change.option and not _said(report) else f"change to {change.option}"
    if not change.option:
        does = "donate nothing"
    gain = f"; saves {size(saves)}" if saves > 0 else ""
    note = f" ({change.note})" if change.note else ""
    lines = wrapped(f"  {_where(change.file, change.line)}: {does}{gain}{note}", width, 4)
    lines = [paint(line, "add") for line in lines]
    if change.after:
        sources = (change.before_it + source + change.after_it for source in (change.before, change.after))
        both = [" ".join(source.split()) for source in sources]
        same = next((i for i, (a, b) in enumerate(zip(*both, strict=False)) if a != b), 0)
        lines += [f"    {sign} {_shortened(text, same, width - 6)}" for sign, text in zip("-+", both, strict=True)]
    return lines


def _said(report: FunctionReport) -> bool:
    return any(argument.donated for argument in report.arguments)


def _figures(report: FunctionReport) -> str:
    figures = report.figures
    if figures is None:
        return ""
    each = f" on each of {figures.devices} devices" if figures.devices > 1 else ""
    by_pytc = "" if figures.pytc is None else f", {size(figures.pytc)} with pytc.compile"
    return f"  the compiler's figures{each}: {size(figures.now)} now, {size(figures.advised)} with the edit{by_pytc}"


def _arguments(arguments: Iterable[ArgumentReport], width: int, paint: Paint) -> list[str]:
    rows = sorted(arguments, key=lambda each: -each.nbytes)
    if not rows:
        return []
    names = max(len(each.name) for each in rows)
    sizes = max(len(size(each.nbytes)) for each in rows)
    lines = []
    for each in rows:
        start = f"    {each.name:<{names}}  {size(each.nbytes):>{sizes}}  {'donated, ' if each.donated else ''}"
        lines += wrapped(start + _verdict(each), width, names + sizes + 8)
    return [paint(line, "quiet") for line in lines]


def _verdict(argument: ArgumentReport) -> str:
    match argument.verdict:
        case "dead":
            return "dead at every call seen"
        case "left alone":
            return "not donated, though an output fits into it"
        case "no use":
            return "no output fits into it"
        case "held" | "not proven":
            held = "held" if argument.verdict == "held" else "not proven dead"
            times = f" in {counted(argument.held_calls, 'call')}" if argument.held_calls else ""
            times += f" from {argument.site}" if argument.site else ""
            return f"{held}{times}: {argument.why} ({argument.path})" if argument.why else f"{held}{times}"


def _where(file: str, line: int) -> str:
    return f"{pathlib.Path(file).name}:{line}"


def _shortened(text: str, same: int, room: int) -> str:
    """Source on one line. Of a long expression, only its beginning and what is around `same`, where the edit begins."""
    if len(text) <= room:
        return text
    rest = room - room // 3 - 5
    begin = min(max(same - rest // 3, room // 3), len(text) - rest)
    first = f"{text[: room // 3]} ... " if begin > room // 3 else text[:begin]
    if begin + rest == len(text):
        return first + text[begin:]
    return f"{first}{text[begin : begin + rest - 4]} ..."
