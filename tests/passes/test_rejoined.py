"""What a step reads beside what was made of it in memory, against what the CPU's compiler needs."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pytc.passes.dataflow import flatten
from pytc.passes.rejoined import rejoined
from tests.passes.test_alias import SQUARE, planned, total
from tests.passes.test_crossed import laplacian, least
from tests.passes.test_temporaries import ALIGNMENT

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


def verlet(force: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def step(q: Any, p: Any) -> Any:
        p = p - 0.05 * force(q)
        q = q + 0.1 * p
        return q, p - 0.05 * force(q)

    return step


def euler(steps: int) -> Callable[[Any, Any], Any]:
    def advanced(q: Any, p: Any) -> Any:
        for _ in range(steps):
            p = p - 0.1 * jnp.sin(q)
            q = q + 0.1 * p
        return q, p

    return advanced


STEPS = {
    "sine": verlet(jnp.sin),
    "spring": verlet(lambda q: q),
    "stencil": verlet(laplacian),
    "two steps": euler(2),
    "three steps": euler(3),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_simulation_takes_no_more_than_by_hand(name: str) -> None:
    program = planned(STEPS[name], SQUARE, SQUARE)
    assert len(program.aliases) == 2
    assert total(program) <= least(program) + ALIGNMENT


def found_in(fun: Callable[..., Any], *args: Any) -> int:
    flow = flatten(jax.make_jaxpr(fun)(*args).jaxpr, "cpu")
    return len(rejoined(flow))


def test_what_is_read_beside_what_was_made_of_it_within_one_loop_is_not_stored() -> None:
    def fused(x: Any) -> Any:
        half = x * 0.5
        return jnp.sin(half + jnp.cos(half))

    assert found_in(fused, SQUARE) == 0
    assert found_in(verlet(jnp.sin), SQUARE, SQUARE) == 1
    assert found_in(lambda q, p: verlet(jnp.sin)(q, p)[1], SQUARE, SQUARE) == 0, "`q` is no output"


def test_what_is_stored_has_others_stored_in_turn() -> None:
    """`first` is read beside `second`, which is stored because it is read beside an output."""

    def chained(x: Any) -> Any:
        first = x * 0.5
        second = first + 1
        out = jnp.sin(second)
        return out, (second + out) * first

    def without_the_output(x: Any) -> Any:
        first = x * 0.5
        second = first + 1
        return (second + jnp.sin(second)) * first

    assert found_in(chained, SQUARE) == 2
    assert found_in(without_the_output, SQUARE) == 0


@pytest.mark.parametrize("seed", range(6))
def test_random_updates_in_turn_take_no_more_than_nothing_donated(seed: int) -> None:
    """Each of two or three states is advanced by the others, one after the other."""
    draw = random.Random(seed)
    count = draw.choice([2, 3])
    forces = [jnp.sin, jnp.tanh, lambda x: x * x, lambda x: x, lambda x: jnp.exp(-x)]
    updates = [(*draw.choices(range(count), k=2), draw.choice(forces)) for _ in range(draw.randint(2, 6))]

    def advanced(*states: Any) -> Any:
        now = list(states)
        for to, by, force in updates:
            now[to] = now[to] + 0.1 * force(now[by])
        return tuple(now)

    program = planned(advanced, *[SQUARE] * count)
    assert total(program) <= total(dataclasses.replace(program, aliases=()))


def test_time_grows_with_the_steps_alone() -> None:
    """Thousands of values, each read beside what was made of it by way of an output, and again at the end."""

    def seconds(n: int) -> float:
        def chain(x: Any) -> Any:
            made, outs = [], []
            for _ in range(n):
                half = x * 0.5
                out = jnp.sin(half)
                outs.append(out)
                made.append(half)
                x = out + half
            return outs, sum(made)

        flow = flatten(jax.make_jaxpr(chain)(SQUARE).jaxpr, "cpu")
        best = float("inf")
        for _ in range(3):
            start = time.thread_time()
            assert len(rejoined(flow)) == n
            best = min(best, time.thread_time() - start)
        return best

    assert seconds(2000) < 4 * 2.5 * seconds(500)
