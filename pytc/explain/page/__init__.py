"""An explanation as a page: what the memory is used for, seen rather than read.

One self-contained piece of HTML: styles and script inside, nothing fetched, so that it can be mailed, put next to a
build's other results, or shown in a notebook. Everything that the script adds (search, sorting, reading the picture
under the cursor) is extra: without it the page says the same.

    tables      the compiler's figures, side by side; inputs and outputs; passes before and after
    timeline    what is alive when
    flow        from inputs to outputs
"""

from __future__ import annotations

import html
import importlib.resources
import itertools
from typing import TYPE_CHECKING

from pytc.explain import text
from pytc.explain.page import flow, tables, timeline

if TYPE_CHECKING:
    from pytc.explain.explanation import Explanation

_numbers = itertools.count(1)


def document(explanation: Explanation) -> str:
    """The page as a file of its own."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\">\n"
        f"<title>{html.escape(explanation.name)}: where its memory goes</title>\n"
        f"</head>\n<body>\n{fragment(explanation)}\n</body>\n</html>\n"
    )


def fragment(explanation: Explanation) -> str:
    """The page as a part of another, such as a notebook."""
    name = f"pytc-explain-{next(_numbers)}"
    first, _, figures = text.headline(explanation).partition("; ")
    sections = [
        ("Memory", _about_figures(explanation), tables.bars(explanation.memory, explanation.device.memory)),
        ("Over time", timeline.CAPTION, timeline.drawing(explanation)),
        ("From inputs to outputs", "Each band is memory: its height is its bytes.", flow.drawing(explanation)),
        ("Inputs and outputs", "", tables.leaves(explanation)),
        ("Passes", "Each pass, and the equations that it took away or put in.", tables.passes(explanation)),
        ("By hand", f"The {explanation.memory.as_jit.called} call that comes nearest.", tables.by_hand(explanation)),
    ]
    if explanation.plans:
        caption = "What the compiler said of other ways to pair outputs and inputs."
        sections.append(("Plans", caption, tables.plans(explanation.plans)))
    body = "".join(
        f"<section><h2>{title}</h2>{f'<p>{html.escape(caption)}</p>' if caption else ''}{content}</section>\n"
        for title, caption, content in sections
    )
    return (
        f'<div class="pytc-explain" id="{name}">\n<style>\n{_asset("page.css")}</style>\n'
        f"<header><h1>{html.escape(first)}</h1><p class=figures>{html.escape(figures)}</p>"
        f"<p>{html.escape(explanation.assumption)}</p></header>\n{body}"
        f'<script>\n({_asset("page.js").strip()})(document.getElementById("{name}"));\n</script>\n</div>'
    )


def _about_figures(explanation: Explanation) -> str:
    more = text.about_captured(explanation), text.about_device(explanation)
    return " ".join(["The compiler's own figures, in bytes on each device.", *filter(None, more)])


def _asset(name: str) -> str:
    return importlib.resources.files(__name__).joinpath(name).read_text("utf-8")
