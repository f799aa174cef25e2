"""Wrappers of one function that are made anew: they find what earlier ones compiled, as those of `jax.jit` do."""

from __future__ import annotations

import functools
import gc
import threading
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.calls import asking
from tests.threads import another_thread

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


class Traces:
    """A function that counts how often it is traced."""

    def __init__(self):
        self.count = 0

        def function(x, y=1.0):
            self.count += 1
            return x * 2 + y

        self.function = function


@pytest.fixture(name="traces")
def _traces():
    return Traces()


X = jnp.arange(3.0)

SAME = [{}, {"donate": {"x": "none"}}, {"static_argnames": ["y"]}, {"static_argnums": [1]}, {"donate_argnums": (0,)},
        {"passes": list(pytc.passes.pipeline)}, {"compiler_options": {"xla_cpu_enable_fast_math": False}},
        {"keep_unused": True, "effort": "high"}]  # fmt: skip


@pytest.mark.parametrize("options", SAME, ids=" and ".join)
@pytest.mark.parametrize("compiler", [pytc.compile, jax.jit], ids=["pytc", "jit"])
def test_traced_once(compiler, options, traces):
    if compiler is jax.jit and not options.keys().isdisjoint(("donate", "passes", "effort")):
        options = {}
    for _ in range(4):
        result = compiler(traces.function, **options)(X + 0, y=2.0)
        np.testing.assert_array_equal(result, X * 2 + 2)
    assert traces.count == 1


@pytest.mark.parametrize("compiler", [pytc.compile, jax.jit], ids=["pytc", "jit"])
@pytest.mark.parametrize(
    "transformed",
    [
        lambda compiled: jax.vmap(compiled)(X),
        lambda compiled: jax.grad(compiled)(1.0),
        lambda compiled: jax.jit(lambda x: compiled(x) * 2)(X),
        lambda compiled: jax.lax.fori_loop(0, 3, lambda _, x: compiled(x), X),
        lambda compiled: compiled.lower(X),
        lambda compiled: compiled.eval_shape(X),
    ],
    ids=["vmap", "grad", "jit", "fori_loop", "lower", "eval_shape"],
)
def test_traced_once_under_a_transformation(compiler, transformed, traces):
    for _ in range(3):
        transformed(compiler(traces.function))
    assert traces.count == 1


def test_a_function_that_was_transformed_dies_with_its_last_name():
    def function(x):
        return jnp.sum(x * captured)

    captured, gone = jnp.arange(3.0), []
    for _ in range(2):
        jax.grad(pytc.compile(function))(X)
        pytc.compile(function)(X)
    weakref.finalize(function, gone.append, True)
    del function
    gc.collect()
    assert gone


def test_a_call_finds_what_a_transformation_has_traced(traces):
    jax.vmap(pytc.compile(traces.function))(X)
    pytc.compile(traces.function)(jnp.float32(1))
    assert traces.count == 1


@pytest.mark.parametrize(
    ("options", "others"),
    [
        ({"static_argnums": 1}, {}),
        ({"donate": "none"}, {"donate": "all"}),
        ({"share": False}, {"share": True}),
        ({"python_scalars": "static"}, {}),
        ({"passes": pytc.passes.pipeline[:2]}, {}),
        ({"effort": "high"}, {}),
    ],
    ids=" and ".join,
)
def test_other_options(options, others, traces):
    for each in (options, others, options, others):
        np.testing.assert_array_equal(pytc.compile(traces.function, **each)(X + 0, 1.0), X * 2 + 1)
    assert traces.count == 1 + (not options.keys().isdisjoint(("python_scalars", "static_argnums")))


def test_options_that_cannot_be_hashed(traces):
    class Odd:
        __hash__ = None

        def __call__(self, program):
            return program

    for _ in range(2):
        passes = [*pytc.passes.pipeline, Odd()]
        np.testing.assert_array_equal(pytc.compile(traces.function, passes=passes)(X), X * 2 + 1)
    assert traces.count == 1


