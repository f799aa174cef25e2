"""What stands in the place of `jax.jit` behaves as what it stands for, and what is written down of its calls is so."""

import functools
import gc
import inspect
import signal
import traceback
import types
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pytc.explain.audit import advice, record
from pytc.explain.audit.report import FunctionReport
from pytc.explain.audit.watch import Watch
from pytc.ownership import callers


@pytest.fixture(name="watch")
def _watch() -> Watch:
    return Watch()


@pytest.fixture(name="jit")
def _jit(watch: Watch) -> Any:
    return watch.watching("jax.jit", jax.jit)


def double(x):
    """Twice."""
    return x * 2


def report_of(watch: Watch, name: str) -> FunctionReport:
    return next(report for report in advice.functions(watch.functions) if report.name == name)


def test_attributes(jit: Any) -> None:
    real, watched = jax.jit(double), jit(double)
    assert watched.__name__ == "double"
    assert watched.__doc__ == "Twice."
    assert watched.__wrapped__ is double
    assert inspect.signature(watched) == inspect.signature(real)
    assert isinstance(watched, jax.stages.Wrapped)
    missing = [name for name in dir(real) if not name.startswith("__") and not hasattr(watched, name)]
    assert not missing
    assert watched.lower(jnp.ones(3)).as_text() == real.lower(jnp.ones(3)).as_text()
    assert watched.eval_shape(jnp.ones(3)).shape == (3,)
    assert watched._cache_size() == 0
    watched(jnp.ones(3))
    assert watched._cache_size() == 1
    watched.clear_cache()
    assert watched._cache_size() == 0
    assert {watched: 1}[watched] == 1


def test_warnings_name_the_same_line(jit: Any) -> None:
    def places(make: Any) -> list[tuple[str, int]]:
        def warns(x):
            warnings.warn("traced", stacklevel=1)
            return x

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make(double, device=jax.devices()[0])
            make(warns)(1.0)
        return [(each.filename, each.lineno) for each in caught]

    assert places(jit) == places(jax.jit)
    assert len(places(jit)) == 2


def test_inside_another(jit: Any) -> None:
    def texts(make: Any) -> list[str]:
        inner = make(double)
        outer = functools.wraps(inner)(lambda x: inner(x))
        return [
            str(jax.make_jaxpr(inner)(1.0)),
            str(make(inner).trace(1.0).jaxpr),
            str(jax.jit(inner).trace(1.0).jaxpr),
            str(jax.eval_shape(inner, 1.0)),
            str(hasattr(outer, "trace")),
            str(sorted(vars(outer))),
            str(jax.make_jaxpr(jax.vmap(inner))(jnp.ones(3))),
        ]

    assert texts(jit) == texts(jax.jit)


def test_under_transformations_nothing_is_counted(watch: Watch, jit: Any) -> None:
    f = jit(lambda x: jnp.sum(x**2))
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.grad(f)(x), 2 * x)
    np.testing.assert_array_equal(jax.vmap(f)(x[None]), f(x)[None])
    np.testing.assert_array_equal(jax.jit(f)(x), f(x))
    (function,) = watch.functions
    assert sum(site.calls for site in function.sites.values()) == 2
    assert function.inner_calls == 3


def test_methods(jit: Any) -> None:
    class Model:
        def __init__(self) -> None:
            self.scale = 3.0
            self.bound = jit(self.plain)

        def plain(self, x):
            return x * self.scale

        @functools.partial(jit, static_argnums=0)
        def method(self, x):
            return x + self.scale

        @staticmethod
        @jit
        def static(x):
            return x - 1

    model = Model()
    assert float(model.bound(jnp.float32(2))) == 6
    assert float(model.method(jnp.float32(2))) == 5
    assert float(Model.method(model, jnp.float32(2))) == 5
    assert float(model.static(jnp.float32(2))) == 1


def test_options_first(watch: Watch, jit: Any) -> None:
    @jit(static_argnames="n")
    def power(x, n):
        return x**n

    assert float(power(jnp.float32(2), n=3)) == 8
    (function,) = watch.functions
    assert (function.name, function.place.line) == ("power", inspect.getsourcelines(power.__wrapped__)[1])


