"""`pytc.explain(fun)`: what happened at each call site."""

import enum
import functools
import json
import re
import signal
import sys
import threading
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.calls import cache
from pytc.explain import Calls, calls_text, explain
from tests.threads import another_thread

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


def new_step():
    """Of a function of its own: what calls have shown is handed on to the next wrapper of the same function."""

    def step(state, batch):
        return {name: w + batch.sum() for name, w in state.items()}

    return pytc.compile(step)


def new_state():
    return {name: jnp.ones((16, 16)) for name in ("a", "b")}


def test_a_function_that_was_not_called_has_no_sites():
    calls = explain(new_step())
    assert calls == Calls("step", ())
    told = calls.text(200).splitlines()
    assert told[0] == "step: 0 calls from 0 places"
    assert "debugging mode (jax_debug_nans, jax_disable_jit, ...) are jax.jit's, and not counted" in told[1]


# The callers are functions of their own, without an assertion: what pytest makes of an assertion reads `locals()`, and
# a function that does may read anything.


def train(compiled, steps):
    batch = jnp.ones(4)
    state = new_state()
    for _ in range(steps):
        state = compiled(state, batch)
    return batch


def compare(compiled):
    state = new_state()
    after = compiled(state, jnp.ones(4))
    return float(after["a"].sum() - state["a"].sum())


def remember(compiled):
    batch = jnp.ones(4)
    state = new_state()
    best = []
    for i in range(4):
        if i == 3:
            best.append(state["a"])
        state = compiled(state, batch)
    return float(best[0].sum())


def test_a_loop_that_lets_go_of_its_state():
    compiled = new_step()
    assert train(compiled, 3).sum() == 4
    (site,) = explain(compiled).sites
    assert site.where.split(":")[0].endswith("test_calls.py")
    assert site.calls == 3
    assert (site.donated, site.donated_bytes) == (2, 2 * 1024)
    assert (site.kept, site.kept_bytes) == (1, 16)
    assert (site.copied_calls, site.copied_bytes, site.held) == (0, 0, ())


def test_a_caller_that_reads_its_state_again():
    compiled = new_step()
    assert compare(compiled) == 4 * 256
    (site,) = explain(compiled).sites
    assert (site.donated, site.kept) == (0, 3)
    assert "state['a']" in site.spared
    assert "can be read after the call" in str(explain(compiled))


def test_a_leaf_that_something_else_holds():
    compiled = new_step()
    assert remember(compiled) == 16 * 16 * 13
    (site,) = explain(compiled).sites
    assert (site.calls, site.copied_calls, site.copied_bytes) == (4, 1, 1024)
    assert [(held.path, held.nbytes, held.calls) for held in site.held] == [("state['a']", 1024, 1)]
    text = explain(compiled).text(100)
    assert "step: 4 calls from 1 place" in text
    assert "1.0 KiB  state['a']: still in use in 1 call" in text


class Trainer:
    ema = None


def hold_two_leaves(compiled):
    state, trainer = new_state(), Trainer()
    best, trainer.ema = state["a"], state["b"]
    state = compiled(state, jnp.ones(4))
    return best, trainer, state


def read_three_leaves(compiled):
    state = [jnp.ones(3), jnp.ones(5), jnp.ones(7)]
    return compiled(state), state


def test_each_leaf_is_told_what_holds_it():
    compiled = new_step()
    for _ in range(3):
        hold_two_leaves(compiled)
    (site,) = explain(compiled).sites
    told = dict(site.why) | {leaf.path: leaf.why for leaf in site.held}
    assert told["state['a']"].startswith("also `best` in test_calls.py:")
    assert told["state['b']"] == "attribute `ema` of Trainer"
    grown = pytc.compile(lambda state: [x + 1 for x in state])
    for _ in range(2):
        read_three_leaves(grown)
    (site,) = explain(grown).sites
    assert [why.split(":")[0] for _, why in site.why] == ["read again in test_calls.py"] * 3


def hold_otherwise_later(compiled, steps):
    state, trainer = new_state(), Trainer()
    trainer.ema, best = state["a"], []
    for _ in range(steps):
        state = compiled(state, jnp.ones(4))
        _keep(best, state["a"])
    return best, trainer, state


def _keep(kept, value):
    """Not seen by a look at the caller's code."""
    kept.append(value)


