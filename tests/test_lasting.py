"""Leaves that are one array at first and will be several: one program serves all calls, as under `jax.jit`."""

import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.calls.lasting import staged_to_last
from pytc.ownership.guesses.staying import fed_back

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


def assert_same(mine, others):
    assert jax.tree.structure(mine) == jax.tree.structure(others)
    jax.tree.map(np.testing.assert_array_equal, mine, others)


class Counting:
    """A step, compiled by `pytc.compile` and by `jax.jit`; and how many programs pytc has compiled of it."""

    def __init__(self, step, **options):
        self.compiled = pytc.compile(step, **options)
        self.by_jit = jax.jit(step)

    def programs(self):
        plans = [plan for signature in self.compiled.__pytc__.lookup for plan in signature.plans]
        return len({id(plan.emitted) for plan in plans if not plan.emitted.is_new})

    def run(self, start, calls=6):
        """The states by both, each from a `start` of its own."""
        return go_on(self.compiled, start, calls), go_on(self.by_jit, start, calls)


def go_on(step, start, calls):
    state = start()
    for _ in range(calls):
        state = step(state)
    return state


def average(state):
    params = jax.tree.map(lambda w: 0.9 * w + 1.0, state["params"])
    ema = jax.tree.map(lambda e, w: 0.99 * e + 0.01 * w, state["ema"], params)
    return {"params": params, "ema": ema}


def anew(step):
    """The same as another function, of which nothing is known yet from other tests."""
    return lambda state: step(state)


def untied():
    weights = {"w": jnp.arange(6.0), "b": jnp.ones(3)}
    return {"params": weights, "ema": weights}


def tied():
    weight = jnp.arange(6.0)
    weights = {"embed": weight, "unembed": weight}
    return {"params": weights, "ema": weights}


def delay(state):
    y, last = state
    return y + 0.1 * sum(last), [jnp.sin(y), *last[:-1]]


def delayed():
    return jnp.arange(4.0), [jnp.ones(4)] * 5


def swap(state):
    return {"params": state["ema"], "ema": state["params"] * 2.0, "steps": state["steps"] + 1}


def swapped():
    weight = jnp.arange(3.0)
    return {"params": weight, "ema": weight, "steps": jnp.zeros((), int)}


@pytest.mark.parametrize(
    ("step", "start", "arrays"),
    [(average, untied, 4), (average, tied, 2), (delay, delayed, 6), (swap, swapped, 3)],
    ids=["an average", "an average of tied weights", "a delay line", "a swap"],
)
def test_leaves_that_part_are_compiled_for_once(step, start, arrays):
    counting = Counting(step)
    mine, others = counting.run(start)
    assert_same(mine, others)
    assert counting.programs() == 1
    assert len({*map(id, jax.tree.leaves(mine))}) == arrays
    mine, others = counting.run(start, calls=3)  # once more from the beginning
    assert_same(mine, others)
    assert counting.programs() == 1


def test_what_stays_one_array_is_passed_once():
    counting = Counting(lambda state: jax.tree.map(lambda w: 0.9 * w, state))
    mine, others = counting.run(lambda: [jnp.arange(3.0)] * 3)
    assert_same(mine, others)
    (signature,) = counting.compiled.__pytc__.lookup
    assert [leaf.same_as for leaf in signature.program.leaves] == [None, 0, 0]


def test_the_first_state_is_left_as_it_is_where_it_is_held():
    counting = Counting(average)
    first = untied()
    state = counting.compiled(first)
    for _ in range(3):
        state = counting.compiled(state)
    assert_same(first, untied())
    assert_same(state, go_on(counting.by_jit, untied, 4))


def test_the_first_call_copies_an_array_as_often_as_there_will_be_more():
    compiled = pytc.compile(average)
    go_on(compiled, untied, 1)
    places, state = start_and_advance(compiled)
    after = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state)]
    assert len(places.intersection(after)) == 2
    assert sum(site.copied_calls for site in pytc.explain(compiled).sites) == 0


