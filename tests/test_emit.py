"""emit: the executable's own aliases are exactly those of the plan."""

from __future__ import annotations

import dataclasses
import gc
import re
import threading
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc import passes
from pytc.emit import EmittedWhole, Retrace, emit_jit
from pytc.jax_compat import rules
from pytc.jax_compat.keys import bits_of
from pytc.jax_compat.warned import unusable_donations_ignored
from pytc.ownership.arrays import buffers
from pytc.program import Alias

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


def compiled_aliases(emitted, leaves):
    """{parameter number: output number} that XLA made, from the optimised program's header."""
    text = emitted.lower(leaves).compile().as_text()
    header = re.search(r"input_output_alias=\{(.*?)\}, entry", text, re.DOTALL)
    pairs = re.findall(r"\{(\d*)\}: \((\d+), \{\}", header.group(1)) if header else []
    return {int(parameter): int(output or 0) for output, parameter in pairs}


def adam(params, mu, nu, grads):
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
    nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, nu, grads)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, mu, nu)
    return nu, params, mu


def trees():
    make = lambda s: {k: jnp.full((4, 4), s + i) for i, k in enumerate("abc")}  # noqa: E731
    return make(1.0), make(2.0), make(3.0), make(4.0)


def emitted(fun, *args):
    program = passes.run(pytc.stage(fun, *args))
    return emit_jit(program), jax.tree.leaves(args)


def test_xla_makes_exactly_the_planned_pairs():
    each, leaves = emitted(adam, *trees())
    assert len(each.program.aliases) == 9
    made = compiled_aliases(each, leaves)
    # every leaf is read, so parameter numbers are leaf numbers; outputs are ordered by the emitter
    planned = {each.program.inputs[a.input].leaf: each.results.order.index(a.output) for a in each.program.aliases}
    assert made == planned


