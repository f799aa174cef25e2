"""Flax: a linen module, Optax, and the `TrainState` of its examples."""

import argparse
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--width", type=int, default=64)
args = parser.parse_args()


class MLP(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.relu(nn.Dense(self.width)(x)))


def create_state():
    model = MLP(args.width)
    params = model.init(jax.random.key(0), jnp.zeros((1, 32)))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))


@partial(jax.jit, static_argnames=("scale",))
def train_step(state, batch, scale=1.0):
    def loss_fn(params):
        return scale * jnp.mean((state.apply_fn({"params": params}, batch["x"]) - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), {"loss": loss}


@jax.jit
def eval_step(state, batch):
    return jnp.abs(state.apply_fn({"params": state.params}, batch["x"]) - batch["y"]).mean()


state = create_state()
for epoch in range(args.steps):
    batch = {"x": jnp.ones((8, 32)) * (epoch + 1), "y": jnp.zeros((8, 1))}
    state, metrics = train_step(state, batch, scale=2.0)
    print(epoch, f"{metrics['loss']:.5f}", f"{eval_step(state, batch):.5f}")
