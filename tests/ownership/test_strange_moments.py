"""Calls and looks at moments at which nobody expects Python code to run."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
import textwrap
import time
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import pytc
from pytc import ownership
from pytc.emit import jit as emit_jit
from pytc.ownership import proof
from pytc.ownership.arrays import buffers
from pytc.ownership.bytecode import analysed
from pytc.ownership.others import collector
from tests import interpreters
from tests.frozen import frozen
from tests.ownership.harness import expect

ROUNDS = 10


class Holder:
    x: Any


class Mortal:
    """Can be referred to weakly."""


@dataclasses.dataclass
class State:
    x: Any


jax.tree_util.register_dataclass(State, ["x"], [])


@contextlib.contextmanager
def collected_often(threshold=500):
    """Garbage is collected after few allocations."""
    thresholds = gc.get_threshold()
    gc.collect()
    with frozen():  # what there is so far need not be looked through each time
        gc.set_threshold(threshold, 1000, 1000)
        yield
        gc.set_threshold(*thresholds)


@pytest.fixture(name="collecting")
def _collecting():
    with collected_often():
        yield


@pytest.fixture(name="uncalled")
def _uncalled(collecting, monkeypatch):
    """Once a program is about to run, no garbage is collected any more: CPython 3.11 may crash where that is done while
    JAX asks for the frames there are."""

    def call_into(landed, fun, args):
        gc.set_threshold(0)
        original(landed, fun, args)

    original = emit_jit.call_into
    monkeypatch.setattr(emit_jit, "call_into", call_into)


def alive_after(programs: range, once: Any, seen: list[bool]) -> None:
    """Runs a program for each number; that something has looked, and found what it looked at alive."""
    for number in programs:
        once(number)
    assert seen
    assert all(seen)


def test_a_call_while_a_function_returns_is_not_that_function() -> None:
    """What dies with its frame makes the call, when the caller waits for nothing any more."""
    step = pytc.compile(lambda x: (x + 1, x * 2))
    box, seen, references = [], [], []

    def helper():
        mortal = Mortal()
        references[:] = [weakref.ref(mortal, lambda _: step(box.pop()))]
        return 1, 2, 3

    def once(_):
        x = jnp.zeros(8)
        box.append(x)
        try:
            _a, _b = helper()
        except ValueError:
            seen.append(not x.is_deleted())

    alive_after(range(ROUNDS), once, seen)


def test_nor_is_the_slot_of_the_caller_overwritten_by_its_result() -> None:
    step = pytc.compile(lambda x: x + 1)
    holder, seen, references = Holder(), [], []
    holder.x = jnp.zeros(8)

    def call(_):
        return step(getattr(holder, "x"))  # noqa: B009 - as a temporary

    def helper():
        first, second = Mortal(), Mortal()
        look = weakref.ref(second, lambda _: seen.append(not holder.x.is_deleted()))
        references[:] = [weakref.ref(first, call), look]
        return jnp.ones(8)

    def once(_):
        holder.x = helper()

    alive_after(range(ROUNDS), once, seen)


def test_a_call_while_a_function_has_not_begun_is_not_that_function(collecting) -> None:
    """Garbage is collected when its variables are made that others capture."""
    step = pytc.compile(lambda x: x + 1)
    holder, seen, references, junk = Holder(), [], [], []
    holder.x = jnp.zeros(8)
    gc.set_threshold(100, 1, 1)

    def helper(value):
        gc.disable()
        seen.append(not holder.x.is_deleted())
        return (lambda: value) and jnp.ones(8)

    def once(_):
        mortal = Mortal()
        mortal.itself = mortal
        references[:] = [weakref.ref(mortal, lambda _: step(getattr(holder, "x")))]  # noqa: B009 - as a temporary
        del mortal
        gc.disable()
        junk[:] = [[] for _ in range(300)]
        gc.enable()
        holder.x = helper(1)

    try:
        alive_after(range(3 * ROUNDS), once, seen)
    finally:
        gc.enable()


def through_a_list(step: Any, states: list[Any], threshold: int) -> list[Any]:
    made = []
    gc.set_threshold(threshold)
    for state in states:
        state = step(state)
        gc.set_threshold(0)
        made.append(state)
    return made


def through_a_dictionary(step: Any, states: dict[int, Any], threshold: int) -> list[Any]:
    made = []
    gc.set_threshold(threshold)
    for _, state in states.items():
        state = step(state)
        gc.set_threshold(0)
        made.append(state)
    return made


@pytest.mark.parametrize(
    ("through", "of"),
    [(through_a_list, list), (through_a_dictionary, lambda states: dict(enumerate(states)))],
    ids=["list", "dictionary"],
)
def test_garbage_that_moves_what_a_loop_has_passed_to_where_it_still_has_to_go(uncalled, through, of) -> None:
    """Until it is collected it refers to what is gone through, and then nothing tells of it."""
    step = pytc.compile(lambda x: x + 1)
    moved = []

    class Moves:
        def __init__(self, states):
            self.itself, self.states = self, states

        def __del__(self):
            states = self.states
            states[0], states[1] = states[1], states[0]
            moved.append(True)

    def started(moves):
        states = of([jnp.full(8, number) for number in range(4)])
        if moves:
            Moves(states)
        return states

    def run(threshold, moves):
        return [int(state[0]) for state in through(step, started(moves), threshold)]

    gc.set_threshold(0)
    for _ in range(5):
        assert run(0, False) == [1, 2, 3, 4]
    for threshold in range(1, 250, 2):
        gc.collect()
        assert run(threshold, True) in ([1, 2, 3, 4], [1, 1, 3, 4], [2, 1, 3, 4])
        gc.set_threshold(0)
    assert moved


def another_array(array: Any) -> Any:
    return jax.device_put(array, jax.devices()[0])


@pytest.mark.parametrize("make", [another_array, weakref.ref])
@pytest.mark.parametrize("inside", [lambda x: x, lambda x: {"x": x}, State])
def test_garbage_that_makes_another_way_to_an_array_in_the_midst_of_the_proof(uncalled, inside, make) -> None:
    """And lets go of its own reference, so that all that there are later are accounted for."""
    made, step = pytc.compile(lambda: jnp.ones(8)), pytc.compile(lambda x: jax.tree.map(lambda leaf: leaf + 1, x))
    ways, taken_over = [], []

    class Makes:
        def __init__(self, array):
            self.itself, self.array = self, array

        def __del__(self):
            gc.set_threshold(0)
            ways.append(make(self.array))

    def run(threshold):
        state = inside(made())
        (array,) = jax.tree.leaves(state)
        address = array.unsafe_buffer_pointer()
        if threshold:
            Makes(array)
        array = None
        gc.set_threshold(threshold)
        new = step(state)
        gc.set_threshold(0)
        found = [way() if type(way) is weakref.ref else way for way in ways]
        expect(not any(array.is_deleted() for array in found if array is not None))
        taken_over.append(jax.tree.leaves(new)[0].unsafe_buffer_pointer() == address)

    gc.set_threshold(0)
    for threshold in range(1, 90):
        for _ in range(5):
            run(0)
        ways.clear()
        run(threshold)
        gc.collect()
        ways.clear()
    assert sum(taken_over) > 4 * 90


def test_nothing_is_collected_while_a_tuple_is_made_of_the_result(collecting) -> None:
    step = pytc.compile(lambda x: x + 1)
    holder, seen, junk = Holder(), [], []
    holder.x = jnp.zeros(8), 0

    class Looks:
        def __init__(self):
            self.itself = self

        def __del__(self):
            seen.append(not holder.x[0].is_deleted())

    def once(number):
        Looks()
        junk[:] = [[] for _ in range(number)]
        holder.x = (step(holder.x[0]), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        junk.clear()
        gc.collect()  # which also gives back the tuples and dictionaries that were kept for the next

    alive_after(range(300, 510), once, seen)


def rounds(method: str, made: int, anew: bool = False) -> tuple[list[bool], list[bool]]:
    """Run a method that replaces `holder.x` by a call, whose result is of so many objects that it is time for a
    collection behind it: whether what a finaliser found there was alive, and whether the old value was taken over. It
    is one method, or one that is made `anew` each time."""
    step = pytc.compile(lambda x: (x + 1, [[] for _ in range(made)]))
    holder, seen, taken_over = Holder(), [], []
    holder.x = jnp.zeros(8)

    class Looks:
        def __init__(self):
            self.itself = self

        def __del__(self):
            seen.append(not holder.x.is_deleted())
            if len(taken_over) < 12:
                Looks()

    space = {"step": step, "holder": holder, "Holder": Holder}
    exec(method, space)
    Looks()
    for _ in range(12):  # the interpreter unpacks tuples otherwise once it has done so a few times
        address = holder.x.unsafe_buffer_pointer()
        if anew:
            exec(method, space)
        gc.collect()  # which also gives back the tuples that were kept for the next
        space["method"]()
        taken_over.append(holder.x.unsafe_buffer_pointer() == address)
    assert seen
    return seen, taken_over


def in_helpers(length: int) -> str:
    """Two that return a tuple of so many."""
    names = ", ".join(["new", "more", *(f"rest{n}" for n in range(length - 2))])
    return f"""