@pytest.mark.parametrize("seed", range(6))
def test_any_one_to_one_choice_can_be_emitted(seed):
    """Pairs within one shape and dtype, chosen at random: JAX's first-come pairing meets all of them."""
    rng = np.random.default_rng(seed)

    def f(*xs):
        total = sum(jnp.sum(x) for x in xs)
        return [jnp.full((2, 3), total) + i for i in range(4)] + [jnp.full((5,), total) - i for i in range(3)]

    args = [jnp.ones((2, 3)) * i for i in range(5)] + [jnp.ones((5,)) * i for i in range(4)]
    program = passes.run(pytc.stage(f, *args), passes.split(passes.pipeline)[0])
    pairs = [
        *zip(rng.choice(5, 3, replace=False), rng.choice(4, 3, replace=False), strict=True),
        *zip(5 + rng.choice(4, 2, replace=False), 4 + rng.choice(3, 2, replace=False), strict=True),
    ]
    program = program.noted("test", [], aliases=tuple(Alias(int(i), int(o)) for i, o in pairs))
    each = emit_jit(program)
    made = compiled_aliases(each, args)
    assert made == {int(i): each.results.order.index(int(o)) for i, o in pairs}
    expected = [np.asarray(x) for x in jax.jit(f)(*args)]
    each = emit_jit(program)
    given = [jnp.array(a) for a in args]
    landed = []
    each.call(given, landed)
    for got, want in zip(each.result(landed[0], given), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    assert [i for i, g in enumerate(given) if g.is_deleted()] == sorted(int(i) for i, _ in pairs)


def test_results_written_over_nothing_can_be_given_first():
    x, y = jnp.ones(3), jnp.ones((2, 2))
    program = passes.run(pytc.stage(lambda x, y: (x + 1, y * 2, jnp.sum(y), {"n": jnp.int32(3)}), x, y))
    each = emit_jit(dataclasses.replace(program, order="unpaired first"))
    assert each.results.order == [2, 3, 0, 1]
    assert emit_jit(dataclasses.replace(program, order="unpaired last")).results.order == [0, 1, 2, 3]
    assert compiled_aliases(each, [x, y]) == {0: 2, 1: 3}
    landed = []
    each.call([x, y], landed)
    first, second, total, told = each.result(landed[0], [x, y])
    assert first.tolist() == [2, 2, 2]
    assert second.tolist() == [[2, 2], [2, 2]]
    assert (float(total), int(told["n"])) == (4, 3)


def test_a_result_that_could_take_the_place_of_another_is_not_given_first():
    program = passes.run(pytc.stage(lambda x: (x + 1, x * 2, jnp.sum(x)), jnp.ones(3)))
    assert len(program.aliases) == 1
    each = emit_jit(dataclasses.replace(program, order="unpaired first"))
    assert each.results.order[0] == 2
    assert compiled_aliases(each, [jnp.ones(3)]) == {0: 1 + program.aliases[0].output}


class Count(NamedTuple):
    steps: jax.Array


RESULTS = {
    "last": (lambda x, key: ({"x": x["x"] + 1}, jnp.sum(x["x"])), True),
    "between": (lambda x, key: ((), jnp.sum(x["x"]), None, {"x": x["x"] + 1}, jnp.int32(3)), True),
    "named": (lambda x, key: ({"x": x["x"] + 1}, Count(jnp.int32(3)), [jnp.sum(x["x"])]), True),
    "keys": (lambda x, key: ({"x": x["x"] + 1}, jax.random.split(key), jnp.sum(x["x"])), True),
    "in one part": (lambda x, key: ({"x": x["x"] + 1, "loss": jnp.sum(x["x"])}, jnp.int32(3)), False),
    "in a dictionary": (lambda x, key: {"a": x["x"] + 1, "loss": jnp.sum(x["x"])}, False),
}


@pytest.mark.parametrize(("fun", "is_whole"), RESULTS.values(), ids=RESULTS.keys())
def test_parts_of_a_result_are_given_first(fun, is_whole):
    args = {"x": jnp.arange(3.0)}, jax.random.key(0)
    program = passes.run(pytc.stage(fun, *args))
    assert len(program.aliases) == 1
    each = emit_jit(dataclasses.replace(program, order="unpaired first"))
    assert isinstance(each, EmittedWhole) == is_whole
    given = [bits_of(leaf) for leaf in jax.tree.leaves(args)]
    assert list(compiled_aliases(each, given).values()) == [len(program.unpaired)]
    expected, landed = fun(*args), []
    place = given[0].unsafe_buffer_pointer()
    each.call(given, landed)
    got = each.result(landed[0], given)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(bits_of(one), bits_of(other))
    arrays = each.arrays(landed[0])
    assert [*map(id, each.marked(landed[0]))] == [id(arrays[-1])]
    assert arrays[-1].unsafe_buffer_pointer() == place


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 2, 1), (0, 2, 3, 1), (2, 0, 3, 1), (3, 1, 2, 0)])
def test_a_loss_keeps_its_place_whatever_the_order_of_the_others(order):
    """Compilers schedule by the order of the results."""

    def step(a, b, c):
        results = jnp.sum(a), a + 1, b + 2, c + 3
        return [results[k] for k in order]

    each, leaves = emitted(step, *(jnp.full(3, 1.0 * k) for k in range(3)))
    assert len(each.program.aliases) == 3
    assert each.results.order.index(order.index(0)) == order.index(0)
    planned = {each.program.inputs[a.input].leaf: each.results.order.index(a.output) for a in each.program.aliases}
    assert compiled_aliases(each, leaves) == planned


def test_a_pair_of_two_shapes_has_no_place_to_keep():
    """JAX pairs equal shapes, and leaves what else fits to the compiler; a result that it would pair comes later."""
    each, leaves = emitted(lambda x: (jnp.sum(x) + jnp.zeros(4), x.reshape(2, 2) * 2), jnp.ones(4))
    each = emit_jit(dataclasses.replace(each.program, aliases=(Alias(0, 1),)))
    assert each.results.order == [1, 0]
    landed = []
    each.call([jnp.ones(4)], landed)
    assert [x.tolist() for x in each.result(landed[0], leaves)] == [[4] * 4, [[2, 2], [2, 2]]]


