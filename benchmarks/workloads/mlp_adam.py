"""A multilayer perceptron that classifies images, trained with Adam."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload, normal


def mlp(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def init_mlp(key: jax.Array, widths: list[int]) -> list[dict[str, jax.Array]]:
    keys = jax.random.split(key, len(widths) - 1)
    return [
        {"w": normal(k, n, m, scale=n**-0.5), "b": jnp.zeros(m)}
        for k, n, m in zip(keys, widths[:-1], widths[1:], strict=True)
    ]


def images(count: int, i: int) -> tuple[jax.Array, jax.Array]:
    """Batch number i: pixels and labels."""
    key_x, key_y = jax.random.split(jax.random.key(i))
    return normal(key_x, count, 784), jax.random.randint(key_y, (count,), 0, 10)


def make(size: int) -> Workload:
    optimizer = optax.adam(1e-3)

    def loss_fn(params: Arrays, x: jax.Array, y: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(mlp(params, x), y).mean()

    def step(params: Arrays, opt_state: Arrays, batch: Arrays) -> tuple[Arrays, Arrays, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    def init() -> tuple[Arrays, ...]:
        params = init_mlp(jax.random.key(0), [784, 128 * size, 128 * size, 128 * size, 10])
        return params, optimizer.init(params)

    return Workload(step, init, loop, dead=(0, 1, 2), batch=lambda i: images(16 * size, i))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    params, opt_state = init()
    for batch in batches:
        params, opt_state, loss = step(params, opt_state, batch)
        watch(loss, params, opt_state)
    return params, opt_state
