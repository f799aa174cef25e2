"""The random caller programs of `fuzz_callers`, around `pytc.compile` itself.

    python -m tests.ownership.fuzz_compiled --programs 200000 --seed 0

The two functions are compiled once and called by every program, each from call sites of its own, on tiny arrays; in
every fourth program on PRNG keys, whose bits are what is donated. A third of the programs have their state in fields, a
third in slots; half run in the midst of collections, whose finalisers look at the programs' globals.
What a program reads, what is reachable at its end, and which exception ends it, must be the same as under `jax.jit`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves, tree_map

import pytc
from tests.ownership import caller_programs, field_programs, fuzz_callers, slot_programs
from tests.ownership.caller_programs import Writer
from tests.ownership.fuzz_callers import Wrong
from tests.ownership.harness import both, first, nested


def _next(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    return jax.random.wrap_key_data(jax.random.key_data(leaf) * 3 + 1) if _is_key(leaf) else leaf * 3 + 1


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _number(leaf: Any) -> int:
    return int(np.ravel(jax.random.key_data(leaf) if _is_key(leaf) else leaf)[0])


def _first(state: Any, *rest: Any, **more: Any) -> Any:
    return tree_map(_next, state)


def _both(state: Any, batch: Any) -> Any:
    return tree_map(_next, state), tree_map(_next, batch)


def _nested(state: Any, other: Any) -> Any:
    return _both(state, other), 0


FUNCTIONS = {first: _first, both: _both, nested: _nested}


class Compiled:
    """What `fuzz_callers` asks of a `Stub`, of real functions and arrays."""

    def __init__(self, functions: dict[Any, Callable[..., Any]], keys: bool):
        self.functions = functions
        self.keys = keys
        self.compile = functions.__getitem__
        self.reads: list[int] = []
        self._numbers = itertools.count(1)

    def new(self) -> jax.Array:
        number = next(self._numbers)
        if self.keys:
            return jax.random.wrap_key_data(jnp.full(2, number, jnp.uint32))
        return jnp.asarray(np.int32(number))

    def read(self, value: Any) -> Any:
        """Read every array in `value`; raises if one was deleted."""
        self.reads.extend(_number(leaf) for leaf in tree_leaves(value) if isinstance(leaf, jax.Array))
        return value

    def glance(self, value: Any) -> None:
        """The same, of what lives only as long as others do: equal results are one object where arguments are shared,
        so more of them may be alive than under `jax.jit`."""
        tree_map(lambda leaf: _number(leaf) if isinstance(leaf, jax.Array) else None, value)


@functools.cache
def automatic() -> dict[Any, Callable[..., Any]]:
    """`pytc.compile` of the functions."""
    return {key: pytc.compile(fun) for key, fun in FUNCTIONS.items()}


@functools.cache
def plain() -> dict[Any, Callable[..., Any]]:
    """`jax.jit` of the functions."""
    return {key: jax.jit(fun) for key, fun in FUNCTIONS.items()}


class Shallow(Writer):
    """Writes programs whose states are nested once at most, so that few signatures serve them all."""

    def value(self) -> str:
        """An expression for a state."""
        text = super().value()
        if text.startswith(("{", "[", "Pair(")) or (text.startswith("(") and " if " not in text):
            form = self.rng.choice(["{{'p': first_leaf({0}), 'q': [first_leaf({1})]}}", "[first_leaf({0})]"])
            return form.format(self.place(), self.place())
        return text

    def line(self, text: str) -> None:
        """Write a line; `jax.jit` would not take an object that is no array."""
        super().line(text.replace(" = box; ", " = None; ").replace("isinstance({1}, tuple)", "False"))


WRITERS: tuple[Callable[[int], str], ...] = (
    functools.partial(field_programs.write, objects=False),
    functools.partial(caller_programs.write, kind_of_writer=Shallow),
    slot_programs.write,
)


def check(seed: int) -> None:
    """Run one program both ways; raises `Wrong` if they differ. Twice the same code: the second time its call sites are
    known, and calls go straight to `jax.jit`."""
    source = WRITERS[seed % len(WRITERS)](seed)
    code = fuzz_callers.code_of(source, seed)
    keys = seed % 4 == 0
    collecting = random.Random(seed).randint(41, 160) if seed % 2 else 0
    keeping = Compiled(plain(), keys)
    expected = fuzz_callers.run(code, seed, keeping)
    for time_ in ("first", "second"):
        donating = Compiled(automatic(), keys)
        try:
            error = fuzz_callers.run(code, seed, donating, collecting)
        except RuntimeError as raised:
            raise Wrong(f"program {seed} met a deleted array, the {time_} time\n{source}") from raised
        if (error, donating.reads) != (expected, keeping.reads):
            raise Wrong(
                f"program {seed}, the {time_} time: {error!r} instead of {expected!r}; {donating.reads} read, "
                f"not {keeping.reads}\n{source}"
            )


def main() -> None:
    """Run many programs; a line every half minute says how many there were so far."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many")
    arguments = parser.parse_args()
    start = told = time.monotonic()
    version = ".".join(map(str, sys.version_info[:3]))
    ran = 0
    for seed in range(arguments.seed, arguments.seed + arguments.programs):
        check(seed)
        ran += 1
        now = time.monotonic()
        if now - told > 30:
            told = now
            sys.stdout.write(f"{ran:,} programs, {ran / (now - start):.1f} a second\n")
            sys.stdout.flush()
        if now - start > arguments.seconds:
            break
    sys.stdout.write(
        f"{ran:,} programs from seed {arguments.seed} around pytc.compile on Python {version}: "
        f"no wrong value, no deleted array; {ran / (time.monotonic() - start):.1f} a second\n"
    )


if __name__ == "__main__":
    main()
