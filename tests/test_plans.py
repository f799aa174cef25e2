"""Which plan a call site uses: few copies, few executables, whatever the caller holds.

The callers are functions without asserts: pytest's look into `locals()`, which rightly stops every donation.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import gc
import itertools
import re
import textwrap
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

import pytc
from pytc import ownership
from pytc.calls import asking, decide
from pytc.calls.planner import Planner
from pytc.emit import Emitted
from pytc.ownership import proof
from pytc.ownership.arrays import buffers
from pytc.ownership.bytecode import analysed
from tests.threads import another_thread

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


def make_step():
    return pytc.compile(lambda state, batch: {k: v + batch for k, v in state.items()})


def start():
    return {"a": jnp.zeros(4), "b": jnp.zeros((3, 3))}


def keep_every_state(step, calls):
    state, history = start(), []
    for _ in range(calls):
        history.append(state)
        state = step(state, 1.0)
    return state, history


def let_go(step, calls):
    state = start()
    for _ in range(calls):
        state = step(state, 1.0)
    return state


def read_again(step, calls):
    state = start()
    for _ in range(calls):
        new = step(state, 1.0)
        difference = new["a"] - state["a"]
        state = new
    return state, difference


def throw_away(step, calls):
    state = start()
    for _ in range(calls):
        step(state, 1.0)
    return state


def plans(step):
    return [
        len(signature.plans)
        for layout in step.__pytc__.lookup.layouts.values()
        for signatures in layout
        for signature in signatures.newest
    ]


def compiled(step):
    """What has been run of what the plans would run."""
    emitted = {plan.emitted for signature in step.__pytc__.lookup for plan in signature.plans}
    return [each for each in emitted if not each.is_new]


def copied_calls(step):
    return sum(site.copied_calls for site in step.explain().sites)


def test_a_held_state_is_copied_a_few_times_at_most():
    step = make_step()
    state, history = keep_every_state(step, 100)
    assert copied_calls(step) <= 5
    assert plans(step)[0] <= 2
    np.testing.assert_array_equal(state["a"], np.full(4, 100))
    for i, old in enumerate(history):
        np.testing.assert_array_equal(old["b"], np.full((3, 3), i))


def test_a_state_that_is_let_go_is_never_copied():
    step = make_step()
    state = let_go(step, 20)
    assert copied_calls(step) == 0
    assert plans(step) == [1]
    np.testing.assert_array_equal(state["a"], np.full(4, 20))


@pytest.mark.parametrize("caller", [read_again, throw_away])
def test_what_the_code_reads_again_costs_no_copy_and_no_second_compilation(caller):
    step = make_step()
    caller(step, 20)
    assert copied_calls(step) == 0
    assert plans(step) == [1]


def name_the_first(step, calls):
    first = start()
    state = first
    for _ in range(calls):
        state = step(state, 1.0)
    return state, first


def name_its_parts(step, calls):
    state = start()
    first = state["a"], state["b"]
    for _ in range(calls):
        state = step(state, 1.0)
    return state, first


def go_on_from(state, step, calls):
    while calls:
        state = step(state, 1.0)
        calls -= 1
    return state


def read_what_was_passed(step, calls):
    first = start()
    return go_on_from(first, step, calls), first


def step_in_a_helper(step, state):
    return step(state, 1.0)


def name_the_first_of_a_helper(step, calls):
    state = first = start()
    for _ in range(calls):
        state = step_in_a_helper(step, state)
    return state, first


def name_the_first_of_an_object(step, calls):
    first = start()
    box = types.SimpleNamespace(state=first)
    for _ in range(calls):
        box.state = step(box.state, 1.0)
    return box.state, first


def go_on_from_an_attribute(step, calls):
    box = types.SimpleNamespace(state=start())
    return go_on_from(box.state, step, calls), box.state


def take_a_model_apart(step, calls):
    model = types.SimpleNamespace(layers=[{"weights": each} for each in start().values()])
    state = {"a": model.layers[0]["weights"], "b": model.layers[1]["weights"]}
    for _ in range(calls):
        state = step(state, 1.0)
    return state, model.layers


def go_on_in_parts(step, calls):
    first = start()
    halfway = go_on_from(first, step, calls // 2)
    return go_on_from(halfway, step, calls - calls // 2), first, halfway


@pytest.mark.parametrize(
    "caller",
    [
        name_the_first,
        name_its_parts,
        read_what_was_passed,
        name_the_first_of_a_helper,
        name_the_first_of_an_object,
        go_on_from_an_attribute,
        take_a_model_apart,
        go_on_in_parts,
    ],
)
def test_a_first_state_that_lives_on_is_copied_once_and_costs_no_second_compilation(caller):
    step = make_step()
    last, first, *halfway = caller(step, 20)
    np.testing.assert_array_equal(last["b"], np.full((3, 3), 20))
    for leaf in jax.tree.leaves(first):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))
    assert copied_calls(step) == 1 + len(halfway)
    assert plans(step) == [1]
    (site,) = pytc.explain(step).sites
    assert {held.path for held in site.held} == {"state['a']", "state['b']"}
    for held in site.held:
        # What only objects lead to is not looked for at a first call.
        told = (
            ""
            if caller in (go_on_from_an_attribute, take_a_model_apart)
            else "(also|part of|an item of) `first`|read again"
        )
        assert re.search(told, held.why)


def keep_the_last(step, calls):
    state, changes = start(), []
    for _ in range(calls):
        last = state
        state = step(state, 1.0)
        changes.append(float((state["a"] - last["a"]).sum()))
    return changes


def go_back_if_it_is_bad(step, calls):
    state, taken = start(), 0
    for _ in range(calls):
        before = state, taken
        state, taken = step(state, 1.0), taken + 1
        if float(state["a"].sum()) < 0:
            state, taken = before
    return state, taken


def go_back_to_a_part_if_it_is_bad(step, calls):
    state = start()
    for _ in range(calls):
        before = {"taken": 1, "state": state}
        state = step(state, 1.0)
        if float(state["a"].sum()) < 0:
            state = before["state"]
    return state


def keep_the_last_beneath_the_call(step, calls):
    last, state = None, start()
    for _ in range(calls):
        last, state = state, step(state, 1.0)
    return last


def keep_what_was_passed(step, calls):
    for _ in range(calls):
        state = start()
        new = step_in_a_helper(step, state)
        float((new["a"] - state["a"]).sum())


def keep_unless_it_is_good(step, calls):
    state = start()
    for _ in range(calls):
        new = step(state, 1.0)
        if float(new["a"].sum()) > 0:
            state = new


def keep_all_from_the_first_on(step, calls):
    state = start()
    history = [state]
    for _ in range(calls):
        state = step(state, 1.0)
        history.append(state)
    return history


def keep_an_attribute(step, calls):
    box = types.SimpleNamespace(state=start())
    for _ in range(calls):
        last = box.state
        box.state = step(box.state, 1.0)
        float((box.state["a"] - last["a"]).sum())


def append_each(step, calls, history=()):
    state, history = start(), [*history]
    for _ in range(calls):
        state = step(state, 1.0)
        history.append(state)
    return history


def append_each_of_a_helper(step, calls):
    history, state, k = [], start(), 0
    while k < calls:
        state = step_in_a_helper(step, state)
        if k % 2:
            float(state["a"].sum())
        history.append(state)
        k += 1
    return history


def append_each_in_a_tuple(step, calls):
    history, state = [], start()
    for k in range(calls):
        state = step(state, 1.0)
        history.append((k, state))
    return history


def add_each_in_a_list(step, calls):
    history, state = [], start()
    for _ in range(calls):
        state = step(state, 1.0)
        history += [state]
    return history


def add_each_on_one_line(step, calls):
    source = "for _ in range(calls): state = step(state, 1.0); history += [state]\nreturn history"
    body = "def run(step, calls, state, history):\n" + textwrap.indent(source, "    ")
    made = {}
    exec(body, made)
    return made["run"](step, calls, start(), [])


def add_a_part_of_each_in_a_list(step, calls):
    history, state = [], start()
    for k in range(calls):
        state = step(state, 1.0)
        history += [(k, state["a"]), state["b"]]
    return history


def add_each_in_a_tuple(step, calls):
    state, history = start(), ()
    for _ in range(calls):
        history += (state,)
        state = step(state, 1.0)
    return history


def add_each_to_an_attribute(step, calls):
    state, log = start(), types.SimpleNamespace(history=[])
    for n in range(calls):
        log.history += [(n, state)]
        state = step(state, 1.0)
    return log


def append_each_to_a_deque(step, calls):
    history, state = collections.deque(maxlen=2), start()
    for _ in range(calls):
        state = step(state, 1.0)
        history.append(state)
    return history


def append_each_to_an_attribute(step, calls):
    box = types.SimpleNamespace(state=start(), history=[])
    for _ in range(calls):
        box.state = step(box.state, 1.0)
        box.history.append(box.state)
    return box


def call_a_partial(step, calls):
    state, go = start(), functools.partial(step, batch=1.0)
    for _ in range(calls):
        state = go(state)
    return state


def call_a_reduction(step, calls):
    return functools.reduce(lambda state, batch: step(state, batch), [1.0] * calls, start())


def keep_an_average(step, calls):
    state = average = start()
    for _ in range(calls):
        state = step(state, 1.0)
        average = jax.tree.map(lambda a, b: (a + b) / 2, average, state)
    return state, average


def test_what_only_the_first_average_shares_is_copied_once():
    step = make_step()
    state, average = keep_an_average(step, 20)
    assert float(state["b"][0, 0]) == 20
    assert 18 < float(average["b"][0, 0]) < 20
    assert copied_calls(step) == 1
    assert plans(step) == [1]


@contextlib.contextmanager
def forgiving():
    with contextlib.suppress(KeyError):
        yield


def step_in_a_block(step, calls):
    state = start()
    with forgiving():
        for _ in range(calls):
            state = step(state, 1.0)
    return state


def step_in_an_attribute(step, calls):
    return step_in(types.SimpleNamespace(state=start()), step, calls)


def step_in(box, step, calls):
    in_place = []
    for _ in range(calls):
        at = box.state["b"].unsafe_buffer_pointer()
        box.state = step(box.state, 1.0)
        in_place.append(box.state["b"].unsafe_buffer_pointer() == at)
    return in_place


BOX = types.SimpleNamespace()


def step_in_an_attribute_of_a_global(step, calls):
    BOX.state = start()
    return step_in(BOX, step, calls)


def test_what_another_thread_may_read_is_left_alone_from_the_first_call_on():
    step = make_step()
    with another_thread():
        step_in_an_attribute_of_a_global(step, 10)
    assert copied_calls(step) == 0
    assert len(compiled(step)) == 1


def test_what_no_other_thread_can_reach_is_taken_over_from_the_second_call_on():
    step = make_step()
    with another_thread():
        in_place = step_in_an_attribute(step, 10)
    assert all(in_place[1:])
    assert copied_calls(step) == 1
    assert len(compiled(step)) == 1


def test_what_a_handler_reads_is_taken_over_from_the_second_call_on_beside_another_thread():
    """The first call returns through Python code of JAX, in which that may raise an exception."""
    step = make_step()
    with another_thread():
        step_in_a_block(step, 10)
    assert copied_calls(step) == 1
    assert len(compiled(step)) == 1


def test_it_is_taken_over_once_the_thread_has_ended():
    step = make_step()
    with another_thread():
        step_in_an_attribute_of_a_global(step, 10)
    in_place = step_in_an_attribute_of_a_global(step, 40)
    assert all(in_place[7:])  # from the sixteenth or so at this place on
    assert copied_calls(step) <= 1


class Network:
    """A tree that is passed on in parts."""

    def __init__(self, parts):
        self.parts = parts


jax.tree_util.register_pytree_node(Network, lambda each: ((each.parts,), None), lambda _, parts: Network(*parts))


class Trained:
    """An object like those of Equinox's `filter_jit`: it takes trees apart, and is called through C code."""

    def __init__(self, step):
        self.step = step

    def __call__(self, network):
        leaves, tree = jax.tree.flatten(network)
        names = [str(k) for k in range(len(leaves))]
        stepped = self.step(dict(zip(names, leaves, strict=True)), 1.0)
        return jax.tree.unflatten(tree, [stepped[name] for name in names])


