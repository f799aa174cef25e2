"""What a call raises is traced back to the caller's code, with one frame of ours."""

from __future__ import annotations

import traceback

import jax
import jax.numpy as jnp
import pytest

import pytc


def fails(x, y):
    return inner(x, y) + 1


@pytc.compile
def inner(x, y):
    return x @ y


def raised_by(compiled, *args):
    with pytest.raises(TypeError) as caught:
        compiled(*args)
    return caught.value


def functions(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.fixture
def unfiltered():
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)


def test_an_error_in_the_function_is_traced_as_under_jax_jit():
    args = jnp.ones((3, 4)), jnp.ones((2, 2))
    raised, by_jax = raised_by(pytc.compile(fails), *args), raised_by(jax.jit(lambda x, y: fails(x, y)), *args)
    after = functions(raised)[functions(raised).index("fails") :]
    assert functions(raised)[:3] == ["raised_by", "compiled", "fails"]
    assert after == [name for name in functions(by_jax) if name not in ("raised_by", "<lambda>", "compiled")]


class Unhashable:
    __hash__ = None


def test_an_error_of_our_own_is_traced_to_the_call():
    assert functions(raised_by(pytc.compile(lambda x: 0), Unhashable())) == ["raised_by", "compiled"]


def test_what_shows_the_frames_of_jax_shows_ours(unfiltered):
    names = functions(raised_by(pytc.compile(fails), jnp.ones((3, 4)), jnp.ones((2, 2))))
    assert {"candidates", "stage", "traced"} < {*names}
