"""Whole programs that can still read an old state: every array that they can reach is intact.

The callers have no asserts: pytest's look into `locals()`, which rightly stops every donation. Each returns the
arrays that it can still read; they must be those that the same caller gets with `jax.jit`.
"""

from __future__ import annotations

import builtins
import functools
import gc
import operator
import queue
import sys
import threading
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from tests.callers import STEPS, body, init

KEPT = []


def keeps(caller):
    KEPT.append(caller)
    return caller


@keeps
def another_name(step):
    state = init()
    first = state
    for i in range(STEPS):
        state = step(state, float(i))
    return first, state


@keeps
def a_list(step):
    state, history = init(), []
    for i in range(STEPS):
        history.append(state["w"])
        state = step(state, float(i))
    return history, state


@keeps
def a_closure(step):
    state = init()

    def look():
        return state

    seen = []
    for i in range(STEPS):
        new = step(state, float(i))
        seen.append(look()["w"] + 0)
        state = new
    return seen, state


@keeps
def a_default_argument(step):
    state = init()

    def look(kept=state):
        return kept

    for i in range(STEPS):
        state = step(state, float(i))
    return look(), state


@keeps
def an_attribute(step):
    trainer = types.SimpleNamespace(state=init())
    trainer.best = trainer.state
    for i in range(STEPS):
        trainer.state = step(trainer.state, float(i))
    return trainer.best, trainer.state


@keeps
def an_exception_handler(step):
    state = init()
    try:
        for i in range(STEPS):
            state = step(state, float(i))
            if i == 3:
                raise KeyError
    except KeyError:
        return state
    return None


@keeps
def a_handler_of_the_call(step):
    state, seen = init(), []
    for i in range(STEPS):
        try:
            state = step(state, float(i) if i != 2 else "no number")
        except TypeError:
            seen.append(state["w"] + 0)
    return seen, state


@keeps
def a_finally(step):
    old = state = init()
    try:
        state = step(state, 1.0)
    finally:
        total = old["w"].sum()
    return total, state


@keeps
def a_generator(step):
    def states():
        state = init()
        while True:
            yield state
            state = step(state, 1.0)

    running, seen = states(), []
    for _ in range(STEPS):
        seen.append(next(running))
    return seen


@keeps
def a_queue(step):
    waiting = queue.Queue()
    state = init()
    for i in range(STEPS):
        waiting.put(state)
        state = step(state, float(i))
    return [waiting.get() for _ in range(STEPS)], state


@keeps
def another_thread(step):
    state, go, done, seen = init(), threading.Event(), threading.Event(), []

    def read(state):
        go.wait(20)
        seen.append(state["w"] + 1)
        done.set()

    thread = threading.Thread(target=read, args=(state,))
    thread.start()
    for i in range(STEPS):
        state = step(state, float(i))
    go.set()
    done.wait(20)
    thread.join()
    return seen, state


@keeps
def a_weak_reference(step):
    state = init()
    watched = weakref.ref(state["w"])
    new = step(state, 1.0)
    still = watched()
    return (None if still is None else still + 0), new


@keeps
def c_code_that_uses_the_argument_after_the_call(step):
    kept = list(filter(lambda s: step(s, 1.0) is not None, (init() for _ in range(3))))
    mapped = list(map(functools.partial(step, batch=2.0), kept))
    return kept, mapped, functools.reduce(lambda s, b: step(s, b), [1.0, 2.0], init())


@keeps
def the_same_buffer(step):
    state = init()
    other = jax.device_put(state["w"], state["w"].devices().pop())
    shard = state["n"].addressable_data(0)
    new = step(state, 1.0)
    return other, shard, new


@keeps
def a_numpy_view(step):
    state = init()
    view = np.asarray(state["w"])
    new = step(state, 1.0)
    newer = step(new, 1.0)
    return jnp.asarray(view.copy()), newer


@keeps
def a_helper_whose_caller_keeps(step):
    def helper(state):
        return step(state, 1.0)

    state = init()
    new = helper(state)
    return state["w"] + 0, new


SWAP = """
def helper(state):
    state = step(state, 1.0)

seen = []
for _ in range(4):
    old = init()
    new = helper(old)
    old, new = new, old
    seen.append(new["w"] + 0)
"""


@keeps
def globals_swapped_right_behind_the_call(step):
    space = {"step": step, "init": init}
    exec(compile(SWAP, "<swap>", "exec"), space)
    return space["seen"], space["new"]


@keeps
def introspection(step):
    state = init()
    for i in range(STEPS):
        new = step(state, float(i))
        old = locals()["state"]["w"] + 0
        state = new
    return old, state


