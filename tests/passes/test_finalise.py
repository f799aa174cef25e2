"""finalise on jaxprs small enough to read: one test for each wrapper that goes, and for each that stays."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import linear_call

import pytc
from pytc.finalise import finalise
from pytc.jax_compat import rules
from pytc.passes import prune, subjaxprs
from pytc.passes.verify import same
from pytc.program import Program
from tests import interpreters
from tests.comparison import program_of, run
from tests.passes.finalising import X, Y, cosine, equations, finalised, names, sine


def test_nothing_to_replace_is_the_same_program() -> None:
    program = program_of(lambda x, y: lax.cond(x[0] > 0, jnp.sin, jnp.cos, y), X, Y)
    assert finalise(program) is program


def test_custom_derivatives_are_their_functions() -> None:
    assert finalised(lambda x: sine(x) + cosine(x), X) == ["sin", "cos", "add"]


def test_custom_derivatives_of_each_other_are_their_functions() -> None:
    @jax.custom_jvp
    def outer(x: Any) -> Any:
        return cosine(sine(x)) * 2

    outer.defjvp(lambda primals, tangents: (outer(*primals), tangents[0]))
    assert finalised(outer, X) == ["sin", "cos", "mul"]


def test_what_newer_versions_of_jax_keep_whole_until_it_is_lowered() -> None:
    program = program_of(jnp.searchsorted, jnp.sort(X), Y)
    after = finalise(program)
    rules.check(after.jaxpr)
    assert "scan" in names(after.jaxpr)
    assert "call_hi_primitive" not in names(after.jaxpr)
    (got,) = run(after, [jnp.sort(X), Y])
    assert same(got, jnp.searchsorted(jnp.sort(X), Y))


def test_stop_gradient_and_checkpoint_name_are_their_operands() -> None:
    assert finalised(lambda x: lax.stop_gradient(checkpoint_name(x * 2, "twice")) + 1, X) == ["mul", "add"]


def test_an_input_that_only_had_a_name_is_handed_back() -> None:
    program = finalise(program_of(lambda x: checkpoint_name(x, "x"), X))
    assert program.jaxpr.jaxpr.outvars == program.jaxpr.jaxpr.invars


def test_remat_that_nothing_differentiated_is_its_body() -> None:
    assert finalised(jax.checkpoint(lambda x: jnp.sin(x) * 2), X) == ["sin", "mul"]


def test_remat_that_was_differentiated_keeps_its_barrier() -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)))(x))

    program = program_of(jax.grad(loss), X)
    after = finalise(program)
    remat = [eqn for eqn in after.jaxpr.jaxpr.eqns if eqn.primitive.name in ("checkpoint", "remat2", "remat")]
    assert len(remat) == 1
    lowered = [jax.jit(lambda x, p=p: rules.evaluate(p.jaxpr, [x])).lower(X).as_text() for p in (program, after)]
    assert lowered[0].count("optimization_barrier") == lowered[1].count("optimization_barrier") == 1


def test_remat_that_may_share_work_is_its_body_after_differentiation_too() -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)), prevent_cse=False)(x))

    assert "remat" not in " ".join(finalised(jax.grad(loss), X))


@jax.custom_vjp
def forgetful(x: Any) -> Any:
    return jnp.sin(x) * jnp.cos(x)


# By another formula, so that it is seen which of the two is run.
forgetful.defvjp(
    lambda x: (jnp.sin(2 * x), (jnp.sin(x), jnp.cos(x))), lambda kept, g: (g * kept[0],), optimize_remat=True
)

_FORGETFUL = {
    "residuals that are not read": lambda x: jax.vjp(forgetful, x)[0],
    "residuals that are read": lambda x: jax.vjp(forgetful, x)[1](x)[0] + jax.vjp(forgetful, x)[0],
    "in a scan": lambda x: jax.lax.scan(lambda c, _: (jax.vjp(forgetful, c)[0], None), x, None, length=2)[0],
    "in a branch": lambda x: jax.lax.cond(x[0] > 0, lambda v: jax.vjp(forgetful, v)[0], jnp.cos, x),
    "in a call": lambda x: jax.jit(lambda v: jax.vjp(forgetful, v)[0])(x),
}


@pytest.mark.parametrize("fun", _FORGETFUL.values(), ids=_FORGETFUL)
def test_a_forward_function_whose_residuals_nothing_reads_is_the_function_itself(fun: Any) -> None:
    assert "remat_opt" not in " ".join(finalised(fun, X))
    assert same(pytc.compile(fun)(X), jax.jit(fun)(X))


def test_an_optimization_barrier_stays() -> None:
    assert finalised(lambda x: lax.optimization_barrier(x * 2) + 1, X) == ["mul", "optimization_barrier", "add"]


def test_custom_vmap_and_linear_calls_are_their_functions() -> None:
    @custom_vmap
    def double(x: Any) -> Any:
        return x * 2

    double.def_vmap(lambda size, batched, x: (double(x), True))
    assert finalised(double, X) == ["mul"]
    assert finalised(lambda x, y: linear_call(lambda r, v: v / r, lambda r, v: v / r, x, y), X, Y) == ["div"]


def test_a_linear_solve_is_its_solver() -> None:
    def fun(b: Any) -> Any:
        return lax.custom_linear_solve(lambda v: 4 * v, b, lambda _, v: v / 4, symmetric=True)

    assert finalised(fun, X) == ["div"]


# Inner jits


def test_in_a_program_a_jit_stays() -> None:
    assert finalised(lambda x: jax.jit(lambda v: jnp.sin(v) * jnp.cos(v))(x), X) == ["jit", "sin", "cos", "mul"]


def test_in_a_jaxpr_a_jit_called_once_is_its_body() -> None:
    closed = jax.make_jaxpr(lambda x: jax.jit(lambda v: jnp.sin(v) * jnp.cos(v) + jnp.exp(v) - 1)(x))(X)
    assert names(finalise(closed)) == ["sin", "cos", "mul", "exp", "add", "sub"]


def test_in_a_jaxpr_a_jit_of_a_few_equations_is_its_body_wherever_it_is_called() -> None:
    closed = jax.make_jaxpr(lambda x, y: jnp.where(x > 0, x, 1.0) + jnp.where(y > 0, y, 1.0))(X, Y)
    assert "jit" in names(closed)
    assert "jit" not in names(finalise(closed))


@pytest.mark.parametrize("of", [lambda fun: program_of(fun, X), lambda fun: jax.make_jaxpr(fun)(X)])
def test_a_jit_called_twice_stays_one_jaxpr(of: Any) -> None:
    @jax.jit
    def layer(x: Any) -> Any:
        return jax.nn.relu(sine(x)) * 2 + jnp.exp(x) * cosine(x)

    def fun(x: Any) -> Any:
        return layer(lax.fori_loop(0, 2, lambda _, c: layer(c), layer(x)))

    final = finalise(of(fun))
    final = final.jaxpr if isinstance(final, Program) else final
    layers = [eqn for eqn in equations(final, "jit") if eqn.params["name"] == "layer"]
    assert len(layers) == 3
    assert "custom_jvp_call" not in names(final)
    assert len({id(eqn.params["jaxpr"]) for eqn in layers}) == 1


def test_functions_that_call_each_other_twice_are_looked_at_once() -> None:
    def doubled(depth: int) -> Any:
        if depth == 0:
            return jax.jit(lambda x: jax.nn.relu(sine(x)) * cosine(x) + jnp.exp(x))
        inner = doubled(depth - 1)
        return jax.jit(lambda x: inner(inner(x)))

    program = program_of(doubled(40), X)
    after = prune(finalise(program))
    assert subjaxprs.count(after.jaxpr.jaxpr) > 2**40
    assert finalise(after).jaxpr is after.jaxpr


def test_a_jit_with_shardings_stays() -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert finalised(lambda x: jax.jit(sine, out_shardings=sharding)(x) + 1, X) == ["jit", "sin", "add"]


def test_a_jit_with_a_mesh_stays_and_a_shard_map_is_finalised_inside() -> None:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    found = finalised(lambda x: jax.shard_map(sine, mesh=mesh, in_specs=spec, out_specs=spec)(x), X)
    assert found == ["shard_map", "sin"]


def test_an_array_that_an_inner_jit_captured_is_a_constant_of_the_whole() -> None:
    table = jnp.arange(3.0)
    final = finalise(jax.make_jaxpr(lambda x: jax.jit(lambda v: v * table + jnp.exp(v) - jnp.cos(v))(x))(X))
    assert "jit" not in names(final)
    assert len(final.consts) == 1
    rules.check(final)


CALLED_TWICE = """
import jax, jax.numpy as jnp, pytc

