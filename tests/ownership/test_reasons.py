"""What holds a leaf, as a person would say it; and what outlives the call for reasons that its site shows."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import functools
import gc
import itertools
import re
import signal
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata

from pytc import ownership
from pytc.ownership.others import service_threads
from pytc.ownership.words import holders, paths, referrers, variables
from pytc.ownership.words.referrers import Referrers
from tests.ownership.harness import Stub, both, expect, first
from tests.threads import FOR_LONG, another_thread

pytestmark = pytest.mark.unfrozen


class Asking(Stub):
    """Asks why each leaf was kept, and which were expected to survive."""

    def __init__(self) -> None:
        super().__init__(self._ask)
        self.why: list[dict[int, ownership.Held]] = []
        self.glances: list[dict[int, ownership.Held]] = []
        self.survivors: list[frozenset[int]] = []
        self.where: list[str] = []

    def _ask(self, call: Any, wanted: Any, outcome: Any) -> Any:
        self.where.append(ownership.where(call.frame))
        self.survivors.append(ownership.survivors(call, outcome).expected)
        self.glances.append(ownership.glance(call, wanted, outcome))
        self.why.append(ownership.reasons(call, wanted, outcome))
        return ownership.held(call, wanted, outcome)

    def says(self, pattern: str) -> None:
        """That the last call was told so of its first leaf."""
        assert re.search(pattern, self.why[-1][0].text), self.why[-1][0]

    def shows(self, pattern: str) -> None:
        """That a glance at the last call shows so much of its first leaf."""
        assert re.search(pattern, self.glances[-1][0].text), self.glances[-1][0]


Functions = tuple[Asking, Callable[..., Any]]


@pytest.fixture(name="made")
def _made() -> Functions:
    stub = Asking()
    return stub, stub.compile(first)


def test_read_again(made: Functions) -> None:
    stub, f = made
    x = stub.new()
    line = _line() + 1
    y = f(x)
    stub.read((x, y))
    stub.says(rf"read again in test_reasons.py:{line + 1}")
    stub.shows(rf"read again in test_reasons.py:{line + 1}")
    expect(stub.where == [f"test_reasons.py:{line}"])
    expect(stub.survivors == [{0}])


def _line() -> int:
    return sys._getframe(1).f_lineno


def test_another_name(made: Functions) -> None:
    stub, f = made
    x = stub.new()
    best = x
    x = f(x)
    stub.says(r"also `best` in test_reasons.py:\d+")
    stub.read(best)


def test_an_attribute(made: Functions) -> None:
    stub, f = made

    class Trainer:
        ema: Any = None

    trainer = Trainer()
    x = {"w": stub.new()}
    trainer.ema = x
    x = f(x)
    stub.says("attribute `ema` of Trainer")
    y = f(trainer.ema)
    stub.read((trainer.ema, x, y))
    expect(stub.survivors == [set(), {0}])


def test_what_is_overwritten_does_not_hold(made: Functions) -> None:
    stub, f = made
    trainer = types.SimpleNamespace(state=stub.new())
    trainer.best = trainer.state
    trainer.state = f(trainer.state)
    stub.says("attribute `best` of SimpleNamespace")
    slotted = _Slotted()
    slotted.state = slotted.best = stub.new()
    slotted.state = f(slotted.state)
    stub.says("attribute `best` of _Slotted")
    trainer.run = {"last": stub.new()}
    trainer.run["best"] = trainer.run["last"]
    trainer.run["last"] = f(trainer.run["last"])
    stub.says("^item 'best' of attribute `run` of SimpleNamespace$")
    stub.read((trainer, slotted))


def test_nor_if_the_call_reads_what_holds_it(made: Functions) -> None:
    """The target network of Q-learning, right after it was made the same as the other."""
    stub, f = made
    agent = types.SimpleNamespace(params=stub.new())
    agent.target = agent.params
    agent.params = f(agent.params, agent.target)
    stub.says("^attribute `target` of SimpleNamespace$")
    agent.nets = {"params": agent.params, "target": agent.params}
    agent.params = None
    agent.nets["params"] = f(agent.nets["params"], agent.nets["target"])
    stub.says("^item 'target' of attribute `nets` of SimpleNamespace$")
    stub.read(agent)


def _helper_that_goes_on(f: Callable[..., Any], x: Any, read: Callable[[Any], Any]) -> Any:
    x = f(x)
    read(x)
    return x


def test_a_handler_reads_it_where_a_helper_goes_on(made: Functions) -> None:
    stub, f = made
    x = stub.new()
    with contextlib.suppress(ValueError):
        x = _helper_that_goes_on(f, x, stub.read)
    stub.read(x)
    goes_on = "`_helper_that_goes_on` goes on after the call, and may raise"
    stub.says(rf"^`x` in test_reasons.py:\d+, which an exception handler reads: {goes_on}$")


class _Trainer:
    """What is no pytree is a leaf itself, a static one."""

    state: Any
    best: Any = None

    def step(self, f: Callable[..., Any]) -> None:
        _, self.state = f(self, self.state)


def test_what_a_leaf_holds_is_not_how_the_call_got_another(made: Functions) -> None:
    stub, _ = made
    f = stub.compile(both)
    trainer = _Trainer()
    trainer.state = trainer.best = stub.new()
    trainer.step(f)
    _says_last(stub, "^attribute `best` of _Trainer$")
    with another_thread("prefetch"):
        trainer.step(f)
    _says_last(stub, "^attribute `state` of _Trainer: another thread, 'prefetch', may read it$")
    trainer.step(f)
    expect(stub.why[-1] == {})
    expect(stub.survivors == [set(), {1}, set()])
    stub.read(trainer.state)


def test_what_a_helper_reads_and_its_caller_overwrites(made: Functions) -> None:
    stub, f = made
    trainer, other = types.SimpleNamespace(state=stub.new()), types.SimpleNamespace()

    def advance() -> Any:
        return f(trainer.state)

    def advance_and_more() -> Any:
        state = f(trainer.state)
        return _line() and state

    trainer.state = advance()
    other.state = advance()
    trainer.state = advance_and_more()
    expect(stub.survivors == [set(), {0}, {0}])
    stub.read((trainer, other))


def _says_last(stub: Asking, pattern: str) -> None:
    (told,) = stub.why[-1].values()
    assert re.search(pattern, told.text), told


class _Slotted:
    __slots__ = ("best", "state")

    best: Any
    state: Any


def test_what_a_glance_shows(made: Functions) -> None:
    stub, f = made
    trainer = types.SimpleNamespace(ema=stub.new(), states={"a": [stub.new()]})
    y = f(trainer.ema)
    stub.shows("^attribute `ema` of SimpleNamespace, to which the result is not assigned at once$")
    z = f(trainer.states["a"])
    stub.shows("^item 'a' of a dict, to which the result is not assigned at once$")
    key = "a"
    z = f(trainer.states[key][0])
    stub.shows("^item 0 of a list, to which the result is not assigned at once$")
    trainer.args = (trainer.ema,)
    z = f(*trainer.args)
    stub.shows("^an item of attribute `args` of SimpleNamespace, to which the result is not assigned at once$")
    hidden = (lambda x: lambda: x)(y)
    y = f(y)
    expect(stub.glances[-1] == {})
    stub.read((trainer, y, z, hidden()))


def test_what_a_glance_shows_of_globals(made: Functions) -> None:
    stub, f = made
    space: dict[str, Any] = {"__name__": "__main__", "__file__": "/a/train.py", "f": f, "x": stub.new()}
    exec(compile("y = f(x)", "train.py", "exec"), space)
    stub.shows("^the global `x` in train.py, which any function can read$")


class _Compared:
    def __eq__(self, other: object) -> bool:
        return type(other) is _Compared

    def __hash__(self) -> int:
        return 1


def test_why_an_attribute_counts_that_the_call_got_it_from(made: Functions) -> None:
    stub, f = made
    trainer = types.SimpleNamespace(state=stub.new())
    trainer.state = [f(trainer.state)][0]
    stub.says("^attribute `state` of SimpleNamespace, to which the result is not assigned at once$")
    with another_thread("prefetch"):
        shared = [trainer]
        trainer.state = f(trainer.state)
        shared.clear()
    stub.says("^attribute `state` of SimpleNamespace: another thread, 'prefetch', may read it$")
    with set_xla_metadata(told=_Compared()):
        trainer.state = f(trainer.state)
    stub.says("^attribute `state` of SimpleNamespace: JAX is set to a _Compared, whose code it asks")
    told = _Told()
    told.state = stub.new()
    told.state = f(told.state)
    stub.says("^attribute `state` of _Told, whose class has `__setattr__` run as the result is stored there, which may")
    checked = _Checked()
    checked.state = stub.new()
    checked.state = f(checked.state)
    stub.says("^attribute `state` of _Checked, whose class has `state`, a _Field, run as the result is stored there, ")
    with set_xla_metadata(told=tuple(range(5000))):
        trainer.state = f(trainer.state)
    stub.says("^attribute `state` of SimpleNamespace: JAX is set to more than can be looked at, ")
    stub.read((trainer, told, checked))


class _ItsOwn:
    """What has the state in an attribute of the class."""

    state: Any


class _Failed(Exception):
    state: Any


class _Items(dict[str, Any]):
    pass


class _Watched:
    state: Any

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


def test_why_an_attribute_or_an_item_is_not_plain(made: Functions) -> None:
    stub, f = made
    _ItsOwn.state = stub.new()
    _ItsOwn.state = f(_ItsOwn.state)
    stub.says("^attribute `state` of the class _ItsOwn: attributes of classes, which Python looks for and stores in ")
    expect(stub.why[-1][0].remedy == "plain")
    failed = _Failed()
    failed.state = stub.new()
    failed.state = f(failed.state)
    stub.says("^attribute `state` of _Failed, whose class is derived from Exception, which is written in C and may ")
    items = _Items(state=stub.new())
    items["state"] = f(items["state"])
    stub.says("^item 'state' of a _Items: _Items is a class of its own, and only items of a dict or a list itself are ")
    watched = _Watched()
    watched.state = stub.new()
    watched.state = f(watched.state)
    stub.says("^attribute `state` of _Watched, whose class has `__getattribute__` run as the value is looked up there")
    plain = types.SimpleNamespace(state={"a": stub.new()})
    plain.state["a"] = f(plain.state["a"])
    expect(stub.why[-1] == {})
    stub.read((_ItsOwn.state, failed.state, items, watched.state, plain.state))
    del _ItsOwn.state


def test_why_a_place_counts_that_the_result_overwrites(made: Functions) -> None:
    stub, f = made
    parts = [{"a": {"state": stub.new()}}]
    with another_thread("prefetch"):
        for part in parts:
            part["a"] = f(part["a"])
    stub.says("^item 'a' of a dict: another thread, 'prefetch', may read it$")
    key = types.SimpleNamespace(name="a")
    shared = [key]
    mine = {"a": stub.new()}
    with another_thread("prefetch"):
        mine[key.name] = f(mine[key.name])
    stub.says("^an item of a dict: another thread, 'prefetch', may read it$")
    stub.shows("^an item of a dict: another thread, 'prefetch', may read it$")
    stub.read((mine, shared[0].name == "a"))
    state = stub.new()

    def advance() -> None:
        nonlocal state
        state = f(state)

    with another_thread("prefetch"):
        advance()
    stub.says("^`state` of the nested function .*<locals>.advance: another thread, 'prefetch', may read it$")
    stub.shows("^`state` of the nested function .*<locals>.advance: another thread, 'prefetch', may read it$")
    stub.read(parts)


class _Told:
    state: Any

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


class _Field:
    """What checks the values of an attribute, and keeps them where they would be without it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return vars(instance)[self.name]

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self.name] = value