def start_and_advance(compiled):
    """Where the arrays of a first state were, and the next state."""
    state = untied()
    places = {x.unsafe_buffer_pointer() for x in jax.tree.leaves(state)}
    state = compiled(state)
    return places, state


def test_calls_whose_result_goes_elsewhere_take_one_array_once_and_round_alike():
    both = Counting(lambda a, b: (a * b - a * a, b + 1.0)).compiled
    x = jnp.asarray(np.random.RandomState(0).randn(1000).astype(np.float32))
    results = [both(x, x) for _ in range(5)]
    for each in results:
        assert_same(each, jax.jit(lambda x: (x * x - x * x, x + 1.0))(x))
    (signature,) = both.__pytc__.lookup
    assert [leaf.same_as for leaf in signature.program.leaves] == [None, 0]


def loss(params, x):
    return jnp.mean((jnp.tanh(x @ params["embed"]) @ params["unembed"].T) ** 2)


def descend(params, x):
    grads = jax.grad(loss)(params, x)
    added = grads["embed"] + grads["unembed"]
    return grads, {name: weight - 0.1 * added for name, weight in params.items()}


def average_first(params, ema):
    new = jax.tree.map(lambda w: 0.9 * w + 1, params)
    return jax.tree.map(lambda e, w: 0.99 * e + 0.01 * w, ema, new), new


def train_tied(step):
    x, weight = jnp.ones((2, 4)), jnp.eye(4)
    params = {"embed": weight, "unembed": weight}
    for _ in range(4):
        _, params = step(params, x)
    return params


def train_tied_beside_an_average(step):
    weight = jnp.eye(4)
    params = {"embed": weight, "unembed": weight}
    ema = dict.fromkeys(params, weight + 0)
    for _ in range(4):
        ema, params = step(params, ema)
    return params


def train_tied_by_gradients(step):
    gradients = pytc.compile(jax.grad(loss))
    x, weight = jnp.ones((2, 4)), jnp.eye(4)
    params = {"embed": weight, "unembed": weight}
    for _ in range(4):
        grads = gradients(params, x)
        params = step(params, grads)
    assert gradients._cache_size() == 1
    return params


@pytest.mark.parametrize(
    ("step", "caller"),
    [
        (descend, train_tied),
        (average_first, train_tied_beside_an_average),
        (lambda p, g: {k: w - 0.1 * (g["embed"] + g["unembed"]) for k, w in p.items()}, train_tied_by_gradients),
    ],
    ids=["gradients first", "an average first", "gradients by a function of their own"],
)
def test_tied_weights_stay_tied_whatever_else_is_returned(step, caller):
    compiled = pytc.compile(step)
    params = caller(compiled)
    assert params["embed"] is params["unembed"]
    assert compiled._cache_size() == 1


def remember(state):
    new = jax.tree.map(lambda w: 0.9 * w + 1, state["params"])
    return {"params": new, "history": [state["params"], *state["history"][:-1]]}


@pytest.mark.parametrize("count", [2, 5])
def test_a_history_of_tied_weights_is_of_tied_weights(count):
    weight = jnp.eye(4)
    counting = Counting(remember)

    def start():
        params = {"embed": weight, "unembed": weight}
        return {"params": params, "history": [params] * count}

    mine, others = counting.run(start, calls=count + 3)
    assert_same(mine, others)
    assert len({*map(id, jax.tree.leaves(mine))}) == count + 1
    assert counting.programs() == 1


def test_a_history_of_more_than_can_be_thought_through():
    counting = Counting(delay)
    assert_same(*counting.run(lambda: (jnp.arange(4.0), [jnp.ones(4)] * 40), calls=3))
    assert counting.programs() == 1


@pytest.mark.parametrize("donate", ["auto", "all", "none"])
def test_whatever_is_donated(donate):
    counting = Counting(anew(average), donate=donate)
    for start in (untied, tied, untied):
        assert_same(*counting.run(start))
    assert counting.programs() == 2  # with tied weights, and without


