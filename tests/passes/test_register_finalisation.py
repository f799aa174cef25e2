"""Primitives of one's own, and what `pytc.finalise` takes and gives."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.export
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import mlir

import pytc
from pytc.finalise import finalise
from pytc.jax_compat import rewriting, rules
from pytc.passes.finalise import register_finalisation
from pytc.passes.verify import same
from tests.comparison import program_of
from tests.passes.finalising import X, cosine, names, sine


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
    rules.check(program.jaxpr)
    assert names(program.jaxpr) == ["sin", "mul", "scan", "sin", "mul"]
    assert any("`scale`" in note.text for note in program.notes)
    assert finalise(program).jaxpr is program.jaxpr


AROUND = {
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "while": lambda f: lambda x: lax.while_loop(lambda c: jnp.sum(f(c)) < 100, f, x),
    "cond": lambda f: lambda x: lax.cond(x[0] > 0, f, lambda x: x, x),
    "jit": lambda f: jax.jit(lambda x: f(x)),
    "scan in a remat": lambda f: jax.checkpoint(AROUND["scan"](f)),
    "custom derivative": lambda f: lambda x: lax.scan(lambda c, _: (jax.nn.relu(f(c)), None), x, None, length=2)[0],
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_a_rule_may_read_an_array_at_every_depth(around: Any) -> None:
    multiply = _primitive("multiply")
    table = jnp.asarray(np.arange(9.0).reshape(3, 3), jnp.float32)
    register_finalisation(multiply, lambda x: x @ table)
    fun = around(lambda x: multiply.bind(x))
    finalised = pytc.finalise(jax.make_jaxpr(fun)(X))
    assert "multiply" not in str(finalised)
    rules.check(finalised)
    assert finalise(program := finalise(program_of(fun, X))).jaxpr is program.jaxpr
    wanted = jax.jit(around(lambda x: x @ table))(X)
    assert same(pytc.compile(fun)(X), wanted)
    assert same(jax.jit(pytc.finalise(fun))(X), wanted)
    jax.export.export(jax.jit(pytc.finalise(fun)))(X)


def test_a_primitive_whose_rule_reads_an_array_stays_in_a_remat_that_was_differentiated_and_is_named() -> None:
    multiply = _primitive("stuck")
    register_finalisation(multiply, lambda x: x @ np.ones((3, 3), np.float32))
    body = jax.make_jaxpr(jax.checkpoint(lambda x: multiply.bind(x)))(X)
    (remat,) = body.jaxpr.eqns
    kept = remat.replace(params={**remat.params, "differentiated": True, "prevent_cse": True})
    program = dataclasses.replace(
        program_of(lambda x: x, X), jaxpr=rewriting.close(rewriting.with_equations(body.jaxpr, [kept]), [])
    )
    why = "it stands for something with an array of its own, in a `remat` or `shard_map`"
    assert [note.text for note in finalise(program).notes] == [f"`stuck` stays: {why}"]


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


def test_a_rule_that_uses_its_own_primitive_inside_a_jit_is_an_error() -> None:
    loop = _primitive("loop")
    register_finalisation(loop, jax.jit(lambda x: loop.bind(x) + 1))
    with pytest.raises(TypeError, match=r"`loop` uses `loop` itself$"):
        finalise(program_of(lambda x: loop.bind(x), X))


def test_rules_that_use_each_other_are_an_error() -> None:
    one, two, three, end = map(_primitive, ("one", "two", "three", "end"))
    register_finalisation(one, lambda x: two.bind(end.bind(x)))
    register_finalisation(two, jax.jit(lambda x: three.bind(x) + end.bind(x)))
    register_finalisation(three, lambda x: lax.cond(x[0] > 0, one.bind, end.bind, x))
    register_finalisation(end, lambda x: x + 1)
    assert names(finalise(program_of(lambda x: end.bind(end.bind(x)), X)).jaxpr) == ["add", "add"]
    with pytest.raises(TypeError, match="`three` uses `three` itself, by way of `one`, `two`"):
        finalise(program_of(lambda x: one.bind(x), X))
    with pytest.raises(TypeError, match=r"uses `.*` itself, by way of"):
        pytc.compile(lambda x: one.bind(x))(X)


@pytest.mark.parametrize("rule", [lambda a, b: a + b, lambda x: "text"])
def test_what_a_rule_raises_names_the_primitive(rule: Any) -> None:
    failing = _primitive("failing")
    register_finalisation(failing, rule)
    with pytest.raises(TypeError) as caught:
        finalise(program_of(lambda x: failing.bind(x), X))
    assert caught.value.__notes__[-1:] == ["This was raised by the finalisation rule of `failing`."]


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


def test_a_compiled_function_with_static_arguments_is_finalised() -> None:
    final = finalise(pytc.compile(lambda how, x: sine(x * how[0]), static_argnums=0))
    assert same(final((3.0, 4.0), pytc.move(X + 0)), sine(X * 3))


def test_a_finalised_function_exports_without_wrappers() -> None:
    exported = jax.export.export(jax.jit(finalise(lambda x: jax.nn.relu(sine(x)) + cosine(x))))(X)
    text = exported.mlir_module()
    assert "call @" not in text
    assert same(exported.call(X), jax.jit(lambda x: jax.nn.relu(sine(x)) + cosine(x))(X))


def test_what_cannot_be_finalised() -> None:
    with pytest.raises(TypeError, match="takes a function, a ClosedJaxpr or a Program, not int"):
        finalise(3)  # type: ignore[call-overload]


def test_explain_names_a_primitive_without_a_rule() -> None:
    mystery = _primitive("mystery")
    explanation = pytc.explain(pytc.compile(lambda x: mystery.bind(sine(x)) + 1), X)
    said = "`mystery` stays: no finalisation is registered for it"
    assert said in str(explanation)
    assert "mystery" in explanation.to_json()
    assert "mystery" in explanation._repr_html_()


def test_a_finalised_function_is_called_as_the_function_is() -> None:
    fun = functools.partial(lambda a, x: jax.nn.relu(x) + a, 1.0)
    assert finalise(fun).__name__ == pytc.compile(fun).__name__ == "<lambda>"
    assert "module @jit__lambda" in jax.jit(finalise(fun)).lower(1.0).as_text()
    compiled = pytc.compile(fun)
    assert not hasattr(finalise(compiled), "explain")
