"""JAX's settings that a program depends on, changed between calls: results are those under the settings of the call."""

from __future__ import annotations

import contextlib
import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, monitoring

import pytc
from pytc.calls.lookup import Lookup

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


def add_thirds(x):
    return x + jnp.arange(4) / 3


def add_noise(x):
    return x + jax.random.normal(jax.random.key(0), (4,))


def product(x):
    return jnp.outer(x, x) @ x


CONTEXTS = [
    (add_thirds, lambda: jax.enable_x64(True)),
    (add_noise, lambda: jax.default_prng_impl("rbg")),
    (add_noise, lambda: jax.threefry_partitionable(False)),
    (product, lambda: jax.default_matmul_precision("float32")),
]


def start():
    return jnp.linspace(0, 1, 4, dtype=jnp.float32)


def anew(function):
    """The same as another function, of which nothing is known yet."""
    return lambda x: function(x)


def kept_then_overwritten(f, here, there):
    x = start()
    with here():
        y = f(x)
    with there():
        x = f(x)
    return x, y


def overwritten_then_kept(f, here, there):
    x = start()
    with here():
        x = f(x)
    x = x.astype(jnp.float32)
    with there():
        y = f(x)
    return x, y


def by_turns(f, here, there):
    x, results = start(), []
    for k in range(6):
        with (here, there)[k % 2]():
            results.append(f(x))
        with (here, there)[k % 2]():
            x = f(x)
        results.append(x)
        x = x.astype(jnp.float32)
    return results


def moved(f, here, there):
    take = pytc.move if isinstance(f, type(add_noise)) else lambda x: x
    with here():
        y = f(start())
    with there():
        z = f(take(start()))
    return y, z


def with_a_counter(f, here, there):
    def g(state):
        return f(state)

    with here():
        y = g(start())
    with there():
        z = g(np.linspace(0, 1, 4, dtype=np.float32))
    return y, z


@pytest.mark.parametrize("program", [kept_then_overwritten, overwritten_then_kept, by_turns, moved, with_a_counter])
@pytest.mark.parametrize(("function", "context"), CONTEXTS, ids=["x64", "prng", "threefry", "precision"])
@pytest.mark.parametrize("back", [False, True])
def test_context(program, function, context, back):
    contexts = (context, contextlib.nullcontext) if back else (contextlib.nullcontext, context)
    ours, theirs = (program(compiler(anew(function)), *contexts) for compiler in (pytc.compile, jax.jit))
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("context", [context for _, context in CONTEXTS], ids=["x64", "prng", "threefry", "precision"])
@pytest.mark.parametrize("back", [False, True])
def test_no_tracing_where_there_are_programs_for_other_contexts(context, back):
    """In a helper, whose call goes straight to the program of the last context."""
    f = pytc.compile(anew(product))

    def g(x):
        return f(x)

    first, second = (context, contextlib.nullcontext) if back else (contextlib.nullcontext, context)
    x = start()
    for at_first in (True, False):
        with first() if at_first else second():
            for _ in range(4):
                x = g(x)
        x = x.astype(jnp.float32)
    expected = jax.jit(product)(x)
    with first(), jax.no_tracing():
        x = g(x)
        np.testing.assert_array_equal(x, expected)
        with pytest.raises(RuntimeError, match="re-tracing"):
            f(start()[:2])
    x = x.astype(jnp.float32)
    with second(), jax.no_tracing():
        x = g(x)


def test_what_may_not_be_traced_is_named():
    @pytc.compile
    def cubes(x):
        return product(x)

    cubes(start())
    with jax.no_tracing():
        for x in (np.asarray(start()), np.asarray(start())[:2]):
            with pytest.raises(RuntimeError, match=r"re-tracing function .*cubes"):
                cubes(x)


def test_a_callback_that_speaks_of_no_tracing_is_not_called_again():
    def run(compiler):
        calls, errors = [], []

        def host(x):
            calls.append(None)
            if len(calls) > 4:
                raise RuntimeError("re-tracing, but 'no_tracing' is set")
            return np.asarray(x)

        f = compiler(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct((3,), jnp.float32), x) + 1)

        def g(x):
            return f(x)

        x = start()[:3]
        for k in range(7):
            with jax.no_tracing(k > 2):
                try:
                    x = jax.block_until_ready(g(x))
                except Exception as error:
                    errors.append(type(error))
        return len(calls), errors

    assert run(pytc.compile) == run(jax.jit)


