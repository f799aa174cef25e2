"""Whole programs that can still read an old state: every array that they can reach is intact.

The callers have no asserts: pytest's look into `locals()`, which rightly stops every donation. Each returns the
arrays that it can still read; they must be those that the same caller gets with `jax.jit`, and nobody is warned.
"""

from __future__ import annotations

import asyncio
import builtins
import collections
import contextlib
import functools
import gc
import itertools
import operator
import queue
import sys
import threading
import types
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse.linalg import spsolve

import pytc
from pytc.ownership.bytecode.introspection import introspects
from pytc.ownership.bytecode.liveness import ControlFlow
from tests.callers import STEPS, body, init

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

KEPT = []
renamed = builtins
NAME = "state"
"""Of a variable; no function that reads it by this name has the text itself."""


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
def a_closure_that_somebody_has(step):
    def looking(state):
        return lambda: state["w"] + 0

    seen = []
    for i in range(STEPS):
        state = init()
        seen.append(looking(state))
        new = step(state, float(i))
        seen.append(new)
    return [look() if callable(look) else look for look in seen]


@keeps
def a_closure_made_after_the_call(step):
    state, seen = init(), []
    for i in range(STEPS):
        sum(float(state[x][0]) for x in "w")
        new = step(state, float(i))
        seen.append((lambda: state["w"] + 0)())
        state = new
    return seen, state


@keeps
def a_closure_made_in_a_handler(step):
    state, seen = init(), []
    for i in range(STEPS):
        try:
            new = step(state, float(i))
            if i % 2:
                raise ValueError
            state = new
        except ValueError:
            seen += [x + 0 for x in (lambda: [state["w"]])()]
            state = new
    return seen, state


@keeps
def a_cell_that_outlives_its_function(step):
    state, seen = init(), []
    for i in range(STEPS):
        (cell,) = (lambda: state).__closure__  # noqa: B023
        new = step(state, float(i))
        seen.append(cell.cell_contents["w"] + 0)
        state = new
        del cell
    return seen, state


@keeps
def a_cell_and_another_name(step):
    state, seen = init(), []
    for i in range(STEPS):
        first = state
        sum(float(state[x][0]) for x in "w")
        state = step(state, float(i))
        seen.append(first["w"] + 0)
    return seen, state, [state[x] for x in "w"]


@keeps
def a_cell_that_is_named_in_a_string(step):
    state, seen = init(), []

    def evaluate(text):
        frame = sys._getframe(1)
        try:
            return frame.f_locals[text.split()[0]]["w"] + 0
        finally:
            del frame

    for i in range(STEPS):
        sum(float(state[x][0]) for x in "w")
        new = step(state, float(i))
        seen.append(evaluate("state of now"))
        state = new
    return seen, state


def shown(name):
    """As a debugger shows a variable of the function that calls it."""
    return sys._getframe(1).f_locals[name]["w"] + 0


@keeps
def a_debugger_of_somebody_s_own(step):
    debugger, state, seen = types.SimpleNamespace(breakpoint=shown), init(), []
    for i in range(STEPS):
        new = step(state, float(i))
        seen.append(debugger.breakpoint(NAME))
        state = new
    return seen, state


@keeps
def eval_of_builtins_beside_compile(step):
    state, seen = init(), []
    for i in range(STEPS):
        new = step(state, float(i))
        mode = "eval"
        seen.append(getattr(builtins, mode)(compile(NAME, "<text>", mode))["w"] + 0)
        state = new
    return seen, state


@keeps
def eval_of_builtins_under_another_name(step):
    state, seen = init(), []
    for i in range(STEPS):
        new = step(state, float(i))
        seen.append(operator.attrgetter("eval")(renamed)(NAME)["w"] + 0)
        state = new
    return seen, state


def stops(step, x):
    y = step(x)
    pause()  # noqa: F821
    return y


def test_the_debugger_of_jax_reads_variables_under_any_name():
    flow = ControlFlow(stops.__code__)
    assert introspects(flow, {"pause": jax.debug.breakpoint}, vars(builtins)) == "pause"
    assert introspects(flow, {"pause": jax.debug.print}, vars(builtins)) == ""


class Base:
    def held(self):
        return self.state["w"] + 0


class Derived(Base):
    def __init__(self, state):
        self.state = state

    def advance(self, step, i):
        look = lambda: self.state  # noqa: E731
        new = step(look(), float(i))
        del look
        seen = super().held()  # which reads the first argument
        self.state = new
        return seen


@keeps
def the_first_argument_in_a_cell(step):
    owner = Derived(init())
    return [owner.advance(step, i) for i in range(STEPS)], owner.state


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


def evaluate(text):
    """As `numexpr.evaluate` and `DataFrame.query` do it: in the frame of the caller."""
    return eval(text.replace("@", ""), {}, sys._getframe(1).f_locals)


@keeps
def read_by_name_in_a_helper(step):
    state = init()
    new = step(state, 1.0)
    return evaluate("{name: x + 1 for name, x in state.items()}"), new


