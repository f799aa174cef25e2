"""Data-parallel training on eight devices: `pytc.pmap` against `jax.pmap` with what can be written by hand.

The devices are eight of the host's, made by a flag of XLA's (`ENVIRONMENT`), so the memory is that of each device, and
the time is that of one machine that does the work of all.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import optax

import pytc
from benchmarks import timing
from benchmarks.measure import Effort, as_json
from benchmarks.memory import Executables
from benchmarks.observe import batches, digests
from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload
from benchmarks.workloads.mlp_adam import images, init_mlp, mlp
from pytc.jax_compat.arrays import shards_of

DEVICES = 8
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}"}
"""What the process that measures has to be started with."""

PMAP, OUT_AXES, BY_HAND, FILTER_PMAP, PYTC = "jax.pmap", "out_axes", "by hand", "filter_pmap", "pytc"
ALL = (PMAP, OUT_AXES, BY_HAND, FILTER_PMAP, PYTC)
"""`jax.pmap` that stacks its results, of which the loop takes the first device's; with `out_axes=None` by hand; with
`donate_argnums` as well; `equinox.filter_pmap` with `out_axes=None`, promising all; `pytc.pmap` with `in_axes` only."""

TINY, ROWS, SETTLED = 8, 16, 3
"""The width of the network where the price of a call is measured; images that each device is given; steps that are not
timed."""

IN_AXES = (None, None, 0)


def workload(width: int) -> Workload:
    """Adam on a multilayer perceptron: parameters go in whole and come out whole, with gradients averaged over rows."""
    optimizer = optax.adam(1e-3)

    def step(params: Arrays, opt_state: Arrays, batch: Arrays) -> tuple[Arrays, Arrays, jax.Array]:
        def loss_fn(params: Arrays) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(mlp(params, batch[0]), batch[1]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        loss, grads = jax.lax.pmean((loss, grads), "batch")
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    def init() -> tuple[Arrays, ...]:
        params = init_mlp(jax.random.key(0), [784, width, width, 10])
        return params, optimizer.init(params)

    def batch(i: int) -> Arrays:
        return jax.tree.map(lambda x: x.reshape(DEVICES, ROWS, *x.shape[1:]), images(DEVICES * ROWS, i))

    return Workload(step, init, loop, dead=(0, 1, 2), batch=batch)


def loop(step: Step, init: Init, steps: Batches, watch: Watch) -> tuple[Arrays, ...]:
    params, opt_state = init()
    for batch in steps:
        params, opt_state, loss = step(params, opt_state, batch)
        # Several programs at once, each of which waits for eight threads, starve one another where there are few cores.
        jax.block_until_ready((params, loss))
        watch(loss, params, opt_state)
    return params, opt_state


def build(contender: str, step: Step) -> Step:
    """The step as `contender` maps it."""
    if contender == PMAP:
        mapped = jax.pmap(step, "batch", in_axes=IN_AXES)
        return lambda *args: jax.tree.map(lambda x: x.addressable_data(0)[0], jax.block_until_ready(mapped(*args)))
    if contender == OUT_AXES:
        return jax.pmap(step, "batch", in_axes=IN_AXES, out_axes=None)
    if contender == BY_HAND:
        return jax.pmap(step, "batch", in_axes=IN_AXES, out_axes=None, donate_argnums=(0, 1))
    if contender == FILTER_PMAP:
        return eqx.filter_pmap(step, axis_name="batch", in_axes=IN_AXES, out_axes=None, donate="all")
    if contender == PYTC:
        return pytc.pmap(step, "batch", in_axes=IN_AXES)
    raise ValueError(f"no contender is called {contender!r}; there are {', '.join(ALL)}")


def measure(effort: Effort) -> dict[str, dict[str, Any]]:
    """For each contender the compiler's figures on each device, whether the parameters stay where they are from the
    second step on, whether its results are those of `jax.pmap` to the bit, and its time over that of `BY_HAND`.

    Raises `RuntimeError` where there are not eight devices.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # which counts until the first look at the devices
    if jax.device_count() != DEVICES:
        raise RuntimeError(f"there are {jax.device_count()} devices: set {ENVIRONMENT}")
    large, tiny = workload(128 * effort.size), workload(TINY)
    steps = {contender: build(contender, large.step) for contender in ALL}
    plans, in_place = {}, {}
    for contender, step in steps.items():
        large.arguments()
        executables = Executables(jax.devices()[0])
        in_place[contender] = stays_in_place(large, step, effort.calls)
        plans[contender] = executables.step()[0]
    bits = {contender: digests(large, step, effort.calls) for contender, step in steps.items()}
    times = seconds(large, steps, effort)
    calls = seconds(tiny, {contender: build(contender, tiny.step) for contender in ALL}, effort)
    over_by_hand, call_over_by_hand = timing.ratios(times, BY_HAND), timing.ratios(calls, BY_HAND)
    return {
        contender: {
            "memory": as_json(plan),
            "total": plan.total,
            "in_place": in_place[contender],
            "same_bits": bits[contender] == bits[PMAP],
            "step_milliseconds": as_json(timing.Spread.of([1e3 * s for s in times[contender]])),
            "step_over_by_hand": as_json(over_by_hand[contender]),
            "call_milliseconds": as_json(timing.Spread.of([1e3 * s for s in calls[contender]])),
            "call_over_by_hand": as_json(call_over_by_hand[contender]),
        }
        for contender, plan in plans.items()
    }


def stays_in_place(workload: Workload, step: Step, calls: int) -> bool:
    """Whether each shard of the parameters is written over the one before it, from the second step on."""
    places: list[tuple[int, ...]] = []

    def watch(_: Arrays, params: Arrays, __: Arrays) -> None:
        shards = (shard for leaf in jax.tree.leaves(params) for shard in shards_of(leaf))
        places.append(tuple(shard.unsafe_buffer_pointer() for shard in shards))

    workload.loop(step, workload.init, (workload.arguments()[-1] for _ in range(calls)), watch)
    return len(set(places)) == 1


def seconds(workload: Workload, steps: dict[str, Step], effort: Effort) -> dict[str, list[float]]:
    """Seconds a step, interleaved."""
    once = min(settled_seconds(workload, step, 2) for step in steps.values()) / 2
    calls = max(2, min(200, int(effort.seconds / once)))
    measurements = {c: functools.partial(settled_seconds, workload, step, calls) for c, step in steps.items()}
    return {c: [s / calls for s in times] for c, times in timing.interleaved(measurements, effort.rounds).items()}


def settled_seconds(workload: Workload, step: Step, calls: int) -> float:
    """Seconds that `calls` steps take, after a few in which the parameters come to be on all devices."""
    ready = list(batches(workload, calls + SETTLED))
    jax.block_until_ready(ready)
    ready.reverse()
    done, started = 0, 0.0

    def taken() -> Iterator[Arrays]:
        while ready:
            yield ready.pop()

    def watch(*_: Arrays) -> None:
        nonlocal done, started
        done += 1
        if done == SETTLED:
            started = time.perf_counter()

    workload.loop(step, workload.init, taken(), watch)
    return time.perf_counter() - started
