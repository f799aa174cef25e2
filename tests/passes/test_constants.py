"""finalise: a call that decides by whom constants are folded stays in a program that is to be compiled."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.passes import finalise

CAPTURED = jnp.array([-3.0168803, -0.455585, -0.034003], jnp.float32)


def primitives(program):
    return {eqn.primitive.name for eqn in program.jaxpr.jaxpr.eqns}


def slope(x):
    return jax.grad(lambda v: jnp.tanh(jnp.sin(v)).sum())(x)


def test_folded_constants_have_the_bits_of_jax_jit():
    same = jax.jit(lambda x: x)

    def fun():
        c = same(CAPTURED + 1.0)
        twice = jnp.concatenate([c, c])
        return slope(twice), jnp.arctan2(slope(twice), twice)

    jax.tree.map(np.testing.assert_array_equal, pytc.compile(fun)(), jax.jit(fun)())
    assert "jit" in primitives(finalise(pytc.stage(fun)))
    assert all(eqn.primitive.name != "jit" for eqn in jax.make_jaxpr(pytc.finalise(fun))().eqns)


@pytest.mark.parametrize(
    ("called", "operand", "stays"),
    [
        (lambda x, c: x + jnp.log(c), 0.3, True),  # the logarithm of a constant: folded in another place
        (lambda x, c: (x, jnp.sin(c)), 0.3, True),
        (lambda x, c: x * jnp.sin(x) - c, 0.3, False),
        (lambda x, c: jnp.where(x > c, -c, x), 0.3, False),  # exact, whoever does it
        (lambda x, c: x + jax.lax.mul(c, 2), 3, False),
        (lambda x, c: x * jnp.log(3.0) + c, 0.3, False),  # within the call on either side
    ],
)
def test_a_call_stays_where_constants_meet_across_it(called, operand, stays):
    def fun(x):
        return jax.jit(called)(x, operand)

    x = jnp.arange(3.0)
    assert ("jit" in primitives(finalise(pytc.stage(fun, x)))) == stays
    jax.tree.map(np.testing.assert_array_equal, pytc.compile(fun)(x), jax.jit(fun)(x))


def test_a_loop_that_hands_on_a_constant_is_read_as_a_loop():
    def step(_, carry):
        constant, count, total = carry
        return jax.lax.stop_gradient(constant), count + 1, total + constant * count

    def fun(x):
        constant, _, total = jax.lax.fori_loop(0, 3, step, (CAPTURED, x, x))
        return jnp.exp(constant) * total

    x = jnp.arange(3.0)
    np.testing.assert_array_equal(pytc.compile(fun)(x), jax.jit(fun)(x))