@keeps
def read_by_names_in_a_loop(step):
    state, batch, seen = init(), 1.0, []
    seen.append(step(state, batch))
    for name in ("batch", "state"):
        seen.append(evaluate(name))
    return seen


@keeps
def read_by_name_behind_a_sign(step):
    seen = []
    for i in range(STEPS):
        limit = init()
        new = step(limit, float(i))
        seen.append(evaluate("@limit" if i % 2 else f"@limit, {i}"))
    return seen, new


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


@keeps
def iterators_that_nobody_else_shares(step):
    seen = []
    for _ in range(STEPS):
        state = init()
        one, other = iter([state]), itertools.cycle([state["w"]])
        third, _ = itertools.tee(iter([state["n"]]))
        state = step(state, 1.0)
        seen.append((next(one), next(other), next(third)))
    return seen


@keeps
def a_suspended_generator(step):
    def suspended(state):
        yield
        yield state

    seen = []
    for _ in range(STEPS):
        state = init()
        running = suspended(state)
        next(running)
        state = step(state, 1.0)
        seen.append(next(running))
    return seen


@keeps
def queues_of_all_kinds(step):
    one, other, third, seen = queue.SimpleQueue(), collections.deque(), queue.LifoQueue(), []
    for _ in range(STEPS):
        state = init()
        one.put(state)
        other.append(state["w"])
        third.put(state["n"])
        state = step(state, 1.0)
        seen.append((one.get(), other.pop(), third.get()))
    return seen


@keeps
def a_queue_between_tasks(step):
    async def main():
        waiting, seen = asyncio.Queue(), []

        async def consume():
            for _ in range(STEPS):
                seen.append(await waiting.get())

        task, state = asyncio.create_task(consume()), init()
        for _ in range(STEPS):
            await waiting.put(state)
            state = step(state, 1.0)
            await asyncio.sleep(0)
        await task
        return seen, state

    return asyncio.run(main())


@keeps
def a_future(step):
    go = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        state = init()
        future = executor.submit(lambda state: (go.wait(20), jax.tree.map(jnp.copy, state))[1], state)
        for i in range(STEPS):
            state = step(state, float(i))
        go.set()
        return future.result(), state


@keeps
def an_argument_of_a_timer(step):
    seen, state, done = [], init(), threading.Event()
    timer = threading.Timer(0.05, lambda state: (seen.append(jax.tree.map(jnp.copy, state)), done.set()), (state,))
    timer.start()
    state = step(state, 1.0)
    done.wait(20)
    timer.join()
    return seen, state


@keeps
def an_argument_of_an_event_loops_callback(step):
    seen = []

    async def main():
        for _ in range(STEPS):
            state = init()
            asyncio.get_running_loop().call_soon(seen.append, state)
            state = step(state, 1.0)
            await asyncio.sleep(0)

    asyncio.run(main())
    return seen


@keeps
def an_argument_of_an_exit_stacks_callback(step):
    seen = []
    with contextlib.ExitStack() as stack:
        for _ in range(STEPS):
            state = init()
            stack.callback(seen.append, state)
            state = step(state, 1.0)
    return seen


@keeps
def an_argument_of_a_callback_of_jax(step):
    kept = []
    tell = jax.jit(lambda state: jax.debug.callback(kept.append, state))
    for _ in range(STEPS):
        state = init()
        tell(state)
        jax.effects_barrier()
        state = step(state, 1.0)
    return [jax.tree.map(lambda x: np.array(x), each) for each in kept]


@keeps
def a_cached_property(step):
    class Owner:
        @functools.cached_property
        def state(self):
            return init()

    owner = Owner()
    return [step(owner.state, 1.0) for _ in range(STEPS)], owner.state


@keeps
def a_weak_dictionary(step):
    seen = []
    for _ in range(STEPS):
        state = init()
        watched = weakref.WeakValueDictionary(w=state["w"])
        step(state, 1.0)
        still = watched.get("w")
        seen.append(None if still is None else still + 0)
    return len(seen)


@keeps
def read_by_vars(step):
    seen = []
    for _ in range(STEPS):
        state = init()
        step(state, 1.0)
        seen.append(vars()["state"])
    return seen


@keeps
def read_by_executed_code(step):
    seen = []
    for _ in range(STEPS):
        state = init()
        step(state, 1.0)
        exec("seen.append(state)")
    return seen


@keeps
def read_in_a_finally(step):
    seen = []

    def run(state):
        try:
            return step(state, 1.0)
        finally:
            seen.append(state)

    return [run(init()) for _ in range(STEPS)], seen


@keeps
def an_exceptions_argument(step):
    seen = []
    for _ in range(STEPS):
        state = init()
        try:
            raise ValueError(state)
        except ValueError as error:
            kept = error
        state = step(state, 1.0)
        seen.append(kept.args[0])
    return seen


@keeps
def a_saved_traceback_of_a_function_below(step):
    saved = []

    def fails(state):
        raise ValueError

    def run():
        state = init()
        try:
            fails(state)
        except ValueError as error:
            saved.append(error)
        step(state, 1.0)

    for _ in range(STEPS):
        run()
    variables = operator.attrgetter("f_locals")
    return [variables(error.__traceback__.tb_next.tb_frame)["state"] for error in saved]