class _Checked:
    state = _Field()


@contextlib.contextmanager
def _a_handler_of_a_signal() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: len(_))  # it calls something
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_the_handler_of_a_signal_may_cause_to_run(made: Functions) -> None:
    stub, f = made

    def run() -> Any:
        x = stub.new()
        try:
            x = f(x)
        except KeyboardInterrupt:
            return None
        finally:
            stub.read(x)
        return x

    with _a_handler_of_a_signal():
        run()
    stub.says(
        r"^`x` in test_reasons.py:\d+, which an exception handler reads: a handler of SIGUSR1 "
        "may raise an exception in the midst of the call$"
    )
    with another_thread("prefetch"):
        run()
    expect(stub.why[-1] == {})
    run()
    expect(stub.why[-1] == {})


def test_a_loop_that_holds_what_it_has_handed_out(made: Functions) -> None:
    stub, f = made
    states = [stub.new()]
    numbered = enumerate(states)
    for i, state in numbered:
        states[i] = f(state)
    stub.says("^the `enumerate` of a loop, which holds what it has handed out until the next$")
    named = {"a": stub.new()}
    items = iter(named.items())
    for name, state in items:
        named[name] = f(state)
    stub.says(r"^the `items\(\)` of a loop, which")
    history = list(states)
    for state in states:
        states[0] = f(state)
    stub.says("an item of `history` in test_reasons.py")
    stub.read((states, named, history))