def inner(x):
    new, more = step(x)
    return new, more, {"0, " * (length - 2)}
def outer(x):
    {names} = inner(x)
    return {names}
def method():
    {names.replace("new", "holder.x")} = outer(holder.x)
"""


def in_tuples(number: int) -> str:
    """A helper that makes so many, and two that they are in, with up to 24 in one. (Of longer ones the interpreter makes
    lists first, and shorter ones than these it keeps for the next.)"""
    one = f"({'more, ' * 20})"
    groups = [min(24, number - done) for done in range(0, number, 25)]
    parts = ", ".join(f"({f'{one}, ' * group})" for group in groups)
    return f"""
def helper(x):
    new, more = step(x)
    return new, ({parts},)
def method():
    holder.x, more = helper(holder.x)
"""


UNPACKED = """
def method():
    holder.x, more = step(holder.x)
"""
IN_A_NEW_ATTRIBUTE = """
def helper(x):
    new, more = step(x)
    return more, new
def method():
    other = Holder()
    other.more, holder.x = helper(holder.x)
"""
BEHIND = {
    "unpacked": (UNPACKED, True),
    "a tuple of 2 by helpers": (in_helpers(2), True),
    "a tuple of 12 by helpers": (in_helpers(12), True),
    "a tuple of 28 by helpers": (in_helpers(28), True),
    "a new attribute": (IN_A_NEW_ATTRIBUTE, True),
    "some tuples": (in_tuples(collector.MOST - 10), True),
    "too many tuples": (in_tuples(collector.MOST), False),
}


@pytest.mark.parametrize(("method", "expected"), BEHIND.values(), ids=BEHIND)
def test_nothing_is_collected_before_the_result_is_stored(collecting, method, expected) -> None:
    """Whatever the instructions behind the call make. And the old value is taken over."""
    seen, taken_over = rounds(method, 2000)
    assert all(seen)
    assert taken_over[2:] == [expected] * len(taken_over[2:])


@pytest.mark.parametrize("frozen", [True, False])
def test_nothing_is_collected_behind_a_call_that_leaves_more_than_others(collecting, frozen, monkeypatch) -> None:
    """As the first call from a site does, or that of a program."""
    left, remember = [], proof.remember
    monkeypatch.setattr(proof, "remember", lambda *args: (left.extend([] for _ in range(600)), remember(*args)))
    if not frozen:
        gc.unfreeze()
    seen, taken_over = rounds(UNPACKED, 0, anew=True)
    gc.freeze()  # for the other tests
    assert len(left) >= 12 * 600
    assert all(seen)
    assert all(taken_over)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="garbage is collected later")
def test_where_garbage_is_collected_all_the_time_nothing_is_taken_over(collecting) -> None:
    gc.set_threshold(collector.MOST - 1)
    seen, taken_over = rounds(UNPACKED, 0)
    assert all(seen)
    assert not any(taken_over)


def test_nothing_is_collected_while_a_new_attribute_is_made(collecting) -> None:
    step = pytc.compile(lambda x: (*[x[0]] * 12, x + 1))
    seen, junk = [], []

    class Full:
        """Its objects share the name `x`, and so many others that one more takes a `__dict__`."""

    for _ in range(2):
        full = Full()
        full.x = 0
        for number in range(40):
            setattr(full, f"a{number}", 0)

    class Looks:
        def __init__(self, holder):
            self.itself, self.holder = self, holder

        def __del__(self):
            seen.append(not self.holder.x.is_deleted())

    def once(number):
        holder = Full()
        holder.x = jnp.zeros(8)
        a, b, c, d, e, f = Full(), Full(), Full(), Full(), Full(), Full()
        g, h, i, j, k, m = Full(), Full(), Full(), Full(), Full(), Full()
        for each in (a, b, c, d, e, f, g, h, i, j, k, m):
            each.x = 0
        Looks(holder)
        junk[:] = [{} for _ in range(number)]
        a.n, b.n, c.n, d.n, e.n, f.n, g.n, h.n, i.n, j.n, k.n, m.n, holder.x = step(holder.x)
        junk.clear()
        gc.collect()  # which also gives back the tuples and dictionaries that were kept for the next

    alive_after(range(300, 510), once, seen)


@pytest.mark.parametrize("flattening", [1, 2, 3, 4])
def test_another_array_on_the_buffer_made_by_who_flattens(flattening: int) -> None:
    views = []

    class Logged:
        def __init__(self, x):
            self.x, self.flattened = x, 0

    def flatten(node):
        node.flattened += 1
        if node.flattened == flattening and isinstance(node.x, jax.Array):
            views.append(jax.device_put(node.x, jax.devices()[0]))
        return (node.x,), None

    jax.tree_util.register_pytree_node(Logged, flatten, lambda _, children: Logged(*children))
    step = pytc.compile(lambda node: Logged(node.x + 1))

    def run():
        node = Logged(jnp.zeros(8))
        for _ in range(ROUNDS):
            node = step(node)

    run()
    views = [view for view in views if not isinstance(view, jax.core.Tracer)]
    assert views
    assert not any(view.is_deleted() for view in views)


@pytest.mark.parametrize("question", range(1, 10))
@pytest.mark.parametrize("method", ["__getattr__", "__getattribute__"])
def test_a_metaclass_that_takes_the_state_away_when_it_is_asked(method: str, question: int) -> None:
    holder, taken, asked = Holder(), [], []

    def ask(cls, name):
        asked.append(name)
        if len(asked) == question and holder.x is not None:
            taken.append(holder.x)
            holder.x = None
        return type.__getattribute__(cls, name)

    Meta = type("Meta", (type,), {method: ask})

    class Held(metaclass=Meta):
        def __init__(self, x):
            self.x = x

    jax.tree_util.register_pytree_node(Held, lambda held: ((held.x,), None), lambda _, children: Held(*children))
    step = pytc.compile(lambda held: Held(held.x + 1))
    holder.x = Held(jnp.zeros(8))

    def run():
        for _ in range(ROUNDS):
            asked.clear()
            holder.x = step(getattr(holder, "x"))  # noqa: B009 - as a temporary

    run()
    assert not any(held.x.is_deleted() for held in taken)
    assert not holder.x.x.is_deleted()


def test_a_look_deep_among_objects_that_die() -> None:
    """CPython puts off the end of what lies there, and up to 3.12 tells of weak references that are in its midst."""
    script = """
        import gc
        import jax.numpy as jnp
        from pytc.ownership.references import counts

        gc.disable()
        x, seen = jnp.ones(3), []

        class Dies:
            def __del__(self):
                seen.append(counts.only_marked(x))

        for depth in range(40, 60):
            for backwards in (False, True):
                value = [counts.new_marks([x]), Dies()]
                if backwards:
                    value.reverse()
                for _ in range(depth):
                    value = [value]
        del value
        print("came through", len(seen))
    """
    run = interpreters.run(["-c", textwrap.dedent(script)])
    assert (run.returncode, run.stdout) == (0, "came through 40\n")


def test_a_call_of_peoples_own_as_the_way_to_the_arrays_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has garbage collected again, and finalisers may look at slots: these do not count then."""
    executions: list[tuple[bool, bool]] = []
    execute = ownership.executed

    def executed(*args: Any) -> None:
        executions.append((gc.isenabled(), holder.state.value.is_deleted()))
        execute(*args)

    class Node:
        def __init__(self, value: jax.Array):
            self.value = value

    def flatten(node: Node) -> tuple[tuple[jax.Array], None]:
        double(one)
        return (node.value,), None

    jax.tree_util.register_pytree_node(Node, flatten, lambda _, parts: Node(*parts))
    double, step = pytc.compile(lambda x: x * 2), pytc.compile(lambda node: Node(node.value + 1))
    one, holder = jnp.ones(10), Holder()
    holder.state = Node(jnp.zeros(1000))

    def train() -> None:
        holder.state = step(holder.state)

    for _ in range(4):
        train()
    monkeypatch.setattr(ownership, "executed", executed)
    for k in range(4):
        train()
        node = Node.__new__(Node)
        for extra in range(k + 1):
            setattr(node, f"extra{extra}", extra)  # the way to the array is another one
        node.value = holder.state.value
        holder.state = node
        del node
        train()
    assert any(deleted for _, deleted in executions)
    assert (True, True) not in executions


