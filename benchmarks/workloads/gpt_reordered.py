"""The same language model, returning its results in another order than its arguments: loss, optimizer, parameters."""

from __future__ import annotations

import dataclasses

import jax

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload
from benchmarks.workloads import gpt_adamw


def make(size: int) -> Workload:
    ordered = gpt_adamw.make(size)

    def step(params: Arrays, opt_state: Arrays, batch: jax.Array) -> tuple[jax.Array, Arrays, Arrays]:
        params, opt_state, loss = ordered.step(params, opt_state, batch)
        return loss, opt_state, params

    return dataclasses.replace(ordered, step=step, loop=loop)


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    params, opt_state = init()
    for batch in batches:
        loss, opt_state, params = step(params, opt_state, batch)
        watch(loss, params, opt_state)
    return params, opt_state
