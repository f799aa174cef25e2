"""Flax NNX: parameters that are an attribute, and whose first values a variable keeps as well."""

import jax
import jax.numpy as jnp
from flax import nnx


@nnx.jit
def step(params, x):
    return jax.tree.map(lambda p: p - 0.1 * x.mean(), params), x.mean()


class Trainer:
    def __init__(self):
        self.params = {"w": jnp.ones((64, 64))}


def main():
    trainer, x = Trainer(), jnp.ones((8, 64))
    first = trainer.params
    for _ in range(6):
        trainer.params, loss = step(trainer.params, x)
    print(loss, jnp.abs(first["w"] - trainer.params["w"]).max())


main()