def test_beside_static_values_and_keys():
    @pytc.compile
    def step(state, name):
        key, other = (jax.random.split(key)[n] for n, key in enumerate(state["keys"]))
        return {"keys": [key, other], "w": state["w"] + jax.random.normal(key) + len(name)}

    for name in ("a", "bb", "a"):
        key = jax.random.key(0)
        state = {"keys": [key, key], "w": jnp.zeros(3)}
        plain = jax.jit(step.__wrapped__, static_argnums=1)
        others = state
        for _ in range(4):
            state, others = step(state, name), plain(others, name)
        assert_same(jax.tree.map(jax.random.key_data, state["keys"]), jax.tree.map(jax.random.key_data, others["keys"]))
        assert_same(state["w"], others["w"])


def test_another_wrapper_of_the_function_compiles_nothing():
    step = anew(average)
    Counting(step).run(untied)
    counting = Counting(step)
    mine, others = counting.run(untied)
    assert_same(mine, others)
    assert counting.programs() <= 1


def test_an_explanation_is_of_the_program_that_runs():
    told = pytc.explain(average, untied())
    assert [given.verdict for given in told.inputs] == ["reused"] * 4
    assert "shared" in {given.verdict for given in pytc.explain(average, tied()).inputs}


def test_a_program_that_calls_python_is_as_it_was():
    def step(state):
        jax.debug.callback(lambda x: None, state["params"].sum())
        return {"params": state["params"] * 2.0, "ema": state["ema"] * 3.0}

    x = jnp.arange(3.0)
    compiled = pytc.compile(step)
    state = compiled({"params": x, "ema": x})
    np.testing.assert_array_equal(compiled(state)["ema"], x * 9.0)


RESULTS = {
    "in a part of the result": (lambda loss, state: (loss, state), True),
    "in parts of it": (lambda loss, state: {"b": state[1], "a": state[0], "loss": loss}, True),
    "deeper": (lambda loss, state: (loss, {"new": [state]}), True),
    "not at all": (lambda loss, state: loss, False),
    "one of them": (lambda loss, state: (loss, state[0]), False),
    "one array": (lambda loss, state: (loss, [state[0], state[0]]), False),
    "one array, behind two": (lambda loss, state: (state, [state[0], state[0]]), False),
    "as it was": (lambda loss, state: (loss, None), False),
}


@pytest.mark.parametrize("fed_back", [True, False])
@pytest.mark.parametrize(("returned", "part"), RESULTS.values(), ids=RESULTS)
def test_which_result_comes_in_place_of_which_argument(returned, part, fed_back):
    def step(state, batch):
        new = [state[0] * 2.0, state[1] + batch.sum()]
        return returned(new[0].sum(), new)

    x, compiled = jnp.arange(3.0), pytc.compile(step).__pytc__
    args = [x, x], jnp.ones((2, 2))

    def stage(parting):
        return compiled.planner.prepared(compiled.stageable.stage(args, {}, share=True, parting=parting))

    program, parting = staged_to_last(stage, lambda: frozenset() if fed_back else None)
    assert parting == ((0, 1, 2) if part and fed_back else None)
    assert [leaf.same_as for leaf in program.leaves][:2] == [None, None if parting else 0]


CALLS = {
    "state = step(state)": set(),
    "loss, state = step(state)": set(),
    "state = step(*state)[0]": set(),
    "box.state = step(box.state)": set(),
    "box['a'] = step(box['a'])": set(),
    "state = helper(state)": set(),
    "new = step(state)": None,
    "step(state)": None,
    "state = [step(state)]": None,
    "state = indirectly(state)": None,
    "loss, state = step(state, box)": {-1},
    "loss, state = step(box, state)": {-2},
    "loss, state = step(state, step, box, a=len)": {-2, -1, "a"},
    "state, loss = step(len(str(1)), state, [box], b=box['a'], a=-1)": {"b"},
    "box.state, loss = step(box.state, box.other)": {-1},
    "state, box = step(state, box)": set(),
    "state = step(state, *[box])": set(),
    "state = step(state, state)": set(),
    "while step: state = step(state, box); step = None": {-1},
    "while step: state = step(state, box); step = None; box = state": set(),
    "while step: state = step(state, box.other); step = None; box.other = state": set(),
    "while step: state = step(state, box['a']); step = None; box['a'] = state": set(),
    "for k in range(1): state = step(state, box, k)\n    if state is None: box = state": {-2},
    "for k in range(1):\n        state = step(state, box)\n        if state is None: box = state": {-1},
    "for k in range(1):\n        state = step(state, shared)\n        if state is None: shared = state": {-1},
    "for k in range(1):\n        state = step(state, shared)\n        shared = state": set(),
    "for k in range(1):\n        state = step(state, cell)\n        cell = state": set(),
}
CALLER = """
shared = 0

def helper(state):
    new = step(state)
    return new

def indirectly(state):
    new = step(state)
    print(end="")
    return new

def caller(state, box, step=step):
    global shared
    cell = 0
    def closure(): return cell
    {}
"""


