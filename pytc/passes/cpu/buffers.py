"""Which of what is stored can have a result's memory before the result is written there: XLA's `BufferAssigner`.

Arguments and results have memory from beginning to end: an output that is written over an input has the input's. Until
a result is written, a value of up to its size can be there, if the input has been read by then; and also if what reads
the value last writes the result over it, element by element. (Not a copy of the same input, or what is copied to the
same result: then there would be no need for that copy.) All other values need memory of their own for as long as they
live.

Source: `xla/service/buffer_assignment.cc` of openxla/xla.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from pytc.passes.cpu.copies import Copied


class _Lives:
    """When each value is made, and read for the last time."""

    def __init__(self, program: Copied, order: Sequence[int]) -> None:
        self.start: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.shared: dict[int, bool] = {}
        """Whether what reads it last can be written over it."""
        for time, number in enumerate(order):
            node = program.nodes[number]
            for value in node.makes:
                self.start[value] = self.end[value] = time
                self.shared[value] = True
            for value in node.in_step:
                self.end[value], self.shared[value] = time, True
            for value in node.elsewhere:
                self.end[value], self.shared[value] = time, False

    def is_before(self, one: int, other: int, *, shared: bool = True) -> bool:
        """Whether two values can be in one place, one after the other; if `shared`, also one written over the other."""
        end, start = self.end[one], self.start[other]
        return end < start or (end == start and shared and self.shared[one])


@dataclass
class _Buffer:
    """That of a result."""

    result: int
    given: int | None
    """The input that it is written over."""
    has_had: list[int] = field(default_factory=list)
    """The values that are there before."""


def temporaries(
    program: Copied, order: Sequence[int], results: Set[int], over: Mapping[int, int], size: Mapping[int, int]
) -> int:
    """The most bytes at one time of all values that have no place in the buffer of a result.

    `results` are values, `over` says which input each is written over, and `size` what a value takes.
    """
    lives = _Lives(program, order)
    buffers = [_Buffer(value, over.get(value)) for value in sorted(results)]

    def has_place(value: int, buffer: _Buffer) -> bool:
        given, original = buffer.given, program.original.get(value)
        if size[value] > size[buffer.result] or not lives.is_before(value, buffer.result):
            return False
        if given is not None:
            if original in (given, buffer.result):
                return False
            # (A copy is written over nothing that it reads.)
            if given in lives.end and not lives.is_before(given, value, shared=original is None):
                return False
        return all(lives.is_before(value, other) or lives.is_before(other, value) for other in buffer.has_had)

    alone = []
    made = [value for value in lives.start if value not in results]
    for value in sorted(made, key=lambda value: (-size[value], lives.start[value])):
        buffer = next((buffer for buffer in buffers if has_place(value, buffer)), None)
        if buffer is None:
            alone.append(value)
        else:
            buffer.has_had.append(value)
    return _most_at_once(alone, lives, size)


def _most_at_once(values: Iterable[int], lives: _Lives, size: Mapping[int, int]) -> int:
    """The most bytes of these values that are alive at one time, where each may be written over by the next."""
    changes: list[tuple[int, int, int]] = []
    for value in values:
        start, end = lives.start[value], lives.end[value]
        changes.append((start, 1, size[value]))
        # Before what is made at this time, if that can be written over it, and else after.
        changes.append((end, 0 if lives.shared[value] and end > start else 2, -size[value]))
    most = now = 0
    for _, _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
