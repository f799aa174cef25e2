"""copies: programs that have captured the same elements have one copy of them."""

import gc
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.passes import copies, pipeline, snapshot

SIDE = 160
assert SIDE * SIDE * 4 >= copies.LEAST


def weights(seed=0):
    return jax.random.normal(jax.random.key(seed), (SIDE, SIDE))


def captured(compiled):
    """What the programs of a compiled function have as inputs, and as constants."""
    programs = [signature.program for signature in compiled.__pytc__.lookup]
    inputs = [given.captured for program in programs for given in program.inputs if given.leaf is None]
    return inputs, [const for program in programs for const in program.jaxpr.consts]


def rows(count):
    return jnp.ones((count, SIDE))


def test_programs_of_several_shapes_and_static_values_have_one_input():
    table = weights()
    compiled = pytc.compile(lambda x, scale: scale * (x @ table), static_argnums=1)
    for count in (1, 2, 3):
        for scale in (1.0, 2.0):
            compiled(rows(count), scale)
    inputs, constants = captured(compiled)
    assert len(inputs) == 6
    assert len({*map(id, inputs)}) == 1
    assert not constants


@pytest.mark.parametrize(
    "make", [np.asarray, lambda x: jax.device_put(x, jax.devices()[0])], ids=["NumPy", "committed"]
)
def test_to_copy_it_takes_no_program(make, caplog):
    table, x = make(np.asarray(weights())), rows(7)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        pytc.compile(lambda x: x @ table)(x)
    compiled = [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()]
    assert len(compiled) == 1
    assert "jit(<lambda>)" in compiled[0]


def test_and_one_constant():
    table = weights()
    compiled = pytc.compile(lambda x: x * table)
    for _ in range(2):
        compiled(table)
        compiled(table[None])
    inputs, constants = captured(compiled)
    assert not inputs
    assert len(constants) == 2
    assert len({*map(id, constants)}) == 1


def test_functions_that_have_captured_equal_arrays_have_one():
    tables = [weights() for _ in range(3)]
    compiled = [pytc.compile(lambda x, table=table: x @ table) for table in tables]
    for each in compiled:
        each(rows(2))
    assert len({id(given) for each in compiled for given in captured(each)[0]}) == 1


def test_what_a_numpy_array_was_when_it_was_traced():
    table = np.array(weights())
    function = pytc.compile(lambda x: x @ table)
    by_jit = jax.jit(lambda x: x @ table)
    before, expected = function(rows(2)), by_jit(rows(2))
    table[0] = 5.0
    np.testing.assert_array_equal(function(rows(3)), by_jit(rows(3)))
    np.testing.assert_array_equal(function(rows(2)), before)
    np.testing.assert_array_equal(before, expected)
    one, other = captured(function)[0]
    assert one is not other


def test_the_original_is_its_owners():
    table = weights()
    function = pytc.compile(lambda x: x @ table)
    expected = function(rows(1)), function(rows(2))
    kept = np.array(table)
    table.delete()
    np.testing.assert_array_equal(function(rows(1)), expected[0])
    np.testing.assert_array_equal(function(rows(2)), expected[1])
    table = jnp.asarray(kept)
    assert function(rows(3)).shape == (3, SIDE)
    assert len({id(given) for given in captured(function)[0]}) == 1


def test_a_state_that_was_captured_is_still_let_go_of():
    state = weights()
    function = pytc.compile(lambda x: x @ state)
    function(rows(1))
    function(rows(2))
    del function
    step = pytc.compile(lambda x: x + 1.0)
    step(jnp.ones((SIDE, SIDE)))
    state = jnp.copy(state)
    pointer = state.unsafe_buffer_pointer()
    state = step(state)
    assert state.unsafe_buffer_pointer() == pointer


@pytest.mark.parametrize(
    "others",
    [
        lambda table: table.at[1, 1].add(1.0),
        lambda table: table.at[0].set(table[2]).at[2].set(table[0]),
        lambda table: -table,
        lambda table: table.astype(jnp.bfloat16),
        lambda table: jax.device_put(table, jax.devices()[0]),
        lambda table: np.asarray(table),
        lambda table: table.reshape(SIDE // 2, 2 * SIDE),
    ],
    ids=["an element", "two rows", "all elements", "a dtype", "committed", "NumPy data", "a shape"],
)
def test_what_is_not_alike_is_another_copy(others):
    table, other = weights(), others(weights())
    functions = [pytc.compile(lambda x, w=w: x @ w) for w in (table, other)]
    for function, w in zip(functions, (table, other), strict=True):
        function(jnp.ones((2, w.shape[0])))
    (one,), (another,) = (captured(function)[0] for function in functions)
    assert one is not another
    np.testing.assert_array_equal(one, table)
    np.testing.assert_array_equal(another, other)


def test_nan_and_signs_of_zero_are_told_by_their_bits():
    table = np.array(weights())
    table[3, 3], table[5, 5] = np.nan, 0.0
    other = table.copy()
    other[5, 5] = -0.0
    functions = [pytc.compile(lambda x, w=w: x @ w) for w in (table, table.copy(), other)]
    for function in functions:
        function(rows(2))
    first, second, third = (captured(function)[0][0] for function in functions)
    assert first is second
    assert first is not third


def test_equal_constants_of_one_program_stay_two():
    table, other = np.array(weights()), np.array(weights())

    def fun(x):
        return x * table + x / other

    for _ in range(2):  # the second finds both copies of the first
        program = pytc.passes.run(pytc.stage(fun, jnp.ones((SIDE, SIDE))), (*pipeline[:-1], snapshot))
        constants = [c for c in program.jaxpr.consts if c.size > 1]
        assert len({*map(id, constants)}) == len({*map(id, pytc.stage(fun, jnp.ones((SIDE, SIDE))).jaxpr.consts)})


def test_copies_go_with_the_programs_that_have_them():
    copies._forget()
    before = len(copies._copies)
    table = weights(7)
    compiled = pytc.compile(lambda x: x @ table)
    compiled(rows(2))
    copies._forget()
    assert len(copies._copies) == before + 1
    compiled.clear_cache()
    del compiled
    gc.collect()
    copies._forget()
    assert len(copies._copies) == before


def test_nothing_is_kept_on_the_host_beside_the_copy():
    table = weights(8)
    compiled = pytc.compile(lambda x: x @ table)
    compiled(rows(1))
    compiled(rows(2))
    (copy, _) = captured(compiled)[0]
    assert getattr(copy, "_npy_value", None) is None


def test_elements_are_compared_where_a_checksum_does_not_tell(monkeypatch):
    monkeypatch.setattr(copies.zlib, "crc32", lambda data: 0)
    functions = [pytc.compile(lambda x, w=w: x @ w) for w in (weights(9), weights(10), weights(9))]
    for function in functions:
        function(rows(2))
    first, second, third = (captured(function)[0][0] for function in functions)
    assert first is third
    assert first is not second
