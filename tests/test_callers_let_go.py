"""Whole programs that let go of the old state: its memory is reused from the second call on at the latest.

So once everything is compiled, the last state lies where the first one lay. The number of calls is odd, so that two
places in turn would not do.

The callers have no asserts: pytest's look into `locals()`, which rightly stops every donation.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import threading
import time
import types
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import FrozenDict
from flax.training.train_state import TrainState

import pytc
from tests.callers import MADE, STEPS, addresses, body, init, of_two, with_loss
from tests.ownership.test_fields import Named as Row
from tests.ownership.test_fields import Plain, Record, Slim, Struct

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


class Trainer:
    def __init__(self, step):
        self.step, self.state = step, init()

    def train_step(self, batch):
        self.state = self.step(self.state, batch)


LET_GO = []


def lets_go(caller=None, *, of=body):
    """Test this caller with the function `of` compiled."""
    if caller is None:
        return lambda caller: lets_go(caller, of=of)
    LET_GO.append(pytest.param(caller, of, id=caller.__name__))
    return caller


@lets_go
def a_local(step):
    state = init()
    for i in range(STEPS):
        state = step(state, float(i))
    return state


@lets_go
def keywords(step):
    state = init()
    for i in range(STEPS):
        state = step(batch=float(i), state=state)
    return state


@lets_go
def attribute_of_an_object(step):
    trainer = Trainer(step)
    for i in range(STEPS):
        trainer.train_step(float(i))
    return trainer.state


@lets_go
def item_of_a_dictionary(step):
    run = {"state": init()}
    for i in range(STEPS):
        run["state"] = step(run["state"], float(i))
    return run["state"]


class Named:
    def __init__(self, state, other):
        self.state, self.other = state, other


@lets_go
def named_by_keys_and_keywords(step):
    """Neither is evaluated by anyone."""
    run = {"state": init()}
    for i in range(STEPS):
        state = run["state"]
        run["state"] = None
        new = step(state, float(i))
        run["state"] = new
        Named(state=i, other={"state": i, "i": i})
    return run["state"]


@lets_go
def through_a_helper(step):
    def helper(state, batch):
        return step(state, batch)

    state = init()
    for i in range(STEPS):
        state = helper(state, float(i))
    return state


@lets_go
def fresh_temporary(step):
    state = init()
    for i in range(STEPS):
        state = step(step(state, float(i)), 0.0)
    return state


@lets_go
def with_a_handler_that_does_not_read(step):
    state = init()
    for i in range(STEPS):
        try:
            state = step(state, float(i))
        except ValueError:
            return None
    return state


@lets_go
def in_a_generator(step):
    def run():
        state = init()
        for i in range(STEPS):
            state = step(state, float(i))
            yield None
        yield state

    return list(run())[-1]


@lets_go
def a_tuple_that_is_unpacked(step):
    state = init()
    for i in range(STEPS):
        pair = (state, float(i))
        del state
        state = step(*pair)
    return state


@lets_go
def a_list_that_is_unpacked(step):
    state = init()
    for i in range(STEPS):
        state = step(*[state], *[float(i)])
    return state


@lets_go
def keywords_that_are_unpacked(step):
    state = init()
    for i in range(STEPS):
        given = {"state": state, "batch": float(i)}
        del state
        state = step(**given)
        del given
    return state


@lets_go(of=with_loss)
def state_and_loss(step):
    state, losses = init(), []
    for i in range(STEPS):
        state, loss = step(state, float(i))
        losses.append(float(loss))
    return state


@lets_go(of=of_two)
def params_and_opt_state_and_loss(step):
    params, opt_state = init(), init()
    for i in range(STEPS):
        params, opt_state, loss = step(params, opt_state, float(i))
    loss.block_until_ready()
    return params, opt_state


@lets_go
def never_read_again(step):
    state = init()
    for i in range(STEPS):
        new = step(state, float(i))
        state = new
    return state


@lets_go
def deleted(step):
    state = init()
    for i in range(STEPS):
        new = step(state, float(i))
        del state
        state = new
    return state


@lets_go
def overwritten_on_every_path(step):
    state = init()
    for i in range(STEPS):
        new = step(state, float(i))
        if i % 2:
            state = new
        else:
            state, _ = dict(new), i
        del new
    return state


@lets_go
def a_while_loop(step):
    state, i = init(), 0
    while True:
        i += 1
        if i == 2:
            continue
        state = step(state, float(i))
        if i > STEPS:
            break
    else:
        return None
    return state


@lets_go
def loops_to_their_end(step):
    state, i = init(), 0
    while i < STEPS - 3:
        state = step(state, 1.0)
        i += 1
    else:
        state = step(state, 2.0)
    for _ in range(1):
        state = step(state, 1.0)
    else:
        state = step(state, 2.0)
    return state


@lets_go
def loops_that_are_left(step):
    state = init()
    for _ in range(STEPS):
        for i in range(STEPS):
            if i == 1:
                break
            state = step(state, float(i))
        else:
            state = None
    return state


def progress(values):
    """What tqdm does to the data."""
    for value in values:
        yield value
        time.monotonic()


class Progress:
    """The same as an object."""

    def __init__(self, values):
        self.values = values

    def __iter__(self):
        return progress(self.values)

    def set_postfix(self, **told):
        self.told = told


@lets_go
def progress_bar(step):
    state = init()
    for i, batch in enumerate(progress([float(i) for i in range(STEPS)])):
        state = step(state, batch + i)
    return state


@lets_go(of=with_loss)
def progress_bar_that_is_told_the_loss(step):
    bar, state = Progress(zip(range(STEPS), range(STEPS), strict=True)), init()
    for i, (batch, _) in enumerate(bar):
        state, loss = step(state, float(batch + i))
        bar.set_postfix(loss=float(loss))
    return state


@lets_go
def every_state_of_a_list(step):
    states = [init()]
    for batch in range(STEPS):
        for i, state in enumerate(states):
            states[i] = step(state, float(batch))
    return states


@lets_go
def every_state_of_a_dictionary(step):
    states = {"a": init()}
    for batch in range(STEPS):
        for name, state in states.items():
            states[name] = step(state, float(batch))
    return states


@lets_go
def a_comprehension(step):
    states = [init()]
    for batch in range(STEPS):
        states = [step(state, float(batch)) for state in states]
    return states


@lets_go
def a_comprehension_over_items(step):
    states = {"a": init()}
    for batch in range(STEPS):
        states = {name: step(state, float(batch)) for name, state in states.items()}
    return states


@lets_go
def a_comprehension_with_each_its_batch(step):
    states = [init()]
    for batch in range(STEPS):
        states = [step(state, own) for state, own in zip(states, [float(batch)], strict=True)]
    return states


@lets_go(of=of_two)
def several_attributes(step):
    run = types.SimpleNamespace(a=init(), b=init())
    for i in range(STEPS):
        run.a, run.b, run.loss = step(run.a, run.b, float(i))
    return run.a, run.b


@lets_go(of=of_two)
def several_items(step):
    run = {"a": init(), "b": init()}
    for i in range(STEPS):
        run["a"], run["b"], loss = step(run["a"], run["b"], float(i))
        run["loss"] = float(loss)
    return run["a"], run["b"]


@lets_go
def attribute_of_a_class_with_slots(step):
    class Run:
        __slots__ = ("state",)

    run = Run()
    run.state = init()
    for i in range(STEPS):
        run.state = step(run.state, float(i))
    return run.state


@lets_go
def item_of_a_list(step):
    run = [init()]
    for i in range(STEPS):
        run[0] = step(run[0], float(i))
    return run[0]


@dataclasses.dataclass
class Run:
    state: object


class Pair(NamedTuple):
    w: jax.Array
    n: jax.Array


class Held(NamedTuple):
    run: object
    epoch: int = 0


@lets_go
def field_of_a_dataclass(step):
    run = Run(init())
    for i in range(STEPS):
        run.state = step(run.state, float(i))
    return run.state


@lets_go
def a_named_tuple_in_a_field(step):
    run = Run(Pair(**init()))
    for i in range(STEPS):
        run.state = step(run.state, float(i))
    return run.state


@lets_go
def a_field_of_what_is_in_a_dictionary_and_a_list(step):
    runs = {"run": [Run(init())]}
    for i in range(STEPS):
        runs["run"][0].state = step(runs["run"][0].state, float(i))
    return runs["run"][0].state


@lets_go
def a_field_of_what_is_never_read_again(step):
    run = Run(init())
    for i in range(STEPS):
        new = step(run.state, float(i))
        run = Run(new)
        del new
    return run.state


@lets_go
def a_field_of_what_is_made_anew(step):
    run = Run(init())
    for i in range(STEPS):
        run = Run(step(run.state, float(i)))
    return run.state


@lets_go
def a_field_of_a_named_tuple_that_is_made_anew(step):
    held = Held(init())
    for i in range(STEPS):
        held = Held(epoch=held.epoch + 1, run=step(held.run, float(i)))
    return held.run


@lets_go
def an_item_of_a_field_of_a_named_tuple(step):
    holder = types.SimpleNamespace(held=Held({"state": init()}))
    for i in range(STEPS):
        holder.held.run["state"] = step(holder.held.run["state"], float(i))
    return holder.held.run["state"]


@lets_go
def a_field_of_what_is_in_a_tuple(step):
    runs = (Run(init()), Run(None))
    for i in range(STEPS):
        runs[0].state = step(runs[0].state, float(i))
    return runs[0].state


@lets_go
def global_of_a_script(step):
    names = {"step": step, "state": init(), "STEPS": STEPS, "__name__": "__main__"}
    exec(compile("for i in range(STEPS):\n    state = step(state, float(i))", "train.py", "exec"), names)
    return names["state"]


@lets_go(of=of_two)
def globals_of_a_script(step):
    names = {"step": step, "p": init(), "o": init(), "STEPS": STEPS, "__name__": "__main__"}
    exec(compile("for i in range(STEPS):\n    p, o, loss = step(p, o, float(i))", "train.py", "exec"), names)
    return names["p"], names["o"]


@lets_go
def global_that_a_function_declares(step):
    names = {"step": step, "state": init(), "STEPS": STEPS, "__name__": "__main__"}
    script = """def train():
        global state
        for i in range(STEPS):
            state = step(state, float(i))
    """
    exec(compile(script + "\ntrain()", "train.py", "exec"), names)
    return names["state"]


@lets_go
def mentioned_in_a_generator_expression(step):
    state = init()
    for i in range(STEPS):
        if sum(float(state[x][0]) for x in "ww") < 0:
            break
        new = step(state, float(i))
        float(i)
        state = new
        del new
    return state


@lets_go
def mentioned_in_a_comprehension(step):
    state = init()
    for i in range(STEPS):
        [float(x[0]) for x in (state["w"],) if x is state["w"]]
        new = step(state, float(i))
        float(i)
        state = new
        del new
    return state


@lets_go
def mentioned_in_a_function_that_is_gone(step):
    state = init()

    def first():
        return float(state["w"][0])

    first()
    del first
    for i in range(STEPS):
        new = step(state, float(i))
        float(i)
        state = new
        del new
    return state


@lets_go
def mentioned_and_overwritten_at_once(step):
    state = init()
    for i in range(STEPS):
        any(state[x] is None for x in "w")
        state = step(state, float(i))
    return state


@lets_go
def mentioned_and_overwritten_beside_a_thread(step):
    state, over = init(), threading.Event()
    others = threading.Thread(target=lambda: sum(time.sleep(0.001) is not None for _ in iter(over.is_set, True)))
    others.start()
    for i in range(STEPS):
        any(state[x] is None for x in "w")
        state = step(state, float(i))
    over.set()
    others.join()
    return state


@lets_go
def a_parameter_that_a_lambda_mentions(step):
    def advance(state, i):
        (lambda: float(state["w"][0]))()
        new = step(state, i)
        float(i)
        return new

    state = init()
    for i in range(STEPS):
        state = advance(state, float(i))
    return state


@lets_go
def cells_of_a_notebook(step):
    names = {"step": step, "state": init(), "__name__": "__main__"}
    cell = compile("state = step(state, 1.0)", "<cell>", "exec")
    for _ in range(STEPS):
        exec(cell, names)
    return names["state"]


@lets_go
def with_and_finally(step):
    state, done = init(), 0
    for i in range(STEPS):
        with contextlib.suppress(ValueError):
            try:
                state = step(state, float(i))
            finally:
                done += 1
    return state


@lets_go
def a_handler_around_the_loop(step):
    state = init()
    try:
        for i in range(STEPS):
            state = step(state, float(i))
    except ValueError:
        return None
    finally:
        time.monotonic()
    return state


@lets_go
def a_handler_and_else(step):
    state = init()
    for i in range(STEPS):
        try:
            new = step(state, float(i))
        except FloatingPointError:
            raise
        else:
            state = new
            del new
    return state


@lets_go
def an_attribute_with_handlers(step):
    run = types.SimpleNamespace(state=init())
    for i in range(STEPS):
        try:
            run.state = step(run.state, float(i))
        except ValueError:
            return None
    return run.state


@lets_go
def in_an_async_function(step):
    async def run():
        state = init()
        for i in range(STEPS):
            state = step(state, float(i))
        return state

    try:
        run_of = run()
        run_of.send(None)
    except StopIteration as stop:
        return stop.value


async def data():
    for i in range(STEPS):
        await asyncio.sleep(0)
        yield float(i)


@lets_go
def in_a_loop_over_awaited_data(step):
    async def run():
        state, lock = init(), asyncio.Lock()
        async for batch in data():
            async with lock:
                state = step(state, batch)
        return state

    return asyncio.run(run())


@lets_go
def through_a_helper_that_is_awaited(step):
    async def helper(state, batch):
        return step(state, batch)

    async def run():
        state = init()
        async for batch in data():
            state = await helper(state, batch)
        return state

    return asyncio.run(run())


@lets_go
def a_parameter(step):
    def train(state, batches):
        for batch in batches:
            state = step(state, batch)
        return state

    return train(init(), [float(i) for i in range(STEPS)])


@lets_go
def a_parameter_of_what_is_called_in_a_loop(step):
    def train(state, batch):
        state = step(state, batch)
        return state  # noqa: RET504 - as people write it

    state = init()
    for i in range(STEPS):
        state = train(state, float(i))
    return state


@lets_go
def items_of_an_attribute(step):
    run = types.SimpleNamespace(models=[init()], nets={"g": {"state": init()}})
    for i in range(STEPS):
        for k in range(len(run.models)):
            run.models[k] = step(run.models[k], float(i))
        run.nets["g"]["state"] = step(run.nets["g"]["state"], float(i))
    return run.models, run.nets


@lets_go
def items_at_the_top_level_of_a_script(step):
    space = {"__name__": "__main__", "step": step, "models": [init(), init()], "nets": {"g": {"state": init()}}}
    script = """for i in range(STEPS):
        for k in range(len(models)):
            models[k] = step(models[k], float(i))
        nets["g"]["state"] = step(nets["g"]["state"], float(i))
    """
    exec(compile(script.replace("STEPS", str(STEPS)), "train.py", "exec"), space)
    return space["models"], space["nets"]


@lets_go
def in_a_comprehension(step):
    return [step(x, 1.0) for x in (init() for _ in range(STEPS))][-1]


@lets_go
def assigned_in_a_comprehension(step):
    state = init()
    _ = [None for i in range(STEPS) if (state := step(state, float(i))) is None]
    return state


@lets_go
def in_a_nested_function(step):
    def train():
        state = init()
        for i in range(STEPS):
            state = step(state, float(i))
        return state

    return train()


@lets_go
def through_two_methods(step):
    class Model:
        def update(self, state, batch):
            return step(state, batch)

    class Loop:
        def __init__(self):
            self.model = Model()

        def train_step(self, state, batch):
            return self.model.update(state, batch)

    loop, state = Loop(), init()
    for i in range(STEPS):
        state = loop.train_step(state, float(i))
    return state


@lets_go
def through_a_decorator(step):
    def timed(fun):
        @functools.wraps(fun)
        def wrapper(*args, **kwargs):
            started = time.monotonic()
            result = fun(*args, **kwargs)
            wrapper.seconds = time.monotonic() - started
            return result

        return wrapper

    timed_step, state = timed(step), init()
    for i in range(STEPS):
        state = timed_step(state, float(i))
    return state


@pytest.mark.parametrize(("caller", "of"), LET_GO)
def test_what_is_let_go_of_is_reused_from_the_second_call_on(caller, of):
    expected = caller(jax.jit(of))
    client = jax.devices()[0].client
    before = client.live_executables()
    step = pytc.compile(types.FunctionType(of.__code__, of.__globals__))  # which nothing else has compiled
    for _ in range(2):
        MADE.clear()
        state = caller(step)
        jax.tree.map(np.testing.assert_array_equal, state, expected)
    assert set(addresses(state)) <= set(MADE)
    sites = step.explain().sites
    assert sum(site.copied_calls for site in sites) <= 1
    assert not any(site.kept for site in sites)
    known = set(map(id, before))
    made = [each for each in client.live_executables() if id(each) not in known]
    aliased = {each.get_compiled_memory_stats().alias_size_in_bytes for each in made}
    assert {site.donated_bytes for site in sites} <= aliased


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Frozen:
    w: jax.Array
    n: jax.Array


class Linear(eqx.Module):
    w: jax.Array
    name: str = eqx.field(static=True, default="linear")


def train_state():
    return TrainState.create(apply_fn=None, params=init(), tx=optax.adam(1e-3))


TREES = {
    "nested containers": lambda: {"a": [jnp.ones(2), (jnp.ones(3), {"b": jnp.ones(4)})]},
    "frozen dataclass": lambda: Frozen(**init()),
    "equinox module": lambda: [Linear(jnp.ones(3)), Linear(jnp.ones(4))],
    "flax train state": train_state,
    "optax state": lambda: optax.chain(optax.clip(1.0), optax.adam(1e-3)).init(init()),
    "frozen dict": lambda: FrozenDict({"params": init()}),
}


def trained(step, make):
    """The state after the last of a few steps, where it was before that, and all that was allocated for it."""
    state = make()
    for i in range(STEPS):
        before = addresses(state)
        state = step(state, float(i))
    return state, before


@pytest.mark.parametrize("name", TREES)
def test_every_leaf_of_a_tree_stays_in_place(name):
    def update(state, batch):
        return jax.tree.map(lambda x: (x + batch).astype(jnp.result_type(x)), state)

    state, before = trained(pytc.compile(update), TREES[name])
    expected, _ = trained(jax.jit(update), TREES[name])
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(state), jax.tree.leaves(expected))
    assert len(before) > 1
    assert addresses(state) == before


class Sampler(NamedTuple):
    w: jax.Array
    legacy: jax.Array
    key: jax.Array


def draw(sampler):
    key, *_ = jax.random.split(sampler.key)
    return sampler._replace(w=sampler.w + jax.random.normal(key, (4,)), key=key, legacy=sampler.legacy + 1)


def draw_plain(state):
    key, w, (legacy,) = state
    new = draw(Sampler(w, legacy, key["key"]))
    return [{"key": new.key}, new.w, (new.legacy,)]


def draw_many(state):
    keys, *rest = state
    return [jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, 1)))(keys), *jax.tree.map(lambda x: x + 1, rest)]


def new_sampler(impl):
    key = jax.random.key(0, impl=impl)
    return Sampler(jnp.zeros(4), jax.random.key_data(key) + 1, key)


def hold(fun, state):
    holder = types.SimpleNamespace(state=state)
    for _ in range(STEPS):
        holder.state = fun(holder.state)
    return holder.state


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("fun", [draw, draw_plain, draw_many], ids=lambda f: f.__name__)
def test_a_state_with_a_key_is_reused_in_an_attribute(fun, impl):
    """Its legacy key is of the type of the new key's bits, which must not take its place."""

    def new():
        sampler = new_sampler(impl)
        if fun is draw_many:
            return [jax.random.split(sampler.key, (2, 3)), sampler.w, sampler.legacy]
        return sampler if fun is draw else [{"key": sampler.key}, sampler.w, (sampler.legacy,)]

    compiled = pytc.compile(fun)
    for _ in range(2):
        expected, got = hold(jax.jit(fun), new()), hold(compiled, new())
        assert jax.tree.structure(got) == jax.tree.structure(expected)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert (one.dtype, type(one), one.sharding) == (other.dtype, type(other), other.sharding)
            if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
                one, other = jax.random.key_data(one), jax.random.key_data(other)
            np.testing.assert_array_equal(one, other)
    sites = compiled.explain().sites
    assert sum(site.copied_calls for site in sites) <= 1
    assert [site.donated for site in sites] == [3]


