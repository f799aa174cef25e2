"""Two buffers that change places at each step: what was drawn is shown, and what was shown fades to be drawn on."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload, normal


def make(size: int) -> Workload:
    n = 256 * size

    def step(shown: jax.Array, drawn: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(drawn), 0.9 * shown + 0.1

    def init() -> tuple[Arrays, ...]:
        return normal(jax.random.key(0), n, n), normal(jax.random.key(1), n, n)

    return Workload(step, init, loop, dead=(0, 1))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    shown, drawn = init()
    for _ in batches:
        shown, drawn = step(shown, drawn)
        watch(shown, drawn)
    return shown, drawn
