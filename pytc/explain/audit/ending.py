"""The end of an audited script: makes the report from what was seen, and writes it."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
import time

from pytc.explain.audit import advice
from pytc.explain.audit.report import Audit
from pytc.explain.audit.watch import Watch


def report(watch: Watch, options: argparse.Namespace, error: BaseException | None) -> None:
    """Write the report of what was watched, as the options of the command line say."""
    audit = audit_of(watch, options.script[0], error)
    if options.json:
        text = audit.to_json(indent=2)
    else:
        colour = options.out is None and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        text = audit.text(options.width, colour=colour)
    if options.out is not None:
        pathlib.Path(options.out).write_text(text + "\n", encoding="utf-8")
    else:
        sys.stdout.flush()
        sys.stderr.write(text + "\n")
    if isinstance(error, KeyboardInterrupt):
        _still_interrupted()


def _still_interrupted() -> None:
    """Remind the interpreter of an interrupt that nobody caught, so that the process ends by SIGINT. It forgets the
    interrupt when it runs source code anew, as `dataclasses` does."""
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")


def audit_of(watch: Watch, script: str, error: BaseException | None) -> Audit:
    """The audit of what was seen, with the compiler's figures; without them if compiling is interrupted."""
    seconds, looking = time.perf_counter() - watch.clock.started, watch.clock.spent
    try:
        found = advice.functions(watch.functions)
    except KeyboardInterrupt:
        found = advice.functions(watch.functions, figures=False)
    ended = "" if error is None else _in_words(error)
    return Audit(script, ended, found, seconds, looking)


def _in_words(error: BaseException) -> str:
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