class Callable:
    def __init__(self):
        self.count = 0

    def __call__(self, x):
        self.count += 1
        return x + 1

    def method(self, x):
        return self(x)


class Equal(Callable):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


@pytest.mark.parametrize("compiler", [pytc.compile, jax.jit], ids=["pytc", "jit"])
@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda one: one, 1),
        (lambda one: one.method, 4),
        (lambda one: functools.partial(one.method), 4),
        (lambda one, made={}: made.setdefault(id(one), functools.partial(one.method)), 1),
    ],
    ids=["object", "method", "partial", "one partial"],
)
def test_callables(compiler, make, count):
    one = Callable()
    for _ in range(4):
        np.testing.assert_array_equal(compiler(make(one))(X), X + 1)
    assert one.count == count


def test_callables_that_are_equal():
    one, two = Equal(), Equal()
    for each in (one, two, one, two):
        pytc.compile(each)(X)
    assert one.count
    assert two.count


@pytest.mark.parametrize("compiler", [pytc.compile, jax.jit], ids=["pytc", "jit"])
def test_a_variable_that_changes(compiler):
    """It is read when the function is traced, and not again."""
    factor = 2

    def function(x):
        return x * factor

    first = compiler(function)(X)
    factor = 3
    np.testing.assert_array_equal(compiler(function)(X), first)


def test_state_is_reused():
    def step(state):
        return {"w": state["w"] + 1}

    def train(steps):
        state = {"w": jnp.zeros(10_000)}
        places = []
        for _ in range(steps):
            state = pytc.compile(step)(state)
            places.append(state["w"].unsafe_buffer_pointer())
        return state, places

    state, places = train(6)
    assert len(set(places[1:])) == 1
    np.testing.assert_array_equal(state["w"], 6)


def test_one_wrapper_keeps_what_another_gives_away():
    def step(state):
        return state + 1

    first, second = pytc.compile(step), pytc.compile(step)
    kept = []
    state = jnp.zeros(1000)
    for _ in range(4):
        state = first(state)
        kept.append(state)
        state = second(state)
    np.testing.assert_array_equal(np.stack(kept)[:, 0], [1, 3, 5, 7])


def keeping_some(kept):
    """A loop that makes a wrapper of its own, and reads some of four arguments again."""
    body = "".join(f"        {name} = new_{name}\n" for name in "abcd" if name not in kept)
    code = f"def run(wrapper, a, b, c, d):\n    for _ in range(6):\n        new_a, new_b, new_c, new_d = wrapper(a, b, c, d)\n{body}    return a, b, c, d\n"  # noqa: E501
    space = {}
    exec(code, space)
    return space["run"]


@pytest.mark.parametrize("go_on", [True, False], ids=["that go on", "that are gone"])
def test_wrappers_whose_callers_keep_different_arguments_share_two_executables(go_on):
    def update(*arrays):
        return [x + k for k, x in enumerate(arrays, 1)]

    executables, wrappers = set(), []
    for keeps in range(16):
        kept = [name for k, name in enumerate("abcd") if keeps >> k & 1]
        wrapper = pytc.compile(update)
        got = keeping_some(kept)(wrapper, *(jnp.zeros(100) for _ in "abcd"))
        for k, (name, x) in enumerate(zip("abcd", got, strict=True), 1):
            np.testing.assert_array_equal(x, 0 if name in kept else 6 * k)
        for signature in wrapper.__pytc__.signatures():
            executables |= {id(plan.emitted) for plan in signature.plans if not plan.emitted.is_new}
        wrappers += [wrapper] if go_on else []
    assert len(executables) == 2


