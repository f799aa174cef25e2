"""What a pass changed in the equations: the lines that it removed and added.

JAX prints each jaxpr with fresh names, so removing one equation renames all later values. Here a value is named by the
order in which it is first seen in any of the programs, so it keeps its name from pass to pass.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pytc.jax_compat.avals import short
from pytc.jax_compat.jaxprs import Jaxpr, JaxprEqn, subjaxprs
from pytc.jax_compat.jaxprs import Literal as AtomLiteral
from pytc.jax_compat.origins import source_line

if TYPE_CHECKING:
    from pytc.explain.decisions import PassReport

CONTEXT = 1
"""So many unchanged lines are shown on each side of a change."""


@dataclasses.dataclass(frozen=True)
class Line:
    """An equation of a program, as a line of text."""

    text: str
    """`v7:f32[8] = mul v3 v5`; equations inside of others are indented."""
    source: str
    """The line of the user's source that it comes from."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A line in the comparison of two programs."""

    kind: Literal["went", "came", "same", "skipped"]
    line: Line
    """For `skipped`, its text says how many lines."""


class Namer:
    """Names for the values of several programs. A value that is in more than one has the same name in all."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}

    def lines(self, jaxpr: Jaxpr) -> tuple[Line, ...]:
        """A line for each of the jaxpr's equations, at every depth."""
        return tuple(self._lines(jaxpr, ""))

    def _lines(self, jaxpr: Jaxpr, indent: str) -> Iterator[Line]:
        for eqn in jaxpr.eqns:
            yield Line(indent + self._equation(eqn), source_line(eqn))
            for sub in subjaxprs(eqn):
                yield from self._lines(sub, indent + "  ")

    def _equation(self, eqn: JaxprEqn) -> str:
        made = " ".join(f"{self._name(var)}:{_type(var)}" for var in eqn.outvars)
        given = " ".join(map(self._name, eqn.invars))
        return f"{made} = {eqn.primitive.name} {given}".strip()

    def _name(self, atom: Any) -> str:
        if isinstance(atom, AtomLiteral):
            return str(atom.val)
        return self._names.setdefault(atom, f"v{len(self._names)}")


def compare(before: Sequence[Line], after: Sequence[Line]) -> Iterator[Change]:
    """The lines that differ, with `CONTEXT` lines around them."""
    matcher = difflib.SequenceMatcher(None, [each.text for each in before], [each.text for each in after], False)
    blocks = matcher.get_opcodes()
    for number, (kind, a, b, c, d) in enumerate(blocks):
        if kind == "equal":
            yield from _around(before[a:b], first=number == 0, last=number == len(blocks) - 1)
        else:
            yield from (Change("went", line) for line in before[a:b])
            yield from (Change("came", line) for line in after[c:d])


def changes(report: PassReport, namer: Namer, most: int) -> tuple[Change, ...]:
    """At most `most` lines of what a pass changed in the equations, and how many more there are."""
    before, after = namer.lines(report.before.jaxpr.jaxpr), namer.lines(report.after.jaxpr.jaxpr)
    return first(compare(before, after), most) if before != after else ()


def first(changes: Iterator[Change], most: int) -> tuple[Change, ...]:
    """At most `most` of the changes, and how many more there are."""
    shown = tuple(itertools.islice(changes, most))
    rest = sum(1 for _ in changes)
    return (*shown, _skipped(rest)) if rest else shown


def _around(lines: Sequence[Line], *, first: bool, last: bool) -> Iterator[Change]:
    head, tail = 0 if first else CONTEXT, 0 if last else CONTEXT
    if len(lines) <= head + tail:
        yield from (Change("same", line) for line in lines)
        return
    yield from (Change("same", line) for line in lines[:head])
    yield _skipped(len(lines) - head - tail)
    yield from (Change("same", line) for line in lines[len(lines) - tail :])


def _skipped(count: int) -> Change:
    return Change("skipped", Line(f"{count:,} more", ""))


def _type(var: Any) -> str:
    aval = var.aval
    return short(aval) if hasattr(aval, "str_short") else str(aval)
