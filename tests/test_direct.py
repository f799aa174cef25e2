"""Calls that go straight to `jax.jit`: that they do, what they return, and what sends them the usual way."""

from __future__ import annotations

import dataclasses
import functools
import gc
import threading
import types
import weakref
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.calls import cache, direct, ways
from pytc.emit import EmittedWhole

pytestmark = [pytest.mark.usefixtures("_quickly_compiled"), pytest.mark.unfrozen]


class State(NamedTuple):
    params: Any
    count: Any


@pytest.fixture(name="straight")
def _straight():
    """How many calls went straight to `jax.jit`."""
    calls = []
    call_whole = EmittedWhole.call_whole

    def counted(self, args, kwargs, landed):
        calls.append(args)
        calls[-1] = None  # not a reference more
        call_whole(self, args, kwargs, landed)

    with mock.patch.object(EmittedWhole, "call_whole", counted):
        yield calls


def increment(tree):
    return jax.tree.map(lambda x: x + 1, tree)


def of_dicts():
    return {"b": jnp.zeros(3), "a": [jnp.ones((2, 2)), (jnp.zeros((), jnp.int32), None, {})]}


def of_named_tuples():
    return State({"w": jnp.ones(4)}, State(jnp.zeros(2), ()))


def of_one_array():
    return jnp.zeros(5)


def where(tree):
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)]


def run(step, state, times):
    """The state after so many steps, and in how many of them it stayed in place."""
    in_place = 0
    for _ in range(times):
        before = where(state)
        state = step(state)
        in_place += where(state) == before
    return state, in_place


def equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)
    return jax.tree.structure(one) == jax.tree.structure(other)


@pytest.mark.parametrize("make", [of_dicts, of_named_tuples, of_one_array])
def test_plain_trees_go_straight_and_stay_in_place(straight, make):
    state, in_place = run(pytc.compile(increment), make(), 10)
    assert in_place == 10
    assert len(straight) == 7
    assert equal(state, jax.tree.map(lambda x: x + 10, make()))


def test_arguments_by_name_and_others_that_live_on(straight):
    step = pytc.compile(lambda state, batch, *, scale: (state * scale + batch, state.sum()))

    def loop():
        state, batch = jnp.ones(3), jnp.arange(3.0)
        places = set()
        for _ in range(20):
            state, loss = step(state, batch, scale=0.5)
            places |= {state.unsafe_buffer_pointer()}
        return state, loss, batch, places

    state, loss, batch, places = loop()
    assert len(places) == 1
    assert len(straight) > 12  # of the others some look again whether `batch` is read later
    np.testing.assert_array_equal(batch, np.arange(3))
    wanted = np.ones(3)
    for _ in range(20):
        total, wanted = wanted.sum(), wanted / 2 + np.arange(3)
    np.testing.assert_array_equal(state, wanted)
    np.testing.assert_array_equal(loss, total)


def over_batches(step, state, data):
    for batch in data:
        state = step(state, batch)
    return state


def over_made_batches(step, state, data):
    for batch in data:
        doubled = jnp.asarray(batch) * 2
        state = step(state, doubled)
    return state


def over_temporaries(step, state, data):
    for batch in data:
        state = step(state, batch * 2)
    return state


def over_numbered_batches(step, state, data):
    for n, batch in enumerate(data):
        state = step(state, batch)
        if n % 5 == 4:
            state = jax.tree.map(lambda x: x + 0, state)
    return state


def in_an_attribute(step, state, data):
    box = types.SimpleNamespace(state=state)
    del state
    for batch in data:
        box.state = step(box.state, batch)
    return box.state


@pytest.mark.parametrize("made", [jnp.float32, np.float32])
@pytest.mark.parametrize(
    "loop", [over_batches, over_made_batches, over_temporaries, over_numbered_batches, in_an_attribute]
)
def test_a_training_loop_goes_straight(straight, loop, made):
    """Whatever becomes of the other arguments, dead variables and temporaries too."""
    step = pytc.compile(lambda state, batch: {name: x + batch for name, x in state.items()})
    data = [made(i) for i in range(20)]
    result = loop(step, {"w": jnp.ones(4), "b": jnp.ones(3)}, data)
    factor = 2 if loop in (over_made_batches, over_temporaries) else 1
    assert float(result["w"][0]) == 1 + factor * sum(range(20))
    # Not the first three calls, nor those with a state that no program has made, and those right behind.
    assert len(straight) >= (14 if loop is over_numbered_batches else 17)