def test_a_wrapper_made_anew_whose_caller_keeps_what_that_of_another_gave_away_copies_nothing():
    def step(state):
        return state * 2 + 1

    def give_away(wrapper, state):
        for _ in range(4):
            state = wrapper(state)
        return state

    def keep(wrapper, state):
        best = state
        for _ in range(4):
            state = wrapper(state)
            best = state
        return best

    give_away(pytc.compile(step), jnp.zeros(1000))
    wrapper = pytc.compile(step)
    assert float(keep(wrapper, jnp.zeros(1000))[0]) == 15
    (site,) = pytc.explain(wrapper).sites
    assert (site.calls, site.copied_calls) == (4, 0)


def test_call_sites_are_of_each_wrapper(traces):
    first, second = pytc.compile(traces.function), pytc.compile(traces.function)
    for _ in range(3):
        first(X)
        second(X)
    assert [site.calls for site in pytc.explain(second).sites] == [3]
    assert not pytc.explain(pytc.compile(traces.function)).sites


class Log:
    """It keeps what is not seen from where the call is."""

    def __init__(self):
        self.all = []

    def keep(self, state):
        self.all.append(state)


def append_each(step, log, calls):
    state, in_place = jnp.zeros(300), []
    for _ in range(calls):
        at = state.unsafe_buffer_pointer()
        state = pytc.compile(step)(state)
        in_place.append(state.unsafe_buffer_pointer() == at)
        log.keep(state)
    return in_place


class Holding:
    """A state, and how it advances."""

    def __init__(self, step):
        self.step, self.state = pytc.compile(step), {"w": jnp.ones(1000)}

    def go_on(self, calls):
        for _ in range(calls):
            self.state = self.step(self.state)


def beside(name, holding):
    """What holds its state, where a thread of this name may read it."""
    HELD.append(holding)
    with another_thread(name):
        holding.go_on(8)
    HELD.clear()
    (site,) = pytc.explain(holding.step).sites
    return {why for _, why in site.why}


HELD = []


def test_who_holds_what_is_found_out_anew():
    def step(state):
        return {"w": state["w"] + 1}

    for name in ("first", "second"):
        assert beside(name, Holding(step)) == {f"attribute `state` of Holding: another thread, '{name}', may read it"}


def test_what_calls_have_shown_is_handed_on(traces, monkeypatch):
    """What holds the state is looked for once, not at each call, and it is not copied for ever."""
    asked = []
    reasons = asking.reasons
    monkeypatch.setattr(asking, "reasons", lambda *arguments: asked.append(1) or reasons(*arguments))
    log = Log()
    in_place = append_each(traces.function, log, 20)
    assert [float(state[0]) for state in log.all] == [2.0**k - 1 for k in range(1, 21)]
    assert not any(in_place[1:])
    assert len(asked) == 1
    last = pytc.compile(traces.function)
    last(jnp.zeros(300))
    (signature,) = last.__pytc__.lookup
    (before,) = signature.before.values()
    assert before.plan.spared
    assert before.earlier + before.calls == 20
    assert [site.calls for site in pytc.explain(last).sites] == [1]
    log.all.clear()
    in_place = append_each(traces.function, types.SimpleNamespace(keep=lambda _: None), 60)
    assert all(in_place[45:])  # from the 64th call at that place on
    assert traces.count == 1


def once(step, state):
    return pytc.compile(step)(state)


def evaluate(step, state, calls):
    for _ in range(calls):
        float(once(step, state)[0])


def train(step, state, calls):
    in_place = 0
    for _ in range(calls):
        at = state.unsafe_buffer_pointer()
        state = once(step, state)
        in_place += state.unsafe_buffer_pointer() == at
    return in_place


@pytest.mark.parametrize("calls", [5, 40, 300])
def test_another_caller_of_a_helper_is_looked_at_at_once(traces, calls):
    evaluate(traces.function, jnp.zeros(300), calls)
    assert train(traces.function, jnp.zeros(300), 20) >= 18


