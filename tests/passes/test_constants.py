"""finalise: calls, and constants in and around them, decide over bits; in a program that is compiled they stay."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives as jax_primitives

import pytc
from pytc.jax_compat import jaxprs
from pytc.passes import finalise
from pytc.passes.constants import has_constant_loop, is_neutral
from pytc.passes.unknown import results_unknown
from tests.comparison import run

CAPTURED = jnp.array([-3.0168803, -0.455585, -0.034003], jnp.float32)


def primitives(program):
    return {eqn.primitive.name for eqn in program.jaxpr.jaxpr.eqns}


def slope(x):
    return jax.grad(lambda v: jnp.tanh(jnp.sin(v)).sum())(x)


def test_folded_constants_have_the_bits_of_jax_jit():
    same = jax.jit(lambda x: x)

    def fun():
        c = same(CAPTURED + 1.0)
        twice = jnp.concatenate([c, c])
        return slope(twice), jnp.arctan2(slope(twice), twice)

    jax.tree.map(np.testing.assert_array_equal, pytc.compile(fun)(), jax.jit(fun)())
    assert "jit" in primitives(finalise(pytc.stage(fun)))
    assert all(eqn.primitive.name != "jit" for eqn in jax.make_jaxpr(pytc.finalise(fun))().eqns)


def inner(x):
    return jax.jit(lambda v: slope(v) * 2)(x)


def by_custom_jvp(x):
    @jax.custom_jvp
    def called(v):
        return inner(v) * v

    called.defjvp(lambda primals, tangents: (called(*primals), tangents[0]))
    return called(CAPTURED) + x


def by_custom_vjp(x):
    @jax.custom_vjp
    def called(v, w):
        return inner(v) * w

    called.defvjp(lambda v, w: (called(v, w), v), lambda v, g: (g, g))
    return called(CAPTURED, x)


WHERE = {
    "custom_jvp": by_custom_jvp,
    "custom_vjp": by_custom_vjp,
    "remat": lambda x: jax.checkpoint(lambda v: inner(v) * v)(CAPTURED) + x,
    "cond, operand": lambda x: lax.cond(x[0] > 0, lambda v: inner(v) + v, lambda v: v * x, CAPTURED),
    "cond, captured": lambda x: lax.cond(x[0] > 0, lambda v: inner(CAPTURED) + v, lambda v: v * x, x),
    "cond in switch": lambda x: lax.switch(
        x[0].astype(int) - 1, [lambda v: lax.cond(v[0] > 0, lambda: inner(CAPTURED) + v, lambda: v), jnp.sin], x
    ),
    "scan": lambda x: lax.scan(lambda c, _: (c + inner(CAPTURED) * c, None), x, None, length=3)[0],
    "while": lambda x: lax.fori_loop(0, x[0].astype(int) + 2, lambda _, c: c + inner(CAPTURED) * c, x),
    "while, carried": lambda x: lax.fori_loop(
        0, x[0].astype(int) + 2, lambda _, c: (lax.stop_gradient(c[0]), c[1] + inner(c[0])), (CAPTURED, x)
    ),
    "cond in jit": lambda x: jax.jit(lambda v, c: lax.cond(v[0] > 0, lambda: slope(c) + v, lambda: v))(x, CAPTURED),
    "while in jit": lambda x: jax.jit(
        lambda v, c: lax.fori_loop(0, v[0].astype(int) + 2, lambda _, w: w * slope(c), v)
    )(x, CAPTURED),
    "remat in jit": lambda x: jax.jit(lambda v, c: jax.checkpoint(lambda w: slope(c) + w)(v))(x, CAPTURED),
}


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)
def test_constants_reach_calls_through_whatever_stands_around_them(where):
    x = jnp.ones(3)
    np.testing.assert_array_equal(pytc.compile(where)(x), jax.jit(where)(x))


@pytest.mark.parametrize(
    ("called", "operand"),
    [
        (lambda x, c: jax.checkpoint(lambda v, w: v + jnp.log(w))(x, c), 0.3),
        (lambda x, c: lax.cond(x[0] > 0, lambda v, w: v + jnp.log(w), lambda v, w: v, x, c), 0.3),
        (lambda x, c: x + jnp.log(c), 0.3),  # the logarithm of a constant: folded in another place
        (lambda x, c: (x, jnp.sin(c)), 0.3),
        (lambda x, c: x * jnp.log(3.0) + c, 0.3),
    ],
)
def test_constants_meet_across_a_call(called, operand):
    def fun(x):
        return jax.jit(called)(x, operand)

    x = jnp.arange(3.0)
    jax.tree.map(np.testing.assert_array_equal, pytc.compile(fun)(x), jax.jit(fun)(x))


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("activation", [jax.nn.relu, jax.jit(jnp.abs), jax.jit(lambda v: v + v), jax.nn.silu])
def test_what_stands_before_a_product_with_one_row(activation, outputs):
    """Without the call XLA fuses the activation into the product, which is a sum of products then, and rounds."""
    rng = np.random.default_rng(0)
    shapes = [(8, 4), (8,), (outputs, 8), (outputs,), (6, 4), (6, outputs)]
    *params, x, y = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)

    def loss(params):
        w, b, v, c = params
        return jnp.mean((jax.vmap(lambda row: v @ activation(w @ row + b) + c)(x) - y) ** 2)

    step = jax.value_and_grad(loss)
    jax.tree.map(np.testing.assert_array_equal, pytc.compile(step)(params), jax.jit(step)(params))


def test_a_jit_that_is_to_be_inlined_is_no_call():
    """However often it is called, and whatever is constant."""
    inlined = functools.partial(jax.jit, inline=True)(lambda v: jax.jit(lambda w: slope(w) * 2)(v) + jnp.sin(v) * v)

    def fun(x):
        return inlined(x) + inlined(CAPTURED) * inlined(jnp.float32(0.3))

    x = jnp.arange(3.0)
    np.testing.assert_array_equal(pytc.compile(fun)(x), jax.jit(fun)(x))
    calls = [eqn.params["name"] for eqn in finalise(pytc.stage(fun, x)).jaxpr.jaxpr.eqns if eqn.primitive.name == "jit"]
    assert calls == ["<lambda>"] * len(calls)


def test_a_loop_that_hands_on_a_constant_is_read_as_a_loop():
    def step(_, carry):
        constant, count, total = carry
        return jax.lax.stop_gradient(constant), count + 1, total + constant * count

    def fun(x):
        constant, _, total = jax.lax.fori_loop(0, 3, step, (CAPTURED, x, x))
        return jnp.exp(constant) * total

    x = jnp.arange(3.0)
    np.testing.assert_array_equal(pytc.compile(fun)(x), jax.jit(fun)(x))


def with_jvp(fun):
    wrapped = jax.custom_jvp(fun)
    wrapped.defjvp(lambda primals, tangents: (fun(*primals), tangents))
    return wrapped


def with_vjp(fun):
    wrapped = jax.custom_vjp(fun)
    wrapped.defvjp(lambda *args: (fun(*args), None), lambda _, cotangents: cotangents)
    return wrapped


@pytest.mark.parametrize("wrap", [jax.checkpoint, with_jvp, with_vjp])
def test_a_call_stays_where_a_constant_comes_out_of_it_by_way_of_a_wrapper(wrap):
    table = np.array([-6.9740141e-4, 2.0954764], np.float32)
    both = wrap(lambda c, x: (c + 1.0, x * 2))

    def fun(x):
        constant, twice = jax.jit(lambda v: both(jnp.asarray(table), v))(x)
        return jnp.tanh(constant), twice

    x = jnp.arange(2.0)
    program = finalise(pytc.stage(fun, x))
    assert "jit" in primitives(program)
    jax.tree.map(np.testing.assert_array_equal, run(program, [x]), [*jax.jit(fun)(x)])


def same_bits(fun, *args):
    for one, other in zip(jax.tree.leaves(pytc.compile(fun)(*args)), jax.tree.leaves(jax.jit(fun)(*args)), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize(
    "known",
    [lambda b: b != b, lambda b: b & False, lambda b: b.astype(int) * 0 > 0, lambda b: (b ^ b) | (b < b)],
    ids=["unequal to itself", "and False", "times 0", "without itself"],
)
def test_what_is_known_whatever_the_operand_is_a_constant(known):
    """Folded within one function it is 0.0 * -0.75, which is -0.0; across a call XLA makes 0.0 of it."""
    scaled = jax.jit(lambda b: b.astype(jnp.float32) * -0.75)
    same_bits(
        lambda b: (scaled(known(b)), scaled(known(b))[lax.convert_element_type(b[0], int)]), jnp.array([True, False])
    )


def silu(x):
    return x * jax.nn.sigmoid(x)


@pytest.mark.parametrize("unroll", [None, 1, 2, 3])
@pytest.mark.parametrize("rows", [2, 3, 5])
def test_calls_from_several_places_stay(rows, unroll):
    """XLA joins equal calls, or equal equations of them, and what is left it compiles one way or the other."""
    called = jax.jit(silu)

    def each(x):
        y = called(x)
        return y / (y * y + 1)

    def fun(x):
        equal = jnp.broadcast_to(jnp.sum(x), (rows, 2))
        if unroll is None:
            return jnp.stack([each(row) for row in equal]), equal
        return lax.scan(lambda c, row: (c, each(row)), x, equal, unroll=unroll, reverse=True)[1], equal

    same_bits(fun, jnp.ones(()))


def test_a_call_that_is_no_jit_is_not_inlined_late():
    """JAX makes some itself, where it takes derivatives; they have no such option."""
    (call,) = jax.make_jaxpr(jax.jit(jnp.sin))(jnp.ones(3)).jaxpr.eqns
    assert not jaxprs.inlined_late(call)
    params = {"call_jaxpr": call.params["jaxpr"]}
    assert not jaxprs.inlined_late(call.replace(primitive=jax_primitives.closed_call_p, params=params))


def test_what_is_called_from_many_places_is_looked_into_once():
    """Each of these functions calls the next one twice: there are 2**50 ways down."""
    function = jax.jit(lambda x: x + 1)
    for _ in range(50):
        function = jax.jit(lambda x, inner=function: inner(inner(x)))

    def loop(x):
        return lax.scan(lambda c, _: (function(c), None), x, None, length=2)[0]

    jaxpr = jax.make_jaxpr(loop)(1.0).jaxpr
    assert not has_constant_loop(jaxpr)
    (scan,) = jaxpr.eqns
    assert not has_constant_loop(jaxprs.inner(scan.params["jaxpr"]))


OF_BOOLEANS = [
    lax.max, lax.min, lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge, lax.bitwise_or, lax.bitwise_xor, lax.bitwise_and,
]  # fmt: skip
OF_INTEGERS = [
    *OF_BOOLEANS, lax.add, lax.sub, lax.mul, lax.div, lax.rem,
    lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic,
]  # fmt: skip


def on_both_sides(operation, known):
    return [lambda x: operation(known, x), lambda x: operation(x, known)]


def claimed(fun, x):
    """Whether the result of the one equation of a function is told not to be known, where its argument is not."""
    jaxpr = jax.make_jaxpr(fun)(x).jaxpr
    (eqn,) = jaxpr.eqns
    (answer,) = results_unknown(eqn, [atom is jaxpr.invars[0] for atom in eqn.invars])
    return answer


@pytest.mark.parametrize(
    ("dtype", "operation"),
    [
        *((np.int8, operation) for operation in OF_INTEGERS),
        *((np.uint8, operation) for operation in OF_INTEGERS),
        *((np.bool_, operation) for operation in OF_BOOLEANS),
    ],
    ids=lambda value: value.__name__,
)
def test_what_is_not_known_of_numbers_depends_on_them(dtype, operation):
    """Whatever the other operand is: where each number gives the same, XLA may know what."""
    everything = np.unique(np.arange(256).astype(dtype))
    told = 0
    for known in everything:
        for fun in on_both_sides(operation, known):
            if claimed(fun, dtype(0)):
                told += 1
                assert len(np.unique(jax.vmap(fun)(everything))) > 1, known
    assert told or operation is lax.bitwise_and or dtype is np.bool_


@pytest.mark.parametrize(
    ("dtype", "operation"),
    [
        *((dtype, op) for op in (lax.add, lax.sub, lax.mul, lax.div) for dtype in (np.int8, np.uint8)),
        *(
            (dtype, op)
            for op in (lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.max, lax.min)
            for dtype in (np.int8, np.uint8, np.bool_)
        ),
    ],
    ids=lambda value: value.__name__,
)
def test_what_changes_nothing_is_neutral(dtype, operation):
    everything = np.unique(np.arange(256).astype(dtype))
    changing_nothing = 0
    for known in everything:
        for fun in on_both_sides(operation, known):
            if (jax.vmap(fun)(everything) == everything).all():
                (eqn,) = jax.make_jaxpr(fun)(dtype(0)).jaxpr.eqns
                (literal,) = (atom for atom in eqn.invars if isinstance(atom, jaxprs.Literal))
                assert is_neutral(eqn.primitive.name, literal)
                changing_nothing += 1
    assert changing_nothing


def sums(padding, dilation=1):
    return lambda x: lax.reduce_window(x, 0.0, lax.add, (3,), (1,), [(padding, padding)], base_dilation=(dilation,))


def added(into, what):
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    return lax.scatter_add(into, np.array([[1], [2]], np.int32), what, numbers)


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (sums(0), True),
        (sums(2), True),
        (sums(3), False),
        (sums(1, dilation=4), False),
        (lambda x: added(x, np.ones(2, np.float32)), True),
        (lambda x: added(np.ones(4, np.float32), x), False),
        (lambda x: lax.integer_pow(x, 3), True),
        (lambda x: lax.integer_pow(x, 0), False),
    ],
)
def test_what_is_not_known_of_floats_depends_on_them_in_each_part(fun, expected):
    x, y = jnp.linspace(1.0, 2.0, 2), jnp.linspace(3.0, 5.0, 2)
    if expected:
        x, y = jnp.concatenate([x, x + 7]), jnp.concatenate([y, y + 7])
    assert claimed(fun, x) == expected
    assert bool((fun(x) != fun(y)).all()) == expected
