"""`python -m benchmarks.sharing`: what a call pays for looking whether one array stands at several leaves.

The same step compiled with and without `share`, called by turns in short bursts, on tiny arrays of which none is
shared. The difference within a turn, over many turns, is far smaller than what either takes from turn to turn: its
median is told, with the standard error of that median. Both with donation, as by default, and without: where something
is donated it has to be known that no array is passed twice, whether or not leaves are shared, and what is proven dead
is known to stand at one leaf; so there sharing should add next to nothing.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

import pytc

Burst = Callable[[Callable[..., Any], int, int], float]
"""Seconds a call of a compiled step on so many leaves, over so many calls."""


def alone(step: Callable[..., Any], leaves: int, calls: int) -> float:
    """`state = step(state)`: only the list of the state refers to each array."""
    state = [jnp.full(4, i) for i in range(leaves)]
    state = step(step(state))
    started = time.perf_counter()
    for _ in range(calls):
        state = step(state)
    seconds = time.perf_counter() - started
    jax.block_until_ready(state)
    return seconds / calls


def with_batch(step: Callable[..., Any], leaves: int, calls: int) -> float:
    """`for batch in batches: state = step(state, batch)`: the batches are in a list all the while."""
    state = [jnp.full(4, i) for i in range(leaves)]
    batches = [jnp.full(4, i) for i in range(calls)]
    state = step(step(state, batches[0]), batches[0])
    started = time.perf_counter()
    for batch in batches:
        state = step(state, batch)
    seconds = time.perf_counter() - started
    jax.block_until_ready(state)
    return seconds / calls


@functools.cache
def weights_of(leaves: int) -> list[jax.Array]:
    """A list of so many arrays, made once."""
    return [jnp.full(4, i) for i in range(leaves)]


def served(step: Callable[..., Any], leaves: int, calls: int) -> float:
    """`for batch in batches: answer = step(weights, batch)`: the weights are the same ones each time."""
    weights, batch = weights_of(leaves), jnp.full(4, 1)
    step(weights, batch)
    answer = step(weights, batch)
    started = time.perf_counter()
    for _ in range(calls):
        answer = step(weights, batch)
    seconds = time.perf_counter() - started
    jax.block_until_ready(answer)
    return seconds / calls


CASES: tuple[tuple[str, Burst, Callable[..., Any], int], ...] = tuple(
    (f"{leaves} leaves{name}", burst, step, leaves)
    for name, burst, step in (
        ("", alone, lambda state: [x + 1 for x in state]),
        (" and a batch", with_batch, lambda state, batch: [x + batch for x in state]),
        (", served", served, lambda weights, batch: sum(weights) + batch),
    )
    for leaves in (1, 2, 4, 10, 100)
)


DONATIONS: tuple[Literal["auto", "none"], ...] = ("auto", "none")


def compared(
    burst: Burst, step: Callable[..., Any], leaves: int, turns: int, donate: Literal["auto", "none"] = "auto"
) -> tuple[float, float, float]:
    """Seconds of a call without sharing, what sharing adds, and the standard error of that."""
    shared, unshared = (pytc.compile(step, share=share, donate=donate) for share in (True, False))
    calls = max(5, 400 // (leaves + 3))
    differences, times = [], []
    for turn in range(turns + 1):
        order = (shared, unshared) if turn % 2 else (unshared, shared)
        seconds = {compiled: burst(compiled, leaves, calls) for compiled in order}
        if turn:  # the first compiles
            differences.append(seconds[shared] - seconds[unshared])
            times.append(seconds[unshared])
    low, median, high = statistics.quantiles(differences, n=4)
    error = 1.25 * (high - low) / 1.35 / math.sqrt(turns)  # of a median, as far as the differences are normal
    return statistics.median(times), median, error


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=500, metavar="N", help="turns for each case (default: 500)")
    options = parser.parse_args()
    print(f"{'':22}{'donate':>8}{'a call, µs':>12}{'sharing, µs':>13}{'of a call':>11}{'error':>8}")
    for donate in DONATIONS:
        for name, burst, step, leaves in CASES:
            call, added, error = compared(burst, step, leaves, options.turns, donate)
            told = f"{call * 1e6:>12.2f}{added * 1e6:>13.2f}{added / call:>11.1%}{error / call:>8.1%}"
            print(f"{name:22}{donate:>8}{told}", flush=True)


if __name__ == "__main__":
    main()
