"""Whole programs around a compiled function: what is let go of is reused, and whatever can still be read is intact.

The callers have no asserts: pytest's look into `locals()`, which rightly stops every donation. Each returns the
arrays that it can still read; they must be those that the same caller gets with `jax.jit`.
"""

from __future__ import annotations

import functools
import gc
import queue
import threading
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc

STEPS = 5


def body(state, batch):
    return jax.tree.map(lambda x: x * 1.5 + batch, state)


def init():
    return {"w": jnp.arange(6.0), "n": jnp.ones((2, 2))}


# -- callers that can still read an old state -------------------------------------------------------------------------


def another_name(step):
    state = init()
    first = state
    for i in range(STEPS):
        state = step(state, float(i))
    return first, state


def a_list(step):
    state, history = init(), []
    for i in range(STEPS):
        history.append(state["w"])
        state = step(state, float(i))
    return history, state


def a_closure(step):
    state = init()

    def look():
        return state

    seen = []
    for i in range(STEPS):
        new = step(state, float(i))
        seen.append(look()["w"] + 0)
        state = new
    return seen, state


def a_default_argument(step):
    state = init()

    def look(kept=state):
        return kept

    for i in range(STEPS):
        state = step(state, float(i))
    return look(), state


def an_attribute(step):
    trainer = types.SimpleNamespace(state=init())
    trainer.best = trainer.state
    for i in range(STEPS):
        trainer.state = step(trainer.state, float(i))
    return trainer.best, trainer.state


def an_exception_handler(step):
    state = init()
    try:
        for i in range(STEPS):
            state = step(state, float(i))
            if i == 3:
                raise KeyError
    except KeyError:
        return state
    return None


def a_handler_of_the_call(step):
    state, seen = init(), []
    for i in range(STEPS):
        try:
            state = step(state, float(i) if i != 2 else "no number")
        except TypeError:
            seen.append(state["w"] + 0)
    return seen, state


def a_finally(step):
    old = state = init()
    try:
        state = step(state, 1.0)
    finally:
        total = old["w"].sum()
    return total, state


def a_generator(step):
    def states():
        state = init()
        while True:
            yield state
            state = step(state, 1.0)

    running, seen = states(), []
    for _ in range(STEPS):
        seen.append(next(running))
    return seen


def a_queue(step):
    waiting = queue.Queue()
    state = init()
    for i in range(STEPS):
        waiting.put(state)
        state = step(state, float(i))
    return [waiting.get() for _ in range(STEPS)], state


def another_thread(step):
    state, go, done, seen = init(), threading.Event(), threading.Event(), []

    def read(state):
        go.wait(20)
        seen.append(state["w"] + 1)
        done.set()

    thread = threading.Thread(target=read, args=(state,))
    thread.start()
    for i in range(STEPS):
        state = step(state, float(i))
    go.set()
    done.wait(20)
    thread.join()
    return seen, state


def a_weak_reference(step):
    state = init()
    watched = weakref.ref(state["w"])
    new = step(state, 1.0)
    still = watched()
    return (None if still is None else still + 0), new


def c_code_that_uses_the_argument_after_the_call(step):
    kept = list(filter(lambda s: step(s, 1.0) is not None, (init() for _ in range(3))))
    mapped = list(map(functools.partial(step, batch=2.0), kept))
    return kept, mapped, functools.reduce(lambda s, b: step(s, b), [1.0, 2.0], init())


def the_same_buffer(step):
    state = init()
    other = jax.device_put(state["w"], state["w"].devices().pop())
    shard = state["n"].addressable_data(0)
    new = step(state, 1.0)
    return other, shard, new


def a_numpy_view(step):
    state = init()
    view = np.asarray(state["w"])
    new = step(state, 1.0)
    newer = step(new, 1.0)
    return jnp.asarray(view.copy()), newer


