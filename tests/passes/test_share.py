"""share: outputs that are one value are one array, and weights that came in tied go out tied."""

from __future__ import annotations

import random
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pytc
from pytc.passes import share
from pytc.passes.values import value_numbers
from pytc.program import Computed
from tests.ownership.odd_objects import Node


def test_one_value_at_two_outputs_is_one_output_and_one_object():
    def twice(x):
        y = x + 1
        return y, {"again": y}, x * 2

    program = share(pytc.stage(twice, jnp.ones(3)))
    assert [o.origin for o in program.outputs] == [Computed(0), Computed(0), Computed(2)]
    first, again, _ = pytc.compile(twice)(jnp.ones(3))
    assert again["again"] is first


def test_equal_values_computed_twice_are_two_outputs_as_for_jax_jit():
    program = share(pytc.stage(lambda x: (x + 1, x + 1), jnp.ones(3)))
    assert len({o.origin for o in program.outputs}) == 2
    one, other = pytc.compile(lambda x: (x + 1, x + 1))(jnp.ones(3))
    assert one is not other


def after_steps(step, n=3):
    """`tied = step(tied)`, n times over: the trees after the steps, by a compiled function and by `jax.jit`."""

    def run(step):
        weight = jnp.linspace(0.1, 1.0, 16).reshape(4, 4)
        tied = {"in": weight, "out": weight, "bias": jnp.ones(4)}
        del weight
        for _ in range(n):
            tied = step(tied)
        return tied

    return run(pytc.compile(step)), run(jax.jit(step))


def each_leaf(change):
    return lambda tree: jax.tree.map(change, tree)


@pytest.mark.parametrize(
    "step",
    [
        each_leaf(lambda x: 0.9 * x),
        each_leaf(jax.nn.gelu),
        each_leaf(lambda x: x.at[0].add(1.0)),
        each_leaf(jax.jit(lambda x: jnp.sin(x) * jnp.cos(x) + jnp.tanh(x) - 1)),
        each_leaf(lambda x: lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=3)[0]),
        each_leaf(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)),
        each_leaf(lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1]),
        each_leaf(lambda x: x + jax.random.normal(jax.random.key(0), x.shape)),
        each_leaf(lambda x: x - 0.1 * jax.grad(lambda v: jnp.sum(jnp.sin(v) ** 2))(x)),
        each_leaf(jax.checkpoint(jnp.sin)),
        lambda tree: dict.fromkeys(("in", "out"), tree["in"] * 0.5) | {"bias": tree["bias"]},
    ],
)
def test_tied_weights_stay_tied_over_many_steps(step):
    tied, wanted = after_steps(step)
    assert tied["in"] is tied["out"]
    assert tied["bias"] is not tied["in"]
    jax.tree.map(np.testing.assert_array_equal, tied, wanted)


def test_results_of_one_call_for_tied_weights_stay_tied():
    """As in an optimiser that corrects all moments in one jitted function, called more than once."""

    @jax.jit
    def corrected(moments, count):
        return jax.tree.map(lambda m: m / (1 - 0.9**count) + jnp.tanh(m) * jnp.cos(m), moments)

    @pytc.compile
    def f(tree):
        return corrected(corrected(tree, 3.0), 4.0)

    w = jnp.arange(3.0)
    tree = f({"a": w, "b": w, "c": jnp.ones(3)})
    assert tree["a"] is tree["b"]
    assert tree["a"] is not tree["c"]
    untied = f({"a": jnp.arange(3.0), "b": jnp.arange(3.0), "c": jnp.ones(3)})
    assert untied["a"] is not untied["b"]

    @jax.jit
    def noisy(x, y):
        return lax.rng_uniform(0.0, x[0], (3,)), lax.rng_uniform(0.0, y[0], (3,)), x + 1, y + 1

    one, other = pytc.compile(lambda x, y: [a for _ in range(2) for a in noisy(x, y)])(w + 1, w + 1)[:2]
    assert one is not other


