"""What an audit found, as data. Its JSON schema, `pytc.audit/1`, has the fields below by their names. Keys may be added
under that number, but are never changed or removed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import Any, Literal

SCHEMA = "pytc.audit/1"

Verdict = Literal["dead", "held", "not proven", "left alone", "no use"]

FindingKind = Literal[
    "add", "no gain", "wrong", "useless", "pairing", "leaf by leaf", "by site", "at times", "if unread"
]


@dataclasses.dataclass(frozen=True)
class ArgumentReport:
    """One argument of a watched function, if it has arrays in it."""

    name: str
    nbytes: int
    """The bytes of its arrays, over all devices, in the largest call."""
    leaves: int
    """How many arrays."""
    donated: bool
    """Whether the script donates it."""
    verdict: Verdict
    """`dead`: an output fits into it, and what a call would delete was dead at every call seen · `held`: something held
    a part of it that a call would delete · `not proven`: so it seemed, but no holder is known, because the proof gave
    up · `left alone`: an output fits into it, but goes into another argument, or it cannot be donated by itself · `no
    use`: no output fits into it, so donating changes nothing."""
    path: str
    """The largest held leaf whose holder was searched for; empty if there is none."""
    held_calls: int
    """How many of the calls seen found that leaf held."""
    why: str
    """What held it, in words: "read again in train.py:57"."""
    file: str | None
    """The file and line of the holder, if it has one."""
    line: int | None
    site: str
    """The place that made those calls, if there are several places: `train.py:57`."""


@dataclasses.dataclass(frozen=True)
class CallerReport:
    """One place that calls a watched function."""

    file: str
    line: int
    calls: int
    seen: int
    """How many of the calls were examined."""


@dataclasses.dataclass(frozen=True)
class Savings:
    """The compiler's own figures, in bytes on each device, for the call with the most bytes of arguments: arguments,
    outputs and temporaries, less what outputs share with arguments."""

    now: int
    """As the script compiles it."""
    advised: int
    """With the edit."""
    pytc: int | None
    """With `pytc.compile`, which decides at each call, leaf by leaf, and pairs by data flow: at those calls where what
    is held at most of them is held, and nothing else; None where that does something else
    (`flax.nnx.jit`, which hands changes of a model back to the caller's)."""
    devices: int

    @property
    def saves(self) -> int:
        """What the edit saves; negative if it removes a wrong donation."""
        return self.now - self.advised


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing to know about a function."""

    kind: FindingKind
    """`add`: could be donated · `no gain`: could be donated, but that saves nothing · `wrong`: is donated but still in
    use · `useless`: is donated, but no output fits · `pairing`: JAX's pairs of arguments and outputs cost memory ·
    `leaf by leaf`: `pytc.compile` would reuse what no `donate_argnums` can · `by site`: was held in calls from one
    place and dead in those from another · `at times`: was held in some calls alone, which could be given a copy · `if
    unread`: is overwritten at once, but another thread or the like may read
    it before."""
    arguments: tuple[str, ...]
    text: str
    saves: int | None
    """In bytes on each device, by the compiler's figures; None if the finding is not about bytes."""


@dataclasses.dataclass(frozen=True)
class Edit:
    """The change to the source that follows from the findings."""

    file: str
    line: int
    option: str
    """The option that the `jax.jit` call needs: `donate_argnums=(0, 1)`; empty if it should donate nothing."""
    before: str
    """The expression as it is in the source; empty if no change to the source is offered."""
    after: str
    """The expression to replace it by."""
    start: tuple[int, int]
    """Where the expression begins: line, from 1, and column, in characters from 0."""
    end: tuple[int, int]
    """Where it ends."""
    before_it: str
    """What stands before it in its first line: `@`, `step = `."""
    after_it: str
    """What stands after it in its last line."""
    note: str
    """What else to do or to know; empty if nothing."""


@dataclasses.dataclass(frozen=True)
class FunctionReport:
    """One watched function."""

    name: str
    api: str
    """`jax.jit`, `jax.pmap`, `equinox.filter_jit` or `flax.nnx.jit`."""
    file: str
    line: int
    """Where the script made it."""
    made: int
    """How many times the script made it there; the same line may run more than once."""
    calls: int
    seen: int
    sites: tuple[CallerReport, ...]
    arguments: tuple[ArgumentReport, ...]
    findings: tuple[Finding, ...]
    edit: Edit | None
    figures: Savings | None
    """None if nothing was compiled: there was nothing to advise, or compiling failed."""
    note: str
    """Why there is no advice; empty if there is."""


@dataclasses.dataclass(frozen=True)
class Audit:
    """Everything that was found about one run of a script."""

    script: str
    ended: str
    """The exception by which the script ended; empty if there was none."""
    functions: tuple[FunctionReport, ...]
    """Sorted by what their edits save, most first."""
    seconds: float
    """From the import of JAX to the end of the script."""
    looking: float
    """How many of these seconds were spent on examining calls."""

    def to_json(self, **options: Any) -> str:
        """As JSON; `options` go to `json.dumps`."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, **options)

    def text(self, width: int | None = None, *, colour: bool = False) -> str:
        """The report for a terminal of this width; by default the current terminal's."""
        from pytc.explain.audit import text

        if width is None:
            width = shutil.get_terminal_size((100, 24)).columns
        return text.of_audit(self, width, colour)

    def __str__(self) -> str:
        return self.text()
