"""The parts of the page that are text: the compiler's figures as bars, the leaves, and what each pass did."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from pytc.explain.equations import Change, Namer, changes
from pytc.explain.memory import Footprint, Memory
from pytc.explain.plans import left, ranked
from pytc.explain.sizes import size
from pytc.explain.text import about_by_hand, verdict_of

if TYPE_CHECKING:
    from pytc.effort import Tried
    from pytc.explain.decisions import InputReport, OutputReport, PassReport
    from pytc.explain.explanation import Explanation

MOST_LINES = 80
"""Lines shown of what one pass changed."""

MOST_NOTES = 40
"""Notes shown of one pass."""


FIGURES = ("arguments", "outputs", "temporaries", "aliased", "copies")


def bars(memory: Memory, limit: int | None) -> str:
    """A bar for the program, for no donation and for the best by hand, all to one scale; with a line where the device's
    memory ends, if that is not far off."""
    rows = [
        ("pytc", memory.program),
        (memory.as_jit.called, memory.undonated),
        ("best by hand", memory.by_hand.footprint),
    ]
    most = max(found.total for _, found in rows) or 1
    limit = limit if limit is not None and limit < 2 * most else None
    most = max(most, limit or 0)
    end = "" if limit is None else f'<b class="limit" style="left:{100 * limit / most:.2f}%"></b>'
    body = "".join(_bar(name, found, most, end) for name, found in rows)
    heads = "".join(f"<th>{name}</th>" for name in FIGURES)
    legend = "<li><i class=kept></i>arguments</li><li><i class=output></i>new outputs</li>"
    return (
        f'<div class="scroll"><table class="bars"><thead><tr><th></th><th>total</th><th></th>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f'<ul class="legend">{legend}<li><i class=temporary></i>temporaries</li>'
        f"{'' if limit is None else f'<li><i class=limit></i>{size(limit)}: the memory there is</li>'}</ul>"
    )


def _bar(name: str, found: Footprint, most: int, end: str) -> str:
    if found.refused:
        cells = "".join(f'<td data-label="{figure}">?</td>' for figure in FIGURES)
        drawn = f'<i class="refused" style="width:{100 * found.total / most:.2f}%"></i>'
        return (
            f"<tr><th scope=row>{name}</th><td><b>{size(found.total)}</b></td>"
            f"<td class=bar><span>{drawn}{end}</span></td>{cells}</tr>"
        )
    parts = [("kept", found.argument), ("output", max(found.output - found.alias, 0)), ("temporary", found.temp)]
    drawn = "".join(f'<i class="{kind}" style="width:{100 * part / most:.2f}%"></i>' for kind, part in parts if part)
    copies = f"{len(found.copies)}: {size(found.copied)}" if found.copies else "0"
    figures = [*map(size, (found.argument, found.output, found.temp, found.alias)), copies]
    cells = "".join(f'<td data-label="{figure}">{value}</td>' for figure, value in zip(FIGURES, figures, strict=True))
    return (
        f"<tr><th scope=row>{name}</th><td><b>{size(found.total)}</b></td>"
        f"<td class=bar><span>{drawn}{end}</span></td>{cells}</tr>"
    )


def plans(tried: Sequence[Tried]) -> str:
    """The plans that were compiled, the chosen one first, and why others were not."""
    rows = "".join(
        f"<tr><td>{'<b>' * (k == 0)}{size(total)}{'</b>' * (k == 0)}</td>"
        f"<td>{f'{copies}: {size(copied)}' if copies else '0'}</td><td>{escape(name)}</td></tr>"
        for k, (total, copied, copies, name) in enumerate(ranked(tried))
    )
    others = "".join(f"<li>{escape(line)}</li>" for line in left(tried))
    return (
        '<div class="scroll"><table class="plans"><thead><tr><th>total</th><th>copies</th><th>plan</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{f'<ul>{others}</ul>' if others else ''}"
    )


def leaves(explanation: Explanation) -> str:
    """Every leaf of the arguments, and the outputs that those do not tell of, the largest first."""
    rows = [(each.nbytes, _input(each)) for each in explanation.inputs]
    rows += [
        (each.nbytes, _output(each)) for each in explanation.outputs if each.origin in ("computed", "not an array")
    ]
    rows.sort(key=lambda row: -row[0])
    heads = "".join(
        f'<th scope="col"><button type="button">{name}</button></th>'
        for name in ("bytes", "type", "leaf", "what", "why")
    )
    return (
        '<p><label>Search <input type="search" placeholder="kept, params, f32[512 ..." '
        'aria-description="Press / to come here"></label> <output class="count"></output></p>'
        f'<div class="scroll"><table class="leaves"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(row for _, row in rows)}</tbody></table></div>"
    )


def _input(each: InputReport) -> str:
    said, why = verdict_of(each, each.path, each.target or "", each.reason)
    return _row(each.nbytes, each.type, each.path, each.verdict, said, why or each.reason)


def _output(each: OutputReport) -> str:
    said = "output in memory of its own" if each.origin == "computed" else "output that is not an array"
    return _row(each.nbytes, each.type, each.path, "output", said, "")


def _row(nbytes: int, kind: str, path: str, verdict: str, said: str, why: str) -> str:
    return (
        f'<tr><td data-value="{nbytes}">{size(nbytes)}</td><td>{escape(kind)}</td><td><code>{escape(path)}</code></td>'
        f'<td class="verdict {verdict.replace(" ", "-")}">{escape(said)}</td><td>{escape(why)}</td></tr>\n'
    )


def passes(explanation: Explanation) -> str:
    """What each pass changed; those that found nothing to do in one line."""
    namer = Namer()
    busy = "".join(_pass(each, namer) for each in explanation.passes if each.changed)
    idle = [each.name for each in explanation.passes if not each.changed]
    return busy + (f"<p>{escape(', '.join(idle))}: nothing to do.</p>" if idle else "")


def _pass(each: PassReport, namer: Namer) -> str:
    told = each.in_numbers("→") or f"{len(each.notes):,} notes"
    notes = [*map(escape, each.notes[:MOST_NOTES])]
    if len(each.notes) > MOST_NOTES:
        notes.append(f"and {len(each.notes) - MOST_NOTES:,} more")
    listed = f"<ul>{''.join(f'<li>{note}</li>' for note in notes)}</ul>" if notes else ""
    lines = "".join(map(_change, changes(each, namer, MOST_LINES)))
    return (
        f"<details><summary><b>{escape(each.name)}</b> {told}</summary>{listed}"
        f"{f'<pre tabindex=0>{lines}</pre>' if lines else ''}</details>"
    )


def _change(change: Change) -> str:
    mark = {"went": "-", "came": "+", "same": " ", "skipped": "…"}[change.kind]
    source = f" <i>{escape(change.line.source)}</i>" if change.line.source else ""
    return f'<span class="{change.kind}">{mark} {escape(change.line.text)}{source}</span>\n'


def by_hand(explanation: Explanation) -> str:
    """The nearest `jax.jit` or `jax.pmap` call and what it promises."""
    said = about_by_hand(explanation.memory)
    return f"<pre tabindex=0>{escape(explanation.jit_call)}</pre><p>{escape(said)}</p>"