@pytest.mark.parametrize(
    "step",
    [
        lambda tree: tree | {"in": tree["in"] * 0.0, "out": tree["out"] * -0.0},
        lambda tree: tree | {"in": tree["in"] * 1.0, "out": tree["out"] * 2.0},
        lambda tree: tree | {"in": tree["in"] - tree["bias"], "out": tree["bias"] - tree["out"]},
        each_leaf(lambda x: lax.optimization_barrier(x + 1)),
        lambda tree: tree | {k: lax.cond(tree["bias"][0] > 0, f, jnp.tanh, tree[k]) for k, f in _FUNCTIONS.items()},
        lambda tree: tree | {k: lax.fori_loop(0, n, lambda _, x: x * 0.5, tree[k]) for k, n in _NUMBERS.items()},
    ],
)
def test_different_computations_untie(step):
    trees = after_steps(step, n=1)
    assert trees[0]["in"] is not trees[0]["out"]
    jax.tree.map(np.testing.assert_array_equal, *trees)


_FUNCTIONS = {"in": jnp.sin, "out": jnp.cos}
_NUMBERS = {"in": 2, "out": 3}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_what_draws_hidden_random_numbers_is_not_repeatable(wrap):
    noisy = wrap(lambda x: x + lax.rng_uniform(0.0, 1.0, x.shape))
    one, other, again = value_numbers(jax.make_jaxpr(lambda x: (noisy(x), noisy(x), x))(jnp.ones(3)).jaxpr)
    assert len({one, other, again}) == 3


def test_what_has_effects_is_done_as_often_as_it_says():
    seen = []

    def tell(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x[0, 0])
        return x * 2

    step = pytc.compile(each_leaf(tell))
    weight = jnp.ones((4, 4))
    tied = step({"in": weight, "out": weight})
    jax.effects_barrier()
    assert seen == [1.0, 1.0]
    assert tied["in"] is tied["out"]