class Counted(NamedTuple):
    """A state of which a helper replaces one field, and reads the other."""

    x: Any
    n: int


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("state", "the global `state`"),
        ("run.state", "attribute `state` of SimpleNamespace"),
        ("states['best']", "item 'best' of a dict"),
    ],
)
def test_a_helper_whose_caller_has_the_state_where_others_can_read_it(made: Functions, place: str, named: str) -> None:
    stub, f = made

    def advance(old: Counted) -> Counted:
        x = f(old.x)
        return Counted(x, old.n + 1)

    space = {"advance": advance, "new": lambda: Counted(stub.new(), 0), "run": types.SimpleNamespace(), "states": {}}
    exec(f"{place} = new()", space)
    exec(f"{place} = advance({place})", space)
    stub.says(f"^an item of `old` in .*, which is also {named}: others can read that while advance makes the result$")


def test_a_view_by_numpy() -> None:
    x = jnp.arange(4.0)
    view = np.asarray(x)
    found = holders.in_objects(x, Referrers([x], set()), set(), frozenset())
    assert found is not None
    assert "NumPy" in found.text
    assert view.tolist() == [0, 1, 2, 3]


def test_an_item(made: Functions) -> None:
    stub, f = made
    x = stub.new()
    history = [x]
    x = f(x)
    stub.says("an item of `history` in test_reasons.py")
    stub.read(history)