seen = []

@jax.custom_jvp
def both(x, y):
    return x * 2, y + 1

both.defjvp(lambda primals, tangents: (both(*primals), tangents))

@jax.jit
def inner(x):
    y = both(x, jnp.zeros(3))[1]
    jax.debug.callback(seen.append, y, ordered=True)
    return y

print(*pytc.compile(lambda x: inner(x) + inner(x))(jnp.ones(3)))
jax.effects_barrier()
print(len(seen))
"""


def test_calls_with_ordered_effects_are_given_what_they_are_given() -> None:
    """Without `x` the calls would be equal but for their tokens, and XLA of JAX 0.11 and 0.12 ends the process."""
    ran = interpreters.run(["-c", CALLED_TWICE])
    assert ran.stdout.split() == ["2.0", "2.0", "2.0", "2"], ran.stderr[-300:]


@pytest.mark.parametrize("around", [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())])
def test_a_function_that_has_captured_a_tracer_of_a_transformation_around_it(around) -> None:
    def outer(compiler: Any) -> Any:
        return around(lambda x: compiler(lambda y: jax.nn.relu(y * x))(x))

    x = jnp.arange(-2.0, 2.0)
    np.testing.assert_array_equal(outer(pytc.finalise)(x), outer(jax.jit)(x))
    assert "custom_jvp" not in str(jax.make_jaxpr(lambda x: pytc.finalise(lambda y: jax.nn.relu(y * x))(x))(x))


def test_a_function_that_has_captured_a_ref_of_the_function_around_it() -> None:
    def run(x: Any) -> Any:
        r = jax.new_ref(x)
        return pytc.finalise(lambda y: jax.nn.relu(r[...] + y))(x)

    np.testing.assert_array_equal(jax.jit(run)(jnp.arange(-2.0, 2.0)), [0, 0, 0, 2])


@pytest.mark.parametrize("enforce", [True, False])
def test_equations_whose_order_is_given_stay_the_equations_that_they_are(enforce: bool) -> None:
    """JAX puts a barrier between any two of them, and of what is between two barriers XLA may compute other bits."""
    program_order = pytest.importorskip("jax.experimental.overlap").program_order

    @jax.custom_jvp
    def g(a: Any) -> Any:
        return a * 1.1 + a * a * 0.3

    g.defjvp(lambda p, t: (g(*p), t[0]))
    fun = program_order(lambda a: g(a), enforce=enforce)
    x = jnp.asarray(np.random.RandomState(0).randn(64, 7), "float32")
    np.testing.assert_array_equal(pytc.compile(fun)(x), jax.jit(fun)(x))
