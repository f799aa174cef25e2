"""Python scalars and NumPy data where arrays stand at other calls: compiled once for both, as by `jax.jit`."""

from __future__ import annotations

import collections
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

import pytc

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

compilations: list[str] = []
monitoring.register_event_duration_secs_listener(
    lambda event, _, **__: compilations.append(event) if "backend_compile" in event else None
)

State = collections.namedtuple("State", "step, params")
N = 64


def long(x: jax.Array) -> jax.Array:
    """More equations than it takes to compile in no time."""
    for _ in range(100):
        x = jnp.sin(x)
    return x


def new(step: Any, params: Any) -> State:
    return State(step, params)


@pytest.fixture
def counted() -> Any:
    """How often a function was traced, and how often anything was compiled since it was last asked."""
    jax.block_until_ready(new(jnp.ones(N) + 1, jnp.int32(1) + 1))
    before = len(compilations)

    def since() -> int:
        nonlocal before
        found = len(compilations) - before
        before += found
        return found

    return since


def watched(step: Any, state: State, calls: int, counted: Any) -> tuple[State, list[int], list[int]]:
    """The state after so many calls; how much was compiled for each; and where the parameters were after each."""
    compiled, places = [], []
    counted()
    for _ in range(calls):
        state = step(state)
        compiled.append(counted())
        places.append(state.params.unsafe_buffer_pointer())
    return state, compiled, places


FIRST = {
    "int": lambda: 0,
    "numpy scalar": lambda: np.int32(0),
    "bool": lambda: True,
    "float": lambda: 0.5,
    "numpy array": lambda: np.zeros((), np.int32),
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_a_counter_that_begins_as_no_array(first: Any, counted: Any) -> None:
    table = jnp.arange(float(N))
    traced = []

    def step(state: State) -> State:
        traced.append(None)
        return State(state.step + 1, long(state.params) * table)

    def run(step: Any) -> tuple[State, list[int], list[int]]:
        traced.clear()
        return watched(step, State(first(), jnp.ones(N)), 5, counted)

    expected, by_jax, _ = run(jax.jit(step))
    by_jax_traced = len(traced)
    result, compiled, places = run(pytc.compile(step))
    assert compiled == by_jax
    assert len(traced) == by_jax_traced
    assert len({*places[1:]}) == 1  # the parameters are donated
    for a, b in zip(result, expected, strict=True):
        assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)
        np.testing.assert_array_equal(a, b)


def test_batches_of_either_kind(counted: Any) -> None:
    @pytc.compile
    def step(params: jax.Array, batch: jax.Array) -> jax.Array:
        return long(params) + batch.sum()

    params = jnp.ones(N)
    expected: Any = jnp.ones(N)
    batches = [np.ones(3, np.float32), jnp.ones(3), np.ones(3, np.float32), jnp.ones(3)]
    counted()
    for number, batch in enumerate(batches):
        place = params.unsafe_buffer_pointer()
        params = step(params, batch)
        assert counted() == (number == 0)
        assert params.unsafe_buffer_pointer() == place
    plain = jax.jit(lambda params, batch: long(params) + batch.sum())
    for batch in batches:
        expected = plain(expected, batch)
    np.testing.assert_array_equal(params, expected)