def append_each(compiled, steps):
    state, history = new_state(), []
    for _ in range(steps):
        state = compiled(state, jnp.ones(4))
        history.append(state["a"])
    return state, history


def test_what_the_code_shows_is_told_of_later_calls_too():
    compiled = new_step()
    append_each(compiled, 4)
    (site,) = explain(compiled).sites
    assert (site.spared, site.copied_calls) == (("state['a']",), 0)
    assert [why.split(" in ")[0] for _, why in site.why] == ["an item of `history`"]


@pytest.mark.parametrize("steps", [3, 6])
def test_a_reason_that_was_looked_for_once_is_not_said_of_all_calls(steps):
    compiled = new_step()
    hold_otherwise_later(compiled, steps)
    (site,) = explain(compiled).sites
    text = " ".join(explain(compiled).text(100).split())
    assert f"state['a']: still in use in {site.held[0].calls} calls, at one of the calls: " in text
    assert (dict(site.why).keys() == {"state['a']"}) == ("state['a'], at one of the calls: " in text) == (steps > 3)
    for _ in range(2):
        remember(other := new_step())
    assert "still in use in 1 call" in str(explain(other))
    assert "at one of the calls" not in str(explain(other))


def new_network():
    """Biases come first, and are small."""
    return {"biases": {str(k): jnp.ones(k) for k in range(1, 20)}, "weights": jnp.ones((30, 30))}


def hold_all(compiled):
    state, trainer = new_network(), Trainer()
    trainer.ema = jax.tree.leaves(state)
    state = compiled(state)
    return state, trainer


def read_all(compiled):
    state = new_network()
    return compiled(state), state


@pytest.mark.parametrize(("loop", "line"), [(hold_all, "  copied "), (read_all, " can be read after the call")])
def test_the_largest_leaves_are_told_of_first(loop, line):
    compiled = pytc.compile(lambda state: jax.tree.map(lambda x: x + 1, state))
    for _ in range(2):
        loop(compiled)
    lines = explain(compiled).text(100).splitlines()
    (at,) = (k for k, text in enumerate(lines) if line in text)
    assert "state['weights']" in " ".join(lines[at : at + 2])


def new_parts():
    return {"w": jnp.arange(600.0), "n": jnp.ones((20, 2))}


def grown(state):
    return jax.tree.map(lambda x: x * 1.5, state)


def also_a_variable(step):
    state = new_parts()
    best = state["w"]
    state = step(state)
    return best, state


def an_attribute(step):
    state, trainer = new_parts(), Trainer()
    trainer.ema = state["w"]
    state = step(state)
    return trainer, state


def read_again(step):
    state = new_parts()
    new = step(state)
    return new, state["w"]


SAID = {
    also_a_variable: r"state\['w'\].*also `best` in test_calls.py:\d+",
    an_attribute: r"state\['w'\].*attribute `ema` of Trainer",
    read_again: r"state\['w'\].*read again in test_calls.py:\d+",
}


@pytest.mark.parametrize("caller", SAID, ids=lambda caller: caller.__name__)
def test_what_holds_a_leaf_is_said_by_explain_and_by_the_error(caller):
    step = pytc.compile(lambda state: grown(state))
    for _ in range(3):
        caller(step)
    assert re.search(SAID[caller], " ".join(str(pytc.explain(step)).split()))
    ran = []
    strict = pytc.compile(lambda state: (jax.debug.callback(lambda: ran.append(1)), grown(state))[1], donate="require")
    with pytest.raises(pytc.DonationError, match=SAID[caller].replace(".*", ": f32\\[600\\], 2,400 bytes: ")):
        caller(strict)
    jax.effects_barrier()
    assert ran == []


class Learner:
    """A pytree, which as a static argument is a leaf all the same."""

    def __init__(self):
        self.state, self.best = jnp.ones(300), None

    @functools.partial(pytc.compile, static_argnums=0)
    def step(self, state):
        return state * 2

    @functools.partial(pytc.compile, static_argnums=0, donate="require")
    def strict(self, state):
        return state * 2

    def fit(self, steps):
        for _ in range(steps):
            self.state = self.step(self.state)

    def fit_best(self, steps):
        for _ in range(steps):
            self.state = self.step(self.state)
            self.best = self.state

    def fit_strictly(self):
        self.best = self.state
        self.state = self.strict(self.state)


