"""prune on jaxprs small enough to read: one test for each thing that it takes away, and for each that it keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, hijax, io_callback
from jax.experimental import pallas as pl

import pytc
from pytc.jax_compat import jaxprs, rules
from pytc.passes import prune, subjaxprs
from pytc.passes.verify import same
from pytc.program import Computed, Output, Passed, Program
from tests.comparison import program_of, run

X = jnp.array([0.5, -1.25, 3.0])
Y = jnp.array([2.0, 0.25, -4.0])


def pruned(fun: Any, *args: Any) -> Program:
    """The pruned program, after checking that its results are those of `jax.jit`."""
    before = program_of(fun, *args)
    after = prune(before)
    rules.check(after.jaxpr)
    leaves = jax.tree.leaves(args)
    for a, b in zip(jax.tree.leaves(jax.jit(fun)(*args)), run(after, leaves), strict=True):
        assert same(a, b)
    assert subjaxprs.count(after.jaxpr.jaxpr) <= subjaxprs.count(before.jaxpr.jaxpr)
    assert prune(after) is after
    return after


def primitives(program: Program) -> list[str]:
    return [eqn.primitive.name for eqn in program.jaxpr.jaxpr.eqns]


def only(program: Program, name: str) -> Any:
    (eqn,) = [eqn for eqn in program.jaxpr.jaxpr.eqns if eqn.primitive.name == name]
    return eqn


def notes(program: Program) -> list[str]:
    return [note.text for note in program.notes]


def test_nothing_to_prune_is_the_same_program() -> None:
    program = program_of(lambda x, y: x + y, X, Y)
    assert prune(program) is program


def test_a_dead_equation_goes_and_is_counted() -> None:
    def fun(x: Any) -> Any:
        jnp.cos(jnp.sin(x))
        return x * 2

    program = pruned(fun, X)
    assert primitives(program) == ["mul"]
    assert notes(program) == ["2 dead equations"]


def test_an_unread_input_goes_and_is_named() -> None:
    program = pruned(lambda x, y, z: (x + z,), X, Y, X)
    assert [given.leaf for given in program.inputs] == [0, 2]
    assert len(program.leaves) == 3
    assert notes(program) == ["nothing reads it"]
    assert program.notes[0].leaf == 1


def test_an_input_that_only_a_dead_equation_reads_goes() -> None:
    def fun(x: Any, y: Any) -> Any:
        jnp.sin(y)
        return x + 1

    program = pruned(fun, X, Y)
    assert [given.leaf for given in program.inputs] == [0]
    assert notes(program) == ["nothing reads it", "1 dead equation"]


def test_outputs_that_the_caller_does_not_get_from_the_program_go_and_the_rest_are_renumbered() -> None:
    staged = program_of(lambda x, y: (jnp.sin(x), y, jnp.cos(y), jnp.exp(x)), X, Y)
    outputs = (Output("[0]", Passed(1)), Output("[1]", Computed(3)), Output("[2]", Computed(2)))
    program = prune(dataclasses.replace(staged, outputs=outputs))
    assert [output.origin for output in program.outputs] == [Passed(1), Computed(1), Computed(0)]
    assert primitives(program) == ["cos", "exp"]
    for got, wanted in zip(run(program, [X, Y]), (Y, jnp.exp(X), jnp.cos(Y)), strict=True):
        assert same(got, wanted)


def test_one_output_at_two_places_stays_one_output() -> None:
    staged = program_of(lambda x: (jnp.sin(x), jnp.cos(x)), X)
    program = prune(dataclasses.replace(staged, outputs=(Output("[0]", Computed(1)), Output("[1]", Computed(1)))))
    assert [output.origin for output in program.outputs] == [Computed(0), Computed(0)]
    assert len(program.out_avals) == 1


def test_constants_that_only_dead_code_used_go() -> None:
    table = np.arange(7.0, dtype=np.float32)

    def fun(x: Any) -> Any:
        jnp.sum(jnp.asarray(table) * 2)
        return x + 1

    program = pruned(fun, X)
    assert not program.jaxpr.consts


def test_a_dead_scan_carry_goes() -> None:
    def fun(x: Any, y: Any) -> Any:
        (a, _), _ = lax.scan(lambda c, _: ((c[0] * 2, jnp.sin(c[1])), None), (x, y), None, length=3)
        return a

    program = pruned(fun, X, Y)
    scan = only(program, "scan")
    assert len(scan.outvars) == 1
    assert [given.leaf for given in program.inputs] == [0]


def test_a_scan_carry_that_a_live_one_reads_stays() -> None:
    def fun(x: Any, y: Any) -> Any:
        (a, _), _ = lax.scan(lambda c, _: ((c[0] * c[1], jnp.sin(c[1])), None), (x, y), None, length=3)
        return a

    assert len(only(pruned(fun, X, Y), "scan").outvars) == 2


def test_an_unused_scan_output_and_what_only_it_read_go() -> None:
    def fun(x: Any, xs: Any) -> Any:
        a, (_, b) = lax.scan(lambda c, s: (c + s[0], (jnp.exp(s[1]), c)), x, (xs, xs * 2))
        return a, b

    scan = only(pruned(fun, X[0], X), "scan")
    assert len(scan.outvars) == 2
    assert len(scan.invars) == 2


def test_a_dead_while_carry_goes_with_its_operands() -> None:
    def fun(x: Any, y: Any, z: Any) -> Any:
        n, a, _ = lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * x, c[2] + z), (0, x, y))
        return n, a

    program = pruned(fun, X, Y, Y)
    assert len(only(program, "while").outvars) == 2
    assert [given.leaf for given in program.inputs] == [0]


def test_a_while_carry_that_the_condition_or_a_live_carry_reads_stays() -> None:
    def fun(x: Any, y: Any) -> Any:
        _, a, _ = lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * c[2], jnp.sin(c[2])), (0, x, y))
        return a

    assert len(only(pruned(fun, X, Y), "while").outvars) == 3


def test_a_while_inside_a_scan_inside_a_branch_is_narrowed() -> None:
    def loop(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2, jnp.sin(c[2])), (0, x, x))[1]

    def fun(x: Any, p: Any) -> Any:
        return lax.cond(p, lambda v: lax.scan(lambda c, _: (loop(c), None), v, None, length=2)[0], jnp.cos, x)

    program = pruned(fun, X, True)
    (scan,) = [e for b in only(program, "cond").params["branches"] for e in jaxprs.inner(b).eqns if "cos" not in str(e)]
    (inner,) = jaxprs.subjaxprs(scan)
    (loop_eqn,) = [eqn for eqn in inner.eqns if eqn.primitive.name == "while"]
    assert len(loop_eqn.outvars) == 2


def test_dead_code_in_a_loop_goes_though_its_carries_stay() -> None:
    def fun(x: Any, y: Any) -> Any:
        def less(carry: Any) -> Any:
            jnp.cos(carry[1])
            return carry[0] < 2

        def body(carry: Any) -> Any:
            jnp.exp(carry[1])
            return carry[0] + 1, carry[1] * x

        return lax.scan(lambda c, _: (lax.while_loop(less, body, (0, c))[1], None), y, length=2)[0]

    (scan,) = pruned(fun, X, Y).jaxpr.jaxpr.eqns
    inside = str(scan.params["jaxpr"])
    assert "while" in inside
    assert "exp" not in inside
    assert "cos" not in inside


def test_dead_code_deeper_inside_goes() -> None:
    def twice(c: Any, _: Any) -> Any:
        jnp.exp(c)
        return c * 2, None

    def double(ref: Any) -> None:
        ref[...] = lax.scan(twice, ref[...], None, length=3)[0]

    def body(carry: Any) -> Any:
        return carry[0] + 1, lax.scan(twice, carry[1], None, length=2)[0]

    run_state = pruned(lambda x: pl.run_state(double)(x), X)
    loop = pruned(lambda x: lax.while_loop(lambda c: c[0] < 2, body, (0, x))[1], X)
    for program in (run_state, loop):
        assert "scan" in str(program.jaxpr)
        assert "exp" not in str(program.jaxpr)


def test_dead_code_in_run_state_goes_and_writes_stay() -> None:
    def body(ref: Any) -> None:
        jnp.exp(ref[...])
        ref[...] = jnp.sin(ref[...])

    run_state = only(pruned(lambda x: pl.run_state(body)(x), X), "run_state")
    names = [eqn.primitive.name for eqn in run_state.params["jaxpr"].eqns]
    assert "exp" not in names
    assert names[-2:] == ["sin", "swap"]


def test_a_loop_says_which_effects_its_body_has() -> None:
    """Also where a `Ref` in it is dead."""

    def body(carry: Any) -> Any:
        ref = jax.new_ref(carry[1])
        ref[0]
        return carry[0] + 1, carry[1] * 2

    fun = lambda x: lax.while_loop(lambda c: c[0] < 2, body, (0, x))[1]  # noqa: E731
    assert "while" in primitives(pruned(fun, X))
    assert "cond" in primitives(pruned(lambda x: lax.cond(x[0] > 0, fun, jnp.sin, x), X))


def test_a_dead_loop_goes_whole() -> None:
    def fun(x: Any, y: Any) -> Any:
        lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, y))
        lax.fori_loop(0, 3, lambda _, c: c * 2, y)
        return x + 1

    assert primitives(pruned(fun, X, Y)) == ["add"]


def test_branch_operands_and_results_that_nothing_uses_go() -> None:
    def fun(p: Any, x: Any, y: Any) -> Any:
        a, _ = lax.cond(p, lambda x, y: (x + 1, y), lambda x, y: (x - 1, jnp.sin(y)), x, y)
        return a

    program = pruned(fun, True, X, Y)
    assert len(only(program, "cond").outvars) == 1
    assert [given.leaf for given in program.inputs] == [0, 1]


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint], ids=["jit", "checkpoint"])
def test_dead_code_inside_a_call_goes(wrap: Any) -> None:
    @wrap
    def inner(x: Any, y: Any) -> Any:
        return x * 2, jnp.exp(jnp.sin(y))

    program = pruned(lambda x, y: inner(x, y)[0], X, Y)
    (body,) = jaxprs.subjaxprs(program.jaxpr.jaxpr.eqns[0])
    assert [eqn.primitive.name for eqn in body.eqns] == ["mul"]
    assert [given.leaf for given in program.inputs] == [0]


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_an_unused_result_of_a_custom_derivative_goes(kind: str) -> None:
    def both(x: Any) -> Any:
        return jnp.sin(x), jnp.cos(x)

    if kind == "custom_jvp":
        f: Any = jax.custom_jvp(both)
        f.defjvp(lambda p, t: (f(*p), f(*t)))
    else:
        f = jax.custom_vjp(both)
        f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct[0],))
    program = pruned(lambda x: f(x)[0], X)
    assert subjaxprs.count(program.jaxpr.jaxpr) == 2


def test_dead_code_inside_a_shard_map_goes() -> None:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    both = jax.shard_map(lambda x, y: (x * 2, jnp.sin(y)), mesh=mesh, in_specs=(spec, spec), out_specs=(spec, spec))
    program = pruned(lambda x, y: both(x, y)[0], X, Y)
    (body,) = jaxprs.subjaxprs(only(program, "shard_map"))
    assert "sin" not in [eqn.primitive.name for eqn in body.eqns]
    assert [given.leaf for given in program.inputs] == [0]


# What stays


def test_effects_stay_in_order_at_every_depth() -> None:
    log: list[str] = []

    def tell(name: str, x: Any) -> None:
        jax.debug.callback(lambda _: log.append(name), x, ordered=True)

    def fun(x: Any, y: Any) -> Any:
        tell("first", x)

        def body(c: Any, _: Any) -> Any:
            tell("scan", c)
            return c + 1, None

        lax.scan(body, y, None, length=2)
        lax.cond(x[0] > 0, lambda v: tell("positive", v), lambda v: tell("negative", v), y)
        jax.jit(lambda v: tell("jit", v))(x)
        lax.while_loop(lambda c: c[0] < 2, lambda c: (tell("while", c[0]), (c[0] + 1, jnp.sin(c[1])))[1], (0, y))
        tell("last", x)
        return x * 2

    jax.jit(fun)(X, Y)
    jax.effects_barrier()
    wanted, log[:] = list(log), []
    staged = program_of(fun, X, Y)
    program = prune(staged)
    assert list(subjaxprs.effects_in_order(program.jaxpr.jaxpr)) == list(subjaxprs.effects_in_order(staged.jaxpr.jaxpr))
    run(program, [X, Y])
    assert log == wanted == ["first", "scan", "scan", "positive", "jit", "while", "while", "last"]


def test_a_callback_with_a_result_that_nothing_reads_stays() -> None:
    log: list[str] = []

    def answer(x: Any) -> Any:
        log.append("called")
        return x

    def fun(x: Any) -> Any:
        io_callback(answer, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)
        return x + 1

    run(prune(program_of(fun, X)), [X])
    assert log == ["called"]


def test_debug_print_stays(capfd: pytest.CaptureFixture[str]) -> None:
    def fun(x: Any, y: Any) -> Any:
        jax.debug.print("y is {}", y[0])
        return x + 1

    program = prune(program_of(fun, X, Y))
    assert len(program.inputs) == 2
    run(program, [X, Y])
    assert capfd.readouterr().out == "y is 2.0\n"


def test_writes_to_a_ref_of_the_caller_stay() -> None:
    def fun(ref: Any, x: Any) -> Any:
        ref[...] = jnp.sin(x)
        return x + 1

    program = prune(program_of(fun, jax.new_ref(X), Y))
    held = jax.new_ref(X)
    run(program, [held, Y])
    assert same(held[...], jnp.sin(Y))


def test_writes_to_a_ref_that_is_read_stay() -> None:
    def fun(x: Any) -> Any:
        ref = jax.new_ref(jnp.zeros_like(x))

        def body(i: Any, _: Any) -> Any:
            ref[i] = x[i] * 2
            return None

        lax.fori_loop(0, 3, body, None)
        return ref[...]

    pruned(fun, X)


def test_checkify_errors_stay() -> None:
    def fun(x: Any) -> Any:
        checkify.check(jnp.all(x > 0), "negative")
        jnp.sin(x)
        return x + 1

    checked = checkify.checkify(fun)
    program = prune(program_of(checked, X))
    error = jax.tree.unflatten(jax.tree.structure(jax.eval_shape(checked, X)), run(program, [X]))[0]
    assert error.get() is not None
    assert "negative" in error.get()


def test_a_pure_callback_that_nothing_reads_goes() -> None:
    def fun(x: Any) -> Any:
        jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return x + 1

    assert primitives(pruned(fun, X)) == ["add"]


def test_an_effect_that_jaxs_rules_would_lose_stays() -> None:
    log: list[float] = []

    def effect(x: Any) -> Any:
        io_callback(lambda v: log.append(float(v)), None, 3.0)
        return x

    def fun(x: Any) -> Any:
        jax.checkpoint(effect)(x)
        return x + 1

    x = jnp.float32(1.0)
    program = pytc.stage(fun, x)
    assert list(subjaxprs.effects_in_order(prune(program).jaxpr.jaxpr)) == ["io_callback"]
    pytc.compile(fun)(x)
    jax.effects_barrier()
    assert log == [3.0]


def test_constants_that_only_dead_code_in_a_loop_used_go() -> None:
    table = jnp.arange(100.0) * jnp.pi

    def fun(x: Any) -> Any:
        return lax.scan(lambda c, _: (c + 1, jnp.sum(jnp.tanh(table))), x, None, length=3)[0]

    program = prune(pytc.stage(fun, X))
    assert not program.jaxpr.consts
    assert len(program.inputs) == 1


def test_a_carry_that_never_changes_comes_back_as_the_argument() -> None:
    def fun(x: Any, y: Any) -> Any:
        scanned = lax.scan(lambda c, s: ((c[0] * s + c[1].sum(), c[1]), None), (x[0], y), x)[0][1]
        looped = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1], c[2] * c[1]), (0, y, x))[1]
        return scanned, looped

    def swapped(x: Any, y: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, c: (c[1], c[0]), (x, y))

    scanned, looped = pytc.compile(fun)(X, Y)
    assert scanned is looped is Y
    for got, wanted in zip(pytc.compile(swapped)(X, Y), (Y, X), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_checkify_errors_come_out_of_loops() -> None:
    def fun(x: Any) -> Any:
        def step(c: Any, s: Any) -> Any:
            checkify.check(s > 0, "not positive")
            return c + s, jnp.sin(s)

        return lax.scan(step, 0.0, x)[0]

    error, _ = pytc.compile(checkify.checkify(fun))(X)
    assert "not positive" in error.get()


def test_what_a_primitive_of_high_types_does_to_a_ref_stays() -> None:
    ref = jax.new_ref(2.0)
    (write,) = jax.make_jaxpr(lambda: ref.__setitem__(..., 0.0))().effects

    class Square(getattr(hijax, "VJPHiPrimitive", None) or hijax.HiPrim):  # type: ignore[misc]
        def __init__(self, of: Any) -> None:
            self.in_avals, self.out_aval, self.params = (of,), None, {}
            self.effects = frozenset([type(write)(0)])
            super().__init__()

        def expand(self, ref: Any) -> None:
            ref[...] = ref[...] ** 2

    def fun(given: Any) -> Any:
        inner = jax.new_ref(3.0)
        for each in (given, inner):
            Square(jax.typeof(each))(each)
        return inner[...]

    assert pytc.compile(fun)(ref) == 9
    assert ref[...] == 4
