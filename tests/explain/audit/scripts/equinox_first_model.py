"""Equinox: the model as it was before the training is kept, and compared with the trained one."""

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_jit
def make_step(model, x):
    grads = eqx.filter_grad(lambda model: jnp.mean(jax.vmap(model)(x) ** 2))(model)
    return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))


def main():
    original_model = model = eqx.nn.MLP(64, 64, 64, 2, key=jax.random.key(0))
    x = jnp.ones((8, 64))
    for _ in range(6):
        model = make_step(model, x)
    print(jnp.abs(original_model.layers[0].weight - model.layers[0].weight).max())


main()
