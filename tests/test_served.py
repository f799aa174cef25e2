"""Arguments that are the same objects at each call, as the weights of a model that is served; until they are not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

LEAVES = 40


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: jax.Array
    bias: jax.Array


def in_dicts():
    return [{"weight": jnp.full(3, i + 0.0), "bias": jnp.full(3, -i + 0.0)} for i in range(LEAVES // 2)]


def in_objects():
    return [Layer(**layer) for layer in in_dicts()]


def serving(params, x):
    """The results of arrays that are one are one, so who is one can be told."""
    return jax.tree.map(lambda leaf: leaf + x, params)


def training(state, params, x):
    return state + x, jax.tree.map(lambda leaf: leaf * x, params)


def make_one(params, first, second):
    """Put an array in another's place, in the same container."""
    if isinstance(params[0], dict):
        params[second]["bias"] = params[first]["weight"]
    else:
        params[second].bias = params[first].weight


@pytest.mark.parametrize("make", [in_dicts, in_objects])
@pytest.mark.parametrize("donate", ["auto", "none"])
def test_an_array_that_comes_to_stand_twice_is_seen(make, donate):
    compiled = pytc.compile(lambda params, x: serving(params, x), donate=donate)
    expected, params, x = jax.jit(serving), make(), jnp.float32(2)
    for second in (None, 3, 7):
        if second is not None:
            make_one(params, 0, second)
        apart = LEAVES - sum(second is not None and k <= second for k in (3, 7))
        for _ in range(6):
            results = jax.tree.leaves(compiled(params, x))
            assert len({*map(id, results)}) == apart
            for mine, by_jit in zip(results, jax.tree.leaves(expected(params, x)), strict=True):
                np.testing.assert_array_equal(mine, by_jit)
    assert compiled._cache_size() == 3


@pytest.mark.parametrize("make", [in_dicts, in_objects])
def test_beside_a_state_that_is_taken_over(make):
    compiled = pytc.compile(lambda state, params, x: training(state, params, x))
    params, x = make(), jnp.float32(2)
    state = jnp.zeros(5)
    for second in (None, 3):
        if second is not None:
            make_one(params, 0, second)
        for _ in range(8):
            before = state.unsafe_buffer_pointer()
            state, scaled = compiled(state, params, x)
        assert state.unsafe_buffer_pointer() == before
        assert len({*map(id, jax.tree.leaves(scaled))}) == LEAVES - (second is not None)
    np.testing.assert_array_equal(state, jnp.full(5, 32.0))
    np.testing.assert_array_equal(jax.tree.leaves(scaled)[0 if make is in_objects else 1], jnp.zeros(3))


@pytest.mark.parametrize("make", [in_dicts, in_objects])
def test_other_values_at_the_same_places_are_no_other_program(make):
    compiled, x = pytc.compile(lambda params, x: serving(params, x)), jnp.float32(1)
    for k in range(30):
        params = jax.tree.map(lambda leaf, k=k: leaf + k, make())
        for _ in range(3):
            results = compiled(params, x)
            np.testing.assert_array_equal(jax.tree.leaves(results)[-1], jax.tree.leaves(params)[-1] + 1)
        del params, results
    assert compiled._cache_size() == 1
