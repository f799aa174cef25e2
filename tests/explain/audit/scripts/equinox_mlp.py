"""Equinox: a module is the model, and `filter_jit` the compiler."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


def loss_fn(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


def main():
    model = eqx.nn.MLP(16, 1, 64, 2, key=jax.random.key(1))
    optimiser = optax.adam(1e-3)
    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def make_step(model, opt_state, x, y):
        print("tracing")
        loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x, y)
        updates, opt_state = optimiser.update(grads, opt_state, model)
        return eqx.apply_updates(model, updates), opt_state, loss

    for step in range(4):
        x = jnp.cos(jnp.arange(8 * 16.0) + step).reshape(8, 16)
        model, opt_state, loss = make_step(model, opt_state, x, x[:, :1])
        print(step, f"{loss:.5f}")


main()
