"""What must be proven dead, and so donated: one named test for each way in which people write it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import functools
import io
import sys
import textwrap
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import equinox as eqx
import flax.core
import flax.struct
import flax.training.train_state
import jax
import jax.numpy as jnp
import optax
import pytest

import pytc
from pytc.ownership.arrays import buffers
from tests.ownership.harness import Functions, Stub, both, expect, expect_dead, first, nested, of_length, shares


def tree(stub: Stub) -> Any:
    return {"w": [stub.new(), (stub.new(), {"b": stub.new()})], "n": None}


def test_overwritten(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    x = f(x)
    x = f(x)
    expect_dead(stub, 2)
    stub.read(x)


def test_read_anew_in_the_same_line(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    for _ in range(2):
        stub.read(x := f(x))
    expect_dead(stub, 2)


def test_a_tree(made: Functions) -> None:
    stub, f, _ = made
    x = tree(stub)
    x = f(x)
    x = f(x)
    expect_dead(stub, 2, leaves=3)
    stub.read(x)


def test_methods_that_share_a_name_with_introspection(made: Functions) -> None:
    stub, f, _ = made
    other = types.SimpleNamespace(stack=len, trace=len, embed=len)
    x = stub.new()
    x = f(x)
    x = f(x)
    other.stack([]), other.trace([]), other.embed([])
    expect_dead(stub, 2)
    stub.read(x)


TEXTS = {
    "an assertion": "assert x is not None, 'x is none'",
    "an error": "if x is None: raise ValueError('no x at %d' % i)",
    "a loop over texts": "for name in ('x mean', 'x std'): pass",
    "a comprehension over texts": "sorted([t.upper() for t in ('x mean', 'x std')])",
    "a message": "print('x:', i, end='', file=nowhere)",
    "a message in a block": "with nothing(): print('x:', i, end='', file=nowhere)",
}
KINDS = {
    "function": ("def run(x):", "return"),
    "generator": ("def run(x):", "yield"),
    "coroutine": ("async def run(x):", "return"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_texts_that_nobody_evaluates_with_the_variable(made: Functions, text: str, kind: str) -> None:
    stub, f, _ = made
    head, end = KINDS[kind]
    body = f"for i in range(3):\n        {TEXTS[text]}\n        y = f(x)\n        len('')\n        x = y\n    {end} x"
    space: dict[str, Any] = {"f": f, "nowhere": io.StringIO(), "nothing": contextlib.nullcontext}
    exec(f"{head}\n    {body}", space)
    ran = space["run"](stub.new())
    if kind == "generator":
        ran = list(ran)
    elif kind == "coroutine":
        ran = asyncio.run(ran)
    expect_dead(stub, 3)
    stub.read(ran)


def test_a_module_loaded_when_it_is_needed_has_introspection_under_another_name(made: Functions) -> None:
    stub, f, _ = made
    library = type("Lazily", (types.ModuleType,), {})("library")
    vars(library).update(here=locals, log=print)
    space: dict[str, Any] = {"f": f, "library": library}
    exec("def run(x):\n    y = f(x)\n    library.log(end='')\n    return y", space)
    y = space["run"](stub.new())
    expect_dead(stub, 1)
    stub.read(y)


def test_unpacked(made: Functions) -> None:
    stub, _, f2 = made
    state, batch = tree(stub), stub.new()
    state, loss = f2(state, batch)
    state, loss = f2(state, batch)
    expect_dead(stub, 2, leaves=3)
    expect(3 not in stub.calls[0].dead)
    expect(3 in stub.calls[1].dead)
    stub.read((state, loss))


def test_three_results(made: Functions) -> None:
    stub = made[0]
    step = stub.compile(of_length(3)(lambda params, opt_state, batch: (params, opt_state, batch)))
    params, opt_state = tree(stub), tree(stub)
    for _ in range(3):
        params, opt_state, _loss = step(params, opt_state, stub.new())
    expect_dead(stub, 3, leaves=7)


def test_keywords(made: Functions) -> None:
    stub, f, _ = made
    step = stub.compile(lambda *, state, batch: state)
    state = tree(stub)
    for _ in range(3):
        state = step(state=state, batch=stub.new())
    expect_dead(stub, 3, leaves=4)
    stub.read(f(state))


@pytest.mark.usefixtures("uncollected")
def test_starred_temporary(made: Functions) -> None:
    stub, f, f2 = made
    state, batch = stub.new(), stub.new()
    state, batch = f2(*(state, batch))
    state = f(*[state], *(batch,))
    expect_dead(stub, 2, leaves=2)
    stub.read(state)


@pytest.mark.usefixtures("uncollected")
def test_starred_variable_that_is_dead(made: Functions) -> None:
    stub, _, f2 = made
    arguments = (stub.new(), stub.new())
    state, _loss = f2(*arguments)
    expect_dead(stub, 1, leaves=2)
    stub.read(state)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("made_of", [tuple, list, iter])
def test_starred_result_of_a_function(made: Functions, made_of: Callable[..., Any]) -> None:
    if made_of is not tuple and sys.version_info < (3, 12):
        pytest.skip("the interpreter's own C code makes a tuple, and keeps it")
    stub, _, f2 = made
    box = [tree(stub)]
    for _ in range(4):
        state, _loss = f2(*made_of([box.pop(), stub.new()]))
        box.append(state)
        state = None
    expect_dead(stub, 4, leaves=4)
    stub.read(box)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="nothing tells when such a call is over")
def test_starred_result_of_a_function_for_a_method(made: Functions) -> None:
    stub, _, f2 = made

    def taken(box: list[Any]) -> tuple[Any, ...]:
        return (box.pop(),)

    class Trainer:
        step = f2

        def fit(self, box: list[Any]) -> None:
            for _ in range(4):
                _self, state = self.step(*taken(box))
                box.append(state)
                state = None

    box = [stub.new()]
    Trainer().fit(box)
    expect([call.dead for call in stub.calls] == [{1}] * 4)  # leaf 0 is the trainer
    stub.read(box)


@pytest.mark.usefixtures("uncollected")
def test_starred_keywords(made: Functions) -> None:
    stub = made[0]
    step = stub.compile(lambda *, state: state)
    given = {"state": stub.new()}
    state = step(**given)
    expect(stub.calls[0].dead == {0})
    stub.read(state)


def test_fresh_temporary(made: Functions) -> None:
    stub, f, _ = made
    stub.read(f(f(stub.new())))
    stub.read(f({"a": stub.new()}))
    expect_dead(stub, 3)


def test_never_read_again(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    y = f(x)
    stub.read(y)
    expect_dead(stub, 1)


def test_two_names_neither_read_again(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    y = x
    z = f(x)
    stub.read(z)
    expect_dead(stub, 1)
    y = z
    stub.read(y)


def test_deleted(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    y = f(x)
    del x
    stub.read(y)
    expect_dead(stub, 1)


def test_overwritten_on_every_path(made: Functions) -> None:
    stub, f, _ = made
    for flag in (True, False):
        x = stub.new()
        y = f(x)
        if flag:  # noqa: SIM108 - two stores are what this is about
            x = y
        else:
            x = stub.new()
        stub.read(x)
    expect_dead(stub, 2)


def test_loops(made: Functions) -> None:
    stub, f, f2 = made
    x = stub.new()
    for _ in range(2):
        x = f(x)
    n = 0
    while n < 2:
        x = f(x)
        n += 1
    for i, batch in enumerate([stub.new(), stub.new(), stub.new()]):
        if i == 0:
            continue
        x, _loss = f2(x, batch)
        if i == 1:
            break
    else:
        x = f(x)
    for _ in range(1):
        pass
    else:
        x = f(x)
    expect_dead(stub, 6)
    stub.read(x)


def test_loops_through_a_list_of_states(made: Functions) -> None:
    stub, f, _ = made
    states = [tree(stub), tree(stub)]
    for i, state in enumerate(states):
        states[i] = f(state)
    for state, i in zip(states, range(2), strict=True):
        states[i] = f(state)
    expect_dead(stub, 4, leaves=3)
    stub.read(states)


def test_loops_through_a_dictionary_of_states(made: Functions) -> None:
    stub, f, f2 = made
    states = {"a": stub.new(), "b": stub.new()}
    losses = []
    for name, state in states.items():
        states[name], loss = f2(state, stub.new())
        losses.append(loss)
    for name, state in reversed(states.items()):
        states[name] = f(state)
    expect_dead(stub, 4)
    stub.read((states, losses))


def test_loops_around_a_helper(made: Functions) -> None:
    stub, f, _ = made

    def step(state: Any) -> Any:
        return f(state)

    states = [stub.new(), stub.new()]
    for _ in range(2):
        for i, state in enumerate(states):
            states[i] = step(state)
    expect_dead(stub, 4)
    stub.read(states)


def test_comprehensions_over_states(made: Functions) -> None:
    stub, f, _ = made
    states = [tree(stub), tree(stub)]
    states = [f(state) for state in states]
    states = [f(state, i) for i, state in enumerate(states)]
    states = [f(state, i) for state, i in zip(states, range(2), strict=True)]
    expect_dead(stub, 6, leaves=3)
    stub.read(states)


def test_comprehensions_over_a_dictionary_of_states(made: Functions) -> None:
    stub, f, _ = made
    states = {"a": stub.new(), "b": stub.new()}
    states = {name: f(state) for name, state in states.items()}
    pair = tuple(states.values())
    del states
    pair = tuple(f(state) for state in pair)
    expect_dead(stub, 4)
    stub.read(pair)


def test_comprehensions_with_a_variable_of_the_states_name(made: Functions) -> None:
    """From CPython 3.12 on they put the function's variable aside, and put it back."""
    stub, f, _ = made
    states = [stub.new(), stub.new()]
    for _ in range(2):
        for i, state in enumerate(states):
            states[i] = f(state)
        stub.read([state for state in states])  # noqa: C416
        stub.read({i: [state for _ in range(1) if i] for i, state in enumerate(states)})
        with contextlib.suppress(AttributeError):
            stub.read({state.nothing for state in states})
    expect_dead(stub, 4)
    stub.read(states)


