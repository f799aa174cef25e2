"""alias on jaxprs small enough to read: each rule of the choice, against what the CPU's compiler makes of it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize  # noqa: F401 - pytc imports it where it is first needed, within some example's time
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas

from pytc.emit import emit_jit
from pytc.passes import alias, matching
from pytc.passes.alias import Choices
from pytc.passes.verify import same
from pytc.program import Alias, Input, Program
from pytc.uncollected import uncollected
from tests.comparison import program_of
from tests.squares import functions, some_chain, some_function

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

N = 256
SQUARE = jax.ShapeDtypeStruct((N, N), jnp.float32)
LONG = jax.ShapeDtypeStruct((4 * N, N), jnp.float32)
SCALAR = jax.ShapeDtypeStruct((), jnp.int32)
BYTES = 4 * N * N


def planned(
    fun: Any,
    *args: Any,
    keep: frozenset[int] = frozenset(),
    platform: str = "cpu",
    devices: int = 1,
    placed: str = "sharding",
) -> Program:
    """The program with its aliases, compiled for so many devices of `platform`, on which its leaves are `placed`."""
    program = program_of(fun, *args)
    somewhere = SimpleNamespace(device_set=[SimpleNamespace(platform=platform)] * devices, memory_kind=None)
    leaves = tuple(dataclasses.replace(leaf, **{placed: somewhere}) for leaf in program.leaves)
    return alias(dataclasses.replace(program, leaves=leaves, keep=keep))


def pairs(program: Program) -> dict[int, int]:
    """From input to output."""
    return {pair.input: pair.output for pair in program.aliases}


def of(fun: Any, *args: Any, **options: Any) -> dict[int, int]:
    return pairs(planned(fun, *args, **options))


def compiled(program: Program) -> Any:
    """The program compiled with its aliases. (Its leaves are on no real device, so that JAX is told of none.)"""
    leaves = tuple(dataclasses.replace(leaf, sharding=None) for leaf in program.leaves)
    lowered = emit_jit(dataclasses.replace(program, leaves=leaves)).lower(
        [jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype) for leaf in leaves if leaf.aval is not None]
    )
    return lowered.compile()


def total(program: Program) -> int:
    m = compiled(program).memory_analysis()
    return m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes - m.alias_size_in_bytes


def without(program: Program) -> Program:
    """The same program with nothing donated."""
    return dataclasses.replace(program, aliases=())


def copies(program: Program) -> int:
    """Copies of whole arrays in the optimised program."""
    shapes = re.findall(r"= \w+\[([\d,]+)\]\S* copy\(", compiled(program).as_text())
    return sum(math.prod(map(int, shape.split(","))) >= N * N for shape in shapes)


def reused(program: Program) -> int:
    """How many parameters XLA writes an output over."""
    header = compiled(program).as_text().partition("\n")[0]
    return len(re.findall(r"\(\d+, \{\}, (?:may|must)-alias\)", header))


@pytest.mark.parametrize(
    "fun",
    [
        lambda a, i: jnp.tanh(a) * 2 + 1,
        lambda a, i: a.astype(jnp.bfloat16).astype(jnp.float32) + 1,
        lambda a, i: jnp.where(a > 0, a, 0.0),
        lambda a, i: a.at[3].set(1.0),
        lambda a, i: jnp.sin(a.reshape(-1)).reshape(N, N),
        lambda a, i: lax.dynamic_update_slice(a, jnp.ones((1, N)), (i, 0)),
        lambda a, i: a.at[jnp.arange(4) * i].add(2.0),
        lambda a, i: lax.fori_loop(0, 5, lambda _, x: x * 1.5, a),
        lambda a, i: lax.while_loop(lambda x: x[0, 0] < 3, lambda x: x * 2 + 1, a),
        lambda a, i: lax.scan(lambda x, k: (x * k, None), a, jnp.arange(3.0))[0],
        lambda a, i: lax.cond(i > 0, jnp.sin, lambda x: x, a),
        lambda a, i: jax.jit(jnp.cos)(jnp.sin(a)),
        lambda a, i: jax.checkpoint(jnp.sin)(a),
        lambda a, i: jax.nn.relu(a),
    ],
)
def test_an_update_is_written_over_what_it_updates(fun: Any) -> None:
    program = planned(fun, SQUARE, SCALAR)
    assert program.aliases[0] == Alias(0, 0, 0, "updated in place")
    assert reused(program) >= 1
    # What has to be copied without donation (a scatter's operand) is not copied with it.
    assert copies(program) == 0
    assert total(program) <= total(without(program)) - BYTES


@pytest.mark.parametrize("fun", [lambda a: a @ a, lambda a: a.T, lambda a: a[::-1], lambda a: a + jnp.roll(a, 1, 0)])
def test_a_last_output_that_needs_all_of_the_input_is_not_written_over_it(fun: Any) -> None:
    program = planned(fun, SQUARE)
    assert program.aliases == ()
    (note,) = program.notes
    assert (note.leaf, note.text) == (
        0,
        "would be copied first, as all of it is read to write the output, and save no memory",
    )
    forced = dataclasses.replace(program, aliases=(Alias(0, 0),))
    assert total(forced) >= total(program) - 4096  # alignment
    assert copies(forced) > copies(program)


@pytest.mark.parametrize(
    ("fun", "on_gpu"),
    [
        (lambda a: jnp.roll(a, 1, 1), ()),
        (lambda a: 2 * jnp.roll(jnp.sin(a), 1, 1), (BYTES,)),
        (lambda a: jnp.concatenate([a[:, 1:], a[:, :1] * 2], axis=1), ()),
        (lambda a: jnp.concatenate([a[:, : N // 4], a[:, N // 4 : N // 2], a[:, : N // 2]], axis=1), ()),
    ],
)
def test_long_rows_are_joined_from_parts_that_the_compiler_stores(fun: Any, on_gpu: tuple[int, ...]) -> None:
    """So what the parts were made from has been read. `on_gpu` are the bytes that each pair there costs in copies."""
    program = planned(fun, SQUARE)
    assert program.aliases == (Alias(0, 0, 0, "updated in place"),)
    assert copies(program) == 0
    assert total(program) <= total(without(program)) - BYTES
    assert tuple(pair.copied for pair in planned(fun, SQUARE, platform="gpu").aliases) == on_gpu


@pytest.mark.parametrize(
    "fun",
    [
        lambda a: jnp.roll(a, 1, 0),
        lambda a: jnp.roll(a.reshape(-1), 1).reshape(N, N),
        lambda a: jnp.concatenate([jnp.zeros((N, 1)), a[:, 1:]], axis=1),
    ],
)
def test_other_arrays_are_joined_in_one_loop(fun: Any) -> None:
    """A `pad` is what fills up rows with one value."""
    program = planned(fun, SQUARE)
    assert program.aliases == ()
    forced = dataclasses.replace(program, aliases=(Alias(0, 0),))
    assert copies(forced) == 1
    assert total(forced) >= total(program) - 4096  # alignment


@pytest.mark.parametrize("last_first", [False, True])
def test_rows_of_two_arrays_keep_their_places(last_first: bool) -> None:
    def fun(a: Any, b: Any) -> Any:
        if last_first:
            new = jnp.roll(b, 1, 1)
            return jnp.roll(a, 1, 1), new
        return jnp.roll(a, 1, 1), jnp.roll(b, 1, 1)

    program = planned(fun, SQUARE, SQUARE)
    assert pairs(program) == {0: 0, 1: 1}
    assert copies(program) == 0
    assert total(program) <= total(without(program)) - BYTES


@pytest.mark.parametrize(
    "fun",
    [
        lambda a: a.reshape(-1),
        lambda a: jnp.expand_dims(a, 0),
        lambda a: a.reshape(-1).at[3].set(1.0),
        lambda a: a.at[3].add(1.0).reshape(-1),
        lambda a: lax.dynamic_update_slice(a.reshape(-1), jnp.zeros(3), (5,)),
        lambda a: lax.fori_loop(0, 3, lambda _, x: x * 2, a.reshape(-1)),
        lambda a: lax.cond(a[0, 0] > 0, lambda x: x, lambda x: x, a).reshape(-1),
    ],
)
def test_what_is_only_in_another_shape_stays_in_its_buffer(fun: Any) -> None:
    program = planned(fun, SQUARE)
    assert pairs(program) == {0: 0}
    assert copies(program) <= copies(without(program))
    assert total(program) <= total(without(program)) - BYTES


@pytest.mark.parametrize("fun", [lambda a: jnp.sin(a).reshape(-1), lambda a: a.view(jnp.int32)])
def test_a_loop_that_reads_one_type_and_writes_another_does_not(fun: Any) -> None:
    program = planned(fun, SQUARE)
    assert program.aliases == ()
    assert total(dataclasses.replace(program, aliases=(Alias(0, 0),))) >= total(program)


def test_a_loss_comes_first_on_several_tpus() -> None:
    def step(a: Any) -> Any:
        return a + 1, jnp.sum(a)

    assert planned(step, SQUARE, platform="tpu", devices=4).order == "unpaired first"
    assert planned(step, SQUARE, platform="tpu", devices=4, placed="requested").order == "unpaired first"
    assert planned(lambda a: step(a)[::-1], SQUARE, platform="tpu", devices=4).order == "forwards"
    assert planned(step, SQUARE, platform="tpu").order == "forwards"
    assert {planned(step, SQUARE, platform=other, devices=4).order for other in ("cpu", "gpu")} == {"forwards"}


def test_it_does_not_where_a_sharding_is_asked_for_inside() -> None:
    """Of the order of results may depend how XLA cuts what they have in common, and with it the last bit."""
    mesh = jax.sharding.AbstractMesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    cut = jax.NamedSharding(mesh, jax.P("x"))

    def step(a: Any) -> Any:
        a = jax.jit(lambda a: jax.lax.with_sharding_constraint(a, cut))(a)
        return a + 1, jnp.sum(a)

    program = planned(step, SQUARE, platform="tpu", devices=4)
    assert program.keeps_order
    assert (pairs(program), program.order) == ({0: 0}, "forwards")


def test_on_a_tpu_it_is() -> None:
    program = planned(lambda a: a @ a, SQUARE, platform="tpu")
    assert [(p.input, p.output, p.copied) for p in program.aliases] == [(0, 0, BYTES)]


def leapfrog(q: Any, p: Any) -> Any:
    p = p - q
    q = q + 0.1 * p
    return q, p - q


def leapfrog_of_neighbours(q: Any, p: Any) -> Any:
    p = p - jnp.roll(q, 1, 0)
    q = q + 0.1 * p
    return q, p - jnp.roll(q, 1, 0)


def test_a_gpu_writes_several_outputs_in_one_loop_which_has_read_their_inputs() -> None:
    assert of(leapfrog, SQUARE, SQUARE, platform="gpu") == {0: 0, 1: 1}
    assert not any(pair.copied for pair in planned(leapfrog, SQUARE, SQUARE, platform="gpu").aliases)
    assert any(pair.copied for pair in planned(leapfrog, SQUARE, SQUARE, platform="tpu").aliases)


def test_but_not_where_one_reads_other_elements_of_another() -> None:
    for platform in ("gpu", "tpu"):
        program = planned(leapfrog_of_neighbours, SQUARE, SQUARE, platform=platform)
        assert len(program.aliases) < 2 or any(pair.copied for pair in program.aliases)


def verlet(positions: Any, velocities: Any, forces: Any) -> Any:
    positions = positions + 0.1 * velocities + 0.005 * forces
    new = -positions * jnp.sum(positions**2, -1, keepdims=True)
    return positions, velocities + 0.05 * (forces + new), new


def test_nor_where_one_is_made_of_rows_and_their_sums_by_a_kernel_of_its_own() -> None:
    program = planned(verlet, SQUARE, SQUARE, SQUARE, platform="gpu")
    assert pairs(program) == {0: 0, 1: 1}
    assert not any(pair.copied for pair in program.aliases)


def deposit(field: Any, places: Any) -> Any:
    charges = jnp.zeros((N, N)).at[places].add(1.0)
    return field + 0.2 * (jnp.roll(field, 1, 0) - charges)


def test_what_a_scatter_begins_with_is_no_memory_besides_its_result_on_a_gpu() -> None:
    assert of(deposit, SQUARE, jax.ShapeDtypeStruct((N,), jnp.int32), platform="gpu") == {}


def test_a_running_sum_is_made_in_stages() -> None:
    """The CPU's compiler reads the input only in the first of them."""
    program = planned(lambda a: jnp.cumsum(a, 0), SQUARE)
    assert pairs(program) == {0: 0}
    assert total(program) <= total(without(program))
    assert of(lambda a: jnp.cumsum(a, 0), SQUARE, platform="gpu") == {}
    # A GPU's sorts a copy in place.
    assert of(lambda a: jnp.sort(a, 0), SQUARE, platform="gpu") == {0: 0}
    assert of(lambda a: jnp.sort(a, 0), SQUARE) == {}
    solve = lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True)  # noqa: E731
    assert of(solve, SQUARE, SQUARE, platform="gpu")


