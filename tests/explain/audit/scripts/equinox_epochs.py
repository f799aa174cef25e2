"""Equinox: a step that is tried out first, at another place, that fails at first, and whose last batch is smaller. The
model is an attribute, and none of these calls happens twice."""

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def make_step(model, x):
    if x.shape[1] != 64:
        raise ValueError("64 features, please")
    loss, grads = eqx.filter_value_and_grad(lambda model: jnp.mean(jax.vmap(model)(x) ** 2))(model)
    return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), loss


class Trainer:
    def __init__(self):
        self.model = eqx.nn.MLP(64, 64, 64, 2, key=jax.random.key(0))

    def train(self, data):
        try:
            self.model, loss = make_step(self.model, data[:, :32])
        except ValueError:
            pass
        self.model, loss = make_step(self.model, data[:8])
        for start in range(0, len(data), 8):
            self.model, loss = make_step(self.model, data[start : start + 8])
        print(loss)


Trainer().train(jnp.ones((28, 64)))