def test_nothing_is_handed_on_while_the_wrapper_lives(traces):
    first = pytc.compile(traces.function)
    first(jnp.zeros(300))
    second = pytc.compile(traces.function)
    second(jnp.zeros(300))
    (signature,) = second.__pytc__.lookup
    assert not signature.before
    del first, second
    third = pytc.compile(traces.function)
    third(jnp.zeros(300))
    (signature,) = third.__pytc__.lookup
    assert len(signature.before) == 1


def test_ever_new_wrappers_leave_nothing_behind(traces):
    def call():
        pytc.compile(traces.function)(X)

    def count():
        gc.collect()
        names = ("cache", "direct", "emit", "function", "known", "lookup", "plan", "program", "stage")
        ours = tuple(f"pytc.{name}" for name in names)
        return sum(str(getattr(type(each), "__module__", "")).startswith(ours) for each in gc.get_objects())

    call()
    before = count()
    for _ in range(20):
        call()
    assert count() == before > 0


@pytest.mark.parametrize("compiler", [pytc.compile, jax.jit], ids=["pytc", "jit"])
def test_clear_cache(compiler, traces):
    first, second = compiler(traces.function), compiler(traces.function)
    first(X)
    second.clear_cache()
    second(X)
    assert traces.count == 2


def test_nothing_is_kept_that_was_captured():
    def capturing():
        captured = jnp.ones(5)

        def function(x):
            y = jax.jit(lambda z: jnp.sin(z) + captured.sum())(x)
            return jax.lax.scan(lambda c, _: (jax.nn.relu(c * 2), None), y, None, length=3)[0]

        for _ in range(3):
            pytc.compile(function)(X)
        return weakref.ref(function), weakref.ref(captured)

    dead = capturing()
    gc.collect()
    assert [each() for each in dead] == [None, None]


def test_a_program_that_calls_back_is_each_wrappers_own():
    """What it calls may refer to the function, which would never be let go of."""

    class Trainer:
        def __init__(self):
            self.step = lambda x: (jax.debug.callback(self.log, x.sum()), x + 1)[1]

        def log(self, value):
            pass

    def train():
        trainer = Trainer()
        for _ in range(3):
            pytc.compile(trainer.step)(X)
        jax.effects_barrier()
        return weakref.ref(trainer)

    dead = train()
    jax.clear_caches()
    gc.collect()
    assert dead() is None


def test_a_class_whose_method_has_itself_as_a_static_argument_can_be_let_go_of():
    """Its programs are the method's, and refer to it by that argument."""

    def used():
        class Model:
            @functools.partial(pytc.compile, static_argnums=0)
            def step(self, x):
                return x + 1

        model = Model()
        model.step(X)
        return weakref.ref(Model), weakref.ref(model)

    dead = used()
    jax.clear_caches()
    pytc.compile(lambda x: x)(X)
    gc.collect()
    assert [each() for each in dead] == [None, None]


def test_a_callback_that_waits_for_a_thread():
    """Which calls another wrapper of the function."""
    waits, done = [], []

    def callback(x):
        if waits:
            waits.clear()
            thread = threading.Thread(target=lambda: done.append(pytc.compile(function)(X)))
            thread.start()
            thread.join(timeout=60)
        return np.asarray(x)

    def function(x):
        return jax.pure_callback(callback, jax.ShapeDtypeStruct((3,), jnp.float32), x) + 1

    pytc.compile(function)(X)
    waits.append(None)
    np.testing.assert_array_equal(pytc.compile(function)(X), X + 1)
    assert len(done) == 1


@pytest.mark.usefixtures("_switching_often")
def test_first_calls_of_threads_at_once(traces):
    together = threading.Barrier(4)
    results = []

    def work():
        together.wait()
        results.append(pytc.compile(traces.function)(X))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert traces.count == 1


def test_pmap(traces):
    for _ in range(3):
        result = pytc.pmap(traces.function, in_axes=(0, None))(X[:1], 1.0)
        np.testing.assert_array_equal(result, X[:1] * 2 + 1)
    assert traces.count == 1
    pytc.pmap(traces.function, axis_name="i")(X[:1])
    assert traces.count == 2