def test_a_sleep_in_which_other_code_of_this_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As gevent's and eventlet's, or that of a test which allows none. The proof waits for arrays to be ready."""
    step = pytc.compile(lambda x, b: jnp.tanh(x @ x + b.sum()))
    holder = Holder()
    holder.x = jnp.eye(400)
    taken: list[jax.Array] = []
    waited: list[bool] = []
    ready = buffers.is_ready

    def sleep(_: float) -> None:
        taken.append(holder.x)

    def is_ready(array: Any) -> bool:
        # Not the first time that it is asked, so that there is something to wait for however fast the machine is.
        waited.append(len(waited) % 2 == 0 or not ready(array))
        return not waited[-1]

    def train() -> None:
        for i in range(12):
            other = jnp.full((400, 400), i, jnp.float32)
            holder.x = step(holder.x, jnp.ones(3))
            del other

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(buffers, "is_ready", is_ready)
    monkeypatch.setattr(buffers, "is_told_late", lambda _: True)
    train()
    assert any(waited)
    assert not taken


def test_what_is_known_of_code_is_not_taken_for_that_of_other_code_in_its_place() -> None:
    """As when the stack is full, and nothing can be forgotten."""
    step = pytc.compile(lambda x: x + 1)

    def overwrites(x: jax.Array) -> tuple[jax.Array, int]:
        y = 0
        x = step(x)
        return x, y

    def reads(x: jax.Array) -> tuple[jax.Array, jax.Array | int]:
        y: jax.Array | int = 0
        y = step(x)
        return x, y

    for _ in range(4):
        overwrites(jnp.zeros(100))
    old, new = id(overwrites.__code__), id(reads.__code__)
    analysed._flows[new] = analysed._flows[old]
    analysed._sites.update({(new, at): site for (code, at), site in analysed._sites.items() if code == old})
    for _ in range(2):
        x, y = reads(jnp.zeros(100))
        assert float(x[0] + y[0]) == 1.0


def test_an_execution_for_which_there_is_no_memory() -> None:
    script = """
        import jax, jax.numpy as jnp, pytc

        step = pytc.compile(lambda x: (x + 1, jnp.zeros((1 << 46,), jnp.float32) + x[0]))

        for _ in range(3):
            x = jnp.zeros(1000)
            try:
                for _ in range(3):
                    x, y = step(x)
                jax.block_until_ready(x)
            except jax.errors.JaxRuntimeError:
                print("raised", x.is_deleted())
    """
    run = interpreters.run(["-c", textwrap.dedent(script)])
    assert (run.returncode, run.stdout) == (0, 3 * "raised False\n")
