"""What the compiler says of one executable: its bytes, and the copies in its program.

Read without `pytc.hlo`, which the contender under test uses itself: what that gets wrong is not wrong here.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from jax import Device

COPY = re.compile(r"= \(?([a-z]\w*)\[([\d,]*)\]\S*(?: [^=]*?)? copy(?:-start)?\(")


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on the device, as the compiler counts them."""

    argument: int
    output: int
    temp: int
    alias: int
    copies: int
    """Copies of arrays in the optimised program, those inside its fusions included; a scalar's copy is none."""
    copied: int
    """Their bytes."""

    @property
    def total(self) -> int:
        """What the call needs in all: an output that is written over an argument is counted once."""
        return self.argument + self.output + self.temp - self.alias


def memory(stats: Any, hlo: str) -> Memory:
    """From the compiler's statistics and the text of its optimised program."""
    copies = [array_bytes(dtype, shape) for dtype, shape in COPY.findall(hlo) if shape]
    return Memory(
        argument=stats.argument_size_in_bytes,
        output=stats.output_size_in_bytes,
        temp=stats.temp_size_in_bytes,
        alias=stats.alias_size_in_bytes,
        copies=len(copies),
        copied=sum(copies),
    )


def array_bytes(dtype: str, shape: str) -> int:
    """The bytes of an HLO array such as f32[4,8]."""
    bits = int(found[0]) if (found := re.findall(r"\d+", dtype)) else 8  # pred is a byte
    count = 1
    for dimension in shape.split(","):
        count *= int(dimension)
    return count * bits // 8


class Executables:
    """What the device's runtime holds compiled. So figures are of what ran, whoever compiled it and however."""

    def __init__(self, device: Device) -> None:
        self._client = device.client
        self._before = len(self._client.live_executables())

    def new(self) -> list[Any]:
        """The executables compiled since this object was made, newest first."""
        live = self._client.live_executables()
        return live[: max(0, len(live) - self._before)]

    def step(self) -> tuple[Memory, int]:
        """The newest and largest of them, which is the step's (others make batches or copy a leaf), and how many
        there are of its size: how often the step was compiled."""
        figures = [memory(e.get_compiled_memory_stats(), e.hlo_modules()[0].to_string()) for e in self.new()]
        if not figures:
            raise RuntimeError("nothing was compiled")
        size = max(m.argument + m.output for m in figures)
        steps = [m for m in figures if m.argument + m.output == size]
        return steps[0], len(steps)
