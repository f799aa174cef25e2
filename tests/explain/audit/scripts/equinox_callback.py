"""Equinox: a step that calls back, into what reads the trainer's weights. It is called once."""

import equinox as eqx
import jax
import jax.numpy as jnp

log = []


@eqx.filter_jit
def step(weights, x):
    loss = x.mean()
    jax.debug.callback(lambda loss: log.append(float(loss) / float(abs(trainer.weights).sum())), loss)
    return weights * (1 - 0.1 * loss), loss


class Trainer:
    def __init__(self):
        self.weights = jnp.ones((64, 64))

    def run(self):
        self.weights, loss = step(self.weights, jnp.ones((8, 64)))
        jax.effects_barrier()
        print(loss, log)


trainer = Trainer()
trainer.run()
