"""What is found about single functions, each called as a script would call it."""

import functools
import threading
import time
import types
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pytc.explain.audit import advice, edit, record
from pytc.explain.audit.report import Audit, FunctionReport
from pytc.explain.audit.text import _shortened
from pytc.explain.audit.watch import Watch
from pytc.explain.places import Place
from tests.threads import FOR_LONG

N = 4096


@pytest.fixture(name="watch")
def _watch() -> Watch:
    return Watch()


@pytest.fixture(name="jit")
def _jit(watch: Watch) -> Any:
    return watch.watching("jax.jit", jax.jit)


def found(watch: Watch, name: str) -> FunctionReport:
    return next(report for report in advice.functions(watch.functions) if report.name == name)


def kinds(report: FunctionReport) -> list[str]:
    return [finding.kind for finding in report.findings]


def grow(state):
    return {name: jnp.sin(value) * 2 for name, value in state.items()}


def state() -> dict[str, jax.Array]:
    return {"a": jnp.ones(N), "b": jnp.ones(2 * N)}


def test_leaf_by_leaf(watch: Watch, jit: Any) -> None:
    f = jit(grow)

    def run() -> Any:
        s, first = state(), None
        for _ in range(3):
            first = s["a"]
            s = f(s)
        return first

    run()
    report = found(watch, "grow")
    assert kinds(report) == ["leaf by leaf"]
    assert report.edit is None
    assert report.findings[0].saves == 2 * N * 4
    (argument,) = report.arguments
    assert (argument.verdict, argument.path, argument.held_calls) == ("held", "state['a']", 3)
    assert "`first`" in argument.why
    assert argument.line == run.__code__.co_firstlineno + 3


def test_what_saves_few_bytes_is_not_said_to_save_none(watch: Watch, jit: Any) -> None:
    f = jit(lambda x: x + 1)

    def run() -> Any:
        x = jnp.ones(3)
        for _ in range(3):
            x = f(x)
        return x

    run()
    report = found(watch, "<lambda>")
    assert report.edit is None
    (finding,) = report.findings
    assert finding.text == "x was dead at every call seen, but to donate it, too, saves no more than 12 B"


def test_at_times(watch: Watch, jit: Any) -> None:
    f = jit(grow)

    def run(calls: int, kept: int) -> Any:
        s, best = state(), None
        for step in range(calls):
            if step < kept:
                best = s
            s = f(s)
            if step == kept - 1:
                best = None
        return best

    run(6, 3)
    report = found(watch, "grow")
    assert kinds(report) == ["at times"]
    assert report.edit is None
    (finding,) = report.findings
    assert finding.text == "state was held in 3 of 6 calls: to donate it saves 48 KiB if those are given a copy"
    assert finding.saves == 3 * N * 4
    assert report.figures is not None
    assert report.figures.now - report.figures.pytc == finding.saves

    run(6, 4)  # 7 of 12
    report = found(watch, "grow")
    assert report.findings == ()
    assert report.figures is not None
    assert report.figures.now == report.figures.pytc


@pytest.mark.usefixtures("inside")
def test_at_times_and_one_that_is_donated_with_it(watch: Watch) -> None:
    f = watch.watching("equinox.filter_jit", eqx.filter_jit)(lambda x, y: (x + 1, y * 2))

    def run() -> Any:
        x, y = jnp.ones(N), jnp.ones(N)
        first = y
        for _ in range(4):
            x, y = f(x, y)
        return first

    run()
    report = found(watch, "<lambda>")
    (finding,) = (each for each in report.findings if each.kind == "at times")
    assert (finding.arguments, finding.saves) == (("y",), 2 * N * 4)


@pytest.mark.usefixtures("inside")
def test_what_equinox_donates_for_nothing_is_not_said_to_be_dead(watch: Watch) -> None:
    f = watch.watching("equinox.filter_jit", eqx.filter_jit)(lambda x, batch: x + batch.sum())

    def run() -> Any:
        x, batch = jnp.ones(N), jnp.ones(3)
        for _ in range(4):
            x = f(x, batch)
        return x, batch

    run()
    (finding,) = found(watch, "<lambda>").findings
    assert (finding.kind, finding.arguments, finding.text) == ("add", ("x",), "x was dead at every call seen")


