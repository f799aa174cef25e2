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
    positions = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    file = frame.f_code.co_filename
    if positions is None or positions[0] is None:
        return Place(file, frame.f_lineno)
    return Place(file, positions[0], *positions[1:])