@pytest.mark.parametrize("kept", [0, 2, 4, 24])
def test_a_loop_beside_another_goes_straight(straight, kept):
    """There may be any number of executions between the last step and the next one. The more have results that are
    kept, the more are remembered though nothing is left of their results."""
    step, other = pytc.compile(increment), pytc.compile(increment)
    _kept = [other(of_dicts()) for _ in range(kept)]
    straight.clear()
    mine, others, went = of_dicts(), of_dicts(), 0
    for _ in range(10):
        before = len(straight)
        for _ in range(20):
            mine = step(mine)
        went += len(straight) - before
        for _ in range(40):
            others = other(others)
    assert went > 190
    np.testing.assert_array_equal(mine["b"], np.full(3, 200))
    np.testing.assert_array_equal(others["b"], np.full(3, 400))


def test_named_by_keyword_and_taken_over(straight):
    step = pytc.compile(lambda *, state: increment(state))

    def loop():
        state = of_dicts()
        kept = 0
        for _ in range(8):
            before = where(state)
            state = step(state=state)
            kept += where(state) == before
        return kept

    assert loop() == 8
    assert len(straight) == 5


def test_whoever_holds_on_keeps(straight):
    step = pytc.compile(increment)

    def loop():
        state = of_dicts()
        history, best = [], None
        for n in range(12):
            if n % 4 == 3:
                best = state
            if n == 9:
                history.append(state["b"])
            state = step(state)
        return state, best, history

    state, best, (old,) = loop()
    np.testing.assert_array_equal(best["b"], np.full(3, 11))
    np.testing.assert_array_equal(old, np.full(3, 9))
    np.testing.assert_array_equal(state["b"], np.full(3, 12))
    assert straight