def test_asynchronous_comprehensions_with_a_variable_of_the_states_name(made: Functions) -> None:
    stub, f, _ = made

    async def later(states: list[Any]) -> AsyncIterator[Any]:
        for each in states:
            yield each

    async def run(state: Any) -> None:
        for _ in range(3):
            new = f(state)
            stub.read([state async for state in later([new])])
            state = new
        stub.read(state)

    asyncio.run(run(stub.new()))
    expect_dead(stub, 3)


def test_a_comprehension_in_a_helper(made: Functions) -> None:
    stub, f, _ = made

    def step(states: Any) -> Any:
        return [f(state) for state in states]

    states = [stub.new() for _ in range(100)]
    states = step(states)
    expect_dead(stub, 100)
    stub.read(states)


def test_progress_bar(made: Functions) -> None:
    stub, _, f2 = made

    def progress(items: list[Any]) -> Iterator[Any]:
        yield from items

    state = tree(stub)
    for batch in progress([stub.new() for _ in range(3)]):
        state, _loss = f2(state, batch)
    expect_dead(stub, 3, leaves=3)


def test_parameter(made: Functions) -> None:
    stub, f, _ = made

    def train(state: Any) -> Any:
        for _ in range(3):
            state = f(state)
        return state

    stub.read(train(stub.new()))
    expect_dead(stub, 3)


