"""What is donated is held for a while, and let go of before anybody finds it deleted."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, donate_argnums=0)
def step(state, x):
    return state * 0.9 + x.mean(), x.max()


@functools.partial(jax.jit, donate_argnums=0)
def smooth(state, x):
    return state * 0.9 + x.mean()


@functools.partial(jax.jit, donate_argnums=0)
def learn(state, x):
    return state * 0.9 + x.mean(), x.max()


@functools.partial(jax.jit, donate_argnums=0)
def keep(state, x):
    return state * 0.9 + x.mean()


class Trainer:
    def __init__(self):
        self.state, self.losses = jnp.ones((64, 64)), []

    def update(self, x):
        new, loss = step(self.state, x)
        self.losses.append(float(loss))
        self.state = new


def epoch(state, data):
    for x in data:
        state, loss = learn(state, x)
    return state, loss


trainer = Trainer()
for k in range(4):
    trainer.update(jnp.full(8, float(k)))
state = jnp.ones((64, 64))
for _ in range(4):
    state = smooth(state, jnp.ones(8)).block_until_ready()
for _ in range(2):
    state, loss = epoch(state, [jnp.ones(8)] * 3)
first = kept = jnp.ones((64, 64))
for _ in range(4):
    kept = keep(kept, jnp.ones(8))
print(trainer.losses, state.sum(), kept.sum(), first.shape)
