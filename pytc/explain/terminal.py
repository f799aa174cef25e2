"""Tools for texts on a terminal: lines that fit, colours, and counted nouns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

NARROWEST = 50
"""In columns. On a narrower terminal, lines run over, since shorter ones would be unreadable."""

Paint = Callable[[str, str], str]
"""A function from a text and its kind to the text in the colour of that kind."""

_COLOURS = {
    "reused": "32",
    "passed through": "32",
    "kept": "33",
    "computed": "33",
    "headline": "1",
    "title": "1",
    "reason": "2",
    "quiet": "2",
    "went": "31",
    "came": "32",
    "add": "32",
    "wrong": "31",
    "useless": "33",
    "pairing": "33",
}


def painter(colour: bool) -> Paint:
    """A `Paint` that adds ANSI colours, or nothing without `colour`."""
    if not colour:
        return lambda text, _: text
    return lambda text, what: f"\033[{_COLOURS[what]}m{text}\033[0m" if what in _COLOURS else text


def wrapped(text: str, width: int, indent: int = 0, first: int = 0) -> list[str]:
    """The text in lines of `width` columns, the first indented by `first`, the others by `indent`."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def counted(number: int, one: str, several: str = "") -> str:
    """`1 call`, `2 calls`, `2 leaves`."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
