"""What the proof may assume of a call: what comes of it, and what may happen until then."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from jax.tree_util import PyTreeDef

from pytc.jax_compat.trees import nodes
from pytc.ownership.bytecode.lengths import Lengths


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is known about the outcome of a call before it happens."""

    calls_python: bool = True
    """Whether the program may call back into Python while it runs."""
    lengths: Lengths = None
    """The lengths of the tuples and lists in the result."""
    atomic: bool = False
    """Whether a call that raises anything, an interrupt included, has donated nothing."""
    classes: tuple[type, ...] | None = None
    """The classes of the containers in the result, if they are known."""
    static: tuple[Any, ...] = dataclasses.field(default=(), compare=False)
    """Objects that the compiled function holds and that may also be in its arguments: static leaves and the like."""
    doubt: str = dataclasses.field(default="", compare=False)
    """What may raise as it puts the result together, in words; empty if nothing may."""
    made: int = 0
    """How many objects the result is of that the garbage collector counts, at the most."""

    @functools.cached_property
    def unchanging(self) -> frozenset[int]:
        """The ids of these objects, and of what is in tuples among them (named ones, too), which cannot be changed."""
        found: list[Any] = []
        level = [*self.static]
        while level:
            found += level
            level = [part for each in level if issubclass(type(each), tuple) for part in tuple.__iter__(each)]
        return frozenset(map(id, found))


def classes_of(tree: PyTreeDef) -> tuple[type, ...]:
    """The classes of the containers in a result with this tree."""
    return tuple({id(kind): kind for kind, _ in nodes(tree)}.values())  # some cannot be hashed