jax.tree_util.register_pytree_node(Learner, lambda each: ((each.state, each.best), None), lambda *_: None)


def test_a_static_self_is_not_what_the_state_is_a_part_of():
    Learner().fit(5)
    (site,) = explain(Learner.step).sites
    assert (site.donated, site.copied_calls, site.why) == (1, 0, ())
    Learner().fit_best(5)
    _, site = explain(Learner.step).sites
    assert {held.why for held in site.held} | {why for _, why in site.why} == {"attribute `best` of Learner"}
    with pytest.raises(pytc.DonationError, match="bytes: attribute `best` of Learner"):
        Learner().fit_strictly()


def from_a_generator(compiled):
    def batches():
        for _ in range(4):
            batch = new_state()
            yield batch

    return [float(compiled(batch, jnp.ones(4))["a"].sum()) for batch in batches()]


def test_what_a_suspended_generator_holds():
    compiled = new_step()
    assert from_a_generator(compiled) == [5 * 256] * 4
    (site,) = explain(compiled).sites
    assert {why for _, why in site.why} == {"the suspended from_a_generator.<locals>.batches"}


def keep_the_best(compiled):
    box = types.SimpleNamespace(state=new_state(), best=None)
    for _ in range(5):
        box.best = box.state
        box.state = compiled(box.state, jnp.ones(4))


def test_another_attribute_is_told_and_not_that_which_is_overwritten():
    compiled = new_step()
    keep_the_best(compiled)
    (site,) = explain(compiled).sites
    assert {why for _, why in site.why} == {"attribute `best` of SimpleNamespace"}


BOX = types.SimpleNamespace()


def in_an_attribute(compiled):
    box = BOX
    box.state = new_state()
    for _ in range(5):
        box.state = compiled(box.state, jnp.ones(4))


class Logging:
    def __init__(self):
        self.state, self.sums = new_state(), []

    def train_step(self, compiled):
        return self.logged(compiled, self.state)

    def logged(self, compiled, state):
        state = compiled(state, jnp.ones(4))
        self.sums.append(float(jax.tree.leaves(state)[0].sum()))
        return state


def test_the_function_is_told_that_goes_on_before_the_result_is_stored():
    compiled, trainer = new_step(), Logging()
    for _ in range(4):
        trainer.state = trainer.train_step(compiled)
    (site,) = explain(compiled).sites
    assert site.why
    for _, why in site.why:
        assert re.fullmatch(
            r"attribute `state` of Logging, passed on in test_calls.py:\d+, to which the result is not assigned at "
            "once: `Logging.logged` goes on after the call before it returns",
            why,
        )
    assert site.advice.startswith("store the result where it was, in the statement of the call or the next one")


def through_a_helper(compiled, state):
    for _ in range(3):
        state = compiled(state, jnp.ones(4))
    return state


def test_a_global_that_is_passed_on_is_told_in_a_sentence():
    compiled = new_step()
    space = {"start": new_state(), "through_a_helper": through_a_helper, "compiled": compiled, "__name__": "script"}
    exec(compile("start = through_a_helper(compiled, start)", "script.py", "exec"), space)
    (site,) = explain(compiled).sites
    assert {leaf.why for leaf in site.held} == {
        "the global `start`, passed on in script.py:1, to which the result is not assigned at once: "
        "`through_a_helper` goes on after the call before it returns"
    }


class Ensemble:
    def __init__(self):
        self.members = [jnp.full((16, 16), float(k)) for k in range(3)]

    def step(self, compiled):
        self.members = jax.tree.map(compiled, self.members)


def test_what_the_code_does_not_show_is_looked_for_at_a_later_call():
    compiled, ensemble = pytc.compile(lambda x: x * 0.9), Ensemble()
    ensemble.step(compiled)
    (site,) = explain(compiled).sites
    assert (site.donated, site.copied_calls) == (0, 0)
    assert [path for path, _ in site.why] == ["x"]
    assert site.advice


def count_on(compiled, state, calls):
    for _ in range(calls):
        state = compiled(state)