def test_foreign_calls_and_references_are_unlike_any_other():
    def foreign(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def referring(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] + 1
        return ref[...]

    for f in (foreign, referring):
        one, other = value_numbers(jax.make_jaxpr(lambda x, f=f: (f(x), f(x)))(jnp.ones(3)).jaxpr)
        assert one != other


def test_gradients_of_tied_leaves_are_two_values():
    def loss(tree):
        return jnp.sum(jnp.sin(tree["in"]) @ tree["out"])

    step = lambda tree: jax.tree.map(lambda p, g: p - 0.1 * g, tree, jax.grad(loss)(tree))  # noqa: E731
    trees = after_steps(lambda tree: step({k: tree[k] for k in ("in", "out")}), n=1)
    assert trees[0]["in"] is not trees[0]["out"]
    jax.tree.map(np.testing.assert_array_equal, *trees)


def test_one_gradient_for_both_places_keeps_them_tied():
    def loss(weight):
        return jnp.sum(jnp.sin(weight) @ weight)

    step = each_leaf(lambda weight: weight - 0.1 * jax.grad(loss)(weight))
    tied, wanted = after_steps(lambda tree: step({k: tree[k] for k in ("in", "out")}))
    assert tied["in"] is tied["out"]
    jax.tree.map(np.testing.assert_array_equal, tied, wanted)


def test_equal_outputs_for_which_other_shardings_are_asked_are_two():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    x = jnp.ones(3)
    one, other = pytc.compile(lambda a, b: (a * 2, b * 2), out_shardings=(sharding, None))(x, x)
    assert one is not other


def test_numbering_is_linear_in_equations_and_depth():
    def seconds(depth):
        f = jnp.sin
        for _ in range(depth):
            f = lambda x, f=f: lax.scan(lambda c, _: (f(c) * 2, None), x, None, length=2)[0]  # noqa: E731
        jaxpr = jax.make_jaxpr(lambda x: (f(x), f(x)))(jnp.ones(3)).jaxpr
        start = time.process_time()
        one, other = value_numbers(jaxpr)
        taken = time.process_time() - start
        assert one == other
        return taken

    seconds(2)
    assert best(seconds, 40) < 20 * best(seconds, 10) + 0.05


def test_numbering_is_linear_in_operands_and_results():
    def seconds(count):
        each = jax.jit(lambda *values: [value + 1 for value in values])
        jaxpr = jax.make_jaxpr(lambda *values: each(*values))(*[1.0] * count).jaxpr
        start = time.process_time()
        assert len(set(value_numbers(jaxpr))) == count
        return time.process_time() - start

    seconds(2)
    assert best(seconds, 3200) < 20 * best(seconds, 400) + 0.05


def best(seconds, size):
    """Of a few: a collection of all that other tests have left takes longer than what is timed."""
    return min(seconds(size) for _ in range(3))


def test_another_sharing_structure_is_another_signature():
    traces = []

    @pytc.compile
    def total(a, b):
        traces.append(a is b)
        return a + b

    x, y = jnp.ones(3), jnp.ones(3)
    for _ in range(2):
        np.testing.assert_array_equal(total(x, y), total(x, x))
    assert traces == [False, True]


def test_sharing_can_be_turned_off():
    traces = []

    @pytc.compile(share=False)
    def total(a, b):
        traces.append(a is b)
        return a + b

    x = jnp.ones(3)
    total(x, x)
    total(x, jnp.zeros(3))
    assert traces == [False]


@pytest.mark.parametrize("shape", [(2, 5), (3, 3), (7,), (40, 3)], ids=str)
def test_the_bits_of_what_is_shared_are_those_of_one_argument(shape: tuple[int, ...]) -> None:
    """XLA rounds a sum of squares otherwise than one of products, now and then."""

    def both(x: Any, y: Any) -> Any:
        return (x * y).sum(), jnp.sin(x + y), jnp.tanh(jnp.maximum(x, y)), jax.nn.softmax(x * y)

    x = jax.random.normal(jax.random.key(0), shape)
    shared, apart = pytc.compile(both), pytc.compile(both, share=False)
    jax.tree.map(np.testing.assert_array_equal, shared(x, x), jax.jit(lambda x: both(x, x))(x))
    jax.tree.map(np.testing.assert_array_equal, apart(x, x), jax.jit(both)(x, x))


def test_sharing_is_seen_whatever_else_refers_to_the_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call looks closely only where an array has many references."""
    monkeypatch.setattr("pytc.calls.layout.MOST_SHARINGS", 15)  # as many ways as there are for four arrays
    rng = random.Random(0)
    seen: list[list[int]] = []

    @pytc.compile(donate="none")
    def which(tree: Any, *rest: Any) -> int:
        leaves = jax.tree.leaves((tree, rest))
        seen.append([min(i for i, other in enumerate(leaves) if other is leaf) for leaf in leaves])
        return len(seen) - 1

    for _ in range(300):
        arrays = [jnp.ones(2) for _ in range(4)]
        held = [rng.choice(arrays) for _ in range(rng.randrange(5))]  # noqa: F841 - holds references
        leaves = arrays if rng.random() < 0.6 else [rng.choice(arrays) for _ in range(4)]
        wanted = [min(i for i, other in enumerate(leaves) if other is leaf) for leaf in leaves]
        cut = rng.choice([0, 2, 4])
        assert seen[which(leaves[:cut], *leaves[cut:])] == wanted


@pytest.mark.parametrize("donate", ["auto", "all", "none", {"first": "all"}, {"second": "all", "first": "none"}])
def test_without_sharing_an_array_may_still_be_passed_twice(donate: Any) -> None:
    @pytc.compile(share=False, donate=donate)
    def f(first: Any, second: Any) -> Any:
        return first[0] + first[1], second * 2

    def alike() -> list[Any]:
        x = jnp.arange(3.0)
        return list(map(np.asarray, f([x, x], x)))

    def apart() -> list[Any]:
        return list(map(np.asarray, f([jnp.arange(3.0), jnp.arange(3.0)], jnp.arange(3.0))))

    def from_one_place(shared: bool) -> list[Any]:
        x = jnp.arange(3.0)
        first, second = ([x, x], x) if shared else ([jnp.arange(3.0), jnp.arange(3.0)], x)
        return list(map(np.asarray, f(first, second)))

    results = [alike() for _ in range(4)] + [apart() for _ in range(4)] + [alike()]
    results += [from_one_place(shared) for shared in [False] * 8 + [True, False, True, True]]
    for sums, doubled in results:
        np.testing.assert_array_equal(sums, [0, 2, 4])
        np.testing.assert_array_equal(doubled, [0, 2, 4])


def test_without_sharing_an_array_may_be_moved_to_two_places() -> None:
    f = pytc.compile(lambda x, y: (x + 1, y * 2), share=False)
    x = jnp.arange(3.0)
    more, twice = f(pytc.move(x), pytc.move(x))
    np.testing.assert_array_equal(more, [1, 2, 3])
    np.testing.assert_array_equal(twice, [0, 2, 4])


def test_one_container_as_two_arguments_and_then_two() -> None:
    """Only one container refers to the arrays, however often it is passed."""

    @pytc.compile
    def both(x: Any, y: Any) -> Any:
        return jax.tree.map(lambda a: a * 2, x), jax.tree.map(lambda a: a * 3, y)

    one, two = {"p": jnp.ones(2)}, {"p": jnp.full(2, 5.0)}
    for x, y in [(one, one), (one, two), (two, two), (two, one)] * 3:
        first, second = both(x, y)
        np.testing.assert_array_equal(first["p"], x["p"] * 2)
        np.testing.assert_array_equal(second["p"], y["p"] * 3)


@jax.tree_util.register_pytree_node_class
class Module(Node):
    seen: list[Any] = []

    @pytc.compile
    def step(self, x: Any, *, by: Any) -> Any:
        Module.seen.append((self.x is x, x is by))
        return self.x + x + by


def test_one_array_in_self_an_argument_and_a_keyword() -> None:
    w, other = jnp.ones(3), jnp.ones(3)
    for self, x, by in ((w, w, w), (w, other, w), (w, w, other), (w, w, w)):
        np.testing.assert_array_equal(Module(self).step(x, by=by), np.full(3, 3))
    assert Module.seen == [(True, True), (False, False), (True, False)]


def new_executables(call: Any) -> Any:
    client = jax.devices()[0].client
    known = client.live_executables()
    call()
    ids = set(map(id, known))
    return [each.get_compiled_memory_stats() for each in client.live_executables() if id(each) not in ids]


def test_a_shared_array_is_passed_once() -> None:
    w = jnp.arange(1000.0)
    f = pytc.compile(lambda a, b, *, c: a["x"] + a["y"][0] + b + c, donate="none")
    (figures,) = new_executables(lambda: f({"x": w, "y": [w]}, w, c=w))
    assert figures.argument_size_in_bytes == w.nbytes


def test_a_shared_array_is_donated_once_and_stays_one_in_place() -> None:
    f = pytc.compile(lambda tied, b, *, c: (jax.tree.map(lambda x: x * 2, tied), b * 2, c * 2))

    def train() -> Any:
        w, found = jnp.arange(600.0), []
        for _ in range(5):
            place = w.unsafe_buffer_pointer()
            tied, b, c = f([w, {"w": w}], w, c=w)
            found.append((tied[0] is tied[1]["w"] is b is c, b.unsafe_buffer_pointer() == place))
            w = b
            tied = b = c = None
        return found

    found = train()
    assert found == [(True, True)] * 5
    x = jnp.ones(9)
    promised = pytc.compile(f.__wrapped__, donate="all")
    (figures,) = new_executables(lambda: promised([x, {"w": x}], x, c=x))
    assert figures.alias_size_in_bytes == figures.argument_size_in_bytes == 36


def test_copies_that_were_asked_for_are_arrays_of_their_own():
    """`jnp.copy` is how people get a second array, which may then be donated by somebody else's promise."""
    update = jax.jit(lambda x: x * 2, donate_argnums=0)
    for make in (jnp.copy, jnp.array, lambda x: x.copy(), jax.jit(jnp.copy)):
        weight = jnp.ones((64, 64))
        params, target = pytc.compile(lambda p, t, make=make: (make(p), make(t)))(weight, weight)
        update(params)
        np.testing.assert_array_equal(target, weight)
