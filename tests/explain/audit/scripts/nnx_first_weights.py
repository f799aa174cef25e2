"""Flax NNX: the weights as they were before the training are kept, and compared with the trained ones."""

import jax
import jax.numpy as jnp
from flax import nnx


@nnx.jit
def step(average, model):
    nnx.update(average, jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, nnx.state(average), nnx.state(model)))


def main():
    model = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
    average = nnx.Linear(64, 64, rngs=nnx.Rngs(1))
    initial = average.kernel[...]
    for _ in range(6):
        step(average, model)
    print(jnp.abs(initial - average.kernel[...]).max())


main()