@pytest.mark.parametrize(("call", "expected"), CALLS.items(), ids=CALLS)
def test_what_stays_if_a_result_goes_back_to_where_it_came_from(call, expected):
    asked = []

    def step(*_, **__):
        asked.append(fed_back(sys._getframe(1)))
        return ({}, {})

    space = {"step": step}
    exec(CALLER.format(call), space)
    box = types.SimpleNamespace(state=1, other=2) if "box." in call else {"a": 1}
    space["caller"]((1, 2), box)
    assert asked == [expected]


def towards(params, target, scale=1.0):
    moved = jax.tree.map(lambda w, t: 0.9 * w + 0.1 * t + scale, params, target)
    return moved, sum(jnp.sum(w) for w in jax.tree.leaves(moved))


def learn(step):
    params = target = untied()["params"]
    for n in range(6):
        params, _ = step(params, target)
        if n == 3:
            target = params
    return params


def learn_by_keywords(step):
    params = target = untied()["params"]
    for _ in range(6):
        params, _ = step(target=target, params=params, scale=2.0)
    return params


def learn_from_a_reference(step):
    class Agent:
        def update(self):
            self.params, loss = self.step(self.params, self.reference)
            return loss

    agent = Agent()
    agent.step, agent.params = step, untied()["params"]
    agent.reference = agent.params
    for _ in range(6):
        agent.update()
    return agent.params


def learn_backwards(step):
    params = target = untied()["params"]
    for _ in range(6):
        params, _ = step(target, params)
    return params


def test_it_is_the_parameters_that_are_written_over():
    compiled = pytc.compile(towards)
    params = target = untied()["params"]
    for _ in range(3):
        before = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(params)]
        params, _ = compiled(params, target)
    assert [x.unsafe_buffer_pointer() for x in jax.tree.leaves(params)] == before
    assert_same(target, untied()["params"])


def test_one_argument_given_twice_is_taken_once():
    compiled = pytc.compile(lambda params, target: towards(params, target))
    params = untied()["params"]
    for _ in range(3):
        params, _ = compiled(params, params)
    last = params
    for _ in range(3):
        params, _ = compiled(params, last)
        last = params
    (signature,) = compiled.__pytc__.lookup
    assert [leaf.same_as for leaf in signature.program.leaves[:4]] == [None, None, 0, 1]


def test_calls_of_one_program_are_told_apart_by_what_is_one_array():
    compiled = pytc.compile(towards)
    learn(compiled)
    told = [dict(site.arguments) for site in pytc.explain(compiled).sites]
    assert [each["target['w']"] for each in told] == ["the same array as params['w']", "f32[6]"]


def keeps_the_results(step, history):
    params = target = untied()["params"]
    for _ in range(6):
        params, _ = step(params, target)
        history.append(params)


def keeps_the_results_of_an_agent(step, history):
    agent = types.SimpleNamespace(params=untied()["params"])
    agent.target = agent.params
    for _ in range(6):
        agent.params, _ = step(agent.params, agent.target)
        history.append(agent.params)


