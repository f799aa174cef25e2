"""Times, taken so that a noisy machine favours nobody: contenders take turns, and ratios are taken within a turn."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from benchmarks.observe import batches
from benchmarks.workload import Step, Workload

Measurement = Callable[[], float]
"""Runs something and returns seconds."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of measurements."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)


def interleaved(measurements: Mapping[str, Measurement], rounds: int) -> dict[str, list[float]]:
    """Each measurement once a round, the order rotated from round to round, garbage collected in between."""
    names = list(measurements)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        start = turn % len(names)
        gc.collect()
        for name in names[start:] + names[:start]:
            seconds[name].append(measurements[name]())
    return seconds


def ratios(seconds: dict[str, list[float]], reference: str) -> dict[str, Spread]:
    """Each contender's time over that of `reference` in the same round."""
    return {
        name: Spread.of([mine / base for mine, base in zip(times, seconds[reference], strict=True)])
        for name, times in seconds.items()
    }


def loop_seconds(workload: Workload, step: Step, calls: int) -> float:
    """Seconds that the workload's loop takes for `calls` steps, from its first batch to its last result."""
    started = 0.0
    ready = list(batches(workload, calls))
    jax.block_until_ready(ready)
    ready.reverse()

    def timed() -> Iterator[Any]:
        nonlocal started
        started = time.perf_counter()
        while ready:
            yield ready.pop()

    jax.block_until_ready(workload.loop(step, lambda: jax.block_until_ready(workload.init()), timed(), ignore))
    return time.perf_counter() - started


def ignore(*results: Any) -> None:
    """Watch nothing."""
