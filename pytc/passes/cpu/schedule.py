"""In which order the loops run: breadth first, each as soon as what it reads is there. XLA's `BFScheduler`.

(A CPU's compiler wants loops that do not wait for each other to run at the same time; it does not look at memory.)

Source: `xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc` of openxla/xla.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pytc.passes.cpu.copies import Copied


def schedule(program: Copied, inputs: Sequence[int]) -> list[int]:
    """The nodes, by number, in their order. `inputs` are the values of the arguments. Takes linear time."""
    nodes = program.nodes
    waits = [len(node.reads) + (number in program.after) for number, node in enumerate(nodes)]
    followers: dict[int, list[int]] = {}
    for later, earlier in program.after.items():
        followers.setdefault(earlier, []).append(later)
    order: list[int] = []
    ready: deque[tuple[tuple[int, ...], int | None]] = deque(((value,), None) for value in inputs)
    ready.extend((node.makes, number) for number, node in enumerate(nodes) if not waits[number])
    while ready:
        values, number = ready.popleft()
        next_ones = [reader for value in values for reader in program.readers.get(value, ())]
        if number is not None:
            order.append(number)
            next_ones += followers.get(number, ())
        for reader in next_ones:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append((nodes[reader].makes, reader))
    return order
