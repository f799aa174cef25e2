"""A replay buffer: each step writes some transitions into a large buffer and samples a batch from it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload, normal

NEW = 16
SAMPLED = 64


def make(size: int) -> Workload:
    capacity, observation = 1024 * size, 16 * size

    def step(buffer: Arrays, key: jax.Array, transitions: Arrays) -> tuple[Arrays, jax.Array, Arrays]:
        start = buffer["start"]
        data = jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=0),
            buffer["data"],
            transitions,
        )
        filled = jnp.maximum(buffer["filled"], start + NEW)
        key, draw = jax.random.split(key)
        rows = jax.random.randint(draw, (SAMPLED,), 0, filled)
        sample = jax.tree.map(lambda a: a[rows], data)
        return {"data": data, "start": (start + NEW) % capacity, "filled": filled}, key, sample

    def init() -> tuple[Arrays, ...]:
        data = {
            "observation": jnp.zeros((capacity, observation)),
            "action": jnp.zeros(capacity, jnp.int32),
            "reward": jnp.zeros(capacity),
            "next_observation": jnp.zeros((capacity, observation)),
        }
        return {"data": data, "start": jnp.int32(0), "filled": jnp.int32(0)}, jax.random.key(0)

    def batch(i: int) -> Arrays:
        k = jax.random.split(jax.random.key(i), 4)
        return {
            "observation": normal(k[0], NEW, observation),
            "action": jax.random.randint(k[1], (NEW,), 0, 4),
            "reward": normal(k[2], NEW),
            "next_observation": normal(k[3], NEW, observation),
        }

    return Workload(step, init, loop, dead=(0, 1, 2), batch=batch)


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    buffer, key = init()
    for transitions in batches:
        buffer, key, sample = step(buffer, key, transitions)
        watch(sample, key, buffer)
    return buffer, key
