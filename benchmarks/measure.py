"""All figures of one workload, under every contender."""

from __future__ import annotations

import dataclasses
import functools
import gc
from typing import Any

import jax

from benchmarks import contenders, timing, workloads
from benchmarks.memory import Executables, Memory
from benchmarks.observe import Observation, digests, observe
from benchmarks.workload import Step, Workload


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much to measure."""

    size: int = 4
    calls: int = 6
    """Calls whose results are compared and whose buffers are watched."""
    rounds: int = 9
    """Rounds of timing in which each contender has a turn."""
    seconds: float = 0.4
    """How long a turn should take."""
    first_rounds: int = 9
    """Rounds of first calls, each with everything compiled anew."""


QUICK = Effort(size=1, calls=3, rounds=1, seconds=0.0, first_rounds=1)


@dataclasses.dataclass(frozen=True)
class Row:
    """One contender on one workload."""

    memory: Memory
    total: int
    compilations: int
    """How often the step was compiled over the first `calls` calls."""
    seen: Observation
    fresh: int
    """Bytes of arrays that a call puts where none was, once settled."""
    held: int
    """Bytes of arrays alive before or after a call, once settled; what the compiler calls temporary is not in it."""
    settled: int
    same_bits: bool
    """Whether each result of each call is that of `jax.jit`, bit for bit."""
    step_milliseconds: timing.Spread
    step_over_by_hand: timing.Spread
    first_call_seconds: timing.Spread
    first_call_over_jit: timing.Spread


@dataclasses.dataclass(frozen=True)
class Result:
    """One workload."""

    size: int
    leaves: int
    """Arrays passed at each call."""
    argument_bytes: int
    by_hand: list[str]
    """The parameters that the person with `donate_argnums` donates."""
    rows: dict[str, Row]
    excluded: dict[str, str]
    """Contenders that cannot take part, and why."""


def measure(name: str, effort: Effort, names: tuple[str, ...] = contenders.ALL) -> Result:
    """Every contender on the workload `name`."""
    workload = workloads.make(name, effort.size)
    donate = contenders.best_by_hand(workload)
    taking_part, excluded = entrants(workload, names)

    steps = {c: contenders.build(c, workload, donate) for c in taking_part}
    jax.clear_caches()  # what the search for `donate` compiled
    plans = {}
    for contender, step in steps.items():
        if contender == contenders.BY_HAND and not donate:
            jax.clear_caches()  # or it would find the executable of the very same `jax.jit`
        plans[contender] = compile_and_watch(workload, step, effort)
    bits = {c: digests(workload, step, effort.calls) for c, step in steps.items()}
    times = step_seconds(workload, steps, effort)
    first = first_call_seconds(name, donate, taking_part, effort)

    over_by_hand = timing.ratios(times, contenders.BY_HAND)
    over_jit = timing.ratios(first, contenders.JIT)
    arguments = jax.tree.leaves(workload.arguments())
    return Result(
        size=effort.size,
        leaves=len(arguments),
        argument_bytes=sum(a.nbytes for a in arguments),
        by_hand=[contenders.parameters(workload)[i] for i in donate],
        rows={
            c: Row(
                memory=plan,
                total=plan.total,
                compilations=compilations,
                seen=seen,
                fresh=seen.fresh[-1],
                held=seen.held[-1],
                settled=seen.settled,
                same_bits=bits[c] == bits[contenders.JIT],
                step_milliseconds=timing.Spread.of([1e3 * s for s in times[c]]),
                step_over_by_hand=over_by_hand[c],
                first_call_seconds=timing.Spread.of(first[c]),
                first_call_over_jit=over_jit[c],
            )
            for c, (plan, compilations, seen) in plans.items()
        },
        excluded=excluded,
    )


def entrants(workload: Workload, names: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """The contenders that can take part, and why each of the others cannot."""
    kept = set(contenders.never_donated(workload))
    if contenders.FILTER_JIT not in names or kept in (set(), {0}):
        return list(names), {}
    arguments = ", ".join(contenders.parameters(workload)[i] for i in sorted(kept))
    why = f"cannot take part: it promises all arguments, or all but the first, and the loop reads {arguments} again"
    return [c for c in names if c != contenders.FILTER_JIT], {contenders.FILTER_JIT: why}


def compile_and_watch(workload: Workload, step: Step, effort: Effort) -> tuple[Memory, int, Observation]:
    """The compiler's figures for what ran, how often the step was compiled, and what became of the buffers."""
    gc.collect()
    workload.arguments()  # compiles what makes them, so that only what the loop compiles is counted below
    executables = Executables(jax.devices()[0])
    seen = observe(workload, step, effort.calls)
    return *executables.step(), seen


def step_seconds(workload: Workload, steps: dict[str, Step], effort: Effort) -> dict[str, list[float]]:
    """Seconds a step, interleaved."""
    once = min(timing.loop_seconds(workload, step, 2) for step in steps.values()) / 2
    calls = max(2, min(200, int(effort.seconds / once)))
    measurements = {c: functools.partial(timing.loop_seconds, workload, step, calls) for c, step in steps.items()}
    seconds = timing.interleaved(measurements, effort.rounds)
    return {c: [s / calls for s in times] for c, times in seconds.items()}


def first_call_seconds(
    name: str, donate: tuple[int, ...], taking_part: list[str], effort: Effort
) -> dict[str, list[float]]:
    """Seconds that the first call takes: trace, lower, compile and run, for a step never seen before."""

    def first(contender: str) -> float:
        jax.clear_caches()
        workload = workloads.make(name, effort.size)
        workload.arguments()
        return timing.loop_seconds(workload, contenders.build(contender, workload, donate), 1)

    return timing.interleaved({c: functools.partial(first, c) for c in taking_part}, effort.first_rounds)


def as_json(result: Any) -> Any:
    """Dataclasses as dictionaries, ready for `json.dump`."""
    return dataclasses.asdict(result)
