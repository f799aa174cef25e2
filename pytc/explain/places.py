"""Places in the source, as precisely as the bytecode tells."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from types import CodeType, FrameType


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
    return place_at(frame.f_code, frame.f_lasti)


def place_at(code: CodeType, lasti: int) -> Place:
    """The expression that the instruction at `lasti` belongs to; if that is not known, the line where the code
    begins."""
    line, *rest = next(itertools.islice(code.co_positions(), lasti // 2, None), (None,))
    return Place(code.co_filename, code.co_firstlineno) if line is None else Place(code.co_filename, line, *rest)
