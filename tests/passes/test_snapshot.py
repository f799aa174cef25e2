"""What a function captured is what it was when it was traced, whenever the program is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir

import pytc
from pytc import passes
from pytc.jax_compat import jaxprs

FUNCTIONS = {
    "added": lambda c: lambda x: x + c,
    "in an inner jit": lambda c: lambda x: jax.jit(lambda y: y + c)(x) + 1,
    "in a scan": lambda c: lambda x: jax.lax.scan(lambda carry, _: (carry + c, None), x, None, length=2)[0],
    "in a branch": lambda c: lambda x: jax.lax.cond(x[0] > -1, lambda v: v + c, lambda v: v, x),
    "under remat": lambda c: lambda x: jax.checkpoint(lambda v: jnp.sin(v) + c)(x),
    "in a gradient": lambda c: lambda x: jax.grad(lambda v: (jnp.sin(v) * c).sum())(x),
}
CAPTURED = {
    "numpy": lambda: np.arange(3, dtype=np.float32),
    "numpy without axes": lambda: np.array(2, np.float32),
    "jax": lambda: jnp.arange(3.0),
}


def spoil(captured):
    if isinstance(captured, np.ndarray):
        captured[...] = 100
    else:
        captured.delete()


def let_go(function, x):
    return function(x)


def move(function, x):
    return function(pytc.move(x))


def and_read_it(function, x):
    result = function(x)
    np.asarray(x)
    return result


@pytest.mark.parametrize("first", [jnp.zeros, lambda n: np.zeros(n, np.float32)], ids=["jax", "numpy"])
@pytest.mark.parametrize("again", [let_go, move])
@pytest.mark.parametrize("kind", CAPTURED)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_another_plan_finds_what_the_first_found(name, kind, again, first):
    captured = CAPTURED[kind]()
    function = FUNCTIONS[name](captured)
    wanted = jax.jit(function)(jnp.zeros(3))
    compiled = pytc.compile(function)
    np.testing.assert_array_equal(and_read_it(compiled, first(3)), wanted)
    spoil(captured)
    np.testing.assert_array_equal(again(compiled, jnp.zeros(3)), wanted)


@pytest.mark.parametrize("kind", CAPTURED)
def test_another_plan_of_a_mapped_function(kind):
    captured = CAPTURED[kind]()
    mapped = pytc.pmap(lambda x: x + captured)
    wanted = np.asarray(and_read_it(mapped, jnp.zeros((1, 3))))
    spoil(captured)
    np.testing.assert_array_equal(mapped(pytc.move(jnp.zeros((1, 3)))), wanted)


def test_what_is_nobody_elses_is_not_copied_and_what_two_share_they_still_share():
    table = np.arange(3, dtype=np.float32)

    @jax.jit
    def inner(x):
        return x * table

    program = pytc.stage(lambda x: inner(inner(x) + 1.5) + 2, jnp.ones(3))
    after = passes.snapshot(program)
    one, other = (eqn.params["jaxpr"] for eqn in after.jaxpr.jaxpr.eqns if eqn.primitive.name == "jit")
    assert one is other
    (kept,) = one.consts
    assert not np.shares_memory(np.asarray(kept), table)
    flat = [eqn for eqn in program.jaxpr.jaxpr.eqns if eqn.primitive.name == "add"]
    assert [eqn for eqn in after.jaxpr.jaxpr.eqns if eqn.primitive.name == "add"] == flat
    assert any(isinstance(atom, jaxprs.Literal) for eqn in flat for atom in eqn.invars)

    nothing = pytc.stage(lambda x: jnp.tanh(x) * 2.5 + np.float32(3), jnp.ones(3))
    assert passes.snapshot(nothing).jaxpr is nothing.jaxpr


def test_what_a_device_has_is_copied_to_the_host_and_compiled_alike():
    captured = jnp.arange(3.0)
    program = pytc.stage(lambda x: x + captured, jnp.ones(3))
    after = passes.snapshot(program)
    assert [type(value) for value in after.jaxpr.consts] == [np.ndarray]
    before, now = (
        jax.jit(jaxpr_as_fun(each.jaxpr)).lower(jnp.ones(3)).compile().as_text() for each in (program, after)
    )
    assert now == before


def test_a_key_is_copied_too():
    key = jax.random.key(0)
    compiled = pytc.compile(lambda x: x + jax.random.normal(key, (3,)))
    wanted = np.asarray(and_read_it(compiled, jnp.zeros(3)))
    key.delete()
    np.testing.assert_array_equal(compiled(pytc.move(jnp.zeros(3))), wanted)


def test_a_ref_goes_on_changing():
    ref = jax.new_ref(jnp.zeros(3))

    @pytc.compile
    def add(x):
        ref[...] += x
        return x * 2

    x = jnp.ones(3)
    for _ in range(3):
        x = add(x)
    np.testing.assert_array_equal(ref[...], [7, 7, 7])


def test_weak_types_stay():
    captured = np.array(2.5, np.float32)
    weak = jnp.asarray(1.5)
    program = pytc.stage(lambda x: x + captured + weak, jnp.ones(3, jnp.bfloat16))
    assert [v.aval for v in passes.snapshot(program).jaxpr.jaxpr.outvars] == [
        v.aval for v in program.jaxpr.jaxpr.outvars
    ]


def test_weak_types_stay_where_a_program_is_traced_again():
    """As one with effects is."""
    weak = {"scalar": jnp.asarray(2.5), "vector": jnp.broadcast_to(jnp.asarray(2.5), (3,))}

    def fun(x):
        jax.debug.callback(lambda _: None, x)
        return jax.tree.map(lambda w: (w * 2, w * x, w), weak)

    x = jnp.ones(3, jnp.bfloat16)
    results = [jax.tree.map(jax.typeof, compiler(fun)(x)) for compiler in (pytc.compile, jax.jit)]
    assert results[0] == results[1]


def test_a_jaxpr_made_in_the_midst_of_a_trace():
    """Its consts are that trace's tracers. An equation may have one as a parameter that tells it what to do; lineax's
    linear solves do."""
    told = Primitive("told")
    told.def_impl(lambda x, *, jaxpr: x)
    told.def_abstract_eval(lambda x, *, jaxpr: x)
    mlir.register_lowering(told, lambda ctx, x, *, jaxpr: [x])

    def fun(x, rows):
        def body(carry, row):
            jaxpr = jax.make_jaxpr(lambda y: y * row + carry.sum())(row)
            return carry + told.bind(row, jaxpr=jaxpr), row

        return jax.lax.scan(body, x, rows)

    x, rows = jnp.ones(3), jnp.arange(12.0).reshape(4, 3)
    for one, other in zip(pytc.compile(fun)(x, rows), jax.jit(fun)(x, rows), strict=True):
        np.testing.assert_array_equal(one, other)