def train_a_network(step, calls):
    network, trained = Network(start()), Trained(step)
    for _ in range(calls):
        network = trained(network)
    return network


def train_beside_iterators(step, calls):
    state, numbers = Network(start()), (k for k in range(calls))
    batches, inside = iter([1.0] * calls), Network([iter([1])])
    for _ in numbers:
        state = Network(step(state.parts, next(batches)))
    return state, inside


@pytest.mark.filterwarnings("error")
def test_to_look_at_variables_warns_of_nothing():
    step = make_step()
    state, _ = train_beside_iterators(step, 5)
    assert float(state.parts["a"][0]) == 5


def advance_what_is_passed(step, calls, state):
    """How often the state stayed in its place."""
    in_place = 0
    for _ in range(calls):
        at = state["b"].unsafe_buffer_pointer()
        state = step(state, 1.0)
        in_place += state["b"].unsafe_buffer_pointer() == at
    return in_place


class Advancing:
    def __init__(self, step, calls, state):
        self.in_place = 0
        for _ in range(calls):
            at = state["b"].unsafe_buffer_pointer()
            state = step(state, 1.0)
            self.in_place += state["b"].unsafe_buffer_pointer() == at

    def __call__(self):
        return self.in_place


def advancing(step, calls, state):
    for _ in range(calls):
        at = state["b"].unsafe_buffer_pointer()
        state = step(state, 1.0)
        yield state["b"].unsafe_buffer_pointer() == at


BY_C = {
    "a partial": lambda step: functools.partial(advance_what_is_passed, step, 20)(start()),
    "map": lambda step: next(map(functools.partial(advance_what_is_passed, step, 20), [start()])),
    "a cache": lambda step: functools.lru_cache(lambda: advance_what_is_passed(step, 20, start()))(),
    "a class": lambda step: Advancing(step, 20, start())(),
    "a generator": lambda step: sum(advancing(step, 20, start())),
}


@pytest.mark.parametrize("call", BY_C.values(), ids=BY_C)
def test_a_loop_that_c_code_has_called_takes_over_what_it_makes(call):
    """C code holds the first state alone."""
    step = make_step()
    assert call(step) >= 18
    assert plans(step) == [1]


class Checkpoints:
    """Keeps the latest of every few states."""

    def __init__(self, period):
        self.period, self.last = period, None

    def keep(self, k, state):
        if k % self.period == 0:
            self.last = state


def stop_early_with_checkpoints(step, checkpoints, falling):
    state = best = start()
    least, in_place = 1e9, 0
    for k in range(1, 100):
        at = state["b"].unsafe_buffer_pointer()
        state = step(state, 1.0)
        in_place += state["b"].unsafe_buffer_pointer() == at
        loss = 100 - k if k <= falling else 200
        if loss < least:
            best, least = state, loss
        checkpoints.keep(k, state)
    return best, in_place


@pytest.mark.parametrize(("period", "falling"), [(16, 20), (8, 7), (4, 3), (2, 1)])
def test_a_checkpoint_at_each_look_does_not_keep_the_state_for_good(period, falling):
    _, in_place = stop_early_with_checkpoints(make_step(), Checkpoints(period), falling)
    assert in_place >= (100 - 2 * falling) * (1 - 1 / period) - 8


def save_at_powers_of_two(step, calls):
    state, saved, in_place = start(), [], 0
    for k in range(1, calls + 1):
        at = state["b"].unsafe_buffer_pointer()
        state = step(state, 1.0)
        in_place += state["b"].unsafe_buffer_pointer() == at
        if k <= 6 or k & (k - 1) == 0:
            saved.append(state)
    return saved, in_place


