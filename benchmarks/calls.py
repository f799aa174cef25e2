"""The price of a call: the same trivial step on tiny arrays, where nearly all the time is the call's."""

from __future__ import annotations

import functools
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks import contenders, timing
from benchmarks.workload import Arrays, Init, Step, Workload


class Linear(eqx.Module):
    """Two arrays in an object, as in a model of Equinox's."""

    weight: jax.Array
    bias: jax.Array


def in_dicts(leaves: int) -> Arrays:
    """So many arrays in layers of four, one alone as it is."""
    if leaves == 1:
        return jnp.zeros(4)
    return [{name: jnp.zeros(4) for name in ("bias", "kernel", "scale", "shift")} for _ in range(leaves // 4)]


def in_modules(leaves: int) -> Arrays:
    """So many arrays in layers of two."""
    return [Linear(jnp.zeros(4), jnp.zeros(4)) for _ in range(leaves // 2)]


CONTENDERS = (*contenders.ALL, contenders.PROMISED)


def replaced(number: jax.Array, state: Arrays) -> tuple[Arrays, jax.Array]:
    """A step that adds a number, which lives on, to each array of the state, and returns another beside it."""
    return jax.tree.map(lambda x: x + number, state), number * 2


def read(number: jax.Array, weights: Arrays) -> jax.Array:
    """One that answers from weights, which live on like the number."""
    return sum(jax.tree.leaves(weights)[:4], number * 2)


def tiny(state: str) -> Workload:
    """The step and the arguments of one of the `STATES`."""
    make, leaves, step, _ = STATES[state]

    def unused(*_: Any) -> tuple[Arrays, ...]:
        raise RuntimeError("this workload is called by a loop of its own alone")

    return Workload(step, lambda: (jnp.float32(1), make(leaves)), unused, dead=(1,) if step is replaced else ())


def run(step: Step, init: Init, count: int) -> float:
    """Seconds a call, over `count` calls in the tightest loop a person would write."""
    number, state = jax.block_until_ready(init())
    for _ in range(3):
        state, double = step(number, state)
    jax.block_until_ready((state, double))
    started = time.perf_counter()
    for _ in range(count):
        state, double = step(number, state)
    jax.block_until_ready((state, double))
    return (time.perf_counter() - started) / count


class Trainer:
    """What has its state in an attribute."""

    state: Arrays


def run_in_attribute(step: Step, init: Init, count: int) -> float:
    """The same, where the state is an attribute of an object."""
    trainer = Trainer()
    number, trainer.state = jax.block_until_ready(init())
    for _ in range(3):
        trainer.state, double = step(number, trainer.state)
    jax.block_until_ready((trainer.state, double))
    started = time.perf_counter()
    for _ in range(count):
        trainer.state, double = step(number, trainer.state)
    jax.block_until_ready((trainer.state, double))
    return (time.perf_counter() - started) / count


def run_served(step: Step, init: Init, count: int) -> float:
    """Seconds a call that replaces nothing."""
    number, weights = jax.block_until_ready(init())
    for _ in range(3):
        answer = step(number, weights)
    jax.block_until_ready(answer)
    started = time.perf_counter()
    for _ in range(count):
        answer = step(number, weights)
    jax.block_until_ready(answer)
    return (time.perf_counter() - started) / count


STATES = {
    "1": (in_dicts, 1, replaced, run),
    "100": (in_dicts, 100, replaced, run),
    "500": (in_dicts, 500, replaced, run),
    "100 in 50 modules": (in_modules, 100, replaced, run),
    "1 in an attribute": (in_dicts, 1, replaced, run_in_attribute),
    "100 in an attribute": (in_dicts, 100, replaced, run_in_attribute),
    "500 in an attribute": (in_dicts, 500, replaced, run_in_attribute),
    "100 that are only read": (in_dicts, 100, read, run_served),
    "500 that are only read": (in_dicts, 500, read, run_served),
    "100 in 50 modules that are only read": (in_modules, 100, read, run_served),
}
"""By the number of leaves: what makes the state, of how many, the step, and what calls it."""


def measure(rounds: int, count: int) -> dict[str, dict[str, Any]]:
    """For each state and each contender: microseconds a call, and over `jax.jit` with `donate_argnums`.

    Many rounds of few calls: a turn of ten milliseconds has a chance of not being interrupted, and where turns are long
    the slower contender is interrupted more. Where they are much shorter, what is measured is how the contenders throw
    each other out of the processor's caches.
    """
    found: dict[str, dict[str, Any]] = {}
    for state, (_, leaves, _, loop) in STATES.items():
        workload = tiny(state)
        steps = {name: contenders.build(name, workload, workload.dead) for name in CONTENDERS}
        calls = max(5, 5 * count // (leaves + 4))
        measurements = {name: functools.partial(loop, step, workload.init, calls) for name, step in steps.items()}
        timing.interleaved(measurements, 1)  # compiles
        seconds = timing.interleaved(measurements, rounds)
        ratio = timing.ratios(seconds, contenders.BY_HAND)
        found[state] = {
            name: {
                "microseconds": timing.Spread.of([s * 1e6 for s in seconds[name]]),
                "over_by_hand": ratio[name],
            }
            for name in CONTENDERS
        }
    return found
