"""A `while` loop of one array stays one, and a loop of several does not become one: XLA finds the number of steps of a
loop whose state is a tuple, and computes what follows from it while it compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import pytc
from pytc.jax_compat import jaxprs, rules
from pytc.passes import finalise, hoist, prune, subjaxprs
from pytc.passes.verify import same
from pytc.passes.while_loops import may_be_one_array
from tests.comparison import run

Y = jnp.float32(2.0)
TABLE = np.array([0.25, -1.5, 3.0], np.float32)


def slope(steps: Any) -> Any:
    """Has other bits when it is computed while compiling than at run time, for 2 steps."""
    return jax.grad(lambda v: jnp.tanh(jnp.sin(v)))(steps.astype(jnp.float32))


def counted(step: Callable[..., Any], *carried: Any) -> Any:
    """What a loop that counts to 2 ends with, the slope at the 2 in place of the 2."""
    steps, *rest = lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, *step(c[0], *c[1:])), (0, *carried))
    return slope(jnp.asarray(steps)), *rest


def squeezed(x: Any) -> Any:
    return jnp.atleast_1d(x).squeeze(0)


def through_scan(x: Any) -> Any:
    return lax.scan(lambda c, _: (c + counted(lambda _, v: (squeezed(v),), x)[0], None), x, None, length=2)[0]


def wrapped(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun` with a derivative of its own, so that JAX takes all its results and operands for alive if any is."""
    result = jax.custom_vjp(fun)
    result.defvjp(lambda *args: (fun(*args), args), lambda args, _: args)
    return result


@jax.custom_jvp
def next_of_both(i: Any, v: Any) -> Any:
    return i + 1, v * 2


next_of_both.defjvp(lambda primals, tangents: (next_of_both(*primals), tangents))


def steps_and_last(step: Callable[..., Any], y: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 2, lambda c: tuple(step(*c)), (0, y))


WRAPPED = {
    "read by a custom_jvp of several results": lambda y: slope(steps_and_last(next_of_both, y)[0]),
    "read by a custom_vjp of several results": lambda y: slope(
        steps_and_last(wrapped(lambda i, v: (i + 1, jnp.sin(v))), y)[0]
    ),
    "read by a wrapper that does not use it": lambda y: slope(
        steps_and_last(lambda i, v: (wrapped(lambda i, v: i + 1)(i, v), v * 2), y)[0]
    ),
    "read behind the loop": lambda y: wrapped(lambda i, v: slope(i))(*steps_and_last(lambda i, v: (i + 1, v * 2), y)),
    "in a scan": lambda y: lax.scan(
        lambda c, _: (c + slope(steps_and_last(next_of_both, y)[0]), None), y, None, length=2
    )[0],
}
"""Arrays of loops that are alive to JAX for a wrapper alone."""