def test_arrays_first_and_then_numbers() -> None:
    """What is passed as NumPy data belongs to the caller, whatever the program takes over."""

    @pytc.compile
    def step(state: State) -> State:
        return State(state.step + 1, long(state.params))

    def run(step: Any) -> list[Any]:
        mine = np.linspace(0, 1, N, dtype=np.float32)
        seen = []
        for step_number in (jnp.int32(0), np.int32(0), 0):
            state = State(step_number, jnp.ones(N))
            for _ in range(3):
                state = step(state)
            state = State(state.step, mine)
            for _ in range(3):
                state = step(state)
                seen += [np.array(state.step), np.array(state.params)]
        assert (mine == np.linspace(0, 1, N, dtype=np.float32)).all()
        return seen

    for a, b in zip(run(step), run(jax.jit(step.__wrapped__)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_large_numpy_data_that_becomes_arrays_is_donated(counted: Any) -> None:
    """Parameters that were loaded: that is worth a compilation."""

    @pytc.compile
    def step(state: State) -> State:
        return State(state.step + 1, long(state.params))

    state = State(0, np.ones(4 * N * N, np.float32))
    for _ in range(3):
        state = step(state)
    place = state.params.unsafe_buffer_pointer()
    counted()
    for _ in range(3):
        state = step(state)
        assert state.params.unsafe_buffer_pointer() == place
    assert counted() == 0


@pytest.mark.parametrize("donate", ["auto", "all"])
def test_a_state_that_was_loaded_is_compiled_for_once(counted: Any, donate: Any) -> None:
    """It is put on the device as it comes, in memory of its own, and taken over at once."""
    step = pytc.compile(lambda state: State(state.step + 1, long(state.params)), donate=donate)
    loaded = State(np.int32(3), np.linspace(0, 1, N, dtype=np.float32))

    expected, *_ = watched(jax.jit(step.__wrapped__), loaded, 4, counted)
    first, compiled, places = watched(step, loaded, 4, counted)
    assert compiled == [1, 0, 0, 0]
    assert len({*places}) == 1
    # Another time that one is loaded it is the same program, or one more.
    second, compiled, places = watched(step, loaded, 4, counted)
    assert sum(compiled) <= 1
    assert len({*places}) <= 2
    for result in (first, second):
        np.testing.assert_array_equal(result.params, expected.params)
        assert int(result.step) == 7
    np.testing.assert_array_equal(loaded.params, np.linspace(0, 1, N, dtype=np.float32))


def test_numpy_data_beside_the_state_stay_what_they_are(counted: Any) -> None:
    """A batch of the state's shape comes as NumPy data each time: one program, which takes over none."""
    step = pytc.compile(lambda state, batch: (long(state) + batch, batch * 0.5))
    batches = [np.full(N, k, np.float32) for k in range(4)]
    state, compiled = jnp.ones(N), []
    counted()
    for batch in batches:
        state, _ = step(state, batch)
        compiled.append(counted())
    assert compiled == [1, 0, 0, 0]
    np.testing.assert_array_equal(batches, np.arange(4.0)[:, None] + np.zeros(N))


def added_to(step: Any, state: Any, data: Any) -> Any:
    for _ in range(4):
        state, loss = step(state, data)
        data += 1
    return state, loss, data


def put_in_its_place(step: Any, state: Any, data: Any) -> Any:
    for _ in range(4):
        state, loss = step(state, data)
        data = data * 2
    return state, loss, data


def added_to_in_an_attribute(step: Any, state: Any, data: Any) -> Any:
    holder: Any = types.SimpleNamespace(state=state, data=data)
    for _ in range(4):
        holder.state, loss = step(holder.state, holder.data)
        holder.data += 1
    return holder.state, loss, holder.data


@pytest.mark.parametrize("loop", [added_to, put_in_its_place, added_to_in_an_attribute])
def test_numpy_data_that_something_else_is_stored_over_stay_what_they_are(loop: Any, counted: Any) -> None:
    """A counter, or positions, of the shape of a result."""

    def step(state: Any, data: Any) -> Any:
        return long(state) + data, data * 0.5

    data = np.ones(N, np.float32)
    expected = loop(jax.jit(step), jnp.ones(N), data.copy())
    counted()
    results = loop(pytc.compile(step), jnp.ones(N), data)
    assert counted() == 1
    jax.tree.map(np.testing.assert_array_equal, results, expected)


def read_from_a_tuple(step: Any, state: Any) -> Any:
    both = state, 0
    for _ in range(4):
        both = step(both[0]), 1
    return both[0]


def through_a_helper(step: Any, state: Any) -> Any:
    def advance(state: Any) -> Any:
        return step(state)

    for _ in range(4):
        state = advance(state)
    return state


def in_an_attribute(step: Any, state: Any) -> Any:
    class Holder:
        pass

    holder: Any = Holder()
    holder.state = state
    for _ in range(4):
        holder.state = step(holder.state)
    return holder.state


@pytest.mark.parametrize("caller", [read_from_a_tuple, through_a_helper, in_an_attribute], ids=lambda f: f.__name__)
def test_a_loaded_state_is_compiled_for_once_wherever_it_is(caller: Any, counted: Any) -> None:
    step = pytc.compile(lambda state: long(state))
    state = np.linspace(0, 1, N, dtype=np.float32)
    counted()
    caller(step, state)
    assert counted() == 1


def test_what_a_loaded_state_passes_on_is_handed_back_as_it_is() -> None:
    """Weights that are frozen: the program for the first call, too, has no copy of them."""
    step = pytc.compile(lambda state: State(state.step, long(state.params)))

    def run(state: Any) -> list[bool]:
        same = []
        for _ in range(4):
            frozen = state.step
            state = step(state)
            same.append(state.step is frozen)
        return same

    assert run(State(np.arange(5.0, dtype=np.float32), np.ones(N, np.float32))) == [False, True, True, True]
    assert run(State(jnp.arange(5.0), jnp.ones(N))) == [True] * 4


def aligned(values: Any) -> Any:
    """At an address from which JAX makes an array of NumPy's own memory, on a CPU."""
    values = np.asarray(values)
    room = np.empty(values.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    placed = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    placed[...] = values
    return placed


def test_a_loaded_state_is_never_in_numpys_own_memory() -> None:
    step = pytc.compile(lambda state: [long(x) for x in state], donate="require")
    one = aligned(np.linspace(0, 1, N, dtype=np.float32))
    state: Any = [one, one, aligned(one)]
    for _ in range(3):
        state = step(state)
    np.testing.assert_array_equal(one, np.linspace(0, 1, N, dtype=np.float32))
    np.testing.assert_array_equal(state[0], state[2])


@pytest.mark.parametrize("first", [np.timedelta64(3, "s"), np.datetime64(1, "s")], ids=str)
def test_a_numpy_scalar_that_jax_has_no_type_for_is_static(first: Any) -> None:
    step = pytc.compile(lambda state: state)
    state = first
    for _ in range(2):
        state = step(state)
        assert state == first


@pytest.mark.parametrize("first", [np.arange(3.0, dtype=">f4"), np.longdouble(2), np.array(["a"])], ids=str)
def test_numpy_data_that_jax_has_no_type_for_are_refused_by_name(first: Any) -> None:
    step = pytc.compile(lambda state: state)
    state = first
    with pytest.raises((TypeError, ValueError), match="`state`"):
        state = step(state)
    assert state is first


def test_numpy_data_that_options_place_are_placed_by_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """On several devices none has room for the whole. And where nothing is taken over, nothing need be."""
    put = []
    real = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda x, *args, **kwargs: put.append(x) or real(x, *args, **kwargs))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    state: Any = np.ones(N, np.float32)
    step = pytc.compile(lambda state: long(state), in_shardings=here)
    for _ in range(2):
        state = step(state)
    assert not [x for x in put if isinstance(x, np.ndarray)]
    state, step = np.ones(N, np.float32), pytc.compile(lambda state: long(state), donate="none")
    for _ in range(2):
        state = step(state)
    assert not [x for x in put if isinstance(x, np.ndarray)]
    state = np.ones(N, np.float32)
    beside = real(jnp.ones(N), jax.devices()[0])
    step = pytc.compile(lambda state, beside: long(state) + beside)
    for _ in range(2):
        state = step(state, beside)
    assert not [x for x in put if isinstance(x, np.ndarray)]


def test_numpy_data_that_come_back_each_time(counted: Any) -> None:
    """The result goes where the data came from, and becomes NumPy data there."""

    @pytc.compile
    def step(x: Any) -> Any:
        return long(x)

    expected: Any = np.linspace(0, 1, N, dtype=np.float32)
    x = expected
    compiled = []
    counted()
    for _ in range(5):
        x = step(x)
        x = np.asarray(x)
        compiled.append(counted())
    plain = jax.jit(step.__wrapped__)
    for _ in range(5):
        expected = np.asarray(plain(expected))
    np.testing.assert_array_equal(x, expected)
    assert sum(compiled) <= 2
    assert sum(compiled[2:]) == 0


def test_what_is_returned_as_it_is() -> None:
    """An array comes back as the same object, NumPy data as an array."""

    @pytc.compile
    def step(state: State) -> State:
        return State(state.step, long(state.params))

    for number in (np.int32(3), jnp.int32(3), np.int32(3), jnp.int32(3)):
        state = step(State(number, jnp.ones(N)))
        assert isinstance(state.step, jax.Array)
        assert (state.step is number) == isinstance(number, jax.Array)


class Loud(float):
    """A number whose value is asked for by code of its own."""

    asked: Any = None

    def __float__(self) -> float:
        if self.asked is not None:
            self.asked()
        return 1.0


def test_a_number_that_runs_code_when_it_is_passed() -> None:
    @pytc.compile
    def step(params: jax.Array, rate: Any) -> jax.Array:
        return long(params) * rate

    box = type("Box", (), {})()
    box.params = jnp.ones(N)
    seen: list[bool] = []
    for number in range(12):
        rate: Any = 1.0
        if number >= 8:
            rate = Loud(1.0)
            rate.asked = lambda: seen.append(box.params.is_deleted())
        box.params = step(box.params, rate)
    assert not any(seen)
    assert not box.params.is_deleted()


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, token: jax.lax.create_token(x),
        lambda x, token: (x + 1, jax.lax.create_token(x)),
        lambda x, token: (x + 1, jax.lax.after_all(token)),
        lambda x, token: (x + 1, token),
    ],
)
def test_tokens(fun):
    x, token = jnp.ones(3), jax.lax.create_token(1.0)
    f = pytc.compile(fun)
    for _ in range(3):
        expected, returned = jax.tree.leaves(jax.jit(fun)(x, token)), jax.tree.leaves(f(x, token))
        assert [*map(type, returned)] == [*map(type, expected)]
        assert [each.tolist() for each in returned if isinstance(each, jax.Array)] == [[2, 2, 2]] * (len(returned) - 1)
    assert f.lower(x, token).compile() is not None
