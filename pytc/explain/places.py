"""Places in the source, as precisely as the bytecode tells."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from types import FrameType


@dataclasses.dataclass(frozen=True)
class Place:
    """An expression in a source file."""

    file: str
    line: int
    end_line: int | None = None
    column: int | None = None
    """In bytes of UTF-8, from 0, as the interpreter counts."""
    end_column: int | None = None

    def __str__(self) -> str:
        return f"{pathlib.Path(self.file).name}:{self.line}"


def place_of(frame: FrameType) -> Place:
    """The expression that a frame is evaluating."""
    code = frame.f_code
    line, *rest = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), (None,))
    return Place(code.co_filename, code.co_firstlineno) if line is None else Place(code.co_filename, line, *rest)
