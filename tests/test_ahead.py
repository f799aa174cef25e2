"""Ahead of time with static leaves: what is compiled is called as the function is."""

from __future__ import annotations

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc


@functools.partial(pytc.compile, static_argnames="times")
def activate(x, how, times=1):
    y = {"double": lambda v: v * 2, "negate": jnp.negative}[how](x)
    return {"y": y * times, "how": how}


X = jnp.arange(3.0)


@pytest.mark.parametrize(
    "ahead",
    [
        lambda *args, **kwargs: activate.lower(*args, **kwargs).compile(),
        lambda *args, **kwargs: activate.trace(*args, **kwargs).lower().compile(),
    ],
)
def test_static_leaves_are_given_as_to_the_function(ahead):
    for args, kwargs in (((X, "double"), {}), ((X,), {"how": "negate"}), ((X, "double"), {"times": 3})):
        result, wanted = ahead(*args, **kwargs)(*args, **kwargs), activate(*args, **kwargs)
        np.testing.assert_array_equal(result["y"], wanted["y"])
        assert result["how"] == wanted["how"]


def test_a_stage_can_be_copied():
    compiled = activate.lower(X, "double").compile()
    np.testing.assert_array_equal(copy.copy(compiled)(X, "double")["y"], X * 2)
    assert not hasattr(compiled, "nothing")


def test_another_static_value_is_an_error_that_names_it():
    compiled = activate.lower(X, "double").compile()
    with pytest.raises(TypeError, match="`how` is 'negate', and activate was compiled for 'double'"):
        compiled(X, "negate")
    with pytest.raises(TypeError, match="`how` is an array, and activate was compiled for 'double'"):
        compiled(X, X)
    with pytest.raises(TypeError, match="of another structure: with `how` where there is no other leaf"):
        compiled(X)
    with pytest.raises(TypeError, match=r"of another structure: with `x` where there is `x\[0\]`"):
        compiled([X, X], "double")
    with pytest.raises(TypeError, match="`x` is 'double', and activate was compiled for an array"):
        compiled("double", "double")


def test_another_type_is_jaxs_error():
    compiled = activate.lower(X, "double").compile()
    with pytest.raises(TypeError, match=r"float32\[3\]"):
        compiled(jnp.arange(4.0), "double")


def test_all_else_is_jaxs_stage():
    lowered = activate.lower(jax.ShapeDtypeStruct((3,), "float32"), "double")
    assert "multiply" in lowered.as_text()
    assert "multiply" in lowered.compile().as_text()
    assert activate.trace(X, "double").jaxpr.out_avals == [jax.typeof(X)]
    assert activate.eval_shape(X, "double")["y"].shape == (3,)


def test_the_type_of_an_array_stands_for_it():
    scale = pytc.compile(lambda tree, n: {"y": tree["x"] * n}, donate="all")
    lowered = scale.lower({"x": jax.typeof(X)}, jax.typeof(np.float32(2)))
    np.testing.assert_array_equal(lowered.compile()({"x": X + 0}, np.float32(2))["y"], X * 2)
    assert scale.eval_shape({"x": jax.typeof(X)}, 2.0)["y"].shape == X.shape
    assert [each.path for each in scale.explain({"x": jax.typeof(X)}, 2.0).inputs if each.verdict == "reused"] == [
        "tree['x']"
    ]
    with pytest.raises(TypeError, match="not a valid JAX type"):
        scale({"x": jax.typeof(X)}, 2.0)


def test_static_arguments_alone_are_left_out_as_for_jax_jit():
    add = pytc.compile(lambda x, n: x + n, static_argnames="n")
    np.testing.assert_array_equal(add.lower(X, n=2).compile()(X), X + 2)


@pytest.mark.parametrize("name", ["lower", "trace", "eval_shape", "explain"])
def test_any_name_can_be_that_of_a_keyword(name):
    f = pytc.compile(lambda self, function, x: x * self * function)
    assert getattr(f, name)(self=2.0, function=3.0, x=jnp.ones(3)) is not None
