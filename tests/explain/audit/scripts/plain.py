"""Plain pytrees: a dictionary of weights, momentum by hand."""

import jax
import jax.numpy as jnp


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


@jax.jit
def train_step(params, momentum, batch):
    print("tracing")
    value, grads = jax.value_and_grad(loss)(params, *batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum)
    return params, momentum, value


evaluate = jax.jit(loss)


def main():
    params = {"w": jnp.full((64, 256), 0.01), "v": jnp.full((256, 1), 0.02)}
    momentum = jax.tree.map(jnp.zeros_like, params)
    for step in range(50):
        x = jnp.sin(jnp.arange(32 * 64) + step).reshape(32, 64)
        batch = (x, x[:, :1])
        params, momentum, value = train_step(params, momentum, batch)
    print(f"loss {value:.6f}, {evaluate(params, *batch):.6f}")


if __name__ == "__main__":
    main()
