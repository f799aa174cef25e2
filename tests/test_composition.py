"""Transformations and control flow around and inside compiled functions, in every nesting of two.

Each is written as something that makes a function from three numbers to three numbers of another, so that any two
fit together. What is around a compiled function must see `jax.jit` of it: the same jaxpr, to the letter. What is
inside must give the same bits. Where `jax.jit` raises (a `while` loop has no reverse-mode derivative), so must we.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pytc

Function = Callable[[Any], Any]

X = jnp.array([0.5, -0.25, 1.5])


def base(x):
    return jnp.sin(x) * x + jax.nn.relu(x)


def over_a_mesh(f: Function) -> Function:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))


def exported(f: Function) -> Function:
    can_be = f if hasattr(f, "lower") else jax.jit(f)
    return lambda x: jax.export.export(can_be)(jax.ShapeDtypeStruct(x.shape, x.dtype)).call(x)


def through_its_jaxpr(f: Function) -> Function:
    def evaluated(x):
        closed = jax.make_jaxpr(f)(x)
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, x)[0]

    return evaluated


AROUND: dict[str, Callable[[Function], Function]] = {
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (2 * x,))[1],
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](x)[0],
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x + 1])).sum(0),
    "jit": lambda f: jax.jit(lambda x: f(x)),
    "checkpoint": lambda f: jax.checkpoint(lambda x: f(x)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x),
    "shard_map": over_a_mesh,
    "eval_shape": lambda f: lambda x: x * len(jax.eval_shape(f, x).shape),
    "make_jaxpr": through_its_jaxpr,
    "export": exported,
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "while_loop": lambda f: lambda x: lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1])), (0, x))[1],
    "fori_loop": lambda f: lambda x: lax.fori_loop(0, 2, lambda _, c: f(c), x),
    "cond": lambda f: lambda x: lax.cond(x[0] > 0, f, lambda v: v * 2, x),
    "switch": lambda f: lambda x: lax.switch(x[0].astype(int), [jnp.cos, f, f], x),
    "map": lambda f: lambda x: lax.map(f, jnp.stack([x, x + 1])).sum(0),
}


def outcome(work: Callable[[], Any]) -> Any:
    """What `work` returns, or the type of what it raises."""
    try:
        return work()
    except Exception as error:
        return type(error)


def errors_of(work: Callable[[Function], Any], functions: dict[str, Function]) -> dict[str, type]:
    """The types of what `work` raises, by the names of those functions for which it does."""
    found = {name: outcome(lambda f=f: work(f)) for name, f in functions.items()}
    return {name: error for name, error in found.items() if isinstance(error, type)}


def seen_around(outer: str, inner: str, compiler: Callable[[Function], Function]) -> list[Any]:
    """The jaxprs with the compiled function in the middle of two others, and between them."""
    one, other = AROUND[outer], AROUND[inner]
    nested = one(other(compiler(base))), one(compiler(other(base)))
    return [outcome(lambda f=f: str(jax.make_jaxpr(f)(X))) for f in nested]


@pytest.mark.parametrize("outer", AROUND)
def test_around_a_compiled_function(outer):
    for inner in AROUND:
        wanted, got = (seen_around(outer, inner, compiler) for compiler in (jax.jit, pytc.compile))
        assert got == wanted, f"{outer} of {inner}"


@pytest.mark.parametrize("outer", AROUND)
def test_inside_a_compiled_function(outer):
    nested = {inner: AROUND[outer](AROUND[inner](base)) for inner in AROUND}
    together = lambda errors: lambda x: {inner: f(x) for inner, f in nested.items() if inner not in errors}  # noqa: E731
    errors = errors_of(lambda f: jax.make_jaxpr(f)(X), nested)
    if errors_of(lambda f: jax.jit(f).lower(X), {"together": together(errors)}):  # some are found as late as that
        errors = errors_of(lambda f: jax.jit(f).lower(X), nested)
    fun = together(errors)
    wanted, got = jax.jit(fun)(X), pytc.compile(fun)(X)
    assert len(got) > 8
    for inner in got:
        np.testing.assert_array_equal(got[inner], wanted[inner], err_msg=f"{outer} of {inner}")
    for inner, error in errors.items():
        assert outcome(lambda inner=inner: pytc.compile(nested[inner])(X)) is error


@pytest.mark.parametrize("outer", AROUND)
def test_executed_around_a_compiled_function(outer):
    wanted, got = (outcome(lambda c=c: AROUND[outer](c(base))(X)) for c in (jax.jit, pytc.compile))
    assert isinstance(got, jax.Array)
    np.testing.assert_array_equal(got, wanted)


def test_what_wraps_a_compiled_function_does_not_take_over_its_methods():
    cube = pytc.compile(lambda x: (x**3).sum())
    cube.note = "the user's own"
    slope = jax.grad(cube)
    assert slope.note == cube.note
    assert not any(hasattr(slope, name) for name in ("lower", "trace", "explain", "__pytc__"))
    assert all(hasattr(cube, name) for name in ("lower", "trace", "explain", "__pytc__"))
    np.testing.assert_array_equal(slope(X), 3 * X**2)
    np.testing.assert_array_equal(jax.jit(slope).lower(X).compile()(X), 3 * X**2)
    np.testing.assert_array_equal(pytc.finalise(slope)(X), 3 * X**2)
    np.testing.assert_array_equal(pytc.compile(slope).lower(X).compile()(X), 3 * X**2)
    assert pytc.stage(slope, X).out_avals == (jax.typeof(X),)
    assert jax.make_jaxpr(slope)(X).out_avals == [jax.typeof(X)]
