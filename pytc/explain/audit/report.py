"""What an audit found, as data. As JSON the schema is `pytc.audit/1`: the fields below by their names; keys are added
under that number, never changed or removed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import Any, Literal

SCHEMA = "pytc.audit/1"

Verdict = Literal["dead", "held", "not proven", "no use"]

Kind = Literal["add", "no gain", "wrong", "useless", "pairing", "leaf by leaf", "by site", "if unread"]


@dataclasses.dataclass(frozen=True)
class ArgumentReport:
    """One argument of a watched function that has arrays in it."""

    name: str
    nbytes: int
    """Of its arrays, over all devices, in the largest call."""
    leaves: int
    """How many arrays."""
    donated: bool
    """Whether the script donates it."""
    verdict: Verdict
    """`dead`: an output fits into it, and whatever a call would delete was dead at every call seen · `held`: something
    still had a part of it that a call would delete · `not proven`: the same, but nothing is
    known to have it; the proof gave up · `no use`: no output fits into it, so donating changes nothing."""
    path: str
    """Of what is held the largest leaf that is explained; empty where nothing is held."""
    held_calls: int
    """How many of the calls seen found that leaf held."""
    why: str
    """What held it, as a person would say it: "read again in train.py:57"."""
    file: str | None
    """Where that stands, if it stands anywhere."""
    line: int | None
    site: str
    """The place that made those calls, where there are several: `train.py:57`."""


@dataclasses.dataclass(frozen=True)
class SiteReport:
    """One place that calls a watched function."""

    file: str
    line: int
    calls: int
    seen: int
    """How many of the calls were looked at."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """The compiler's own figures, in bytes on each device, for the call with the most bytes of arguments: arguments,
    outputs and temporaries, less what outputs share with arguments."""

    now: int
    """As the script compiles it."""
    advised: int
    """With the edit."""
    pytc: int
    """With `pytc.compile`, which decides leaf by leaf and pairs by data flow."""
    devices: int

    @property
    def saves(self) -> int:
        """What the edit saves; negative where it takes back a promise that was wrong."""
        return self.now - self.advised


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing to know about a function."""

    kind: Kind
    """`add`: could be donated · `no gain`: could be, but the compiler saves nothing by it · `wrong`: is donated and
    still in use · `useless`: is donated, and no output fits · `pairing`: JAX's pairs of arguments and outputs cost
    copies · `leaf by leaf`: what `pytc.compile` would reuse and no `donate_argnums` can ·
    `by site`: was held in calls from one place, and dead in those from another ·
    `if unread`: is overwritten at once, but another thread or the like may read it before."""
    arguments: tuple[str, ...]
    text: str
    saves: int | None
    """In bytes on each device, by the compiler's figures; None where it is not about bytes."""


@dataclasses.dataclass(frozen=True)
class Edit:
    """The change to the source that follows from the findings."""

    file: str
    line: int
    option: str
    """What the `jax.jit` call is to say: `donate_argnums=(0, 1)`; empty where it is to say nothing."""
    before: str
    """The expression as it stands in the source; empty where that could not be read."""
    after: str
    """What to write in its place."""
    start: tuple[int, int]
    """Line, from 1, and column, in characters from 0, where the expression begins."""
    end: tuple[int, int]
    """And where it ends."""
    note: str
    """What to mind; empty if nothing."""


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
    """How many times; the same line may run more than once."""
    calls: int
    seen: int
    sites: tuple[SiteReport, ...]
    arguments: tuple[ArgumentReport, ...]
    findings: tuple[Finding, ...]
    edit: Edit | None
    figures: Figures | None
    """None where nothing was compiled for it: nothing to advise, or the compiler did not say."""
    note: str
    """Why there is nothing to say, if so."""


@dataclasses.dataclass(frozen=True)
class Audit:
    """Everything that was found about one run of a script."""

    script: str
    ended: str
    """How the script ended, where it was by an exception."""
    functions: tuple[FunctionReport, ...]
    """In the order of what their edits save, the most first."""
    seconds: float
    """From the import of JAX to the end of the script."""
    looking: float
    """How many of them went into looking at calls."""

    @property
    def saves(self) -> int:
        """What all edits save of the one function that they save most of: a script's functions mostly run in turn."""
        return max((each.figures.saves for each in self.functions if each.figures is not None), default=0)

    def to_json(self, **options: Any) -> str:
        """As JSON; `options` go to `json.dumps`."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, **options)

    def text(self, width: int | None = None, *, colour: bool = False) -> str:
        """The report for a terminal of this width; that of the terminal if None."""
        from pytc.explain.audit import text

        if width is None:
            width = shutil.get_terminal_size((100, 24)).columns
        return text.of_audit(self, width, colour)

    def __str__(self) -> str:
        return self.text()