LOOPS = {
    "a dead carry": lambda y: counted(lambda i, v: (jnp.sin(v) * y,), y)[0],
    "dead carries that follow each other": lambda y: counted(lambda i, v, w: (w, jnp.atleast_1d(v)[0]), 1.0, 1.0)[0],
    "a dead array": lambda y: counted(lambda i, v: (v + i,), jnp.zeros(3))[0] * y,
    "read by a dead loop alone": lambda y: counted(
        lambda i, v: (lax.scan(lambda s, _: (s * 2, None), v, None, length=3), y)[1:], y
    )[0],
    "not carried, and read by what is dead": lambda y: slope(
        lax.while_loop(lambda i: i < 2, lambda i: (jnp.remainder(y, 2), i + 1)[1], jnp.int32(0))
    ),
    "unchanged, and read by what is dead": lambda y: slope(
        lax.while_loop(
            lambda c: c[0] < 2,
            lambda c: (jnp.remainder(c[1], 2), (c[0] + 1, checkpoint_name(c[1], "y")))[1],
            (jnp.int32(0), y),
        )[0]
    ),
    "unchanged, but for a call": lambda y: counted(lambda i, v: (squeezed(v),), y),
    "unchanged, but for a select": lambda y: counted(lambda i, v: (jnp.where(v > 0, v, v),), y),
    "unchanged in an inner jit": lambda y: jax.jit(lambda v: counted(lambda i, w: (squeezed(w),), v))(y),
    "unchanged in a scan": through_scan,
    "unchanged in a custom derivative": lambda y: counted(lambda i, v: (jax.nn.relu6(squeezed(v)),), y),
    "beside a changing one": lambda y: counted(lambda i, v, w: (squeezed(v), w * 2), y, y),
    "unchanged, but for a call in a scan": lambda y: counted(
        lambda i, v: (lax.scan(lambda c, _: (jnp.where(c > 0, c, c), None), v, None, length=2)[0],), y
    ),
    "unchanged, but for what is dead": lambda y: counted(lambda i, v, w: (squeezed(v), w * 2), y, y)[:2],
    "unchanged, but for a 1": lambda y: counted(lambda i, v, w: (squeezed(v), w * 1.0), y, y),
    "unchanged, but for a True": lambda y: counted(lambda i, v, w: (v & True, jnp.sin(w)), y > 0, y)[:2],
    "unchanged, but for a comparison": lambda y: counted(lambda i, v, w: (v == True, jnp.sin(w)), y > 0, y)[:2],  # noqa: E712
    "unchanged, but for a bound": lambda y: counted(
        lambda i, v, w: (lax.max(v, np.uint8(0)), jnp.sin(w)), y.astype(jnp.uint8), y
    )[:2],
    "an effect that reads a captured array": lambda y: (
        counted(lambda i: jax.debug.callback(lambda _: None, jnp.asarray(TABLE)[i]) or ())[0] * y
    ),
    **WRAPPED,
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_results_are_those_of_jit_to_the_bit(loop: Callable[..., Any]) -> None:
    wanted = jax.jit(loop)(Y)
    for got in (pytc.compile(loop)(Y), run_after(prune, loop), run_after(finalise, loop), run_after(hoist, loop)):
        for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
            assert same(a, b)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_nor_do_they_change_where_jax_leaves_dead_code_to_xla(loop: Callable[..., Any]) -> None:
    wanted = jax.jit(lambda y: loop(y), keep_unused=True)(Y)  # `jax.jit` may know the loop itself without the option
    got = pytc.compile(loop, keep_unused=True)(Y)
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        assert same(a, b)


@pytest.mark.parametrize("loop", WRAPPED.values(), ids=WRAPPED)
def test_wrappers_stay_where_jax_would_narrow_a_loop_without(loop: Callable[..., Any]) -> None:
    (note,) = (note.text for note in finalise(pytc.stage(loop, Y)).notes)
    assert note.startswith("wrappers stay") is rules.goes_into(rules.WHILE)


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(lambda y: steps_and_last(lambda i, v: (i + 1, jax.nn.relu(v)), y), id="nothing is dead"),
        pytest.param(
            lambda y: steps_and_last(lambda i, v: (jax.nn.relu(i) + 1, v * 2), y)[0],
            id="dead to JAX as well",
        ),
        pytest.param(
            lambda y: wrapped(lambda y: slope(steps_and_last(lambda i, v: (i + 1, v * 2), y)[0]))(y),
            id="dead to JAX within the wrapper",
        ),
        pytest.param(
            lambda y: slope(lax.while_loop(lambda i: i < 2, lambda i: wrapped(lambda i, v: i + 1)(i, y), jnp.int32(0))),
            id="dead to JAX, and not carried",
        ),
        pytest.param(
            lambda y: lax.while_loop(
                lambda c: c[0] < 2,
                lambda c: tuple(wrapped(lambda i, v, w: (i + 1, jnp.sin(v), jnp.cos(w)))(*c)),
                (0, y, y),
            )[:2],
            id="two are left",
        ),
    ],
)
def test_no_wrapper_stays_for_a_loop_that_may_become_what_it_would(loop: Callable[..., Any]) -> None:
    jaxpr = finalise(pytc.stage(loop, Y)).jaxpr
    assert not any(eqn.primitive.name.startswith("custom_") for eqn in subjaxprs.equations(jaxpr.jaxpr))
    assert same(pytc.compile(loop)(Y), jax.jit(loop)(Y))


def run_after(each: Callable[..., Any], fun: Callable[..., Any]) -> list[Any]:
    return run(each(pytc.stage(fun, Y)), [Y])