def test_a_dropped_loss_does_not_hide_where_the_state_came_from(monkeypatch):
    """The state is known by its age: nobody asks for the addresses of all arrays."""
    monkeypatch.setattr(buffers, "alone", lambda leaves: False)
    step = pytc.compile(lambda x: (jnp.sum(x), x + 1))

    def places():
        x = jnp.ones(4)
        for _ in range(8):
            x = step(x)[1]
            yield x.unsafe_buffer_pointer()

    assert len({*places()}) <= 2


def test_the_second_signature_is_not_traced_but_refused():
    each, leaves = emitted(lambda x: x + 1, jnp.ones(3))
    each.call(leaves, [])
    with pytest.raises(Retrace):
        each.call([jnp.ones(4)], [])
    with pytest.raises(Retrace), jax.enable_x64(True):
        each.call([jnp.ones(3)], [])


def test_a_refused_call_donates_nothing():
    each, leaves = emitted(lambda x: x + 1, jnp.ones(3))
    each.call(leaves, [])
    other = jnp.ones(4)
    with pytest.raises(Retrace):
        each.call([other], [])
    assert not other.is_deleted()


def test_unused_leaves_are_not_parameters_of_the_executable():
    each, leaves = emitted(lambda used, unused: used * 2, jnp.ones(3), np.ones(1000))
    compiled = each.lower(leaves).compile()
    assert compiled.memory_analysis().argument_size_in_bytes < 4000


def test_the_name_is_the_functions():
    def my_step(x):
        return x + 1

    each, leaves = emitted(my_step, jnp.ones(3))
    assert "jit_my_step" in each.lower(leaves).as_text()


@pytest.mark.parametrize("swapped", [False, True])
def test_the_bits_of_a_key_take_no_place_that_another_output_has(swapped):
    """Both are two 32-bit numbers; JAX would write the first into the donated legacy key."""

    def draw(legacy, key, x):
        new = jax.random.split(key)[0], legacy + 1, x.sum()
        return new[::-1] if swapped else new

    args = jax.random.PRNGKey(0), jax.random.key(0), jnp.ones(3)
    program = passes.run(dataclasses.replace(pytc.stage(draw, *args), keep=frozenset([1])))
    each, leaves = emit_jit(program), jax.tree.leaves(args)
    assert [(alias.input, alias.output) for alias in program.aliases] == [(0, 1)]
    assert compiled_aliases(each, leaves) == {0: each.results.order.index(1)}
    results, given = [], list(map(bits_of, leaves))
    each.call(given, results)
    got = each.result(results[0], given)
    expected = draw(jax.random.PRNGKey(0), *args[1:])
    key = 2 if swapped else 0
    assert got[key].dtype == expected[key].dtype
    for one, other in zip(got, expected, strict=True):
        bits = [jax.random.key_data(x) if x is got[key] or x is expected[key] else x for x in (one, other)]
        np.testing.assert_array_equal(*bits)


