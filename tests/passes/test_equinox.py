"""finalise knows Equinox's primitives, by name and without importing it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import pytc
from pytc.jax_compat import jaxprs, rules
from pytc.jax_compat.origins import home
from pytc.passes.verify import same

X = jnp.array([0.5, -1.25, 3.0])
HIT = jnp.array([True, False, True])


def foreign(jaxpr: Any) -> set[str]:
    """The primitives at any depth that are not JAX's own."""
    found = set()
    for eqn in jaxprs.inner(jaxpr).eqns:
        if home(eqn.primitive) != "jax":
            found.add(eqn.primitive.name)
        for sub in jaxprs.subjaxprs(eqn):
            found |= foreign(sub)
    return found


def _loop(kind: str) -> Callable[[Any], Any]:
    def loop(x: Any) -> Any:
        return eqxi.while_loop(
            lambda c: c[0] < 5,
            lambda c: (c[0] + 1, c[1].at[c[0] % 3].set(c[1][0] * 2)),
            (jnp.int32(0), x),
            max_steps=None if kind == "lax" else 8,
            kind=kind,
            buffers=lambda c: c[1],
            **({"checkpoints": 3} if kind == "checkpointed" else {}),
        )

    return loop


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "unvmap": lambda x, hit: (eqxi.unvmap_any(hit), eqxi.unvmap_all(hit), eqxi.unvmap_max(jnp.arange(3)), x),
    "unvmap under vmap": lambda x, hit: jax.vmap(lambda v, h: (v, eqxi.unvmap_any(h)), out_axes=(0, None))(x, hit),
    "nontraceable": lambda x, hit: eqxi.nontraceable(x) + 1,
    "nonbatchable": lambda x, hit: eqxi.nonbatchable(x) + 1,
    "nondifferentiable_backward": lambda x, hit: eqxi.nondifferentiable_backward(x) + 1,
    "while_loop lax": lambda x, hit: _loop("lax")(x),
    "while_loop bounded": lambda x, hit: _loop("bounded")(x),
    "while_loop checkpointed": lambda x, hit: _loop("checkpointed")(x),
    "while_loop under vmap": lambda x, hit: jax.vmap(_loop("checkpointed"))(jnp.stack([x, -x])),
    "gradient of a while_loop": lambda x, hit: jax.grad(lambda v: jnp.sum(_loop("checkpointed")(v)[1]))(x),
    "gradient of a bounded while_loop": lambda x, hit: jax.grad(lambda v: jnp.sum(_loop("bounded")(v)[1]))(x),
    "eqx scan": lambda x, hit: eqxi.scan(lambda c, v: (c + v, c), x[0], x, kind="checkpointed", checkpoints=2),
    "inside a scan": lambda x, hit: lax.scan(lambda c, h: (eqxi.nontraceable(c), eqxi.unvmap_any(h)), x, hit),
    "error_if": lambda x, hit: eqx.error_if(x, jnp.any(x > 100), "too much"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equinox_primitives_go_and_the_results_stay(name: str) -> None:
    fun = FUNCTIONS[name]
    staged = pytc.stage(fun, X, HIT)
    finalised = pytc.finalise(staged)
    rules.check(finalised.jaxpr)
    assert not foreign(finalised.jaxpr)
    assert pytc.finalise(finalised).jaxpr is finalised.jaxpr
    wanted, got = (jax.tree.leaves(f(X, HIT)) for f in (jax.jit(fun), pytc.compile(fun)))
    for a, b in zip(wanted, got, strict=True):
        assert same(a, b)


def test_some_of_them_had_such_primitives() -> None:
    had = {name: foreign(pytc.stage(fun, X, HIT).jaxpr) for name, fun in FUNCTIONS.items()}
    assert set().union(*had.values()) >= {"unvmap_any", "unvmap_all", "unvmap_max", "nontraceable", "nonbatchable"}
    assert {"nondifferentiable_backward", "select_if_vmap", "maybe_set"} <= set().union(*had.values())


@pytest.mark.parametrize("is_around", [False, True])
def test_noinline_of_what_has_captured_an_array_goes_from_a_loop_too(is_around: bool) -> None:
    weights = jnp.arange(9.0).reshape(3, 3)
    apart = eqxi.noinline(lambda x: jnp.sin(x @ weights))

    def loop(x: Any) -> Any:
        return lax.scan(lambda c, _: (apart(c), None), x, None, length=2)[0] if is_around else apart(x)

    assert foreign(pytc.finalise(jax.make_jaxpr(loop)(X))) == set()
    assert same(jax.jit(pytc.finalise(loop))(X), jax.jit(loop)(X))
    jax.export.export(jax.jit(pytc.finalise(loop)))(X)


def test_noinline_stays_in_what_is_compiled_and_goes_from_what_is_finalised_by_hand() -> None:
    apart = eqxi.noinline(lambda x: jnp.sin(x) * 2)
    staged = pytc.stage(lambda x: apart(x) + 1, X)
    assert foreign(staged.jaxpr) == foreign(pytc.finalise(staged).jaxpr) == {"noinline"}
    assert [note.text for note in pytc.finalise(staged).notes] == ["`noinline` stays: as it would under jax.jit"]
    assert not foreign(pytc.finalise(staged.jaxpr))
    assert same(pytc.compile(lambda x: apart(x) + 1)(X), jax.jit(lambda x: apart(x) + 1)(X))


def test_a_finalised_function_exports() -> None:
    fun = FUNCTIONS["while_loop bounded"]
    exported = jax.export.export(jax.jit(pytc.finalise(fun)))(X, HIT)
    for a, b in zip(jax.tree.leaves(exported.call(X, HIT)), jax.tree.leaves(jax.jit(fun)(X, HIT)), strict=True):
        assert same(a, b)


def test_pytc_does_not_import_equinox() -> None:
    code = "import sys, pytc; sys.exit('equinox' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
