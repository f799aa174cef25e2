"""Equinox: the model is an attribute, which only the results of the step tell how to overwrite."""

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def make_step(model, x):
    loss, grads = eqx.filter_value_and_grad(lambda model: jnp.mean(jax.vmap(model)(x) ** 2))(model)
    return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), loss


class Trainer:
    def __init__(self):
        self.model = eqx.nn.MLP(64, 64, 64, 2, key=jax.random.key(0))

    def train(self, x):
        for _ in range(6):
            self.model, loss = make_step(self.model, x)
        print(loss)


Trainer().train(jnp.ones((8, 64)))
