"""Random functions around captured weights and tables, to find one of which `hoist` changes a bit.

    python -m tests.random_captures --functions 1000 --seed 0

`random_function(seed)` gives the same function and arguments whenever it is called: it draws what it does while JAX
traces it. Its weights are captured, some as NumPy arrays; what it makes of them and of its arguments goes in and out
of loops, branches and calls of every kind. `check(seed)` compiles it with `jax.jit` and with pytc, at full
optimisation, and compares the results to the bit; it returns whether any captured array became an input.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pytc
from pytc.passes import hoist

WIDTHS = (3, 8, 17, 64)
ROWS = (1, 1, 2, 6)
Rule = Callable[["Draw", Any], Any]


class Draw:
    """Draws operations on arrays of so many rows of one width."""

    def __init__(self, rng: random.Random, arguments: Sequence[Any], weights: dict[str, list[Any]], depth: int) -> None:
        self.rng, self.arguments, self.weights, self.depth = rng, arguments, weights, depth

    def weight(self, kind: str) -> Any:
        """A captured array: `vector`, `matrix`, `cube`, `table`, `kernel`."""
        return self.rng.choice(self.weights[kind])

    def like(self, x: Any) -> Any:
        """A captured array that is broadcast to x."""
        vector = jnp.asarray(self.weight("vector"))
        return vector if self.rng.random() < 0.6 else jnp.broadcast_to(vector * 1, x.shape)

    def inner(self, depth: int | None = None) -> Draw:
        return Draw(self.rng, self.arguments, self.weights, self.depth - 1 if depth is None else depth)

    def apply(self, x: Any, most: int = 3) -> Any:
        """A few operations, one after the other; the result is again rows of that width."""
        for _ in range(self.rng.randint(1, most)):
            rules = FLAT if self.depth == 0 or self.rng.random() < 0.6 else NESTED
            x = self.rng.choice(rules)(self, x)
        return x


# -- on arrays -----------------------------------------------------------------------------------------------------


def _product(d: Draw, x: Any) -> Any:
    w = jnp.asarray(d.rng.choice((d.weight("matrix"), d.weight("matrix"), *d.arguments)))
    return d.rng.choice(
        (
            lambda: x @ w,
            lambda: x @ w,
            lambda: x @ w.T,
            lambda: (w @ x.T).T,
            lambda: jnp.einsum("ij,kj->ik", x, w),
            lambda: x[0] @ w + x,
            lambda: w @ x[0] + x,
            lambda: lax.dot_general(x, w, (((1,), (0,)), ((), ()))) * 0.5,
            lambda: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32),
        )
    )()


def _stacked(d: Draw, x: Any) -> Any:
    w = jnp.asarray(d.weight("cube"))
    return d.rng.choice(
        (
            lambda: jnp.einsum("rd,sde->rse", x, w).sum(1),
            lambda: jax.vmap(lambda m: x @ m)(w).mean(0),
            lambda: lax.scan(lambda c, m: (jnp.tanh(c @ m), None), x, w)[0],
            lambda: lax.scan(lambda c, m: (c, c @ m), x, w)[1][-1],
            lambda: x @ w[0] - x @ w[1],
            lambda: x @ lax.dynamic_index_in_dim(w, _place(x, w), keepdims=False),
        )
    )()


def _place(x: Any, table: Any) -> Any:
    return lax.rem((jnp.abs(jnp.nan_to_num(x)).sum() * 7).astype(jnp.int32), np.int32(table.shape[0]))


def _look_up(d: Draw, x: Any) -> Any:
    table = jnp.asarray(d.weight("table"))
    at = _place(x, table)
    row = d.rng.choice(
        (
            lambda: table[at],
            lambda: table[jnp.arange(len(x)) + at],
            lambda: lax.dynamic_slice(table, (at, 0), (1, x.shape[1])),
            lambda: jnp.take(table, jnp.stack([at, at * 0]), axis=0).sum(0),
        )
    )()
    return d.rng.choice((lambda: row + x, lambda: row * x, lambda: row @ jnp.asarray(d.weight("matrix")) + x))()


def _convolve(d: Draw, x: Any) -> Any:
    kernel = jnp.asarray(d.weight("kernel"))
    return lax.conv_general_dilated(x[:, None], kernel, (1,), "SAME")[:, 0]


def _beside(d: Draw, x: Any) -> Any:
    c = d.like(x)
    return d.rng.choice(
        (
            lambda: x + c,
            lambda: x - c,
            lambda: c - x,
            lambda: x * c,
            lambda: x / (jnp.abs(c) + 1),
            lambda: jnp.maximum(x, c),
            lambda: jnp.where(c > 0, x, 0),
            lambda: jnp.tanh(x * c) * c,
        )
    )()


def _alone(d: Draw, x: Any) -> Any:
    return d.rng.choice(
        (
            lambda: jnp.tanh(x),
            lambda: jax.nn.relu(x),
            lambda: -x,
            lambda: x * 0.5 + 1,
            lambda: x * x,
            lambda: jax.nn.softmax(x),
            lambda: x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-3),
            lambda: x - x.mean(),
            lambda: x + x.sum(0),
            lambda: x[:, ::-1],
            lambda: jnp.concatenate([x[:, 1:], x[:, :1]], 1),
            lambda: x.T.reshape(x.shape),
            lambda: x.reshape(-1)[::-1].reshape(x.shape),
            lambda: x.astype(jnp.bfloat16).astype(jnp.float32),
        )
    )()


# -- around such functions -----------------------------------------------------------------------------------------


def _several(d: Draw, x: Any) -> Any:
    return d.apply(x) + d.apply(x)


def _called(d: Draw, x: Any) -> Any:
    inner = d.inner()
    wrap = d.rng.choice((jax.jit, jax.checkpoint, _with_jvp, _mapped, _on_a_mesh, _with_batching))
    return wrap(lambda v: inner.apply(v))(x)


def _mapped(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.vmap(lambda row: fun(row[None])[0])(x) if x.shape[0] == 1 else fun(x)


def _on_a_mesh(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if not jax.sharding.get_abstract_mesh().empty:
        return fun  # there is one around it
    mesh = jax.make_mesh((1,), ("i",))
    return jax.shard_map(fun, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)


def _with_jvp(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    custom = jax.custom_jvp(fun)
    custom.defjvp(lambda primals, tangents: jax.jvp(fun, primals, tangents))
    return custom


def _with_batching(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    custom = jax.custom_batching.custom_vmap(fun)
    custom.def_vmap(lambda size, batched, x: (jax.vmap(fun)(x), True))
    return custom


def _scanned(d: Draw, x: Any) -> Any:
    inner, length = d.inner(), d.rng.randint(1, 4)
    unroll = d.rng.choice((1, 1, 2, 3))
    before = d.apply(x)
    start = d.rng.choice((lambda: x, lambda: before, lambda: jnp.zeros_like(x), lambda: jnp.arange(1.0 * x.size)))()
    start = start.reshape(x.shape)
    how = d.rng.choice(("carry", "const", "slices", "results"))
    if how == "carry":
        return lax.scan(lambda c, _: (inner.apply(c), None), start, None, length, unroll=unroll)[0] + before
    if how == "const":
        return lax.scan(lambda c, _: (c * 0.5 + inner.apply(before), None), start, None, length, unroll=unroll)[0]
    if how == "slices":
        slices = jnp.stack([before * k for k in range(1, length + 1)])
        return lax.scan(lambda c, s: (inner.apply(c + s), None), start, slices, unroll=unroll)[0]
    return lax.scan(lambda c, _: (c + 1, inner.apply(c)), start, None, length, unroll=unroll)[1].sum(0)


def _looped(d: Draw, x: Any) -> Any:
    inner, steps = d.inner(), d.rng.randint(0, 3)
    if d.rng.random() < 0.3:
        return lax.fori_loop(0, 1 + _place(x, np.zeros(3)), lambda i, c: inner.apply(c), x)
    return lax.while_loop(lambda s: s[0] < steps, lambda s: (s[0] + 1, inner.apply(s[1])), (0, d.apply(x)))[1]


def _branched(d: Draw, x: Any) -> Any:
    one, other, before = d.inner(), d.inner(), d.apply(x)
    decide = d.rng.choice((lambda: x[0, 0] > 0, lambda: x[0, 0] > 0, lambda: True))()
    return lax.cond(decide, lambda v: one.apply(v), lambda v: other.apply(v * 2), before)


def _differentiated(d: Draw, x: Any) -> Any:
    inner = d.inner(0)
    return jax.grad(lambda v: (jnp.sin(inner.apply(v)) * v).sum())(x)


FLAT: tuple[Rule, ...] = (*[_product] * 4, _stacked, _look_up, _convolve, *[_beside] * 4, _alone)
NESTED: tuple[Rule, ...] = (_several, _called, _scanned, _scanned, _looped, _branched, _differentiated)


# -- the comparison --------------------------------------------------------------------------------------------------


def random_function(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function of that number, and its arguments, float32[rows,width] and float32[width,width]."""
    rng = random.Random(seed)
    twins = random.Random(~seed)  # of its own, so that a function stays what its seed has always made
    rows, width, depth, inside = rng.choice(ROWS), rng.choice(WIDTHS), rng.choice((0, 1, 1, 2)), rng.getrandbits(64)

    def drawn(*shape: int) -> list[Any]:
        values = [np.random.default_rng(rng.getrandbits(32)).normal(size=shape) / shape[-1] ** 0.5 for _ in range(2)]
        if twins.random() < 0.1:
            values[1] = values[0]
        return [v.astype(np.float32) if rng.random() < 0.3 else jnp.asarray(v, jnp.float32) for v in values]

    weights = {
        "vector": drawn(width),
        "matrix": drawn(width, width),
        "cube": drawn(3, width, width),
        "table": drawn(11, width),
        "kernel": drawn(1, 1, 3),
    }
    args = jnp.asarray(drawn(rows, width)[0]), jnp.asarray(drawn(width, width)[0])

    def fun(x: Any, w: Any) -> Any:
        draw = Draw(random.Random(inside), (w, w.T), weights, depth)
        return draw.apply(x, 4), draw.apply(x, 4)

    return fun, args