def test_no_garbage_is_collected_while_programs_are_made():
    def collecting(program):
        seen.append(gc.isenabled())
        return program

    seen: list[bool] = []
    step = pytc.compile(lambda x: seen.append(gc.isenabled()) or x + 1, passes=(collecting, *pytc.passes.pipeline))
    was = gc.isenabled()
    try:
        for on in (True, False):
            (gc.enable if on else gc.disable)()
            step(jnp.ones(3))
            step.clear_cache()
            assert gc.isenabled() == on
            assert seen == [on, False]
            seen.clear()
        gc.enable()
        with pytest.raises(ZeroDivisionError):
            pytc.passes.run(pytc.stage(jnp.sin, 1.0), (lambda _: 1 // 0,))
        assert gc.isenabled()
    finally:
        (gc.enable if was else gc.disable)()


TABLE = np.arange(4.0)


def of_everything(state, x):
    def body(carry, row):
        with jax.named_scope("inside"):
            return jnp.where(row > 0, carry + row, jax.nn.relu(carry)), carry.sum()

    total, sums = jax.lax.scan(body, state["w"], x)
    branch = jax.lax.cond(sums[0] > 0, jnp.sin, jnp.cos, total)
    return {"w": branch * TABLE, "key": jax.random.fold_in(state["key"], 1)}, jax.checkpoint(jnp.tanh)(x)


@pytest.mark.parametrize("fun", [of_everything, jax.grad(lambda state, x: of_everything(state, x)[0]["w"].sum(), 1)])
def test_a_program_is_handed_to_jax_as_it_is_and_lowered_as_if_it_had_been_traced_again(fun, monkeypatch):
    state, x = {"w": jnp.ones(4), "key": jax.random.key(0)}, jnp.ones((3, 4))

    def made():
        each, leaves = emitted(fun, state, x)
        (args, kwargs) = each._given(leaves)
        traced = each._jitted.trace(*args, **kwargs)
        text = traced.lower().compile().as_text()
        names = set(re.findall(r'op_name="([^"]*)"', text)), set(re.findall(r"source_line=\d+", text))
        return [eqn.primitive.name for eqn in traced.jaxpr.eqns], traced.lower().as_text(), *names

    equations, text, names, lines = made()
    monkeypatch.setattr("pytc.emit.jit.inlined", lambda closed, operands, *_: rules.evaluate(closed, operands))
    traced_again, same_text, same_names, same_lines = made()
    assert "pytc" in equations
    assert "pytc" not in traced_again
    assert len(equations) < 8 < len(traced_again)
    assert text == same_text
    assert {name for name in names ^ same_names if not name.endswith("/pytc")} <= {"jit(of_everything)"}
    assert lines == same_lines


def test_the_filter_of_a_warning_goes_alone_whatever_other_threads_do_meanwhile() -> None:
    with warnings.catch_warnings():
        before = [*warnings.filters]
        second_has_begun, first_has_ended = threading.Event(), threading.Event()

        def second() -> None:
            second_has_begun.set()
            assert first_has_ended.wait(10)

        thread = threading.Thread(target=unusable_donations_ignored, args=(second,))

        def first() -> Any:
            thread.start()
            assert second_has_begun.wait(10)
            warnings.warn("Some donated buffers were not usable: f32[3]", stacklevel=1)
            warnings.filterwarnings("ignore", "by another thread")
            return warnings.filters[0]

        another = unusable_donations_ignored(first)
        first_has_ended.set()
        thread.join()
        assert [*warnings.filters] == [another, *before]
        # Another thread's `catch_warnings` that begins inside, and ends behind it, puts the filters of inside back.
        outer = warnings.catch_warnings()
        unusable_donations_ignored(outer.__enter__)
        outer.__exit__(None, None, None)
        assert [*warnings.filters] == [another, *before]


def twice(x, unused):
    y = x + 1
    return y, y


@pytest.mark.parametrize("which", [passes.pipeline, (passes.share,)], ids=["pipeline", "share"])
def test_one_value_at_two_outputs_that_are_asked_for_with_unused_inputs_kept(which):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for got in pytc.compile(twice, keep_unused=True, out_shardings=here, passes=which)(jnp.ones(300), 1.0):
        np.testing.assert_array_equal(got, np.full(300, 2))


def test_what_keeps_unused_inputs_keeps_no_output():
    told = pytc.explain(pytc.compile(twice, keep_unused=True), jnp.ones(300), 1.0)
    assert told.memory.program.output == 300 * 4
    assert told.memory.program.argument == 300 * 4 + 4
