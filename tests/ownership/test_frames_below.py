"""Somebody who has the frame of a function beneath the caller's, pytc's own, has the caller's by `f_back`."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp

import pytc

KEPT: list[Any] = []


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, x: Any) -> None:
        self.x = x

    def tree_flatten(self) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_back.f_code is not use.__code__:
            frame = frame.f_back
        KEPT.append(frame)
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Node:
        node = object.__new__(cls)
        (node.x,) = children
        return node


step = pytc.compile(lambda node: jax.tree.map(lambda x: x + 1, node))


def use() -> Any:
    node = Node(jnp.zeros(1000))
    out = step(node)
    looked_at()
    return out


def looked_at() -> None:
    for frame in KEPT:
        if frame.f_back is not None and "node" in (variables := frame.f_back.f_locals):
            assert float(variables["node"].x[0]) == 0


def test_a_tree_flatten_that_keeps_the_frame_of_what_called_it() -> None:
    for _ in range(6):
        KEPT.clear()
        use()
        assert KEPT