def loops(jaxpr: Any) -> list[Any]:
    """The `while` loops at every depth."""
    found = []
    for eqn in jaxprs.inner(jaxpr).eqns:
        found += [eqn] * (eqn.primitive.name == "while")
        for sub in jaxprs.subjaxprs(eqn):
            found += loops(sub)
    return found


def test_a_captured_array_is_an_input_of_a_loop_that_starts_from_an_argument() -> None:
    def fun(x: Any) -> Any:
        return lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1 + jnp.tanh(c @ np.outer(TABLE, TABLE)), x)

    program = hoist(pytc.stage(fun, jnp.zeros(3)))
    assert [given.leaf for given in program.inputs] == [None, 0]


def test_a_loop_within_one_that_jax_leaves_whole_keeps_its_results() -> None:
    """Of `value_and_grad` the loop keeps the value alone. Without what only the gradient needs, the CPU's compiler
    rounds to bfloat16 at other places."""
    rng = np.random.default_rng(0)
    w, x = (jnp.asarray(rng.normal(size=size) / 2, jnp.bfloat16) for size in ((2, 16, 16), (4, 16)))

    def loss(w: Any, x: Any) -> Any:
        def layer(c: Any, w: Any) -> Any:
            return c + jax.nn.silu(c @ w), None

        return jnp.mean(lax.scan(layer, x, w, unroll=2)[0].astype(jnp.float32) ** 2)

    def fun(w: Any, x: Any) -> Any:
        def body(carry: Any) -> Any:
            k, _ = carry
            value, _ = jax.value_and_grad(loss)(w, x + k.astype(x.dtype))
            return k + 1, value

        return lax.while_loop(lambda carry: carry[0] < 2, body, (0, jnp.float32(0)))[1]

    assert same(pytc.compile(fun)(w, x), jax.jit(fun)(w, x))


@pytest.mark.parametrize(
    ("step", "one"),
    [
        (lambda a, b: (a + 1, b), True),
        (lambda a, b: (a + 1, b * 2), False),
        (lambda a, b: (b, a), True),
        (lambda a, b: (a + 1, lax.reshape(b, ())), True),
        (lambda a, b: (a + 1, lax.reshape(b * 2, ())), False),
        (lambda a, b: (a + 1, lax.select_n(a > b, b, b)), True),
        (lambda a, b: (a + 1, lax.select_n(a > b, b, b + 1)), False),
        (lambda a, b: (a + 1, jnp.float32(2)), True),
        (lambda a, b: (a + 1, b * 1.0), True),
        (lambda a, b: (a + 1, lax.max(b, jnp.float32(-jnp.inf))), True),
        (lambda a, b: (a + 1, lax.min(b, jnp.float32(2.0))), False),
        (lambda a, b: (a + 1, b * lax.full((), 1.0)), True),
        (lambda a, b: (a + 1, lax.neg(lax.neg(b))), True),
        (lambda a, b: (a + 1, jnp.log(jnp.exp(b))), True),
        (lambda a, b: (a + 1, b + 1.0 - 1.0), True),
        (lambda a, b: (a + 1, jnp.sin(b) * 2.0 + 1.0), False),
        (lambda a, b: (a + 1, b + 1.0), False),
        (lambda a, b: (a + 1, lax.cond(a > b, lambda v: v, lambda v: v * 1.0, b)), True),
        (lambda a, b: (a + 1, lax.cond(a > b, lambda v: v, lambda v: v * 2.0, b)), False),
        (lambda a, b: (a + 1, lax.fori_loop(0, 2, lambda _, v: v / 1.0, b)), True),
        (lambda a, b: (a + 1, lax.fori_loop(0, 2, lambda _, v: v / 2.0, b)), False),
        (lambda a, b: (a + 1, lax.fori_loop(0, 0, lambda _, v: v / 2.0, b)), True),
        (lambda a, b: (a + 1, lax.while_loop(lambda v: v < 2, lambda v: v - 0.0, b)), True),
        (lambda a, b: (a + 1, lax.while_loop(lambda v: v < 2, lambda v: v * v, b)), False),
    ],
)
def test_which_loops_may_be_of_one_array(step: Callable[..., Any], one: bool) -> None:
    jaxpr = jax.make_jaxpr(lambda y: lax.while_loop(lambda c: c[0] < 9, lambda c: step(*c), (y, y)))(Y)
    loop, *_ = loops(jaxpr)
    assert may_be_one_array(loop) is one
