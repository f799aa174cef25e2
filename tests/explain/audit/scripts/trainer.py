"""A `Trainer` class that compiles its own methods and keeps an average of the weights."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass
class Config:
    width: int = 96
    steps: int = 5
    decay: float = 0.9


class Trainer:
    def __init__(self, config):
        self.config = config
        self.params = {"w": jnp.full((32, config.width), 0.02), "v": jnp.full((config.width,), 0.03)}
        self.momentum = jax.tree.map(jnp.zeros_like, self.params)
        self.average = self.params
        self.update = jax.jit(self._update)
        self.blend = jax.jit(
            self._blend,
            donate_argnums=(1,),
        )

    def _update(self, params, momentum, x):
        def loss(params):
            return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - x[:, 0]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value

    def _blend(self, average, params):
        decay = self.config.decay
        return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)

    def fit(self):
        for step in range(self.config.steps):
            x = jnp.sin(jnp.arange(4 * 32.0) * (step + 1)).reshape(4, 32)
            self.params, self.momentum, loss = self.update(self.params, self.momentum, x)
            self.average = self.blend(self.params, self.average)
            print(step, f"{loss:.5f}")
        return self


if __name__ == "__main__":
    trainer = Trainer(Config()).fit()
    print(f"{jnp.sum(trainer.average['v']):.5f}")
