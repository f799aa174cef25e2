"""What a program's flat function takes: every traced leaf (an array at several leaves once), then the captured arrays.

Leaves that the program no longer reads are passed all the same: `jax.jit` looks only at their types, and does not
transfer them; so its own dispatch, in C++, is what notices that a call has another signature. PRNG keys are passed as
their bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pytc.jax_compat.arrays import home_of, place_at, unplaced
from pytc.jax_compat.keys import bits_of, bits_sharding, key_types
from pytc.jax_compat.layouts import memory_of
from pytc.jax_compat.running import config
from pytc.picking import picker
from pytc.program import Program


class Arguments:
    """The arguments of the flat function of a program, by their places."""

    def __init__(self, program: Program, *, keep_unused: bool) -> None:
        numbers = program.passed
        place = {leaf: i for i, leaf in enumerate(numbers)}
        captured = [i for i, given in enumerate(program.inputs) if given.leaf is None]
        place_of_captured = {i: len(numbers) + number for number, i in enumerate(captured)}
        self.leaves = [program.leaves[i] for i in numbers]
        """The leaves that are passed."""
        self.captured = [program.inputs[i].captured for i in captured]
        """The arrays that are passed after these."""
        self.place_of_input = [
            place_of_captured[i] if given.leaf is None else place[given.leaf] for i, given in enumerate(program.inputs)
        ]
        """For each invar of the program, which of the arguments it is."""
        self.memories = [
            None if given.leaf is None else memory_of(program.leaves[given.leaf].placed) for given in program.inputs
        ]
        """For each invar the kind of memory that its leaf is in; None where it is captured."""
        self.keys = key_types([leaf.aval for leaf in self.leaves] + [program.in_avals[i] for i in captured])
        """Those that are bits of PRNG keys."""
        self._take = None if numbers == tuple(range(len(program.leaves))) else picker(numbers)
        read = (place[given.leaf] for given in program.inputs if given.leaf is not None)
        self._read = range(len(numbers)) if keep_unused else sorted(read)
        """Those whose devices decide where the program runs: `jax.jit` leaves out what nothing reads, unless it is told
        not to."""
        self._captured_at: dict[Any, list[Any]] = {}
        """The captured ones, or copies of them, by where the committed arguments of calls are (`home_of`), or by the
        default device of calls without such."""

    def __len__(self) -> int:
        return len(self.leaves) + len(self.captured)

    @property
    def paths(self) -> list[str]:
        """What each is called."""
        return [leaf.path for leaf in self.leaves] + [f"captured[{number}]" for number in range(len(self.captured))]

    @property
    def requested(self) -> tuple[Any, ...] | None:
        """The shardings that are asked for; None where none is."""
        wanted = [leaf.requested for leaf in self.leaves]
        if all(each is None for each in wanted):
            return None
        of_bits = (bits_sharding(s, self.keys[k].more) if k in self.keys else s for k, s in enumerate(wanted))
        return (*of_bits, *(None for _ in self.captured))

    def given(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The arguments of a call: of all its leaves, those that are passed, and the captured arrays where these
        are."""
        given = leaves if self._take is None else self._take(leaves)
        if self.captured or self.keys:
            given = [*given, *(self.captured and self._captured_beside(given))]
            for k in self.keys:
                given[k] = bits_of(given[k])
        return given

    def _captured_beside(self, given: Sequence[Any]) -> list[Any]:
        """What the program captured, on the devices of the committed arguments among `given` that it reads, or where
        JAX puts things if there are none."""
        if jax.device_count() == 1:
            return self.captured
        home = home_of(given[k] for k in self._read)
        where = config.jax_default_device if home is None else home
        if where not in self._captured_at:
            self._captured_at[where] = [
                unplaced(value) if home is None else place_at(value, home) for value in self.captured
            ]
        return self._captured_at[where]

    def with_keys(self, values: Sequence[Any]) -> list[Any]:
        """The arguments, as the flat function has them while it is traced, with keys in the places of their bits."""
        return [self.keys[k].wrap(value) if k in self.keys else value for k, value in enumerate(values)]

    def of_inputs(self, values: Sequence[Any]) -> list[Any]:
        """Of the arguments, what each invar of the program is."""
        return [values[place] for place in self.place_of_input]
