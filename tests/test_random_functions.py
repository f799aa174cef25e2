"""A slice of what `python -m tests.random_functions` runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytc
from pytc.jax_compat import rewriting
from pytc.program import Program
from tests.comparison import check_passes, check_passes_together
from tests.random_functions import check, check_quickly, random_function


@pytest.mark.parametrize("seed", range(9))
def test_random_functions(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", range(9, 18))
def test_random_functions_quickly(seed: int) -> None:
    check_quickly(seed)


@settings(max_examples=4, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(100, 2**32))
def test_random_functions_from_anywhere(seed: int) -> None:
    check(seed)


def test_a_function_is_the_same_whenever_it_is_made() -> None:
    for seed in range(3):
        cases = (random_function(seed), random_function(seed))
        texts = [str(pytc.stage(case.fun, *case.args, **case.kwargs).jaxpr) for case in cases]
        assert texts[0] == texts[1]


def _cosine_for_sine(program: Program) -> Program:
    jaxpr = program.jaxpr.jaxpr
    eqns = [eqn.replace(primitive=jax.lax.cos_p) if eqn.primitive is jax.lax.sin_p else eqn for eqn in jaxpr.eqns]
    return program.noted("wrong", [], jaxpr=rewriting.close(rewriting.with_equations(jaxpr, eqns), []))


def _without_effects(program: Program) -> Program:
    jaxpr = program.jaxpr.jaxpr
    eqns = [eqn for eqn in jaxpr.eqns if not eqn.effects]
    return program.noted("wrong", [], jaxpr=rewriting.close(rewriting.with_equations(jaxpr, eqns), []))


@pytest.mark.parametrize("compare", [check_passes, check_passes_together])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("wrong", [_cosine_for_sine, _without_effects])
def test_a_wrong_pass_is_found(
    wrong: Callable[[Program], Program], alone: bool, compare: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[Any] = []

    def fun(x: Any) -> Any:
        jax.debug.callback(lambda v: log.append(("debug", 1, v.tobytes())), x, ordered=True)
        return jnp.sin(x)

    compare(fun, (jnp.arange(3.0),), {}, log)
    monkeypatch.setattr("tests.comparison.pipeline", (wrong,))
    if alone:  # a later pass hides it
        compile_as_ever = pytc.compile
        monkeypatch.setattr(pytc, "compile", lambda fun, *, passes, **options: compile_as_ever(fun, passes=passes[:1]))
    with pytest.raises(AssertionError):
        compare(fun, (jnp.arange(3.0),), {}, log)
