"""finalise on jaxprs small enough to read: one test for each wrapper that goes, and for each that stays."""

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
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import linear_call
from jax.experimental import pallas as pl
from jax.interpreters import mlir

from pytc import jax_compat
from pytc.passes import prune, subjaxprs
from pytc.passes.finalise import finalise, register_finalisation
from pytc.verify import effects_in_order, same
from tests.comparison import program_of, run

X = jnp.array([0.5, -1.25, 3.0])
Y = jnp.array([2.0, 0.25, -4.0])


def names(jaxpr: Any) -> list[str]:
    """The primitives at every depth, as they stand."""
    found = []
    for eqn in jax_compat.inner(jaxpr).eqns:
        found.append(eqn.primitive.name)
        for sub in jax_compat.subjaxprs(eqn):
            found += names(sub)
    return found


def finalised(fun: Callable[..., Any], *args: Any) -> list[str]:
    """The primitives of the finalised function, after checking that it still is that function."""
    before = program_of(fun, *args)
    after = finalise(before)
    jax_compat.check(after.jaxpr)
    for a, b in zip(jax.tree.leaves(jax.jit(fun)(*args)), run(after, jax.tree.leaves(args)), strict=True):
        assert same(a, b)
    assert subjaxprs.count(after.jaxpr.jaxpr) <= subjaxprs.count(before.jaxpr.jaxpr)
    assert finalise(after).jaxpr is after.jaxpr
    assert after.in_avals == before.in_avals
    assert after.out_avals == before.out_avals
    return names(after.jaxpr)


@jax.custom_jvp
def sine(x: Any) -> Any:
    return jnp.sin(x)


sine.defjvp(lambda primals, tangents: (sine(*primals), tangents[0]))


@jax.custom_vjp
def cosine(x: Any) -> Any:
    return jnp.cos(x)


cosine.defvjp(lambda x: (cosine(x), x), lambda x, ct: (ct * x,))


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
    lowered = [jax.jit(lambda x, p=p: jax_compat.evaluate(p.jaxpr, [x])).lower(X).as_text() for p in (program, after)]
    assert lowered[0].count("optimization_barrier") == lowered[1].count("optimization_barrier") == 1


def test_remat_that_may_share_work_is_its_body_after_differentiation_too() -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)), prevent_cse=False)(x))

    assert "remat" not in " ".join(finalised(jax.grad(loss), X))


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


def test_a_jit_called_once_is_its_body() -> None:
    assert finalised(lambda x: jax.jit(lambda v: jnp.sin(v) * jnp.cos(v) + jnp.exp(v) - 1)(x), X)[:2] == ["sin", "cos"]


def test_a_jit_of_a_few_equations_is_its_body_wherever_it_is_called() -> None:
    assert "jit" not in finalised(lambda x, y: jnp.where(x > 0, x, 1.0) + jnp.where(y > 0, y, 1.0), X, Y)


def test_a_jit_called_twice_stays_one_jaxpr() -> None:
    @jax.jit
    def layer(x: Any) -> Any:
        return jax.nn.relu(sine(x)) * 2 + jnp.exp(x) * cosine(x)

    def fun(x: Any) -> Any:
        return layer(lax.fori_loop(0, 2, lambda _, c: layer(c), layer(x)))

    found = finalised(fun, X)
    assert found.count("jit") == 3
    assert "custom_jvp_call" not in found
    bodies = {id(eqn.params["jaxpr"]) for eqn in _equations(finalise(program_of(fun, X)).jaxpr, "jit")}
    assert len(bodies) == 1


def _equations(jaxpr: Any, name: str) -> Iterator[Any]:
    for eqn in jax_compat.inner(jaxpr).eqns:
        if eqn.primitive.name == name:
            yield eqn
        for sub in jax_compat.subjaxprs(eqn):
            yield from _equations(sub, name)


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
    program = finalise(program_of(lambda x: jax.jit(lambda v: v * table + jnp.exp(v) - jnp.cos(v))(x), X))
    assert "jit" not in names(program.jaxpr)
    assert len(program.jaxpr.consts) == 1
    jax_compat.check(program.jaxpr)


# Inside other primitives

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


def test_a_jit_that_writes_to_a_ref_is_its_body() -> None:
    def fun(ref: Any, x: Any) -> Any:
        @jax.jit
        def twice(ref: Any, x: Any) -> None:
            ref[...] = sine(x) * ref[...]
            ref[...] = ref[...] + cosine(x)

        twice(ref, x)
        return x * 2

    program = finalise(program_of(fun, jax.new_ref(X), Y))
    jax_compat.check(program.jaxpr)
    assert "jit" not in names(program.jaxpr)
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
    (kernel_before,) = _equations(before.jaxpr, "pallas_call")
    (kernel_after,) = _equations(after.jaxpr, "pallas_call")
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
    assert list(effects_in_order(before.jaxpr.jaxpr)) == list(effects_in_order(after.jaxpr.jaxpr))
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


# Names


def test_named_scopes_and_function_names_stay_in_the_compiled_program() -> None:
    @jax.jit
    def inner(x: Any) -> Any:
        with jax.named_scope("deep"):
            return jnp.tanh(x) * 3

    def fun(x: Any) -> Any:
        with jax.named_scope("outer"):
            y = sine(inner(x))
        return jax.checkpoint(lambda v: jnp.log1p(v) * inner(v))(y)

    program = program_of(fun, X)
    after = finalise(program)
    assert names(after.jaxpr) == ["tanh", "mul", "sin", "log1p", "tanh", "mul", "mul"]
    stacks = [_op_names(jax.jit(lambda x, p=p: jax_compat.evaluate(p.jaxpr, [x]))) for p in (program, after)]
    # Without the inner calls there are no names for the calls themselves.
    assert set(stacks[1]) < set(stacks[0])
    assert any("outer/jit(inner)/deep/tanh" in name for name in stacks[1])
    assert any("checkpoint/jit(inner)/deep/tanh" in name for name in stacks[1])