_DECOMPOSED = {
    "qr": lambda a: lax.linalg.qr(a)[0],
    "the other result of qr": lambda a: lax.linalg.qr(a)[1],
    "svd": lambda a: lax.linalg.svd(a)[0],
    "eigh": lambda a: lax.linalg.eigh(a, symmetrize_input=False)[0],
    "lu": lambda a: lax.linalg.lu(a)[0],
    "schur": lambda a: lax.linalg.schur(a)[0],
    "hessenberg": lambda a: lax.linalg.hessenberg(a)[0],
    "householder_product": lambda a: lax.linalg.householder_product(a, jnp.ones(N)),
}


@pytest.mark.parametrize("fun", _DECOMPOSED.values(), ids=_DECOMPOSED)
def test_a_decomposition_begins_with_a_copy(fun: Any) -> None:
    """Of all that the result is made of, the input's place included."""
    program = planned(fun, SQUARE)
    assert pairs(program) == {0: 0}
    assert total(program) < total(without(program))


def test_run_state_writes_over_what_it_is_given() -> None:
    def body(refs: Any) -> None:
        a, b = refs
        a[...] = jnp.sin(a[...]) + b[...]
        b[...] = b[...] * 2

    program = planned(lambda a, b: pallas.run_state(body)((a, b)), SQUARE, SQUARE)
    assert pairs(program) == {0: 0, 1: 1}
    assert total(program) < total(without(program))


