"""forward: outputs that are inputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.passes import forward, prune
from pytc.program import Computed, Passed


def test_an_input_that_is_returned_is_passed():
    program = forward(pytc.stage(lambda x, y: (x, x + y), jnp.ones(3), jnp.ones(3)))
    assert [o.origin for o in program.outputs] == [Passed(0), Computed(1)]
    assert "result[0] is x" in program.notes[-1].text


def test_a_passed_input_that_nothing_reads_leaves_the_program():
    program = prune(forward(pytc.stage(lambda x, y: (x, y * 2), jnp.ones(3), jnp.ones(3))))
    assert [given.leaf for given in program.inputs] == [1]
    assert [o.origin for o in program.outputs] == [Passed(0), Computed(0)]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_that_something_reads_stays_in_the_program(shape):
    one, two = jnp.full(shape, 1.7), jnp.full(shape, 2.7)
    program = forward(pytc.stage(lambda x, y, s: (x / s, y, s), jnp.ones(3), one, two))
    assert [o.origin for o in program.outputs] == [Computed(0), Passed(1), Computed(2)]


@pytest.mark.parametrize("shape", [(), (1,), (50,), (20, 1)])
@pytest.mark.parametrize("donate", ["auto", "none"])
def test_what_is_divided_by_and_handed_back(shape, donate):
    """XLA divides by a scalar, or multiplies by its inverse, depending on whether the scalar has another use."""

    def divided(state, x):
        return {"mean": x / state["scale"], "softmax": jax.nn.softmax(x / state["scale"]), "scale": state["scale"]}

    x = jax.random.normal(jax.random.key(0), (20, 50))
    scale = jnp.full(shape, 1.7)
    compiled = pytc.compile(divided, donate=donate)
    for _ in range(2):
        result = compiled({"scale": scale}, x)
        for name, wanted in jax.jit(divided)({"scale": scale}, x).items():
            np.testing.assert_array_equal(result[name], wanted)


@pytest.mark.parametrize("donate", ["auto", "all", "require"])
def test_what_is_handed_back_is_not_written_over(donate):
    def both(x, y):
        return x, jnp.sin(x), y * 2

    compiled = pytc.compile(both, donate=donate)

    def handed_back():
        return compiled(jnp.ones(3) + 1, jnp.ones(3) + 2)  # nobody else has them

    for _ in range(2):
        x, sine, double = handed_back()
        np.testing.assert_array_equal(x, np.full(3, 2.0))
        np.testing.assert_array_equal(sine, np.sin(np.full(3, 2.0, "float32")))
        np.testing.assert_array_equal(double, np.full(3, 6.0))
    x, *_ = pytc.compile(both)(pytc.move(jnp.ones(3)), jnp.ones(3))
    assert not x.is_deleted()


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
