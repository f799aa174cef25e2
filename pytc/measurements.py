"""What the compiler said of each plan of a program, remembered on disk beside JAX's compilation cache.

One small JSON file for each program, by a hash of all that the figures depend on: the text that the compiler is given,
what may be written over, the versions of JAX, of the backend's compiler and of this format, the kind of device, options
and flags. What is kept are figures; the choice is made anew from them, so that a file can be incomplete, and is used as
far as it goes. A file that is not such a file is as good as none, and written anew.

On where JAX's own cache is (`jax_compilation_cache_dir`, and `jax_enable_compilation_cache` not off), in the folder
`pytc` there. Written as a whole or not at all. A folder that cannot be written to is read from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import threading
from collections.abc import Mapping
from typing import Any

import jax

from pytc.hlo import UNTIMED, Bytes
from pytc.jax_compat.running import compilation_cache_dir, compiler_of, device_of
from pytc.program import Program

FORMAT = "pytc.measurements/1"


@dataclasses.dataclass(frozen=True)
class Figures(Bytes):
    """What the compiler says of one compiled plan."""

    copies: int
    """How many arrays the compiled program copies."""
    copied: int
    """Their bytes."""
    copied_inputs: tuple[int, ...]
    """Those of them that are inputs of the program (invar numbers)."""


class Measurements:
    """Figures by plan, of one program and one compiler."""

    def __init__(self, path: pathlib.Path | None, compiler_options: Mapping[str, Any]) -> None:
        self.path = path
        """The file; None where nothing is remembered."""
        self.compiler_options = dict(compiler_options) or None
        """What plans are to be compiled with to be measured, besides the program's own options."""
        self._known = {} if path is None else _read(path)
        self._changed = False

    @classmethod
    def of(
        cls,
        lowered: jax.stages.Lowered,
        program: Program,
        options: Mapping[str, Any],
        compiler_options: Mapping[str, Any] | None = None,
        *,
        remember: bool = True,
    ) -> Measurements:
        """Those of the program that is `lowered` with its first plan; `compiler_options` and `remember` as in
        `pytc.effort.choose`."""
        device = device_of(leaf.placed for leaf in program.leaves)
        told = dict(compiler_options or {}) | (UNTIMED if device.platform in ("gpu", "cuda", "rocm") else {})
        folder = compilation_cache_dir() if remember else None
        if folder is None:
            return cls(None, told)
        depends = [
            FORMAT,
            *compiler_of(device),
            repr(sorted((name, repr(value)) for name, value in options.items())),
            repr(sorted(told.items())),
            repr([leaf.path for i, leaf in enumerate(program.leaves) if i in program.keep]),
            lowered.as_text(),
        ]
        digest = hashlib.sha256("\n".join(depends).encode()).hexdigest()
        return cls(folder / "pytc" / f"{digest}.json", told)

    def get(self, plan: str) -> Figures | None:
        """What is known of a plan (`Candidate.key`)."""
        return self._known.get(plan)

    def add(self, plan: str, figures: Figures) -> None:
        """Remember a plan's figures."""
        self._known[plan] = figures
        self._changed = True

    def save(self) -> None:
        """Write the file, if there is anything new and it can be written."""
        if self.path is None or not self._changed:
            return
        told = {plan: dataclasses.asdict(figures) for plan, figures in sorted(self._known.items())}
        text = json.dumps({"format": FORMAT, "plans": told}, indent=1)
        # It only saves time, and its folder may belong to somebody else, be full, or be gone.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _write(self.path, text)


def _write(path: pathlib.Path, text: str) -> None:
    """As a whole: other processes read what was there before, or this."""
    new = path.with_name(f"{path.stem}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        new.write_text(text, "utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _read(path: pathlib.Path) -> dict[str, Figures]:
    """What the file tells; nothing where it is not one of ours."""
    try:
        told = json.loads(path.read_text("utf-8"))
        if told["format"] != FORMAT:
            return {}
        return {str(plan): _figures(fields) for plan, fields in told["plans"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _figures(fields: Mapping[str, Any]) -> Figures:
    """Raises `ValueError` or `TypeError` where these are not the fields of `Figures`."""
    figures = Figures(**{**fields, "copied_inputs": tuple(fields["copied_inputs"])})
    numbers = [getattr(figures, field.name) for field in dataclasses.fields(figures)[:-1]] + [*figures.copied_inputs]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"not bytes: {fields!r}")
    return figures
