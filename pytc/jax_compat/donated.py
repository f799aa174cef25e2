"""What JAX does with arguments that are donated: how it pairs them with results, and what the lowered program says.

For JAX 0.10 to 0.12: the attributes of the lowered program's arguments.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

import jax

from pytc.jax_compat.avals import AbstractValue, held_as, is_array, nbytes


def first_come(
    donated: Iterable[tuple[int, AbstractValue]], outputs: Iterable[tuple[int, AbstractValue]]
) -> dict[int, int]:
    """From outputs to the inputs (by number, with their types) that JAX writes them into: each output in turn takes the
    first donated input that is left of its shape and dtype."""
    free: dict[Any, collections.deque[int]] = {}
    for number, aval in donated:
        if hasattr(aval, "shape"):
            free.setdefault(held_as(aval), collections.deque()).append(number)
    pairs = {}
    for output, aval in outputs:
        if hasattr(aval, "shape") and (fitting := free.get(held_as(aval))):
            pairs[output] = fitting.popleft()
    return pairs


def of_one_size(
    donated: Iterable[tuple[int, AbstractValue]], outputs: Iterable[tuple[int, AbstractValue]]
) -> dict[int, int]:
    """From outputs to the inputs that XLA may write them into, of those that `first_come` leaves: JAX tells it of
    inputs with as many elements as an output, and it takes those of as many bytes."""
    free: dict[Any, collections.deque[int]] = {}
    for number, aval in donated:
        if is_array(aval):
            free.setdefault((aval.size, nbytes(aval)), collections.deque()).append(number)
    pairs = {}
    for output, aval in outputs:
        if is_array(aval) and (fitting := free.get((aval.size, nbytes(aval)))):
            pairs[output] = fitting.popleft()
    return pairs


def given_away(lowered: jax.stages.Lowered) -> list[bool]:
    """For each argument of a lowered program whether a call deletes it: where an output is to be written into it, and
    where it is XLA's to write something into."""
    module: Any = lowered.compiler_ir()
    main = next(each for each in module.body.operations if str(each.attributes["sym_name"]) == '"main"')
    count = len(main.regions[0].blocks[0].arguments)
    if "arg_attrs" not in main.attributes:
        return [False] * count
    named = [{each.name for each in attributes} for attributes in main.attributes["arg_attrs"]]
    return [bool(names & {"tf.aliasing_output", "jax.buffer_donor"}) for names in named]