def run_script(stub: Stub, source: str) -> dict[str, Any]:
    functions = {"f": stub.compile(first), "f2": stub.compile(both), "f3": stub.compile(nested)}
    space = {"__name__": "__main__", **functions, "new": stub.new}
    exec(compile(source, "script.py", "exec"), space)
    stub.read({k: v for k, v in space.items() if isinstance(v, jax.Array)})
    return space


def test_global_of_a_script(made: Functions) -> None:
    stub = made[0]
    run_script(stub, "x = new()\nfor i in range(3):\n    x = f(x)\nx, y = f2(x, new())\n")
    expect_dead(stub, 4)


def test_notebook_cells(made: Functions) -> None:
    stub = made[0]
    space = run_script(stub, "x = {'a': new()}")
    for _ in range(3):
        exec(compile("x = f(x)", "<cell>", "exec"), space)
    expect_dead(stub, 3)


def test_global_in_a_function(made: Functions) -> None:
    stub = made[0]
    run_script(stub, "x = new()\ndef train():\n    global x\n    for i in range(3):\n        x = f(x)\ntrain()\n")
    expect_dead(stub, 3)


class Trainer:
    def __init__(self, stub: Stub):
        self.params, self.opt_state, self.loss = tree(stub), tree(stub), None
        self.step = stub.compile(of_length(3)(lambda params, opt_state, batch: (params, opt_state, batch)))
        self.one = stub.compile(first)

    def train(self, batch: Any) -> None:
        self.params, self.opt_state, self.loss = self.step(self.params, self.opt_state, batch)

    def shrink(self) -> None:
        self.params = self.one(self.params)

    def pure_step(self, params: Any, opt_state: Any, batch: Any) -> Any:
        return self.step(params, opt_state, batch)

    def step_and_more(self, params: Any, opt_state: Any, batch: Any) -> Any:
        params, opt_state, loss = self.step(params, opt_state, batch)
        return (params, opt_state), loss

    def through_a_helper_that_makes_a_tuple(self, batch: Any) -> None:
        (self.params, self.opt_state), _ = self.step_and_more(self.params, self.opt_state, batch)

    def through_a_helper(self, batch: Any) -> None:
        self.params, self.opt_state, _ = self.pure_step(self.params, self.opt_state, batch)