def _op_names(jitted: Any) -> list[str]:
    text = jitted.lower(X).compile().as_text()
    return [part.split('"')[0] for part in text.split('op_name="')[1:]]


def test_tracebacks_still_speak_of_the_code_that_the_user_wrote() -> None:
    (eqn,) = finalise(program_of(sine, X)).jaxpr.jaxpr.eqns
    assert any(frame.f_code.co_filename == __file__ for frame in _frames(eqn.source_info.traceback))


def _frames(traceback: Any) -> Iterator[Any]:
    python = traceback.as_python_traceback()
    while python is not None:
        yield python.tb_frame
        python = python.tb_next


# Custom primitives


def _primitive(name: str, multiple_results: bool = False) -> Any:
    primitive = jax.extend.core.Primitive(name)
    primitive.multiple_results = multiple_results
    primitive.def_abstract_eval(lambda x, **_: [x, x] if multiple_results else x)
    primitive.def_impl(lambda x, **_: [x, x] if multiple_results else x)
    mlir.register_lowering(
        primitive, mlir.lower_fun(lambda x, **_: [x, x] if multiple_results else x, multiple_results)
    )
    return primitive


def test_a_registered_primitive_is_replaced_by_its_rule_at_every_depth() -> None:
    scale = _primitive("scale")
    register_finalisation(scale, lambda x, by: sine(x) * by)

    def fun(x: Any) -> Any:
        return lax.scan(lambda c, _: (scale.bind(c, by=3.0), None), scale.bind(x, by=2.0), None, length=2)[0]

    program = finalise(program_of(fun, X))
    jax_compat.check(program.jaxpr)
    assert names(program.jaxpr) == ["sin", "mul", "scan", "sin", "mul"]
    assert any("`scale`" in note.text for note in program.notes)
    assert finalise(program).jaxpr is program.jaxpr


def test_a_registered_primitive_with_several_results() -> None:
    both = _primitive("both", multiple_results=True)
    register_finalisation(both, lambda x: [jnp.sin(x), jnp.cos(x)])
    program = finalise(program_of(lambda x: both.bind(x), X))
    assert names(program.jaxpr) == ["sin", "cos"]


def test_a_primitive_without_a_rule_stays_and_is_named() -> None:
    mystery = _primitive("mystery")
    program = finalise(program_of(lambda x: mystery.bind(sine(x)), X))
    assert names(program.jaxpr) == ["sin", "mystery"]
    assert [note.text for note in program.notes if "mystery" in note.text] == [
        "`mystery` stays: no finalisation is registered for it"
    ]


def test_a_rule_of_another_type_is_an_error_that_names_the_primitive() -> None:
    wrong = _primitive("wrong")
    register_finalisation(wrong, lambda x: jnp.sum(x))
    with pytest.raises(TypeError, match=r"`wrong` returns .*f32\[\].* where the primitive returns .*f32\[3\]"):
        finalise(program_of(lambda x: wrong.bind(x), X))


def test_a_rule_that_uses_its_own_primitive_is_an_error() -> None:
    loop = _primitive("loop")
    register_finalisation(loop, lambda x: loop.bind(x) + 1)
    with pytest.raises(TypeError, match="`loop` uses `loop` itself"):
        finalise(program_of(lambda x: loop.bind(x), X))


def test_what_cannot_be_registered() -> None:
    with pytest.raises(TypeError, match=r"takes a jax\.extend\.core\.Primitive, not str"):
        register_finalisation("sin", lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not callable"):
        register_finalisation(_primitive("p"), 3)  # type: ignore[arg-type]


# The public function


def test_a_closed_jaxpr_gives_a_closed_jaxpr() -> None:
    closed = jax.make_jaxpr(lambda x: sine(x) * 2)(X)
    assert names(finalise(closed)) == ["sin", "mul"]
    once = finalise(closed)
    assert finalise(once) is once


def test_a_function_gives_a_function() -> None:
    def fun(x: Any, how: str, *, by: Any = 2) -> dict[str, Any]:
        "Doc."
        return {"y": sine(x["a"]) * by, "how": how}

    final = finalise(fun)
    assert final.__name__ == "fun"
    assert final.__doc__ == "Doc."
    result = final({"a": X}, "so", by=np.float32(3))
    assert result["how"] == "so"
    assert same(result["y"], fun({"a": X}, "so", by=np.float32(3))["y"])
    assert names(jax.make_jaxpr(lambda x: finalise(final)({"a": x}, "so")["y"])(X)) == ["sin", "mul"]
    assert names(jax.make_jaxpr(jax.vmap(lambda x: final({"a": x}, "so")["y"]))(X)) == ["sin", "mul"]


def test_a_finalised_function_exports_without_wrappers() -> None:
    exported = jax.export.export(jax.jit(finalise(lambda x: jax.nn.relu(sine(x)) + cosine(x))))(X)
    text = exported.mlir_module()
    assert "call @" not in text
    assert same(exported.call(X), jax.jit(lambda x: jax.nn.relu(sine(x)) + cosine(x))(X))


def test_what_cannot_be_finalised() -> None:
    with pytest.raises(TypeError, match="takes a function or a ClosedJaxpr, not int"):
        finalise(3)  # type: ignore[call-overload]