def test_what_is_too_little_to_compile_again_for_is_told_apart_from_what_is_read():
    @pytc.compile
    def compiled(state):
        w = state["w"]
        for _ in range(60):
            w = jnp.sin(w) * 1.01
        return {"w": w, "step": state["step"] + 1}

    count_on(compiled, {"w": jnp.ones((16, 16)), "step": 0}, 4)
    _, site = explain(compiled).sites
    assert (site.spared, site.passed_over) == ((), ("state['step']",))
    assert "can be read" not in str(explain(compiled))


def test_a_notebook_shows_it_as_print_does():
    pretty = pytest.importorskip("IPython.lib.pretty")
    compiled = new_step()
    remember(compiled)
    assert pretty.pretty(explain(compiled)) == str(explain(compiled))


def in_an_attribute_out_of_reach(compiled):
    trainer = types.SimpleNamespace(state=new_state())
    batch = jnp.ones(4)
    for _ in range(3):
        trainer.state = compiled(trainer.state, batch)


def test_a_first_call_says_why_it_copies_what_later_ones_reuse():
    compiled = new_step()
    with another_thread("prefetch"):
        in_an_attribute_out_of_reach(compiled)
    (site,) = explain(compiled).sites
    assert site.copied_calls == 1
    assert {leaf.why for leaf in site.held} == {
        "attribute `state` of SimpleNamespace: the call may raise after it has donated, and the old value would then "
        "still be there"
    }


def test_the_thread_is_told_that_may_read_an_attribute():
    compiled = new_step()
    with another_thread("prefetch"):
        in_an_attribute(compiled)
    (site,) = explain(compiled).sites
    assert {why for _, why in site.why} == {
        "attribute `state` of SimpleNamespace: another thread, 'prefetch', may read it"
    }
    assert site.spared == site.unseen == site.exposed == ("state['a']", "state['b']")
    text = explain(compiled).text(100)
    assert "something else could read it meanwhile: state['a'], state['b']" in text
    assert "was holding it" not in text


def test_a_plan_that_was_on_trial_in_vain_is_no_other_plan():
    compiled = new_step()
    with another_thread("prefetch"):
        for _ in range(3):
            in_an_attribute(compiled)
    (site,) = explain(compiled).sites
    assert (site.calls, site.copied_calls, site.donated, site.changed) == (15, 0, 0, False)
    assert "0 B in 0 leaves, each call" in explain(compiled).text(100)
    in_an_attribute(compiled)
    in_an_attribute(compiled)
    (site,) = explain(compiled).sites
    assert (site.donated, site.changed) == (2, True)


def through_c_code(compiled):
    state, step = new_state(), functools.partial(compiled)
    for _ in range(3):
        state = step(state, jnp.ones(4))


def test_what_c_code_holds_is_advised_to_be_called_by_python():
    compiled = new_step()
    thread = threading.Thread(target=through_c_code, args=(compiled,))  # this function could read any variable
    thread.start()
    thread.join()
    text = compiled.explain().text(200)
    assert "make the call by Python code" in text
    assert "keep it in a local variable" not in text


def test_where_a_profiler_is_active_the_advice_is_about_that():
    compiled = new_step()

    def train():
        state = new_state()
        for _ in range(5):
            state = compiled(state, jnp.ones(4))

    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        train()
    finally:
        sys.setprofile(before)
    text = compiled.explain().text(200)
    assert "a profiler is active" in text
    assert "run without it" in text
    assert "keep it in a local variable" not in text


def with_a_star(compiled):
    box = types.SimpleNamespace(state=new_state())
    for batch in [(jnp.ones(4),)] * 5:
        box.state = compiled(box.state, *batch)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the interpreter makes such calls without code in C")
def test_why_a_star_keeps_an_attribute():
    compiled = new_step()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C
    try:
        with_a_star(compiled)
    finally:
        signal.signal(signal.SIGINT, before)
    (site,) = explain(compiled).sites
    assert {why for _, why in site.why} == {
        "attribute `state` of SimpleNamespace: a Ctrl-C may come before the result is there, since the call has `*` or "
        "`**`, or C code makes it"
    }


def test_sites_are_told_apart():
    compiled = new_step()
    first = compiled(new_state(), jnp.ones(4))
    second = compiled(first, jnp.ones(4))
    assert second is not first
    assert [site.calls for site in explain(compiled).sites] == [1, 1]


