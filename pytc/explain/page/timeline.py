"""The memory over the program, as a picture: bands stacked on each other, from the first equation to the last."""

from __future__ import annotations

import html
import itertools
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytc.explain.sizes import size
from pytc.explain.timeline import LAYERS, Step, thinned

if TYPE_CHECKING:
    from pytc.explain.explanation import Explanation

CAPTION = (
    "What is alive at each equation, in the order in which the function is written. Memory that is reused is one band "
    "that changes hands: an input's, then an output's. XLA fuses and reorders, so its own total is often lower."
)

WIDTH, HEIGHT = 1000, 280
MOST_STEPS = 300
"""Columns of the picture; of more equations those with the most alive are drawn."""

_LABELS = {
    "kept": "inputs, kept",
    "reused": "inputs, reused later",
    "taken": "outputs in their memory",
    "output": "outputs in new memory",
    "temporary": "temporaries",
}


def drawing(explanation: Explanation) -> str:
    """The picture, its legend, and a line of text for what is under the cursor."""
    steps = thinned(explanation.timeline, MOST_STEPS)
    top = max(max(step.total, step.without) for step in steps) or 1
    shapes = "".join(f'<polygon class="{layer}" points="{_area(steps, k, top)}"/>' for k, layer in enumerate(LAYERS))
    outline = _outline(steps, lambda step: step.without, top)
    peak = max(step.total for step in steps)
    legend = "".join(f'<li><i class="{layer}"></i>{_LABELS[layer]}</li>' for layer in LAYERS)
    label = (
        f"Memory over {len(explanation.timeline) - 1:,} equations: at most {size(peak)} alive, "
        f"{size(max(step.without for step in steps))} if nothing were reused."
    )
    data = json.dumps([[step.number, step.primitive, step.source, *step.layers, step.without] for step in steps])
    return (
        f'<div class="timeline" tabindex="0" role="slider" aria-label="{html.escape(label)} Arrow keys move through '
        f'the program." aria-valuemin="0" aria-valuemax="{len(steps) - 1}" aria-valuenow="0">'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{html.escape(label)}">'
        f'{shapes}<polyline class="without" points="{_points(outline)}"/>'
        f'<line class="cursor" y1="0" y2="{HEIGHT}" x1="-9" x2="-9"/></svg>'
        f'<script type="application/json">{_inert(data)}</script>'
        f'<span class="scale">{size(top)}</span></div>'
        f'<p class="reading" aria-live="polite">{html.escape(label)}</p>'
        f'<ul class="legend">{legend}<li><i class="without"></i>if nothing were reused</li></ul>'
    )


Point = tuple[float, float]


def _area(steps: Sequence[Step], layer: int, top: int) -> str:
    """The band of one layer, on those below it."""
    upper = _outline(steps, lambda step: sum(step.layers[: layer + 1]), top)
    lower = _outline(steps, lambda step: sum(step.layers[:layer]), top)
    return _points([*upper, *reversed(lower)])


def _outline(steps: Sequence[Step], value: Callable[[Step], int], top: int) -> list[Point]:
    """A stair of one tread for each step; treads of one height are drawn as one."""
    width = WIDTH / len(steps)
    points: list[Point] = []
    for height, run in itertools.groupby(enumerate(steps), lambda numbered: value(numbered[1])):
        numbers = [number for number, _ in run]
        y = HEIGHT * (1 - height / top)
        points += [(numbers[0] * width, y), ((numbers[-1] + 1) * width, y)]
    return points


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.5g},{y:.5g}" for x, y in points)


def _inert(data: str) -> str:
    """JSON that means the same and holds no `<`, so that nothing in it can end the `<script>` that it stands in."""
    return data.replace("<", "\\u003c")
