"""Random JAX functions, to find the program that a pass gets wrong.

    python -m tests.random_functions --functions 1000 --seed 0

`random_function(seed)` gives the same function and arguments whenever it is called. A function is not written down
anywhere: while JAX traces it, it draws its next operation from a random number generator that starts from the seed,
and applies it to arrays that it has. So tracing it twice gives one jaxpr, as long as the arguments have the same
types, and any failure is reproduced from its seed.

`check(seed)` is the whole comparison, of each pass alone and of the compiler, which may write over its arguments:
results equal to those of `jax.jit` to the bit and in type, the same effects in the same order, jaxprs that type-check,
never more equations, and nothing left for a second time. For that every program is compiled alone.

`check_quickly(seed)` looks at the same with two compilations: one of what the compiler makes of the function, one of
`jax.jit`'s program and what each pass makes of it, together. Where they differ, `check` has the last word. Of twenty
batches all but one are checked so, with little optimisation by XLA, for `jax.jit` and for pytc alike; one by `check`,
at full optimisation.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import gc
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pytc
from pytc.jax_compat import rules
from pytc.passes import subjaxprs
from tests.comparison import by_jax_jit, check_passes, check_passes_together
from tests.random_operations import DTYPES, Draw, block, operate

BATCH = 200  # functions a process; what JAX keeps for one is of no use to the next
QUICKLY = 19  # batches of twenty
QUICK_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
BEGUN, FAILED, LOST = "-> ", "it failed\n", "jax.jit leaves out an effect of it\n"
REFUSED = "jax.jit raises the same\n"
SIZES = (1, 1, 1, 2, 2, 3, 4, 8)  # operations of a function, and of the functions inside it up to this depth
DEPTHS = (1, 2, 2, 3)
SHAPES = ((), (3,), (4,), (2, 3), (3, 3), (1, 4))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    """A tree of two."""

    one: Any
    other: Any


@dataclasses.dataclass(frozen=True)
class Case:
    """A random function and arguments for it."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    log: list[Any]
    """What the function's effects leave behind; whoever runs it empties it first."""


def random_function(seed: int) -> Case:
    """The function of that number, and its arguments: pytrees with shared and static leaves, some never used."""
    rng = random.Random(seed)
    log: list[Any] = []
    captured = [_array(rng, numpy=rng.random() < 0.3) for _ in range(2)]
    leaves = [_leaf(rng) for _ in range(rng.randint(1, 5))]
    if rng.random() < 0.4:
        leaves.append(rng.choice(leaves))
    parts: list[list[Any]] = [[], [], []]
    for leaf in leaves:
        rng.choice(parts).append(leaf)
    first, second = _tree(rng, parts[0]), _tree(rng, parts[1])
    inside = rng.getrandbits(64)

    def fun(first: Any, *rest: Any, **named: Any) -> Any:
        rng = random.Random(inside)
        draw = Draw(rng, rng.choice(DEPTHS), log, True, captured)
        arrays = [x for x in jax.tree.leaves((first, rest, named)) if not isinstance(x, str | Colour)]
        pool = [jnp.asarray(x) for x in arrays if draw.rng.random() < 0.8]
        made = operate(draw, pool, rng.choice(SIZES))
        if draw.rng.random() < 0.3:
            # The same for each: of a leaf that is shared this makes the same value twice.
            each = block(draw.inner())
            made += [x for array in arrays for x in each(jnp.asarray(array))[:1]]
        results = [*made[-4:], *(x for x in arrays if isinstance(x, jax.Array) and draw.rng.random() < 0.3)]
        if draw.rng.random() < 0.3:
            results.append(results[0])
        if draw.rng.random() < 0.2:
            results.append("a string")
        return _tree(draw.rng, results)

    return Case(fun, (first, second), {"named": parts[2]} if parts[2] else {}, log)


def _array(rng: random.Random, numpy: bool = False) -> Any:
    shape, dtype = rng.choice(SHAPES), rng.choice(DTYPES)
    values = np.random.default_rng(rng.getrandbits(32)).normal(size=shape) * 2
    array = np.asarray(np.abs(values) if dtype[0] in "iu" else values).astype(jnp.dtype(dtype))
    return array if numpy else jnp.asarray(array)


def _leaf(rng: random.Random) -> Any:
    return rng.choice(
        [
            _array,
            _array,
            _array,
            _array,
            functools.partial(_array, numpy=True),
            lambda r: jax.random.key(r.randrange(9)),
            lambda r: r.choice([1, 2.5, True]),
            lambda r: "text",
            lambda _: Colour.RED,
        ]
    )(rng)


def _tree(rng: random.Random, leaves: Sequence[Any]) -> Any:
    """A random pytree with these leaves."""
    if len(leaves) < 2:
        return leaves[0] if leaves else None
    cut = rng.randrange(1, len(leaves))
    parts = [_tree(rng, leaves[:cut]), _tree(rng, leaves[cut:])]
    return rng.choice([tuple, list, lambda p: {"a": p[0], "b": p[1]}, lambda p: Pair(*p)])(parts)


class LostByJax(Exception):
    """`jax.jit` leaves out an effect of the function, which pytc does not."""


