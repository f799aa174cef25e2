"""A perceptron trained with momentum, with an exponential moving average of its parameters."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload
from benchmarks.workloads.mlp_adam import images, init_mlp, mlp


class TrainState(NamedTuple):
    """All that a step changes."""

    params: Arrays
    average: Arrays
    opt_state: Arrays
    count: jax.Array


def make(size: int) -> Workload:
    optimizer = optax.sgd(1e-2, momentum=0.9)

    def loss_fn(params: Arrays, x: jax.Array, y: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(mlp(params, x), y).mean()

    def step(state: TrainState, batch: Arrays) -> tuple[TrainState, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(state.params, *batch)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        average = optax.incremental_update(params, state.average, step_size=1e-3)
        return TrainState(params, average, opt_state, state.count + 1), loss

    def init() -> tuple[Arrays, ...]:
        params = init_mlp(jax.random.key(0), [784, 128 * size, 128 * size, 10])
        return (TrainState(params, jax.tree.map(jnp.copy, params), optimizer.init(params), jnp.int32(0)),)

    return Workload(step, init, loop, dead=(0, 1), batch=lambda i: images(16 * size, i))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    (state,) = init()
    for batch in batches:
        state, loss = step(state, batch)
        watch(loss, state)
    return (state,)
