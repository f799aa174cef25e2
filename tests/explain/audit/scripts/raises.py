"""Promises that were wrong: the best weights are kept, and then they are gone."""

import jax
import jax.numpy as jnp


@jax.jit
def score(params):
    return jnp.sum(params)


def update(params, moments, batch):
    moments = 0.9 * moments + batch.sum() * params
    return params - 0.1 * moments, moments


update = jax.jit(update, donate_argnums=(0, 1, 2))


def train():
    params, moments, best = jnp.ones((64, 64)), jnp.zeros((64, 64)), None
    for step in range(4):
        if step == 2:
            best = params
        params, moments = update(params, moments, jnp.ones(16))
    print("the best score is", score(best))


train()
