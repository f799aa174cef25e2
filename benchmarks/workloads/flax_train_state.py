"""A Flax convolutional classifier with its `TrainState`, trained with Adam."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload
from benchmarks.workloads.mlp_adam import images


class Classifier(nn.Module):
    """Two strided convolutions and two dense layers."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        """The logits of each image."""
        x = x.reshape(-1, 28, 28, 1)
        for features in (self.features, 2 * self.features):
            x = nn.relu(nn.Conv(features, (3, 3), strides=(2, 2))(x))
        x = nn.relu(nn.Dense(16 * self.features)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def make(size: int) -> Workload:
    model = Classifier(4 * size)
    optimizer = optax.adam(1e-3)

    def step(state: TrainState, batch: Arrays) -> tuple[TrainState, jax.Array]:
        x, y = batch

        def loss_fn(params: Arrays) -> jax.Array:
            logits = state.apply_fn({"params": params}, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    def init() -> tuple[Arrays, ...]:
        params = model.init(jax.random.key(0), jnp.zeros((1, 784)))["params"]
        state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
        return (state.replace(step=jnp.int32(0)),)

    return Workload(step, init, loop, dead=(0, 1), batch=lambda i: images(16 * size, i))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    (state,) = init()
    for batch in batches:
        state, loss = step(state, batch)
        watch(loss, state)
    return (state,)
