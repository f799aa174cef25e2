"""The plans that `effort="high"` had the compiler judge, as text."""

from __future__ import annotations

from collections.abc import Sequence

from pytc.effort import Tried
from pytc.explain.sizes import size

MOST = 12
"""At most so many plans are shown with their figures."""


def lines(plans: Sequence[Tried]) -> list[str]:
    """A line for each compiled plan, best first, and lines that say why the others were not compiled."""
    compiled = ranked(plans)
    rows = [
        (size(total), f"{copies}: {size(copied)}" if copies else "0", name) for total, copied, copies, name in compiled
    ]
    rows = [("total", "copies", ""), *rows[:MOST]]
    first, second = (max(len(row[k]) for row in rows) for k in (0, 1))
    marks = ["  ", "* ", *["  "] * len(rows)]
    shown = [f"{mark}{a:>{first}}  {b:>{second}}  {c}".rstrip() for mark, (a, b, c) in zip(marks, rows, strict=False)]
    if (more := len(compiled) - MOST) > 0:
        shown.append(f"  and {more} more that are no better")
    return shown + [f"  {line}" for line in left(plans)]


def ranked(plans: Sequence[Tried]) -> list[tuple[int, int, int, str]]:
    """(total, bytes copied, copies, name) of each compiled plan, the chosen one first, then from best to worst."""
    compiled = [
        (not each.chosen, found.total, found.copied, found.copies, each.name)
        for each in plans
        if (found := each.figures) is not None
    ]
    compiled.sort(key=lambda row: row[:3])
    return [row[1:] for row in compiled]


def left(plans: Sequence[Tried]) -> list[str]:
    """Why the other plans have no figures; plans with the same reason share a line."""
    names: dict[str, list[str]] = {}
    for each in plans:
        if each.figures is None:
            names.setdefault(each.why, []).append(each.name)
    return [f"{some[0]}: {why}" if len(some) == 1 else f"{len(some)} plans: {why}" for why, some in names.items()]
