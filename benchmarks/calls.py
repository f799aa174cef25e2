"""The price of a call: the same trivial step on 1, 100 and 500 tiny arrays, where nearly all the time is the call's."""

from __future__ import annotations

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import contenders, timing
from benchmarks.workload import Arrays, Init, Step, Workload

LEAVES = (1, 100, 500)


def tiny(leaves: int) -> Workload:
    """A step that adds one to each of `leaves` small arrays, in layers of four as a model's parameters would be."""

    def step(state: Arrays) -> Arrays:
        return jax.tree.map(lambda x: x + 1, state)

    def init() -> tuple[Arrays, ...]:
        if leaves == 1:
            return (jnp.zeros(4),)
        return ([{name: jnp.zeros(4) for name in ("bias", "kernel", "scale", "shift")} for _ in range(leaves // 4)],)

    def unused(*_: Any) -> tuple[Arrays, ...]:
        raise RuntimeError("this workload is called by `call_seconds` alone")

    return Workload(step, init, unused, dead=(0,))


def run(step: Step, init: Init, count: int) -> float:
    """Seconds a call, over `count` calls in the tightest loop a person would write."""
    (state,) = jax.block_until_ready(init())
    for _ in range(3):
        state = step(state)
    jax.block_until_ready(state)
    started = time.perf_counter()
    for _ in range(count):
        state = step(state)
    jax.block_until_ready(state)
    return (time.perf_counter() - started) / count


def measure(names: tuple[str, ...], rounds: int, count: int) -> dict[str, dict[str, Any]]:
    """For each number of leaves and each contender: microseconds a call, and over `jax.jit` with `donate_argnums`.

    Many rounds of few calls: a turn of a few milliseconds has a chance of not being interrupted, and where turns are
    long the slower contender is interrupted more.
    """
    found: dict[str, dict[str, Any]] = {}
    for leaves in LEAVES:
        workload = tiny(leaves)
        steps = {name: contenders.build(name, workload, (0,)) for name in names}
        calls = max(5, 5 * count // (leaves + 4))
        measurements = {name: functools.partial(run, step, workload.init, calls) for name, step in steps.items()}
        timing.interleaved(measurements, 1)  # compiles
        seconds = timing.interleaved(measurements, rounds)
        ratio = timing.ratios(seconds, contenders.BY_HAND)
        found[str(leaves)] = {
            name: {
                "microseconds": timing.Spread.of([s * 1e6 for s in seconds[name]]),
                "over_by_hand": ratio[name],
            }
            for name in names
        }
    return found