def test_states_that_are_saved_ever_more_rarely_do_not_keep_the_others():
    saved, in_place = save_at_powers_of_two(make_step(), 100)
    assert [float(state["b"].sum()) for state in saved] == [9.0 * k for k in (1, 2, 3, 4, 5, 6, 8, 16, 32, 64)]
    assert in_place >= 100 - 20


def take_turns(step, calls, queue):
    for _ in range(calls):
        state = queue.popleft()
        state = step(state, 1.0)
        queue.append(state)


def make_populations(step, calls):
    population = [start() for _ in range(3)]
    for _ in range(calls):
        new = []
        for state in population:
            state = step(state, 1.0)
            new.append(state)
        population = new
        del new


def clear_now_and_then(step, calls):
    state, history = start(), []
    for k in range(calls):
        state = step(state, 1.0)
        history.append(state["b"])
        if k % 2:
            history.clear()


def test_what_is_taken_out_of_a_list_again_is_not_expected_to_stay_there():
    step = make_step()
    take_turns(step, 12, collections.deque([start(), start()]))
    make_populations(step, 6)
    clear_now_and_then(step, 6)
    assert plans(step) == [1]


Link = collections.namedtuple("Link", "value next")


class Counting(list):
    """A list that notices when it is asked."""

    asked = 0

    def __iter__(self):
        self.asked += 1
        return super().__iter__()

    def __len__(self):
        self.asked += 1
        return super().__len__()


def train_beside_a_list_that_counts(step, calls):
    state, counting = start(), Counting([1])
    for _ in range(calls):
        state = step(state, 1.0)
    return counting


def test_what_is_in_variables_is_not_asked():
    assert train_beside_a_list_that_counts(make_step(), 5).asked == 0


def train_beside_what_refers_to_itself(step, calls):
    state, ring, chain = start(), [], None
    ring.append(Link(1, ring))
    for k in range(3000):
        chain = Link(k, chain)
    numbers = collections.defaultdict(list, {"loss": [1], 0: [2]})  # JAX cannot sort such keys
    results = []
    for k in range(calls):
        results.append(step(state, 1.0)["a"])
        numbers["loss"].append(k)
    return results, ring, chain, numbers


def test_what_else_is_in_variables_is_not_taken_apart():
    step = make_step()
    results, *_ = train_beside_what_refers_to_itself(step, 5)
    assert float(results[-1][0]) == 1
    assert copied_calls(step) == 0
    assert plans(step) == [1]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["metadata"])
@dataclasses.dataclass
class Weight:
    """As a variable of Flax: the array among other data."""

    array: jax.Array
    metadata: dict[str, tuple[int, ...]]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["weights"], meta_fields=[])
@dataclasses.dataclass
class Model:
    weights: tuple[Weight, ...]


def train_what_objects_hold(step, calls):
    about = [{f"about {k}": (n, k) for k in range(8)} for n in range(300)]
    model = Model(tuple(Weight(jnp.full(4, float(n)), each) for n, each in enumerate(about)))
    for _ in range(calls):
        step([weight.array for weight in model.weights], 1.0)
    return model


def test_many_leaves_in_objects_are_left_alone_from_the_first_call_on():
    step = pytc.compile(lambda weights, batch: [w + batch for w in weights])
    train_what_objects_hold(step, 5)
    assert copied_calls(step) == 0
    assert plans(step) == [1]


def read_once_and_go_on(step, calls):
    state = start()
    for _ in range(calls):
        state = step(state, 1.0)
    ahead = step(state, 1.0)
    return ahead, state


def test_nothing_is_compiled_for_a_place_that_calls_once():
    step = make_step()
    for _ in range(3):
        ahead, state = read_once_and_go_on(step, 5)
    assert float(ahead["a"][0]) == float(state["a"][0]) + 1 == 6
    assert plans(step) == [1]
    assert copied_calls(step) == 3
    read_once_and_go_on(step, 5)
    read_once_and_go_on(step, 5)
    assert plans(step) == [2]
    assert copied_calls(step) == 3


class Stepper:
    def __init__(self, step):
        self.step = step

    def __call__(self, state):
        return self.step(state, 1.0)


def call_an_object(step, calls):
    state, stepper = start(), Stepper(step)
    for _ in range(calls):
        state = stepper(state)
    return state


@pytest.mark.parametrize(
    "caller",
    [
        keep_the_last,
        go_back_if_it_is_bad,
        go_back_to_a_part_if_it_is_bad,
        keep_the_last_beneath_the_call,
        keep_what_was_passed,
        keep_unless_it_is_good,
        keep_all_from_the_first_on,
        keep_an_attribute,
        append_each,
        append_each_of_a_helper,
        append_each_in_a_tuple,
        add_each_in_a_list,
        add_each_on_one_line,
        add_a_part_of_each_in_a_list,
        add_each_in_a_tuple,
        add_each_to_an_attribute,
        append_each_to_a_deque,
        append_each_to_an_attribute,
        call_a_partial,
        call_a_reduction,
        call_an_object,
        train_a_network,
    ],
)
def test_what_each_call_finds_alive_is_left_alone_from_the_first_call_on(caller):
    step = make_step()
    caller(step, 20)
    assert copied_calls(step) == 0
    (emitted,) = (plan.emitted for signature in step.__pytc__.lookup for plan in signature.plans if plan.spared)
    assert compiled(step) == [emitted]


def test_what_only_some_calls_find_alive_is_copied_then():
    step = make_step()
    best = keep_the_best_of_each_epoch(step, 40)
    np.testing.assert_array_equal(best["a"], np.full(4, 40))
    assert plans(step) == [1]
    assert copied_calls(step) == 2  # the first state, and one of two that had the variable's name


def test_two_places_for_one_result_do_not_make_a_plan_for_the_one_that_lives_on():
    step = pytc.compile(lambda state, by: state * 1.5 + by)

    def keep_the_first_two(calls):
        state, by = jnp.ones(5), jnp.ones(5)
        best = state
        for n in range(calls):
            state = step(state, by)
            if n == 0:
                best = state
        return state, by, best

    keep_the_first_two(20)
    (site,) = step.explain().sites
    assert (site.copied_calls, site.donated, site.spared) == (0, 1, ())


WARM_UP = """
state = start()
step(state, 1.0)
for _ in range(20):
    state = step(state, 1.0)
"""
"""Not in a loop, and not in a function that may be called in one."""


def warm_up(step):
    state = start()
    step(state, 1.0)
    for _ in range(20):
        state = step(state, 1.0)


@pytest.mark.parametrize("where", ["script", "function"])
def test_a_call_to_warm_up_compiles_what_the_loop_behind_it_needs(where):
    step = make_step()
    if where == "script":
        exec(WARM_UP, {"start": start, "step": step})
    else:
        exec("warm_up(step)", {"warm_up": warm_up, "step": step})
    assert [site.copied_calls for site in pytc.explain(step).sites] == [1, 0]
    assert plans(step) == [1]


class Log:
    """What is appended, it does not keep."""

    def append(self, state):
        self.last = float(state["a"].sum())


def append_to_a_log(step, calls):
    log, state, in_place = Log(), start(), []
    for _ in range(calls):
        at = state["b"].unsafe_buffer_pointer()
        state = step(state, 1.0)
        in_place.append(state["b"].unsafe_buffer_pointer() == at)
        log.append(state)
    return in_place


def append_now_and_then(step, calls):
    history, state, in_place = [], start(), []
    for k in range(calls):
        at = state["b"].unsafe_buffer_pointer()
        state = step(state, 1.0)
        in_place.append(state["b"].unsafe_buffer_pointer() == at)
        if k % 10 == 9:
            history.append(state)
    return in_place