def a_helper_whose_caller_keeps(step):
    def helper(state):
        return step(state, 1.0)

    state = init()
    new = helper(state)
    return state["w"] + 0, new


SWAP = """
def helper(state):
    state = step(state, 1.0)

seen = []
for _ in range(4):
    old = init()
    new = helper(old)
    old, new = new, old
    seen.append(new["w"] + 0)
"""


def globals_swapped_right_behind_the_call(step):
    space = {"step": step, "init": init}
    exec(compile(SWAP, "<swap>", "exec"), space)
    return space["seen"], space["new"]


def introspection(step):
    state = init()
    for i in range(STEPS):
        new = step(state, float(i))
        old = locals()["state"]["w"] + 0
        state = new
    return old, state


def a_cycle_and_a_collection(step):
    state, ring = init(), []
    ring.append((ring, state))
    for i in range(STEPS):
        state = step(state, float(i))
        gc.collect()
    return ring[0][1], state


KEPT = [
    another_name,
    a_list,
    a_closure,
    a_default_argument,
    an_attribute,
    an_exception_handler,
    a_handler_of_the_call,
    a_finally,
    a_generator,
    a_queue,
    another_thread,
    a_weak_reference,
    c_code_that_uses_the_argument_after_the_call,
    the_same_buffer,
    a_numpy_view,
    a_helper_whose_caller_keeps,
    globals_swapped_right_behind_the_call,
    introspection,
    a_cycle_and_a_collection,
]


@pytest.mark.parametrize("caller", KEPT, ids=lambda c: c.__name__)
def test_whatever_can_be_read_is_intact(caller):
    expected = caller(jax.jit(body))
    step = pytc.compile(body)
    for _ in range(3):
        got = caller(step)
        jax.tree.map(np.testing.assert_array_equal, got, expected)


# -- callers that let go ----------------------------------------------------------------------------------------------


class Trainer:
    def __init__(self, step):
        self.step, self.state = step, init()

    def train_step(self, batch):
        self.state = self.step(self.state, batch)


def a_local(step):
    state = init()
    for i in range(STEPS):
        state = step(state, float(i))
    return state


def keywords(step):
    state = init()
    for i in range(STEPS):
        state = step(batch=float(i), state=state)
    return state


def attribute_of_an_object(step):
    trainer = Trainer(step)
    for i in range(STEPS):
        trainer.train_step(float(i))
    return trainer.state


def item_of_a_dictionary(step):
    run = {"state": init()}
    for i in range(STEPS):
        run["state"] = step(run["state"], float(i))
    return run["state"]


def through_a_helper(step):
    def helper(state, batch):
        return step(state, batch)

    state = init()
    for i in range(STEPS):
        state = helper(state, float(i))
    return state


def fresh_temporary(step):
    state = init()
    for i in range(STEPS):
        state = step(step(state, float(i)), 0.0)
    return state


def with_a_handler_that_does_not_read(step):
    state = init()
    for i in range(STEPS):
        try:
            state = step(state, float(i))
        except ValueError:
            return None
    return state


def in_a_generator(step):
    def run():
        state = init()
        for i in range(STEPS):
            state = step(state, float(i))
            yield None
        yield state

    return list(run())[-1]


LET_GO = [
    a_local,
    keywords,
    attribute_of_an_object,
    item_of_a_dictionary,
    through_a_helper,
    fresh_temporary,
    with_a_handler_that_does_not_read,
    in_a_generator,
]


@pytest.mark.parametrize("caller", LET_GO, ids=lambda c: c.__name__)
def test_what_is_let_go_of_is_reused_from_the_second_call_on(caller):
    expected = caller(jax.jit(body))
    step = pytc.compile(body)
    for _ in range(2):
        jax.tree.map(np.testing.assert_array_equal, caller(step), expected)
    sites = step.explain().sites
    assert sum(site.copied_calls for site in sites) <= 1
    assert all(site.donated == 2 for site in sites)