@pytest.mark.parametrize(
    "kind",
    [
        collections.deque,
        collections.namedtuple("Saved", "step state")._make,
        lambda items: collections.OrderedDict(enumerate(items)),
        lambda items: collections.defaultdict(list, enumerate(items)),
    ],
)
def test_an_item_of_another_kind_of_container(made: Functions, kind: Any) -> None:
    stub, f = made
    x = stub.new()
    history = kind([0, x])
    x = f(x)
    stub.says("an item of `history` in test_reasons.py")
    stub.shows("an item of `history` in test_reasons.py")
    stub.read((history[0], history[1]))


def test_a_string_that_names_it(made: Functions) -> None:
    stub, f = made
    x = stub.new()
    y = f(x)
    expect(bool(str.format("x and {}", 0)))
    stub.says(r"^`x` is named in a string that is used in test_reasons.py:\d+, and may be read by that$")
    stub.read(y)


def test_arguments_that_c_code_passes(made: Functions) -> None:
    stub, f = made
    functools.reduce(lambda x, _: f(x), range(2), stub.new())
    stub.says("^the arguments of a call by C code ")


def test_what_a_function_or_a_class_has(made: Functions) -> None:
    stub, f = made
    x = stub.new()
    shown = [lambda given=x: given]
    x = f(x)
    stub.says(r"^a default argument of test_what_a_function_or_a_class_has\.<locals>\.<lambda>$")
    _Told.state = x
    x = f(x)
    stub.says("^attribute `state` of the class _Told$")
    stub.read((shown[0](), _Told.state, x))
    del _Told.state