def test_a_copy_is_worth_it_where_memory_is_needed_later() -> None:
    def fun(a: Any, x: Any) -> Any:
        y = a @ a
        return y, jnp.sum(jnp.sort(jnp.outer(y[0], x) @ jnp.outer(x, x), 0))

    program = planned(fun, SQUARE, jax.ShapeDtypeStruct((8 * N,), jnp.float32))
    assert [(p.input, p.output, p.copied) for p in program.aliases] == [(0, 0, BYTES)]
    assert total(program) <= total(without(program))


def test_an_input_that_is_dead_long_before() -> None:
    def fun(a: Any, w: Any) -> Any:
        return jnp.sin(a @ w) @ w

    program = planned(fun, SQUARE, SQUARE, keep=frozenset([1]))
    assert program.aliases == (Alias(0, 0, 0, "read for the last time before the output is written"),)
    assert copies(program) == 0


def test_an_input_read_after_the_output_is_written() -> None:
    """`c` is read with the very output that would be written over it."""

    def fun(b: Any, c: Any) -> Any:
        new = jnp.cos(b)
        return new, (new @ new) * c

    assert of(fun, SQUARE, SQUARE) == {0: 0, 1: 1}
    only = planned(fun, SQUARE, SQUARE, keep=frozenset([0]))
    assert pairs(only) == {1: 1}