def test_places_on_one_line_are_told_apart():
    compiled = pytc.compile(lambda x: x + 1)
    space = {"compiled": compiled, "x": jnp.ones(3), "y": jnp.ones(3)}
    exec(compile("x, y = compiled(x), compiled(y)\nx = compiled(x)", "a.py", "exec"), space)
    calls = explain(compiled)
    assert [site.where for site in calls.sites] == ["a.py:1, column 8", "a.py:1, column 21", "a.py:2"]
    assert str(calls).startswith("<lambda>: 3 calls from 3 places\n")


def test_calls_from_places_that_are_forgotten_count(monkeypatch):
    monkeypatch.setattr(cache, "MOST_SITES", 8)
    compiled = pytc.compile(lambda x: x * 2)
    x = jnp.ones(3)
    for _ in range(50):
        exec("x = compiled(x)", {"compiled": compiled, "x": jnp.ones(3)})
        x = compiled(x)
    calls = explain(compiled)
    assert max(site.calls for site in calls.sites) == 50
    assert sum(site.calls for site in calls.sites) + calls.forgotten_calls == 100
    assert calls.forgotten == calls.forgotten_calls == 51 - len(calls.sites)
    rest = 100 - calls.forgotten
    assert str(calls).startswith(
        f"<lambda>: {rest} calls from 2 places, and {calls.forgotten} calls from places forgotten since\n"
    )
    assert json.loads(calls.to_json())["forgotten_calls"] == calls.forgotten


def test_calls_that_go_to_another_signature_count_once():
    """`jax.jit` traces anew for an array that is on a mesh, which nobody looks at before."""
    mesh = jax.make_mesh((1,), ("d",))
    compiled = pytc.compile(lambda x: x + 1, out_shardings=jax.NamedSharding(mesh, jax.P()))
    run = types.SimpleNamespace(x=jnp.ones(4))
    for _ in range(5):
        run.x = compiled(run.x)
    run.x = compiled(run.x)
    calls = explain(compiled)
    assert [site.calls for site in calls.sites] == [1, 4, 1]
    assert str(calls).startswith("<lambda>: 6 calls from 2 places\n")


def pass_temporaries(compiled):
    state = jnp.ones(300)
    for _ in range(3):
        state = compiled(state, jnp.ones(7))
    return state


@pytest.mark.parametrize("donate", ["auto", {"batch": "none"}])
def test_what_no_result_can_be_written_over(donate):
    """That is not said of what is left alone because it was asked for."""
    compiled = pytc.compile(lambda state, batch: state + batch.sum(), donate=donate)
    pass_temporaries(compiled)
    (site,) = explain(compiled).sites
    assert (site.donated, site.kept, site.unfit, site.spared) == (1, 1, donate == "auto", ())
    said = "no result can be written there, or none that saves memory: 1 leaf"
    assert (said in str(explain(compiled))) == (donate == "auto")


def test_places_are_told_apart_though_their_code_is_equal():
    compiled = pytc.compile(lambda x: x + 1)
    for name, sizes in {"a.py": (3, 3), "b.py": (3, 4)}.items():
        space = {"compiled": compiled}
        exec(compile("def call(x):\n    return compiled(x)\n", name, "exec"), space)
        for size in sizes:
            space["call"](jnp.ones(size))
    told = [(site.where, site.arguments) for site in explain(compiled).sites]
    assert told == [("a.py:2", ()), ("b.py:2", (("x", "f32[3]"),)), ("b.py:2", (("x", "f32[4]"),))]


def counting(compiled, steps):
    state = {"n": 0, "x": jnp.ones(8)}
    for _ in range(steps):
        state = compiled(state)
    return state


def test_a_counter_that_begins_as_a_number_tells_its_calls_apart():
    compiled = pytc.compile(lambda state: {"n": state["n"] + 1, "x": state["x"] * 2})
    counting(compiled, 4)
    first, later = explain(compiled).sites
    assert (first.arguments, first.calls) == ((("state['n']", "i32[], weakly typed, not a jax.Array"),), 1)
    assert (later.arguments, later.calls) == ((("state['n']", "i32[], weakly typed"),), 3)