def test_what_is_not_held_any_more_when_it_is_asked_for_is_asked_for_again(
    watch: Watch, jit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread has gone on in the meantime."""
    f, reasons = jit(grow), record.ownership.reasons
    answers = [lambda *_: {}, reasons, reasons]
    monkeypatch.setattr(record.ownership, "reasons", lambda *asked: answers.pop(0)(*asked))

    def run() -> Any:
        s, kept = state(), []
        for _ in range(2):
            kept.append(s)
            s = f(s)
        return kept

    run()
    (argument,) = found(watch, "grow").arguments
    assert "same array" not in argument.why
    assert "`kept`" in argument.why


def test_an_edit_says_which_calls_were_not_seen(watch: Watch, jit: Any) -> None:
    def run() -> None:
        for scale in range(9):
            f = jit(lambda x, scale=scale: x * scale)
            x = jnp.ones(N)
            if not scale:
                f.lower(x).compile()(x)
            x = f(x)

    run()
    report = found(watch, "<lambda>")
    assert report.edit is not None
    assert report.edit.note == (
        "calls of 1 more function that this line has made and of what its `lower` or `trace` has returned "
        "were not looked at"
    )


def test_by_site(watch: Watch, jit: Any) -> None:
    f = jit(grow)

    def train() -> Any:
        s = state()
        for _ in range(3):
            s = f(s)
        return s

    def compare() -> Any:
        s = state()
        return f(s), s

    train()
    compare()
    report = found(watch, "grow")
    assert "by site" in kinds(report)
    (argument,) = report.arguments
    assert argument.site == f"test_advice.py:{compare.__code__.co_firstlineno + 2}"
    assert [site.calls for site in report.sites] == [3, 1]
    assert f"test_advice.py:{train.__code__.co_firstlineno + 3}:" in next(
        finding.text for finding in report.findings if finding.kind == "by site"
    )


def test_only_another_thread(watch: Watch, jit: Any) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.state = state()
            self.step = jit(grow)
            self.callbacks = [self.run]  # by which others could find it

        def run(self) -> None:
            for _ in range(3):
                self.state = self.step(self.state)

    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(FOR_LONG,), name="prefetch")
    thread.start()
    try:
        Trainer().run()
    finally:
        done.set()
        thread.join()
    report = found(watch, "grow")
    assert (kinds(report), report.edit) == (["if unread"], None)
    assert report.findings[0].saves == 3 * N * 4
    assert "'prefetch'" in report.findings[0].text


@pytest.mark.parametrize("calls_python", [False, True])
def test_what_a_program_may_call_while_it_runs(watch: Watch, jit: Any, calls_python: bool) -> None:
    def bins(state: jax.Array) -> jax.Array:
        if calls_python:
            jax.debug.callback(int, 1)
        return state + jnp.searchsorted(state, 1.0)  # an equation that JAX 0.12 expands late

    class Trainer:
        def __init__(self) -> None:
            self.state = jnp.ones(N)
            self.step = jit(bins)

        def run(self) -> None:
            for _ in range(3):
                self.state = self.step(self.state)

    Trainer().run()
    assert kinds(found(watch, "bins")) == (["if unread"] if calls_python else ["add"])


def test_one_array_twice(watch: Watch, jit: Any) -> None:
    f = jit(lambda x, y: (x + 1, y * 2))

    def run() -> None:
        x = jnp.ones(N)
        for _ in range(3):
            x, _ = f(x, x)

    run()
    report = found(watch, "<lambda>")
    assert report.edit is None
    assert {argument.why for argument in report.arguments} == {"another leaf of the arguments is the same array"}


class Grown(NamedTuple):
    state: Any
    total: Any


class Holder:
    """What holds the state."""

    def run(self, f: Any) -> None:
        self.state = state()
        for _ in range(3):
            self.state, _ = f(self.state)


HOLDER = Holder()


class Reading(Grown):
    """Whose unpacking reads what the caller is about to overwrite."""

    def __iter__(self) -> Any:
        return iter([self.state, HOLDER.state["a"].sum()])


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("api", ["jax.jit", "flax.nnx.jit"])
@pytest.mark.parametrize("kind", [tuple, Reading])
def test_unpacking_a_class_of_its_own_may_run_code(api: str, kind: Any, watch: Watch) -> None:
    make = watch.watching(api, jax.jit if api == "jax.jit" else nnx.jit)

    @make
    def f(s):
        new = grow(s)
        return (new, new["a"].sum()) if kind is tuple else Reading(new, new["a"].sum())

    HOLDER.run(f)
    report = found(watch, "f")
    assert getattr(report.edit, "option", None) == ("donate_argnums=(0,)" if kind is tuple else None)


def test_an_unusable_leaf_that_is_held_does_no_harm(watch: Watch, jit: Any) -> None:
    f = jit(lambda s: {"x": s["x"] + s["table"].sum()})

    def run() -> Any:
        table = jnp.ones(N // 3)
        s = {"x": jnp.ones(N), "table": table}
        for _ in range(3):
            s = {**f(s), "table": table}
        return table.sum()

    run()
    report = found(watch, "<lambda>")
    assert report.edit is not None
    assert report.edit.option == "donate_argnums=(0,)"
    f = jit(lambda s: {"x": s["x"] + s["table"].sum()}, donate_argnums=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        run()


def test_what_never_was_an_array_is_not_donated(watch: Watch, jit: Any) -> None:
    """Nobody looked at who holds it; and a later call may pass an array there."""
    f = jit(lambda w, batch, i: (w + 1, batch * 2, i + 1))
    batch = np.ones(N, np.float32)

    def run() -> Any:
        w = jnp.ones(2 * N)
        for i in range(3):
            w, _, _ = f(w, batch, i)
        return w

    run()
    report = found(watch, "<lambda>")
    assert report.edit is not None
    assert report.edit.option == "donate_argnums=(0,)"
    assert [argument.name for argument in report.arguments] == ["w"]


@pytest.mark.parametrize("again", [False, True])
def test_a_state_that_is_numpys_at_first_or_again_later(again: bool, watch: Watch, jit: Any) -> None:
    """As one that is loaded from a file. The calls with arrays on a device count."""
    f = jit(grow)

    def run(s: Any, steps: int) -> Any:
        for _ in range(steps):
            s = f(s)
        return s

    if again:
        run(state(), 3)
    run({name: np.asarray(value) for name, value in state().items()}, 5)
    report = found(watch, "grow")
    (argument,) = report.arguments
    assert (argument.verdict, argument.nbytes, kinds(report)) == ("dead", 3 * N * 4, ["add"])
    assert report.edit is not None
    assert sum(site.seen for site in report.sites) == 5 + 3 * again


def test_a_string_that_names_a_variable_does_not_make_a_donation_wrong(watch: Watch, jit: Any) -> None:
    f = jit(grow, donate_argnums=0)

    def run() -> Any:
        s = state()
        for _ in range(3):
            new = f(s)
            str.format("s, the state")
            s = new
        return s

    run()
    report = found(watch, "grow")
    assert (kinds(report), report.edit) == ([], None)
    assert [argument.verdict for argument in report.arguments] == ["not proven"]


def test_what_c_code_passes_does_not_make_a_donation_wrong(watch: Watch, jit: Any) -> None:
    f = jit(grow, donate_argnums=0)

    def run() -> Any:
        return functools.reduce(lambda s, _: f(s), range(3), state())

    run()
    report = found(watch, "grow")
    assert (kinds(report), report.edit) == ([], None)
    assert [argument.verdict for argument in report.arguments] == ["not proven"]


def test_arguments_are_donated_one_by_one_where_not_all_can_be(watch: Watch, jit: Any) -> None:
    f = jit(lambda a, b, c, d, e: (a + b, b + c, c + d, d + e, e + a))

    def run() -> Any:
        arrays = tuple(jnp.full((256, 256), float(k)) for k in range(5))
        a, b, c, d, e = arrays
        del arrays
        for _ in range(3):
            a, b, c, d, e = f(a, b, c, d, e)
        return a

    run()
    report = found(watch, "<lambda>")
    assert report.edit is not None
    assert report.edit.option == "donate_argnums=(0, 2)"


def test_two_functions_of_one_line(watch: Watch, jit: Any) -> None:
    def reads(state):
        return state["a"].sum()

    f, g = (jit(fun) for fun in (grow, reads))

    def run() -> Any:
        s = state()
        for _ in range(3):
            g(s)
            s = f(s)
        return s

    run()
    report = found(watch, "grow")
    assert report.edit is not None
    assert (report.edit.before, report.edit.after) == ("", "")
    assert report.edit.note == "donate_argnums=(0,), for grow alone: the same line makes reads, too"


def test_functions_that_a_loop_makes_are_one(watch: Watch, jit: Any) -> None:
    def run() -> Any:
        s = state()
        for _ in range(12):
            s = jit(grow)(s)
        return s

    run()
    report = found(watch, "grow")
    assert (report.made, report.calls) == (12, 8)
    assert report.edit is not None


def test_keyword_arguments_are_donated_by_name(watch: Watch, jit: Any) -> None:
    @jit
    def f(x, *, y):
        return x.sum(), y * 2

    def run() -> Any:
        y = jnp.ones(N)
        for _ in range(3):
            _, y = f(jnp.ones(3), y=y)
        return y

    run()
    report = found(watch, "f")
    assert report.edit is not None
    assert (report.edit.before, report.edit.after) == ("jit", "functools.partial(jit, donate_argnames=('y',))") or (
        report.edit.after == "jit(donate_argnames=('y',))"
    )


def test_arguments_that_only_a_smaller_call_has_are_numbered(watch: Watch, jit: Any) -> None:
    f = jit(lambda *args: tuple(value * 2 for value in args))

    def run() -> None:
        large, x, y = jnp.ones(8 * N), jnp.ones(N), jnp.ones(N)
        for _ in range(3):
            (large,) = f(large)
            x, y = f(x, y)

    run()
    assert getattr(found(watch, "<lambda>").edit, "option", None) == "donate_argnums=(0, 1)"


def test_an_argument_that_is_passed_in_both_ways(watch: Watch, jit: Any) -> None:
    f = jit(lambda x, *, y: (x * 2, y * 3))
    g = jit(lambda x, y: (x * 2, y * 3))

    def run() -> None:
        x, y = jnp.ones(2 * N), jnp.ones(N)
        for _ in range(3):
            x, y = f(x, y=y)
            x, y = f(x=x, y=y)
            x, y = g(x, y)
            x, y = g(y=y, x=x)

    run()
    options = [getattr(report.edit, "option", None) for report in advice.functions(watch.functions)]
    assert options == ["donate_argnums=(0,), donate_argnames=('x', 'y')", "donate_argnums=(0, 1)"]


@pytest.mark.parametrize("donated", [(), (0,), (0, 1)])
def test_pmap_donates_nothing_that_is_passed_by_keyword(donated: Any, watch: Watch) -> None:
    f = watch.watching("jax.pmap", jax.pmap)(lambda x, y: (x * 2, y * 3), donate_argnums=donated)

    def run() -> None:
        x, y = jnp.ones((1, 2 * N)), jnp.ones((1, N))
        for _ in range(3):
            x, y = f(x, y=y)

    run()
    report = found(watch, "<lambda>")
    assert getattr(report.edit, "option", None) == (None if donated else "donate_argnums=(0,)")
    assert [argument.donated for argument in report.arguments] == [bool(donated), False]


@pytest.fixture(name="inside")
def _inside(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equinox and Flax find the watched `jax.jit`, as they do in an audited script."""
    monkeypatch.setattr(jax, "jit", watch.watching("jax.jit", jax.jit))


@pytest.mark.usefixtures("inside")
def test_equinox_donates_all_or_all_but_the_first(watch: Watch) -> None:
    filter_jit = watch.watching("equinox.filter_jit", eqx.filter_jit)

    @filter_jit
    def f(fixed, state):
        return {name: value * fixed["a"][0] for name, value in state.items()}

    def run() -> Any:
        fixed, s = state(), state()
        for _ in range(3):
            s = f(fixed, s)
        return s, fixed

    run()
    report = found(watch, "f")
    assert report.edit is not None
    assert report.edit.option == 'donate="all-except-first"'
    assert report.figures is not None
    assert report.figures.saves == 3 * N * 4
    assert [argument.verdict for argument in report.arguments] == ["held", "dead"]


@pytest.mark.usefixtures("inside")
def test_equinox_donates_nothing_where_another_argument_is_held(watch: Watch) -> None:
    filter_jit = watch.watching("equinox.filter_jit", eqx.filter_jit)

    @filter_jit
    def f(state, scale):
        return {name: value * scale for name, value in state.items()}, scale * 1.0

    def run() -> Any:
        s, scale = state(), jnp.ones(3)[0]
        for _ in range(3):
            s, _ = f(s, scale)
        return s, scale

    run()
    report = found(watch, "f")
    assert report.edit is None
    assert [argument.verdict for argument in report.arguments] == ["left alone", "held"]


@pytest.mark.usefixtures("inside")
def test_an_argument_to_donate_in_place_of_another_is_not_said_to_be_left_alone(watch: Watch, jit: Any) -> None:
    f = jit(lambda a, b: (a + b,), donate_argnums=(0,))

    def run() -> Any:
        a = jnp.ones(N)
        keep = a
        f(a, a * 2)
        return keep

    kept = run()
    report = found(watch, "<lambda>")
    assert "wrong" in kinds(report)
    assert kept.is_deleted()
    assert report.edit is not None
    assert report.edit.option == "donate_argnums=(1,)"
    assert [argument.verdict for argument in report.arguments][1] != "left alone"


def test_source_is_shortened_only_where_something_is_left_out() -> None:
    source = "jax.jit(lambda s, **k: s + sum(k.values()), static_argnames=('a', 'b'))(jnp.ones(100_000), a=jnp.ones(3))"
    for room in range(30, len(source)):
        for same in range(len(source)):
            begin, *later = (parts := _shortened(source, same, room)).removesuffix(" ...").split(" ... ")
            assert len(parts) <= room
            assert source.startswith(begin)
            assert all(source.index(part) > len(begin) for part in later)


@pytest.mark.usefixtures("inside")
def test_functions_of_equinox_whose_first_calls_are_at_the_same_time(watch: Watch) -> None:
    together = threading.Barrier(2, timeout=60)

    def met(fun: Any) -> Any:
        compiled = eqx.filter_jit(fun)

        def called(*args: Any) -> Any:
            together.wait()
            return compiled(*args)

        return functools.wraps(fun)(called)

    filter_jit = watch.watching("equinox.filter_jit", met)

    def run(step: Any, size: int) -> None:
        s = jnp.ones(size)
        for _ in range(3):
            s = step(s)

    def saved(attempt: int) -> list[Any]:
        """What is found of two functions, of which one has three times as much to save."""

        def step(s: Any) -> Any:
            return s + 1

        names = [f"{name}{attempt}" for name in ("small", "large")]
        steps = [filter_jit(types.FunctionType(step.__code__, globals(), name)) for name in names]
        threads = [threading.Thread(target=run, args=each) for each in zip(steps, (N, 3 * N), strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        figures = [found(watch, name).figures for name in names]
        return [each and each.saves for each in figures]

    # While one thread lists all arrays, each has one reference more, and the other thread takes its own for held.
    attempts = [saved(attempt) for attempt in range(4)]
    assert [N * 4, 3 * N * 4] in attempts
    assert all(small in (0, None, N * 4) and large in (0, None, 3 * N * 4) for small, large in attempts)


@pytest.mark.usefixtures("inside")
def test_a_flax_variable_that_something_else_holds(watch: Watch) -> None:
    nnx_jit = watch.watching("flax.nnx.jit", nnx.jit)

    @nnx_jit
    def f(model):
        model.kernel[...] = model.kernel[...] * 2

    def run(keeping: bool) -> Any:
        model, kept = nnx.Linear(64, 64, rngs=nnx.Rngs(0)), None
        for _ in range(4):
            if keeping:
                kept = model.kernel.get_value()
            f(model)
        return kept

    run(False)
    report = found(watch, "f")
    assert getattr(report.edit, "option", None) == "donate_argnums=(0,)"
    assert report.figures.pytc is None  # with `pytc.compile` the model would stay as it is
    run(True)
    report = found(watch, "f")
    assert report.edit is None
    (argument,) = report.arguments
    assert argument.why.startswith("also `kept` in test_advice.py")


STATIC = {"tuple": ("a", "b"), "nested": (("a", 1), None, ()), "empty": (), "none": None, "text": "relu", "number": 2.5}


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("by", ["static_argnums", "static_argnames"])
@pytest.mark.parametrize("api", ["jax.jit", "flax.nnx.jit"])
def test_static_arguments_ahead_of_what_is_donated(api: str, by: str, watch: Watch) -> None:
    make = watch.watching(api, jax.jit if api == "jax.jit" else nnx.jit)
    static = {by: 0 if by == "static_argnums" else "config"}

    def f(config, s, *, scale):
        return {name: value * scale for name, value in s.items()}

    def run(compiled: Any, config: Any, by_name: bool) -> Any:
        s = state()
        for _ in range(3):
            s = compiled(config=config, s=s, scale=2.0) if by_name else compiled(config, s, scale=2.0)
        return s

    for config in STATIC.values():
        run(make(f, **static), config, by_name=False)
        report = advice.functions(watch.functions[-1:])[0]
        assert (report.note, report.calls, report.seen) == ("", 3, 3)
        assert getattr(report.edit, "option", None) == "donate_argnums=(1,)"
    run(make(f, **static), ("a",), by_name=True)
    report = advice.functions(watch.functions[-1:])[0]
    assert getattr(report.edit, "option", None) == "donate_argnames=('s',)"


@pytest.mark.usefixtures("inside")
def test_arguments_without_leaves_count(watch: Watch) -> None:
    nnx_jit = watch.watching("flax.nnx.jit", nnx.jit)

    @nnx_jit
    def f(config, empty, model):
        model.kernel[...] = model.kernel[...] * 2

    def run() -> None:
        model = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
        for _ in range(3):
            f(None, (), model)

    run()
    assert getattr(found(watch, "f").edit, "option", None) == "donate_argnums=(2,)"


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("first", ["fixed", "state"])
def test_equinox_means_the_functions_first(first: str, watch: Watch) -> None:
    def f(fixed, state):
        return {name: value * fixed["a"][0] for name, value in state.items()}

    def g(state, fixed):
        return f(fixed, state)

    filter_jit = watch.watching("equinox.filter_jit", eqx.filter_jit)
    compiled = filter_jit(f if first == "fixed" else g)

    def run() -> Any:
        fixed, s = state(), state()
        for _ in range(3):
            s = compiled(state=s, fixed=fixed)
        return s, fixed

    run()
    (report,) = advice.functions(watch.functions)
    assert getattr(report.edit, "option", None) == f'donate="all{"-except-first" if first == "fixed" else ""}"'


def test_looking_takes_its_share_of_the_time_at_most(watch: Watch, jit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one call more, the last one."""
    f = jit(lambda s: [x + 1 for x in s])
    charge, charged = watch.clock.charge, list[float]()

    def noted(seconds: float, sampling: bool) -> None:
        charged.append(seconds)
        charge(seconds, sampling)

    monkeypatch.setattr(watch.clock, "charge", noted)

    def run(steps: int) -> Any:
        s = [jnp.ones(8) for _ in range(300)]
        for _ in range(steps):
            s = f(s)
        return jax.block_until_ready(s)

    run(record.FIRST)
    charged.clear()
    watch.clock.started, began = time.perf_counter(), time.perf_counter()
    run(400)
    assert 0 < watch.clock.sampling <= record.SHARE * (time.perf_counter() - began) + 2 * max(charged)


EDITS = {
    "jax.jit(f)": ("jax.jit(f, donate_argnums=(0,))", ""),
    "jax.jit()": ("jax.jit(donate_argnums=(0,))", ""),
    "jax.jit(f, donate_argnums=(1, 2))": ("jax.jit(f, donate_argnums=(0,))", "jax.jit(f)"),
    "jax.jit(f, donate_argnums=1, static_argnums=2)": (
        "jax.jit(f, donate_argnums=(0,), static_argnums=2)",
        "jax.jit(f, static_argnums=2)",
    ),
    "jax.jit(donate_argnames=('a',), inline=True)": (
        "jax.jit(donate_argnums=(0,), inline=True)",
        "jax.jit(inline=True)",
    ),
    "jax.jit(f, donate_argnums=1, donate_argnames=('a',))": ("jax.jit(f, donate_argnums=(0,))", "jax.jit(f)"),
    "jax.jit(f, donate_argnames='a', inline=True, donate_argnums=(1))": (
        "jax.jit(f, donate_argnums=(0,), inline=True)",
        "jax.jit(f, inline=True)",
    ),
    "partial(jax.jit, static_argnums=(2,))": ("partial(jax.jit, static_argnums=(2,), donate_argnums=(0,))", ""),
    "jax.jit(\n    f,\n    donate_argnums=1,\n)": (
        "jax.jit(\n    f,\n    donate_argnums=(0,),\n)",
        "jax.jit(\n    f,\n)",
    ),
    "jax.jit(\n    f,\n    donate_argnums=0  # x, y\n)": (
        "jax.jit(\n    f,\n    donate_argnums=(0,)  # x, y\n)",
        "jax.jit(\n    f\n  # x, y\n)",
    ),
    "jax.jit(\n    f,  # (\n    donate_argnums=0,  # x, y)\n)": (
        "jax.jit(\n    f,  # (\n    donate_argnums=(0,),  # x, y)\n)",
        "jax.jit(\n    f,  # (\n    # x, y)\n)",
    ),
    "jax.jit(\n    f,\n    static_argnums=1,\n)": (
        "jax.jit(\n    f,\n    static_argnums=1, donate_argnums=(0,),\n)",
        "",
    ),
    "jax.jit(\n    f,  # the step (fast)\n)": ("jax.jit(\n    f, donate_argnums=(0,),  # the step (fast)\n)", ""),
    "jax.jit(\n    f  # the step, (fast\n)": ("jax.jit(\n    f, donate_argnums=(0,)  # the step, (fast\n)", ""),
    "jax.jit(  # nothing yet)\n)": ("jax.jit(donate_argnums=(0,)  # nothing yet)\n)", ""),
    'jax.jit(lambda é: é + ")", donate_argnums=0)': (
        'jax.jit(lambda é: é + ")", donate_argnums=(0,))',
        'jax.jit(lambda é: é + ")")',
    ),
    "jax.jit((f))": ("jax.jit((f), donate_argnums=(0,))", ""),
    "jax.jit(((f) ) , )": ("jax.jit(((f) ), donate_argnums=(0,) , )", ""),
    "jax.jit(lambda x: ())": ("jax.jit(lambda x: (), donate_argnums=(0,))", ""),
    "jax.jit(*[f], inline=True)": ("jax.jit(*[f], inline=True, donate_argnums=(0,))", ""),
    "jax.jit(*f, donate_argnums=0, *g)": ("jax.jit(*f, donate_argnums=(0,), *g)", "jax.jit(*f, *g)"),
    "make(**options)": ("make(**options, donate_argnums=(0,))", ""),
    "make(donate_argnums=1, **options)": ("make(donate_argnums=(0,), **options)", "make(**options)"),
    'jax.jit(\n\tnamed("""é ) #\n#, """),\n\t)': ('jax.jit(\n\tnamed("""é ) #\n#, """), donate_argnums=(0,),\n\t)', ""),
    'jax.jit(f"{é!r:>{8}}\u2028 #")': ('jax.jit(f"{é!r:>{8}}\u2028 #", donate_argnums=(0,))', ""),
    "jax.jit(f \\\n)": ("jax.jit(f, donate_argnums=(0,) \\\n)", ""),
    "jax.jit(f)(x, jit(g))": ("jax.jit(f)(x, jit(g), donate_argnums=(0,))", ""),
    "list(map(jax.jit, [f]))": ("", ""),
    "itertools.starmap(jax.jit, [[f]])": ("", ""),
    "make(x for x in y)": ("", ""),
    "jax.jit": ("", ""),
    "jax.jit(f) + 1": ("", ""),
}


def changed(source: str, start: str, expression: str, said: str, tmp_path: Any, given: Any = ()) -> edit.Edit:
    """The edit for this expression, behind `start` in the source."""
    path = tmp_path / "train.py"
    path.write_text(source, "utf-8")
    before, _, after = source.partition(start + expression)
    line, ahead = before.count("\n") + 1, len((before.rpartition("\n")[2] + start).encode())
    lines = expression.split("\n")
    last = (ahead if len(lines) == 1 else 0) + len(lines[-1].encode())
    change = edit.edit(Place(str(path), line, line + len(lines) - 1, ahead, last), said, given)
    if change.after:
        assert change.before == expression
        compile(before + start + change.after + after, "train.py", "exec")
    return change


@pytest.mark.parametrize("before", EDITS)
def test_edits(before: str, tmp_path: Any) -> None:
    source = f"é = '\u2028 \f', 1\nif é:\n\tö = 1; step = {before}\n"
    after = changed(source, "; step = ", before, "donate_argnums=(0,)", tmp_path).after
    gone = changed(source, "; step = ", before, "", tmp_path).after
    assert (after, gone) == EDITS[before]


DECORATORS = {
    "jax.jit": "jax.jit(donate_argnums=(0,))",
    "my_jit": "functools.partial(my_jit, donate_argnums=(0,))",
    "jax.jit(inline=True)": "jax.jit(inline=True, donate_argnums=(0,))",
    "P(\n    jax.jit,\n    inline=True,  # (\n)": "P(\n    jax.jit,\n    inline=True, donate_argnums=(0,),  # (\n)",
    "partial(my_jit, inline=True)": "partial(my_jit, inline=True, donate_argnums=(0,))",
    "factory()": "",
    "made[0]": "",
}


@pytest.mark.parametrize("before", DECORATORS)
def test_edits_of_decorators(before: str, tmp_path: Any) -> None:
    source = f"class A:\n    @property\n    @ {before}\n    def f(x): return x\n"
    assert changed(source, "@ ", before, "donate_argnums=(0,)", tmp_path).after == DECORATORS[before]


def test_edits_where_a_donation_is_said_elsewhere(tmp_path: Any) -> None:
    said, given = "donate_argnums=(0,)", ["donate_argnums", "inline"]
    for expression in ("jax.jit(f, **options)", "jax.jit(f, inline=True, **options)"):
        assert changed(f"f = {expression}", "f = ", expression, said, tmp_path, given).after == ""
    for donated in ("", "donate_argnames=('x',)"):
        change = changed("f = my_jit(f)", "f = ", "my_jit(f)", donated, tmp_path, given)
        assert (change.after, change.note) == ("", "the donation that it has now is said elsewhere")
    assert changed("f = my_jit(f)", "f = ", "my_jit(f)", said, tmp_path, given).after == f"my_jit(f, {said})"


def test_a_place_whose_source_is_gone() -> None:
    change = edit.edit(Place("/nowhere/train.py", 3, 3, 0, 5), "donate_argnums=(0,)")
    assert (change.before, change.after, change.line) == ("", "", 3)


def test_of_a_long_edit_the_change_is_shown(watch: Watch, jit: Any) -> None:
    f = jit(
        grow,  # a comment that is long enough for the line to be cut somewhere, and of which nobody wants to read all
        inline=True,  # another one
        keep_unused=True,  # and the last one, of about the same length as the first one, which takes as much room
    )

    def run() -> None:
        s = state()
        for _ in range(3):
            s = f(s)

    run()
    lines = Audit("train.py", "", advice.functions(watch.functions), 1.0, 0.0).text(90).splitlines()
    (before,) = (line for line in lines if line.startswith("    - "))
    (after,) = (line for line in lines if line.startswith("    + "))
    assert "unused=True, donate_argnums=(0,), # and" in after
    assert "unused=True, # and the" in before
    assert before.startswith("    - f = jit( grow, # a")
    assert max(len(before), len(after)) <= 90


def test_the_report_as_text_and_data(watch: Watch, jit: Any) -> None:
    f = functools.partial(jit(grow))
    f(state())
    audit = Audit("train.py", "", advice.functions(watch.functions), 1.0, 0.0)
    assert '"schema": "pytc.audit/1"' in audit.to_json()
    narrow = audit.text(50)
    assert max(map(len, narrow.splitlines())) <= 60
    assert "\x1b[" in audit.text(80, colour=True)
    assert "\x1b[" not in str(audit)