def test_attribute(made: Functions) -> None:
    trainer = Trainer(made[0])
    for _ in range(3):
        trainer.shrink()
    expect_dead(made[0], 3, leaves=3)
    made[0].read(trainer.params)


def test_several_attributes_unpacked(made: Functions) -> None:
    trainer = Trainer(made[0])
    for _ in range(3):
        trainer.train(made[0].new())
    expect_dead(made[0], 3, leaves=7)
    made[0].read((trainer.params, trainer.opt_state))


def test_attributes_of_a_tuple_in_the_result(made: Functions) -> None:
    trainer = Trainer(made[0])
    step = made[0].compile(nested)
    for _ in range(3):
        (trainer.params, trainer.opt_state), trainer.loss = step(trainer.params, trainer.opt_state)
    for _ in range(3):
        carry, _ = step(trainer.params, trainer.opt_state)
        trainer.params, trainer.opt_state = carry
    for _ in range(3):
        result = step(trainer.params, trainer.opt_state)
        trainer.params = result[0][0]
        trainer.opt_state = result[0][-1]
    expect_dead(made[0], 9, leaves=6)
    made[0].read((trainer.params, trainer.opt_state))


def test_attribute_of_which_the_rest_of_the_result_is_dropped(made: Functions) -> None:
    stub, _, f2 = made
    trainer = Trainer(stub)
    for _ in range(3):
        trainer.params = f2(trainer.params, stub.new())[0]
        trainer.opt_state = f2(stub.new(), trainer.opt_state)[-1]
    expect(all(call.dead == set(range(4)) for call in stub.calls))
    stub.read((trainer.params, trainer.opt_state))


def test_globals_of_a_tuple_in_the_result(made: Functions) -> None:
    stub = made[0]
    run_script(stub, "x, y = new(), new()\nfor i in range(3):\n    (x, y), z = f3(x, y)\nx = f2(x, y)[0]\n")
    expect_dead(stub, 4)


def test_a_tuple_in_the_result_under_a_handler(made: Functions) -> None:
    stub, _, f2 = made
    step = stub.compile(nested)
    params, opt_state = tree(stub), tree(stub)
    try:
        for _ in range(3):
            (params, opt_state), _loss = step(params, opt_state)
        for _ in range(3):
            params = f2(params, stub.new())[0]
    except KeyboardInterrupt:
        stub.read((params, opt_state))
    expect_dead(stub, 6, leaves=4)
    stub.read((params, opt_state))