def test_what_differs_in_jax_s_settings_alone_is_told_apart():
    compiled = pytc.compile(lambda state: state @ state)
    for precision in ("default", "highest"):
        with jax.default_matmul_precision(precision):
            pass_temporaries_of(compiled, jnp.eye(4))
    told = [site.arguments for site in explain(compiled).sites]
    assert told == [(("JAX's settings", "no. 1"),), (("JAX's settings", "no. 2"),)]


def pass_temporaries_of(compiled, x):
    for _ in range(2):
        x = compiled(x)
    return x


def test_what_is_handed_back_is_told_of_as_that():
    compiled = pytc.compile(lambda model, x: (model, x + 1))
    model, x = {"w": jnp.ones(4), "b": jnp.ones(5)}, jnp.ones(3)
    for _ in range(2):
        model, x = compiled(model, x)
    (site,) = explain(compiled).sites
    assert (site.donated, site.kept, site.handed_back, site.unfit, site.spared) == (1, 2, 2, 0, ())
    assert "\n          handed back as they came: 2 leaves" in str(explain(compiled))


def test_what_is_read_later_is_told_of_only_where_it_could_be_reused():
    compiled = pytc.compile(lambda state, other, batch: state + other + batch.sum())
    state, other, batch = (jnp.ones(shape) for shape in (4, 4, 7))
    new = compiled(state, other, batch)
    (site,) = explain(compiled).sites
    assert (site.donated, site.kept, site.spared, site.unfit) == (0, 3, ("state", "other"), 1)
    assert {path for path, _ in site.why} == {"state", "other"}
    new = compiled(new, other, batch)
    _, site = explain(compiled).sites
    assert (site.donated, site.kept, site.spared, site.unfit) == (1, 2, (), 2)
    assert [float(x.sum()) for x in (state, other, batch, new)] == [4, 4, 7, 68]


def test_a_site_that_has_changed_its_plan_does_not_speak_of_each_call():
    compiled = new_step()
    hold_otherwise_later(compiled, 3)
    assert "each call" in str(explain(compiled))
    hold_otherwise_later(compiled, 6)
    assert "as of now" in str(explain(compiled))


def test_json_has_everything():
    compiled = new_step()
    compiled(new_state(), jnp.ones(4))
    read = json.loads(explain(compiled).to_json())
    (site,) = explain(compiled).sites
    assert read["schema"] == "pytc.calls/1"
    assert read["sites"][0]["where"] == site.where
    assert read["sites"][0]["spared"] == list(site.spared)


def call_with_batches(compiled):
    state = new_state()
    for batch in (jnp.ones(4), jnp.ones(3), np.ones(5)):
        state = compiled(state, batch)
    return state


def call_with_names(compiled):
    state = new_state()
    for scale in (1, "a name that is longer than anybody would want to read in a heading"):
        compiled(state, scale)


def call_with_trees(compiled):
    a, b = jnp.ones(3), jnp.ones(3)
    for tree in ({"a": a}, {"a": a, "b": b}, {"a": a, "b": a}):
        compiled(tree)


def test_signatures_of_one_place_are_told_apart():
    call_with_batches(compiled := new_step())
    sites = explain(compiled).sites
    assert [site.arguments for site in sites] == [
        (("batch", "f32[4]"),),
        (("batch", "f32[3]"),),
        (("batch", "f32[5], not a jax.Array"),),
    ]
    assert re.search(r"test_calls.py:\d+ \(batch: f32\[3\]\): 1 call$", str(explain(compiled)), re.MULTILINE)


def test_signatures_are_told_apart_by_values_and_trees():
    call_with_names(named := pytc.compile(lambda state, scale: state["a"] + 1, static_argnames="scale"))
    assert [site.arguments for site in explain(named).sites] == [
        (("scale", "1"),),
        (("scale", "'a name that ... in a heading'"),),
    ]
    call_with_trees(grown := pytc.compile(lambda tree: {name: x + 1 for name, x in tree.items()}))
    assert [dict(site.arguments).get("tree['b']") for site in explain(grown).sites] == [
        "absent",
        "f32[3]",
        "the same array as tree['a']",
    ]


def of_one_of_two(state):
    return {"a": jnp.sin(state["b"]), "b": state["b"] + 1}


