"""What the tests of finalise share: functions with derivatives of their own, and what is left of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from pytc.finalise import finalise
from pytc.jax_compat import jaxprs, rules
from pytc.passes import subjaxprs
from pytc.passes.verify import same
from tests.comparison import program_of, run

X = jnp.array([0.5, -1.25, 3.0])
Y = jnp.array([2.0, 0.25, -4.0])


def names(jaxpr: Any) -> list[str]:
    """The primitives at every depth, as they stand."""
    found = []
    for eqn in jaxprs.inner(jaxpr).eqns:
        found.append(eqn.primitive.name)
        for sub in jaxprs.subjaxprs(eqn):
            found += names(sub)
    return found


def finalised(fun: Callable[..., Any], *args: Any) -> list[str]:
    """The primitives of the finalised function, after checking that it still is that function."""
    before = program_of(fun, *args)
    after = finalise(before)
    rules.check(after.jaxpr)
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


def equations(jaxpr: Any, name: str) -> Iterator[Any]:
    """The equations of a primitive, at every depth."""
    for eqn in jaxprs.inner(jaxpr).eqns:
        if eqn.primitive.name == name:
            yield eqn
        for sub in jaxprs.subjaxprs(eqn):
            yield from equations(sub, name)
