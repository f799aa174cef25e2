"""Two results that each need both arguments, against what the CPU's compiler needs."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pytc.passes.temporaries import Temporaries
from pytc.program import Alias, Program
from tests.passes.test_alias import SQUARE, of, planned, total
from tests.passes.test_temporaries import ALIGNMENT

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

SMALL = jax.ShapeDtypeStruct((100, 100), jnp.float32)
"""Small enough that what a step needs inside does not count."""


def rotated(a: Any, b: Any) -> Any:
    return 0.6 * a - 0.8 * b, 0.8 * a + 0.6 * b


def laplacian(u: Any) -> Any:
    return jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u


def reacted(u: Any, v: Any) -> Any:
    rate = u * v * v
    return u + 0.16 * laplacian(u) - rate, v + 0.08 * laplacian(v) + rate


def one_moved(a: Any, b: Any) -> Any:
    """`a` is read in step by both, `b` at other places by the first."""
    return a + b.T, b * jnp.sin(a)


def one_padded(a: Any, b: Any) -> Any:
    """`b` is read in step by both, and at other places by the second, which is made last."""
    padded = jnp.pad(b, 1)
    return a + 0.1 * b, b - a * (padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2])


def three(a: Any, b: Any, c: Any) -> Any:
    return a + b * c, b + c * a, c + a * b


def least(program: Program) -> int:
    """The bytes with the best of all pairings."""
    inputs, outputs = range(len(program.in_avals)), range(len(program.out_avals))
    plans = [
        tuple(Alias(i, o) for i, o in zip(some, others, strict=True))
        for k in range(len(outputs) + 1)
        for some in itertools.combinations(inputs, k)
        for others in itertools.permutations(outputs, k)
    ]
    return min(total(dataclasses.replace(program, aliases=plan)) for plan in plans)


@pytest.mark.parametrize("fun", [rotated, reacted, one_moved, one_padded])
@pytest.mark.parametrize("backwards", [False, True])
def test_one_is_written_over_an_argument_and_the_other_over_its_copy(fun: Any, backwards: bool) -> None:
    in_order = (lambda a, b: fun(a, b)[::-1]) if backwards else fun
    program = planned(in_order, SQUARE, SQUARE)
    both = [tuple(map(Alias, (0, 1), way)) for way in ((0, 1), (1, 0))]
    assert len(program.aliases) == 1
    assert total(program) <= least(program) + ALIGNMENT
    assert all(total(program) < total(dataclasses.replace(program, aliases=plan)) for plan in both)


def test_of_three_too() -> None:
    program = planned(three, SQUARE, SQUARE, SQUARE)
    assert total(program) <= least(program) + ALIGNMENT


@pytest.mark.parametrize("side", [8, 64])
def test_a_loop_writes_each_carry_over_its_own_argument(side: int) -> None:
    def steps(a: Any, b: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (rotated(*carry), carry[0][0, 0]), (a, b), length=4)

    def until(a: Any, b: Any) -> Any:
        return jax.lax.while_loop(lambda carry: carry[0][0, 0] < 9, lambda carry: rotated(*carry), (a, b))

    for fun in (steps, until):
        program = planned(fun, *(jax.ShapeDtypeStruct((side, side), jnp.float32) for _ in range(2)))
        assert [(pair.input, pair.output) for pair in program.aliases] == [(0, 0), (1, 1)]
        assert total(program) <= least(program) + ALIGNMENT


def neighbours(xs: Any) -> Any:
    return tuple(x + y for x, y in zip(xs, xs[1:] + xs[:1], strict=True))


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(lambda *xs: jax.lax.scan(lambda c, _: (neighbours(c), None), xs, length=4)[0], id="scan"),
        pytest.param(
            lambda *xs: jax.lax.cond(xs[0][0, 0] > 0, lambda xs: [2 * x for x in xs], lambda xs: [*xs], xs), id="cond"
        ),
    ],
)
def test_what_one_step_makes_apart_is_not_compared_two_by_two(steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    may_cross = Temporaries.may_cross

    def counted(memory: Temporaries, one: Alias, other: Alias) -> bool:
        nonlocal asked
        asked += 1
        return may_cross(memory, one, other)

    monkeypatch.setattr(Temporaries, "may_cross", counted)
    assert len(planned(steps, *[SMALL] * 40).aliases) == 40
    assert asked == 0
    monkeypatch.setattr(Temporaries, "apart", lambda memory, pair: 0)
    planned(steps, *[SMALL] * 40)
    assert asked >= 39  # so that the count above would have told


def test_a_branch_or_a_loop_may_make_nothing() -> None:
    """They write a `Ref`."""

    def written(a: Any, b: Any) -> Any:
        ref = jax.new_ref(a)

        def write() -> None:
            ref[...] = a + b

        jax.lax.cond(a[0, 0] > 0, write, lambda: None)
        jax.lax.scan(lambda _, __: (write(), None), None, length=2)
        return rotated(ref[...], b)

    program = planned(written, SQUARE, SQUARE)
    assert total(program) <= least(program) + ALIGNMENT


def moved_on(a: Any, b: Any) -> Any:
    b = 0.9 * b + 1
    return a - b, b


@pytest.mark.parametrize(
    ("branch", "pairs"),
    [(moved_on, 2), (rotated, 1), (lambda a, b: (b, a), 1), (lambda a, b: (a + jnp.roll(b, 1), b + jnp.roll(a, 1)), 0)],
)
def test_of_a_cond_its_branches_tell(branch: Any, pairs: int) -> None:
    def fun(a: Any, b: Any) -> Any:
        return jax.lax.cond(a[0, 0] > 0, branch, lambda a, b: (a, b), a, b)

    program = planned(fun, SMALL, SMALL)
    assert len(program.aliases) == pairs
    assert total(program) <= least(program) + ALIGNMENT


def test_a_cond_of_what_was_made_before_may_cross() -> None:
    def fun(a: Any, b: Any) -> Any:
        return jax.lax.cond(a[0, 0] > 0, moved_on, lambda a, b: (a, b), a + 1, b * 2)

    assert total(program := planned(fun, SMALL, SMALL)) <= least(program) + ALIGNMENT


def test_others_compute_both_in_one_loop() -> None:
    for platform in ("gpu", "tpu"):
        assert len(of(rotated, SQUARE, SQUARE, platform=platform)) == 2


def test_what_needs_memory_besides_can_have_the_place_of_the_copies() -> None:
    def fun(a: Any, b: Any) -> Any:
        a, b = rotated(a, b)
        return jnp.sort(a, 0) @ jnp.sort(b, 1), b

    assert len(planned(fun, SQUARE, SQUARE).aliases) == 2


def test_arrays_of_two_types_do_not_change_places() -> None:
    def fun(a: Any, b: Any) -> Any:
        return a.T + b, (jnp.roll(b, 1, 0) + a).astype(jnp.int32)

    whole = jax.ShapeDtypeStruct(SQUARE.shape, jnp.int32)
    assert of(fun, SQUARE, whole) == {0: 0, 1: 1}


def relaxed(x: Any, b: Any) -> Any:
    """What the norm of `b` reads is fused with it, so that `b` is read straight."""
    around = jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1)
    return (b + around) / 4, jnp.max(jnp.abs(b))


def sorted_beside_a_norm(x: Any, b: Any) -> Any:
    return b + jnp.sort(x), jnp.max(jnp.abs(b))


@pytest.mark.parametrize("fun", [relaxed, sorted_beside_a_norm])
@pytest.mark.parametrize("last_first", [False, True])
def test_a_norm_of_what_was_there_before_reads_it(fun: Any, last_first: bool) -> None:
    program = planned(lambda *args: fun(*args)[:: -1 if last_first else 1], SQUARE, SQUARE)
    large = int(last_first)
    plans: list[tuple[Alias, ...]] = [(), (Alias(0, large),), (Alias(1, large),)]
    assert total(program) <= min(total(dataclasses.replace(program, aliases=plan)) for plan in plans) + ALIGNMENT