def test_two_updates_whatever_the_order_of_results() -> None:
    def swap(a: Any, b: Any) -> Any:
        return jnp.sin(b), jnp.cos(a)

    program = planned(swap, SQUARE, SQUARE)
    assert pairs(program) == {0: 1, 1: 0}
    assert copies(program) == 0
    assert total(program) <= 2 * BYTES + 64  # the tuple of results


def adam(params: Any, mu: Any, nu: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        y = x
        for w in params:
            y = jnp.tanh(y @ w)
        return jnp.mean(y**2)

    value, grads = jax.value_and_grad(loss)(params)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
    nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, nu, grads)
    return jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, mu, nu), mu, nu, value


def test_adam_in_any_order() -> None:
    args = ([SQUARE] * 3, [SQUARE] * 3, [SQUARE] * 3, jax.ShapeDtypeStruct((16, N), jnp.float32))
    program = planned(adam, *args)
    assert pairs(program) == {i: i for i in range(9)}
    assert {p.why for p in program.aliases} == {"updated in place"}
    assert [(n.leaf, n.text) for n in program.notes] == [(9, "no output is f32[16,256]")]
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(10)
        shuffled = planned(lambda *a, order=order: [jax.tree.leaves(adam(*a))[i] for i in order], *args)
        assert {i: int(order[o]) for i, o in pairs(shuffled).items()} == pairs(program)
    assert total(shuffled) == total(program)


def test_outputs_that_each_need_the_others_input() -> None:
    """The CPU's compiler copies both inputs for two pairs, and one for one; a TPU's computes both in one loop."""

    def fun(a: Any, b: Any) -> Any:
        return 0.6 * a - 0.8 * b, 0.8 * a + 0.6 * b

    program = planned(fun, SQUARE, SQUARE)
    assert len(program.aliases) == 1
    both = dataclasses.replace(program, aliases=(Alias(0, 0), Alias(1, 1)))
    assert total(program) < total(both)
    assert len(of(fun, SQUARE, SQUARE, platform="tpu")) == 2


def test_loop_carries_keep_their_places() -> None:
    def fun(a: Any, b: Any) -> Any:
        return lax.fori_loop(0, 4, lambda _, state: (state[1], state[0] + state[1]), (a, b))

    assert of(fun, SQUARE, SQUARE) == {0: 0, 1: 1}
    assert of(lambda a, b: fun(a, b)[::-1], SQUARE, SQUARE) == {0: 1, 1: 0}