HOLDERS = {
    "a part of the tree": lambda state: state["a"],
    "a leaf": lambda state: state["a"][0],
    "a weak reference": lambda state: weakref.ref(state["b"]),
    "a finaliser": lambda state: weakref.finalize(state["b"], print),
    "an iterator": lambda state: iter(state["a"]),
    "a view of the items": lambda state: state.items(),
    "another array on its buffer": lambda state: jax.device_put(state["b"], state["b"].device),
    "its shards": lambda state: state["b"].addressable_shards,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_each_way_to_hold_on_keeps(holder, straight):
    step = pytc.compile(increment)

    def loop():
        state, held, copied = of_dicts(), [], []
        for n in range(8):
            if n in (4, 6):
                held.append(HOLDERS[holder](state))
            before = where(state)
            state = step(state)
            copied.append(where(state) != before)
        return copied, held

    copied, _ = loop()
    assert copied == [False] * 4 + [True, False, True, False]
    assert straight


def test_what_a_holder_reads_is_right():
    step = pytc.compile(increment)

    def loop():
        state = of_dicts()
        seen = []
        for _ in range(6):
            held = state["b"]
            state = step(state)
            seen.append(held)
        return seen

    for n, held in enumerate(loop()):
        np.testing.assert_array_equal(held, np.full(3, n))


def calls(step, arguments):
    return [step(*each) for each in arguments]


def test_whatever_comes_to_the_same_place(straight):
    """One call site, calls of every kind: shapes, dtypes, trees, NumPy, Python scalars, the same array twice."""
    traced = []

    def fun(x, y):
        traced.append(None)
        return jax.tree.map(lambda a: a * 2, (x, y))

    x, y = jnp.arange(3.0), {"p": jnp.ones(2), "q": jnp.ones(2)}
    other = {"q": jnp.ones(2), "p": jnp.ones(2)}  # in another order
    arguments = [(x, y)] * 4 + [
        *((x, each) for each in (other, y, other, {"p": x, "q": x}, {"p": x}, [x, x], y)),
        (np.arange(3.0, dtype=np.float32), y),
        (2.0, y),
        (x.astype(jnp.int32), y),
        (jnp.ones((3, 3)), y),
        (x, y),
        (None, y),
        ({"p": x}, {"p": x}),
        *[(x, y)] * 4,
    ]
    wanted = calls(jax.jit(fun), arguments)
    for one, two in zip(calls(pytc.compile(fun), arguments), wanted, strict=True):
        assert equal(one, two)
        assert [leaf.dtype for leaf in jax.tree.leaves(one)] == [leaf.dtype for leaf in jax.tree.leaves(two)]
        assert [leaf.weak_type for leaf in jax.tree.leaves(one)] == [leaf.weak_type for leaf in jax.tree.leaves(two)]
    assert straight


def test_static_leaves_and_moved_arguments_at_the_same_place(straight):
    step = pytc.compile(lambda x, how: x + 1 if how is None or how == "up" else x - 1)
    up, none, moved = (jnp.zeros(3), "up"), (jnp.zeros(3), None), (pytc.move(jnp.zeros(3)), None)
    again = [none] * 6
    results = calls(step, [*again, up, (jnp.zeros(3), "down"), none, moved, *again])
    assert [float(each[0]) for each in results] == [*[1] * 7, -1, *[1] * 8]
    assert straight


@dataclasses.dataclass(unsafe_hash=True)
class Config:
    """A configuration that can be changed, and tells so by its hash."""

    scale: float


def scaled(config, state, mode, *, rate):
    return {name: x * config.scale * (2 if mode == "up" else 1) + rate for name, x in state.items()}


def step_in_modes(step, configs, modes, rates):
    state = {"w": jnp.ones(4), "b": jnp.ones(3)}
    places = set()
    for config, mode, rate in zip(configs, modes, rates, strict=True):
        state = step(config, state, mode, rate=rate)
        places.add(state["w"].unsafe_buffer_pointer())
    return state, places


ALIKE = {
    "the same object": [Config(0.5)] * 12,
    "equal ones": [Config(0.5) for _ in range(12)],
}


@pytest.mark.parametrize("configs", ALIKE.values(), ids=ALIKE)
def test_static_arguments_go_straight(straight, configs):
    """By position and by name, named by an option or because they are no arrays; they do not get to `jax.jit`."""
    step = pytc.compile(scaled, static_argnums=0, static_argnames="rate")
    state, places = step_in_modes(step, configs, ["up"] * 12, [1] * 12)
    assert float(state["w"][0]) == 13
    assert len(places) == 1
    assert len(straight) >= 9  # one more where the program was compiled by the test before


def test_other_static_arguments_at_the_same_place(straight):
    step = pytc.compile(scaled, static_argnums=0, static_argnames="rate")
    configs = [Config(1.0)] * 8 + [Config(2.0), Config(1.0), Config(True), Config(1.0)]
    modes = ["down"] * 9 + ["up", "down", "down"]
    rates = [0] * 8 + [0, 0, 0, 1.5]
    state, _ = step_in_modes(step, configs, modes, rates)
    assert float(state["w"][0]) == 1 * 2 * 2 * 1 + 1.5
    assert straight


@pytest.mark.parametrize("options", [{}, {"static_argnums": 0}])
@pytest.mark.parametrize("calls", [1, 6])
def test_a_static_argument_that_changes_and_tells_so(options, calls):
    step = pytc.compile(lambda config, x: x * config.scale, **options)
    config, x = Config(1.0), jnp.ones(2)

    def call(config):
        return float(step(config, x)[0])

    assert [call(config) for _ in range(calls)] == [1.0] * calls
    config.scale = 2.0
    assert [call(each) for each in (config, Config(2.0), Config(1.0), config, Config(3.0))] == [2, 2, 1, 2, 3]


def test_static_numbers_are_told_by_type_and_by_bits(straight):
    """1, True and 1.0 are equal, and so are 0.0 and -0.0."""
    step = pytc.compile(
        lambda x, n: x + (jnp.float32(1) / jnp.float32(n) if n == 0 else isinstance(n, bool)), static_argnums=1
    )
    x = jnp.zeros(2)

    def call(n):
        return float(step(x, n)[0])

    assert [call(n) for n in [1] * 6 + [True, 1, 1.0] + [0.0] * 6 + [-0.0, 0.0]] == (
        [0.0] * 6 + [1, 0, 0] + [float("inf")] * 6 + [-float("inf"), float("inf")]
    )
    assert straight


def test_more_arguments_than_before_are_not_overlooked(straight):
    step = pytc.compile(lambda x, mode="same", **more: x + sum(more.values()) + (mode == "up"), static_argnames="mode")
    x = jnp.zeros(2)

    def call(**arguments):
        return float(step(x, **arguments)[0])

    same = [{"mode": "same"}] * 6
    others = [{"mode": "same", "more": 2.0}, {}, {"more": 2.0}, {"mode": "up", "other": 3.0}]
    assert [call(**each) for each in [*same, *others, *same]] == [0] * 6 + [2, 0, 2, 4] + [0] * 6
    assert straight


class Model:
    """An object whose methods take it as a static argument."""

    def __init__(self):
        self.state = {"w": jnp.zeros(4)}

    @functools.partial(pytc.compile, static_argnums=0)
    def step(self, state, batch):
        return {name: x + batch for name, x in state.items()}

    def train(self, batches):
        places = set()
        for batch in batches:
            self.state = self.step(self.state, batch)
            places.add(self.state["w"].unsafe_buffer_pointer())
        return places


def test_a_method_of_a_static_object_goes_straight(straight):
    model = Model()
    assert len(model.train([np.float32(k) for k in range(12)])) == 1
    assert float(model.state["w"][0]) == sum(range(12))
    assert len(straight) == 9
    best = model.state
    model.train([np.float32(1)] * 4)
    assert float(best["w"][0]) == sum(range(12))
    assert float(model.state["w"][0]) == sum(range(12)) + 4


def test_a_static_argument_that_cannot_be_compared_is_refused_as_ever(straight):
    class Odd:
        comparable = True

        def __hash__(self):
            return 1

        def __eq__(self, other):
            if not self.comparable:
                raise OSError("not now")
            return True

    step = pytc.compile(lambda x, odd: x + 1, static_argnums=1)

    def loop(odd):
        x = jnp.zeros(2)
        for _ in range(6):
            x = step(x, odd)
        return x

    assert float(loop(Odd())[0]) == 6
    assert straight
    Odd.comparable = False
    with pytest.raises(ValueError, match="comparing two of type Odd raised OSError"):
        loop(Odd())


def test_a_deleted_argument_beside_a_static_one_is_named():
    step = pytc.compile(lambda how, state: {k: x + 1 for k, x in state.items()}, static_argnums=0, donate="all")
    states = [{"w": jnp.ones(2), "n": jnp.zeros(3)} for _ in range(6)]
    states[5]["n"].delete()
    with pytest.raises(RuntimeError, match=r"`state\['n'\]` was deleted before this call"):
        calls(step, [(("a", ("b", "c")), state) for state in states])


def test_the_same_array_in_two_arguments_is_one_input():
    seen = []

    def fun(x, y):
        seen.append(x is y)
        return x + 1, y * 2

    step = pytc.compile(fun)
    x, y = jnp.zeros(2), jnp.zeros(2)
    for one, two in calls(step, [(x, y), (x, y), (x, y), (x, x), (x, y), (y, y)]):
        assert equal((one, two), (jnp.ones(2), jnp.zeros(2)))
    assert seen == [False, True]


def test_contexts_and_transformations_at_the_same_place():
    step = pytc.compile(lambda x: {"y": x["x"] * 2.5})

    def call(x):
        return step({"x": x})["y"]

    x = jnp.arange(3)
    for _ in range(3):
        assert call(x).dtype == jnp.float32
    with jax.enable_x64(True):
        assert call(x).dtype == jax.jit(lambda x: x * 2.5)(x).dtype
    np.testing.assert_array_equal(jax.vmap(call)(jnp.ones((2, 3))), np.full((2, 3), 2.5))
    assert jax.grad(call)(1.0) == 2.5
    with jax.disable_jit():
        assert equal(call(x), jnp.arange(3) * 2.5)
    assert equal(call(x), jnp.arange(3) * 2.5)


def test_a_deleted_argument_is_named():
    step = pytc.compile(lambda state: {"w": state["w"] + 1, "n": state["n"] + 1}, donate="all")
    states = [{"w": jnp.ones(2), "n": jnp.zeros(3)} for _ in range(4)]
    states[3]["n"].delete()
    with pytest.raises(RuntimeError, match=r"`state\['n'\]` was deleted before this call"):
        calls(step, [(state,) for state in states])


def test_where_two_contexts_take_turns_nothing_is_learnt_anew(straight):
    step, state, learnt = pytc.compile(increment), of_dicts(), []
    of = direct.Direct.of

    def counted(*arguments):
        learnt.append(None)
        return of(*arguments)

    def both(state, times):
        for k in range(2 * times):
            with jax.default_matmul_precision("highest" if k % 2 else "default"):
                state = step(state)
        return state

    with mock.patch.object(direct.Direct, "of", counted):
        state = both(state, 20)
        learnt.clear()
        straight.clear()
        state = both(state, 20)
    assert len(straight) == 39  # not the first, whose state is held here
    assert not learnt
    equal(state, jax.tree.map(lambda x: x + 80, of_dicts()))


def add(state, x, more=None):
    return {name: leaf + sum(map(jnp.sum, jax.tree.leaves((x, more)))) for name, leaf in state.items()}


def add_by_name(state, *, x):
    return add(state, {"x": x})


def add_mode(state, x, mode):
    return {name: leaf + (jnp.sum(x) if mode == "sum" or mode == 1 else jnp.max(x)) for name, leaf in state.items()}


TURNS = {
    "a leaf in a dictionary": (add, [((), {"x": {"x": jnp.ones(n)}}) for n in (1, 2, 3)]),
    "by position": (add, [(({"x": [jnp.ones(n)], "y": None},), {}) for n in (1, 2, 3)]),
    "an argument by name": (add_by_name, [((), {"x": jnp.ones(n)}) for n in (1, 2, 3)]),
    "the type": (add_by_name, [((), {"x": jnp.ones(2, kind)}) for kind in (jnp.float32, jnp.int32, bool)]),
    "shape and type": (
        add_by_name,
        [((), {"x": jnp.ones(n, kind)}) for kind, n in [(jnp.float32, 2), (jnp.int32, 2), (jnp.int32, 3)]],
    ),
    "the trees": (add, [((tree,), {}) for tree in ({"x": jnp.ones(2)}, {"y": jnp.ones(2)}, [jnp.ones(2)], None)]),
    "one that may be missing": (add, [((jnp.ones(2), each), {}) for each in (None, jnp.ones(2), (jnp.ones(2), None))]),
    "two leaves": (add, [(({"x": jnp.ones(n), "y": jnp.ones(m)},), {}) for n, m in [(1, 1), (2, 1), (1, 2), (2, 2)]]),
    "a static argument": (add_mode, [((jnp.ones(2),), {"mode": mode}) for mode in ("sum", "max", None, 1, True, 1.0)]),
}


@pytest.mark.parametrize("turns", TURNS)
def test_signatures_that_take_turns_at_one_place_go_straight(straight, turns):
    """Once they are told apart: `jax.jit` has to refuse few calls, each of which takes milliseconds."""
    fun, others = TURNS[turns]
    static = {"static_argnames": "mode"} if fun is add_mode else {}
    step, by_jit = pytc.compile(fun, **static), jax.jit(fun, **static)
    refused, call_whole = [], EmittedWhole.call_whole

    def counted(self, args, kwargs, landed):
        before = len(landed)
        try:
            call_whole(self, args, kwargs, landed)
        finally:
            refused.extend([None] * (len(landed) == before))

    def both(state, wanted, times):
        in_place = 0
        for _ in range(times):
            for args, kwargs in others:
                before = where(state)
                state = step(state, *args, **kwargs)
                in_place += where(state) == before
                wanted = by_jit(wanted, *args, **kwargs)
        return state, wanted, in_place

    with mock.patch.object(EmittedWhole, "call_whole", counted):
        state, wanted, _ = both(*[{"w": jnp.ones(4), "b": jnp.ones(3)} for _ in range(2)], 8)
        assert len(refused) <= 2 + len(others)
        refused.clear()
        straight.clear()
        state, wanted, in_place = both(state, wanted, 6)
    assert equal(state, wanted)
    assert in_place == len(straight) == 6 * len(others) - 1  # not the first, whose state is held here
    assert not refused


def test_a_last_batch_that_is_shorter_goes_straight_too(straight):
    step = pytc.compile(lambda state, x: state + x.sum())
    batches = [jnp.ones(4)] * 9 + [jnp.ones(2)]

    def epoch(state):
        for batch in batches:
            state = step(state, batch)
        return state

    epoch(epoch(epoch(jnp.zeros(3))))
    straight.clear()
    assert float(epoch(jnp.zeros(3))[0]) == 38
    assert len(straight) == 9  # not the first, whose state no program has made


def test_only_so_many_signatures_go_straight(straight, monkeypatch):
    monkeypatch.setattr(ways, "MOST_TURNS", 4)
    step, arrays = pytc.compile(lambda x: x * 2), [(jnp.ones(n),) for n in range(1, 9)]
    for _ in range(10):
        assert equal(calls(step, arrays), [x * 2 for (x,) in arrays])
    straight.clear()
    calls(step, arrays)
    assert len(straight) == 4
    (turns,) = step.__pytc__.directly.values()
    assert len([*turns]) == 4


class Odd:
    """An argument in place of a tree that the program was for."""

    def __getitem__(self, key):
        raise OSError("nobody is to ask")


def test_what_is_asked_of_a_call_need_not_be_there(straight):
    step = pytc.compile(lambda x, n=None: jax.tree.map(lambda leaf: leaf * 2, x))
    both = [[{"x": jnp.ones(2)}], [{"x": jnp.ones(3)}]]
    calls(step, both * 12)
    assert len(straight) >= 8
    others = [{"y": jnp.ones(2)}, [jnp.ones(2)], jnp.ones(2), {}, None, (), np.ones(2), {"x": 1.0}, {"x": {"x": 1.0}}]
    assert equal(
        calls(step, [*[[each] for each in others], *both]),
        jax.tree.map(lambda x: x * 2, [*others, *[x for (x,) in both]]),
    )
    with pytest.raises(TypeError, match="Odd"):
        step(Odd())
    with pytest.raises(TypeError, match="missing"):
        step()


def test_a_place_that_never_fits_stops_trying(straight, monkeypatch):
    monkeypatch.setattr(ways, "MOST_QUESTIONS", 0)
    step = pytc.compile(lambda x: x * 2)
    both = [(jnp.ones(2),), (jnp.ones(3),)]
    calls(step, both * 50)
    assert len(straight) < 120
    before = len(straight)
    calls(step, both * 50)
    assert len(straight) - before <= 100
    directly = step.__pytc__.directly
    assert not directly


def test_a_place_that_cannot_go_straight_is_not_asked_for_ever(straight):
    """An array is passed twice, which the straight way cannot tell from two."""
    step = pytc.compile(lambda a, b: a + b, share=False)
    x = jnp.ones(3)
    with mock.patch.object(direct.Direct, "of", return_value=None) as of:
        for _ in range(30):
            step(x, x)
    assert of.call_count == ways.MOST_MISSES
    assert not straight


def test_places_of_code_made_anew_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(ways, "MOST_SITES", 8)
    step = pytc.compile(lambda x: x * 2)
    for _ in range(20):
        exec("for _ in range(3): y = step(x)", {"step": step, "x": jnp.ones(2)})
    assert 0 < len(step.__pytc__.directly) <= 8


def test_code_that_has_called_is_not_kept(straight):
    """Cells of notebooks are compiled anew each time that they are run."""
    step, codes = pytc.compile(lambda x: x * 2), []
    step(jnp.ones(2))  # JAX keeps the code from which it was traced
    for n in range(6):
        code = compile("for _ in range(4): x = step(x)", "cell", "exec").replace(co_name=f"cell{n}")
        exec(code, {"step": step, "x": jnp.ones(2)})
        codes.append(weakref.ref(code))
        del code
    gc.collect()
    assert [code() for code in codes] == [None] * 6
    assert len(straight) >= 6
    assert "cell:1" in {site.where for site in pytc.explain(step).sites}


def test_code_in_the_place_of_code_that_is_gone(straight):
    """What was found out about the old code is not believed of new code that has its id: there `x` is dead after the
    call, and here it is read again."""
    step, run = pytc.compile(lambda x: x + 1), "def run(x):\n for _ in range(5):\n  x, y = step(x), {y}\n return y"
    dead, read = {"step": step}, {"step": step}
    exec(run.format(y="0"), dead)
    dead["run"](jnp.zeros(3))
    exec(run.format(y="x"), read)
    code = read["run"].__code__
    for signature in step.__pytc__.signatures():
        for table in (step.__pytc__.directly, signature.sites):
            ((_, lasti),) = table
            table[id(code), lasti] = table.pop((id(dead["run"].__code__), lasti))
        signature.sites[id(code), lasti].place = id(code), lasti
    del dead, table
    assert straight
    assert float(read["run"](jnp.zeros(3))[0]) == 4
    (site,) = pytc.explain(step).sites
    assert site.calls == 5


@pytest.mark.usefixtures("_switching_often")
@pytest.mark.parametrize("_", range(3))
def test_threads_share_a_place(_):
    """With first calls, second looks at the place, and other plans for it, all at once."""
    step = pytc.compile(increment)
    wrong = []

    def work():
        state = of_dicts()
        for n in range(200):
            old = state["b"] if n % 3 == 0 else None
            state = step(state)
            if old is not None and float(old[0]) != n:
                wrong.append(n)
        if float(state["b"][0]) != 200:
            wrong.append(-1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_python_scalar_where_an_array_of_weak_type_was():
    """Static ones are no arrays."""
    step = pytc.compile(lambda x, y: x * (2 if isinstance(y, jax.Array) else 3), python_scalars="static")

    def run(ys):
        x = jnp.ones(4)
        for y in ys:
            x = step(x, y)
        return x

    one = jnp.asarray(1)
    assert one.weak_type
    np.testing.assert_array_equal(run([one] * 6 + [1] * 2), np.full(4, 2**6 * 3**2))


@jax.tree_util.register_pytree_node_class
class Making:
    """A node that makes its children as it is taken apart."""

    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        a, b = self.children
        if isinstance(a, np.ndarray):
            made = jnp.asarray(a)
            return (made, made if b is a else jnp.asarray(b)), None
        return (a, b), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_an_array_that_is_there_twice_and_in_no_container():
    step = pytc.compile(lambda node: Making(node.children[0] + 1, node.children[1] * 2))
    one = np.ones(100, np.float32)
    for other in (one + 0, one + 0, one + 0, one + 0, one, one, one + 0):
        result = step(Making(one, other))
        np.testing.assert_array_equal(result.children[0], one + 1)
        np.testing.assert_array_equal(result.children[1], other * 2)


@jax.tree_util.register_pytree_node_class
class MakingKeys(Making):
    """One that makes a key, too."""

    def tree_flatten(self):
        return (*super().tree_flatten()[0], jax.random.key(7)), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return children  # the function gets them as they are


def test_keys_beside_an_array_that_is_there_twice_and_in_no_container():
    """They are given to the program as their bits, and are keys again for the next one that is tried."""

    @pytc.compile
    def step(node):
        a, b, key = node
        return Making(a + 1, b * 2), jax.random.split(key)

    one = np.ones(100, np.float32)
    for other in (one + 0, one + 0, one + 0, one + 0, one, one, one + 0):
        result, keys = step(MakingKeys(one, other))
        np.testing.assert_array_equal(result.children[0], one + 1)
        np.testing.assert_array_equal(result.children[1], other * 2)
        assert (keys == jax.random.split(jax.random.key(7))).all()


# -- the state in a container that is dead as well --------------------------------------------------------------------


def next_pair(p, o):
    return jax.tree.map(lambda x: x + 1, p), jax.tree.map(lambda x: x * 2, o)


def start():
    return {"w": jnp.zeros(9)}, [jnp.ones(3), jnp.ones(2)]


def starred(f, times):
    state = start()
    for _ in range(times):
        state = f(*state)
    return state


def unpacked_before(f, times):
    state = start()
    for _ in range(times):
        p, o = state
        state = f(p, o)
    return state


def unpacked_behind(f, times):
    p, o = start()
    for _ in range(times):
        out = f(p, o)
        p, o = out
    return p, o


def indexed(f, times):
    state = start()
    for _ in range(times):
        state = f(state[0], state[1])
    return state


def in_a_named_tuple(f, times):
    state = State(*start())
    for _ in range(times):
        state = State(*f(state.params, state.count))
    return tuple(state)


def in_a_dictionary(f, times):
    state = dict(zip("po", start(), strict=True))
    for _ in range(times):
        p, o = f(**state)
        state = {"p": p, "o": o}
    return state["p"], state["o"]


def in_a_helper(f, times):
    def one(state):
        p, o = state
        p, o = f(p, o)
        return p, o

    state = start()
    for _ in range(times):
        state = one(state)
    return state


def in_a_decorator(f, times):
    def timed(*args, **kwargs):
        return f(*args, **kwargs)

    p, o = start()
    for _ in range(times):
        p, o = timed(p, o=o)
    return p, o


def with_a_loss(f, times):
    p, o = start()
    for _ in range(times):
        out = {"state": f(p, o), "loss": 0}
        p, o = out["state"]
    return p, o


@pytest.mark.parametrize(
    "loop",
    [
        starred,
        unpacked_before,
        unpacked_behind,
        indexed,
        in_a_named_tuple,
        in_a_dictionary,
        in_a_helper,
        in_a_decorator,
        with_a_loss,
    ],
)
def test_state_in_a_dead_container(loop, straight):
    step = pytc.compile(next_pair)
    loop(step, 8)
    before = len(straight)
    assert equal(loop(step, 20), loop(jax.jit(next_pair), 20))
    assert len(straight) - before >= 17
    assert sum(site.copied_calls for site in step.explain().sites) == 0


def test_state_in_a_container_that_is_read_again():
    step = pytc.compile(next_pair)
    seen = []

    def loop(f, times):
        state = start()
        for k in range(times):
            last = state
            state = f(*state)
            if k % 5 == 4:
                seen.append(jax.tree.map(np.asarray, last))
        return state

    assert equal(loop(step, 20), loop(jax.jit(next_pair), 20))
    assert len(seen) == 8
    for ours, theirs in zip(seen[:4], seen[4:], strict=True):
        assert equal(ours, theirs)


class Run:
    def __init__(self, state):
        self.state = state


class Finalised(Run):
    def __del__(self):
        LAST[:] = [self.state]


LAST = []
WAYS_TO_AN_OBJECT = {
    "itself": lambda run: lambda: run.state,
    "its attributes": lambda run: functools.partial(dict.__getitem__, vars(run), "state"),
    "a method": lambda run: functools.partial(run.__getattribute__, "state"),
    "a list in it": lambda run: run.state.__iter__().__next__,
}


def object_that_somebody_gets(step, way, kind=Run, calls=8):
    run, got = kind([jnp.zeros(40), jnp.ones(30)]), []
    for k in range(calls):
        if k == calls - 2:
            got.append(way(run))
        run = kind(step(run.state))
    return [get() for get in got], run.state


@pytest.mark.parametrize("way", WAYS_TO_AN_OBJECT.values(), ids=WAYS_TO_AN_OBJECT)
def test_a_dead_object_that_somebody_gets(way):
    grow = lambda state: [x + 1 for x in state]  # noqa: E731
    step = pytc.compile(grow)
    for _ in range(3):
        assert equal(object_that_somebody_gets(step, way), object_that_somebody_gets(jax.jit(grow), way))


def test_a_dead_object_that_is_referred_to_weakly():
    grow = lambda state: [x + 1 for x in state]  # noqa: E731
    step = pytc.compile(grow)

    def run(step):
        run, seen = Run([jnp.zeros(40), jnp.ones(30)]), []
        for k in range(8):
            reference = weakref.ref(run) if k == 6 else None
            new = step(run.state)
            seen += [x + 0 for x in reference().state] if reference is not None and reference() is not None else []
            run = Run(new)
            del new
        return seen, run.state

    for _ in range(3):
        assert equal(run(step), run(jax.jit(grow)))


def test_a_dead_object_that_reads_as_it_dies():
    grow = lambda state: [x + 1 for x in state]  # noqa: E731
    step = pytc.compile(grow)
    for _ in range(3):
        got = object_that_somebody_gets(step, lambda run: list, Finalised), [x + 0 for x in LAST[0]]
        expected = object_that_somebody_gets(jax.jit(grow), lambda run: list, Finalised), [x + 0 for x in LAST[0]]
        assert equal(got, expected)


def test_what_only_a_dead_object_has_goes_straight():
    step = pytc.compile(lambda state: [x + 1 for x in state])

    def places():
        run = Run([jnp.zeros(40), jnp.ones(30)])
        for _ in range(8):
            yield run.state[0].unsafe_buffer_pointer()
            run = Run(step(run.state))

    assert len({*places()}) <= 2
    assert len(step.__pytc__.directly) == 1


@pytest.mark.parametrize("donate", ["auto", "none"])
def test_trees_that_take_turns_at_one_place(donate):
    """Each finds its own program, also where nothing is proven before the call."""
    total = lambda tree: sum(map(jnp.sum, jax.tree.leaves(tree)))  # noqa: E731
    step = pytc.compile(total, donate=donate)
    x, y = jnp.arange(4.0), jnp.ones((2, 2))
    trees = [{"a": x, "b": y}, [x, y], {"a": x, "c": y}, (x, y), {"a": [x, y]}, [y, x], {"a": x, "b": y, "c": None}]
    for order in ([0] * 4 + [1] * 4 + [0, 1] * 4, [*range(7)] * 5):
        for n in order:
            assert step(trees[n]) == 10


@pytest.mark.parametrize("donate", ["auto", "none"])
def test_more_places_than_a_program_remembers(donate, monkeypatch):
    """As code has that is made anew again and again."""
    most = 200
    monkeypatch.setattr(cache, "MOST_SITES", most)
    monkeypatch.setattr(ways, "MOST_SITES", most)
    step, x, reused = pytc.compile(lambda x: x + 1, donate=donate), jnp.zeros(8), 0
    code = compile("x = step(x)", "cell", "exec")
    for n in range(most + 40):
        space = {"step": step, "x": x}
        address, x = x.unsafe_buffer_pointer(), None
        exec(code.replace(co_name=f"cell{n}"), space)
        x = space.pop("x")
        reused += x.unsafe_buffer_pointer() == address
    assert x.tolist() == [most + 40] * 8
    assert reused >= (most if donate == "auto" else 0)
    assert reused == 0 or donate == "auto"
