"""PYTC_VERIFY: a pass that changes the program's meaning is caught and named; one that does not is let through."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive, primitives
from jax.interpreters import mlir

import pytc
from pytc import passes
from pytc.errors import VerificationError
from pytc.jax_compat import jaxprs, rewriting
from pytc.passes.verify import same, type_check, verify
from pytc.program import Computed, Kept, Output, Passed, Program
from tests.comparison import program_of
from tests.passes.finalising import sine

X = jnp.array([0.5, -1.25, 3.0])
Y = jnp.array([2.0, 0.25, -4.0])


def _with_jaxpr_of(program: Program, fun: Any, *args: Any) -> Program:
    return dataclasses.replace(program, jaxpr=program_of(fun, *args).jaxpr)


def test_the_same_meaning_is_let_through() -> None:
    before = program_of(lambda x, y: (jnp.sin(x) * 2, y), X, Y)
    after = _with_jaxpr_of(before, lambda x, y: (2 * jnp.sin(x),), X, Y)
    verify(before, dataclasses.replace(after, outputs=(Output("[0]", Computed(0)), Output("[1]", Passed(1)))), by="p")


def test_calls_that_have_names_type_check() -> None:
    closed = jax.make_jaxpr(lambda x: jax.jit(jnp.sin)(x) + 1)(X)
    call, *rest = closed.jaxpr.eqns
    params = {"call_jaxpr": call.params["jaxpr"], "name": "sin"}
    named = call.replace(primitive=primitives.closed_call_p, params=params)
    type_check(rewriting.close(rewriting.with_equations(closed.jaxpr, [named, *rest]), []))
    wrong = named.replace(invars=[jaxprs.Literal(1, jax.typeof(1))])
    with pytest.raises(TypeError):
        type_check(rewriting.close(rewriting.with_equations(closed.jaxpr, [wrong, *rest]), []))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda x, y: (jnp.sin(x) + 1e-7, y), id="value"),
        pytest.param(lambda x, y: (jnp.sin(x).astype("bfloat16"), y), id="dtype"),
        pytest.param(lambda x, y: (jnp.sin(x)[None], y), id="shape"),
        pytest.param(lambda x, y: (y, jnp.sin(x)), id="order"),
    ],
)
def test_another_meaning_is_an_error_that_names_the_pass_and_a_file(other: Any) -> None:
    before = program_of(lambda x, y: (jnp.sin(x), y), X, Y)
    with pytest.raises(VerificationError, match="the pass `wrong` went wrong") as caught:
        verify(before, _with_jaxpr_of(before, other, X, Y), by="wrong")
    written = Path(str(caught.value).rpartition(" in ")[2]).read_text()
    assert "before wrong" in written
    assert "after wrong" in written
    assert written.count("lambda ;") == 2


def test_another_value_handed_back_is_an_error() -> None:
    before = program_of(lambda x, y: (x, y), X, Y)
    swapped = dataclasses.replace(before, outputs=(Output("[0]", Passed(1)), Output("[1]", Passed(0))))
    with pytest.raises(VerificationError, match=r"result\[0\]"):
        verify(before, swapped, by="swap")


def test_a_number_that_is_no_longer_weakly_typed_is_an_error() -> None:
    before = program_of(lambda n: n * 2, 1.5)
    with pytest.raises(VerificationError, match="weak_type=True"):
        verify(before, _with_jaxpr_of(before, lambda n: lax.convert_element_type(n * 2, np.float32), 1.5), by="wrong")


def test_what_a_pass_has_forgotten_to_change_with_the_jaxpr_is_an_error() -> None:
    before = program_of(lambda x, y: (x + y, y), X, Y)
    with pytest.raises(VerificationError, match="1 inputs for 2 invars"):
        verify(before, dataclasses.replace(before, inputs=before.inputs[:1]), by="wrong")
    with pytest.raises(VerificationError, match="the caller saw 2 values and sees 1"):
        verify(before, dataclasses.replace(before, outputs=before.outputs[:1]), by="wrong")


def test_a_captured_table_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has become an input; beside an argument that is static, and one array that is passed twice."""
    table = jnp.arange(300.0).reshape(100, 3)

    def fun(x: Any, y: Any, by: str) -> Any:
        return (table @ (x + y)).sum() if by == "sum" else x

    def other_table(program: Program) -> Program:
        changed = [
            dataclasses.replace(each, captured=each.captured + 1) if each.leaf is None else each
            for each in program.inputs
        ]
        return dataclasses.replace(program, inputs=tuple(changed))

    monkeypatch.setenv("PYTC_VERIFY", "1")
    found = pytc.compile(fun, static_argnames="by")(X, X, by="sum")
    assert same(found, jax.jit(fun, static_argnames="by")(X, X, by="sum"))
    pipeline = (*pytc.passes.pipeline, other_table)
    with pytest.raises(VerificationError, match="the pass `other_table`"):
        pytc.compile(fun, static_argnames="by", passes=pipeline)(X, X, by="sum")