def helper_that_makes_a_new_one(step, kind, state, seen):
    def helper(state):
        p, q = step(state.p, state.q)
        return kind(p, 0, q)

    for _ in range(STEPS):
        state = helper(state)
        seen(state)


def helper_with_a_loss(step, kind, state, seen):
    def helper(state):
        p, q = step(state.p, state.q)
        return kind(p, 0, q), 0.0

    for _ in range(STEPS):
        state, _ = helper(state)
        seen(state)


def helper_that_counts(step, kind, state, seen):
    def helper(state):
        p, q = step(state.p, state.q)
        return kind(p, state.n + 1, q), 0.0

    for _ in range(STEPS):
        state, _ = helper(state)
        seen(state)


def helper_that_replaces(step, kind, state, seen):
    def helper(state):
        p, q = step(state.p, state.q)
        return dataclasses.replace(state, p=p, q=q, n=state.n + 1)

    for _ in range(STEPS):
        state = helper(state)
        seen(state)


def helper_that_replaces_in_a_named_tuple(step, kind, state, seen):
    def helper(state):
        p, q = step(state.p, state.q)
        return state._replace(p=p, q=q, n=state.n + 1)

    for _ in range(STEPS):
        state = helper(state)
        seen(state)


def helper_that_returns_the_parts(step, kind, state, seen):
    def helper(state):
        return step(state.p, state.q)

    for _ in range(STEPS):
        p, q = helper(state)
        state = kind(p, 0, q)
        seen(state)