@keeps
def a_cycle_and_a_collection(step):
    state, ring = init(), []
    ring.append((ring, state))
    for i in range(STEPS):
        state = step(state, float(i))
        gc.collect()
    return ring[0][1], state


@keeps
def a_container(step):
    state = init()
    pair = (state, "first")
    for i in range(STEPS):
        state = step(state, float(i))
    return pair[0], state


@keeps
def an_iterator(step):
    states = iter([init(), init()])
    kept = []
    for state in states:
        kept.append(state)
        step(state, 1.0)
    return kept


@keeps
def filtered_states(step):
    def use(state):
        step(state, 1.0)
        return True

    return [state["w"] + 0 for state in filter(use, (init() for _ in range(STEPS)))]


@keeps
def a_saved_traceback(step):
    def run(saved):
        state = init()
        try:
            raise ValueError
        except ValueError as error:
            saved.append(error.__traceback__)
        step(state, 1.0)

    saved = []
    for _ in range(STEPS):
        run(saved)
    return [operator.attrgetter("f_locals")(traceback.tb_frame)["state"]["w"] for traceback in saved]


@keeps
def an_argument_of_a_callback(step):
    callbacks = [functools.partial(dict, state=init()) for _ in range(STEPS)]
    for callback in callbacks:
        step(callback.keywords["state"], 1.0)
    return [callback()["state"] for callback in callbacks]


@keeps
def a_cached_result(step):
    @functools.lru_cache
    def load(i):
        return init()

    new = [step(load(i % 2), 1.0) for i in range(STEPS)]
    return load(0), load(1), new


@keeps
def shown_in_a_session(step):
    out = {}
    for i in range(STEPS):
        state = init()
        builtins._ = out[i] = state
        state = step(state, 1.0)
    seen = builtins._, out, state
    del builtins._
    return seen


@keeps
def a_debugger(step):
    seen = []

    def run(state):
        new = step(state, 1.0)
        return new  # noqa: RET504 - between the two the debugger looks

    def trace(frame, event, arg):
        if frame.f_code is run.__code__ and event == "return":
            seen.append(operator.attrgetter("f_locals")(frame)["state"]["w"] + 0)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in range(STEPS):
            run(init())
    finally:
        sys.settrace(before)
    return seen


@keeps
def a_profiler(step):
    seen = []

    def run(state):
        step(state, 1.0)

    def profile(frame, event, arg):
        if frame.f_code is run.__code__ and event == "return":
            seen.append(operator.attrgetter("f_locals")(frame)["state"]["w"] + 0)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        for _ in range(STEPS):
            run(init())
    finally:
        sys.setprofile(before)
    return seen


@keeps
def evaluated(step):
    state = init()
    step(state, 1.0)
    return eval("state")


@keeps
def executed(step):
    state, names = init(), {}
    step(state, 1.0)
    exec("w = state['w']", {"state": state}, names)
    return names


@keeps
def the_frame_itself(step):
    state = init()
    step(state, 1.0)
    return sys._getframe().f_locals["state"]


@keeps
def read_after_the_loop(step):
    state = init()
    for i in range(STEPS):
        new = step(state, float(i))
    return new, state


@keeps
def read_on_one_path(step):
    seen = []
    for i in range(STEPS):
        state = init()
        new = step(state, float(i))
        seen.append(state["w"] if i == 3 else new["w"])
    return seen


@keeps
def a_shard(step):
    state = init()
    shard = state["w"].addressable_data(0)
    return shard, step(state, 1.0)


@keeps
def an_array_made_of_shards(step):
    state = init()
    w = state["w"]
    whole = jax.make_array_from_single_device_arrays(w.shape, w.sharding, [w])
    del w
    state = step(state, 1.0)
    return whole, state


@keeps
def an_export(step):
    state = init()
    exported = np.from_dlpack(state["w"])
    state = step(state, 1.0)
    return exported.copy(), state


@keeps
def a_constant_of_another_function(step):
    state = init()
    other = pytc.compile(functools.partial(lambda w, x: x + w, state["w"]))
    before = other(1.0)
    state = step(state, 1.0)
    return before, other(1.0), state


@keeps
def handed_back_as_it_is(step):
    keep = pytc.compile(lambda state: (state["w"], state["n"] + 1))
    state = init()
    w, _ = keep(state)
    state = step(state, 1.0)
    return w, state


@pytest.mark.parametrize("caller", KEPT, ids=lambda c: c.__name__)
def test_whatever_can_be_read_is_intact(caller):
    expected = caller(jax.jit(body))
    step = pytc.compile(body)
    for _ in range(3):
        got = caller(step)
        jax.tree.map(np.testing.assert_array_equal, got, expected)