def check(seed: int) -> None:
    """Raise AssertionError unless function number `seed` survives every pass, and the whole compiler, unchanged."""
    case = random_function(seed)
    try:
        check_passes(case.fun, case.args, case.kwargs, case.log)
    except AssertionError:
        if _jax_loses_an_effect(case):
            raise LostByJax from None
        raise


def _jax_loses_an_effect(case: Case) -> bool:
    """Whether JAX's own dead-code elimination takes an effect away, where nothing is dead."""
    closed = pytc.stage(case.fun, *case.args, **case.kwargs).jaxpr
    alive, _ = rules.dce(closed.jaxpr, [True] * len(closed.jaxpr.outvars), True)
    effects = [list(subjaxprs.effects_in_order(jaxpr)) for jaxpr in (closed.jaxpr, alive)]
    return effects[0] != effects[1]


def check_quickly(seed: int) -> None:
    """As `check`, with two compilations where these show no difference."""
    case = random_function(seed)
    try:
        check_passes_together(case.fun, case.args, case.kwargs, case.log)
    except AssertionError:
        check(seed)


def main() -> int:
    """Run the functions in processes of their own, a batch at a time, and say how many there were."""
    parser = argparse.ArgumentParser(description="Compare pytc with jax.jit on random functions.")
    parser.add_argument("--functions", type=int, default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="number of the first (default: 0)")
    parser.add_argument("--batch", choices=list(BATCHES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.functions)
    if options.batch:
        return _batch(seeds, BATCHES[options.batch])
    failed: list[int] = []
    too_much_for_jax: list[int] = []
    lost: list[int] = []
    start = time.perf_counter()
    while seeds:
        batch = range(seeds[0], min(seeds.stop, seeds[0] - seeds[0] % BATCH + BATCH))
        if done := seeds[0] - options.seed:
            each = (time.perf_counter() - start) / done
            print(f"{done} of {options.functions}: {len(failed)} failed, {each:.2f} s each", flush=True)
        run = _Batch(batch, "quickly" if _is_quick(batch) else "check")
        failed += run.failed
        lost += run.lost
        too_much_for_jax += run.refused
        if run.status != 0:
            # XLA ends the process (a negative status) where it finds itself in the wrong; ours only if jax.jit lives.
            alone = range(run.last, run.last + 1)
            again = _Batch(alone, "check")
            if again.status != 0 and _Batch(alone, "jax").status == again.status < 0:
                too_much_for_jax.append(run.last)
            elif again.status != 0 or again.failed:
                failed.append(run.last)
            lost += again.lost
            too_much_for_jax += again.refused
        seeds = range(run.last + 1, seeds.stop)
    seconds = time.perf_counter() - start
    print(f"{options.functions} functions from seed {options.seed}: {len(failed)} failed, {seconds:.0f} s", *failed)
    if too_much_for_jax:
        print(f"{len(too_much_for_jax)} of them are too much for jax.jit itself:", *too_much_for_jax)
    if lost:
        print(f"{len(lost)} of them have an effect that jax.jit leaves out:", *lost)
    return 1 if failed else 0


def _is_quick(batch: range) -> bool:
    return batch[0] // BATCH % 20 < QUICKLY


class _Batch:
    """A batch in a process of its own, at its end: what it printed is printed, and read."""

    def __init__(self, seeds: range, how: str) -> None:
        options = ["--functions", str(len(seeds)), "--seed", str(seeds[0]), "--batch", how]
        command = [sys.executable, "-m", "tests.random_functions", *options]
        flags = os.environ.get("XLA_FLAGS", "") + (f" {QUICK_FLAGS}" if _is_quick(seeds) else "")
        self.last = seeds[0]
        """The last function that was begun."""
        self.failed: list[int] = []
        self.lost: list[int] = []
        """Functions of which `jax.jit` leaves out an effect."""
        self.refused: list[int] = []
        """Functions that `jax.jit` cannot compile either."""
        environment = os.environ | {"XLA_FLAGS": flags}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            for line in process.stdout or ():
                if line.startswith(BEGUN):
                    self.last = int(line.removeprefix(BEGUN))
                elif line == LOST:
                    self.lost.append(self.last)
                elif line == REFUSED:
                    self.refused.append(self.last)
                else:
                    print(line, end="", flush=True)
                    self.failed += [self.last] if line == FAILED else []
        self.status = process.returncode


def _batch(seeds: range, each: Callable[[int], None]) -> int:
    gc.freeze()  # what importing JAX has left need not be looked at again
    for seed in seeds:
        print(BEGUN, seed, sep="", flush=True)
        try:
            each(seed)
        except LostByJax:
            print(LOST, end="", flush=True)
        except Exception as error:
            told = f"{seed}:\n{traceback.format_exc(limit=-3)}" + FAILED
            print(REFUSED if _jax_raises(type(error), seed) else told, end="", flush=True)
    return 0


def _only_jax(seed: int) -> None:
    case = random_function(seed)
    by_jax_jit(case.fun, case.args, case.kwargs)


def _jax_raises(kind: type[Exception], seed: int) -> bool:
    """Whether `jax.jit` by itself raises such an error: JAX cannot lower the function, or XLA fails on it."""
    try:
        _only_jax(seed)
    except kind:
        return True
    return False


BATCHES = {"quickly": check_quickly, "check": check, "jax": _only_jax}


if __name__ == "__main__":
    sys.exit(main())
