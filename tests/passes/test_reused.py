"""What a loop would compute several times over, against what the CPU's compiler stores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from pytc.passes.dataflow import flatten
from pytc.passes.reused import reused
from pytc.program import Alias
from tests.passes.test_alias import BYTES, SQUARE, N, copies, of, pairs, planned, total, without
from tests.passes.test_temporaries import ALIGNMENT

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

INDICES = jax.ShapeDtypeStruct((N,), jnp.int32)


def taken(x: Any, i: Any) -> Any:
    return x.at[i].get(mode="promise_in_bounds")


def rolled(x: Any, _: Any) -> Any:
    return lax.concatenate([x[:, 5:], x[:, :5]], 1)


MADE: dict[str, Callable[[Any, Any], Any]] = {
    "gather": taken,
    "exponential": lambda x, _: jnp.exp(x),
    "quotient": lambda x, _: 1 / (x + 2),
    "tanh, then more": lambda x, _: jnp.tanh(x) + 1,
    "sum": lambda x, _: x + 1.5,
    "sine": lambda x, _: jnp.sin(x),
    "transpose": lambda x, _: x.T,
}
READ: dict[str, Callable[[Any, Any], Any]] = {
    "repeated": lambda x, _: lax.broadcast_in_dim(x, (N, 4, N), (0, 2)),
    "negated and repeated": lambda x, _: lax.broadcast_in_dim(-x, (N, 4, N), (0, 2)),
    "a part": lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (N - 4, N)),
    "taken": taken,
    "turned": lambda x, _: x.T * 2,
    "cut": lambda x, _: x[3:],
    "in step": lambda x, _: x * 2,
}


def temporaries(fun: Callable[..., Any]) -> int:
    return jax.jit(fun).lower(SQUARE, INDICES).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("made", MADE)
def test_what_is_expensive_is_stored_for_a_loop_that_reads_it_several_times(made: str, read: str) -> None:
    def fun(x: Any, i: Any) -> Any:
        return READ[read](MADE[made](x, i), i)

    flow = flatten(jax.make_jaxpr(fun)(SQUARE, INDICES).jaxpr, "cpu")
    assert bool(reused(flow)) == (temporaries(fun) >= BYTES)


@pytest.mark.parametrize("read", READ)
def test_what_is_joined_of_parts_is_stored_but_for_a_loop_in_step(read: str) -> None:
    def fun(x: Any, i: Any) -> Any:
        return READ[read](rolled(x, i), i)

    flow = flatten(jax.make_jaxpr(fun)(SQUARE, INDICES).jaxpr, "cpu")
    is_stored = temporaries(fun) > temporaries(lambda x, i: rolled(x, i) * 2) + ALIGNMENT
    assert bool(reused(flow)) == is_stored == (read != "in step")


def selected(scores: Any, x: Any) -> Any:
    """The next generation of a genetic algorithm: four of each of the best."""
    return x[scores.argsort()][-N // 4 :].repeat(4, axis=0)


def shifted(shifts: Any, x: Any) -> Any:
    return jax.vmap(jnp.roll)(x, shifts)


@pytest.mark.parametrize("fun", [selected, shifted])
def test_the_result_is_written_over_what_is_read_before(fun: Any) -> None:
    program = planned(fun, INDICES, SQUARE)
    assert of(fun, INDICES, SQUARE) == {1: 0}
    assert total(program) <= total(without(program)) - BYTES // 2


def test_another_output_need_not_come_after_what_is_read_before() -> None:
    """Written over `x` it would be copied, and `x` too, as it does not need what is taken of `x`."""

    def apart(i: Any, x: Any, y: Any) -> Any:
        return taken(x, i).repeat(2, axis=0), y * 2

    program = planned(apart, INDICES, SQUARE, SQUARE, keep=frozenset([2]))
    over_x = dataclasses.replace(program, aliases=(Alias(1, 1),))
    assert not pairs(program)
    assert (total(over_x), copies(over_x)) == (total(program), copies(program) + 2)


def test_outputs_are_not_told_again() -> None:
    def fun(x: Any, _: Any) -> Any:
        powers = jnp.exp(x)
        return powers, READ["repeated"](powers, None)

    assert not reused(flatten(jax.make_jaxpr(fun)(SQUARE, INDICES).jaxpr, "cpu"))


def test_a_reduction_of_several_is_passed_by() -> None:
    def fun(x: Any, _: Any) -> Any:
        largest, place = lax.reduce(
            (jnp.exp(x), lax.iota(jnp.int32, N * N).reshape(N, N)),
            (jnp.float32(0), jnp.int32(0)),
            lambda a, b: (jnp.maximum(a[0], b[0]), jnp.maximum(a[1], b[1])),
            (0,),
        )
        return lax.broadcast_in_dim(largest, (4, N), (1,)), place

    assert not reused(flatten(jax.make_jaxpr(fun)(SQUARE, INDICES).jaxpr, "cpu"))
