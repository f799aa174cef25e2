"""What strange programs are made of: a container, and something that looks when it dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


class Last:
    """Looks when it dies."""

    def __init__(self, look: Callable[[], None]):
        self.look = look

    def __del__(self) -> None:
        self.look()


def capturing(look: Callable[[], None]) -> Callable[[], Last]:
    """A function that has captured something that looks when it dies."""
    last = Last(look)
    return lambda: last


class LastOfNothing(Last):
    """The same, with nothing under any key."""

    def __getitem__(self, key: Any) -> None:
        return None


def looking_at(stub: Any, box: Any) -> Callable[[], None]:
    """Reads `box.a`; what is raised in a destructor would not be seen, so it is noted in `stub.seen`."""

    def look() -> None:
        stub.seen.append(box.a.is_deleted())

    return look


@jax.tree_util.register_pytree_node_class
class Node:
    """A tree of one branch."""

    def __init__(self, x: Any):
        self.x = x

    def tree_flatten(self) -> Any:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Node:
        return cls(*children)