def test_what_a_loop_reads_throughout_is_not_overwritten_by_its_carry() -> None:
    def fun(w: Any, x: Any) -> Any:
        return lax.fori_loop(0, 4, lambda _, x: x @ w, x)

    assert of(fun, SQUARE, SQUARE) == {1: 0}


def test_a_loop_has_read_what_it_reads_before_the_next_one_on_what_it_carried() -> None:
    def train(state: Any, seed: Any) -> Any:
        def act(carry: Any, _: Any) -> Any:
            state, seed = carry
            return (jnp.tanh(state) * seed, seed * 1.5 + state[0, 0]), None

        (state, seed), _ = lax.scan(act, (state, seed), length=4)
        # The first loop reads the old state as it makes this seed, long before the second is given the new one.
        return state, lax.fori_loop(0, 4, lambda _, seed: seed + state[1, 1], seed)

    for size in (16, N):  # a copy of the small one would not be worth it
        program = planned(train, jax.ShapeDtypeStruct((size, size), jnp.float32), jnp.float32(1))
        assert pairs(program) == {0: 0, 1: 1}
        assert program.aliases[0].copied == 0
        assert total(program) <= total(without(program)) - 4 * size * size
        assert copies(program) <= copies(without(program))


def test_leaves_that_the_caller_reads_again_and_captured_arrays_are_never_written() -> None:
    def fun(a: Any, b: Any) -> Any:
        return a + 1, b + 1

    assert of(fun, SQUARE, SQUARE, keep=frozenset([0])) == {1: 1}
    program = program_of(fun, SQUARE, SQUARE)
    captured = dataclasses.replace(program, inputs=(Input(None, jnp.ones((N, N))), Input(1)))
    assert pairs(alias(captured)) == {1: 1}
    assert alias(captured).donated == (1,)


def test_memories_do_not_mix() -> None:
    program = program_of(lambda a, b: (a + 1, b + 1), SQUARE, SQUARE)
    host = SimpleNamespace(device_set=[SimpleNamespace(platform="gpu")], memory_kind="pinned_host")
    leaves = (dataclasses.replace(program.leaves[0], sharding=host), program.leaves[1])
    assert pairs(alias(dataclasses.replace(program, leaves=leaves))) == {1: 1}
    outputs = (dataclasses.replace(program.outputs[0], requested=host), program.outputs[1])
    assert pairs(alias(dataclasses.replace(program, leaves=leaves, outputs=outputs))) == {0: 0, 1: 1}


