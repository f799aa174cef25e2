"""What of pytc's own, or made by JAX for a call, could die or be told of behind it, before the result is stored.

Each program keeps its state in an attribute, and has something look at that as it dies, or as it is told of anything.
"""

from __future__ import annotations

import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc

N = 4096


def new_box():
    return types.SimpleNamespace(a=jnp.zeros(N), seen=[])


def look_at(box):
    return lambda *_: box.seen.append(box.a.is_deleted())


MADE = {
    "array": lambda: jnp.full(3, 2.0),
    "large array": lambda: jnp.full(N, 2.0),
    "NumPy's": lambda: np.full(3, 2.0, np.float32),
    "a large one of NumPy's": lambda: np.full(N, 2.0, np.float32),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_a_leaf_that_tree_flatten_makes(make):
    box = new_box()

    @jax.tree_util.register_pytree_node_class
    class Config:
        def tree_flatten(self):
            made = make()
            weakref.finalize(made, look_at(box))
            return (made,), None

        @classmethod
        def tree_unflatten(cls, _, __):
            return cls()

    step, config = pytc.compile(lambda x, _: x + 1), Config()
    for _ in range(12):
        box.a = step(box.a, config)
    assert box.seen
    assert not any(box.seen)


def test_a_leaf_that_tree_flatten_makes_and_nobody_watches():
    """The state is taken over beside it all the same."""
    box = new_box()

    @jax.tree_util.register_pytree_node_class
    class Config:
        def tree_flatten(self):
            return (jnp.full(3, 2.0), 0.5), None

        @classmethod
        def tree_unflatten(cls, _, __):
            return cls()

    def run():
        for _ in range(6):
            places.append(box.a.unsafe_buffer_pointer())
            box.a = step(box.a, config)

    step, config, places = pytc.compile(lambda x, _: x + 1), Config(), []
    run()
    assert len({*places[1:]}) == 1


def called_from_code_of_its_own(box, step, x):
    """One call from code that nothing but the call site then refers to; a look is taken as that dies."""
    space = {}
    exec("def call(step, x):\n    return step(x)", space)
    box.watching = [*getattr(box, "watching", ()), weakref.ref(space["call"].__code__, look_at(box))]
    space.pop("call")(step, x)


def test_a_program_that_is_spent():
    box = new_box()
    step = pytc.compile(lambda x: x + 1)

    def run():
        for _ in range(8):
            box.a = step(box.a)

    run()
    called_from_code_of_its_own(box, step, jnp.zeros(N))
    jax.clear_caches()
    box.a = jnp.zeros(2 * N)
    run()
    assert box.seen == [False]


def test_call_sites_of_a_wrapper_that_is_gone():
    box = new_box()

    def fun(x):
        return x + 1

    def by_another_wrapper():
        step = pytc.compile(fun)
        for _ in range(80):
            called_from_code_of_its_own(box, step, jnp.zeros(N))

    def run():
        for _ in range(3):
            box.a = step(box.a)

    by_another_wrapper()
    step = pytc.compile(fun)
    run()
    step = pytc.compile(lambda x: x + 1)
    run()
    box.a = jnp.zeros(2 * N)
    step = pytc.compile(fun)
    run()
    assert not any(box.seen)
