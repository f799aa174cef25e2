"""finalise inside loops, branches, kernels and `Ref` code: what surrounds a wrapper keeps its meaning and its names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

import pytc
from pytc.finalise import finalise
from pytc.jax_compat import rules
from pytc.passes import subjaxprs
from pytc.passes.verify import same
from tests.comparison import program_of, run
from tests.passes import finalising
from tests.passes.finalising import X, Y, cosine, equations, finalised, names, sine

_HIGHER_ORDER: dict[str, Callable[[Any], Any]] = {
    "scan": lambda x: lax.scan(lambda c, s: (sine(c) + s, cosine(c)), x[0], x),
    "while": lambda x: lax.while_loop(lambda c: jnp.all(sine(c) < 2) & (c[1] < 9), lambda c: cosine(c) + 9, x),
    "cond": lambda x: lax.cond(x[0] > 0, sine, cosine, x),
    "switch": lambda x: lax.switch(1, [sine, cosine, jnp.exp], x),
    "jit": lambda x: jax.jit(sine, out_shardings=jax.sharding.SingleDeviceSharding(jax.devices()[0]))(x),
    "remat": lambda x: jax.grad(lambda v: jnp.sum(jax.checkpoint(lambda u: sine(u) * cosine(u))(v)))(x),
    "custom_jvp": lambda x: jax.nn.relu(cosine(x)),
    "vmap of scan": lambda x: jax.vmap(lambda v: lax.scan(lambda c, _: (sine(c), None), v, None, length=2)[0])(x),
    "linearize": lambda x: jax.linearize(sine, x)[1](x),
    "associative_scan": lambda x: lax.associative_scan(lambda a, b: sine(a) + b, x),
    "map": lambda x: lax.map(cosine, x),
    "reduce": lambda x: lax.reduce(sine(x), 0.0, lax.add, (0,)),
}


@pytest.mark.parametrize("name", _HIGHER_ORDER)
def test_wrappers_inside_higher_order_primitives_go(name: str) -> None:
    found = finalised(_HIGHER_ORDER[name], X)
    assert not [n for n in found if n.startswith("custom_")]


def test_wrappers_around_refs_go() -> None:
    def fun(x: Any) -> Any:
        ref = jax.new_ref(sine(x))

        @jax.jit
        def step(i: Any) -> None:
            ref[i] = cosine(ref[i]) + checkpoint_name(x[i], "x")

        lax.fori_loop(0, 3, lambda i, _: step(i), None)
        return ref[...]

    assert not [n for n in finalised(fun, X) if n.startswith(("custom_", "name"))]


def test_a_jit_that_writes_to_a_ref() -> None:
    def fun(ref: Any, x: Any) -> Any:
        @jax.jit
        def twice(ref: Any, x: Any) -> None:
            ref[...] = sine(x) * ref[...]
            ref[...] = ref[...] + cosine(x)

        twice(ref, x)
        return x * 2

    staged = program_of(fun, jax.new_ref(X), Y)
    assert "jit" not in names(finalise(staged.jaxpr))
    program = finalise(staged)
    rules.check(program.jaxpr)
    assert not [name for name in names(program.jaxpr) if name.startswith("custom")]
    held, wanted = jax.new_ref(X), jax.new_ref(X)
    jax.jit(fun)(wanted, Y)
    run(program, [held, Y])
    assert same(held[...], wanted[...])


def test_a_pallas_kernel_stays_as_it_was_traced_and_what_is_around_it_is_finalised() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jax.jit(jnp.sin)(x_ref[...])

    def fun(x: Any) -> Any:
        call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)
        return cosine(call(sine(x)))

    before, after = program_of(fun, X), finalise(program_of(fun, X))
    (kernel_before,) = equations(before.jaxpr, "pallas_call")
    (kernel_after,) = equations(after.jaxpr, "pallas_call")
    assert str(kernel_before.params["jaxpr"]) == str(kernel_after.params["jaxpr"])
    assert [eqn.primitive.name for eqn in after.jaxpr.jaxpr.eqns] == ["sin", "pallas_call", "cos"]
    (result,) = run(after, [X])
    assert same(result, jax.jit(fun)(X))


def test_effects_stay_in_order() -> None:
    log: list[float] = []

    @jax.jit
    def tell(x: Any) -> Any:
        jax.debug.callback(lambda v: log.append(float(v)), x, ordered=True)
        return sine(x)

    def fun(x: Any) -> Any:
        y = tell(x[0])
        z = jax.checkpoint(tell)(x[1])
        return lax.scan(lambda c, v: (tell(c) + v, None), y + z, x)[0]

    jax.jit(fun)(X)
    jax.effects_barrier()
    wanted, log[:] = list(log), []
    before = program_of(fun, X)
    after = finalise(before)
    assert list(subjaxprs.effects_in_order(before.jaxpr.jaxpr)) == list(subjaxprs.effects_in_order(after.jaxpr.jaxpr))
    run(after, [X])
    assert log == wanted


# What is handed on unchanged


def test_a_carry_that_only_passes_through_is_read_where_it_came_from() -> None:
    def fun(x: Any, y: Any) -> Any:
        (a, b), ys = lax.scan(
            lambda c, s: ((c[0] * s, checkpoint_name(c[1], "same")), lax.stop_gradient(s)), (x[0], y), x
        )
        return a, b, ys

    program = finalise(program_of(fun, X, Y))
    outvars, invars = program.jaxpr.jaxpr.outvars, program.jaxpr.jaxpr.invars
    assert outvars[1] is invars[1]
    assert outvars[2] is invars[0]


def test_a_while_carry_that_only_passes_through_is_read_where_it_came_from() -> None:
    def fun(x: Any, y: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, lax.stop_gradient(c[1]), c[2] * c[1]), (0, y, x))

    program = finalise(program_of(fun, X, Y))
    assert program.jaxpr.jaxpr.outvars[1] is program.jaxpr.jaxpr.invars[1]


def test_a_result_that_every_branch_hands_on_is_read_where_it_came_from() -> None:
    def fun(p: Any, x: Any, y: Any) -> Any:
        return lax.cond(p, lambda x, y: (checkpoint_name(x, "x"), y * 2), lambda x, y: (lax.stop_gradient(x), y), x, y)

    program = finalise(program_of(fun, True, X, Y))
    assert program.jaxpr.jaxpr.outvars[0] is program.jaxpr.jaxpr.invars[1]
    assert program.jaxpr.jaxpr.outvars[1] is not program.jaxpr.jaxpr.invars[2]


def by_branches(a: Any, x: Any) -> Any:
    return lax.cond(
        x[0] > 0,
        lambda a, x: (checkpoint_name(a, "a"), x * 2),
        lambda a, x: (lax.stop_gradient(a), jnp.sin(x)),
        a,
        x,
    )


def by_steps(a: Any, x: Any) -> Any:
    return lax.scan(lambda c, _: ((lax.stop_gradient(c[0]), jnp.sin(c[0] + c[1])), None), (a, x), None, length=3)[0]


def by_slices(a: Any, x: Any) -> Any:
    return lax.scan(lambda c, s: (jnp.sin(c + s), lax.stop_gradient(s)), x[0], a)[::-1]


@pytest.mark.parametrize("hand_on", [by_branches, by_steps, by_slices])
@pytest.mark.parametrize(
    ("first", "last"),
    [
        (lambda x: x + 0.1, lambda a: a + 0.3),  # a + 0.4 to XLA
        (lambda x: jnp.exp(x), lambda a: a * a),
        (lambda x: jnp.sqrt(x * x + 1), jnp.log),
    ],
)
def test_what_is_computed_is_read_from_what_hands_it_on(hand_on: Any, first: Any, last: Any) -> None:
    """XLA joins two steps, but not with a loop or a branch in between."""

    def fun(x: Any) -> Any:
        a, b = hand_on(first(x), x)
        return last(a), b

    x = jnp.asarray(np.random.default_rng(0).normal(size=37), jnp.float32)
    program = finalise(program_of(fun, x))
    assert not any(eqn.primitive.name in ("name", "stop_gradient") for eqn in subjaxprs.equations(program.jaxpr.jaxpr))
    for wanted, got in zip(jax.jit(fun)(x), pytc.compile(fun)(x), strict=True):
        assert same(wanted, got)


@pytest.mark.parametrize(
    "zero",
    [
        lambda x, i: 0.0,
        lambda x, i: x[:0].sum(),
        lambda x, i: lax.sub(lax.add(i, 1), i) - 1.0,
        lambda x, i: jax.jit(lambda v: jnp.where(v > 0, 0.0, 0.0))(x[0]),
        lambda x, i: lax.cond(x[0] > 0, lambda: 0.0, lambda: 0.0),
    ],
)
def test_what_xla_may_know_is_read_from_the_branches_that_hand_it_on(zero: Any) -> None:
    def fun(p: Any, x: Any, i: Any) -> Any:
        known = jnp.arange(8.0) * 0.37 + zero(x, i)
        y, same = lax.cond(
            p,
            lambda x, k: (x * k / jnp.sqrt((x * k).mean() + 9), lax.stop_gradient(k)),
            lambda x, k: (x, checkpoint_name(k, "k")),
            x,
            known,
        )
        return jnp.tanh(same) * y

    args = True, jnp.sin(jnp.arange(8.0)), jnp.int32(1)
    program = finalise(program_of(fun, *args))
    (branches,) = (eqn for eqn in program.jaxpr.jaxpr.eqns if len(eqn.outvars) == 2)
    (tanh,) = (eqn for eqn in program.jaxpr.jaxpr.eqns if eqn.primitive.name == "tanh")
    assert tanh.invars[0] is branches.outvars[1]
    assert same(pytc.compile(fun)(*args), jax.jit(fun)(*args))


# Names


def test_named_scopes_and_function_names_stay_in_the_compiled_program() -> None:
    @jax.jit
    def inner(x: Any) -> Any:
        with jax.named_scope("deep"):
            return jnp.tanh(x) * 3

    @jax.jit
    def again(x: Any) -> Any:
        with jax.named_scope("deep"):
            return jnp.tanh(x) * 3

    def fun(x: Any) -> Any:
        with jax.named_scope("outer"):
            y = sine(inner(x))
        return jax.checkpoint(lambda v: jnp.log1p(v) * again(v))(y)

    program = program_of(fun, X)
    after = finalise(program)
    assert names(after.jaxpr) == ["jit", "tanh", "mul", "sin", "log1p", "jit", "tanh", "mul", "mul"]
    stacks = [_op_names(jax.jit(lambda x, p=p: rules.evaluate(p.jaxpr, [x]))) for p in (program, after)]
    assert set(stacks[1]) == set(stacks[0])
    assert any("outer/jit(inner)/deep/tanh" in name for name in stacks[1])
    assert any("checkpoint/jit(again)/deep/tanh" in name for name in stacks[1])


def _op_names(jitted: Any) -> list[str]:
    text = jitted.lower(X).compile().as_text()
    return [part.split('"')[0] for part in text.split('op_name="')[1:]]


def test_tracebacks_still_speak_of_the_code_that_the_user_wrote() -> None:
    (eqn,) = finalise(program_of(sine, X)).jaxpr.jaxpr.eqns
    assert any(frame.f_code.co_filename == finalising.__file__ for frame in _frames(eqn.source_info.traceback))


def _frames(traceback: Any) -> Iterator[Any]:
    python = traceback.as_python_traceback()
    while python is not None:
        yield python.tb_frame
        python = python.tb_next


def test_types_are_those_of_jax_jit_where_a_ref_is_of_weak_type() -> None:
    def fun(x: Any) -> Any:
        ref = jax.new_ref(x)
        inner = jax.jit(lambda v: jnp.sort(jnp.atleast_1d(v)))
        return inner(ref[...]), lax.cond(ref[...] > 0, lambda v: inner(v), lambda v: inner(-v), ref[...])

    for x in (2.5, jnp.float32(2.5)):
        for got, wanted in zip(pytc.compile(fun)(x), jax.jit(fun)(x), strict=True):
            assert (got.weak_type, got.dtype, float(got[0])) == (wanted.weak_type, wanted.dtype, float(wanted[0]))


def test_wrappers_inside_run_state_go() -> None:
    def update(refs: Any) -> None:
        one, other = refs
        one[...] = sine(other[...]) + checkpoint_name(one[...], "one")

    found = finalised(lambda x, y: pl.run_state(update)((x, y)), X, Y)
    assert found[0] == "run_state"
    assert not [n for n in found if n.startswith(("custom_", "name"))]


def test_a_foreign_call_stays_and_what_is_around_it_is_finalised() -> None:
    jnp.linalg.qr(jnp.eye(3))  # finds LAPACK
    square = jax.ShapeDtypeStruct((3, 3), jnp.float32)
    factor = jax.ffi.ffi_call("lapack_sgeqrf_ffi", (square, jax.ShapeDtypeStruct((3,), jnp.float32)))
    assert finalised(lambda x: cosine(factor(sine(x))[0]), jnp.eye(3) + 0.5) == ["sin", "ffi_call", "cos"]


def test_jits_with_shardings_inside_a_scan_keep_them() -> None:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("i"))
    inner = jax.jit(sine, in_shardings=sharding, out_shardings=sharding)
    spread = jax.shard_map(cosine, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
    fun = lambda x: lax.scan(lambda c, _: (inner(c) + spread(c), None), x, None, length=2)[0]  # noqa: E731
    assert finalised(fun, X) == ["scan", "jit", "sin", "shard_map", "cos", "add"]
    (call,) = equations(finalise(program_of(fun, X)).jaxpr, "jit")
    assert call.params["in_shardings"] == call.params["out_shardings"] == (sharding,)