def append_after_each_epoch(step, calls):
    history, state, in_place = [], start(), []
    for _ in range(calls // 10):
        for _ in range(10):
            at = state["b"].unsafe_buffer_pointer()
            state = step(state, 1.0)
            in_place.append(state["b"].unsafe_buffer_pointer() == at)
        history.append(state)
    return in_place


@pytest.mark.parametrize(
    ("caller", "compilations"), [(append_to_a_log, 2), (append_now_and_then, 1), (append_after_each_epoch, 1)]
)
def test_what_is_appended_and_not_kept_each_time_is_taken_over(caller, compilations):
    step = make_step()
    in_place = caller(step, 40)
    assert plans(step) == [compilations]
    assert in_place.count(False) <= 4  # from the second call on, and where a history was appended to


def keep_the_best_of_each_epoch(step, calls):
    best = state = start()
    for epoch in range(calls // 10):
        for _ in range(10):
            state = step(state, 1.0)
        if epoch % 2:
            best = state
    return best


def test_each_site_has_its_own_plan_and_there_are_two_at_most():
    step = make_step()
    for caller in (throw_away, let_go, read_again, keep_every_state, let_go, throw_away, read_again):
        caller(step, 10)
    assert plans(step) == [2]
    by_site = {site.calls: site.copied_calls for site in step.explain().sites}
    assert sum(by_site.values()) <= 5


descend_by = lambda p, g: p - 0.1 * g  # noqa: E731


def layers(update, calls):
    """The gradients live on, in a list."""
    params = [jnp.ones((64, 64)) for _ in range(2)]
    for _ in range(calls):
        grads = [p * 0.1 for p in params]
        for i in range(len(params)):
            params[i] = update(params[i], grads[i])
    return params, grads


def leaves_of_a_tree(update, calls):
    """The tree has the weights until all gradients are used up."""
    params = {"a": jnp.ones((64, 64)), "b": jnp.ones((64, 64))}
    for _ in range(calls):
        params = jax.tree.map(lambda p: update(p, p * 0.1), params)
    return params


def test_a_place_does_not_keep_what_only_another_place_holds():
    update = pytc.compile(descend_by)
    layers(update, 10)
    leaves_of_a_tree(update, 20)
    assert plans(update) == [2]
    one, other = update.explain().sites
    assert one.donated_bytes == other.donated_bytes == 64 * 64 * 4


def hold_a_part(step, times):
    for _ in range(times):
        state = start()
        held = state["a"]
        state = step(state, 1.0)
    return held, state


@pytest.mark.parametrize("first", [hold_a_part, read_again, throw_away], ids=lambda caller: caller.__name__)
@pytest.mark.parametrize("second", [hold_a_part, read_again, throw_away], ids=lambda caller: caller.__name__)
def test_a_caller_that_lets_go_comes_never_too_late(first, second):
    step = make_step()
    for caller in (first, second, let_go):
        caller(step, 10)
    assert max(plans(step)) <= 2
    *_, last = step.explain().sites
    assert (last.kept, last.copied_calls) == (0, 0)


class Averaging:
    """Whose `average` is held by something unseen, beside `weights` that would do as well and are read later."""

    def __init__(self, update, times):
        self.weights = [jnp.full(4, float(k)) for k in range(3)]
        self.average = [w + 1 for w in self.weights]
        self.held = []
        for _ in range(times):
            self.held.append(iter([self.average]))
            self.step(update)

    def step(self, update):
        self.average = update(self.weights, self.average)


class AveragingAndMore(Averaging):
    """With another output, which could be written over the weights."""

    def step(self, update):
        self.average, self.more = update(self.weights, self.average)


@pytest.mark.parametrize("kind", [Averaging, AveragingAndMore])
def test_what_is_held_at_each_call_is_not_copied_for_ever(kind):
    """Not even for the sake of a caller that may come and let go of everything."""

    @pytc.compile
    def update(weights, average):
        mixed = [0.5 * a + 0.5 * w for a, w in zip(average, weights, strict=True)]
        return mixed if kind is Averaging else (mixed, [w + 1 for w in weights])

    kind(update, 40)
    assert 0 < copied_calls(update) <= 8
    assert max(plans(update)) <= 2


def keep_now_and_then(step, period, calls):
    """With something else of the state's shape, which is read later."""
    state, saved, stayed = jnp.zeros(4), None, 0
    target = jnp.ones(4)
    for i in range(calls):
        before = state.unsafe_buffer_pointer()
        if i % period == period - 1:
            saved = state
        state = step(state, target)
        stayed += state.unsafe_buffer_pointer() == before
    return stayed, saved, target


class _Property:
    """Whose state is behind a property, so that nothing is proven of it."""

    def __init__(self, state):
        self._state = state

    @property
    def state(self):
        return self._state

    @state.setter
    def state(self, state):
        self._state = state


def step_behind_a_property(step, first, calls):
    owner = _Property((first, jnp.zeros((8, 8))))
    for _ in range(calls):
        owner.state = step(owner.state)
    return owner.state


@pytest.mark.parametrize("first", [0, np.int32(0), jnp.int32(0)], ids=lambda first: type(first).__name__)
def test_a_counter_that_begins_as_a_number_does_not_keep_a_held_state_from_being_spared(first):
    step = pytc.compile(lambda state: (state[0] + 1, state[1] + 1.0))
    count, value = step_behind_a_property(step, first, 20)
    assert (int(count), float(value.sum())) == (20, 20 * 64)
    assert sum(site.copied_calls for site in pytc.explain(step).sites) <= 4


@pytest.mark.parametrize("period", [16, 17, 64])
def test_a_snapshot_now_and_then_costs_one_copy_each(period):
    step = pytc.compile(lambda state, target: state + target)
    for _ in range(4):
        stayed, *_ = keep_now_and_then(step, period, 64)
        assert stayed >= 64 - 64 // period - 2


def keep_every_loss(step, calls):
    state, losses = start(), []
    for _ in range(calls):
        state = step(state, 1.0)
        losses.append(state["a"].sum())
    return state, losses


def hold_at_first(step, held, calls):
    """Early stopping: the best state so far is kept, and after some steps there is no better one."""
    state, best, in_place = start(), None, []
    for k in range(calls):
        if k < held:
            best = state
        at = state["b"].unsafe_buffer_pointer()
        state = step(state, 1.0)
        in_place.append(state["b"].unsafe_buffer_pointer() == at)
    return best, in_place


@pytest.mark.parametrize("held", [3, 5, 20])
def test_what_was_held_at_first_is_taken_over_once_nothing_holds_it(held):
    compiled = make_step()
    _, in_place = hold_at_first(compiled, held, 100)
    assert not any(in_place[:held])
    assert all(in_place[2 * held + 2 :])
    (site,) = pytc.explain(compiled).sites
    assert site.copied_calls <= 4
    assert len(next(iter(compiled.__pytc__.lookup)).plans) <= 2


def test_a_site_that_spares_is_tried_again_without_a_copy():
    compiled = make_step()
    keep_every_state(compiled, 100)  # few enough that all arrays alive are looked at
    (site,) = pytc.explain(compiled).sites
    assert site.copied_calls <= 4
    hold_at_first(compiled, 5, 5)
    in_place = hold_at_first(compiled, 0, 60)[1]
    # From the eighth call at that site on; or from the sixteenth, if at the eighth very many arrays were thought to be
    # alive, of which there were fewer by then.
    assert all(in_place[11:])


class Recorder:
    """It holds what it was told of last, which is not seen from where the calls are."""

    def tell(self, *state):
        self.state = state


def each_in_a_variable(step, recorder, p, m):
    for _ in range(20):
        p, m = step(p, m)
        recorder.tell(p, m)


def with_the_best_so_far(step, recorder, p, m):
    best = p
    for k in range(20):
        p, m = step(p, m)
        recorder.tell(p, m)
        best = p if k == 12 else best
    return best


def all_in_a_tuple(step, recorder, p, m):
    state = p, m
    for _ in range(20):
        state = step(*state)
        recorder.tell(*state)
    return p


def each_in_a_dictionary(step, recorder, p, m):
    state = {"p": p, "m": m}
    for _ in range(20):
        state["p"], state["m"] = step(state["p"], state["m"])
        recorder.tell(*state.values())
    return p


STEPS = {
    "crosswise": lambda p, m: (p - m, m * 0.5 + p),
    "each from its own": lambda p, m: (p * 0.5, m + 1),
    "of two shapes": lambda p, m: (p - m.sum(), m * 0.5 + p.sum()),
}


@pytest.mark.parametrize("function", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(
    "caller", [each_in_a_variable, with_the_best_so_far, all_in_a_tuple, each_in_a_dictionary], ids=lambda f: f.__name__
)
def test_what_something_unseen_holds_is_copied_three_times_whatever_else_could_be_taken_over(caller, function):
    step = pytc.compile(function)
    m = jnp.ones(600 if function is STEPS["of two shapes"] else 1000)
    caller(step, Recorder(), jnp.ones(1000), m)
    assert copied_calls(step) <= 3
    assert plans(step)[0] <= 2


def test_a_leaf_that_is_let_go_of_later_is_taken_over_beside_one_that_is_held_for_ever():
    """At a third place, where both plans are made already."""
    step, held = pytc.compile(lambda x, y: (x + 1, y * 2)), []

    def give_away_all(x, y):
        for _ in range(5):
            x, y = step(x, y)

    def keep_one(x, y):
        kept = y
        for _ in range(5):
            x, _ = step(x, y)
        return kept

    def hold(x, y):
        places, kept = [], {}
        for k in range(70):
            held[:] = [x]
            if k < 6:
                kept["y"] = y
            else:
                kept.clear()
            places.append(y.unsafe_buffer_pointer())
            x, y = step(x, y)
        return places

    for caller in (give_away_all, keep_one):
        caller(jnp.arange(1000.0), jnp.ones(1000))
    places = hold(jnp.arange(1000.0), jnp.ones(1000))
    assert len({*places[20:]}) == 1


def in_a_starred_tuple(step, first):
    state = first, jnp.zeros(1000)
    for _ in range(5):
        state = step(*state)
    return state, first


def in_items_of_a_tuple(step, first):
    state = first, jnp.zeros(1000)
    for _ in range(5):
        state = step(state[0], state[1])
    return state, first


def in_a_tuple_beside_a_function_that_names_the_first(step, first):
    def again():
        return first

    state = first, jnp.zeros(1000)
    for _ in range(5):
        state = step(*state)
    return state, again()


@pytest.mark.parametrize(
    "caller", [in_a_starred_tuple, in_items_of_a_tuple, in_a_tuple_beside_a_function_that_names_the_first]
)
def test_a_first_state_that_has_another_name_is_copied_once_also_out_of_a_tuple(caller):
    step = pytc.compile(lambda w, k: (w * 2 + k, k + 1))
    (w, k), first = caller(step, jnp.ones(1000))
    np.testing.assert_array_equal(first, 1)
    assert (float(w[0]), float(k[0])) == (58, 5)
    assert plans(step) == [1]
    assert copied_calls(step) == 1


@pytest.mark.parametrize("held", [False, True])
def test_what_is_proven_dead_is_taken_over_whatever_the_code_looked_like(monkeypatch, held):
    guess = ownership.Surviving(*[frozenset({0, 1})] * 2)
    monkeypatch.setattr(ownership, "survivors", lambda *_: guess)
    compiled, places = make_step(), []

    def run():
        state = {"a": jnp.zeros(8), "b": jnp.ones(9)}
        history = []
        for _ in range(9):
            history += [state["a"]] if held else []
            state = compiled(state, 1.0)
            places.append(state["b"].unsafe_buffer_pointer())
        return history

    run()
    assert len({*places[1:]}) == 1
    (site,) = pytc.explain(compiled).sites
    assert site.copied_calls == 0
    assert bool(site.kept) is held


def hold_another_later(step, calls):
    box, kept = types.SimpleNamespace(one=jnp.zeros(4), other=jnp.ones(5), history=[]), []
    for k in range(calls):
        if k >= 10:
            _keep(kept, box.other)
        box.one, box.other = step(box.one, box.other)
        box.history.append(box.one)
    return box.history, kept


def _keep(kept, value):
    kept.append(value)


def test_what_is_held_later_is_spared_although_something_else_was_spared_before():
    step = pytc.compile(lambda one, other: (one + 1, other * 2))
    history, kept = hold_another_later(step, 100)
    assert [x.tolist()[0] for x in history] == [*range(1, 101)]
    assert [x.tolist()[0] for x in kept] == [2.0**k for k in range(10, 100)]
    assert copied_calls(step) <= 6
    assert plans(step)[0] <= 3


def leave_garbage(step, calls):
    """As `flax.nnx.state(model)` does: a function that refers to itself and to the leaves."""

    def visit_all(leaves):
        def visit():
            return visit, leaves

    state, in_place = start(), []
    for _ in range(calls):
        visit_all((*state.values(),))
        at = state["b"].unsafe_buffer_pointer()
        state = step(state, 1.0)
        in_place.append(state["b"].unsafe_buffer_pointer() == at)
    return in_place


@pytest.fixture
def _hardly_collected():
    """The collector is on, but by itself it does not come: what is garbage later would be old by then, once in a while,
    and only young garbage is looked for."""
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, *before[1:])
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_hardly_collected")
@pytest.mark.parametrize("donate", ["auto", "require"])
def test_what_only_garbage_holds_is_taken_over(donate):
    compiled = pytc.compile(lambda state, batch: {k: v + batch for k, v in state.items()}, donate=donate)
    in_place = leave_garbage(compiled, 30)
    assert all(in_place[4 if donate == "auto" else 1 :])
    (site,) = pytc.explain(compiled).sites
    assert site.copied_calls <= 3
    let_go(compiled, 30)
    gc.disable()
    try:
        assert not any(leave_garbage(make_step(), 10)[1:])
    finally:
        gc.enable()


class Late(Exception):
    """A deadline has come."""


def serve(step, requests):
    """Requests that read their state again, of which some come too late."""
    late = 0
    for _ in range(requests):
        state = start()
        try:
            new = step(state, 1.0)
        except Late:
            late += 1
        else:
            assert float((new["a"] - state["a"]).sum()) == 4
    return late


def test_a_plan_that_is_never_compiled_in_time_is_not_tried_at_each_call(monkeypatch):
    step, call = make_step(), Emitted.call
    let_go(step, 5)

    def too_slow(self, leaves, landed):
        if self.is_new:
            raise Late
        call(self, leaves, landed)

    monkeypatch.setattr(Emitted, "call", too_slow)
    late = serve(step, 40)
    assert 0 < late <= 5
    monkeypatch.undo()
    assert serve(step, 40) == 0
    assert [site.copied_calls < site.calls for site in step.explain().sites] == [True, True]


def test_objects_are_not_looked_through_for_ever(monkeypatch):
    asked, reasons = [], asking.ownership.reasons
    monkeypatch.setattr(asking.ownership, "reasons", lambda *given: asked.append(1) or reasons(*given))
    monkeypatch.setattr(asking, "FIRST_SECONDS", -1.0)
    monkeypatch.setattr(asking, "SHARE", 0.0)
    keep_in_a_log(make_step(), 10)
    assert asked == []
    monkeypatch.setattr(asking, "FIRST_SECONDS", float("inf"))
    keep_in_a_log(make_step(), 10)
    assert asked != []


def keep_in_a_log(step, calls):
    state, log = start(), []
    keep = log.append
    for _ in range(calls):
        keep({"kept": state})
        state = step(state, 1.0)


def test_require_looks_among_however_many_arrays():
    step, others = pytc.compile(lambda state: state * 0.5 + 1, donate="require"), [jnp.zeros(()) for _ in range(3000)]
    assert_in_place(halve_and_add(step, 4))
    others.clear()


def halve_and_add(step, calls):
    state, where = jnp.zeros((8, 8)), []
    for _ in range(calls):
        state = step(state)
        where.append(state.unsafe_buffer_pointer())
    return where


def halve_again(step, calls):
    state, where = start(), []
    for _ in range(calls):
        state = step(state, 1.0)
        where.append(state["b"].unsafe_buffer_pointer())
    return where


def test_what_is_kept_as_too_many_are_alive_is_won_back_where_another_leaf_is_read():
    step, others = pytc.compile(lambda x, y: (x * 2, y + 1)), [jnp.zeros(()) for _ in range(3000)]
    x, y, where = jnp.zeros(100), jnp.ones(100), []
    for k in range(40):
        if k == 6:
            others.clear()
        new, y = step(x, y)
        where.append(y.unsafe_buffer_pointer())
        x.block_until_ready()
        x = new
    assert len({*where[:6]}) > 1
    assert_in_place(where[-8:])


def test_where_too_many_are_alive_no_leaf_takes_the_place_of_another():
    grad, others = jax.jit(lambda p: p * 0.5), [jnp.zeros(()) for _ in range(3000)]
    step = pytc.compile(lambda p, m, g: p * 2 + m + g)
    p, m, g = (grad(jnp.zeros(100)) for _ in range(3))
    before = len(compilations)
    for _ in range(12):
        p = step(p, m, g)
        m, g = grad(p), grad(p)
    assert len(compilations) - before == 1
    assert sum(site.copied_calls for site in step.explain().sites) == 0
    others.clear()


def test_nor_if_the_others_come_later():
    step, others = make_step(), []
    state = start()
    for k in range(20):
        if k == 5:
            others = [jnp.zeros(()) for _ in range(3000)]
        state = step(state, 1.0)
    np.testing.assert_array_equal(state["a"], np.full(4, 20))
    (site,) = step.explain().sites
    assert (site.donated, site.copied_calls) == (0, 3)
    assert {path for path, why in site.why if "so many arrays are alive" in why} == {"state['a']", "state['b']"}
    others.clear()


def add_a_new_one(step, calls, others):
    x, y = jnp.zeros(4), None
    for k in range(calls):
        if k == 5:
            others += [jnp.zeros(()) for _ in range(3000)]
        y = jnp.ones(4)
        x = step(x, y)
    return x


def add_the_same(step, calls, others):
    x, y = jnp.zeros(4), jnp.ones(4)
    for k in range(calls):
        if k == 5:
            others += [jnp.zeros(()) for _ in range(3000)]
        x = step(x, y)
    return x


@pytest.mark.parametrize(("advance", "by_number"), [(add_a_new_one, {"x", "y"}), (add_the_same, {"x"})])
def test_nor_are_both_of_two_leaves_that_one_result_fits_copied_in_turn(advance, by_number):
    """And what the code reads again is not said to be kept for their number."""
    step, others = pytc.compile(lambda x, y: x + y * 0.5), []
    advance(step, 20, others)
    before = len(compilations)
    others.clear()
    np.testing.assert_array_equal(advance(step, 60, others), np.full(4, 30))
    assert len(compilations) == before
    (site,) = step.explain().sites
    assert (site.donated, site.copied_calls) == (0, 3)
    assert {path for path, why in site.why if "so many arrays are alive" in why} == by_number
    assert ("can be read after the call: y" in str(step.explain())) == ("y" not in by_number)
    others.clear()


def step_below(step, xs, ys):
    return step(xs, ys)


def advance_below(step, calls, keeps):
    xs, ys = ([jnp.full(4, 1.0) for _ in range(6)] for _ in range(2))
    for _ in range(calls):
        xs = step_below(step, xs, ys)
        if not keeps:
            ys = [jnp.full(4, 1.0) for _ in range(6)]


def test_nor_if_another_caller_reads_more_of_it_than_are_looked_at():
    step, others = pytc.compile(lambda xs, ys: [x + y * 0.5 for x, y in zip(xs, ys, strict=True)]), []
    advance_below(step, 3, keeps=False)
    others += [jnp.zeros(()) for _ in range(18_000)]
    advance_below(step, 25, keeps=True)
    (site,) = step.explain().sites
    assert "can be read after the call: ys[0..5]" in str(step.explain())
    assert not {path for path, why in site.why if path.startswith("ys") and "so many arrays are alive" in why}
    others.clear()


def keep_at_once(step, calls):
    x = jnp.zeros(4)
    for _ in range(calls):
        y = step_alone(step, x)
        x = x + y


def step_alone(step, x):
    return step(x)


def test_where_they_are_gone_they_are_no_reason_any_more():
    step, others = pytc.compile(lambda x: x * 0.5 + 1), [jnp.zeros(()) for _ in range(3000)]
    x = jnp.zeros(4)
    for _ in range(3):
        x = step_alone(step, x)
    assert "so many arrays are alive" in str(step.explain())
    others.clear()
    keep_at_once(step, 300)
    assert "read again in test_plans.py" in str(step.explain())
    assert "so many arrays are alive" not in str(step.explain())


def assert_in_place(where):
    assert len({*where}) == 1


def test_small_states_are_not_looked_for_among_very_many_arrays():
    step, others = make_step(), [jnp.zeros(()) for _ in range(3000)]
    keep_every_loss(jax.jit(lambda state, _: state), 1)  # what it compiles besides
    before = len(compilations)
    state, _ = keep_every_loss(step, 20)
    assert len(compilations) - before == 1
    np.testing.assert_array_equal(state["a"], np.full(4, 20))
    (site,) = step.explain().sites
    assert (site.donated, site.copied_calls) == (0, 0)
    assert {path for path, why in site.why if "so many arrays are alive" in why} == {"state['a']", "state['b']"}
    told = str(step.explain())
    assert "to have it reused" not in told  # by a local variable it would not be
    assert "something else" not in told
    others.clear()
    assert_in_place(halve_again(step, 40)[-8:])
    other = make_step()
    let_go(other, 20)
    (site,) = other.explain().sites
    assert (site.kept, site.copied_calls) == (0, 0)


compilations: list[str] = []
monitoring.register_event_duration_secs_listener(
    lambda event, _, **__: compilations.append(event) if "backend_compile" in event else None
)


def new_parts():
    return {"w": jnp.arange(600.0), "n": jnp.ones((20, 2)), "m": jnp.ones(7)}


def grown(state):
    return jax.tree.map(lambda x: x * 1.5, state)


HOLDS = "def caller(step, state, kept):\n    for _ in range(6):\n        kept += [{}]\n        state = step(state)\n"
READS = "def caller(step, state, kept):\n    for _ in range(6):\n        new = step(state)\n        kept += [{}]\n        state = new\n"  # noqa: E501


def test_one_signature_is_compiled_twice_at_most_whatever_its_callers_hold():
    step, places = pytc.compile(lambda state: grown(state)), []
    for source, names in itertools.product(
        (HOLDS, READS), itertools.chain(*(itertools.combinations("wnm", r) for r in range(4)))
    ):
        space = {}
        exec(source.format(", ".join(f"state['{name}']" for name in names)), space)
        places.append(space["caller"])
    states = [new_parts() for _ in places * 3]
    before = len(compilations)
    for number, state in enumerate(states):
        kept = []
        places[number * 5 % len(places)](step, state, kept)
        for array in kept:
            array.block_until_ready()
    assert len(compilations) - before == 2


subtract = jax.jit(lambda params, grads: jax.tree.map(jnp.subtract, params, grads))


def descend(step, params):
    for _ in range(10):
        grads = step(params)
        params = subtract(params, grads)
    return params


def test_nothing_is_compiled_again_where_the_first_site_shows_that_it_lives_on():
    step = pytc.compile(lambda params: grown(params))
    params = new_parts()
    subtract(params, params)
    before = len(compilations)
    descend(step, params)
    assert len(compilations) - before == 1
    assert sum(site.copied_calls for site in step.explain().sites) == 0


def hold_now_and_then(step, calls):
    state, best = new_parts(), None
    for i in range(calls):
        if i % 7 == 3:
            best = state["w"]
        state = step(state)
    return state, best


def keep_the_gradients(step, state, grads):
    state = step(state, grads)
    return state, grads


@pytest.mark.parametrize(
    ("fun", "looked", "spares"),
    [
        (lambda state, grads: state - grads, 1, False),
        (lambda state, grads: (state - grads, grads.sum()), 1, False),
        (lambda state, grads: (state - grads, state * 2), 2, True),
    ],
    ids=["each result has its place", "but a loss", "but one that the gradients could hold"],
)
def test_the_passes_are_asked_twice_only_where_what_is_kept_could_hold_a_result(monkeypatch, fun, looked, spares):
    """That a leaf is kept costs something only if a result of its size has no place of its own."""
    asked, paired = [], Planner.paired
    monkeypatch.setattr(Planner, "paired", lambda self, *given: asked.append(1) or paired(self, *given))
    step = pytc.compile(fun)
    keep_the_gradients(step, jnp.ones((8, 8)), jnp.ones((8, 8)))
    (signature,) = step.__pytc__.lookup
    assert ([plan.spared for plan in signature.plans], len(asked)) == ([spares], looked)


def test_nothing_is_left_behind_by_calls_that_copy():
    step = pytc.compile(lambda state: grown(state))
    client = jax.devices()[0].client
    hold_now_and_then(step, 20)
    before = len(client.live_executables()), len(client.live_arrays())
    hold_now_and_then(step, 1000)
    assert (len(client.live_executables()), len(client.live_arrays())) == before
    assert step._cache_size() == 1


def test_liveness_is_computed_once_for_each_call_site(monkeypatch):
    made = []

    class Counted(analysed.CallSite):
        def __init__(self, *args):
            made.append(1)
            super().__init__(*args)

    class Flow(analysed.ControlFlow):
        def dead(self, *args, **kwargs):
            made.append(2)
            return super().dead(*args, **kwargs)

    monkeypatch.setattr(analysed, "CallSite", Counted)
    monkeypatch.setattr(analysed, "ControlFlow", Flow)
    step = pytc.compile(lambda x: x + 1)

    class Trainer:
        x = None

        def train(self, calls):
            for _ in range(calls):
                self.x = step(self.x)

    trainer = Trainer()
    trainer.x = jnp.zeros(4)
    trainer.train(5)
    before = len(made)
    trainer.train(100)
    assert len(made) == before


def in_threads(count, call):
    together, results = threading.Barrier(count), [None] * count

    def run(i):
        together.wait()
        results[i] = call(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_that_call_first_at_the_same_time_compile_once():
    traces, calling = [], []

    @pytc.compile
    def step(state):
        traces.append(None)
        while len(calling) < 4:
            time.sleep(0.001)
        time.sleep(0.05)  # the other three are about to call: now they do
        return state + 1

    def call(i):
        state = jnp.full(4, i)
        calling.append(None)
        return step(state)

    results = in_threads(4, call)
    assert [result.tolist() for result in results] == [[i + 1] * 4 for i in range(4)]
    assert len(traces) == step._cache_size() == 1


def test_threads_with_other_shapes_compile_at_the_same_time():
    all_tracing = threading.Barrier(3, timeout=60)

    @pytc.compile
    def step(state):
        all_tracing.wait()
        return state + 1

    assert [result.size for result in in_threads(3, lambda i: step(jnp.zeros(i)))] == [0, 1, 2]


def test_threads_need_not_wait_for_one_that_failed_to_compile():
    turns = []

    @pytc.compile
    def step(state):
        turns.append(None)
        if len(turns) == 1:
            time.sleep(0.05)
            raise LookupError("only the first time")
        return state + 1

    kept = []

    def call(i):
        try:
            return step(jnp.full(4, i)).tolist()
        except LookupError as error:
            kept.append(error)  # with its traceback, and the frames in it
            return None

    results = in_threads(3, call)
    assert len(kept) == 1
    assert sorted(result is None for result in results) == [False, False, True]
    assert len(turns) == 2


def test_a_program_may_wait_for_a_thread_that_calls_it_for_the_first_time():
    inner = []

    def ask(state):
        if not inner:
            inner.append(None)
            inner[:] = in_threads(1, lambda _: step(np.asarray(state) + 1))
        return state

    @pytc.compile
    def step(state):
        return jax.pure_callback(ask, jax.ShapeDtypeStruct(state.shape, state.dtype), state) * 2

    assert step(np.ones(3, np.float32)).tolist() == [2, 2, 2]
    assert inner[0].tolist() == [4, 4, 4]


@pytest.mark.parametrize("others_call_python", [True, False])
def test_copies_are_waited_for_beside_a_program_that_may_wait_for_what_is_made_of_them(monkeypatch, others_call_python):
    """On one of XLA's threads, which may then never begin with it."""
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda _, y: y @ y * 1e-3, x))
    x = jnp.ones((300, 300)).block_until_ready()
    slow(x).block_until_ready()
    monkeypatch.setattr(decide, "private_copies", lambda originals: [slow(each) for each in originals])
    monkeypatch.setattr(decide.callbacks, "are_there", lambda: others_call_python)
    (copy,) = decide._with_copies([x], [0], types.SimpleNamespace(calls_python=False))
    assert copy.is_ready() == others_call_python


class Trainer:
    def __init__(self, step):
        self.step, self.state, self.best = step, jnp.zeros(4), None

    def train(self, calls):
        for _ in range(calls):
            self.state = self.step(self.state)

    def train_in_a_handler(self, calls):
        state = self.state
        del self.state
        try:
            for _ in range(calls):
                state = self.step(state)
        finally:
            self.state = state


@pytest.mark.parametrize("train", [Trainer.train, Trainer.train_in_a_handler])
def test_what_others_may_read_is_taken_over_from_the_first_call_on(train):
    """That one compiles, and JAX returns from it through Python code."""
    traced = []
    step = pytc.compile(lambda state: traced.append(1) or state + 1, donate="require")
    trainer = Trainer(step)
    where = trainer.state.unsafe_buffer_pointer()
    for _ in range(3):
        train(trainer, 1)
        assert trainer.state.unsafe_buffer_pointer() == where
    assert trainer.state.tolist() == [3] * 4
    assert len(traced) == 1
    assert copied_calls(step) == 0
    trainer.best = trainer.state
    with pytest.raises(pytc.DonationError, match=r"state: f32\[4\], 16 bytes: attribute `best` of Trainer"):
        train(trainer, 1)


def keep_every_leaf(step):
    state = {"layers": [jnp.ones(9 - k % 2) for k in range(50)], "bias": jnp.ones(3)}
    kept = [*state["layers"]]
    bias = state["bias"]
    return step(state), kept, bias


def test_leaves_that_the_same_thing_holds_are_told_in_one_line():
    step = pytc.compile(lambda state: jax.tree.map(lambda x: x + 1, state), donate="require")
    with pytest.raises(pytc.DonationError) as raised:
        keep_every_leaf(step)
    first, *lines, last = str(raised.value).splitlines()
    assert first == "<lambda>: the memory of 51 leaves could be reused, but they are still in use:"
    assert re.fullmatch(r"  state\['bias'\]: f32\[3\], 12 bytes: also `bias` in test_plans.py:\d+", lines[0])
    told = r"  state\['layers'\]\[%s\]: 25 x f32\[%d\], %d bytes: an item of `kept` in test_plans.py:\d+"
    assert re.fullmatch(told % (r"0,2,4,\.\.\.,48", 9, 900), lines[1])
    assert re.fullmatch(told % (r"1,3,5,\.\.\.,49", 8, 800), lines[2])
    assert len(lines) == 3
    assert last.startswith("Let go of them")


def test_require_holds_from_the_first_call_on():
    step = pytc.compile(lambda state: state + 1, donate="require")
    trainer = Trainer(step)
    trainer.best = trainer.state
    with pytest.raises(pytc.DonationError, match="attribute `best` of Trainer"):
        trainer.train(1)
    assert trainer.best is trainer.state
    assert trainer.state.tolist() == [0] * 4


def test_what_others_may_read_is_taken_over_as_the_plan_changes():
    """The new plan compiles, too."""
    step = pytc.compile(lambda one, other: (one + 1, other * 2))

    class Both:
        one, other = None, None

        def run(self, calls):
            held, places = [], []
            self.one, self.other = jnp.zeros(4), jnp.ones(5)
            for _ in range(calls):
                held.append(self.one)
                places.append(self.other.unsafe_buffer_pointer())
                self.one, self.other = step(self.one, self.other)
            return [x.tolist()[0] for x in held], places

    values, places = Both().run(8)
    assert values == list(range(8))
    assert plans(step) == [2]
    assert len({*places}) == 1


def each_in_a_list(step, states, rounds):
    for _ in range(rounds):
        states = [step(state) for state in states]
    return states


def each_in_a_generator(step, states, rounds):
    for _ in range(rounds):
        states = tuple(step(state) for state in states)
    return states


def each_in_a_copy_of_the_list(step, states, rounds):
    for _ in range(rounds):
        states = [step(state) for state in list(states)]
    return states


def each_appended(step, states, rounds):
    for _ in range(rounds):
        new = []
        for state in list(states):
            new.append(step(state))
        states = new
        del new
    return states


def each_in_a_dictionary(step, states, rounds):
    states = dict(enumerate(states))
    for _ in range(rounds):
        states = {k: step(state) for k, state in states.items()}
    return list(states.values())


def each_in_a_helper(step, states, rounds):
    def advance(states):
        return [step(state) for state in states]

    for _ in range(rounds):
        states = advance(states)
    return states


def each_in_a_loop_of_a_helper(step, states, rounds):
    def advance(states):
        new = []
        for _, state in enumerate(states):
            new.append(step(state))
        return new

    for _ in range(rounds):
        states = advance(states)
    return states


@pytest.mark.parametrize(
    "advance",
    [
        each_in_a_list,
        each_in_a_generator,
        each_in_a_copy_of_the_list,
        each_appended,
        each_in_a_dictionary,
        each_in_a_helper,
        each_in_a_loop_of_a_helper,
    ],
)
@pytest.mark.parametrize("keys", ["abc", "cab"])
def test_states_that_take_turns_are_looked_for_with_care_at_first_alone(monkeypatch, advance, keys):
    """The first states may have their keys in another order than JAX, which sorts them."""
    careful = []
    remember = proof.remember
    monkeypatch.setattr(proof, "remember", lambda *args: (careful.append(1), remember(*args)))
    step = pytc.compile(lambda state: {k: v + 1.0 for k, v in state.items()})
    states = advance(step, [{k: jnp.full(3, i, jnp.float32) for k in keys} for i in range(2)], 50)
    assert [float(state["a"][0]) for state in states] == [50.0, 51.0]
    (site,) = pytc.explain(step).sites
    assert site.donated == 3
    assert len(careful) <= 12


def test_arrays_of_other_programs_are_told_apart_the_quick_way_however_many_there_are(monkeypatch):
    """The gradients, which `jax.jit` has made, are as well donated as the momentum."""
    from pytc.ownership.arrays import buffers

    careful, shared = [], buffers.shared
    monkeypatch.setattr(buffers, "shared", lambda *args, **options: (careful.append(1), shared(*args, **options))[1])
    gradients = jax.jit(lambda weights: [2.0 * w for w in weights])

    @pytc.compile
    def update(weights, momentum, grads):
        momentum = [0.9 * m + g for m, g in zip(momentum, grads, strict=True)]
        return [w - 0.1 * m for w, m in zip(weights, momentum, strict=True)], momentum

    weights = [jnp.full(8, i, jnp.float32) for i in range(100)]
    momentum = [jnp.zeros_like(w) for w in weights]
    for step in range(6):
        if step == 3:
            careful.clear()
        grads = gradients(weights)
        weights, momentum = update(weights, momentum, grads)
    assert not careful
    (site,) = pytc.explain(update).sites
    assert site.donated == 200


def test_very_many_arrays_are_asked_for_their_addresses_only_for_leaves_that_take_longer_to_copy():
    from pytc.ownership.arrays import buffers

    others = [jnp.zeros(()) for _ in range(3000)]
    small, large = jnp.zeros(1000), jnp.zeros(10_000_000)
    assert buffers.alone([large])
    assert not buffers.alone([small])
    others.clear()
    assert buffers.alone([small])


def advance_each(step, population, rounds):
    for _ in range(rounds):
        for i, state in enumerate(population):
            population[i] = step(state)


def advance_each_by_name(step, population, rounds):
    for _ in range(rounds):
        for name, state in population.items():
            population[name] = step(state)


@pytest.mark.parametrize(
    ("advance", "kind"),
    [(advance_each, list), (advance_each_by_name, lambda states: dict(zip("abc", states, strict=True)))],
)
def test_an_item_that_is_overwritten_is_taken_over_although_a_caller_has_the_container(advance, kind):
    step = pytc.compile(lambda state: {k: v + 1.0 for k, v in state.items()})
    population = kind([start() for _ in range(3)])
    advance(step, population, 5)
    assert population
    (site,) = pytc.explain(step).sites
    assert (site.donated, site.copied_calls) == (2, 0)
    assert step._cache_size() == 1


@pytest.mark.parametrize("size", [400, 1_000_000])
def test_what_a_callback_raises_comes_from_the_call_that_copies_too(size):
    def look(first):
        if first > 5:
            raise ValueError("diverged")
        return np.float32(0)

    def lets_go(step):
        state = jnp.ones(size)
        for _ in range(3):
            state = step(state, 1)

    def falls_back(step):
        state = before = jax.block_until_ready(jnp.ones(size))
        caught = 0
        for by in (2, 9, 2):
            try:
                new = step(state, by)
            except (ValueError, jax.errors.JaxRuntimeError):
                caught += 1
                new = before
            before, state = state, new
        return caught, float(state[-1])

    for _ in range(10):

        @pytc.compile
        def step(state, by):
            return state * by + jax.pure_callback(look, jax.ShapeDtypeStruct((), jnp.float32), state[0])

        lets_go(step)
        assert falls_back(step) == (1, 2)
        assert step.explain().sites[-1].copied_calls == 2  # and one that raised


def test_what_is_collected_is_left_alone_whether_or_not_a_counter_is_an_array_yet():
    """It begins as a number. The program for that serves no call that comes later."""
    step = pytc.compile(lambda state: (state[0] * 0.9, state[1] + 1))
    state, history = (jnp.ones((64, 64)), 0.0), []
    for _ in range(12):
        state = step(state)
        history.append(state[0])
    np.testing.assert_allclose(history[0], np.full((64, 64), 0.9))
    assert copied_calls(step) == 0
    assert len(compiled(step)) == 2


def each_in_turn(step, states, rounds):
    for _ in range(rounds):
        for i in range(len(states)):
            states[i] = step(states[i])


def test_hundreds_of_states_in_turn_are_known_by_their_age(monkeypatch):
    step = pytc.compile(lambda x: x + 1.0)
    states = [jnp.full(4, float(i)) for i in range(400)]  # others are alive, and with 1,024 nothing so small is proven
    each_in_turn(step, states, 2)
    asked = []
    every_array = buffers.every_array
    monkeypatch.setattr(buffers, "every_array", lambda: asked.append(None) or every_array())
    before = {x.unsafe_buffer_pointer() for x in states}
    each_in_turn(step, states, 3)
    after = {x.unsafe_buffer_pointer() for x in states}
    assert not asked
    assert before == after
