"""The analysis of what varies: what is said to be the same on every row is, whatever the function."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pytc
from tests.on_devices import devices  # noqa: F401 - sets up

I = "i"  # noqa: E741 - the axis
P = jax.P
GROUPS = [[0, 1, 2, 3], [4, 5, 6, 7]]
ROUND = [(k, (k + 1) % 8) for k in range(8)]


def through_jit(f, *args):
    return jax.jit(f)(*args)


def custom_jvp(f, x):
    wrapped = jax.custom_jvp(f)
    wrapped.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    return wrapped(x)


def custom_vjp(f, x):
    wrapped = jax.custom_vjp(f)
    wrapped.defvjp(lambda x: (f(x), None), lambda _, g: (g,))
    return wrapped(x)


def loop_while(limit, x, add):
    def body(state):
        n, x = state
        return n + 1, x + add

    return jax.lax.while_loop(lambda state: state[0] < limit, body, (0, x))


def in_a_ref(start, *written):
    ref = jax.new_ref(start)
    for value in written:
        ref[...] = ref[...] + value
    return ref[...]


def ref_in_a_loop(start, value):
    """What is read in a step was written in the step before."""
    ref = jax.new_ref(start)

    def body(_, total):
        total = total + ref[...]
        ref[...] = value
        return total

    return jax.lax.fori_loop(0, 3, body, jnp.zeros_like(start))


def ref_under(predicate, start):
    ref = jax.new_ref(start)

    def write():
        ref[...] = start + 1

    jax.lax.cond(predicate, write, lambda: None)
    return ref[...]


def ref_while(limit, start):
    ref = jax.new_ref(start)

    def body(n):
        ref[...] = ref[...] + 1
        return n + 1

    jax.lax.while_loop(lambda n: n < limit, body, 0)
    return ref[...]


def ref_in_a_condition(limit, start):
    """The condition runs once more than the body, and writes what is read afterwards."""
    ref = jax.new_ref(start)

    def go_on(n):
        ref[...] = ref[...] + 1
        return n < limit

    jax.lax.while_loop(go_on, lambda n: n + 1, 0)
    return ref[...]


def shuffled_carries(x, y):
    """What varies reaches the last carry in the third step."""

    def body(carry, _):
        a, b, c = carry
        return (x, a, b), c

    return jax.lax.scan(body, (y, y, y), None, length=4)


def steps(count, x, y):
    """Each step forgets `x`."""
    return jax.lax.fori_loop(0, count, lambda _, c: y, x), jax.lax.scan(lambda c, _: (y, c), x, jnp.ones(count))


def solved(b, by):
    """Of `by * x == b`."""
    return jax.lax.custom_linear_solve(lambda x: x * by, b, lambda _, b: b / by)


def callback(x):
    return jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def index():
    return jax.lax.axis_index(I)


# A function of what varies (`x`) and what does not (`y`), and whether its results vary.
CASES = {
    "psum": (lambda x, y: jax.lax.psum(x, I), "-"),
    "pmean": (lambda x, y: jax.lax.pmean(x, I) + y, "-"),
    "pmax and pmin": (lambda x, y: (jax.lax.pmax(x, I), jax.lax.pmin(x, I)), "--"),
    "psum of a tree": (lambda x, y: jax.lax.psum((x, y), I), "--"),
    "all_gather": (lambda x, y: jax.lax.all_gather(x, I, tiled=True), "-"),
    "groups": (lambda x, y: jax.lax.all_gather(x, I, axis_index_groups=GROUPS), "v"),
    "psum in groups": (lambda x, y: jax.lax.psum(x, I, axis_index_groups=GROUPS), "v"),
    "axis_index": (lambda x, y: index(), "v"),
    "ppermute": (lambda x, y: (jax.lax.ppermute(y, I, [(0, 1)]), jax.lax.ppermute(x, I, ROUND)), "vv"),
    "all_to_all": (lambda x, y: jax.lax.all_to_all(jnp.tile(y, 2), I, 0, 0, tiled=True), "v"),
    "psum_scatter": (lambda x, y: jax.lax.psum_scatter(jnp.tile(y, 2), I, tiled=True), "v"),
    "unmapped": (lambda x, y: (jnp.sin(y), jnp.arange(3), x), "--v"),
    "jit": (lambda x, y: through_jit(lambda a, b: (jax.lax.psum(a, I), b), x, y), "--"),
    "remat": (lambda x, y: jax.checkpoint(lambda a, b: (a * 2, b * 2))(x, y), "v-"),
    "custom_jvp": (lambda x, y: (custom_jvp(jnp.sin, x), custom_jvp(jnp.sin, y)), "v-"),
    "custom_vjp": (lambda x, y: (custom_vjp(jnp.sin, x), custom_vjp(jnp.sin, y)), "v-"),
    "cond": (lambda x, y: jax.lax.cond(y[0] > 0, lambda: (x, y), lambda: (y, y * 2)), "v-"),
    "cond that varies": (lambda x, y: jax.lax.cond(x[0] > 8, lambda: y, lambda: y + 1), "v"),
    "cond of psums": (lambda x, y: jax.lax.cond(y[0] > 0, lambda: jax.lax.psum(x, I), lambda: y), "-"),
    "while": (lambda x, y: loop_while(3, y, y), "--"),
    "while that varies": (lambda x, y: loop_while(index(), y, y), "vv"),
    "while of what varies": (lambda x, y: loop_while(3, y, x), "-v"),
    "scan": (lambda x, y: shuffled_carries(x, y), "vvvv"),
    "scan of what does not": (lambda x, y: shuffled_carries(jax.lax.psum(x, I), y), "----"),
    "scan that forgets": (lambda x, y: steps(3, x, y), "--v"),
    "scan of no step": (lambda x, y: steps(0, x, y), "vvv"),
    "scan of no step in another": (lambda x, y: jax.lax.fori_loop(0, 2, lambda _, c: steps(0, c, y)[0], x), "v"),
    "ref": (lambda x, y: (in_a_ref(y, y), in_a_ref(y, x), in_a_ref(x, y)), "-vv"),
    "ref in a loop": (lambda x, y: (ref_in_a_loop(y, y), ref_in_a_loop(y, x)), "-v"),
    "ref under a branch": (lambda x, y: (ref_under(y[0] > 0, y), ref_under(x[0] > 8, y)), "-v"),
    "ref in a while": (lambda x, y: (ref_while(2, y), ref_while(index(), y)), "-v"),
    "ref in a condition": (lambda x, y: (ref_in_a_condition(2, y), ref_in_a_condition(index(), y)), "-v"),
    "callback": (lambda x, y: callback(y), "v"),
    "random": (lambda x, y: (jax.random.normal(jax.random.key(0)), jax.random.normal(jax.random.key(index()))), "-v"),
    "keys": (lambda x, y: tuple(map(jax.random.key_data, jax.random.split(jax.random.key(0)))), "--"),
    "keys folded": (lambda x, y: jax.random.bits(jax.random.fold_in(jax.random.key(0), index())), "v"),
    "shuffled": (lambda x, y: jax.random.permutation(jax.random.key(0), y), "-"),
    "stack": (lambda x, y: (jnp.stack([y, y]), jnp.stack([x, y]), *jnp.unstack(y)), "-v----"),
    "by platform": (lambda x, y: jax.lax.platform_dependent(y, cpu=jnp.sin, default=jnp.cos), "-"),
    "search": (lambda x, y: (jnp.searchsorted(y, y), jnp.searchsorted(y, x), jnp.unique(y, size=2)), "-v-"),
    "solve": (lambda x, y: (jnp.linalg.solve(jnp.eye(4) * 2, y), jnp.linalg.solve(jnp.eye(4) * 2, x)), "-v"),
    "solve by a function": (lambda x, y: (solved(y, 2.0), solved(x, 2.0), solved(y, x[0] + 2)), "-vv"),
    "barrier": (lambda x, y: jax.lax.optimization_barrier((x, y)), "v-"),
    "gather": (lambda x, y: (y[index() % 4], y[2], y.at[0].add(x[0])), "v-v"),
    "vmap": (lambda x, y: (jax.vmap(lambda a: jax.lax.psum(a, I))(x), jax.vmap(jnp.sin)(y)), "--"),
    "vmap with a name": (lambda x, y: jax.vmap(lambda a: a - jax.lax.psum(a, "k"), axis_name="k")(y), "-"),
}


def rows(f):
    """For each result, whether it is said to vary; what is said not to is the same on all rows, when all are computed.
    The values are those of `jax.pmap` with these `out_axes`."""
    x, y = jnp.arange(32.0).reshape(8, 4), jnp.linspace(1.0, 2.0, 4)
    got, tree = jax.tree.flatten(pytc.pmap(f, I, in_axes=(0, None))(x, y))
    all_rows = list(map(np.asarray, jax.tree.leaves(jax.pmap(f, I, in_axes=(0, None))(x, y))))
    varies = [one.shape == each.shape for one, each in zip(got, all_rows, strict=True)]
    wanted = all_rows
    if not all(varies):
        out_axes = tree.unflatten([0 if each else None for each in varies])
        wanted = jax.tree.leaves(jax.pmap(f, I, in_axes=(0, None), out_axes=out_axes)(x, y))
    for one, other, each, varied in zip(got, wanted, all_rows, varies, strict=True):
        np.testing.assert_array_equal(one, other)
        if not varied:
            assert len({row.tobytes() for row in each}) == 1
            assert len({np.asarray(s.data).tobytes() for s in one.addressable_shards}) == 1
    return "".join("v" if varied else "-" for varied in varies)


@pytest.mark.parametrize("name", CASES)
def test_what_varies(name):
    f, expected = CASES[name]
    assert rows(f) == expected


def test_over_one_of_two_axes():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def f(x, y):
        return jax.lax.psum(x, "a"), jax.lax.psum(x, ("a", "b")), jax.lax.ppermute(y, "b", [(0, 1)]), y

    def inner(*args):
        seen.append(jax.make_jaxpr(f)(*args))
        return f(*args)[1]

    seen = []
    spec = P("a", "b")
    jax.shard_map(inner, mesh=mesh, in_specs=(spec, P()), out_specs=P(), check_vma=False)(jnp.ones((2, 4)), jnp.ones(3))
    found = pytc.passes.varying(seen[0], [{"a", "b"}, ()], ["a", "b"])
    assert found == [{"b"}, set(), {"b"}, set()]
    with pytest.raises(ValueError, match="1 inputs are described, and the jaxpr has 2"):
        pytc.passes.varying(seen[0], [()], ["a"])


def test_a_solve_that_no_pass_has_opened():
    """What only checks the solution does not count, and what solves does."""

    def f(x, y):
        by = jnp.max(x) + 2
        checked = jax.lax.custom_linear_solve(lambda v: v * by, y, lambda _, b: b / 2)
        return solved(y, 2.0), solved(x, 2.0), solved(y, by), checked

    jaxpr = jax.make_jaxpr(f)(jnp.ones(4), jnp.ones(4))
    assert pytc.passes.varying(jaxpr, [{I}, ()], [I]) == [set(), {I}, {I}, set()]


def test_a_map_inside():
    """Over another axis: what varies over that one is known inside it, and nobody says which is handed on."""
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def inner(x, y):
        every = x + y, jax.lax.psum(x, "a"), y * 2
        return *every, jax.lax.psum(x, "b"), jax.lax.psum(y, "b"), y + jax.lax.axis_index("b")

    def device(x, y):
        split, whole = (P("b"),) * 3, (P(),) * 3
        mapped = jax.shard_map(
            inner, in_specs=(P("b"), P("b")), out_specs=split + whole, axis_names={"b"}, check_vma=False
        )
        seen.append(jax.make_jaxpr(mapped)(x, y))
        return [result[None] for result in mapped(x, y)]

    seen = []
    outer = jax.shard_map(
        device, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"}, check_vma=False
    )
    results = jax.jit(outer)(jnp.arange(16.0), jnp.arange(4.0))
    found = pytc.passes.varying(seen[0], [{"a"}, ()], ["a"])
    assert found == [{"a"}, set(), set(), {"a"}, set(), {"a"}]
    for result, axes in zip(results, found, strict=True):
        assert axes or (result == result[:1]).all()


def test_a_ref_that_was_there_before_holds_anything_and_is_one_in_the_condition_and_the_body():
    def shared(x):
        ref = jax.new_ref(0.0)

        def body(n):
            ref[...] = ref[...] + x
            return n + 1

        return jax.lax.while_loop(lambda n: ref[...] < 3, body, 0)

    assert pytc.passes.varying(jax.make_jaxpr(shared)(1.0), [{I}], [I]) == [{I}]
    assert pytc.passes.varying(jax.make_jaxpr(shared)(1.0), [()], [I]) == [set()]
    before = jax.new_ref(0.0)
    assert pytc.passes.varying(jax.make_jaxpr(lambda: before[...])(), [], [I]) == [{I}]


def test_an_unknown_primitive_varies():
    primitive = jax.extend.core.Primitive("sin")  # the name of one of JAX's, and not that
    primitive.def_abstract_eval(lambda x: x)
    jaxpr = jax.make_jaxpr(lambda x: (primitive.bind(x), jnp.sin(x)))(1.0)
    assert pytc.passes.varying(jaxpr, [()], ["i"]) == [{"i"}, set()]


class Drawn:
    """A random function of arrays of four elements on a mesh with these axes (name: size), drawn while it is traced."""

    def __init__(self, seed, axes):
        self.seed, self.axes = seed, axes

    def __call__(self, *pool):
        rng = random.Random(self.seed)
        pool = self.operate(rng, list(pool), rng.randint(2, 6), 2)
        return pool[-5:]

    def operate(self, rng, pool, count, depth):
        for _ in range(count):
            pool = [*pool, self.one(rng, *rng.choices(pool, k=3), depth)]
        return pool

    def one(self, rng, a, b, decider, depth):
        operations = self.plain(rng, a, b) + self.messages(rng, a)
        if depth:
            operations += self.nested(rng, a, b, decider, depth) * 2
        return rng.choice(operations)()

    @staticmethod
    def plain(rng, a, b):
        key = jax.random.key(b[0].astype(int))
        return [
            lambda: jnp.sin(a) + b,
            lambda: jnp.where(a > b, a, b) * 0.5,
            lambda: in_a_ref(a, b),
            lambda: ref_in_a_loop(a, b),
            lambda: ref_in_a_condition(jnp.clip(a[0], 0, 4), b),
            lambda: jnp.cumsum(a)[::-1],
            lambda: jnp.stack([a, b])[rng.randint(0, 1)],
            lambda: a[jnp.argsort(b)],
            lambda: a + jax.random.normal(key, (4,)),
            lambda: a + jax.random.uniform(jax.random.split(key)[rng.randint(0, 1)], (4,)),
            lambda: jax.vmap(lambda c, d: c + jax.lax.pmax(d, "rows"), axis_name="rows")(a, b),
        ]

    def messages(self, rng, a):
        name = rng.choice(list(self.axes))
        size = self.axes[name]
        some = tuple(rng.sample(list(self.axes), rng.randint(1, len(self.axes))))
        halves = [list(range(size // 2)), list(range(size // 2, size))]
        parts = jnp.concatenate([a + k for k in range(size)])
        following = [(k, (k + 1) % size) for k in range(size)]
        return [
            lambda: jax.lax.psum(a, some) * 0.1,
            lambda: jax.lax.pmax(a, some),
            lambda: jax.lax.pmin(a, name),
            lambda: jax.lax.pmean(a, name, axis_index_groups=halves),
            lambda: jax.lax.all_gather(a, some).mean(0),
            lambda: jax.lax.all_gather(a, name)[jax.lax.axis_index(name)],
            lambda: jax.lax.ppermute(a, name, following[: rng.randint(1, size)]),
            lambda: a + jax.lax.axis_index(name),
            lambda: jax.lax.all_to_all(parts, name, 0, 0, tiled=True)[:4],
            lambda: jax.lax.psum_scatter(parts, name, tiled=True),
        ]

    def nested(self, rng, a, b, decider, depth):
        inside = rng.getrandbits(32)

        def body(c, d):
            inner = random.Random(inside)
            return self.operate(inner, [c, d], inner.randint(1, 3), depth - 1)[-1]

        def branch(c, d):  # no collectives: where rows take different ways, they would wait for ever
            return jnp.cos(c) + ref_under(c[0] > d[0], d)

        everywhere = tuple(self.axes)
        agreed = jax.lax.psum(a[0], everywhere) > jax.lax.pmax(b[0], everywhere)
        return [
            lambda: jax.lax.cond(decider[0] > 1, branch, lambda c, d: d, a, b),
            lambda: jax.lax.switch(
                jnp.clip(decider[1], 0, 2).astype(int), [branch, lambda c, d: d, lambda c, d: c - d], a, b
            ),
            lambda: jax.lax.cond(agreed, body, lambda c, d: d, a, b),
            lambda: jax.lax.fori_loop(0, inside % 4, lambda _, c: body(c, b) * 0.5, a),
            lambda: loop_while(jnp.clip(decider[0], 0, 4), b, a)[1],
            lambda: jax.lax.scan(lambda c, s: (body(c, b) * 0.5, c + s), a, jnp.ones((2, 4)))[1][1],
            lambda: jax.lax.scan(lambda c, s: (b * s, None), a, jnp.ones((inside % 3, 4)))[0],
            lambda: jax.jit(body)(a, b),
            lambda: jax.checkpoint(body)(a, b),
            lambda: jax.vjp(lambda c: jnp.tanh(c) * b, a)[1](b)[0],
            lambda: jax.grad(lambda c: jnp.sum(jax.checkpoint(jnp.sin)(c * b)))(a),
            lambda: custom_jvp(lambda c: jax.lax.psum(jnp.sin(c), everywhere) - c, a),
            lambda: custom_vjp(lambda c: jax.lax.pmax(jnp.sin(c), everywhere[:1]) - c, a),
            lambda: ref_while(jnp.clip(decider[0], 0, 4), b),
            lambda: ref_under(decider[0] > 1, b),
        ]


SEEDS = st.integers(0, 2**32)


@settings(max_examples=5, deadline=None, derandomize=True, database=None)
@given(SEEDS)
def test_random_functions_with_collectives(seed):
    rows(Drawn(seed, {I: 8}))


@settings(max_examples=5, deadline=None, derandomize=True, database=None)
@given(SEEDS)
def test_random_functions_over_two_axes(seed):
    """On each device, and what varies over which of the axes."""
    drawn, seen = Drawn(seed, {"a": 4, "b": 2}), []
    inputs = {"a b": P("a", "b"), "a": P("a"), "b": P(None, "b"), "": P()}

    def device(*shards):
        own = [shard.reshape(4) for shard in shards]
        seen.append(jax.make_jaxpr(drawn)(*own))
        return [result[None, None] for result in drawn(*own)]

    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    mapped = jax.shard_map(device, mesh=mesh, in_specs=tuple(inputs.values()), out_specs=P("a", "b"), check_vma=False)
    numbers = jnp.arange(32.0).reshape(4, 2, 4)
    results = jax.jit(mapped)(numbers, numbers[:, :1] / 3, numbers[:1] / 5, numbers[:1, :1] - 1.5)
    found = pytc.passes.varying(seen[0], [name.split() for name in inputs], ["a", "b"])
    for result, axes in zip(results, found, strict=True):
        bits = np.asarray(result).view(np.int32)
        for number, name in enumerate(["a", "b"]):
            assert name in axes or (bits == bits.take([0], number)).all()
