"""Somebody who has a part of the call itself: the frame of a function beneath the caller's, which is pytc's own, has
the caller's by `f_back`; the tuple, the dictionary and the list of the arguments have the arrays; and one object has
all of these."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.ownership import Call

KEPT: list[Any] = []
ARMED: list[Callable[[Any], Any]] = []
PLAIN = pytc.compile(lambda x: x + 1)
STEP = pytc.compile(lambda node, static=None: jax.tree.map(lambda x: x + 1, node), static_argnames="static")

BOTH = pytc.compile(lambda x, y, static: (x + 1, y), static_argnames="static")


class Static:
    def __init__(self, take: Callable[[Any], None]) -> None:
        self.take = take

    def __hash__(self) -> int:
        self.take(self)
        return 1

    def __eq__(self, other: object) -> bool:
        return type(other) is Static


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, x: Any, take: Callable[[Any], None]) -> None:
        self.x = x
        self.take = take

    def tree_flatten(self) -> Any:
        self.take(self)
        return (self.x,), self.take

    @classmethod
    def tree_unflatten(cls, take: Any, children: Any) -> Node:
        node = object.__new__(cls)
        (node.x,) = children
        node.take = take
        return node


def nothing(_: Any) -> None:
    pass


def beneath(caller: str) -> Any:
    """The frame of the function that `caller` has called; None if it has called none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_back.f_code.co_name != caller:
        frame = frame.f_back
    return frame if frame.f_back is not None else None


def keep_the_frame(_: Any) -> None:
    KEPT.append(beneath("with_a_frame"))


def keep_the_tuple(part: Any) -> None:
    KEPT.extend(each for each in gc.get_referrers(part) if type(each) is tuple)


def keep_the_dictionary(part: Any) -> None:
    KEPT.extend(each for each in gc.get_referrers(part) if type(each) is dict and "static" in each and "node" in each)


def keep_the_lists(part: Any) -> None:
    """Of lists in which the static argument is a leaf. (JAX has it in an object that hashes as it does.)"""
    KEPT.extend(
        each
        for holder in gc.get_referrers(part)
        for each in gc.get_referrers(holder)
        if type(each) is list and any(isinstance(leaf, jax.Array) for leaf in each)
    )


def keep_the_variables(_: Any) -> None:
    if (frame := beneath("with_its_variables")) is not None:
        KEPT.extend(frame.f_locals.get(name) for name in ("args", "kwargs"))


def keep_the_call(_: Any) -> None:
    if (frame := beneath("with_the_call")) is not None:
        KEPT.append(frame.f_locals.get("call"))


def keep_what_lands(_: Any) -> None:
    if (frame := beneath("with_what_lands")) is not None:
        KEPT.append(frame.f_locals.get("landed"))


def with_a_frame() -> None:
    node = Node(jnp.zeros(1000), keep_the_frame)
    STEP(node)
    for frame in KEPT:
        if frame is not None and "node" in (variables := frame.f_back.f_locals):
            assert float(variables["node"].x[0]) == 0


def with_a_tuple() -> None:
    STEP(Node(jnp.zeros(1000), keep_the_tuple))
    read_all()


def with_a_dictionary() -> None:
    STEP(node=jnp.zeros(1000), static=Static(keep_the_dictionary))
    read_all()


def with_a_list() -> None:
    STEP(jnp.zeros(1000), static=Static(keep_the_lists))
    read_all()


def with_its_variables() -> None:
    STEP(jnp.zeros(1000), static=Static(keep_the_variables))
    read_all()


def with_the_call() -> None:
    STEP(jnp.zeros(1000), static=Static(keep_the_call))
    for call in [call for call in KEPT if call is not None]:
        KEPT.extend((call.args, call.kwargs, call.leaves))
        assert call.frame is sys._getframe()
        KEPT.remove(call)
    read_all()


def with_what_lands() -> None:
    kept = jnp.zeros(1000)
    BOTH(jnp.zeros(1000), kept, static=Static(keep_what_lands))
    for landed in KEPT:
        if landed:
            _, handed_back, _ = landed
            assert [float(each[0]) for each in handed_back] == [0]


def read_all() -> None:
    parts = [part for part in KEPT if part is not None]
    for part in parts:
        for leaf in part.values() if type(part) is dict else part:
            array = leaf.x if isinstance(leaf, Node) else leaf
            if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
                assert float(array[0]) == 0


@pytest.mark.parametrize(
    "use",
    [with_a_frame, with_a_tuple, with_a_dictionary, with_a_list, with_its_variables, with_the_call, with_what_lands],
)
def test_nothing_that_is_in_it_is_taken_over(use: Any) -> None:
    for _ in range(6):
        KEPT.clear()
        use()
        assert KEPT
    KEPT.clear()


class Told(np.ndarray):
    """What a dying array of JAX's lets go of when JAX next gets to it: in the midst of the proof."""

    def __del__(self) -> None:
        if ARMED and (frame := beneath("with_a_slot")) is not None:
            KEPT.append(ARMED.pop()(frame))


def with_a_slot(take: Callable[[Any], Any], call: int) -> None:
    holder = types.SimpleNamespace(x=jnp.zeros(1000))
    for n in range(6):
        told = jax.block_until_ready(jax.device_put(np.ones(4).view(Told)))  # else the transfer has it for a while
        if n == call:
            ARMED.append(take)
        del told
        holder.x = PLAIN(holder.x)
    ARMED.clear()


@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize(
    "take", [lambda frame: frame, lambda frame: frame.f_locals["args"], lambda frame: frame.f_locals["call"]]
)
def test_nor_what_a_finaliser_takes_while_it_is_proven(take: Callable[[Any], Any], call: int) -> None:
    KEPT.clear()
    with_a_slot(take, call)
    for part in KEPT:
        (array,) = part if type(part) is tuple else part.args if type(part) is Call else part.f_locals["args"]
        assert float(array[0]) == call
    assert KEPT
    KEPT.clear()


def test_where_nobody_has_one_they_are() -> None:
    node, array = Node(jnp.zeros(1000), nothing), jnp.zeros(1000)
    moved = []
    for _ in range(4):
        before = node.x.unsafe_buffer_pointer(), array.unsafe_buffer_pointer()
        node, array = STEP(node), STEP(array, static=Static(nothing))
        after = node.x.unsafe_buffer_pointer(), array.unsafe_buffer_pointer()
        moved.append(before != after)
    assert moved[1:] == [False] * 3