def test_a_global_setting():
    def program(compiler):
        f = compiler(anew(add_thirds))
        x = start()
        first = f(x)
        jax.config.update("jax_enable_x64", True)
        try:
            x = f(x)
        finally:
            jax.config.update("jax_enable_x64", False)
        return first, x

    for mine, other in zip(program(pytc.compile), program(jax.jit), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("x64", [True, False])
def test_a_program_that_failed_before_it_was_compiled(x64):
    """It was chosen under other settings than those of the next call."""

    def function(x, y):
        return x + 1, y + jax.dtypes.canonicalize_dtype(float).itemsize

    step = pytc.compile(function, donate={"x": "require", "y": "auto"})

    def start():
        return jnp.zeros(4, jnp.float32), jnp.ones(4, jnp.float32)

    def reads_later():
        x, y = start()
        return step(x, y), x, y

    def reads_one_later():
        x, y = start()
        return step(x * 1, y), y

    with jax.enable_x64(x64):
        x, y = start()
        for _ in range(2):
            x, y = step(x, y.astype(jnp.float32))
        with pytest.raises(pytc.DonationError):
            reads_later()
    with jax.enable_x64(not x64):
        (_, y), _ = reads_one_later()
        np.testing.assert_array_equal(y, jax.jit(function)(*start())[1])


EVENTS: list[str] = []
monitoring.register_event_duration_secs_listener(lambda event, *_, **__: EVENTS.append(event.split("/")[-1]))


@pytest.mark.parametrize("donate", ["auto", "none"])
def test_a_program_is_compiled_once_for_each_of_many_contexts(donate):
    """And tried in no other, which takes a trace each time."""
    others, user = 70, jax.make_user_context()

    def around(f, x):
        traces = []
        for k in range(others):
            before = EVENTS.count("jaxpr_trace_duration")
            with user(k):
                x = f(x)
            traces.append(EVENTS.count("jaxpr_trace_duration") - before)
        return x, traces

    step = pytc.compile(lambda x: x * 2 - 1, donate=donate)
    x, traces = around(step, start() * 0 + 1)
    assert max(traces[1:]) == traces[1]
    before = EVENTS.count("backend_compile_duration")
    x, traces = around(step, x)
    assert EVENTS.count("backend_compile_duration") == before
    assert traces == [0] * others
    np.testing.assert_array_equal(x, 1)


def test_what_jax_has_let_go_of_is_let_go_of():
    """Each signature has a copy of what the function captures."""
    table = jnp.zeros(1000)
    f = pytc.compile(lambda x: x + table.sum())
    x = jnp.ones(3)

    def copies():
        gc.collect()
        return sum(array.shape == (1000,) for array in jax.live_arrays())

    f(x)
    before = copies()
    for _ in range(4):
        jax.clear_caches()
        f(x)
    assert copies() == before
    assert f._cache_size() == 1


SETTINGS = {
    "matmul precision": lambda: jax.default_matmul_precision("float32"),
    "64 bits": lambda: jax.enable_x64(True),
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "default device": lambda: jax.default_device(jax.devices()[0]),
    "random numbers": lambda: jax.threefry_partitionable(False),
}


def in_turns(step, x, context, rounds):
    def helper(x):
        return step(x)

    for _ in range(rounds):
        x = helper(x)
        with context():
            x = helper(x)
    return x


@pytest.mark.parametrize("context", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("donate", ["auto", "none"])
def test_one_place_in_two_contexts_in_turn_finds_each_program_at_once(monkeypatch, context, donate):
    """`jax.jit` takes milliseconds to refuse arguments."""
    step = pytc.compile(lambda x: x @ x, donate=donate)
    x = in_turns(step, jnp.eye(4), context, 12)
    monkeypatch.setattr(Lookup, "candidates", lambda *_: pytest.fail("a program was tried in vain"))
    np.testing.assert_array_equal(in_turns(step, x, context, 100), np.eye(4))
    assert step._cache_size() == 2


with jax.enable_x64(True):
    WIDE, WIDE_FLOATS = jnp.arange(8) + 2**40, jnp.arange(8.0) * (1 + 1e-12)
TABLE, MATRIX = np.arange(8) + 2**40, np.arange(64.0).reshape(8, 8) * (1 + 1e-12)


def in_64_bits(function):
    @functools.wraps(function)
    def switched(x):
        with jax.enable_x64(True):
            return function(x)

    return switched


@pytest.mark.parametrize(
    "function",
    [
        in_64_bits(lambda x: x.astype(float) + WIDE),
        in_64_bits(lambda x: (jnp.asarray(TABLE), x)),
        in_64_bits(lambda x: jnp.asarray(TABLE)[x[0].astype(int)]),
        in_64_bits(lambda x: (jnp.asarray(TABLE)[x[0].astype(int)] >> 30).astype(jnp.int32)),
        in_64_bits(lambda x: jnp.dot(jnp.asarray(MATRIX), x.astype(float))),
        lambda x: lax.scan(lambda c, _: (c + WIDE_FLOATS.astype(jnp.float32), WIDE_FLOATS), x, None, length=2),
        lambda x: lax.dot(WIDE_FLOATS, x.astype(WIDE_FLOATS.dtype)),
        lambda x: WIDE[x[0].astype(jnp.int32)],
    ],
    ids=["added", "returned", "looked up", "shifted", "multiplied", "in a loop", "committed", "an item"],
)
@pytest.mark.parametrize("committed", [False, True])
def test_captured_arrays_of_64_bits_keep_them(function, committed, monkeypatch):
    if committed:
        for name in ("WIDE", "WIDE_FLOATS"):
            monkeypatch.setitem(globals(), name, jax.device_put(globals()[name], jax.devices()[0]))
    x = jnp.ones(8)
    got, wanted = jax.tree.leaves(pytc.compile(function)(x)), jax.tree.leaves(jax.jit(function)(x))
    assert [each.dtype for each in got] == [each.dtype for each in wanted]
    assert [np.asarray(each).tobytes() for each in got] == [np.asarray(each).tobytes() for each in wanted]