@functools.lru_cache(maxsize=4)
def _latest(_: int) -> Any:
    return _Told.state


@functools.cache
def _first(_: int) -> Any:
    return _Told.state


def _remembered(by: Callable[[int], Any], x: Any) -> Callable[[], Any]:
    by.cache_clear()  # type: ignore[attr-defined]
    _Told.state = x
    by(0)
    del _Told.state
    return lambda: by(0)


def _suspended(x: Any) -> Iterator[Any]:
    yield
    yield x


def _in_a_generator(x: Any) -> Callable[[], Any]:
    suspended = _suspended(x)
    next(suspended)
    return lambda: next(suspended)


def _in_a_thread_local(x: Any) -> Callable[[], Any]:
    local = threading.local()
    local.state = x
    return lambda: local.state


_CONTEXT: contextvars.ContextVar[Any] = contextvars.ContextVar("state")


def _in_the_context(x: Any) -> Callable[[], Any]:
    context = contextvars.copy_context()
    context.run(_CONTEXT.set, x)
    return lambda: context[_CONTEXT]


def test_a_caller_that_is_a_coroutine_is_not_suspended(made: Functions) -> None:
    stub, f = made

    async def serve() -> None:
        x = stub.new()
        with contextlib.suppress(ValueError):
            x = f(x)
        stub.read(x)

    with _a_handler_of_a_signal(), contextlib.suppress(StopIteration):
        serve().send(None)
    stub.says("^`x` in test_reasons.py:[0-9]+, which an exception handler reads: a handler of SIG")


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (lambda x: _remembered(_latest, x), "^the `lru_cache` of _latest$"),
        (lambda x: _remembered(_first, x), "^item 0 of a dict in the `lru_cache` of _first$"),
        (_in_a_generator, "^the suspended _suspended$"),
        (_in_a_thread_local, "^item 'state' of a dict in a `threading.local`$"),
        (_in_the_context, "^a `ContextVar`$"),
        (lambda x: iter((x,)).__next__, "^an item of a tuple in a tuple_iterator$"),
        (lambda x: functools.partial(getattr, ValueError(x), "args"), "^an item of a tuple in a ValueError$"),
    ],
    ids=["lru_cache", "endless lru_cache", "generator", "threading.local", "ContextVar", "iterator", "exception"],
)
def test_what_objects_of_the_interpreter_have(made: Functions, keep: Callable[[Any], Any], said: str) -> None:
    stub, f = made
    x = stub.new()
    kept = keep(x)
    x = f(x)
    stub.says(said)
    stub.read((kept, x))


def test_few_looks_at_all_objects_however_many_containers_have_it(made: Functions) -> None:
    """Each takes as long as a garbage collection, and the first call of a site that keeps something waits for them."""
    stub, f = made
    state = [stub.new() for _ in range(3)]
    nameless = iter([[[number, *state]] for number in range(40)])
    looks = []
    real = Referrers._look

    def look(self: Referrers, value: Any) -> None:
        looks.append(id(value))
        real(self, value)

    with mock.patch.object(Referrers, "_look", look):
        state = f(state)
    expect(0 < len(looks) <= 6)
    stub.says("an item of a list")
    stub.read(list(nameless))


