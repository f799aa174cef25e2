"""Which copies are worth making: what is reasoned, against what the CPU's compiler needs."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from pytc.program import Alias
from tests.passes.test_alias import BYTES, LONG, SQUARE, N, copies, of, planned, total, without
from tests.squares import CHAINED, chain, some_chain

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

ALIGNMENT = 4096


def by_hand(fun: Any) -> int:
    """The bytes of a function of one square, with or without donating it."""
    program = planned(fun, SQUARE)
    return min(total(without(program)), total(dataclasses.replace(program, aliases=(Alias(0, 0),))))


@pytest.mark.parametrize("name", CHAINED)
def test_a_state_takes_no_more_than_by_hand(name: str) -> None:
    fun = chain([name], skip=False)
    assert total(planned(fun, SQUARE)) <= by_hand(fun) + ALIGNMENT


@pytest.mark.parametrize("seed", range(2))
def test_nor_does_it_after_several_operations(seed: int) -> None:
    chosen = random.Random(seed)
    for _ in range(15):
        fun = some_chain(chosen)
        assert total(planned(fun, SQUARE)) <= by_hand(fun) + ALIGNMENT


ONE_LOOP = [
    "transposed", "reversed", "rolled", "four rolls", "product", "sorted", "window", "halves", "halves swapped",
    "gathered", "row by row",
]  # fmt: skip


@pytest.mark.parametrize("name", ONE_LOOP)
def test_no_copy_is_made_where_nothing_else_needs_memory(name: str) -> None:
    program = planned(CHAINED[name], SQUARE)
    assert program.aliases == ()
    forced = dataclasses.replace(program, aliases=(Alias(0, 0),))
    assert total(program) <= total(forced) + ALIGNMENT
    assert copies(program) < copies(forced)


def test_what_is_cheap_is_computed_wherever_it_is_read() -> None:
    """And what is not, once: the copy can have its place before that."""
    twice = lambda y: y[1:] - y[:-1]  # noqa: E731
    assert of(lambda a: jnp.pad(twice(-a), ((0, 1), (0, 0))), SQUARE) == {}
    assert of(lambda a: jnp.roll(jax.nn.softmax(a), 1, 0), SQUARE) == {0: 0}
    assert of(lambda a: jnp.pad(twice(jnp.exp(a)), ((0, 1), (0, 0))), SQUARE) == {0: 0}


def test_what_one_step_reads_twice_is_read_in_one_place() -> None:
    program = planned(lambda a: jnp.roll(lax.mul(y := jnp.exp(a), y), 1, 0), SQUARE)
    assert program.aliases == ()
    assert total(program) <= total(dataclasses.replace(program, aliases=(Alias(0, 0),))) + ALIGNMENT


def test_copies_may_take_turns() -> None:
    """One of them alone would not be worth it. (The schedule of JAX 0.10 makes both at once.)"""
    program = planned(lambda a, b: (a.T, b[::-1]), SQUARE, LONG)
    assert [pair.copied for pair in program.aliases] == [BYTES, 4 * BYTES]
    saved = total(without(program)) - total(program)
    assert saved >= (BYTES if jax.__version_info__ >= (0, 12) else 0) - ALIGNMENT


@pytest.mark.parametrize(("size", "count"), [(128, 16), (64, 40), (4, 16)])
def test_many_small_copies_take_turns_as_well(size: int, count: int) -> None:
    """A state with the last gradients, that is made of small arrays."""

    def step(weights: Any, last: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            x = batch
            for weight in weights:
                x = jnp.tanh(x @ weight)
            return jnp.mean((x - 1) ** 2)

        gradients = jax.grad(loss)(weights)
        return [w - 0.1 * (2 * g - p) for w, g, p in zip(weights, gradients, last, strict=True)], gradients

    square = jax.ShapeDtypeStruct((size, size), jnp.float32)
    program = planned(step, [square] * count, [square] * count, jax.ShapeDtypeStruct((8, size), jnp.float32))
    by_hand = dataclasses.replace(program, aliases=tuple(Alias(k, k) for k in range(2 * count)))
    assert total(program) <= min(total(by_hand), total(without(program))) + ALIGNMENT
    if size > 4:
        assert len(program.aliases) == 2 * count


def test_what_is_not_made_of_its_input_is_copied_as_well() -> None:
    """As accumulated gradients are set to zero in the step that reads them."""

    def apply(moments: Any, gradients: Any) -> Any:
        means = [gradient / 3 for gradient in gradients]
        moments = [0.9 * moment + mean * mean * mean for moment, mean in zip(moments, means, strict=True)]
        return moments, [jnp.zeros_like(gradient) for gradient in gradients]

    for squares in ([SQUARE], [SQUARE, LONG]):
        program = planned(apply, squares, squares)
        assert not any(pair.copied for pair in program.aliases)
        assert total(program) <= total(without(program)) - sum(square.size for square in squares) * 4
        assert copies(program) == 0
        forced = dataclasses.replace(program, aliases=tuple(Alias(k, k) for k in range(2 * len(squares))))
        assert total(program) <= total(forced) + ALIGNMENT
        assert copies(forced) >= 2 * len(squares)
    # Of several that are alike the compiler makes one, and the copies of what they are written over take turns.
    assert len(of(apply, [SQUARE] * 3, [SQUARE] * 3)) == 6


@pytest.mark.parametrize("third", [lambda a, b: a.reshape(-1) * 2, lambda a, b: a * 2, lambda a, b: jnp.sin(a) + b])
def test_results_that_change_types_crosswise_are_not_written_over_arguments(third: Any) -> None:
    """Though the third result could have the place of a copy."""

    def fun(a: Any, b: Any) -> Any:
        return a.astype(jnp.int32), b.astype(jnp.float32), third(a, b)

    args = SQUARE, jax.ShapeDtypeStruct(SQUARE.shape, jnp.int32)
    program = planned(fun, *args)
    forced = dataclasses.replace(program, aliases=(Alias(0, 1), Alias(1, 0)))
    assert total(program) <= total(forced) + ALIGNMENT
    assert copies(program) < copies(forced)


def test_a_temporary_that_the_last_loop_reads_is_there_with_the_copy() -> None:
    def fun(a: Any, w: Any) -> Any:
        return a.T + w @ w

    program = planned(fun, SQUARE, SQUARE, keep=frozenset([1]))
    assert program.aliases == ()
    forced = dataclasses.replace(program, aliases=(Alias(0, 0),))
    assert total(program) <= total(forced) + ALIGNMENT


def test_the_body_of_a_loop_has_temporaries() -> None:
    """Large ones, which the copy can take turns with, or small ones."""
    tall = jax.ShapeDtypeStruct((4, N, N), jnp.float32)
    large = lambda a: lax.map(lambda x: jnp.sin(x @ x) @ x, a)  # noqa: E731
    assert of(large, tall) == {0: 0}
    assert of(lambda a: lax.map(lambda x: x * 2, a), SQUARE) == {}


def test_a_small_product_has_a_workspace_on_a_gpu() -> None:
    large = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
    assert of(lambda a: a @ a, SQUARE, platform="gpu") == {0: 0}
    assert of(lambda a: a @ a, large, platform="gpu") == {}


def test_no_copy_is_made_for_an_output_that_another_input_can_hold() -> None:
    """Of another type, and dead before the output is written."""

    def fun(tokens: Any, logits: Any) -> Any:
        best = jnp.argmax(logits, 1)
        return tokens[best]

    tokens = jax.ShapeDtypeStruct((N, N), jnp.int32)
    program = planned(fun, tokens, SQUARE)
    assert [(pair.input, pair.output, pair.copied) for pair in program.aliases] == [(1, 0, 0)]
    assert total(program) <= total(without(program)) - BYTES + ALIGNMENT


def test_an_output_keeps_its_copy_where_another_of_its_type_needs_one() -> None:
    """JAX gives what is donated of that type to the first of them, so that no other input can."""

    def fun(a: Any, b: Any, logits: Any) -> Any:
        best = jnp.argmax(logits, 1)
        return a[best], b[best]

    tokens = jax.ShapeDtypeStruct((N, N), jnp.int32)
    program = planned(fun, tokens, tokens, SQUARE)
    assert sorted(pair.output for pair in program.aliases) == [0, 1]
    assert total(program) <= total(without(program)) + ALIGNMENT


@pytest.mark.parametrize("seed", range(2))
def test_arrays_that_have_nothing_to_do_with_each_other_keep_their_own_places(seed: int) -> None:
    """However their results are made: to write each over the other's, where neither can be written over its own
    argument without a copy, would take two copies at once."""
    chosen = random.Random(seed)
    for _ in range(5):
        one, other = some_chain(chosen), some_chain(chosen)
        program = planned(lambda a, b, one=one, other=other: (one(a), other(b)), SQUARE, SQUARE)
        plans = [(), ((0, 0),), ((1, 0),), ((0, 0), (1, 1))]
        by_hand = [total(dataclasses.replace(program, aliases=tuple(itertools.starmap(Alias, plan)))) for plan in plans]
        assert all(pair.input == pair.output for pair in program.aliases)
        assert total(program) <= min(by_hand) + ALIGNMENT
