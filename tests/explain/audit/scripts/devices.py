"""Several devices: data-parallel with a mesh, and an older part with `pmap`."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import functools

import jax
import jax.numpy as jnp
from jax import jit
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2,), ("data",))
replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))


@functools.partial(jit, in_shardings=(replicated, replicated, split), out_shardings=(replicated, replicated, None))
def train_step(params, momentum, x):
    def loss(params):
        return jnp.mean((x @ params["w"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value


def walk(position, noise):
    return jnp.cos(position) + jax.lax.pmean(noise.sum(), "devices")


walk = jax.pmap(walk, axis_name="devices")


def main():
    params = jax.device_put({"w": jnp.full((128, 64), 0.1)}, replicated)
    momentum = jax.device_put({"w": jnp.zeros((128, 64))}, replicated)
    for step in range(3):
        x = jax.device_put(jnp.ones((8, 128)) * step, split)
        params, momentum, value = train_step(params, momentum, x)
        print(f"{value:.4f}")
    position = jnp.zeros((jax.local_device_count(), 64, 32))
    for step in range(3):
        position = walk(position, jnp.ones((jax.local_device_count(), 32)) * step)
    print(position.shape, f"{position[0].sum():.3f}")


main()
