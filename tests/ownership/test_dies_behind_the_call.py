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


DATA = np.ones((4, N), np.float32)


class Trainer:
    """It has the data, too."""

    def __init__(self, data):
        self.a, self.seen, self.data = jnp.zeros(N), [], data

    def fit_to_a_global(self, step):
        self.a = step(self.a, DATA)

    def fit_to_an_attribute(self, step):
        for _ in range(1):
            self.a = step(self.a, self.data)

    def fit_by_a_helper(self, step):
        def helper(state, data):
            return step(state, data)

        self.a = helper(self.a, DATA)

    def fit_to_a_pair(self, step):
        self.a = step(self.a, (DATA, {"again": DATA}))


@pytest.mark.parametrize("name", [name for name in vars(Trainer) if name.startswith("fit")])
def test_data_that_has_a_weak_reference_and_lives_on(name):
    """JAX has one to NumPy data that a compiled function has captured."""
    evaluate = jax.jit(lambda x: DATA @ x)
    evaluate(jnp.zeros(N))
    assert weakref.getweakrefs(DATA)
    step = pytc.compile(lambda x, data: x + jax.tree.leaves(data)[0].sum(0))
    trainer = Trainer(DATA)
    pointers = set()
    for _ in range(6):
        getattr(trainer, name)(step)
        pointers.add(trainer.a.unsafe_buffer_pointer())
    assert trainer.a[0] == 24
    assert len(pointers) <= 2


def test_data_in_a_file_that_is_mapped_into_memory(tmp_path):
    np.save(tmp_path / "data.npy", np.ones((24, N), np.float32))
    data = np.load(tmp_path / "data.npy", mmap_mode="r")
    step = pytc.compile(lambda x, data: x + data.sum(0))
    box = new_box()
    pointers = set()
    for n in range(6):
        box.a = step(box.a, data[4 * n : 4 * n + 4])
        pointers.add(box.a.unsafe_buffer_pointer())
    assert box.a[0] == 24
    assert len(pointers) <= 2


def watched(box):
    data = np.ones(4)  # JAX makes one of 32 bits of it, and lets go of this one at once
    weakref.finalize(data, look_at(box))
    return data


def from_a_call(box, step):
    box.a = step(box.a, watched(box))


def from_a_variable_that_is_overwritten(box, step):
    data = watched(box)
    data, box.a = (step(box.a, data), None)[0], step(box.a, data)


def from_a_global_that_is_overwritten(box, step):
    global GIVEN
    GIVEN = watched(box)
    GIVEN, box.a = both(box.a, GIVEN)


def from_an_attribute_that_is_overwritten(box, step):
    box.data = watched(box)
    box.data, box.a = both(box.a, box.data)


def from_an_object_that_is_overwritten(box, step):
    trainer = Trainer(watched(box))
    trainer, box.a = both(box.a, trainer.data)


def from_an_object_that_ends_with_a_helper(box, step):
    def helper(trainer):
        return step(box.a, trainer.data)

    box.a = helper(Trainer(watched(box)))


def from_an_object_in_a_helper(box, step):
    def helper():
        trainer = Trainer(watched(box))
        return step(box.a, trainer.data)

    box.a = helper()


def from_a_list_that_is_overwritten(box, step):
    data = [watched(box)]
    data, box.a = both(box.a, (data,))


def from_an_item_that_is_overwritten(box, step):
    data = {"inner": {"data": watched(box)}}
    data["inner"], box.a = both(box.a, data["inner"])


def from_an_attribute_that_has_it_inside(box, step):
    box.data = {"data": watched(box)}
    box.data, box.a = both(box.a, box.data)


def from_a_list_that_ends_with_a_helper(box, step):
    def helper(data):
        return step(box.a, (data,))

    box.a = helper([watched(box)])


GIVEN = None
both = pytc.compile(lambda x, data: (x[:3], x + jax.tree.leaves(data)[0].sum(0)))


@pytest.mark.parametrize(
    "give",
    [
        *(from_a_call, from_a_variable_that_is_overwritten, from_a_global_that_is_overwritten),
        *(from_an_attribute_that_is_overwritten, from_an_object_that_is_overwritten),
        *(from_an_object_that_ends_with_a_helper, from_an_object_in_a_helper, from_a_list_that_is_overwritten),
        *(from_an_item_that_is_overwritten, from_an_attribute_that_has_it_inside, from_a_list_that_ends_with_a_helper),
    ],
)
def test_data_that_has_a_weak_reference_and_dies(give):
    box = new_box()
    step = pytc.compile(lambda x, data: x + jax.tree.leaves(data)[0].sum(0))
    for _ in range(12):
        give(box, step)
    assert box.seen
    assert not any(box.seen)
