"""move: ownership passed by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


@pytest.fixture
def state():
    return {"w": jnp.arange(4.0), "n": jnp.ones(3)}


def test_moved_arrays_are_reused_whatever_else_refers_to_them(state):
    f = pytc.compile(lambda s, b: {"w": s["w"] + b, "n": s["n"] * 2})
    also = state["w"]
    where = also.unsafe_buffer_pointer()
    new = f(pytc.move(state), 1.0)
    assert new["w"].unsafe_buffer_pointer() == where
    assert also.is_deleted()
    np.testing.assert_array_equal(new["w"], np.arange(4.0) + 1)


def test_what_found_no_use_is_unusable_too(state):
    f = pytc.compile(lambda s: s["w"].sum() + s["n"].sum())
    assert float(f(pytc.move(state))) == 9.0
    assert state["w"].is_deleted()
    assert state["n"].is_deleted()


def test_a_key_serves_once():
    draw = pytc.compile(lambda key: jax.random.normal(key, (3,)))
    key = jax.random.key(0)
    expected = jax.random.normal(jax.random.key(0), (3,))
    np.testing.assert_array_equal(draw(pytc.move(key)), expected)
    with pytest.raises(RuntimeError, match="deleted"):
        draw(pytc.move(key))


def test_what_is_handed_back_stays_usable(state):
    f = pytc.compile(lambda s: (s["n"], s["w"] + 1))
    n, _ = f(pytc.move(state))
    assert n is state["n"]
    np.testing.assert_array_equal(n, np.ones(3))


def test_the_rest_is_kept(state):
    f = pytc.compile(lambda s, t: jax.tree.map(jnp.add, s, t))
    other = jax.tree.map(jnp.copy, state)
    f(pytc.move(state), other)
    np.testing.assert_array_equal(other["w"], np.arange(4.0))


def test_one_array_moved_and_passed(state):
    f = pytc.compile(lambda a, b: a + b)
    x = state["w"]
    np.testing.assert_array_equal(f(pytc.move(x), x), np.arange(4.0) * 2)
    assert x.is_deleted()


def test_a_part_of_an_argument_can_be_moved(state):
    f = pytc.compile(lambda s: jax.tree.map(lambda v: v * 2, s))
    f({"w": pytc.move(state["w"]), "n": state["n"]})
    assert state["w"].is_deleted()
    np.testing.assert_array_equal(state["n"], np.ones(3))


def test_a_failing_call_moves_nothing(state):
    def fail(s):
        raise KeyError("no")

    with pytest.raises(KeyError):
        pytc.compile(fail)(pytc.move(state))
    np.testing.assert_array_equal(state["w"], np.arange(4.0))


def test_under_a_transformation_nothing_is_moved(state):
    f = pytc.compile(lambda s, x: (s["w"] * x).sum())
    np.testing.assert_array_equal(jax.grad(lambda x: f(pytc.move(state), x))(1.0), 6.0)
    np.testing.assert_array_equal(state["w"], np.arange(4.0))


def test_where_there_is_no_call_nothing_is_moved(state):
    f = pytc.compile(lambda s: s["w"] * 2)
    with jax.disable_jit():
        np.testing.assert_array_equal(f(pytc.move(state)), np.arange(4.0) * 2)
    moved = {"w": pytc.move(state["w"]), "n": state["n"]}
    np.testing.assert_array_equal(f.lower(moved).compile()(state), np.arange(4.0) * 2)
    assert f.eval_shape(moved).shape == f.trace(moved).out_info.shape == (4,)
    assert [leaf.path for leaf in pytc.stage(f, moved).leaves] == ["s['n']", "s['w']"]
    assert pytc.explain(f, moved).inputs[1].verdict == "reused"
    np.testing.assert_array_equal(state["w"], np.arange(4.0))


def test_again_and_again(state):
    traces = []

    @pytc.compile
    def f(s):
        traces.append(None)
        return jax.tree.map(lambda v: v + 1, s)

    for _ in range(3):
        state = f(pytc.move(state))
    f({"w": jnp.ones(5), "n": jnp.ones(3)})
    state = f(pytc.move(state))
    np.testing.assert_array_equal(state["w"], np.arange(4.0) + 4)
    assert len(traces) == 2


@pytest.mark.parametrize("static", [(), None, "adam", ("a", "b"), range(3)])
def test_beside_a_static_argument_it_is_the_moved_array_that_is_taken(static):
    def both(before, x, y, after):
        return x + 1, y * 2

    f = pytc.compile(both, static_argnums=(0, 3))
    for moved in ("x", "y"):
        given = {"x": jnp.arange(4.0), "y": jnp.ones(4)}
        f(static, *(pytc.move(value) if name == moved else value for name, value in given.items()), static)
        assert {name: value.is_deleted() for name, value in given.items()} == {"x": moved == "x", "y": moved == "y"}


def test_beside_a_static_keyword_it_is_the_moved_array_that_is_taken(state):
    f = pytc.compile(lambda x, y, config: (x + 1, y * len(config)), static_argnames="config")
    x, y = state["w"], jnp.ones(4)
    f(x, y=pytc.move(y), config=(2, 3))
    assert (x.is_deleted(), y.is_deleted()) == (False, True)


def test_beside_a_static_argument_of_a_map():
    f = pytc.pmap(lambda config, x, y: (x + len(config), y * 2), "i", static_argnums=0)
    x, y = jnp.ones((1, 4)), jnp.zeros((1, 4))
    f(("a", "b"), pytc.move(x), y)
    assert (x.is_deleted(), y.is_deleted()) == (True, False)


def test_a_static_argument_cannot_be_moved():
    f = pytc.compile(lambda x, config: x + 1, static_argnames="config")
    with pytest.raises(pytc.StaticLeafError, match=r"`config`: .* cannot be given up.*without pytc\.move"):
        f(jnp.ones(3), config=pytc.move((1, 2)))
    with pytest.raises(pytc.StaticLeafError, match=r"`config`: .* cannot be hashed: .*pytc\.move"):
        f(jnp.ones(3), config=(1, pytc.move((1, 2))))


def test_ahead_of_time_it_says_nothing_where_leaves_are_static():
    f = pytc.compile(lambda state: state["x"] * len(state["name"]))
    x = jnp.arange(3.0)
    compiled = f.lower({"x": x, "name": "abc"}).compile()
    np.testing.assert_array_equal(compiled({"x": pytc.move(x), "name": "abc"}), 3 * np.arange(3.0))
    assert not x.is_deleted()


def test_a_tracer_that_escaped_is_refused_as_without_the_move():
    escaped = []
    jax.jit(lambda x: escaped.append(x))(jnp.ones(3))
    f = pytc.compile(lambda x: x + escaped[0])
    x = jnp.ones(3)
    for given in (x, pytc.move(x)):
        with pytest.raises(jax.errors.UnexpectedTracerError):
            f(given)
    assert not x.is_deleted()
