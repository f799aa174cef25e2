"""Replaces `python -m pytc audit` by a new process; `script` says why the script cannot run in this one."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence
from typing import NoReturn


def audit(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by one that runs `script.py` with these arguments and the same interpreter options."""
    runner = pathlib.Path(__file__).with_name("script.py")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *_interpreter_options(), str(runner), *arguments])


def _interpreter_options() -> list[str]:
    """The options between `python` and `-m pytc` on the command line: `-X`, `-W`, `-u`, ..."""
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    if before[-1:] == ["pytc"]:
        joined = before[-2].removesuffix("m")  # `-m`, or `-um`
        return [*before[:-2], *([joined] if joined != "-" else [])]
    return before[:-1]
