"""`python -m benchmarks.compile_time`: what the compiler itself costs, and whether that grows with the program.

    python -m benchmarks.compile_time                  programs of 1,000 to 30,000 equations
    python -m benchmarks.compile_time --most 200000    and up to 200,000
    python -m benchmarks.compile_time --shape deep     one shape of program

Four shapes: `flat` is one long chain of equations; `deep` puts them into loops, branches, remat and inner `jit`s,
twelve levels deep; `wide` updates many parameters, as an optimiser does; `gpt` is the training step of a language
model. For each size: the time of every pass for an equation; all passes together beside what JAX takes to trace and
lower, and to compile where the program is small enough for XLA; there also the first call of `pytc.compile` beside
that of `jax.jit`, by turns, the best of a few. Times are of the processor, not of the clock, so that it does not
matter what else runs. What Python's garbage collector takes meanwhile has a column of its own: it looks at all that
JAX holds, at whatever moment its turn comes, and is in the share of JAX's time, not in the times of the passes.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import optax
from jax import lax

import pytc
from benchmarks.workloads import gpt_adamw
from pytc.passes import subjaxprs

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 200_000)
LARGEST_FOR_XLA = 3_000
REPEATS = 3
_BEFORE, _AFTER = pytc.passes.split(pytc.passes.pipeline)
PASSES = (*_BEFORE, pytc.passes.snapshot, *_AFTER)

Function = Callable[..., Any]
Make = Callable[[int], tuple[Function, tuple[Any, ...]]]


def flat(equations: int) -> tuple[Function, tuple[Any, ...]]:
    """A chain of equations, each of which reads the one before."""

    def fun(x: Any, y: Any) -> Any:
        for i in range(equations // 4):
            x = jnp.sin(x) * y
            x, y = (lax.add(y, x), x) if i % 5 else (lax.max(x, y), y)
            y = lax.neg(y)
        return x, y

    return fun, (jnp.ones(8), jnp.ones(8))


def deep(equations: int) -> tuple[Function, tuple[Any, ...]]:
    """Blocks of twelve levels of loops, branches and inner `jit`s inside each other."""

    def level(depth: int) -> Function:
        if depth == 0:
            return lax.sin
        inner = level(depth - 1)
        kinds: list[Function] = [
            lambda x: lax.scan(lambda c, _: (inner(c) * 2, None), x, None, length=2)[0],
            lambda x: lax.cond(x[0] > 0, lambda v: inner(v) + 1, lax.cos, x),
            lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, inner(c[1])), (0, x))[1],
            jax.jit(lambda v: lax.mul(inner(v), v)),
            jax.checkpoint(inner),
        ]
        return kinds[depth % len(kinds)]

    blocks = max(1, equations // subjaxprs.count(jax.make_jaxpr(level(12))(jnp.ones(8)).jaxpr))

    def fun(x: Any) -> Any:
        for _ in range(blocks):
            x = level(12)(x)
        return x

    return fun, (jnp.ones(8),)


def wide(equations: int) -> tuple[Function, tuple[Any, ...]]:
    """An optimiser's step for many parameters: as many inputs and outputs as the program is long, divided by six."""
    parameters = max(1, equations // 12)

    def fun(params: list[Any], moments: list[Any], grads: list[Any]) -> Any:
        moments = [0.9 * m + 0.1 * g for m, g in zip(moments, grads, strict=True)]
        return [p - 0.01 * m / (jnp.sqrt(m * m) + 1e-8) for p, m in zip(params, moments, strict=True)], moments

    arrays = [jnp.ones(8) for _ in range(3 * parameters)]
    return fun, (arrays[:parameters], arrays[parameters : 2 * parameters], arrays[2 * parameters :])


def gpt(equations: int) -> tuple[Function, tuple[Any, ...]]:
    """The training step of a small language model, of about so many equations."""
    params = gpt_adamw.init_gpt(jax.random.key(0), layers=max(1, equations // 170), width=32, length=16)
    optimizer = optax.adamw(3e-4, weight_decay=0.1)

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(gpt_adamw.loss_fn)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step, (params, optimizer.init(params), gpt_adamw.tokens(1, 0))


SHAPES: dict[str, Make] = {"flat": flat, "deep": deep, "wide": wide, "gpt": gpt}


def main() -> None:
    """Measure what the command line asks for and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_time",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", choices=SHAPES, help="one shape of program; all by default")
    parser.add_argument("--most", type=int, default=30_000, help="the largest program, in equations (default: 30000)")
    options = parser.parse_args()
    passes = [each.__name__ for each in PASSES]
    print(f"{'':6}{'equations':>10}{'stage':>9}" + "".join(f"{name:>10}" for name in passes) + f"{'all':>9}", end="")
    print(f"{'collector':>11}{'of JAX':>9}{'first call':>12}")
    print(
        f"{'':16}{'µs/eqn':>9}" + f"{'µs/eqn':>10}" * len(passes) + f"{'µs/eqn':>9}{'µs/eqn':>11}{'':9}{'of jit':>12}"
    )
    for shape in [options.shape] if options.shape else SHAPES:
        for size in SIZES:
            if size <= options.most:
                print(f"{shape:6}" + row(SHAPES[shape], size), flush=True)


def row(make: Make, size: int) -> str:
    """The figures for one program."""
    fun, args = make(size)
    gc.collect()
    seconds, program = timed(lambda: pytc.stage(fun, *args))
    equations = subjaxprs.count(program.jaxpr.jaxpr)
    text = f"{equations:>10,}{per(seconds, equations):>9}"
    together = collecting = 0.0
    for each in PASSES:
        # Once: JAX remembers what it found dead in a jaxpr, and a second run would only look that up.
        with Collections() as collections:
            took, program = timed(lambda p=program, f=each: f(p))
        took -= collections.seconds
        together += took
        collecting += collections.seconds
        text += f"{per(took, equations):>10}"
    jax.clear_caches()
    lower = lambda: jax.jit(fun).trace(*args).lower()  # noqa: E731
    of_jax, _ = timed(lower if equations > LARGEST_FOR_XLA else lambda: lower().compile())
    text += f"{per(together, equations):>9}{per(collecting, equations):>11}{(together + collecting) / of_jax:>9.1%}"
    if equations > LARGEST_FOR_XLA:
        return text + f"{'-':>12}"
    return text + f"{first_calls(make, size):>12.2f}"


def first_calls(make: Make, size: int) -> float:
    """Work until the first result of `pytc.compile`, for that of `jax.jit`: tracing, lowering, compiling, running."""
    found: dict[Function, list[float]] = {pytc.compile: [], jax.jit: []}
    for _ in range(REPEATS):
        for compiler, seconds in found.items():
            fun, args = make(size)
            jax.clear_caches()
            gc.collect()
            compiled, arguments = compiler(fun), list(args)
            del args
            seconds.append(timed(lambda f=compiled, a=arguments: called(f, a))[0])
    return min(found[pytc.compile]) / min(found[jax.jit])


def called(compiled: Function, arguments: list[Any]) -> Any:
    """A call as people write it: an argument is given up for its new value, the others live on. `arguments` is empty
    afterwards, so that nobody holds them."""
    first, *rest = arguments
    arguments.clear()
    if not rest:
        first = compiled(first)
        return jax.block_until_ready(first)
    second, *last = rest
    del rest
    if not last:
        first, second = compiled(first, second)[:2]
        return jax.block_until_ready((first, second))
    first, second = compiled(first, second, last[0])[:2]
    return jax.block_until_ready((first, second, last))


class Collections:
    """Seconds of processor time that the garbage collector takes inside the `with` block."""

    def __enter__(self) -> Self:
        self.seconds = 0.0
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _: dict[str, int]) -> None:
        self.seconds += time.process_time() * (-1 if phase == "start" else 1)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of processor time that `work` takes, on all threads, and its result; not what others do meanwhile."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def per(seconds: float, equations: int) -> str:
    """Microseconds for each of so many equations."""
    return f"{seconds / equations * 1e6:.2f}"


if __name__ == "__main__":
    main()