def test_attributes_through_a_method(made: Functions) -> None:
    trainer = Trainer(made[0])
    for _ in range(3):
        trainer.through_a_helper(made[0].new())
    expect_dead(made[0], 3, leaves=7)
    made[0].read((trainer.params, trainer.opt_state))


def test_attributes_through_a_method_that_makes_a_tuple(made: Functions) -> None:
    trainer = Trainer(made[0])
    for _ in range(3):
        trainer.through_a_helper_that_makes_a_tuple(made[0].new())
    expect_dead(made[0], 3, leaves=6)
    made[0].read((trainer.params, trainer.opt_state))


def test_a_tuple_that_a_helper_makes_under_a_handler(made: Functions) -> None:
    stub = made[0]
    trainer = Trainer(stub)
    params, opt_state = tree(stub), tree(stub)
    try:
        for _ in range(3):
            (params, opt_state), _loss = trainer.step_and_more(params, opt_state, stub.new())
    except KeyboardInterrupt:
        stub.read((params, opt_state))
    expect_dead(stub, 3, leaves=6)


def test_item_of_a_dict_and_of_a_list(made: Functions) -> None:
    stub, f, f2 = made
    d = {"k": stub.new(), "l": [stub.new(), stub.new()]}
    key = "k"
    d["k"] = f(d["k"])
    d[key] = f(d[key])
    d["l"][0] = f(d["l"][0])
    d["l"][-1], d["k"] = f2(d["l"][-1], d["k"])
    expect_dead(stub, 4)
    expect(stub.calls[-1].dead == {0, 1})
    stub.read(d)


@pytest.mark.parametrize("key", [str, int], ids=["strings", "integers"])
def test_item_of_a_large_dictionary(made: Functions, key: Callable[[int], Any]) -> None:
    stub, f, _ = made
    d = {key(n): stub.new() for n in range(1000)}
    last = key(999)
    d[last] = f(d[last])
    expect_dead(stub, 1)
    stub.read(d)


@pytest.mark.parametrize("train", [True, False])
def test_conditional_expressions(made: Functions, train: bool) -> None:
    stub, f, f2 = made
    g, g2 = stub.compile(first), stub.compile(both)
    box, d, key = types.SimpleNamespace(x=stub.new(), y=stub.new()), {"k": stub.new(), 1: stub.new()}, "k"
    for _ in range(2):
        box.x = f(box.x) if train else g(box.x)
        d[key] = f(d[key]) if train else g(d[key])
        box.x, d[1] = f2(box.x, d[1]) if train else g2(box.x, d[1])
        if train:  # noqa: SIM108 - the statement
            y = f(box.y)
        else:
            y = g(box.y)
        box.y = y
    expect_dead(stub, 8)
    stub.read((box, *d.values()))


def test_field_of_a_dataclass_and_of_slots(made: Functions) -> None:
    stub, f, _ = made

    @dataclasses.dataclass
    class Plain:
        state: Any = None

    @dataclasses.dataclass(slots=True)
    class Slots:
        state: Any

    plain, slots = Plain(stub.new()), Slots(stub.new())
    for _ in range(2):
        plain.state = f(plain.state)
        slots.state = f(slots.state)
    expect_dead(stub, 4)
    stub.read((plain.state, slots.state))


class Pair(NamedTuple):
    left: Any
    right: Any


def test_named_tuple_in_an_attribute(made: Functions) -> None:
    stub, f, _ = made
    space = types.SimpleNamespace(state=Pair(stub.new(), [stub.new()]))
    for _ in range(2):
        space.state = f(space.state)
    expect_dead(stub, 2, leaves=2)
    stub.read(space.state)


