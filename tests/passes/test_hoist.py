"""hoist: captured weights and tables become inputs, where that cannot change a bit; else they stay constants."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.emit import emit_jit
from pytc.passes import hoist
from tests.random_captures import check, random_function

TABLE = jnp.arange(8.0) * 0.37 + 0.1
HOST_TABLE = np.arange(8, dtype=np.float32) * 0.37 + 0.1
ONE_ELEMENT = jnp.full(1, 3.0)
WEIGHTS = jnp.asarray(np.random.default_rng(1).normal(size=(8, 8)), jnp.float32)

OTHER_WEIGHTS = WEIGHTS + 1
PLACES = jnp.array([1, 3, 2], jnp.int32)


def hoisted(fun, *args):
    return hoist(pytc.stage(fun, *args))


def captured(program):
    return [given for given in program.inputs if given.leaf is None]


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: x @ WEIGHTS,
        lambda x: WEIGHTS @ x,
        lambda x: x @ np.asarray(WEIGHTS),
        lambda x: WEIGHTS[x.astype(int)],
        lambda x: jax.lax.dynamic_slice(WEIGHTS, (x[0].astype(int), 0), (1, 8)),
        lambda x: jnp.convolve(x, WEIGHTS.reshape(-1), mode="same"),
        lambda x: jax.jit(lambda y: y @ WEIGHTS)(x),
        lambda x: jax.jit(lambda y: jax.jit(lambda z: jnp.tanh(z @ WEIGHTS))(y) @ WEIGHTS)(x),
        lambda x: jax.checkpoint(lambda y: y @ WEIGHTS)(x),
        lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y @ WEIGHTS, x),
        lambda x: jax.lax.while_loop(lambda y: y[0] < 9, lambda y: y @ WEIGHTS + 9, x),
        lambda x: jax.lax.cond(x[0] > 0, lambda y: y @ WEIGHTS, lambda y: y, x),
        lambda x: jax.lax.scan(lambda c, row: (c + row @ x, None), x[0], WEIGHTS)[0],
        lambda x: jax.lax.scan(lambda c, _: (jnp.tanh(c @ WEIGHTS), None), jnp.zeros(8), x)[0],
    ],
)
def test_what_is_multiplied_or_looked_up_becomes_one_input(fun):
    x = jnp.linspace(-1, 1, 8)
    program = hoisted(fun, x)
    assert len(captured(program)) == 1
    assert not program.jaxpr.consts
    assert len(program.inputs) == len(program.jaxpr.jaxpr.invars) == 2
    np.testing.assert_array_equal(np.ravel(captured(program)[0].captured), np.ravel(WEIGHTS))
    jax.extend.core.check_jaxpr(program.jaxpr.jaxpr)
    np.testing.assert_array_equal(np.asarray(pytc.compile(fun)(x)), np.asarray(jax.jit(fun)(x)))


@pytest.mark.parametrize(
    ("fun", "why"),
    [
        (lambda x: x * TABLE, "mul"),
        (lambda x: x + HOST_TABLE, "add"),
        (lambda x: jnp.where(x > 0, TABLE, x), "select_n"),
        (lambda x: x * jnp.tanh(TABLE), "tanh"),
        (lambda x: x / TABLE, "div"),
        (lambda x: x**TABLE, "pow"),
        (lambda x: x + TABLE * TABLE, "mul"),
        (lambda x: x * ONE_ELEMENT, "at most one element"),
        (lambda x: jax.jit(lambda y: y * jnp.sin(TABLE))(x), "sin"),
        (lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y * x, TABLE), "scan"),
        (lambda x: x * (TABLE * jax.jit(lambda y: jnp.arange(8.0))(x)), "mul"),
    ],
)
def test_an_array_that_xla_would_compute_with_stays_a_constant(fun, why):
    x = jnp.linspace(-1, 1, 8)
    program = hoisted(fun, x)
    assert not captured(program)
    assert program.notes
    assert all(why in note.text for note in program.notes)


def test_a_loop_that_ends_with_a_captured_array_knows_as_much_as_that():
    """What chooses the branch is in `PLACES`, by way of a loop. XLA knows it if that is a constant."""

    def fun(x):
        def step(carry, _):
            _, before, y = carry
            return (before, PLACES[1], y @ WEIGHTS), None

        (place, _, y), _ = jax.lax.scan(step, (0, 0, x), None, length=3)
        return jax.lax.cond(place > 2, lambda y: y @ OTHER_WEIGHTS, lambda y: y, y)

    program = hoisted(fun, jnp.linspace(-1, 1, 8))
    assert [given.captured.tolist() for given in captured(program)] == [WEIGHTS.tolist()]
    again = hoist(program)
    assert again.jaxpr is program.jaxpr


@pytest.mark.parametrize("features", [2, 3])
def test_a_convolution_that_adds_nothing_up_is_an_elementwise_product(features):
    kernel = jnp.asarray(np.random.default_rng(0).normal(size=(features, 1, 1)), jnp.float32)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, features, 7)), jnp.float32)

    def fun(x):
        return jax.lax.conv_general_dilated(x * 1.3, kernel, (1,), "SAME", feature_group_count=features)

    assert not captured(hoisted(fun, x))
    np.testing.assert_array_equal(pytc.compile(fun, donate="none")(x), jax.jit(fun)(x))


TWIN = np.random.default_rng(0).normal(size=(1, 3, 17, 1)).astype(np.float32)


@pytest.mark.parametrize("others", [TWIN, TWIN.copy(), jnp.asarray(TWIN), TWIN.reshape(3, 17)])
def test_equal_arrays_are_one_to_xla(others):
    """JAX 0.12 rounded otherwise where it took them for two."""

    def made(x, weights):
        return jnp.tanh(jnp.einsum("aced,bcfa->fadeb", weights.reshape(TWIN.shape), x))

    def fun(x):
        return jax.grad(lambda x: made(x, TWIN).sum())(x), made(x, others)

    x = jnp.asarray(np.random.default_rng(1).normal(size=(8, 3, 8, 1)).astype(np.float32))
    for one, other in zip(pytc.compile(fun, donate="none")(x), jax.jit(fun)(x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_equal_arrays_are_multiplied_once():
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    twin = jnp.asarray(weights)

    def fun(x):
        return [jnp.tanh(jnp.einsum("ij,jk->ik", x, weights)) for _ in range(4)], jnp.sin(x @ twin)

    x = jnp.ones((4, 64))
    by_jax = jax.jit(fun).lower(x).compile().cost_analysis()["flops"]
    assert pytc.compile(fun).lower(x).compile().cost_analysis()["flops"] == by_jax
    emitted = emit_jit(pytc.passes.run(pytc.stage(fun, x)))
    assert emitted.lower([x]).compile().cost_analysis()["flops"] == by_jax


def test_arrays_that_begin_alike_are_no_twins():
    other = WEIGHTS.at[-1, -1].add(1)
    program = hoisted(lambda x: jnp.tanh(x @ WEIGHTS) @ other, jnp.linspace(-1, 1, 8))
    assert len(captured(program)) == 2


def test_a_counter_is_made_of_no_captured_array():
    def fun(x):
        i, y = jax.lax.fori_loop(0, 3, lambda _, c: (c[0] + 1, c[1] @ WEIGHTS), (0, x))
        return jnp.sin(jnp.float32(i) * 0.3) * y

    assert len(captured(hoisted(fun, jnp.linspace(-1, 1, 8)))) == 1


@pytest.mark.parametrize("value", [jnp.ones(8), jnp.zeros((8,)), jnp.array([2.0])])
def test_arrays_that_cost_nothing_as_constants_stay_so(value):
    program = hoisted(lambda x: value[x.astype(int)], jnp.arange(8.0))
    assert not captured(program)
    assert program.jaxpr.consts


def test_what_is_captured_is_a_snapshot():
    host = np.arange(4, dtype=np.float32)
    device = jnp.arange(4.0) + 1
    compiled = pytc.compile(lambda x: jnp.take(host, x.astype(int)) + device[x.astype(int)])
    assert len(captured(hoisted(lambda x: jnp.take(host, x.astype(int)) + device[x.astype(int)], jnp.ones(4)))) == 2
    expected = np.asarray(compiled(jnp.ones(4)))
    host[:] = 100
    device.delete()
    np.testing.assert_array_equal(compiled(jnp.ones(4)), expected)


def test_the_program_holds_no_large_constant():
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(256, 256)), jnp.float32)
    compiled = pytc.compile(lambda x: x @ weights)
    x = jnp.ones((2, 256))
    np.testing.assert_array_equal(compiled(x), jax.jit(lambda x: x @ weights)(x))
    program = hoisted(lambda x: x @ weights, x)
    assert program.in_avals[0].shape == (256, 256)


def test_a_captured_ref_is_an_input_and_is_written():
    ref = jax.new_ref(jnp.zeros(3))

    @pytc.compile
    def accumulate(x):
        ref[...] += x
        return ref[...] * 2

    np.testing.assert_array_equal(accumulate(jnp.ones(3)), 2 * np.ones(3))
    np.testing.assert_array_equal(accumulate(jnp.ones(3)), 4 * np.ones(3))
    np.testing.assert_array_equal(ref[...], 2 * np.ones(3))


def test_nothing_captured_is_the_same_program():
    program = pytc.stage(lambda x: x + 1, jnp.ones(3))
    assert hoist(program) is program


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.sin(x * TABLE) / TABLE,
        lambda x: x @ jnp.outer(TABLE, jnp.tanh(TABLE)),
        lambda x: (x - TABLE) * jnp.exp(HOST_TABLE) + TABLE,
        lambda x: jax.nn.softmax(x + TABLE) * TABLE * 3.0,
        lambda x: x * TABLE + TABLE * x - TABLE,
    ],
)
def test_results_are_those_of_jit_to_the_bit(fun):
    x = jnp.linspace(-3, 3, 8)
    np.testing.assert_array_equal(np.asarray(pytc.compile(fun)(x)), np.asarray(jax.jit(fun)(x)))


RNG = np.random.default_rng(0)
ONE, OTHER, THIRD = RNG.normal(size=(3, 64)).astype(np.float32)
SQUARE = RNG.normal(size=(64, 64)).astype(np.float32)
TALL = RNG.normal(size=(128, 32)).astype(np.float32)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: x * ONE * OTHER,
        lambda x: (x + ONE) - OTHER,
        lambda x: OTHER - (x - ONE),
        lambda x: (x * ONE) * (jnp.sin(x) * OTHER),
        lambda x: -(x * ONE).reshape(8, 8) * OTHER.reshape(8, 8),
        lambda x: (x * ONE) ** 2 * OTHER,
        lambda x: jax.nn.gelu(x * ONE) * OTHER,
        lambda x: jax.jit(lambda v: v * ONE)(x) * OTHER,
        lambda x: jax.jit(lambda v: v * OTHER)(x * ONE),
        lambda x: jax.lax.scan(lambda c, _: (c * ONE * OTHER * 0.9, None), x, None, length=3)[0],
        lambda x: (x @ SQUARE[0]) * ONE * OTHER,
        lambda x: jnp.concatenate([x[None], jnp.sin(x)[None]], 1) @ TALL,
        lambda x: jax.lax.dynamic_slice(jnp.asarray(SQUARE), (x[0].astype(int), 0), (1, 64)) @ jnp.asarray(TALL[:64]),
    ],
)
def test_constants_that_xla_would_join_stay_constants(fun):
    x = jnp.asarray(THIRD)
    program = hoisted(fun, x)
    assert all(given.captured.shape == (64,) for given in captured(program))
    wanted = jax.jit(fun)(x)
    np.testing.assert_array_equal(np.asarray(pytc.compile(fun, donate="none")(x)), np.asarray(wanted))


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jax.nn.relu(x @ SQUARE + ONE) @ SQUARE + OTHER,
        lambda x: jnp.tanh(x * ONE) @ SQUARE * OTHER,
        lambda x: jax.lax.scan(lambda c, _: (jnp.tanh(c @ SQUARE + ONE), None), x, None, length=3)[0],
    ],
)
def test_weights_become_inputs_whatever_is_read_beside_them(fun):
    x = jnp.asarray(THIRD)
    assert {given.captured.shape for given in captured(hoisted(fun, x))} == {(64, 64)}
    np.testing.assert_array_equal(np.asarray(pytc.compile(fun)(x)), np.asarray(jax.jit(fun)(x)))


CUBE = RNG.normal(size=(4, 16, 64)).astype(np.float32)
NANS = np.where(ONE > 1, np.nan, ONE).astype(np.float32)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: x @ jnp.asarray(SQUARE).T,
        lambda x: jnp.einsum("bd,hkd->bhk", x, CUBE),
        lambda x: jnp.einsum("bhk,khd->bd", x.reshape(-1, 4, 16), CUBE.transpose(1, 0, 2)),
        lambda x: jax.grad(lambda v: jnp.sin(v @ SQUARE).sum())(x.reshape(8, 8, 64)),
        lambda x: jax.vmap(lambda v, t: t @ v[:16], in_axes=(0, 2))(x, CUBE),
        lambda x: jax.nn.softmax(x[:, :1].astype("float16") @ ONE.astype("float16")[None]),
        lambda x: jax.nn.softmax((x[:, :, None] * SQUARE[None, :, :8]).sum(1)),
        lambda x: (lambda y: y + y.sum())((x * jnp.asarray(SQUARE)[::-1]).sum(1)),
        lambda x: x.reshape(64, 8, 8).swapaxes(1, 2).reshape(64, 64) @ SQUARE,
        lambda x: jax.lax.scan(lambda c, _: (jnp.tanh(c @ jnp.asarray(SQUARE).T), None), x, None, length=3)[0],
        lambda x: x - NANS,
        lambda x: x[0] @ x.T - ONE,
        lambda x: x[:1] @ x.T + ONE[None],
        lambda x: (x[0] @ x.T).reshape(8, 8) + ONE.reshape(8, 8),
        lambda x: (x[:1] @ x.T).sum(0) - ONE,
        lambda x: (lambda y: y + y @ x.T)(jnp.maximum(x[:1] @ x, ONE[None])),
        lambda x: (x.T @ x[:1].T).T * x[:1] - ONE[None],
        lambda x: jax.grad(lambda w: jnp.sum((w @ x.T - ONE) ** 2))(x[0]),
    ],
)
def test_what_xla_would_compute_in_another_order_stays_a_constant(fun):
    x = jnp.asarray(RNG.normal(size=(64, 64)), jnp.float32)
    assert not captured(hoisted(fun, x))
    got, wanted = (np.asarray(wrap(fun)(x)) for wrap in (pytc.compile, jax.jit))
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.einsum("bld,dhk->blhk", x, CUBE.transpose(2, 0, 1).copy()),
        lambda x: jnp.einsum("blhk,hkd->bld", x.reshape(8, 8, 4, 16), CUBE),
        lambda x: x.reshape(8, 4, 8, 16).transpose(0, 2, 1, 3).reshape(8, 8, 64) @ SQUARE,
        lambda x: jax.vmap(lambda v: SQUARE @ v)(x[0]),
        lambda x: jax.grad(lambda v: jnp.sin(v @ SQUARE).sum())(x[0]),
    ],
)
def test_what_lies_as_xla_multiplies_it_becomes_an_input(fun):
    x = jnp.asarray(RNG.normal(size=(8, 8, 64)), jnp.float32)
    assert captured(hoisted(fun, x))
    np.testing.assert_array_equal(np.asarray(pytc.compile(fun)(x)), np.asarray(jax.jit(fun)(x)))


MADE = {
    "parts": (lambda x: jnp.concatenate([x, jnp.sin(x)], 1), lambda v: v @ TALL),
    "a slice": (
        lambda x: jax.lax.dynamic_slice(jnp.asarray(SQUARE), (x[0, 0].astype(int), 0), (1, 64)),
        lambda v: v @ TALL[:64],
    ),
    "a transpose": (lambda x: x.reshape(64, 8, 8).swapaxes(1, 2).reshape(64, 64), lambda v: v @ SQUARE),
    "a product": (lambda x: x * ONE, lambda v: v @ SQUARE[0]),
}


def on_a_mesh(fun):
    return jax.shard_map(fun, mesh=jax.make_mesh((1,), ("i",)), in_specs=jax.P(), out_specs=jax.P())


def with_batching(fun):
    custom = jax.custom_batching.custom_vmap(fun)
    custom.def_vmap(lambda size, batched, x: (jax.vmap(fun)(x), True))
    return custom


def while_it_is(end, step, *start):
    return jax.lax.while_loop(lambda s: s[0] < end, lambda s: (s[0] + 1, *step(*s[1:])), (0, *start))[1:]


CROSSING = {
    "times one": lambda make, use: lambda x: use(make(x) * jnp.ones(64)[:1]),
    "plus zero": lambda make, use: lambda x: use(make(x) + jnp.zeros(())),
    "chosen by a constant": lambda make, use: lambda x: use(jnp.where(jnp.arange(3).sum() > 0, make(x), x[:1, :1])),
    "the sum of one": lambda make, use: lambda x: use(make(x)[None].sum(0)),
    "into a call": lambda make, use: lambda x: jax.jit(use)(make(x)),
    "out of a call": lambda make, use: lambda x: use(jax.checkpoint(make)(x)),
    "out of a mesh": lambda make, use: lambda x: use(on_a_mesh(make)(x)),
    "out of custom batching": lambda make, use: lambda x: use(with_batching(make)(x)),
    "into a branch": lambda make, use: lambda x: jax.lax.cond(x[0, 0] > 0, use, lambda v: use(v) * 2, make(x)),
    "out of a branch": lambda make, use: lambda x: use(jax.lax.cond(x[0, 0] > 0, make, lambda v: make(v * 2), x)),
    "out of a known branch": lambda make, use: lambda x: use(jax.lax.cond(True, make, lambda v: make(v * 2), x)),
    "into every step": lambda make, use: (
        lambda x: (lambda v: jax.lax.scan(lambda c, _: (c, use(v)), 0.0, None, length=3))(make(x))
    ),
    "into the only step": lambda make, use: lambda x: jax.lax.scan(lambda c, _: (c, use(c)), make(x), None, length=1),
    "into copies of a step": lambda make, use: (
        lambda x: jax.lax.scan(lambda c, _: (c * 0.5, use(c)), make(x), None, length=5, unroll=2)
    ),
    "out of the only step": lambda make, use: (
        lambda x: use(jax.lax.scan(lambda c, _: (c, make(x)), 0.0, None, length=1)[1][0])
    ),
    "out of the last step": lambda make, use: (
        lambda x: use(jax.lax.scan(lambda c, _: (make(x), None), make(x), None, length=3, unroll=2)[0])
    ),
    "into a while loop": lambda make, use: (
        lambda x: (lambda v: while_it_is(1, lambda c, _: (c, use(c)), v, jnp.zeros_like(use(v))))(make(x))
    ),
    "out of a while loop": lambda make, use: lambda x: use(while_it_is(1, lambda c: (make(x),), make(x) + 1)[0]),
}


@pytest.mark.parametrize("cross", CROSSING)
@pytest.mark.parametrize("made", MADE)
def test_what_an_operand_is_made_of_is_followed_everywhere(made, cross):
    fun = CROSSING[cross](*MADE[made])
    x = jnp.asarray(RNG.normal(size=(64, 64)), jnp.float32)
    assert not captured(hoisted(fun, x))


@pytest.mark.parametrize("unroll", [1, 2])
def test_what_a_step_returns_is_what_its_next_copy_begins_with(unroll):
    def fun(x):
        def step(c, _):
            return c * ONE, c @ SQUARE[0]

        return jax.lax.scan(step, x, None, length=4, unroll=unroll)

    x = jnp.asarray(RNG.normal(size=(64, 64)), jnp.float32)
    assert len(captured(hoisted(fun, x))) == (unroll == 1)
    for wanted, got in zip(jax.jit(fun)(x), pytc.compile(fun)(x), strict=True):
        assert np.asarray(wanted).tobytes() == np.asarray(got).tobytes()


@pytest.mark.parametrize("start", [jnp.zeros(64), jnp.asarray(ONE)])
def test_a_product_with_what_the_only_step_begins_with_is_of_constants_alone(start):
    def fun(x, length):
        return jax.lax.scan(lambda c, row: (jnp.tanh(c @ SQUARE) + row, None), start * 1, x[:length])[0]

    x = jnp.asarray(RNG.normal(size=(3, 64)), jnp.float32)
    for length in (1, 3):
        assert len(captured(hoisted(lambda x, n=length: fun(x, n), x))) == (length == 3)


ROW = RNG.normal(size=(1, 64)).astype(np.float32)
KNOWN = jnp.asarray(OTHER) + 3


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, i, u: x / jax.lax.dynamic_slice(KNOWN, (i,), (64,)),
        lambda x, i, u: x * jnp.tanh(jnp.asarray(ROW)[i]),
        lambda x, i, u: x * jnp.tanh(jnp.asarray(SQUARE)[jax.lax.select(x[0] > 0, jnp.int32(2), jnp.int32(2))]),
        lambda x, i, u: jnp.where(x > 0, KNOWN, KNOWN) @ SQUARE,
        lambda x, i, u: jax.lax.dynamic_update_slice(x, KNOWN, (i,)) @ SQUARE,
        lambda x, i, u: (jax.lax.pad(x[:0], 0.3, ((0, 64, 0),)) * KNOWN) @ SQUARE,
        lambda x, i, u: jax.lax.real(jax.lax.complex(KNOWN, x)) @ SQUARE,
        lambda x, i, u: jnp.stack([KNOWN, x])[0] @ SQUARE,
        lambda x, i, u: (KNOWN + x[:0].sum()) @ SQUARE,
        lambda x, i, u: (KNOWN + x[:0] @ x[:0]) @ SQUARE,
        lambda x, i, u: (KNOWN + x**0.0) @ SQUARE,
        lambda x, i, u: (KNOWN + (i + 1 - i)) @ SQUARE,
        lambda x, i, u: (KNOWN + (i[None][::-1][0] - i)) @ SQUARE,
        lambda x, i, u: (KNOWN + (jnp.arange(64) + i) * jnp.zeros(64, int)) @ SQUARE,
        lambda x, i, u: (KNOWN * (u >= 0)) @ SQUARE,
        lambda x, i, u: (KNOWN + jnp.argmax(x[:1])) @ SQUARE,
        lambda x, i, u: (KNOWN + jax.lax.sort((x[:1], jnp.zeros(1)), num_keys=1)[1][0]) @ SQUARE,
        lambda x, i, u: (KNOWN + jax.lax.fori_loop(0, 3, lambda _, s: (s[0] + 1, s[1] * x), (0, x))[0]) @ SQUARE,
    ],
)
def test_what_reads_what_xla_may_know_stays_a_constant(fun):
    args = jnp.asarray(THIRD), jnp.int32(1), jnp.uint32(3)
    assert not captured(hoisted(fun, *args))
    got, wanted = (np.asarray(wrap(fun)(*args)) for wrap in (pytc.compile, jax.jit))
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, i: jnp.asarray(SQUARE)[i] + x,
        lambda x, i: jnp.asarray(SQUARE)[jax.lax.rem(jax.lax.max(i, 0) * 8 + 3, 7)] + x,
        lambda x, i: jnp.asarray(CUBE)[i, i],
        lambda x, i: jax.nn.relu(jnp.asarray(TALL.reshape(64, 64))[i] + x) @ SQUARE,
        lambda x, i: jax.nn.relu(x + jax.random.normal(jax.random.key(i), 64)) @ SQUARE,
        lambda x, i: jax.grad(lambda v: ((jax.nn.relu(v * 2) @ SQUARE) ** 2).sum())(x),
        lambda x, i: jnp.where(x < 0, 0.1 * x, x) @ SQUARE,
        lambda x, i: jax.lax.cond(i < 3, lambda v: v @ SQUARE, lambda v: v, x),
        lambda x, i: jax.nn.softmax(jnp.where(jnp.arange(64) < i, x, -jnp.inf)) @ x + x @ SQUARE,
        lambda x, i: jax.lax.fori_loop(0, 3, lambda k, y: jnp.tanh(y @ SQUARE) + k, x),
    ],
)
def test_what_reads_what_xla_cannot_know_becomes_an_input(fun):
    args = jnp.asarray(THIRD), jnp.int32(1)
    assert captured(hoisted(fun, *args))
    got, wanted = (np.asarray(wrap(fun)(*args)) for wrap in (pytc.compile, jax.jit))
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("seed", [0, 9, 111, 1065, 1159, 50840])
def test_random_functions_around_weights(seed):
    check(seed)


def test_random_functions_have_weights_that_become_inputs():
    functions = [random_function(seed) for seed in range(10)]
    assert sum(bool(captured(hoisted(fun, *args))) for fun, args in functions) >= 5


def test_what_a_constant_mask_leaves_may_be_constant():
    def fun(x):
        return jnp.where(jnp.arange(64) < 0, x, 1.0) @ SQUARE, jnp.where(x > 0, x, 1.0) @ (SQUARE + 1)

    x = jnp.asarray(THIRD)
    assert len(captured(hoisted(fun, x))) == 1


def test_what_stays_a_constant_stays_where_it_was():
    def fun(x):
        return jax.jit(lambda v: v / jnp.asarray(ONE) + jnp.asarray(OTHER) @ SQUARE)(x)

    x = jnp.asarray(THIRD)
    staged = pytc.stage(fun, x)
    program = hoist(staged)
    assert all("stays" in note.text for note in program.notes)
    assert program.jaxpr is staged.jaxpr


def test_an_array_in_a_loop_around_one_on_constants_alone_stays_a_constant():
    def fun(x):
        def step(c, _):
            ten = jax.lax.while_loop(lambda n: n < 10, lambda n: n + 1, 0)
            return c @ SQUARE + jnp.sin(ten * 0.3), None

        return jax.lax.scan(step, x, None, length=2)[0]

    x = jnp.asarray(THIRD)
    assert not captured(hoisted(fun, x))
    np.testing.assert_array_equal(np.asarray(pytc.compile(fun)(x)), np.asarray(jax.jit(fun)(x)))


def test_what_few_steps_return_of_it_is_constant_after_the_loop():
    """XLA unrolls the loop, and computes what follows while it compiles."""
    table = np.array([-0.78146887, -0.86346686, 2.8906178, 1.1398408], np.float32)

    def fun(x):
        count, rows = jax.lax.scan(lambda count, _: (count + 1, jnp.asarray(table)), x, None, length=3, unroll=2)
        return count, jax.nn.softplus(rows)

    x = jnp.zeros(4)
    for wanted, got in zip(jax.jit(fun)(x), pytc.compile(fun)(x), strict=True):
        np.testing.assert_array_equal(np.asarray(wanted), np.asarray(got))
    assert not captured(hoisted(fun, x))


def bodies(program):
    return {id(eqn.params["jaxpr"]) for eqn in program.jaxpr.jaxpr.eqns if "jaxpr" in eqn.params}


def test_a_body_that_is_called_often_stays_one():
    layer = jax.jit(lambda x: jnp.tanh(x @ WEIGHTS) + x)

    def fun(x):
        return layer(layer(layer(x) * 2))

    program = hoisted(fun, TABLE)
    assert len(captured(program)) == len(bodies(program)) == 1
    jax.extend.core.check_jaxpr(program.jaxpr.jaxpr)


def test_calls_inside_each_other_are_looked_at_once():
    """Each of twenty levels calls the next one twice: a million calls, and twenty bodies."""
    level = jax.jit(lambda x: jnp.sin(x @ WEIGHTS))
    for _ in range(20):
        level = jax.jit(lambda x, inner=level: jnp.cos(inner(inner(x)) @ WEIGHTS))
    program = hoisted(level, TABLE)
    assert len(captured(program)) == len(bodies(program)) == 1