def test_the_function_by_keyword(watch: Watch) -> None:
    filter_jit = watch.watching("equinox.filter_jit", eqx.filter_jit)
    double = filter_jit(fun=lambda x: x * 2, donate="none")
    np.testing.assert_array_equal(double(jnp.ones(3)), [2, 2, 2])
    (function,) = watch.functions
    assert (function.name, function.options) == ("<lambda>", {"donate": "none"})
    assert sum(site.calls for site in function.sites.values()) == 1


def test_errors_are_those_of_jax(jit: Any) -> None:
    def fails(x):
        raise LookupError("inside")

    def texts(make: Any) -> list[list[str]]:
        calls = [
            lambda: make(fails)(jnp.ones(3)),
            lambda: make(double)("text"),
            lambda: make(double, static_argnums=0)([1]),
            lambda: make(double, donate_argnums=0, static_argnums=0)(1),
            lambda: make(double, no_such_option=1),
            lambda: make(double)(jnp.ones(3), jnp.ones(3)),
        ]
        found = []
        for call in calls:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what is compared
                call()
            frames = traceback.extract_tb(caught.value.__traceback__)
            ours = [frame for frame in frames if frame.filename == __file__ or "audit" in frame.filename]
            found.append([type(caught.value).__name__, str(caught.value), *(frame.line or "" for frame in ours)])
        return found

    assert texts(jit) == texts(jax.jit)


def test_a_function_is_traced_once(jit: Any) -> None:
    traced = []

    @jit
    def f(state, batch, scale=1.0):
        traced.append(1)
        return jax.tree.map(lambda s: s + scale * batch.sum(), state)

    def run() -> None:
        state = {"a": jnp.ones(3), "b": np.ones(2), "c": 1.0}
        for _ in range(3):
            state = f(state, jnp.ones(4))
        f(state, batch=jnp.ones(4), scale=2)

    run()
    assert len(traced) == 3  # of NumPy data and a number, of arrays, and with another keyword


