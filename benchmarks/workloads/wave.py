"""The wave equation in two dimensions by leapfrog: the next field needs the current one and the one before."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload


def laplacian(u: jax.Array) -> jax.Array:
    """Five-point differences on a periodic grid."""
    return jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u


def make(size: int) -> Workload:
    n = 256 * size

    def step(previous: jax.Array, current: jax.Array) -> jax.Array:
        return 2 * current - previous + 0.25 * laplacian(current)

    def init() -> tuple[Arrays, ...]:
        x = jnp.linspace(-1, 1, n)
        pulse = jnp.exp(-100 * (x[:, None] ** 2 + x[None, :] ** 2))
        return pulse, jnp.copy(pulse)

    return Workload(step, init, loop, dead=(0,))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    previous, current = init()
    for _ in batches:
        previous, current = current, step(previous, current)
        watch(previous, current)
    return previous, current
