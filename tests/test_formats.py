"""Layouts and kinds of memory that are asked for: what `jax.jit` returns, donated where both ends agree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout, with_layout_constraint
from jax.sharding import NamedSharding, SingleDeviceSharding

import pytc

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

HERE = SingleDeviceSharding(jax.devices()[0])
ELSEWHERE = SingleDeviceSharding(jax.devices()[0], memory_kind="unpinned_host")
ROWS, COLUMNS = (Format(Layout(order), HERE) for order in ((0, 1), (1, 0)))
ON_A_MESH = Format(Layout((1, 0)), NamedSharding(jax.make_mesh((1,), ("i",)), jax.P("i")))
CHOSEN = Format(Layout.AUTO, HERE)


def step(x):
    return 2 * x + jnp.arange(12.0).reshape(4, 3).T


def run(compiled, make):
    """The state after some steps, and where it was after each."""
    x = make()
    places = []
    for _ in range(5):
        x = compiled(x)
        places.append(x.unsafe_buffer_pointer())
    return x, places


def compare(fun, make, **options):
    """Runs both, and tells whether the state of pytc's stayed where it was."""
    wanted, _ = run(jax.jit(fun, **options), make)
    got, places = run(pytc.compile(fun, **options), make)
    np.testing.assert_array_equal(got, wanted)
    assert (got.format, got.sharding.memory_kind) == (wanted.format, wanted.sharding.memory_kind)
    return len(set(places[2:])) == 1


@pytest.mark.parametrize("asked", [ROWS, COLUMNS])
def test_one_layout_for_argument_and_result(asked):
    assert compare(step, lambda: jax.device_put(jnp.ones((3, 4)), asked), in_shardings=asked, out_shardings=asked)


@pytest.mark.parametrize("asked", [ROWS, COLUMNS, ON_A_MESH])
@pytest.mark.parametrize("share", [True, False])
def test_what_is_held_elsewhere_is_copied_as_it_lies(asked, share):
    """JAX 0.10 copies to a sharding alone what the next program then reads in the wrong order."""

    def states(compiled):
        x, held = jax.device_put(jnp.arange(12.0).reshape(3, 4), asked), []
        for i in range(8):
            x = compiled(x)
            if i in (4, 6):
                held.append(x)
        return [x, *held]

    fun = pytc.compile(step, out_shardings=asked, share=share)
    for got, wanted in zip(states(fun), states(jax.jit(step, out_shardings=asked)), strict=True):
        np.testing.assert_array_equal(got, wanted)
        assert got.format == wanted.format
    assert sum(site.copied_calls for site in fun.explain().sites) == 2


@pytest.mark.parametrize("asked", [ROWS, CHOSEN])
def test_a_layout_for_the_result(asked):
    compare(step, lambda: jnp.ones((3, 4)), out_shardings=asked)


def test_a_layout_that_the_compiler_chooses_is_paired_with_none():
    """JAX raises an error where they are."""
    program = pytc.passes.run(pytc.stage(pytc.compile(step, out_shardings=CHOSEN), jnp.ones((3, 4))))
    assert not program.aliases


@pytest.mark.parametrize("effort", ["default", "high"])
def test_another_layout_for_the_result(effort):
    fun = pytc.compile(lambda x: (x + 1, 2 * x), in_shardings=ROWS, out_shardings=(ROWS, COLUMNS), effort=effort)
    one, two = fun(jnp.ones((3, 4)))
    assert (one.format.layout.major_to_minor, two.format.layout.major_to_minor) == ((0, 1), (1, 0))
    np.testing.assert_array_equal(one, two)


def test_a_layout_for_keys():
    asked = Format(Layout((0,)), HERE)
    options = {"in_shardings": asked, "out_shardings": asked}
    keys = [wrap(lambda k: jax.random.split(k[0], 3), **options)(jax.random.split(jax.random.key(0), 3))
            for wrap in (jax.jit, pytc.compile)]  # fmt: skip
    np.testing.assert_array_equal(*map(jax.random.key_data, keys))


@pytest.mark.parametrize("options", [{}, {"out_shardings": ELSEWHERE}, {"out_shardings": HERE}])
@pytest.mark.parametrize("place", [HERE, ELSEWHERE])
def test_memory_of_another_kind_is_not_written_over(place, options):
    """XLA ends the process where it is."""
    same = options.get("out_shardings", HERE) == place
    assert compare(lambda x: x + 1, lambda: jax.device_put(jnp.arange(8.0), place), **options) or not same


ON_ONE = jax.NamedSharding(jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P())


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: with_layout_constraint(x, Layout((1, 0))),
        lambda x: jax.lax.with_sharding_constraint(x, Format(Layout((1, 0)), ON_ONE)),
        lambda x: jax.jit(lambda v: with_layout_constraint(v, Layout((1, 0))))(x),
        lambda x: with_layout_constraint(x, Layout((1, 0))) + 1,
    ],
)
@pytest.mark.parametrize("donate", ["none", "all"])
def test_a_layout_that_is_asked_for_inside(ask, donate):
    def fun(x, y):
        return ask(x * 2), y + 1, x.sum()

    wanted = jax.jit(fun)(jnp.ones((3, 4)), jnp.arange(12.0).reshape(3, 4))
    y = jnp.arange(12.0).reshape(3, 4)
    got = pytc.compile(fun, donate=donate)(jnp.ones((3, 4)), y)
    assert [each.format for each in got] == [each.format for each in wanted]
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    assert y.is_deleted() == (donate == "all")