def test_a_kept_value_is_compared_by_its_bits() -> None:
    before = program_of(lambda: jnp.arange(3))
    keep = lambda value: dataclasses.replace(before, outputs=(Output("", Kept(value)),))  # noqa: E731
    verify(before, keep(np.arange(3, dtype=np.int32)), by="keep")
    with pytest.raises(VerificationError):
        verify(before, keep(np.arange(1, 4, dtype=np.int32)), by="keep")


def test_a_jaxpr_that_does_not_type_check_is_an_error() -> None:
    before = program_of(lambda x: jnp.sin(x) + 1, X)
    jaxpr = before.jaxpr.jaxpr
    broken = type(before.jaxpr)(jaxpr.replace(eqns=jaxpr.eqns[1:]), [])
    with pytest.raises(VerificationError, match="does not type-check"):
        verify(before, dataclasses.replace(before, jaxpr=broken), by="wrong")


def test_no_pass_is_blamed_for_what_never_type_checked() -> None:
    before = program_of(lambda x: lax.scan(lambda c, y: (c + y, c), jnp.float32(0), x, reverse=1), X)
    with pytest.raises(Exception, match="bool required"):
        type_check(before.jaxpr)
    verify(before, passes.run(before), by="all")


def test_a_lost_effect_is_an_error_and_no_callback_is_called() -> None:
    def fun(x: Any) -> Any:
        jax.debug.callback(lambda _: pytest.fail("called"), x)
        return x + 1

    before = program_of(fun, X)
    verify(before, before, by="p")
    with pytest.raises(VerificationError, match=r"the effects were \['debug_callback'\] and are \[\]"):
        verify(before, _with_jaxpr_of(before, lambda x: x + 1, X), by="wrong")


def test_a_write_to_a_ref_that_was_lost_is_an_error() -> None:
    def fun(ref: Any, x: Any) -> Any:
        ref[...] = x
        return x + 1

    before = program_of(fun, jax.new_ref(X), Y)
    verify(before, before, by="p")
    with pytest.raises(VerificationError, match="what x0 holds"):
        verify(before, _with_jaxpr_of(before, lambda ref, x: x + 1, jax.new_ref(X), Y), by="wrong")


@pytest.mark.parametrize("inside", [lambda f: f, jax.jit], ids=["outside", "in a jit"])
def test_a_captured_ref_is_neither_read_nor_written(inside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTC_VERIFY", "1")
    ref = jax.new_ref(X)

    def fun(x: Any) -> Any:
        ref[...] += x
        return ref[...] * 2

    np.testing.assert_array_equal(pytc.compile(inside(fun))(Y), 2 * (X + Y))
    np.testing.assert_array_equal(ref[...], X + Y)


def test_a_write_to_a_captured_ref_that_was_lost_is_an_error() -> None:
    ref = jax.new_ref(X)

    def fun(x: Any) -> Any:
        ref[...] = x
        return x + 1

    before = program_of(fun, Y)
    with pytest.raises(VerificationError, match="what a captured Ref holds"):
        verify(before, _with_jaxpr_of(before, lambda x: x + 1, Y), by="wrong")
    np.testing.assert_array_equal(ref[...], X)


def test_a_loop_that_reads_a_ref_in_its_condition_and_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTC_VERIFY", "1")

    def fun(x: Any) -> Any:
        ref = jax.new_ref(jnp.zeros(()))

        def step(i: Any) -> Any:
            ref[...] += x[i]
            return i + 1

        return lax.while_loop(lambda i: (i < 3) & (ref[...] < 5), step, 0), ref[...]

    jax.tree.map(np.testing.assert_array_equal, pytc.compile(fun)(X), jax.jit(fun)(X))


def test_a_loop_that_made_up_data_would_never_end_is_checked_too() -> None:
    def loop(step: Any) -> Any:
        return lambda x: lax.while_loop(lambda c: jnp.all(c != 77), step, x)

    before = program_of(loop(lambda c: c * 2), X)
    verify(before, before, by="p")
    with pytest.raises(VerificationError):
        verify(before, _with_jaxpr_of(before, loop(lambda c: c * 3), X), by="wrong")


@pytest.mark.parametrize("where", ["condition", "body"])
def test_a_loop_in_which_a_finalised_primitive_reads_a_table(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.arange(3, dtype=np.float32)
    primitive = Primitive(f"adds_a_table_in_the_{where}")
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: x + table, multiple_results=False))
    pytc.register_finalisation(primitive, lambda x: x + table)

    def fun(x: Any) -> Any:
        if where == "body":
            return lax.while_loop(lambda s: s[0] < 3, lambda s: primitive.bind(s) + 1, x)
        return lax.while_loop(lambda s: primitive.bind(s)[1] < 3, lambda s: s + 1, x)

    monkeypatch.setenv("PYTC_VERIFY", "1")
    np.testing.assert_array_equal(pytc.compile(fun)(jnp.zeros(3)), jax.jit(fun)(jnp.zeros(3)))