def test_what_was_not_looked_for_is_said(made: Functions) -> None:
    stub, f = made
    state = [stub.new() for _ in range(2)]
    nameless = iter([*state])
    with mock.patch.object(referrers, "_MOST_AT_ONCE", 1), mock.patch.object(referrers, "_MOST_LOOKS", 1):
        state = f(state)
    unknown = "something that it would take long to look for, as so many leaves are held"
    expect([held.text for held in stub.why[-1].values()] == ["an item of a list", unknown])
    stub.read(list(nameless))


def test_an_item_of_a_container_in_another(made: Functions) -> None:
    stub, f = made
    x = stub.new()
    history = [(0, {"x": x})]
    x = f(x)
    stub.says(r"^in `history` in test_reasons.py:\d+$")
    trainer = types.SimpleNamespace(history=history)
    del history
    trainer.history.append((1, x))
    x = f(x)
    stub.says("^an item of a tuple in attribute `history` of SimpleNamespace$")
    trainer.history.append([{"x": x}])
    x = f(x)
    stub.says("^item 'x' of a dict in attribute `history` of SimpleNamespace$")
    stub.read(trainer)


class _Opening:
    """`gc` as pytc sees it, which counts the objects that it shows."""

    def __init__(self) -> None:
        self.shown = 0
        self.is_tracked = gc.is_tracked

    def get_referents(self, *owners: Any) -> list[Any]:
        parts = gc.get_referents(*owners)
        self.shown += len(parts)
        return parts


def test_little_of_what_the_callers_have_is_looked_at(made: Functions) -> None:
    """However many leaves are held, and whatever lists there are in the frames above."""
    stub, f = made

    def call(state: list[Any]) -> list[Any]:
        some = [[0] * 2000 for _ in range(60)]
        many = [(number, [number]) for number in range(4000)]
        large, of_large = [0] * 1_000_000, [[0] * 1_000_000]
        several = [{k: (k,) for k in range(1000)} for _ in range(3)]
        kept = [*state]
        opening = _Opening()
        with mock.patch.object(variables, "gc", opening), mock.patch.object(paths, "gc", opening):
            state = f(state)
        stub.says("an item of `kept` in test_reasons.py")
        stub.shows("an item of `kept` in test_reasons.py")
        expect(opening.shown < 200_000)
        stub.read(kept)
        expect(len(some) + len(many) + len(large) + len(of_large) + len(several) == 1_004_064)
        return state

    stub.read(call([stub.new() for _ in range(8)]))


class _Node:
    """One of a graph, which knows its neighbours."""

    def __init__(self) -> None:
        self.near: list[_Node] = []


def _grid(side: int) -> _Node:
    nodes = {(i, j): _Node() for i in range(side) for j in range(side)}
    for (i, j), node in nodes.items():
        near = itertools.product((i - 1, i, i + 1), (j - 1, j, j + 1))
        node.near = [nodes[place] for place in near if place in nodes and place != (i, j)]
    return nodes[0, 0]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["graph"])
@dataclasses.dataclass
class _WithGraph:
    graph: _Node
    arrays: Any


def test_a_graph_beside_the_leaves_is_looked_through_once() -> None:
    arrays = [jnp.zeros(9), jnp.zeros(9)]
    state = _WithGraph(_grid(12), {"a": arrays[0], "b": (arrays[1],)})
    opening = _Opening()
    with mock.patch.object(paths, "gc", opening):
        found = paths.paths_to(arrays, [0, state], set(map(id, arrays)))
    assert opening.shown < 5000
    first, second = (list(filter(lambda each: type(each) is not dict or each is state.arrays, path)) for path in found)
    assert [*map(id, first)] == [*map(id, [state, state.arrays, arrays[0]])]
    assert [*map(id, second)] == [*map(id, [state, state.arrays, state.arrays["b"], arrays[1]])]


