"""Two results that are each computed from both of two arguments, as `a, b = a + b, a - b` does, on a CPU.

Its compiler has no order in which each can be written over one argument, and copies both of them first: a third more
memory than is needed. (Others compute both results in one loop.) If one result only is written over an argument, only
that argument is copied, and the other result can be written over the copy, as long as it is computed in step with
reading it: of `u, v = laplacian(u) + u * v, laplacian(v) + u * v` the first can be written over a copy of `v` and not
of `u`, so `v` is the one to be copied, and the second result is what is written there.

Where the program needs memory for anything else, that can have the copies' places when they have been read, and both
pairs are as good as one. And what one loop or one `cond` makes of several arguments mostly does not cross
(`Temporaries.apart`, `may_cross`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from pytc.passes.reads import Reads
from pytc.passes.temporaries import Temporaries
from pytc.program import Alias
from pytc.set_bits import set_bits

_FEW = 8
"""So many pairs that cross one are looked at without asking first whether any of them can do."""


def uncrossed(
    pairs: Sequence[Alias], pair_of: Callable[[int, int], Alias], read: Reads, memory: Temporaries
) -> list[Alias]:
    """`pairs`, which are of one type, with one in place of each two that need each other's input.

    `pair_of` makes a pair of an input and an output. Takes time linear in the pairs that read each other's inputs, but
    for what one step makes apart. Where these are many, those are not looked at whose loops cannot read all temporaries
    between them.
    """
    left = {pair.output: pair for pair in pairs}
    unsure = sum(1 << pair.output for pair in pairs if memory.is_read_before(pair))  # and those that have been changed

    @functools.cache
    def most_read() -> int:
        return max(len(memory.read_by(pair.output)) for pair in pairs)

    # The one that is made last is kept as it is, if there is a choice: mostly it is written when the other has been.
    for output in sorted(left, key=lambda output: memory.flow.outputs[output] or 0, reverse=True):
        crossing = _crossing(output, left, unsure, read, memory)
        if len(crossing) > _FEW and len(memory.read_by(output)) + most_read() < len(memory.all):
            continue
        for other in crossing:
            if not memory.may_cross(left[output], other):
                continue
            if kept := _one_of(left[output], other, pair_of, memory):
                del left[output], left[other.output]
                left[kept.output] = kept
                unsure |= 1 << kept.output
                break
    return sorted(left.values(), key=lambda pair: pair.input)


def _crossing(output: int, pairs: Mapping[int, Alias], unsure: int, read: Reads, memory: Temporaries) -> list[Alias]:
    """Those of `pairs` (by output) whose outputs need the input of this output's pair, as it needs theirs; but not
    those that one step makes apart, if their pairs are what it is sure of."""
    pair = pairs.get(output)
    needed_by = set_bits(read.read_to_write[pair.input] & ~(memory.apart(pair) & ~unsure)) if pair else []
    others = [pairs[other] for other in needed_by if other in pairs and other != output]
    return [other for other in others if read.read_to_write[other.input] >> output & 1]


def _one_of(pair: Alias, other: Alias, pair_of: Callable[[int, int], Alias], memory: Temporaries) -> Alias | None:
    """The pair to keep: one of these, or of the same two the other way round, over whose copy the other output can be
    written."""
    # Preferably one whose own loop does not read its input at other places, which would take a copy by itself.
    ways = sorted(
        [
            (pair, other.output),
            (other, pair.output),
            (pair_of(pair.input, other.output), pair.output),
            (pair_of(other.input, pair.output), other.output),
        ],
        key=lambda way: way[0].copied,
    )
    kept = next((kept for kept, output in ways if memory.can_be_written_over_the_copy(output, kept)), None)
    return None if kept is None or memory.has_others([pair.output, other.output], kept.copied) else kept