@pytest.mark.parametrize("caller", [keeps_the_results, keeps_the_results_of_an_agent])
def test_a_history_is_seen_beside_a_target(caller):
    counting = Counting(lambda params, target: towards(params, target))
    mine, others = [], []
    caller(counting.compiled, mine)
    caller(counting.by_jit, others)
    assert_same(mine, others)
    assert counting.programs() == 1
    assert sum(site.copied_calls for site in pytc.explain(counting.compiled).sites) == 0


def learn_by_a_trainer(step):
    class Trainer:
        def update(self, params, target):
            return step(params, target)

    trainer, params = Trainer(), untied()["params"]
    target = params
    for _ in range(6):
        params, _ = trainer.update(params, target)
    return params


def learn_by_keywords_of_a_function(step):
    def update(params, target, scale=2.0):
        moved, loss = step(params, target, scale)
        return loss, moved

    params = target = untied()["params"]
    for _ in range(6):
        _, params = update(target=target, params=params, scale=1.0)
    return params


def learn_from_what_a_trainer_has(step):
    class Trainer:
        def update(self, params):
            return step(params, self.target)

    trainer, params = Trainer(), untied()["params"]
    trainer.target = params
    for _ in range(6):
        params, _ = trainer.update(params)
    return params


LEARNERS = {
    "with a new target": (learn, 2),  # where the parameters are the target, they are read again
    "by keywords": (learn_by_keywords, 1),
    "in attributes": (learn_from_a_reference, 1),
    "the target first": (learn_backwards, 1),
    "by a method": (learn_by_a_trainer, 1),
    "by keywords of a function": (learn_by_keywords_of_a_function, 1),
    "from what a method finds": (learn_from_what_a_trainer_has, 1),
}


@pytest.mark.parametrize(("learner", "copied"), LEARNERS.values(), ids=LEARNERS)
def test_a_target_that_begins_as_the_parameters_is_compiled_for_once(learner, copied):
    counting = Counting(functools.wraps(towards)(lambda *args, **kwargs: towards(*args, **kwargs)))
    assert_same(learner(counting.compiled), learner(counting.by_jit))
    assert counting.programs() == 1
    assert sum(site.copied_calls for site in pytc.explain(counting.compiled).sites) == copied


def items_beside_a_variable(step, history):
    weights = {"w": jnp.arange(6.0)}
    box = {"params": weights}
    ema = weights
    for _ in range(8):
        box["params"], ema = step(box["params"], ema)
        keep(history, box["params"])
    return box["params"], ema


def keep(history, value):
    history.append(value)


def plain_items_beside_a_variable(step, _history):
    box = [{"w": jnp.arange(6.0)}]
    ema = box[0]
    for _ in range(8):
        box[0], ema = step(box[0], ema)
    return box[0], ema


@pytest.mark.parametrize(
    ("caller", "programs", "copied"), [(items_beside_a_variable, 2, 3), (plain_items_beside_a_variable, 1, 1)]
)
def test_an_item_stands_for_what_was_in_it(caller, programs, copied):
    def both(params, ema):
        new = average({"params": params, "ema": ema})
        return new["params"], new["ema"]

    counting = Counting(both)
    assert_same(caller(counting.compiled, []), caller(counting.by_jit, []))
    assert counting.programs() <= programs
    assert sum(site.copied_calls for site in pytc.explain(counting.compiled).sites) <= copied


def test_static_arguments_are_not_taken_apart_to_tell_what_stays():
    class Endless:
        def __init__(self):
            self.me = self

    jax.tree_util.register_pytree_node(Endless, lambda node: ((node.me,), None), lambda *_: Endless())

    def learn_beside_it(step):
        endless = Endless()
        params = target = untied()["params"]
        for _ in range(4):
            params, _ = step(endless, params, target)
        return params

    compiled = pytc.compile(lambda _, params, target: towards(params, target), static_argnums=0)
    assert_same(learn_beside_it(compiled), learn_beside_it(jax.jit(compiled.__wrapped__, static_argnums=0)))
    plans = [plan for each in compiled.__pytc__.lookup for plan in each.plans]
    assert len({id(plan.emitted) for plan in plans if not plan.emitted.is_new}) == 1