def helper_of_a_helper(step, kind, state, seen):
    def update(state):
        p, q = step(state.p, state.q)
        return kind(p, 0, q)

    def helper(state):
        return update(state)

    for _ in range(STEPS):
        state = helper(state)
        seen(state)


def replaced_in_the_next_statement(step, kind, state, seen):
    for _ in range(STEPS):
        p, q = step(state.p, state.q)
        state = dataclasses.replace(state, p=p, q=q)
        seen(state)


def replaced_by_the_next_statement_of_a_named_tuple(step, kind, state, seen):
    for _ in range(STEPS):
        p, q = step(state.p, state.q)
        state = state._replace(p=p, q=q)
        seen(state)


BY_FIELDS = [
    *itertools.product(
        (
            helper_that_makes_a_new_one,
            helper_with_a_loss,
            helper_that_counts,
            helper_that_returns_the_parts,
            helper_of_a_helper,
        ),
        (Row, Record, Slim, Struct, Plain),
    ),
    *itertools.product((replaced_in_the_next_statement, helper_that_replaces), (Record, Slim, Struct)),
    *itertools.product(
        (replaced_by_the_next_statement_of_a_named_tuple, helper_that_replaces_in_a_named_tuple), (Row,)
    ),
]


@pytest.mark.parametrize(("caller", "kind"), BY_FIELDS)
def test_fields_of_a_state_are_reused_from_the_second_call_on(caller, kind):
    places = []
    step = pytc.compile(lambda a, b: (a + 1, b * 2))
    caller(
        step,
        kind,
        kind(jnp.zeros(6), 0, jnp.ones(5)),
        lambda state: places.append(addresses((state.p, state.q))),
    )
    assert places == places[:1] * STEPS
    (site,) = step.explain().sites
    assert not site.kept
    assert site.copied_calls == 0
    assert len(next(iter(step.__pytc__.lookup)).plans) == 1


def items_of_a_dictionary(step, seen):
    state = {"a": jnp.zeros(6), "b": jnp.ones(5)}
    for _ in range(STEPS):
        state, _ = step(state["a"], state["b"])
        seen(state)


def items_of_a_dictionary_that_is_an_item(step, seen):
    state = {"a": jnp.zeros(6), "b": jnp.ones(5)}
    for _ in range(STEPS):
        state = step(state["a"], state["b"])[0]
        seen(state)


def items_of_the_last_result(step, seen):
    both = {"a": jnp.zeros(6), "b": jnp.ones(5)}, 0.0
    for _ in range(STEPS):
        both = step(both[0]["a"], both[0]["b"])
        seen(both[0])


@pytest.mark.parametrize(
    "caller", [items_of_a_dictionary, items_of_a_dictionary_that_is_an_item, items_of_the_last_result]
)
def test_items_of_the_last_result_are_reused(caller):
    places = []
    step = pytc.compile(lambda a, b: ({"a": a + 1, "b": b * 2}, a.sum()))
    caller(step, lambda state: places.append(addresses(state)))
    assert places == places[:1] * STEPS
    (site,) = step.explain().sites
    assert not site.kept
