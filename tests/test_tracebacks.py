"""What a call raises is traced back to the caller's code, with one frame of ours."""

from __future__ import annotations

import contextlib
import logging
import traceback
import weakref

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


@contextlib.contextmanager
def filtering(how):
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", how)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


@pytest.fixture
def unfiltered():
    with filtering("off"):
        yield


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


class Refused(Exception):
    """What a callback raises."""


def refuse(x):
    raise Refused


def errors_of(compiled, count):
    """The errors of calls with arrays of their own, and weak references to these."""
    kept, arrays = [], []
    for k in range(count):
        x = jnp.full(8, float(k))
        arrays.append(weakref.ref(x))
        try:
            jax.block_until_ready(compiled(x))
        except Exception as error:
            kept.append(error.with_traceback(error.__traceback__.tb_next))  # without this function, which has `x`
        del x
    return kept, arrays


@pytest.fixture
def unlogged():
    """JAX's log tells of errors in callbacks, with their frames, and pytest keeps what it tells."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("unlogged")
def test_a_kept_error_does_not_keep_the_arguments():
    compiled = pytc.compile(lambda x: jax.pure_callback(refuse, jax.ShapeDtypeStruct((), jnp.float32), x))
    with filtering("quiet_remove_frames"):  # the default, until IPython is used: others keep JAX's frames, too
        kept, arrays = errors_of(compiled, 5)
    assert len(kept) == 5
    assert [array() for array in arrays] == [None] * 5


def test_what_shows_the_frames_of_jax_shows_ours(unfiltered):
    names = functions(raised_by(pytc.compile(fails), jnp.ones((3, 4)), jnp.ones((2, 2))))
    assert {"candidates", "stage", "traced"} < {*names}