def test_paths_lead_through_no_leaf_and_not_through_large_metadata() -> None:
    x = jnp.zeros(9)
    static = types.SimpleNamespace(x=x)
    opening = _Opening()
    with mock.patch.object(paths, "gc", opening):
        found = paths.paths_to([x], [static, ([0] * 1_000_000,), [[x]]], {id(x), id(static)})
        assert [type(each) for each in found[0]] == [list, list, type(x)]
        assert paths.paths_to([x], [static], {id(x), id(static)}) == [[x]]
    assert opening.shown < 100


def test_the_search_for_paths_keeps_nothing() -> None:
    x = jnp.zeros(9)
    state = [(x,)]
    before = sys.getrefcount(x), sys.getrefcount(state), sys.getrefcount(state[0])
    paths.paths_to([x], [state], {id(x)})
    assert before == (sys.getrefcount(x), sys.getrefcount(state), sys.getrefcount(state[0]))


def test_a_variable_of_another_thread(made: Functions) -> None:
    stub, f = made
    begun, end = threading.Event(), threading.Event()

    def evaluate(snapshot: Any) -> None:
        begun.set()
        end.wait(FOR_LONG)
        stub.read(snapshot)

    x = stub.new()
    box = [x]
    thread = threading.Thread(target=lambda: evaluate(box.pop()), name="evaluation")
    thread.start()
    begun.wait(FOR_LONG)
    x = f(x)
    stub.says(r"^`snapshot` in thread 'evaluation', test_reasons.py:\d+$")
    end.set()
    thread.join()
    stub.read(x)


@jax.tree_util.register_pytree_node_class
class _Hashed:
    """A tree that is found by its identity."""

    def __init__(self, x: Any):
        self.x = x

    def tree_flatten(self) -> Any:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Any:
        return cls(*children)


def test_a_key_of_a_dictionary(made: Functions) -> None:
    stub, f = made
    trainer = types.SimpleNamespace(steps={})
    state = _Hashed(stub.new())
    trainer.steps[state] = 0
    state = f(state)
    stub.says("^a key of attribute `steps` of SimpleNamespace$")
    nameless = iter([{state: 0}])
    state = f(state)
    stub.says("^a key of a dict in a list_iterator$")
    stub.read([state.x, *(each.x for each in (*trainer.steps, *next(nameless)))])