PLACES = {
    "Parameters": record,
    "_new_signature": record.WatchedFunction,
    "_count": record.WatchedFunction,
    "executed": record.ownership,
    "_names": record,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_fault_of_the_audit_is_not_the_scripts(place: str, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(PLACES[place], place, broken)
    monkeypatch.setattr(jax, "jit", watch.watching("jax.jit", jax.jit))
    f = (watch.watching("equinox.filter_jit", eqx.filter_jit) if place == "_names" else jax.jit)(double)
    assert [float(f(jnp.float32(x))) for x in (4, 5)] == [8, 10]
    assert report_of(watch, "double").note == "not watched: ZeroDivisionError: ours"


class Odd:
    """What raises wherever it is asked something."""

    def __init__(self, x: Any, told: Any) -> None:
        self.x, self.told = x, told

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ValueError("do not compare")

    @property
    def aval(self) -> Any:
        raise ValueError("do not ask")


class Node:
    """What is told apart from itself."""

    def __init__(self, x: Any) -> None:
        self.x = x


jax.tree_util.register_pytree_node(Node, lambda node: ((node.x,), object()), lambda _, xs: Node(*xs))


def test_odd_arguments_raise_what_they_raise_and_no_more(jit: Any) -> None:
    def outcomes(make: Any) -> list[str]:
        x, traced = jnp.ones(3), []

        def once(node):
            traced.append(1)
            return node.x * 2

        odd = make(lambda x, static: x, static_argnums=1)
        calls = [
            lambda: make(once)(Node(x)),
            lambda: make(lambda x: x)(Odd(1, 1)),
            lambda: (odd(x, Odd(1, 1)), odd(x, Odd(2, 2)))[1],
            lambda: make(lambda x: x)({1: x, "a": x}),
        ]
        found = []
        for call in calls:
            try:
                found.append(str(call()))
            except Exception as error:
                found.append(type(error).__name__ + " ours" * (str(error).startswith("do not")))
        return [*found, str(len(traced))]

    assert outcomes(jit) == outcomes(jax.jit)


def test_static_arguments_that_jax_pmap_is_called_without(watch: Watch) -> None:
    pmap = watch.watching("jax.pmap", jax.pmap)
    with pytest.raises(ValueError, match="called with only 1 positional"):
        pmap(double, static_broadcasted_argnums=5)(jnp.ones((1, 3)))
    assert "not watched: ValueError" in report_of(watch, "double").note


def test_calls_beyond_the_first_are_sampled_by_the_clock(watch: Watch, jit: Any) -> None:
    f = jit(double)

    def run(count: int) -> None:
        x = jnp.ones(3)
        for _ in range(count):
            x = f(x)

    watch.clock.sampling = 1e9
    run(record.FIRST + 100)
    report = report_of(watch, "double")
    assert (report.calls, report.seen) == (record.FIRST + 100, record.FIRST)
    watch.clock.sampling = -1e9
    run(1)
    assert report_of(watch, "double").seen == record.FIRST + 1


def scaled(params, x, *, flag=True):
    w, b = params
    return (w * x.sum() + constant[: len(b)].sum() if flag else w, b + 1), x.mean()


constant = jnp.arange(4096.0)


@pytest.mark.parametrize("donate", [(), (0,), (0, 1)])
@pytest.mark.parametrize("options", [{}, {"keep_unused": True}, {"static_argnames": "flag"}])
def test_the_figures_are_those_of_the_compiler(watch: Watch, jit: Any, donate: Any, options: Any) -> None:
    def arguments() -> Any:
        return (jnp.ones((64, 64)), jnp.zeros(1000)), jnp.ones(500)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        jit(scaled, donate_argnums=donate, **options)(*arguments())
        compiled = jax.jit(scaled, donate_argnums=donate, **options).lower(*arguments()).compile()
    counted = compiled.memory_analysis()
    taken = counted.argument_size_in_bytes + counted.output_size_in_bytes + counted.temp_size_in_bytes
    found = report_of(watch, "scaled").figures
    assert found is not None
    assert found.now == taken - counted.alias_size_in_bytes


@jax.tree_util.register_pytree_node_class
class Ringing:
    """While it is flattened for the `at`-th time, an alarm goes off."""

    at = 0

    def __init__(self, x: Any) -> None:
        self.x = x

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        Ringing.at -= 1
        if Ringing.at == 0:
            signal.raise_signal(signal.SIGALRM)
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> "Ringing":
        return cls(*children)


def rings(number: int, frame: Any) -> None:
    raise TimeoutError("time is up")


@pytest.mark.parametrize("at", range(1, 5))
def test_what_the_handler_of_a_signal_raises_is_the_scripts(jit: Any, at: int) -> None:
    step = jit(lambda state: state)
    state = step(Ringing(jnp.ones(3)))

    def steps() -> None:
        for _ in range(at):
            step(state)

    handler = signal.signal(signal.SIGALRM, rings)
    Ringing.at = at
    try:
        with pytest.raises(TimeoutError, match="time is up"):
            steps()
    finally:
        signal.signal(signal.SIGALRM, handler)
        Ringing.at = 0


@pytest.mark.parametrize("ring_in", [(callers.Slots, "add"), (callers.Slots, "stands")])
def test_garbage_is_collected_again_where_a_call_is_looked_at_in_vain(
    jit: Any, monkeypatch: pytest.MonkeyPatch, ring_in: tuple[type, str]
) -> None:
    """Slots are looked at while no garbage is collected."""
    real, states = getattr(*ring_in), []

    def ringing(*args: Any) -> Any:
        states.append(gc.isenabled())
        signal.signal(signal.SIGALRM, rings)  # only now: slots are not looked at where a handler may raise
        signal.raise_signal(signal.SIGALRM)
        return real(*args)

    def go() -> None:
        holder.state = step(holder.state)

    step, holder = jit(lambda state: state + 1), types.SimpleNamespace(state=jnp.ones(3))
    for _ in range(3):
        go()
    handler = signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(*ring_in, ringing)
    try:
        with pytest.raises(TimeoutError, match="time is up"):
            go()
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert states == [False]
    assert gc.isenabled()
