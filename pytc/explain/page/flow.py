"""The flow from inputs to outputs, as a picture: what is reused crosses over, what is kept ends, what is new begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from pytc.explain.sizes import size
from pytc.explain.text import fold_inputs, fold_outputs

if TYPE_CHECKING:
    from pytc.explain.explanation import Explanation

MOST_ROWS = 14
"""Rows on each side; what is smaller is drawn as one."""

HEIGHT = 420
LOWEST = 17.0
"""The least height of a row, so that its label can be read."""
GAP = 3.0
BAR = 10.0
LABEL = 34
"""Characters of a path in a label."""


@dataclasses.dataclass(frozen=True)
class _Format:
    """Where things stand, for a window that is wide or for a phone's."""

    name: str
    width: int
    left: float
    right: float
    """The bands are between these two."""


WIDE = _Format("wide", 860, 330.0, 530.0)
NARROW = _Format("narrow", 360, BAR, 350.0)
"""With labels on the bands, and at outputs only where no band ends."""


@dataclasses.dataclass
class _Row:
    """A box on one side of the picture."""

    label: str
    kind: str
    nbytes: int
    top: float = 0.0
    height: float = 0.0
    used: float = 0.0
    """How much of its height has bands already."""


def drawing(explanation: Explanation) -> str:
    """The picture, for a wide window and for a narrow one; nothing where there are no arrays on one of the sides."""
    if not any(each.nbytes for each in explanation.inputs) or not any(each.nbytes for each in explanation.outputs):
        return "<p>There is nothing on one of the two sides.</p>"
    return "".join(_drawing(explanation, shape) for shape in (WIDE, NARROW))


def _drawing(explanation: Explanation, shape: _Format) -> str:
    left, left_of = _inputs(explanation)
    right, right_of = _outputs(explanation)
    most = max(sum(row.nbytes for row in left), sum(row.nbytes for row in right)) or 1
    height = max(_place(left, most), _place(right, most))
    bands: dict[tuple[int, int, str], int] = {}
    for each in explanation.inputs:
        if each.verdict in ("reused", "passed through") and each.target and each.path in left_of:
            target = each.target.split(", ")[0]
            if target in right_of:
                key = left_of[each.path], right_of[target], each.verdict
                bands[key] = bands.get(key, 0) + each.nbytes
    drawn = "".join(
        _band(left[a], right[b], kind, nbytes, shape) for (a, b, kind), nbytes in sorted(bands.items()) if nbytes
    )
    inside = shape is NARROW
    boxes = "".join(
        _box(row, shape.left - BAR, *((shape.left + 6, "start") if inside else (shape.left - BAR - 6, "end")))
        for row in left
    )
    for row in right:
        place = (shape.right - 6, "end") if inside else (shape.right + BAR + 6, "start")
        boxes += _box(row, shape.right, *place, labelled=not (inside and row.used))
    label = f"{size(explanation.reused_bytes)} go from inputs to outputs, {size(explanation.kept_bytes)} stay."
    return (
        f'<div class="scroll {shape.name}" tabindex="0">'
        f'<svg class="flow" viewBox="0 0 {shape.width} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}">{drawn}{boxes}</svg></div>'
    )


def _inputs(explanation: Explanation) -> tuple[list[_Row], dict[str, int]]:
    folds = [found for found in fold_inputs(explanation.inputs) if found.members[0].nbytes]
    rows = [
        _Row(found.texts[0], found.members[0].verdict, sum(each.nbytes for each in found.members))
        for found in folds[:MOST_ROWS]
    ]
    place = {each.path: i for i, found in enumerate(folds[:MOST_ROWS]) for each in found.members}
    rest = [each for found in folds[MOST_ROWS:] for each in found.members]
    for verdict in dict.fromkeys(each.verdict for each in rest):
        members = [each for each in rest if each.verdict == verdict]
        place.update((each.path, len(rows)) for each in members)
        rows.append(_Row(f"{len(members):,} more, {verdict}", verdict, sum(each.nbytes for each in members)))
    return rows, place


def _outputs(explanation: Explanation) -> tuple[list[_Row], dict[str, int]]:
    folds = [found for found in fold_outputs(explanation.outputs) if found.members[0].nbytes]
    kinds = {"reuses": "reused", "computed": "output"}
    words = {"reuses": "in reused memory", "computed": "in new memory"}
    rows = [
        _Row(found.texts[0], kinds.get(found.members[0].origin, "passed through"), sum(e.nbytes for e in found.members))
        for found in folds[:MOST_ROWS]
    ]
    place = {each.path: i for i, found in enumerate(folds[:MOST_ROWS]) for each in found.members}
    rest = [each for found in folds[MOST_ROWS:] for each in found.members]
    for origin in dict.fromkeys(each.origin for each in rest):
        members = [each for each in rest if each.origin == origin]
        place.update((each.path, len(rows)) for each in members)
        kind = kinds.get(origin, "passed through")
        rows.append(
            _Row(f"{len(members):,} more, {words.get(origin, origin)}", kind, sum(each.nbytes for each in members))
        )
    return rows, place


def _place(rows: Sequence[_Row], most: int) -> float:
    """Put the rows below each other; returns where they end."""
    top = GAP
    for row in rows:
        row.top, row.height = top, max(LOWEST, HEIGHT * row.nbytes / most)
        top += row.height + GAP
    return top


def _band(left: _Row, right: _Row, kind: str, nbytes: int, shape: _Format) -> str:
    a, b = left.height * nbytes / left.nbytes, right.height * nbytes / right.nbytes
    y, z = left.top + left.used, right.top + right.used
    left.used += a
    right.used += b
    middle = (shape.left + shape.right) / 2
    over = f"M{shape.left},{y:.1f}C{middle},{y:.1f} {middle},{z:.1f} {shape.right},{z:.1f}"
    back = f"V{z + b:.1f}C{middle},{z + b:.1f} {middle},{y + a:.1f} {shape.left},{y + a:.1f}Z"
    return f'<path class="band {kind.replace(" ", "-")}" d="{over}{back}"/>'


def _box(row: _Row, x: float, label: float, anchor: str, *, labelled: bool = True) -> str:
    name = row.label if len(row.label) <= LABEL else "…" + row.label[1 - LABEL :]
    text = (
        f'<text x="{label}" y="{row.top + row.height / 2 + 4:.1f}" text-anchor="{anchor}">{escape(name)} '
        f"<tspan>{size(row.nbytes)}</tspan></text>"
    )
    return (
        f"<g><title>{escape(row.label)}: {size(row.nbytes)}, {row.kind}</title>"
        f'<rect class="{row.kind.replace(" ", "-")}" x="{x}" y="{row.top:.1f}" width="{BAR}" '
        f'height="{row.height:.1f}"/>{text if labelled else ""}</g>'
    )
