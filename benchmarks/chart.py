"""The chart for the docs: total bytes of each workload under each contender, over those of `jax.jit`.

SVG written by hand, with no library. It brings its own background, and its colours differ in lightness as well as in
hue, so it reads on a light and on a dark page, in print and without colour vision.
"""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

from benchmarks.contenders import ALL, BY_HAND, FILTER_JIT, JIT, PYTC

COLOURS = {JIT: "#b8bec6", BY_HAND: "#5b8db8", FILTER_JIT: "#e0a458", PYTC: "#0b6e4f"}
LABELS = {
    JIT: "jax.jit",
    BY_HAND: "jax.jit, best donate_argnums",
    FILTER_JIT: "equinox.filter_jit",
    PYTC: "pytc.compile",
}

WIDTH, LEFT, RIGHT, TOP = 860, 180, 70, 92
BAR, GAP = 11, 12

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.small { font-size: 10px; fill: #57606a }
.end { text-anchor: end }
.middle { text-anchor: middle }
.grid { stroke: #d8dee4; stroke-width: 1 }
"""


def draw(figures: dict[str, Any]) -> str:
    """The SVG document for a report as the JSON file holds it."""
    results = figures["workloads"]
    row = len(ALL) * BAR + GAP
    height = TOP + row * len(results) + 46
    most = max([1.0, *(ratio(result, c) or 0.0 for result in results.values() for c in ALL)])
    scale = (WIDTH - LEFT - RIGHT) / most
    body = [grid(scale, most, height), legend()]
    for i, (name, result) in enumerate(results.items()):
        body.append(bars(name, result, TOP + i * row, scale))
    on = figures["on"]
    source = f"size {on['size']} on {on['device']}, JAX {on['jax']}; argument + output + temporary - aliased bytes"
    body.append(f'<text class="small" x="{LEFT}" y="{height - 12}">{escape(source)}</text>')
    title = "Memory of one call, relative to jax.jit (shorter is better)"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            f' role="img" aria-label="{title}">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
            f'<text class="title" x="20" y="30">{title}</text>',
            *body,
            "</svg>",
            "",
        ]
    )


def ratio(result: dict[str, Any], contender: str) -> float | None:
    """A contender's total over that of `jax.jit`; None where it does not take part."""
    row = result["rows"].get(contender)
    return None if row is None else row["total"] / result["rows"][JIT]["total"]


def legend() -> str:
    """What each colour is."""
    parts, x = [], 20.0
    for contender in ALL:
        parts.append(f'<rect x="{x:.0f}" y="46" width="11" height="11" rx="2" fill="{COLOURS[contender]}"/>')
        parts.append(f'<text x="{x + 17:.0f}" y="56">{escape(LABELS[contender])}</text>')
        x += 45 + 6.6 * len(LABELS[contender])
    return "\n".join(parts)


def grid(scale: float, most: float, height: int) -> str:
    """Lines at each quarter."""
    parts = []
    for quarter in range(int(most * 4 + 1e-9) + 1):
        x = LEFT + quarter / 4 * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 34}"/>')
        parts.append(f'<text class="small middle" x="{x:.1f}" y="{TOP - 12}">{quarter * 25}%</text>')
    return "\n".join(parts)


def bars(name: str, result: dict[str, Any], y: float, scale: float) -> str:
    """One workload: its name and a bar for each contender, with the figure at its end."""
    parts = [f'<text class="end" x="{LEFT - 10}" y="{y + len(ALL) * BAR / 2 + 4:.1f}">{escape(name)}</text>']
    for i, contender in enumerate(ALL):
        top = y + i * BAR
        share = ratio(result, contender)
        if share is None:
            parts.append(f'<text class="small" x="{LEFT + 5}" y="{top + 9:.1f}">cannot take part</text>')
            continue
        length = share * scale
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR - 1}" fill="{COLOURS[contender]}">'
            f"<title>{escape(f'{name}, {LABELS[contender]}: {share:.1%}')}</title></rect>"
        )
        parts.append(f'<text class="small" x="{LEFT + length + 4:.1f}" y="{top + 9:.1f}">{share:.0%}</text>')
    return "\n".join(parts)