def test_what_the_program_does_not_read_is_not_kept_without_a_word():
    compiled, state = pytc.compile(of_one_of_two), {"a": jnp.zeros(100), "b": jnp.zeros(100)}
    for _ in range(3):
        state = compiled(state)
    (site,) = explain(compiled).sites
    assert (site.donated, site.kept, site.unfit) == (1, 1, 1)
    assert "or none that saves memory: 1 leaf" in compiled.explain().text(200)


def of_two_networks(step, places):
    for _ in range(5):
        places.d = step(places.g, places.d)
    return pytc.explain(step).sites


def test_nothing_is_to_be_let_go_of_where_every_result_has_a_place():
    """The other network's state would do as well, but one is enough."""

    def step(g, d):
        return {"w": d["w"] - 0.1 * jnp.tanh(g["w"] @ d["w"]), "m": d["m"] * 0.9}

    new = {"w": jnp.ones((16, 16)), "m": jnp.ones((16, 16))}
    places = types.SimpleNamespace(g=new, d=jax.tree.map(jnp.copy, new))
    (site,) = of_two_networks(pytc.compile(step), places)
    assert site.donated == 2
    assert not site.spared
    assert not site.advice
    assert site.unfit == site.kept == 2


def samples_as_views(step):
    x, samples = jnp.arange(64.0), []
    for _ in range(6):
        x = step(x)
        samples.append(np.asarray(x))
    return samples


def test_a_view_is_to_be_copied():
    step = pytc.compile(lambda x: jnp.sin(x) + x)
    samples_as_views(step)
    (site,) = pytc.explain(step).sites
    assert "np.array(x)" in site.advice


def test_numpy_data_are_not_among_what_is_kept():
    step = pytc.compile(lambda x, y: x + y)
    x, y = jnp.ones(4), np.ones(4, np.float32)
    for _ in range(4):
        x = step(x, y)
    assert all(site.unfit <= site.kept for site in pytc.explain(step).sites)


def test_an_assertion_is_called_one():
    step = pytc.compile(lambda x: x + 1)
    x = jnp.ones(4)
    for _ in range(6):
        y = step(x)
        x = y + 1
    assert x.shape == (4,)
    assert "uses an `assert` that pytest has rewritten" in " ".join(str(pytc.explain(step)).split())


@pytest.mark.parametrize("place", [pytc.compile, pytc.pmap])
def test_a_first_state_that_is_elsewhere_is_told_from_those_that_follow(place):
    mesh = jax.make_mesh((1,), ("i",))
    everywhere = jax.NamedSharding(mesh, jax.P("i"))
    options = {"in_shardings": everywhere, "out_shardings": everywhere} if place is pytc.compile else {"axis_name": "i"}
    step = place(lambda x: x * 2, **options)
    x = jnp.ones((1, 8))
    for _ in range(3):
        x = step(x)
    told = [dict(site.arguments) for site in pytc.explain(step).sites]
    assert [text["x"].split(", ")[-1] for text in told] == ["put there by the call", "there already"]


class Kind(enum.Enum):
    A = "a"


def named_in_a_string(step, follow):
    s = jnp.ones(300)
    if follow:
        for _ in range(8):
            s = step(s)
        return str.format("s: {}", s)
    for _ in range(8):
        new = step(s)
        str.format("s: {}", 0)
        s = new
    return s


def renamed(step, follow):
    return under_another_name(step) if follow else named_in_a_string(step, follow)


def under_another_name(step):
    state = jnp.ones(300)
    for _ in range(8):
        new = step(state)
        str.format("s: {}", 0)
        state = new


def evaluating(step, follow):
    s = jnp.ones(300)
    for _ in range(8):
        if follow:
            s = step(s)
        else:
            new = step(s)
            eval("1")
            s = new


def evaluating_elsewhere(step, follow):
    if follow:
        on_its_own(step)
        return eval("1")
    s = jnp.ones(300)
    for _ in range(8):
        new = step(s)
        eval("1")
        s = new
    return s


def on_its_own(step):
    s = jnp.ones(300)
    for _ in range(8):
        new = step(s)
        s = new


def weakly_referred_to(step, follow):
    s, kept = jnp.ones(300), []
    for _ in range(8):
        kept.append(weakref.ref(jnp.copy(s) if follow else s))
        s = step(s)


