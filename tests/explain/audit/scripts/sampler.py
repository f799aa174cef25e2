"""A chain of samples whose state, with the PRNG key in it, is an attribute."""

import jax
import jax.numpy as jnp


class Sampler:
    def __init__(self):
        self.state = {"x": jnp.zeros((64, 64)), "mean": jnp.zeros((64, 64)), "key": jax.random.key(0)}
        self.step = jax.jit(self._step)

    def _step(self, state, rate):
        key, noise = jax.random.split(state["key"])
        x = state["x"] * (1 - rate) + rate * jax.random.normal(noise, (64,))
        return {"x": x, "mean": 0.9 * state["mean"] + 0.1 * x, "key": key}

    def run(self, steps):
        for _ in range(steps):
            self.state = self.step(self.state, 0.1)


sampler = Sampler()
sampler.run(4)
print(f"{float(sampler.state['mean'].sum()):.3f}")
