"""Random functions of square matrices, all of one type: every output fits into every input."""

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
