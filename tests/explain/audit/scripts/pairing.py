"""Adam, by somebody who knows about donation but returns the loss first."""

from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, donate_argnums=(0, 1))
def step(params, moments, x):
    def loss(params):
        h = x
        for w in params:
            h = jnp.tanh(h @ w)
        return jnp.mean(h**2)

    value, grads = jax.value_and_grad(loss)(params)
    first = [0.9 * m + 0.1 * g for (m, _), g in zip(moments, grads)]
    second = [0.99 * v + 0.01 * g * g for (_, v), g in zip(moments, grads)]
    moments = list(zip(first, second))
    params = [p - 0.1 * m / (jnp.sqrt(v) + 1e-8) for p, (m, v) in zip(params, moments)]
    return value, moments, params


def main():
    params = [jnp.full((64, 64), 0.1 * i) for i in range(1, 4)]
    moments = [(jnp.zeros((64, 64)), jnp.zeros((64, 64))) for _ in range(3)]
    for i in range(4):
        value, moments, params = step(params, moments, jnp.ones((4, 64)) * i)
        print(f"{value:.5f}")


main()