def test_a_mesh_without_devices() -> None:
    mesh = jax.sharding.AbstractMesh((2,), ("i",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    program = program_of(lambda a: a + 1, SQUARE)
    leaves = (dataclasses.replace(program.leaves[0], sharding=sharding),)
    assert pairs(alias(dataclasses.replace(program, leaves=leaves))) == {0: 0}


def test_random_keys_are_arrays_too() -> None:
    key = jax.random.key(0)
    program = planned(lambda k, x: (jax.random.split(k)[0], x + jax.random.normal(k, x.shape)), key, jnp.ones(8))
    assert pairs(program)[1] == 1


def test_keys_are_folded_in_several_loops_of_which_only_the_first_reads_them() -> None:
    keys = jax.random.split(jax.random.key(0), 10_000)
    program = planned(jax.vmap(lambda key: jax.random.fold_in(key, 1)), keys)
    assert pairs(program) == {0: 0}
    assert total(program) <= total(without(program)) - keys.nbytes
    assert copies(program) <= copies(without(program))


def test_empty_arrays_have_no_buffer_to_reuse() -> None:
    empty = jax.ShapeDtypeStruct((0, 3), jnp.float32)
    assert of(lambda a, b: (a * 2, b * 2), empty, SQUARE) == {1: 1}


def test_references_are_left_alone() -> None:
    def fun(ref: Any, a: Any) -> Any:
        ref[...] = ref[...] + a
        return a * 2

    program = program_of(fun, jax.new_ref(jnp.ones((N, N))), SQUARE)
    assert pairs(alias(program)) == {1: 0}


def test_another_type_of_the_same_size_is_the_second_choice() -> None:
    def fun(a: Any, w: Any) -> Any:
        return (a @ w @ w @ w).astype(jnp.int32)

    program = planned(fun, SQUARE, SQUARE, keep=frozenset([1]))
    assert pairs(program) == {0: 0}
    assert reused(program) == 1
    assert total(program) <= total(without(program)) - BYTES
    # XLA writes no loop over an operand of another type.
    assert of(lambda a: (a * 2).astype(jnp.int32), SQUARE) == {}
    # Where an output has the input's own type, JAX would pair those two.
    assert of(lambda a: ((a @ a @ a).astype(jnp.int32), a @ a), SQUARE) == {0: 1}


@pytest.mark.parametrize(
    "fun",
    [
        jnp.argsort,
        lambda a: jax.lax.top_k(a, N)[1],
        lambda a: jnp.cumsum(a.reshape(-1)).astype(jnp.float32).reshape(-1),
    ],
    ids=["argsort", "top_k", "cumsum"],
)
def test_over_a_copy_where_that_is_sorted_in_place_of_another(fun: Any) -> None:
    program = planned(fun, SQUARE)
    assert pairs(program) == {0: 0}
    assert total(program) <= total(without(program)) - BYTES


@pytest.mark.parametrize(
    "fun",
    [
        lambda a, b: (a.sum(), jnp.argsort(a)),
        lambda a, b: (jnp.linalg.norm(a), jnp.argsort(a)),
        lambda a, b: (jax.lax.top_k(-a, 8)[1], jnp.argsort(a)),
        lambda a, b: ((b * 2).T, jnp.argsort(a)),
        lambda a, b: (b.astype(jnp.int32), (b * 2).astype(jnp.int32).T, jnp.argsort(a)),
    ],
)
def test_but_not_if_anything_else_reads_it_or_another_large_result_is_made(fun: Any) -> None:
    program = planned(fun, SQUARE, SQUARE)
    assert 0 not in pairs(program)
    assert total(program) <= total(without(program))


def test_a_copy_for_another_type_is_not_made_to_be_read_until_all_is_written() -> None:
    assert of(lambda a: (jnp.sort(a) + a).astype(jnp.int32), SQUARE) == {}
    assert of(jnp.argsort, SQUARE, platform="tpu") == {}


def test_an_output_returned_twice_has_one_partner() -> None:
    def fun(a: Any, b: Any) -> Any:
        y = a + b
        return y, y

    assert len(of(fun, SQUARE, SQUARE)) == 1


def test_pallas_and_foreign_calls_declare_what_they_overwrite() -> None:
    call = jax.ffi.ffi_call("nowhere", SQUARE, input_output_aliases={1: 0})
    assert of(lambda a, b: call(a, b), SQUARE, SQUARE) == {1: 0}

    def add(a: Any, b: Any, out: Any) -> None:
        out[...] = a[...] + b[...]

    for k in (0, 1):
        kernel = pallas.pallas_call(add, out_shape=SQUARE, input_output_aliases={k: 0}, interpret=True)
        program = planned(lambda a, b, kernel=kernel: jnp.sin(kernel(jnp.cos(a), jnp.tan(b))), SQUARE, SQUARE)
        assert pairs(program) == {k: 0}
        assert total(program) <= total(without(program)) - BYTES


SMALL = jax.ShapeDtypeStruct((8, 8), jnp.float32)


def exported(fun: Any, *args: Any) -> Any:
    """The function as it is after a round trip through `jax.export`."""
    return jax.export.export(jax.jit(fun))(*args).call


def test_what_was_exported_updates_what_it_is_given() -> None:
    for aval in (SMALL, SQUARE):
        program = planned(exported(lambda a: a * 2, aval), aval)
        assert pairs(program) == {0: 0}
        assert total(program) == total(without(program)) // 2

    def step(params: Any, moments: Any, grads: Any) -> Any:
        moments = jax.tree.map(lambda m, g: m + g, moments, grads)
        return jax.tree.map(lambda p, m: p - m, params, moments), moments

    three = ([SMALL] * 3,) * 3
    program = planned(exported(step, *three), *three)
    assert pairs(program) == {k: k for k in range(6)}
    assert total(program) <= total(without(program)) - 6 * 256


def test_so_does_a_kernel_that_is_interpreted() -> None:
    def double(a: Any, out: Any) -> None:
        out[...] = a[...] * 2

    program = planned(pallas.pallas_call(double, out_shape=SMALL, interpret=True), SMALL)
    assert pairs(program) == {0: 0}
    assert total(program) == 256


def test_what_was_exported_and_updates_nothing_takes_no_more() -> None:
    program = planned(exported(lambda a: a @ a + a, SMALL), SMALL)
    assert pairs(program) == {0: 0}
    assert total(program) == total(without(program))
    assert of(exported(lambda a: a.sum(), SMALL), SMALL) == {}


def adam_aliases() -> list[tuple[int, int]]:
    args = ([SQUARE] * 3, [SQUARE] * 3, [SQUARE] * 3, jax.ShapeDtypeStruct((16, N), jnp.float32))
    return [(each.input, each.output) for each in planned(adam, *args).aliases]


def test_the_result_is_the_same_in_every_process() -> None:
    """Whatever the order of its sets is."""
    code = "from tests.passes.test_alias import adam_aliases; print(adam_aliases())"
    for seed in ("0", "1"):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=pathlib.Path(__file__).parents[2],
        )
        assert ran.stdout.strip() == str(adam_aliases())


def seconds_for(fun: Any, *args: Any) -> tuple[float, dict[int, int]]:
    """How long the pass takes, and the pairs that it makes."""
    program = program_of(fun, *args)

    def measured() -> tuple[float, dict[int, int]]:
        start = time.process_time()
        done = alias(program)
        return time.process_time() - start, pairs(done)

    return uncollected(measured)  # nor of what other tests have left


def test_a_hundred_thousand_equations() -> None:
    """Ten times the equations take about ten times as long, not a hundred times."""

    def seconds(n: int) -> float:
        leaf = jax.ShapeDtypeStruct((8,), jnp.float32)

        def fun(params: Any, mu: Any) -> Any:
            grads = [jnp.sin(p) for p in params]
            norm = sum(jnp.sum(g * g) for g in grads)
            mu = [0.9 * m + norm * g for m, g in zip(mu, grads, strict=True)]
            return [p - 0.1 * m for p, m in zip(params, mu, strict=True)], mu

        taken, made = seconds_for(fun, [leaf] * n, [leaf] * n)
        assert made == {i: i for i in range(2 * n)}
        return taken

    seconds(10)
    assert seconds(2000) < 30 * seconds(200)


def test_results_that_one_branch_makes_of_all_arguments() -> None:
    """As where gradients are accumulated over several steps: each result reads each argument."""

    def seconds(n: int) -> float:
        leaf = jax.ShapeDtypeStruct((64, 64), jnp.float32)

        def update(grads: Any, mu: Any) -> Any:
            mu = [0.9 * m + g for m, g in zip(mu, grads, strict=True)]
            return [jnp.sqrt(m) for m in mu], mu

        def fun(params: Any, mu: Any, total: Any, k: Any) -> Any:
            total = [t + p * k for t, p in zip(total, params, strict=True)]
            steps, mu = lax.cond(k > 2, update, lambda grads, mu: (grads, mu), total, mu)
            params = [p - jnp.where(k > 2, s, 0) for p, s in zip(params, steps, strict=True)]
            return params, mu, [jnp.where(k > 2, 0, t) for t in total]

        taken, made = seconds_for(fun, [leaf] * n, [leaf] * n, [leaf] * n, jax.ShapeDtypeStruct((), jnp.float32))
        assert len(made) >= 2 * n
        return taken

    seconds(5)
    assert seconds(200) < 100 * seconds(20)


@given(st.data())
def test_matching_is_as_good_as_trying_everything(data: st.DataObject) -> None:
    rows, columns = data.draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    price = st.integers(0, 20)
    matrix = np.array(data.draw(st.lists(st.lists(price, min_size=columns, max_size=columns), min_size=rows, max_size=rows)), float)  # fmt: skip  # noqa: E501
    least = data.draw(price)
    cheap = [{c: float(matrix[r, c]) for c in range(columns) if matrix[r, c] < least} for r in range(rows)]
    found = matching.assign(rows, columns, lambda r, c: matrix[np.ix_(r, c)], cheap, least)
    assert len({r for r, _ in found}) == len({c for _, c in found}) == len(found) == min(rows, columns)
    if rows > columns:
        matrix = matrix.T
        found = [(c, r) for r, c in found]
    best = min(
        sum(matrix[r, c] for r, c in enumerate(order))
        for order in itertools.permutations(range(matrix.shape[1]), matrix.shape[0])
    )
    assert sum(matrix[r, c] for r, c in found) == best


def test_what_takes_as_long_to_import_as_jax_is_imported_only_where_it_is_needed() -> None:
    code = """
import sys, jax.numpy as jnp, pytc
pytc.compile(lambda tree, rate: [x * rate for x in tree])([jnp.ones(3)] * 3, 2)
pytc.compile(lambda x, y: (x * y, y + x))(jnp.ones(3), jnp.ones(3))
pytc.compile(lambda *xs: [sum(xs) * k for k in range(10)])(*[jnp.full(3, k) for k in range(10)])
sys.exit('scipy.optimize' in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_is_still_to_be_had_when_the_interpreter_is_ending() -> None:
    code = """
import atexit, sys
import numpy as np
from pytc.passes import matching

def last():
    pairs = matching.assign(16, 16, lambda r, c: np.ones((len(r), len(c))), [{}] * 16, 1)
    print(sorted(pairs), 'scipy.optimize' in sys.modules)

atexit.register(last)
"""
    ran = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert ran.stdout.strip() == f"{[(k, k) for k in range(16)]} True", ran.stderr


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_what_all_results_read_is_written_last_of_all(platform: str) -> None:
    """It is nearer to both results than the arguments that they are of."""

    def fun(wind: Any, a: Any, b: Any) -> Any:
        return jnp.tanh(a) * 2 + 1 - wind, jnp.sort(b, 1) + wind

    program = planned(fun, SQUARE, SQUARE, SQUARE, platform=platform)
    assert pairs(program) == {1: 0, 2: 1}
    if platform == "cpu":
        assert copies(program) == 0
        over_it = dataclasses.replace(program, aliases=(Alias(1, 0), Alias(0, 1)))
        assert total(program) <= total(over_it) - BYTES


def test_results_of_one_loop_keep_their_places() -> None:
    def fun(a: Any, b: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, c: (c[0] + c[1], c[1] - jnp.sum(c[0])), (a, b))

    assert pairs(planned(fun, SQUARE, SQUARE)) == {0: 0, 1: 1}


@pytest.mark.parametrize("seed", range(100))
def test_no_pairing_costs_less_than_the_one_matched(seed: int) -> None:
    """Each pair asked by itself for its price, over all pairings; prices are worked out for all at once."""
    chosen = random.Random(seed)
    fun, *values = some_function(chosen, N)
    chains = [some_chain(chosen) for _ in values]
    choices = Choices(program_of(lambda *a: [f(x) for f, x in zip(chains, a, strict=True)] + fun(*a)[:1], *values))
    for group in choices.groups:
        prices = {pair: group.price(*pair, choices.read) for pair in itertools.product(group.inputs, group.outputs)}
        longer, shorter = sorted((group.inputs, group.outputs), key=len, reverse=True)
        ways = [list(zip(some, shorter, strict=True)) for some in itertools.permutations(longer, len(shorter))]
        if longer is group.outputs:
            ways = [[(given, output) for output, given in way] for way in ways]
        found = group.matched(choices.read)
        least = min(sum(prices[pair] for pair in way) for way in ways)
        assert sum(prices[pair.input, pair.output] for pair in found) == pytest.approx(least, abs=1)  # ties are broken
        assert all((pair.copied > 0) == group.is_copied(pair.input, pair.output, choices.read) for pair in found)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_a_large_matching_falls_apart_into_small_ones(seed: int) -> None:
    """Blocks that know their partners are matched as well piece by piece as at once."""
    rng = np.random.default_rng(seed)
    n = 24
    matrix = np.full((n, n), 1000.0)
    for start in range(0, n, 3):
        matrix[start : start + 3, start : start + 3] = rng.integers(1, 9, (3, 3))
    matrix = matrix[rng.permutation(n)]
    cheap = [{int(c): float(matrix[r, c]) for c in np.flatnonzero(matrix[r] < 1000)} for r in range(n)]

    def prices(rows: Any, columns: Any) -> Any:
        return matrix[np.ix_(rows, columns)]

    whole = matching.assign(n, n, prices, cheap, 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "EXACT", 100)
        pieces = matching.assign(n, n, prices, cheap, 1000)
    assert sorted(c for _, c in pieces) == list(range(n))
    assert sum(matrix[r, c] for r, c in pieces) == sum(matrix[r, c] for r, c in whole)


@settings(max_examples=10, deadline=None)
@given(functions(N))
def test_random_functions_return_the_same_bits(drawn: tuple[Any, list[Any]]) -> None:
    fun, values = drawn
    wanted = jax.jit(fun)(*values)
    landed: list[Any] = []
    copied = [x.copy() for x in values]
    program = alias(program_of(fun, *values))
    emitted = emit_jit(program)
    emitted.call(copied, landed)
    for a, b in zip(wanted, emitted.result(landed[0], copied), strict=True):
        again = [same(a, c) for c in jax.jit(fun)(*values)]
        assert same(a, b), f"{program.aliases} of {program.jaxpr}: differ in {jnp.abs(a - b).max()}; jit again: {again}"


def test_of_random_functions_hardly_one_takes_more_memory_than_without_donation() -> None:
    """What one compilation can promise: which copies XLA's scheduler makes for a pair is known when it has made them,
    and two pairs in a hundred programs may cost a buffer instead of saving one. `effort="high"` compares, and never
    takes more (tests/test_effort.py)."""
    chosen = random.Random(0)
    saved = []
    for _ in range(60):
        program = alias(program_of(*some_function(chosen, N)))
        if program.aliases:
            saved.append(total(without(program)) - total(program))
    alignment = 4096
    assert sum(each < -alignment for each in saved) <= 2
    assert min(saved) >= -BYTES - alignment
    assert sum(each >= BYTES - alignment for each in saved) > len(saved) / 3
