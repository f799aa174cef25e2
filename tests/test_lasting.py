"""Leaves that are one array at first and will be several: one program serves all calls, as under `jax.jit`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.calls.lasting import parted

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


def assert_same(mine, others):
    assert jax.tree.structure(mine) == jax.tree.structure(others)
    jax.tree.map(np.testing.assert_array_equal, mine, others)


class Counting:
    """A step, compiled by `pytc.compile` and by `jax.jit`; and how many programs pytc has compiled of it."""

    def __init__(self, step, **options):
        self.compiled = pytc.compile(step, **options)
        self.by_jit = jax.jit(step)

    def programs(self):
        plans = [plan for signature in self.compiled.__pytc__.lookup for plan in signature.plans]
        return len({id(plan.emitted) for plan in plans if not plan.emitted.is_new})

    def run(self, start, calls=6):
        """The states by both, each from a `start` of its own."""
        mine, others = start(), start()
        for _ in range(calls):
            mine, others = self.compiled(mine), self.by_jit(others)
        return mine, others


def average(state):
    params = jax.tree.map(lambda w: 0.9 * w + 1.0, state["params"])
    ema = jax.tree.map(lambda e, w: 0.99 * e + 0.01 * w, state["ema"], params)
    return {"params": params, "ema": ema}


def untied():
    weights = {"w": jnp.arange(6.0), "b": jnp.ones(3)}
    return {"params": weights, "ema": weights}


def tied():
    weight = jnp.arange(6.0)
    weights = {"embed": weight, "unembed": weight}
    return {"params": weights, "ema": weights}


def delay(state):
    y, last = state
    return y + 0.1 * sum(last), [jnp.sin(y), *last[:-1]]


def delayed():
    return jnp.arange(4.0), [jnp.ones(4)] * 5


def swap(state):
    return {"params": state["ema"], "ema": state["params"] * 2.0, "steps": state["steps"] + 1}


def swapped():
    weight = jnp.arange(3.0)
    return {"params": weight, "ema": weight, "steps": jnp.zeros((), int)}


@pytest.mark.parametrize(
    ("step", "start", "arrays"),
    [(average, untied, 4), (average, tied, 2), (delay, delayed, 6), (swap, swapped, 3)],
    ids=["an average", "an average of tied weights", "a delay line", "a swap"],
)
def test_leaves_that_part_are_compiled_for_once(step, start, arrays):
    counting = Counting(step)
    mine, others = counting.run(start)
    assert_same(mine, others)
    assert counting.programs() == 1
    assert len({*map(id, jax.tree.leaves(mine))}) == arrays
    mine, others = counting.run(start, calls=3)  # once more from the beginning
    assert_same(mine, others)
    assert counting.programs() == 1


def test_what_stays_one_array_is_passed_once():
    counting = Counting(lambda state: jax.tree.map(lambda w: 0.9 * w, state))
    mine, others = counting.run(lambda: [jnp.arange(3.0)] * 3)
    assert_same(mine, others)
    (signature,) = counting.compiled.__pytc__.lookup
    assert [leaf.same_as for leaf in signature.program.leaves] == [None, 0, 0]


def test_the_first_state_is_left_as_it_is_where_it_is_held():
    counting = Counting(average)
    first = untied()
    state = counting.compiled(first)
    for _ in range(3):
        state = counting.compiled(state)
    assert_same(first, untied())
    assert_same(state, counting.run(untied, calls=4)[1])


def go_on(compiled, start, calls):
    state = start()
    for _ in range(calls):
        state = compiled(state)
    return state


def test_the_first_call_copies_an_array_as_often_as_there_will_be_more():
    compiled = pytc.compile(average)
    go_on(compiled, untied, 1)
    state = untied()
    places = {x.unsafe_buffer_pointer() for x in jax.tree.leaves(state)}
    state = compiled(state)
    after = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state)]
    assert len(places.intersection(after)) == 2
    assert sum(site.copied_calls for site in pytc.explain(compiled).sites) == 0


def test_calls_that_do_pass_one_array_each_time_get_a_program_that_takes_it_once():
    counting = Counting(lambda both: (both[0] * 2.0, both[1] * 3.0))
    for n in range(6):
        x = jnp.arange(4.0) + n
        assert_same(counting.compiled((x, x)), counting.by_jit((x, x)))
    (signature,) = counting.compiled.__pytc__.lookup
    assert [leaf.same_as for leaf in signature.program.leaves] == [None, 0]


def test_a_call_to_warm_up_is_no_reason_for_another_program():
    counting = Counting(average)
    counting.compiled(untied())
    assert_same(*counting.run(untied))
    assert counting.programs() == 1


@pytest.mark.parametrize("donate", ["auto", "all", "none"])
def test_whatever_is_donated(donate):
    counting = Counting(average, donate=donate)
    for start in (untied, tied, untied):
        assert_same(*counting.run(start))
    assert counting.programs() == 2


def test_beside_static_values_and_keys():
    @pytc.compile
    def step(state, name):
        key, other = (jax.random.split(key)[n] for n, key in enumerate(state["keys"]))
        return {"keys": [key, other], "w": state["w"] + jax.random.normal(key) + len(name)}

    for name in ("a", "bb", "a"):
        key = jax.random.key(0)
        state = {"keys": [key, key], "w": jnp.zeros(3)}
        plain = jax.jit(step.__wrapped__, static_argnums=1)
        others = state
        for _ in range(4):
            state, others = step(state, name), plain(others, name)
        assert_same(jax.tree.map(jax.random.key_data, state["keys"]), jax.tree.map(jax.random.key_data, others["keys"]))
        assert_same(state["w"], others["w"])


def test_another_wrapper_of_the_function_compiles_nothing():
    Counting(average).run(untied)
    counting = Counting(average)
    mine, others = counting.run(untied)
    assert_same(mine, others)
    assert counting.programs() <= 1


def test_an_explanation_is_of_the_program_that_runs():
    told = pytc.explain(average, untied())
    assert [given.verdict for given in told.inputs] == ["reused"] * 4
    assert "shared" in {given.verdict for given in pytc.explain(average, tied()).inputs}


def test_a_program_that_calls_python_is_as_it_was():
    def step(state):
        jax.debug.callback(lambda x: None, state["params"].sum())
        return {"params": state["params"] * 2.0, "ema": state["ema"] * 3.0}

    x = jnp.arange(3.0)
    compiled = pytc.compile(step)
    state = compiled({"params": x, "ema": x})
    np.testing.assert_array_equal(compiled(state)["ema"], x * 9.0)


RESULTS = {
    "in a part of the result": (lambda loss, state: (loss, state), True),
    "in parts of it": (lambda loss, state: {"b": state[1], "a": state[0], "loss": loss}, True),
    "deeper": (lambda loss, state: (loss, {"new": [state]}), True),
    "not at all": (lambda loss, state: loss, False),
    "one of them": (lambda loss, state: (loss, state[0]), False),
    "one array": (lambda loss, state: (loss, [state[0], state[0]]), False),
    "as it was": (lambda loss, state: (loss, None), False),
}


@pytest.mark.parametrize(("returned", "part"), RESULTS.values(), ids=RESULTS)
def test_which_result_comes_in_place_of_which_argument(returned, part):
    def step(state, batch):
        new = [state[0] * 2.0, state[1] + batch.sum()]
        return returned(new[0].sum(), new)

    x = jnp.arange(3.0)
    program = pytc.compile(step).__pytc__.planner.prepared(pytc.stage(step, [x, x], jnp.ones((2, 2))))
    assert (parted(program) is not None) == part
