"""Gradient accumulation: Adam updates a perceptron every fourth batch, and sums gradients in between."""

from __future__ import annotations

import jax
import optax

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload
from benchmarks.workloads.mlp_adam import images, init_mlp, mlp


def make(size: int) -> Workload:
    optimizer = optax.MultiSteps(optax.adam(1e-3), every_k_schedule=4)

    def loss_fn(params: Arrays, x: jax.Array, y: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(mlp(params, x), y).mean()

    def step(params: Arrays, opt_state: Arrays, batch: Arrays) -> tuple[Arrays, Arrays, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def init() -> tuple[Arrays, ...]:
        params = init_mlp(jax.random.key(0), [784, 128 * size, 128 * size, 10])
        return params, optimizer.init(params)

    return Workload(step, init, loop, dead=(0, 1, 2), batch=lambda i: images(16 * size, i))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    params, opt_state = init()
    for batch in batches:
        params, opt_state, loss = step(params, opt_state, batch)
        watch(loss, params, opt_state)
    return params, opt_state
