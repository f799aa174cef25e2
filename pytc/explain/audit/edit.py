"""The change to the source: one option of the expression that made the function.

The interpreter tells for each instruction from which line and column to which its expression goes, so what is edited
is the very expression that called `jax.jit`: a call, or a decorator without arguments.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Collection, Sequence

from pytc.explain.audit.places import Place
from pytc.explain.audit.report import Edit

_DONATIONS = frozenset(["donate_argnums", "donate_argnames", "donate"])

_TAKE_OPTIONS = frozenset(["jax.jit", "jit", "nnx.jit", "eqx.filter_jit", "equinox.filter_jit", "filter_jit"])
"""What a decorator may be called that takes options alone: `@jax.jit(donate_argnums=0)`."""


def option(api: str, donated: Collection[str], positional: Sequence[str]) -> str:
    """What says that these arguments are donated: `donate_argnums=(0, 1)`, or with names for those passed by name."""
    numbers = tuple(i for i, name in enumerate(positional) if name in donated)
    names = tuple(name for name in donated if name not in positional)
    if api == "equinox.filter_jit":
        if not donated:
            return ""
        return 'donate="all"' if positional and positional[0] in donated else 'donate="all-except-first"'
    said = [f"donate_argnums={numbers}"] if numbers else []
    said += [f"donate_argnames={names}"] if names else []
    return ", ".join(said)


def edit(place: Place, said: str, note: str = "") -> Edit:
    """The expression at `place` with `said` for its donation, whatever it said before."""
    start = end = place.line, 0
    before = after = ""
    found = _source(place)
    if found is not None:
        before, start, end = found
        after = _edited(before, said)
        if after.startswith("functools.") and not before.startswith("functools."):
            note = "; ".join(filter(None, [note, "with `import functools`"]))
    return Edit(place.file, place.line, said, before if after else "", after, start, end, note)


def _source(place: Place) -> tuple[str, tuple[int, int], tuple[int, int]] | None:
    """The text of the expression, and where it begins and ends."""
    if place.column is None or place.end_column is None or place.end_line is None:
        return None
    linecache.checkcache(place.file)
    lines = [linecache.getline(place.file, number) for number in range(place.line, place.end_line + 1)]
    if not all(lines):
        return None
    first = len(lines[0].encode()[: place.column].decode(errors="replace"))
    last = len(lines[-1].encode()[: place.end_column].decode(errors="replace"))
    text = lines[0][first:last] if len(lines) == 1 else "".join([lines[0][first:], *lines[1:-1], lines[-1][:last]])
    return text, (place.line, first), (place.end_line, last)


def _edited(source: str, said: str) -> str:
    """The expression with this donation; empty where it is of no known form."""
    try:
        node = ast.parse(f"({source})", mode="eval").body
    except SyntaxError:
        return ""
    if isinstance(node, ast.Name | ast.Attribute):
        if not said:
            return source
        return f"{source}({said})" if source in _TAKE_OPTIONS else f"functools.partial({source}, {said})"
    if not isinstance(node, ast.Call):
        return ""
    # In a call: the options that speak of donation are cut out, and the new one goes before the closing bracket.
    text = f"({source})"
    cuts = []
    for keyword in node.keywords:
        if keyword.arg in _DONATIONS:
            begin = _offset(text, keyword.lineno, keyword.col_offset)
            stop = _offset(text, keyword.end_lineno or 0, keyword.end_col_offset or 0)
            cuts.append((begin, stop))
    for begin, stop in reversed(cuts):
        head, tail = text[:begin].rstrip(), text[stop:]
        if head.endswith(","):
            head = head[:-1]
        elif tail.lstrip().startswith(","):
            tail = tail.lstrip()[1:].lstrip()
        text = head + tail
    body = text[1:-1]
    inside, closing = body[: body.rindex(")")], body[body.rindex(")") :]
    if said:
        kept = inside.rstrip()
        space = inside[len(kept) :]
        comma = "" if kept.endswith("(") else " " if kept.endswith(",") else ", "
        inside = f"{kept}{comma}{said}{',' + space if kept.endswith(',') else space}"
    return inside + closing


def _offset(text: str, line: int, column: int) -> int:
    """The place in the text of a line, from 1, and a column in bytes."""
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())
