"""Random functions of square matrices, all of one type: every output fits into every input.

`functions` and `some_function` are of several squares; `some_chain` is of one, as most loops are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

OPERATIONS = [
    lambda x, y: x + y,
    lambda x, y: x * jnp.tanh(y),
    lambda x, y: x - jnp.mean(y),
    lambda x, y: x @ y / len(x),
    lambda x, y: jnp.roll(x, 1, 0) + y,
    lambda x, y: x.T,
    lambda x, y: jnp.sort(x, 0),
    lambda x, y: x.at[3].set(y[5]),
    lambda x, y: lax.dynamic_update_slice(x, y[:2, :2], (1, 1)),
    lambda x, y: lax.fori_loop(0, 3, lambda _, c: jnp.sin(c) + y, x),
    lambda x, y: lax.cond(x[0, 0] > 0, lambda x, y: x, lambda x, y: x * y, x, y),
    lambda x, y: jnp.where(y > 0, x, y),
]
"""Each makes a square of two."""

Choice = tuple[int, int, int]
CHOICE = st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 9), st.integers(0, 9))
Drawn = tuple[Callable[..., list[jax.Array]], list[jax.Array]]


def function(inputs: int, choices: Sequence[Choice], returned: Sequence[int]) -> Callable[..., list[jax.Array]]:
    """Of `inputs` squares: makes one more by each choice (an operation, and which two it is of), returns some."""

    def fun(*pool: Any) -> list[jax.Array]:
        made = list(pool)
        for operation, i, j in choices:
            made.append(OPERATIONS[operation](made[i % len(made)], made[j % len(made)]))
        results = made[inputs:]
        return [results[k % len(results)] for k in dict.fromkeys(k % len(results) for k in returned)]

    return fun


def arguments(inputs: int, size: int) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(size, size)), jnp.float32) for _ in range(inputs)]


@st.composite
def functions(draw: Any, size: int) -> Drawn:
    """A function of one to three squares that returns one to three of those that it makes, and arguments for it."""
    inputs = draw(st.integers(1, 3))
    choices = draw(st.lists(CHOICE, min_size=1, max_size=6))
    returned = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    return function(inputs, choices, returned), arguments(inputs, size)


def some_function(chosen: random.Random, size: int) -> tuple[Any, ...]:
    """The same, by a generator of random numbers: its draws are spread evenly, where hypothesis seeks corners."""
    inputs = chosen.randint(1, 3)
    choices = [tuple(map(chosen.randrange, (len(OPERATIONS), 10, 10))) for _ in range(chosen.randint(1, 6))]
    returned = [chosen.randrange(10) for _ in range(chosen.randint(1, 3))]
    return function(inputs, choices, returned), *arguments(inputs, size)


def _stencil(p: Any) -> Any:
    return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]


CHAINED: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: jnp.sin(x) * 2,
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1],
    "rolled": lambda x: jnp.roll(x, 1, 0),
    "rolled back": lambda x: jnp.roll(x, -1, 0),
    "four rolls": lambda x: jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1),
    "padded and cut": lambda x: jnp.pad(x, 1)[1:-1, 1:-1],
    "shifted": lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:-1],
    "stencil": lambda x: _stencil(jnp.pad(x, 1)),
    "stencil, edges": lambda x: _stencil(jnp.pad(x, 1, mode="edge")),
    "interior": lambda x: x.at[1:-1].set(0.5 * (x[2:] + x[:-2])),
    "convolution": lambda x: lax.conv_general_dilated(x[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME")[0, 0],
    "convolved rows": lambda x: jax.vmap(lambda row: jnp.convolve(row, jnp.ones(5), mode="same"))(x),
    "product": lambda x: x @ jnp.ones_like(x),
    "running sum": lambda x: jnp.cumsum(x, 0),
    "sorted": lambda x: jnp.sort(x, 1),
    "sorted by index": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    "softmax": lambda x: jax.nn.softmax(x),
    "centered": lambda x: x - x.mean(0),
    "window": lambda x: lax.reduce_window(x, 0.0, lax.add, (3, 3), (1, 1), "SAME"),
    "halves": lambda x: jnp.concatenate([x[: len(x) // 2] * 2, x[len(x) // 2 :] + 1]),
    "halves swapped": lambda x: jnp.concatenate(jnp.split(x, 2)[::-1]),
    "one row": lambda x: x.at[3].add(1.0),
    "gathered": lambda x: x[jnp.arange(len(x)) * 7 % len(x)],
    "triangle": jnp.tril,
    "gradient": lambda x: jnp.gradient(x, axis=0),
    "difference": lambda x: jnp.pad(jnp.diff(x, axis=0), ((0, 1), (0, 0))),
    "row by row": lambda x: lax.map(lambda row: row * 2, x),
    "loop": lambda x: lax.fori_loop(0, 3, lambda _, c: jnp.sin(c), x),
}
"""Each makes a square of one."""


def chain(names: Sequence[str], skip: bool) -> Callable[[Any], Any]:
    """One after another; with `skip`, the argument is read once more at the end."""

    def fun(x: Any) -> Any:
        y = x
        for name in names:
            y = CHAINED[name](y)
        return y + 0.1 * x if skip else y

    return fun


def some_chain(chosen: random.Random) -> Callable[[Any], Any]:
    """One to four operations."""
    return chain(chosen.choices(list(CHAINED), k=chosen.choice((1, 2, 2, 3, 4))), chosen.random() < 0.35)