def test_captured_variable_that_is_overwritten_at_once(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()

    def show() -> Any:
        return stub.read(x)

    x = f(x)
    show()
    expect_dead(stub, 1)


def test_nested_function_with_its_own_variable(made: Functions) -> None:
    stub, f, _ = made

    def train() -> Any:
        x = stub.new()
        for _ in range(2):
            x = f(x)
        return x

    stub.read(train())
    expect_dead(stub, 2)


def test_try_whose_handler_does_not_read(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    try:
        x = f(x)
        x = f(x)
    except ValueError:
        x = stub.new()
    finally:
        stub.read(stub.new())
    expect_dead(stub, 2)
    stub.read(x)


def test_with_block(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    with contextlib.nullcontext():
        x = f(x)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: None)
        x = f(x)
    expect_dead(stub, 2)
    stub.read(x)


def test_generator(made: Functions) -> None:
    stub, f, _ = made

    def steps(x: Any) -> Iterator[Any]:
        for _ in range(3):
            x = f(x)
            yield 1

    expect(list(steps(stub.new())) == [1, 1, 1])
    expect_dead(stub, 3)


def test_coroutine(made: Functions) -> None:
    stub, f, _ = made

    async def batches() -> AsyncIterator[Any]:
        for _ in range(2):
            await asyncio.sleep(0)
            yield stub.new()

    async def train() -> Any:
        x = stub.new()
        async for _ in batches():
            x = f(x)
            await asyncio.sleep(0)
            x = f(x)
        return x

    stub.read(asyncio.run(train()))
    expect_dead(stub, 4)


def test_comprehension(made: Functions) -> None:
    stub, f, _ = made
    states = [f(x) for x in (stub.new() for _ in range(3))]
    expect_dead(stub, 3)
    stub.read(states)


def test_helpers_and_methods(made: Functions) -> None:
    stub, f, _ = made

    def inner(state: Any) -> Any:
        return f(state)

    def outer(state: Any, log: list[Any]) -> Any:
        new = inner(state)
        log.append(1)
        return new

    class Model:
        def step(self, state: Any) -> Any:
            return outer(state, [])

    model = Model()
    x = tree(stub)
    for _ in range(3):
        x = model.step(x)
    expect_dead(stub, 3, leaves=3)
    stub.read(x)


def test_decorated_helper(made: Functions) -> None:
    stub, f, _ = made

    def timed(fun: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fun)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fun(*args, **kwargs)

        return wrapper

    x = tree(stub)
    step = timed(timed(f))
    for _ in range(3):
        x = step(x)
    expect_dead(stub, 3, leaves=3)
    stub.read(x)


def test_bound_method(made: Functions) -> None:
    stub = made[0]

    class Model:
        step = stub.compile(lambda self, state: state)

    model = Model()
    x = stub.new()
    for _ in range(3):
        x = model.step(x)
    method = model.step
    x = method(x)
    expect([call.dead for call in stub.calls] == [{1}] * 4)
    stub.read(x)


def test_shared_inside_the_tree(made: Functions) -> None:
    stub, f, _ = made
    shared, inner = stub.new(), [stub.new()]
    x = {"a": shared, "b": shared, "c": inner, "d": inner}
    del shared, inner
    x = f(x)
    expect_dead(stub, 1, leaves=4)
    stub.read(x)


def test_same_array_twice(made: Functions) -> None:
    stub, f, _ = made
    x = stub.new()
    x = f(x, x)
    expect_dead(stub, 1, leaves=2)
    stub.read(x)


@jax.tree_util.register_pytree_node_class
class Own:
    """A registered node whose flattening makes temporaries."""

    def __init__(self, *parts: Any):
        self.parts = {"parts": list(parts)}

    def tree_flatten(self) -> Any:
        return tuple(self.parts["parts"]), "aux"

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Own:
        return cls(*children)


@flax.struct.dataclass
class FlaxState:
    params: Any
    step: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["a"], meta_fields=["kind"])
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    kind: str = "x"


class Module(eqx.Module):
    weight: Any
    inner: Any
    name: str = eqx.field(static=True, default="m")


class Colour(enum.Enum):
    RED = 1


def _train_state(new: Callable[[], Any]) -> Any:
    return flax.training.train_state.TrainState(
        step=new(), apply_fn=first, params={"w": new()}, tx=_SGD, opt_state=(new(), {"m": new()})
    )


_SGD = optax.sgd(0.1)


@pytest.mark.parametrize(
    "build",
    [
        lambda new: Own(new(), [new()]),
        lambda new: FlaxState({"w": new()}, new()),
        lambda new: Frozen([new(), new()]),
        lambda new: Module(new(), Module({"b": new()}, None)),
        lambda new: Module(new(), Colour.RED),
        _train_state,
        lambda new: flax.core.FrozenDict({"a": {"b": new()}, "c": new()}),
        lambda new: optax.ScaleByAdamState(new(), {"w": new()}, {"w": new()}),
        lambda new: (optax.EmptyState(), optax.TraceState([new()])),
    ],
    ids=["own", "flax struct", "frozen slots", "equinox", "static leaf", "train state", "frozen dict", "adam", "optax"],
)
def test_registered_types(made: Functions, build: Callable[..., Any]) -> None:
    stub, f, _ = made
    x = build(stub.new)
    leaves = {i for i, leaf in enumerate(jax.tree.leaves(x)) if isinstance(leaf, jax.Array)}
    for _ in range(3):
        x = f(x)
    expect([call.dead for call in stub.calls] == [leaves] * 3)
    stub.read(x)


def test_prng_key(made: Functions) -> None:
    stub, f, _ = made
    f((jax.random.key(1),))
    expect(stub.calls[0].dead == {0})


_BEFORE = """
class Fail(Exception):
    pass

def fail():
    raise Fail

def helper(x):
    return f(x)

def run(x, y):
"""

READABLE = {
    "locals": "x = f(x)\nx = f(x)\nread(locals()['x'])",
    "eval": "x = f(x)\nx = f(x)\nread(eval('x'))",
    "the frame": "saved.append(sys._getframe())\nx = f(x)\nx = f(x)\nread(saved[0].f_locals['x'])",
    "an exception being handled": "try:\n    fail()\nexcept Fail as error:\n    x = f(x)\n    x = f(x)\nread(x)",
    "a saved exception": "try:\n    fail()\nexcept Fail as e:\n    saved.append(e)\nx = f(x)\nx = f(x)\nread(x)",
    "a helper": "saved.append(sys._getframe())\nx = helper(x)\nx = helper(x)\nread(x)",
    "unpacked": "saved.append(sys._getframe())\nx, y = f2(x, y)\nx, y = f2(x, y)\nread((x, y))",
    "an attribute": "saved.append(sys._getframe())\nbox.a, x = f2(box.a, x)\nbox.a = f(box.a)\nread((box.a, x))",
    "captured": "saved.append(lambda: x)\nsaved.append(sys._getframe())\nx = f(x)\nx = f(x)\nread(saved[0]())",
}
"""Functions whose variables others can read, but not between the call and the next instruction."""


@pytest.mark.parametrize("body", READABLE.values(), ids=READABLE.keys())
def test_overwritten_at_once_whoever_may_read_it(made: Functions, body: str) -> None:
    stub, f, f2 = made
    box = types.SimpleNamespace(a=stub.new())
    space: dict[str, Any] = {"f": f, "f2": f2, "read": stub.read, "sys": sys, "saved": [], "box": box}
    source = _BEFORE + textwrap.indent(body, "    ")
    exec(source, space)
    space["run"](stub.new(), stub.new())
    expect_dead(stub, 2)
    space["saved"].clear()


def test_handler_that_reads_what_was_not_overwritten_yet(made: Functions) -> None:
    """Between the two stores there is nothing that could raise."""
    stub, f, _ = made
    x = stub.new()
    try:
        for _ in range(3):
            fresh = f(x)
            x = fresh
    except ValueError:
        stub.read(x)
    expect([call.dead for call in stub.calls] == [{0} if sys.version_info >= (3, 12) else set()] * 3)
    stub.read(x)


TWO_STORES = {
    "an attribute": "fresh = f(box.a)\nbox.a = fresh\nread(box.a)",
    "an item": "fresh = f(box.d['k'])\nbox.d['k'] = fresh\nread(box.d)",
    "a part": "fresh, y = f2(box.a, y)\nbox.a = fresh\nread(box.a)",
}
"""From the second time on, the variable of the first store has the old value, too."""


@pytest.mark.parametrize("body", TWO_STORES.values(), ids=TWO_STORES.keys())
@pytest.mark.parametrize("where", ["function", "script"])
def test_stored_in_a_variable_first(made: Functions, body: str, where: str) -> None:
    stub, f, f2 = made
    box = types.SimpleNamespace(a=stub.new(), d={"k": stub.new()})
    space: dict[str, Any] = {"f": f, "f2": f2, "read": stub.read, "box": box, "new": stub.new}
    loop = "y = new()\nfor _ in range(3):\n" + textwrap.indent(body, "    ")
    exec(loop if where == "script" else "def run():\n" + textwrap.indent(loop, "    ") + "\nrun()", space)
    expect_dead(stub, 3)


def test_where_many_arrays_are_alive_it_is_looked_at_them_if_copies_would_cost_more():
    many = [jnp.zeros(1) + i for i in range(1100)]
    assert buffers.shared(many[:1]) == [True]
    assert buffers.shared(many) == [False] * 1100
    assert buffers.shared([*many[1:], shares(many[0])]) == [*[False] * 1099, True]


def places_of(step: Callable[[Any], Any], x: Any, many: list[Any]) -> list[int]:
    """Where the state lies from step to step, beside these arrays; each step also makes one that lives on."""
    places = []
    for _ in range(12):
        many.append(many[0] + 1)
        x = step(x)
        places.append(x.unsafe_buffer_pointer())
    return places


def test_a_large_state_is_reused_however_many_arrays_are_alive() -> None:
    step = pytc.compile(lambda x: x + 1)
    many = [jnp.zeros(1) + i for i in range(6000)]
    large = places_of(step, jnp.zeros(1 << 20), many)
    assert len({*large[4:]}) == 1
    small = places_of(step, jnp.zeros(1), many)  # to look through all arrays takes longer than to copy it
    assert len({*small[4:]}) > 1


ASKED = {"its value": jax.device_get, "a number": int, "a text": str, "a shard": shares}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
def test_what_an_array_keeps_for_itself_when_asked_for_its_value(made: Functions, ask: Callable[[Any], Any]) -> None:
    stub, f, _ = made
    box = types.SimpleNamespace(x=stub.new())
    x = stub.new()
    for _ in range(6):
        x = f(x)
        ask(x)
        box.x = f(box.x)
        ask(box.x)
    expect_dead(stub, 12)
    stub.read((x, box.x))


def test_what_is_shown_at_each_step_is_looked_for_where_it_was_the_last_time(made: Functions) -> None:
    stub, f, _ = made
    state = [stub.new() for _ in range(32)]
    asked: list[int] = []
    ask = buffers._address

    def counted(array: Any) -> int:
        asked[-1] += 1
        return ask(array)

    with mock.patch.object(buffers, "_address", counted):
        for k in (2, 2, 2, 2, 2, 5, 5):
            asked.append(0)
            state = f(state)
            shares(state[k])
            shares(state[k + 1])
    expect_dead(stub, 7, leaves=32)
    expect(asked[3:5] == [4, 4])
    expect(asked[6] > 32)
    stub.read(state)


@pytest.mark.parametrize("held", [2, 3, 5])
def test_what_is_shown_hides_no_other_array_that_somebody_has(made: Functions, held: int) -> None:
    stub, f, _ = made
    state = [stub.new() for _ in range(8)]
    for _ in range(4):
        state = f(state)
        shares(state[2])
        shares(state[5])
    kept = shares(state[held])
    state = f(state)
    stub.read(kept)
    expect([len(call.dead) for call in stub.calls] == [8, 8, 8, 8, 7])
    stub.read(state)
