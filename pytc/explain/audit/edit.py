"""The change to the source: the donation option of the expression that made the function.

Code objects have the exact source position of each instruction's expression, so the edit is of the very expression that
called `jax.jit`: a call, or a decorator without arguments.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import io
import itertools
import linecache
import tokenize
from collections.abc import Collection, Sequence
from typing import Any

from pytc.explain.audit.report import Edit
from pytc.explain.places import Place

_DONATIONS = frozenset(["donate_argnums", "donate_argnames", "donate"])

_TAKE_OPTIONS = frozenset(["jax.jit", "jit", "nnx.jit", "eqx.filter_jit", "equinox.filter_jit", "filter_jit"])
"""Decorators that can be called with options alone: `@jax.jit(donate_argnums=0)`."""

_JITS = frozenset(["jit", "pmap", "filter_jit", "partial"])
"""A decorator that is a call takes options if the last name of what it calls, or of its first argument, is among these:
`@partial(jax.jit, static_argnums=0)`."""

_CALLERS = frozenset([*dir(builtins), *dir(itertools), "reduce"])
"""Callables that may call `jax.jit` themselves and do not take its options: `list(map(jax.jit, functions))`."""

_BLANK = frozenset([tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER])


def option(api: str, donated: Collection[str], positional: Sequence[str], by_name: Collection[str] = ()) -> str:
    """The option that donates these arguments: `donate_argnums=(0, 1)`, and `donate_argnames` for those passed by name.

    An argument that is passed both ways needs only one of the two options, because JAX infers the other, unless other
    arguments need both to be given.
    """
    numbers = tuple(i for i, name in enumerate(positional) if name in donated)
    names = tuple(name for name in donated if name not in positional)
    if numbers and names:
        names = tuple(name for name in donated if name not in positional or name in by_name)
    if api == "equinox.filter_jit":
        if not donated:
            return ""
        return 'donate="all"' if positional and positional[0] in donated else 'donate="all-except-first"'
    said = [f"donate_argnums={numbers}"] if numbers else []
    said += [f"donate_argnames={names}"] if names else []
    return ", ".join(said)


def edit(place: Place, said: str, given: Collection[str] = ()) -> Edit:
    """The edit that makes the expression at `place` donate as the option `said` says, whatever it donated before.

    `given` are the options that the function was made with, wherever they come from. No change is offered (`after` is
    empty) unless the syntax tree of the changed file differs from the old one in the donation alone.
    """
    found = _found(place)
    if found is None:
        start = end = place.line, 0
        return Edit(place.file, place.line, said, "", "", start, end, "", "", "")
    before, start, end = found.text, found.start, found.end
    around = found.before_it, found.after_it
    if _said_elsewhere(found.node, said, given):
        note = "the donation that it has now is said elsewhere"
        return Edit(place.file, place.line, said, "", "", start, end, *around, note)
    after = _edited(before, found.node, said)
    if after and not _is_the_only_change(found, after, said):
        after = ""
    note = "with `import functools`" if after.startswith("functools.") and not before.startswith("functools.") else ""
    return Edit(place.file, place.line, said, before if after else "", after, start, end, *around, note)


@dataclasses.dataclass(frozen=True)
class _Found:
    """An expression in a file."""

    file: str
    """All of its text."""
    first: int
    last: int
    """Where the expression begins and ends in the text."""
    start: tuple[int, int]
    end: tuple[int, int]
    """The same as line, from 1, and column, in characters."""
    tree: ast.Module
    node: ast.expr

    @property
    def text(self) -> str:
        return self.file[self.first : self.last]

    @property
    def before_it(self) -> str:
        """What stands before it in its first line, from the first character that is no space."""
        return self.file[self.file.rfind("\n", 0, self.first) + 1 : self.first].lstrip()

    @property
    def after_it(self) -> str:
        """What stands after it in its last line."""
        return self.file[self.last :].partition("\n")[0].rstrip()


def _found(place: Place) -> _Found | None:
    """The expression at `place`, if it can have made the function."""
    if place.column is None or place.end_column is None or place.end_line is None:
        return None
    linecache.checkcache(place.file)
    lines = linecache.getlines(place.file)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return None
    node = _node(tree, place)
    if node is None:
        return None
    first = _offset(lines, place.line, place.column)
    last = _offset(lines, place.end_line, place.end_column)
    start = place.line, first - _offset(lines, place.line, 0)
    end = place.end_line, last - _offset(lines, place.end_line, 0)
    return _Found("".join(lines), first, last, start, end, tree, node)


def _node(tree: ast.Module, place: Place) -> ast.expr | None:
    where = place.line, place.end_line, place.column, place.end_column
    decorators = _decorators(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call | ast.Name | ast.Attribute) or _where(node) != where:
            continue
        decorates = any(node is each for each in decorators)
        if _takes_options(node, decorates) if isinstance(node, ast.Call) else decorates:
            return node
    return None


def _decorators(tree: ast.Module) -> list[ast.expr]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [each for node in ast.walk(tree) if isinstance(node, kinds) for each in node.decorator_list]


def _takes_options(call: ast.Call, decorates: bool) -> bool:
    """Whether the called function takes options of `jax.jit`, as far as its name tells. `list(map(jax.jit, functions))`
    makes functions but does not take them, nor does `@factory()`, if that returns `jax.jit`."""
    if decorates:
        return any(_name(each) in _JITS for each in (call.func, *call.args[:1]))
    return _name(call.func) not in _CALLERS


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _said_elsewhere(node: ast.expr, said: str, given: Collection[str]) -> bool:
    """Whether the function was made with a donation that is not written in the expression, and that would remain in
    force beside `said`."""
    keywords = node.keywords if isinstance(node, ast.Call) else []
    elsewhere = _DONATIONS.intersection(given) - {each.arg for each in keywords}
    starred = any(each.arg is None for each in keywords)
    return bool(elsewhere) and (starred or not elsewhere <= {each.arg for each in _keywords(said)})


def _keywords(said: str) -> list[ast.keyword]:
    call = ast.parse(f"_({said})", mode="eval").body
    return call.keywords if isinstance(call, ast.Call) else []


def _edited(source: str, node: ast.expr, said: str) -> str:
    """The source of the expression with this donation; empty if nothing is to be said and nothing can be removed."""
    if not isinstance(node, ast.Call):
        if not said:
            return ""
        return f"{source}({said})" if source in _TAKE_OPTIONS else f"functools.partial({source}, {said})"
    spans = _donations(source)
    if not spans:
        return _inserted(source, said) if said else ""
    while len(spans) > bool(said):
        source = _without(source, *spans[-1])
        spans = _donations(source)
    for begin, end in spans:
        source = source[:begin] + said + source[end:]
    return source


def _donations(source: str) -> list[tuple[int, int]]:
    """Where the donation options of a call begin and end in its source."""
    call = ast.parse(f"({source})", mode="eval").body
    lines = io.StringIO(source).readlines()
    found = []
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        if keyword.arg in _DONATIONS:
            ends = (keyword.lineno, keyword.col_offset), (keyword.end_lineno or 0, keyword.end_col_offset or 0)
            begin, end = (_offset(lines, line, column - (line == 1)) for line, column in ends)
            found.append((begin, end))
    return found


def _inserted(call: str, said: str) -> str:
    """The source of a call with this option added after its last argument, before any comments and trailing comma."""
    *before, _ = _tokens(call)
    while before[-1][0] == ",":
        before.pop()
    text, _, end = before[-1]
    return f"{call[:end]}{'' if text == '(' else ', '}{said}{call[end:]}"


def _without(call: str, begin: int, end: int) -> str:
    """The source of a call without the argument that begins and ends there, and without the comma beside it."""
    following = next((token for token in _tokens(call) if token[1] >= end), None)
    before, after = call[:begin], call[end:]
    if following is not None and following[0] == ",":
        after = call[end : following[1]] + call[following[2] :].lstrip(" \t")
    else:
        earlier = [token for token in _tokens(call) if token[2] <= begin]
        text, at, until = earlier[-1]
        if text == ",":
            before = call[:at] + call[until:begin]
        before = before.rstrip(" \t")
    line = before.rstrip(" \t")
    return (line.removesuffix("\n") if after.startswith("\n") else before) + after


def _tokens(source: str) -> list[tuple[str, int, int]]:
    """Each token but comments and line breaks: its text, and where it begins and ends."""
    text = f"({source})"
    lines = io.StringIO(text).readlines()
    starts = [0, *itertools.accumulate(map(len, lines))]
    found = [
        (token.string, starts[token.start[0] - 1] + token.start[1] - 1, starts[token.end[0] - 1] + token.end[1] - 1)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _BLANK
    ]
    return found[1:-1]


def _is_the_only_change(found: _Found, after: str, said: str) -> bool:
    """Whether the syntax trees of the file with and without the edit differ in this donation alone."""
    try:
        tree = ast.parse(found.file[: found.first] + after + found.file[found.last :])
        new = ast.parse(f"({after})", mode="eval").body
    except SyntaxError:
        return False
    if isinstance(found.node, ast.Call):
        if not isinstance(new, ast.Call):
            return False
        other, bare = copy.copy(found.node), copy.copy(new)
        for call in (other, bare):
            call.keywords = [each for each in call.keywords if each.arg not in _DONATIONS]
        donations = [each for each in new.keywords if each.arg in _DONATIONS]
        if ast.dump(other) != ast.dump(bare) or list(map(ast.dump, donations)) != list(map(ast.dump, _keywords(said))):
            return False
    return ast.dump(_Replacing(found.node, new).visit(found.tree)) == ast.dump(tree)


class _Replacing(ast.NodeTransformer):
    """Replaces one node by another."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        """The node, or its replacement."""
        return self._new if node is self._old else self.generic_visit(node)


def _where(node: ast.expr) -> tuple[int, int | None, int, int | None]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _offset(lines: Sequence[str], line: int, column: int) -> int:
    """The index into the text of a line, from 1, and a column in bytes."""
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode(errors="replace"))