def check(seed: int) -> bool:
    """Whether the function of that number has a captured array that became an input. Raises `AssertionError` where its
    results are not those of `jax.jit` to the bit."""
    fun, args = random_function(seed)
    wanted, got = jax.jit(fun)(*args), pytc.compile(fun, donate="none")(*args)
    for i, (one, other) in enumerate(zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True)):
        one, other = np.asarray(one), np.asarray(other)
        assert one.tobytes() == other.tobytes(), f"result {i} differs by up to {np.abs(one - other).max()}"
    return any(given.leaf is None for given in hoist(pytc.stage(fun, *args)).inputs)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.random_captures", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--functions", type=int, default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="number of the first (default: 0)")
    options = parser.parse_args(arguments)
    failed, hoisted, start = [], 0, time.perf_counter()
    for seed in range(options.seed, options.seed + options.functions):
        try:
            hoisted += check(seed)
        except Exception:
            print(f"{seed}:\n{traceback.format_exc(limit=-3)}", flush=True)
            failed.append(seed)
        if seed % 100 == 99:
            jax.clear_caches()
    seconds = time.perf_counter() - start
    print(
        f"{options.functions} functions from seed {options.seed}: {len(failed)} failed, in {hoisted} of the others a "
        f"captured array became an input, {seconds:.0f} s",
        *failed,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