def weakly_kept(step, follow):
    s, kept = jnp.ones(300), weakref.WeakValueDictionary()
    for _ in range(8):
        kept["last"] = s
        if follow:
            del kept["last"]
        s = step(s)


def failing(state):
    parts = [state]
    raise ValueError(len(parts))


def with_exceptions(step, follow):
    s, errors = jnp.ones(300), []
    for _ in range(8):
        try:
            failing(s)
        except ValueError as error:
            errors.append(error.with_traceback(None) if follow else error)
        s = step(s)
    return errors


def shown_by_dlpack(step, follow):
    s, kept = jnp.ones(300), []
    for _ in range(8):
        kept.append(np.array(s) if follow else np.from_dlpack(s))
        s = step(s)
    return kept


def by_a_partial(step, follow):
    s = jnp.ones(300)
    for _ in range(8):
        s = step(s) if follow else functools.partial(step, s)()


def under_a_computed_key(step, follow):
    d = {j: jnp.ones(300) * j for j in range(3)}
    for i in range(8):
        if follow:
            j = i % 3
            d[j] = step(d[j])
        else:
            d[i % 3] = step(d[i % 3])


def under_a_formatted_key_in_an_attribute(step, follow):
    trainer = types.SimpleNamespace(d={f"a{j}": jnp.ones(300) * j for j in range(3)})
    for i in range(8):
        if follow:
            j = f"a{i % 3}"
            trainer.d[j] = step(trainer.d[j])
        else:
            trainer.d[f"a{i % 3}"] = step(trainer.d[f"a{i % 3}"])


def under_a_member_of_an_enumeration(step, follow):
    d = {Kind.A.name if follow else Kind.A: jnp.ones(300)}
    for _ in range(8):
        if follow:
            j = Kind.A.name
            d[j] = step(d[j])
        else:
            d[Kind.A] = step(d[Kind.A])


def in_a_class(step, follow):
    class Place:
        state = None

    place = Place() if follow else Place
    place.state = jnp.ones(300)
    for _ in range(8):
        place.state = step(place.state)


ADVICE = {
    named_in_a_string: "rename the variable, or overwrite it by the result",
    renamed: "rename the variable, or overwrite it by the result",
    evaluating: "make the call in a function of its own, without that, or overwrite",
    evaluating_elsewhere: "make the call in a function of its own, without that, or overwrite",
    weakly_referred_to: "drop the weak reference",
    weakly_kept: "drop the weak reference",
    with_exceptions: "do not keep the exception, or drop its traceback",
    shown_by_dlpack: "copy what is to be kept (np.array(x))",
    by_a_partial: "make the call by Python code",
    under_a_computed_key: "work out the key before",
    under_a_formatted_key_in_an_attribute: "work out the key before",
    under_a_member_of_an_enumeration: "work out the key before",
    in_a_class: "keep it in an item of a dict or a list itself, in an attribute of an object",
}


def told_of(caller, follow):
    step = pytc.compile(lambda s: s * 0.5 + 1)
    caller(step, follow)
    return explain(step).sites[-1]


@pytest.mark.parametrize("caller", ADVICE, ids=lambda caller: caller.__name__)
def test_advice_can_be_followed_and_helps(caller):
    is_advice_that_helps(ADVICE[caller], told_of(caller, False), told_of(caller, True))


def is_advice_that_helps(advice, before, after):
    """An assertion in the test itself could read any variable."""
    assert before.donated == 0
    assert before.advice.startswith(advice)
    assert "keep it in a local variable alone, which" not in before.advice
    assert (after.donated, after.calls) == (1, 8)
    assert after.copied_calls <= 1  # the first call, which compiles, cannot reuse what is in an attribute or an item


def test_the_variable_in_a_kept_traceback_is_named():
    step = pytc.compile(lambda s: s * 0.5 + 1)
    with_exceptions(step, False)
    (site,) = explain(step).sites
    said = "`state` of failing, in the traceback of an exception that is kept"
    assert {why for _, why in site.why} | {held.why for held in site.held} == {said}


def test_advice_of_several_kinds_is_all_told():
    held = {"rename": "rename the variable", "call": "make the call by Python code"}
    told = calls_text.advice([*held, "none"])
    assert [told.startswith(held["rename"]), held["call"] in told] == [True, True]
    assert calls_text.advice(["store", "key"]) == calls_text.advice(["local"])