@keeps
def arrays_made_of_the_states(step):
    state = init()
    others = jnp.asarray(state["w"]), jnp.array(state["n"], copy=False), state["w"].global_shards[0].data
    for i in range(STEPS):
        state = step(state, float(i))
    return others, state


@keeps
def the_array_that_the_states_was_made_of(step):
    w = jnp.arange(6.0)
    state = {"w": jax.make_array_from_single_device_arrays((6,), w.sharding, [w]), "n": jnp.ones((2, 2))}
    return step(state, 1.0), w


@keeps
def views_of_views(step):
    state = init()
    view, shown = np.asarray(state["w"])[2:5], memoryview(np.asarray(state["n"]))
    for i in range(STEPS):
        state = step(state, float(i))
    return view.copy(), np.array(shown), state


@keeps
def exports(step):
    class Exported:
        def __init__(self, capsule):
            self.capsule = capsule

        def __dlpack__(self, **_):
            return self.capsule

        def __dlpack_device__(self):
            return 1, 0

    state = init()
    capsule, other = state["w"].__dlpack__(), jnp.from_dlpack(state["n"])
    for i in range(STEPS):
        state = step(state, float(i))
    return np.from_dlpack(Exported(capsule)).copy(), other, state


@keeps
def memory_of_numpys(step):
    host = np.zeros(1 << 14, np.float32)
    state = {"w": jax.device_put(host, may_alias=True), "n": jnp.from_dlpack(host)}
    for i in range(STEPS):
        state = step(state, float(i))
    return host.copy(), state


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("caller", KEPT, ids=lambda c: c.__name__)
def test_whatever_can_be_read_is_intact(caller):
    expected = caller(jax.jit(body))
    step = pytc.compile(body)
    for _ in range(3):
        got = caller(step)
        jax.tree.map(np.testing.assert_array_equal, got, expected)


def from_a_captured_array(make):
    captured = jnp.arange(6.0)
    step = make(lambda x: x * 2 + captured)
    x, seen = captured, []
    for _ in range(STEPS):
        x = step(x)
        seen.append(x + 0)
    return seen, captured, step(jnp.zeros(6))


def from_what_was_handed_out(make):
    """What was captured, and what depends on no argument, donated by another function."""
    captured, host = jnp.arange(6.0), np.arange(6, dtype=np.float32)
    step = make(lambda x: (x + 1, captured, jnp.arange(6.0), jnp.asarray(host)))
    double = make(lambda x: x * 2)
    x, seen = jnp.zeros(6), []
    for _ in range(STEPS):
        x, *others = step(x)
        while others:
            seen.append(double(others.pop()))
    return seen, captured, host.copy(), step(x)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("caller", [from_a_captured_array, from_what_was_handed_out], ids=lambda c: c.__name__)
def test_what_a_compiled_function_itself_has_is_intact(caller):
    expected = caller(jax.jit)
    for _ in range(2):
        jax.tree.map(np.testing.assert_array_equal, caller(pytc.compile), expected)


def test_a_solver_that_calls_scipy_counts_as_a_callback():
    """It has no effect, and nothing but its lowering for a CPU tells. Where scipy raises, the old state is there."""
    numbers, ends = jnp.arange(100), jnp.arange(101)

    @pytc.compile
    def newton(x, diagonal):
        return x - spsolve(diagonal, numbers, ends, jnp.ones(100))

    def solve(diagonal):
        x = jnp.full(100, 3.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                x = newton(x, diagonal)
                x.block_until_ready()
            except ValueError:
                pass
        return x

    regular = jnp.full(100, 2.0)
    for _ in range(3):
        np.testing.assert_array_equal(solve(regular), np.full(100, 2.5))
    np.testing.assert_array_equal(solve(regular.at[5].set(0)), np.full(100, 3.0))


def test_a_weak_reference_like_those_that_pytc_has():
    """It marks results of executions, and finds out that nobody else has a weak reference."""
    step = pytc.compile(lambda x: x + 1)

    def run(x):
        for _ in range(4):
            (mark,) = weakref.getweakrefs(x)
            like_it = weakref.ref(x, mark.__callback__)
            del mark
            y = step(x)
            found.append(like_it().is_deleted())
            x = y

    found = []
    run(step(step(jnp.zeros(64))))
    assert found == [False] * 4


def test_a_weak_reference_that_was_pytcs():
    """So many executions are remembered, and no more."""
    step, other = pytc.compile(lambda x: x + 1), pytc.compile(lambda x: x * 2)

    def run(x, z):
        for _ in range(3):
            (mark,) = weakref.getweakrefs(x)
            alive = [other(z) for _ in range(700)]
            for _ in range(700):
                other(z)
            y = step(x)
            found.append(mark().is_deleted())
            x = y
        alive.clear()

    found = []
    run(step(step(jnp.zeros(64))), jnp.ones(3))
    assert found == [False] * 3
