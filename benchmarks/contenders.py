"""The contenders: four ways to compile the same step."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax

import pytc
from benchmarks.memory import Memory, memory
from benchmarks.workload import Step, Workload

JIT, BY_HAND, FILTER_JIT, PYTC = "jax.jit", "by hand", "filter_jit", "pytc"
ALL = (JIT, BY_HAND, FILTER_JIT, PYTC)
"""`jax.jit`; `jax.jit` with the best `donate_argnums`; `equinox.filter_jit` promising all it can; `pytc.compile`."""

PROMISED = "pytc, promised"
"""`pytc.compile` with `donate_argnums`, so that it proves nothing: beside `pytc` it shows what the proof costs."""


def build(contender: str, workload: Workload, donate: tuple[int, ...]) -> Step:
    """The workload's step as `contender` compiles it. `donate` is what the person with `donate_argnums` chose."""
    if contender == JIT:
        return jax.jit(workload.step)
    if contender == BY_HAND:
        return jax.jit(workload.step, donate_argnums=donate)
    if contender == FILTER_JIT:
        kept = never_donated(workload)
        return eqx.filter_jit(
            workload.step, donate="none" if not workload.dead else "all-except-first" if kept else "all"
        )
    if contender == PYTC:
        return pytc.compile(workload.step)
    if contender == PROMISED:
        return pytc.compile(workload.step, donate_argnums=donate or None, donate="auto" if donate else "none")
    raise ValueError(f"no contender is called {contender!r}; there are {', '.join((*ALL, PROMISED))}")


def parameters(workload: Workload) -> list[str]:
    """The names of the step's parameters."""
    return list(inspect.signature(workload.step).parameters)


def never_donated(workload: Workload) -> list[int]:
    """The arguments that the loop reads again."""
    return [i for i in range(len(parameters(workload))) if i not in workload.dead]


def subsets(workload: Workload, arguments: tuple[Any, ...]) -> Iterator[tuple[int, ...]]:
    """Each `donate_argnums` that is a true promise, without arguments that JAX could not use: it pairs arrays of one
    shape and dtype."""
    kinds = [kinds_of(a) for a in arguments]
    results = kinds_of(jax.eval_shape(workload.step, *arguments))
    useful = [i for i in workload.dead if kinds[i] & results]
    for count in range(len(useful) + 1):
        yield from itertools.combinations(useful, count)


def kinds_of(tree: Any) -> set[tuple[Any, Any]]:
    """The shapes and dtypes of a tree's arrays."""
    return {(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)}


def best_by_hand(workload: Workload) -> tuple[int, ...]:
    """The best `donate_argnums`, by compiling with each of the `subsets`: fewest bytes in all, then the fewest copied,
    then the fewest arguments. More than a person would try, so nobody's hand does better argument by argument."""
    arguments = workload.arguments()

    def rank(donate: tuple[int, ...]) -> tuple[int, int, int]:
        found = compiled_memory(workload.step, arguments, donate)
        return found.total, found.copied, len(donate)

    return min(subsets(workload, arguments), key=rank)


def compiled_memory(step: Step, arguments: tuple[Any, ...], donate: tuple[int, ...]) -> Memory:
    """The compiler's figures for `jax.jit(step, donate_argnums=donate)`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        compiled = jax.jit(step, donate_argnums=donate).lower(*arguments).compile()
    return memory(compiled.memory_analysis(), compiled.as_text() or "")
