"""The leaves that outlive a call for reasons that the code around it shows: for deciding what to compile."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import jax
from jax.tree_util import all_leaves, tree_leaves

from pytc.arguments.leaves import ends
from pytc.ownership.call import Call
from pytc.ownership.guesses.staying import twins
from pytc.ownership.guesses.surviving import Surviving, surviving
from pytc.ownership.outcome import Outcome
from pytc.ownership.words import holders


def survivors(call: Call, outcome: Outcome) -> Surviving:
    """The leaves (indices) that outlive the call for reasons that its site alone shows, without counting.

    `params` in `grads = grad_fn(params, batch)` where the variable is read later; an attribute that the next
    instructions do not overwrite. A leaf that is held for reasons that may differ at the next call is not among them.
    For deciding what to compile; nothing is proven by it.
    """
    if holders.explain_interpreter() is not None:
        return Surviving(frozenset(), frozenset())
    leaves, roots = call.leaves, [*call.args, *call.kwargs.values()]
    numbers: dict[int, frozenset[int]] = {}
    for i, leaf in enumerate(leaves):
        numbers[id(leaf)] = numbers.get(id(leaf), frozenset()) | {i}
    parts = dict(numbers)
    for value in _nodes(roots, ends(leaves)):
        parts[id(value)] = frozenset().union(*(numbers.get(id(leaf), frozenset()) for leaf in tree_leaves(value)))
    arrays = frozenset(i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array))
    alike = twins(call) if len(numbers) < len(leaves) else []
    seen, expected = surviving(call.frame, roots, parts, alike, outcome)
    return Surviving(seen & arrays, expected & arrays)


def _nodes(roots: Sequence[Any], ends: Set[int]) -> list[Any]:
    """The containers of the arguments, as far down as plain containers go; `ends` has the ids of what is none."""
    nodes = []
    ahead = list(roots)
    while ahead:
        value = ahead.pop()
        if id(value) not in ends and not all_leaves([value]):
            nodes.append(value)
            if type(value) in (tuple, list, dict):
                ahead.extend(value.values() if type(value) is dict else value)
    return nodes
