"""What a program's flat function returns: the computed outputs, in such an order that JAX makes the program's pairs
(`order`). And what the caller gets of these: the tree of the result, with what is handed back and what is no array.

PRNG keys are returned as their bits. Bits are arrays like any other, whose owners can be counted; and `jax.jit` would
make keys of a result's bits by Python code of its own, with the arguments gone already, where here that is done once
the results have landed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pytc.emit.order import order_of
from pytc.jax_compat.keys import bits_sharding, key_types
from pytc.picking import picker
from pytc.program import Alias, Computed, Kept, Passed, Program


class Results:
    """The results of the flat function of a program."""

    def __init__(self, program: Program, aliased: Sequence[Alias]) -> None:
        """`aliased` are the program's pairs in the order of their arguments."""
        self._program = program
        self.order = order_of(program, aliased)
        """The program's outputs in the order in which they are returned."""
        self.keys = key_types(program.out_avals[i] for i in self.order)
        """Those that are bits of PRNG keys."""
        handed_back = list(dict.fromkeys(o.origin.leaf for o in program.outputs if isinstance(o.origin, Passed)))
        self.hand_back = picker(handed_back)
        """Picks, of the leaves of the arguments, those that the result has as they are."""
        self._arrange = self._arrangement(handed_back)
        self._unflatten: Callable[[Sequence[Any]], Any] = program.out_tree.unflatten
        paired = {alias.output for alias in aliased}
        self.marks = marks([outvar in paired for outvar in self.order])
        """The last result, and the last and the first that took over an argument's memory; each only once."""
        self.marked = len(self.order) - self.marks[-1] if self.marks else 0
        """How many results there are from the first that took over an argument's memory to the last."""
        self.pick_marked = picker(self.marks)

    @property
    def requested(self) -> list[Any] | None:
        """The shardings that are asked for; None where none is."""
        by_outvar = {o.origin.index: o.requested for o in self._program.outputs if isinstance(o.origin, Computed)}
        if all(wanted is None for wanted in by_outvar.values()):
            return None
        wanted = [by_outvar.get(i) for i in self.order]  # without `prune` there may be others
        return [bits_sharding(s, self.keys[k].more) if k in self.keys else s for k, s in enumerate(wanted)]

    def returned(self, outputs: Sequence[Any]) -> list[Any]:
        """What the flat function returns, as it is traced, of the program's outputs."""
        results = [outputs[i] for i in self.order]
        return [jax.random.key_data(r) if k in self.keys else r for k, r in enumerate(results)]

    def unflatten(self, results: Sequence[Any], handed_back: Sequence[Any]) -> Any:
        """What the caller gets, of what the flat function returned and what `hand_back` picked."""
        return self._unflatten(results if self._arrange is None else self._arrange(results, handed_back))

    def _arrangement(self, passed: Sequence[int]) -> Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] | None:
        """A function that puts the leaves of the result together, of the flat function's results and the leaves that
        are handed back, `passed` (keys as their bits). None where they are the flat function's results as they are."""
        outputs = self._program.outputs
        position = {outvar: i for i, outvar in enumerate(self.order)}
        place = {leaf: len(position) + k for k, leaf in enumerate(passed)}
        kept = [o.origin.value for o in outputs if isinstance(o.origin, Kept)]
        next_kept = itertools.count(len(position) + len(passed))
        wanted = []
        for output in outputs:
            match output.origin:
                case Computed(index):
                    wanted.append(position[index])
                case Passed(leaf):
                    wanted.append(place[leaf])
                case Kept():
                    wanted.append(next(next_kept))
        pick = picker(wanted)
        passed_keys = key_types(self._program.leaves[i].aval for i in passed)
        keys = [*self.keys.items(), *((len(position) + k, key_type) for k, key_type in passed_keys.items())]
        if keys:

            def with_keys(results: Sequence[Any], handed_back: Sequence[Any]) -> Sequence[Any]:
                values = [*results, *handed_back, *kept]
                for k, key_type in keys:
                    values[k] = key_type(values[k])
                return pick(values)

            return with_keys
        if passed or kept:
            return lambda results, handed_back: pick([*results, *handed_back, *kept])
        return None if wanted == list(range(len(position))) else lambda results, _: pick(results)


def marks(paired: Sequence[bool]) -> list[int]:
    """Of results, of which `paired` says whether each took over an argument's memory, those (positions) by which
    `ownership.executed` finds all of them again in the list of all arrays: the last one, and the last and the first
    that did."""
    last = len(paired) - 1
    places = [k for k, is_paired in enumerate(paired) if is_paired] or [0]
    return list(dict.fromkeys([last, places[-1], places[0]])) if paired else []
