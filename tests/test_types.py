"""What a type checker knows of compiled functions: `make lint` checks this file strictly, and it runs, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import pytest

import pytc
from pytc.compiled import Compiled
from pytc.explain import Calls, Explanation


@pytc.compile
def step(x: jax.Array, times: int = 2) -> jax.Array:
    return x * times


@pytc.compile(donate="none")
def pair(x: jax.Array) -> tuple[jax.Array, str]:
    return x, "as it is"


@pytc.pmap
def mapped(x: jax.Array) -> jax.Array:
    return x * 2


@pytc.pmap(axis_name="rows", out_axes=0)
def named(x: jax.Array) -> tuple[jax.Array, str]:
    return x - jnp.mean(x), "as it is"


class Model:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __hash__(self) -> int:
        return hash(self.weight)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self.weight == other.weight

    @pytc.compile
    def apply(self, x: jax.Array) -> jax.Array:
        return x * self.weight

    @pytc.compile(static_argnums=0)
    def shift(self, x: jax.Array) -> jax.Array:
        return x + self.weight

    @functools.partial(pytc.compile, static_argnums=0)
    def scale(self, x: jax.Array) -> jax.Array:
        return x * self.weight

    @pytc.pmap(static_broadcasted_argnums=0)
    def each(self, x: jax.Array) -> jax.Array:
        return x * self.weight


def test_functions_have_their_signatures() -> None:
    x = jnp.ones(3)
    assert assert_type(step(x, times=3), jax.Array)[0] == 3
    assert assert_type(pair(x), tuple[jax.Array, str])[1] == "as it is"
    plain: Callable[[jax.Array, int], jax.Array] = step
    assert plain(x, 4)[0] == 4


def test_methods_are_bound() -> None:
    model, x = Model(0.5), jnp.ones(3)
    assert assert_type(model.apply(x), jax.Array)[0] == 0.5
    assert assert_type(Model.apply(model, x), jax.Array)[0] == 0.5
    assert assert_type(model.shift(x), jax.Array)[0] == 1.5
    with pytest.raises(TypeError):
        model.shift(x, x)  # type: ignore[call-arg]


def test_methods_of_no_known_signature_take_whatever_they_are_given() -> None:
    model, x = Model(0.5), jnp.ones(3)
    assert assert_type(model.scale(x), Any)[0] == 0.5
    assert assert_type(Model.scale(model, x=x), Any)[0] == 0.5
    assert assert_type(model.each(x[:1]), Any)[0] == 0.5


def test_maps_are_compiled_functions_of_whatever_they_stack() -> None:
    rows = jnp.ones((1, 3))
    assert assert_type(mapped(rows), Any).shape == (1, 3)
    assert assert_type(named(rows), Any)[1] == "as it is"
    compiled: Compiled[..., Any] = named
    assert_type(compiled.lower(rows), jax.stages.Lowered).compile()
    assert assert_type(mapped.explain(), Calls).sites


def test_what_jax_jit_gives_its_functions() -> None:
    x = jnp.ones(3)
    assert_type(step.lower(x), jax.stages.Lowered).compile()
    assert assert_type(step.trace(x), jax.stages.Traced).jaxpr is not None
    assert assert_type(step.eval_shape(x), Any).shape == (3,)
    step(x)
    assert assert_type(step.explain(), Calls).sites
    assert assert_type(step.explain(x), Explanation).inputs
    assert step.__name__ == "step"
    assert assert_type(step.__wrapped__(x), jax.Array)[0] == 2
    step.clear_cache()