class _Key:
    """One that notes who asks it for anything."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __repr__(self) -> str:
        self.asked.append("repr")
        return "a key"

    def __hash__(self) -> int:
        self.asked.append("hash")
        return 1

    def __eq__(self, other: object) -> bool:
        self.asked.append("eq")
        return self is other


class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError

    def __format__(self, _: str) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("x" * 1000, "^item 'xxxxxxxxxxxx...xxxxxxxxxxxxx' of a dict"),
        ((1, None, ("a", 2.5)), r"^item \(1, None, \('a', 2.5\)\) of a dict"),
        (b"a", "^item b'a' of a dict"),
        (_Text("a"), "^item under a _Text of a dict"),
        ((1, _Text("a")), "^item under a tuple of a dict"),
        (tuple(range(1000)), "^item under a tuple of a dict"),
    ],
    ids=["long", "tuple", "bytes", "str's", "tuple of str's", "long tuple"],
)
def test_a_key_is_shown_shortened_or_by_its_class(made: Functions, key: Any, said: str) -> None:
    stub, f = made
    x = stub.new()
    kept = iter([{key: x}])
    x = f(x)
    stub.says(said)
    stub.read((x, next(kept)[key]))


def test_a_key_is_asked_for_nothing(made: Functions) -> None:
    stub, f = made
    x, key = stub.new(), _Key()
    kept = iter([{key: x}])
    key.asked.clear()
    x = f(x)
    expect(key.asked == [])
    stub.says("^item under a _Key of a dict")
    stub.read((x, [*next(kept).values()]))


def test_a_caller_that_is_an_asynchronous_generator_is_not_suspended(made: Functions) -> None:
    stub, f = made

    async def steps() -> Any:
        x = stub.new()
        with contextlib.suppress(ValueError):
            x = f(x)
        stub.read(x)
        yield

    with _a_handler_of_a_signal(), contextlib.suppress(StopIteration):
        anext(steps()).send(None)
    stub.says("^`x` in test_reasons.py:[0-9]+, which an exception handler reads: a handler of SIG")


def test_history_of_a_notebook(made: Functions) -> None:
    stub, f = made
    space: dict[str, Any] = {"__name__": "__main__", "f": f, "x": stub.new(), "Out": {}}
    space["Out"][3] = space["x"]
    exec(compile("x = f(x)", "<cell>", "exec"), space)
    stub.says(r"IPython's Out\[3\]")


def test_a_global(made: Functions) -> None:
    stub, f = made
    space: dict[str, Any] = {"__name__": "__main__", "__file__": "/a/train.py", "f": f, "x": stub.new()}
    exec(compile("best = x\nx = f(x)", "train.py", "exec"), space)
    stub.says("also `best` in train.py")


def test_a_weak_reference_and_a_shard(made: Functions) -> None:
    stub, f = made
    x = stub.new()
    reference = weakref.ref(x)
    x = f(x)
    stub.says("a weak reference")
    shard = x.addressable_data(0)
    x = f(x)
    stub.says("another array on the same buffer")
    stub.read((shard, x))
    expect(reference() is None)


def test_a_variable_in_a_cell_that_nobody_else_has(made: Functions) -> None:
    stub, f = made
    x = stub.new()
    any(x is None for _ in "x")
    y = f(x)
    stub.says("read again in test_reasons.py")
    stub.read((x, y))


def test_a_closure_an_observer_and_introspection(made: Functions) -> None:
    stub, f = made
    x = stub.new()
    space = types.SimpleNamespace(show=lambda: x)
    y = f(x)
    stub.says("`x` of the nested function|which a nested function can read")
    stub.read((y, space.show()))
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        f(y)
    finally:
        sys.setprofile(before)
    stub.says("a profiler is active")


def test_dead_leaves_have_no_reason(made: Functions) -> None:
    stub, f = made
    x = stub.new()
    for _ in range(2):
        x = f(x)
    expect(stub.why == [{}, {}])
    expect(stub.survivors == [set(), set()])
    stub.read(x)


def test_nothing_is_left_to_the_garbage_collector(made: Functions) -> None:
    """A function's own frame in one of its variables would live on, and with it what the frames above refer to."""
    stub, f = made
    box = types.SimpleNamespace(a=stub.new())
    kept = [box.a]
    begin = threading.Event()
    thread = threading.Thread(target=begin.wait, args=(FOR_LONG,))
    thread.start()
    gc.collect()
    was = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        with mock.patch.object(service_threads, "HARMLESS", {("threading", "Thread.run"): frozenset()}):
            box.a = f(box.a)
            box.a = f(box.a)
        gc.collect()
        frames = [each.f_code.co_qualname for each in gc.garbage if isinstance(each, types.FrameType)]
    finally:
        gc.set_debug(was)
        gc.garbage.clear()
        begin.set()
        thread.join()
    stub.read((kept, box.a))
    expect(frames == [])


CLOSED = """
import sys, threading, time
from pytc.ownership.words import variables

def numbers():
    a, b, c = object(), [object()], {"x": object()}
    while True:
        yield a, b, c

def work():
    while time.monotonic() < end:
        for _ in numbers():
            break

sys.setswitchinterval(1e-6)
end = time.monotonic() + 4
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
while time.monotonic() < end:
    variables.in_threads(object())
"""


def test_a_generator_that_another_thread_closes_is_not_looked_into() -> None:
    """CPython 3.13 drops its variables, and leaves their addresses where they were."""
    subprocess.run([sys.executable, "-c", CLOSED], check=True, timeout=60)
