"""forward and share: outputs that need no work."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import pytc
from pytc.passes import forward, prune, share
from pytc.program import Computed, Passed


def test_an_input_that_is_returned_is_passed():
    program = forward(pytc.stage(lambda x, y: (x, x + y), jnp.ones(3), jnp.ones(3)))
    assert [o.origin for o in program.outputs] == [Passed(0), Computed(1)]
    assert "result[0] is x" in program.notes[-1].text


def test_a_passed_input_that_nothing_reads_leaves_the_program():
    program = prune(forward(pytc.stage(lambda x, y: (x, y * 2), jnp.ones(3), jnp.ones(3))))
    assert [given.leaf for given in program.inputs] == [1]
    assert [o.origin for o in program.outputs] == [Passed(0), Computed(0)]


def test_host_data_is_not_passed():
    program = forward(pytc.stage(lambda x, n: (x, n), np.ones(3), 2.0))
    assert all(isinstance(o.origin, Computed) for o in program.outputs)
    result = pytc.compile(lambda x, n: (x, n))(np.ones(3), 2.0)
    assert all(isinstance(r, jax.Array) for r in result)
    assert result[1].weak_type


def test_an_output_with_a_sharding_asked_for_is_not_passed():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    compiled = pytc.compile(lambda x: x, out_shardings=sharding)
    x = jnp.ones(3)
    result = compiled(x)
    assert result is not x
    assert result.sharding == sharding
    assert result.committed


def test_the_caller_gets_its_own_array():
    x = jnp.ones(3)
    first, second = pytc.compile(lambda tree: (tree["x"], tree["x"] + 1))({"x": x})
    assert first is x
    np.testing.assert_array_equal(second, 2 * np.ones(3))


def test_one_value_at_two_outputs_is_one_output_and_one_object():
    def twice(x):
        y = x + 1
        return y, {"again": y}, x * 2

    program = share(pytc.stage(twice, jnp.ones(3)))
    assert [o.origin for o in program.outputs] == [Computed(0), Computed(0), Computed(2)]
    first, again, _ = pytc.compile(twice)(jnp.ones(3))
    assert again["again"] is first


def test_equal_values_computed_twice_are_two_outputs():
    program = share(pytc.stage(lambda x: (x + 1, x + 1), jnp.ones(3)))
    assert len({o.origin for o in program.outputs}) == 2


def test_tied_weights_stay_tied_over_many_steps():
    @pytc.compile
    def step(params):
        assert params["in"] is params["out"]  # one tracer for both
        new = params["in"] * 0.5
        return {"in": new, "out": new}

    weights = jnp.ones((4, 4))
    params = {"in": weights, "out": weights}
    del weights
    for _ in range(3):
        params = step(params)
        assert params["in"] is params["out"]
    np.testing.assert_array_equal(params["in"], np.full((4, 4), 0.125))


def test_another_sharing_structure_is_another_signature():
    traces = []

    @pytc.compile
    def total(a, b):
        traces.append(a is b)
        return a + b

    x, y = jnp.ones(3), jnp.ones(3)
    for _ in range(2):
        np.testing.assert_array_equal(total(x, y), total(x, x))
    assert traces == [False, True]


def test_sharing_can_be_turned_off():
    traces = []

    @pytc.compile(share=False)
    def total(a, b):
        traces.append(a is b)
        return a + b

    x = jnp.ones(3)
    total(x, x)
    total(x, jnp.zeros(3))
    assert traces == [False]