def test_a_loop_under_vmap_of_which_some_end_before_others() -> None:
    def loops(factor: float) -> Any:
        def each(rounds: Any, x: Any, key: Any) -> Any:
            def step(state: Any) -> Any:
                return state[0] + 1, state[1] * factor, jax.random.fold_in(state[2], 1)

            return lax.while_loop(lambda state: state[0] < rounds, step, (0, x, key))

        return jax.vmap(each)

    arguments = (jnp.arange(4), jnp.arange(4.0), jax.random.split(jax.random.key(0), 4))
    before = program_of(loops(2), *arguments)
    verify(before, before, by="p")
    with pytest.raises(VerificationError):
        verify(before, _with_jaxpr_of(before, loops(3), *arguments), by="wrong")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "bfloat16", "complex64", "key", "float0"])
def test_inputs_of_every_kind(dtype: str) -> None:
    value: Any
    if dtype == "key":
        value = jax.random.split(jax.random.key(0, impl="rbg"), 2)
    elif dtype == "float0":
        value = np.zeros(3, jax.dtypes.float0)
    else:
        value = jnp.zeros((2, 3), dtype)
    before = program_of(lambda x, y: (x, y * 2), value, X)
    verify(before, passes.prune(before), by="prune")


def test_numbers_are_weakly_typed_as_they_were() -> None:
    @jax.custom_batching.custom_vmap
    def twice(x: Any) -> Any:
        return x * 2

    @twice.def_vmap
    def _(size: int, batched: Any, x: Any) -> Any:
        return x * 2, batched[0]

    for number in (1.5, 2, jnp.full(3, 0.5)):
        before = program_of(twice, number)
        verify(before, passes.finalise(before), by="finalise")


def test_types_of_64_bits_that_jax_is_no_longer_set_to() -> None:
    with jax.enable_x64(True):
        x = jnp.arange(3)
        numbers = program_of(lambda n: (n * 2, n + x), 1.5)
    before = program_of(lambda x: jnp.where(x > 1, x, -x), x)
    verify(before, passes.finalise(before), by="finalise")
    verify(numbers, passes.finalise(numbers), by="finalise")


def test_the_variable_has_every_pass_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(program: Program) -> Program:
        return _with_jaxpr_of(program, lambda x: x * 3, X)

    staged = pytc.stage(lambda x: x * 2, X)
    passes.run(staged, (wrong,))
    monkeypatch.setenv("PYTC_VERIFY", "1")
    with pytest.raises(VerificationError, match="the pass `wrong`"):
        passes.run(staged, (passes.finalise, wrong))


def test_passes_run_on_a_program() -> None:
    with pytest.raises(TypeError, match=r"takes a Program, which pytc\.stage makes, not function"):
        passes.run(lambda x: x)  # type: ignore[arg-type]


def test_a_pass_need_not_have_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(factor: float, program: Program) -> Program:
        return _with_jaxpr_of(program, lambda x: x * factor, X)

    monkeypatch.setenv("PYTC_VERIFY", "1")
    with pytest.raises(VerificationError, match="the pass `wrong`"):
        passes.run(pytc.stage(lambda x: x * 2, X), (functools.partial(wrong, 3.0),))


def test_hidden_random_numbers_are_not_compared() -> None:
    before = program_of(lambda x: (x + lax.rng_uniform(0.0, 1.0, (3,)),), X)
    verify(before, _with_jaxpr_of(before, lambda x: (x + lax.rng_uniform(0.0, 1.0, (3,)),), X), by="p")


def test_the_variable_counts_for_a_compiled_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(program: Any) -> Any:
        return dataclasses.replace(program, jaxpr=program_of(lambda x: x * 3, X).jaxpr)

    pipeline = (*pytc.passes.pipeline[:2], wrong, *pytc.passes.pipeline[2:])
    assert same(pytc.compile(lambda x: x * 2, passes=pipeline)(X), X * 3)
    monkeypatch.setenv("PYTC_VERIFY", "1")
    with pytest.raises(pytc.errors.VerificationError, match="the pass `wrong` went wrong"):
        pytc.compile(lambda x: x * 2, passes=pipeline)(X)


def test_explain_shows_what_each_pass_changed() -> None:
    text = str(pytc.explain(pytc.compile(lambda x, y: (jnp.cos(y), sine(x))[1]), X, Y, passes=True))
    removed = [line for line in text.splitlines() if line.lstrip().startswith("- ")]
    assert any("custom_jvp_call" in line for line in removed)
    assert any("cos" in line for line in removed)
