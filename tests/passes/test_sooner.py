"""Outputs over inputs that are dead sooner than those that they update, against what the CPU's compiler needs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from pytc.passes.alias import Choices
from pytc.passes.sooner import Sooner
from pytc.program import Alias, Program
from tests.passes.test_alias import SQUARE, of, planned, total, without
from tests.passes.test_temporaries import ALIGNMENT, BYTES

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

PLACES = jax.ShapeDtypeStruct((256 * 256,), jnp.int32)


def orthogonal(p: Any, m: Any, g: Any) -> Any:
    m = 0.95 * m + g
    x = (g + 0.95 * m) / jnp.linalg.norm(m)
    for _ in range(3):
        a = x @ x.T
        x = 3.44 * x + (2.03 * a @ a - 4.775 * a) @ x
    return p - 0.02 * x, m


def ordered(p: Any, m: Any, g: Any) -> Any:
    m = 0.9 * m + g
    return p - jnp.sort(m), m


def iterated(p: Any, m: Any, g: Any) -> Any:
    m = 0.9 * m + g
    return p - lax.fori_loop(0, 3, lambda _, z: 1.5 * z - z @ z, m), m


def spread(labels: Any, sources: Any, places: Any) -> Any:
    return (jnp.minimum(labels, jax.ops.segment_min(labels[sources], places, labels.size)),)


SOONER = [(orthogonal, SQUARE), (ordered, SQUARE), (iterated, SQUARE), (spread, PLACES)]


def best_by_hand(program: Program) -> int:
    """The bytes with the best of all pairs of these inputs and outputs, as many as fit."""
    inputs, outputs = range(len(program.in_avals)), range(len(program.out_avals))
    plans = [
        tuple(Alias(i, o) for i, o in zip(some, outputs, strict=True))
        for some in itertools.permutations(inputs, len(outputs))
    ]
    return min(total(dataclasses.replace(program, aliases=plan)) for plan in plans)


@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize(("fun", "kind"), SOONER)
def test_what_is_written_last_goes_where_temporaries_were(fun: Callable[..., Any], kind: Any, last_first: bool) -> None:
    program = planned(lambda *args: fun(*args)[:: -1 if last_first else 1], kind, kind, kind)
    assert total(program) <= best_by_hand(program) + ALIGNMENT
    assert total(program) <= total(without(program)) - BYTES + ALIGNMENT
    assert not any(pair.copied for pair in program.aliases)


def soonest(fun: Callable[..., Any], *inputs: int) -> int | None:
    """Of these inputs, the one that the first output of a function of three squares is better written over."""
    choices = Choices(planned(fun, SQUARE, SQUARE, SQUARE))
    return Sooner(choices.flow, choices.read, choices.memory).than(0, 0, inputs)


def momentum(p: Any, m: Any, g: Any) -> Any:
    m = 0.9 * m + g
    return p - 0.1 * m, m


def in_two_stages(p: Any, m: Any, g: Any) -> Any:
    return (p - jnp.sort(jnp.sort(m) + g),)


def read_again(p: Any, m: Any, g: Any) -> Any:
    p = p - jnp.sort(m)
    return p, jnp.sum(jnp.cumsum(g * p, 0) * p)


def read_at_any_time(p: Any, m: Any, g: Any) -> Any:
    return p - jnp.sort(m), jnp.sum(jnp.cumsum(g, 0))


def read_by_its_own_loop(p: Any, m: Any, g: Any) -> Any:
    return p - jnp.sort(m) * g, m * 2


def computed_by_its_own_loop(p: Any, m: Any, g: Any) -> Any:
    scaled = g * 2
    return p - jnp.sort(m + scaled) * scaled, m


def test_the_input_that_is_read_for_the_last_time_the_soonest() -> None:
    assert soonest(ordered, 2) == 2
    assert soonest(ordered, 1) == 1
    assert soonest(in_two_stages, 2) == 2
    assert soonest(in_two_stages, 2, 1) == 1


def test_where_nothing_else_needs_memory_there_is_none() -> None:
    assert soonest(momentum, 1, 2) is None


@pytest.mark.parametrize("fun", [read_again, read_at_any_time, read_by_its_own_loop, computed_by_its_own_loop])
def test_an_input_that_may_be_read_later_is_none(fun: Callable[..., Any]) -> None:
    assert soonest(fun, 2) is None
    program = planned(fun, SQUARE, SQUARE, SQUARE)
    assert total(program) <= total(without(program)) + ALIGNMENT


def test_what_nothing_reads_is_dead_from_the_beginning() -> None:
    """In a pipeline without `prune` an input may stay that no step reads."""

    def advanced(a: Any, unread: Any, b: Any) -> Any:
        b = b + 0.1 * jnp.sin(a)
        a = a + 0.1 * jnp.sin(b)
        a = a + 0.1 * b
        a = a + 0.1 * a
        a = a + 0.1 * jnp.tanh(b)
        return a, unread, b + 0.1 * jnp.sin(b)

    program = planned(advanced, SQUARE, SQUARE, SQUARE)
    assert total(program) <= total(without(program))


def test_an_update_of_what_another_output_sorts_stays_where_it_is() -> None:
    def fun(p: Any, m: Any, g: Any, other: Any) -> Any:
        return p - 0.1 * (jnp.maximum(other, lax.fori_loop(0, 3, lambda _, z: 1.5 * z - z @ z, m)) @ g), m - jnp.sort(p)

    program = planned(fun, SQUARE, SQUARE, SQUARE, SQUARE)
    assert {pair.output: pair.input for pair in program.aliases}[0] == 0
    assert total(program) <= total(dataclasses.replace(program, aliases=(Alias(1, 1), Alias(3, 0)))) - BYTES


def test_on_a_tpu_updates_stay_where_they_are() -> None:
    assert of(ordered, SQUARE, SQUARE, SQUARE, platform="tpu")[0] == 0
    assert 0 not in of(ordered, SQUARE, SQUARE, SQUARE, platform="gpu")


def test_a_program_of_thousands_of_steps_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def long(p: Any, m: Any, g: Any) -> Any:
        p, m = ordered(p, m, g)
        for _ in range(2000):
            m = m * 0.5 + 1
        return p, m

    looked_at: list[Any] = []
    monkeypatch.setattr(Sooner, "__init__", lambda *given: looked_at.append(given))
    assert of(long, SQUARE, SQUARE, SQUARE)[0] == 0
    assert not looked_at
