"""Of a result one part is taken, and overwrites an attribute."""

import jax
import jax.numpy as jnp


@jax.jit
def move(position, force):
    return {"position": position + force.mean(), "energy": force.sum()}


@jax.jit
def cool(velocity, by):
    return velocity * by, by


class Simulation:
    def __init__(self):
        self.position = jnp.ones((64, 64))
        self.velocity = jnp.full((64, 64), 2.0)

    def run(self, force):
        for _ in range(6):
            self.position = move(self.position, force)["position"]
            self.velocity = cool(self.velocity, 0.9)[0]
        print(self.position[0, 0], self.velocity[0, 0])


Simulation().run(jnp.ones(8))
