"""Ten chained convolutions, `x = f(x)`: the program that asked JAX for buffer donation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload, normal


def make(size: int) -> Workload:
    def step(x: jax.Array) -> jax.Array:
        for _ in range(10):
            x = jax.lax.conv_general_dilated(
                x, jnp.full((3, 3, 1, 1), 1 / 9), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        return x

    def init() -> tuple[Arrays, ...]:
        return (normal(jax.random.key(1), 32 * size, 32, 32, 1),)

    return Workload(step, init, loop, dead=(0,))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    (x,) = init()
    for _ in batches:
        x = step(x)
        watch(x)
    return (x,)
