"""Compiled functions on meshes: the results and the places of `jax.jit`, and donation where the shardings match."""

import contextlib
import functools
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring
from jax.experimental.layout import Format, Layout

import pytc
from pytc.calls import decide
from pytc.jax_compat.arrays import _copy_of_shards, shards_of
from pytc.jax_compat.keys import bits_of
from pytc.ownership import proof
from tests.on_devices import devices  # noqa: F401 - sets up

P = jax.P
AUTO, EXPLICIT = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit


def mesh_of(kind):
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind, kind))


def steps(step, state, places):
    for _ in range(4):
        state = step(state)
        places.append([shard.unsafe_buffer_pointer() for shard in shards_of(state)])
    return state


def compare(step, make, *, in_place=True):
    """The same array in the same places as `jax.jit`'s, in one memory from step to step."""
    places = []
    got, wanted = steps(pytc.compile(step), make(), places), steps(jax.jit(step), make(), [])
    assert got.sharding == wanted.sharding
    np.testing.assert_array_equal(got, wanted)
    assert (len(set(map(tuple, places))) == 1) == in_place


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT], ids=str)
@pytest.mark.parametrize("spec", [P(), P("a"), P("a", "b"), P(None, ("a", "b"))], ids=str)
def test_arrays_spread_over_a_mesh(kind, spec):
    sharding = jax.NamedSharding(mesh_of(kind), spec)
    compare(lambda x: x * 2 + 1, lambda: jax.device_put(jnp.arange(64.0).reshape(8, 8), sharding))


def split(keys):
    return jax.vmap(lambda key: jax.random.split(key)[0])(keys)


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT], ids=str)
@pytest.mark.parametrize("spec", [P(), P("a"), P(("a", "b"))], ids=str)
def test_keys_spread_over_a_mesh(kind, spec):
    sharding = jax.NamedSharding(mesh_of(kind), spec)
    keys = jax.device_put(jax.random.split(jax.random.key(0), 8), sharding)
    wanted = jax.jit(split)(jax.jit(split)(keys))
    step = pytc.compile(split)
    for _ in range(2):
        keys = step(keys)
    assert keys.sharding == wanted.sharding
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(wanted))


@pytest.mark.parametrize("guard", ["disallow", "disallow_explicit"])
def test_keys_whose_bits_a_compiler_has_spread_are_no_transfer_of_the_users(guard):
    """They are put together when the arguments are gone."""

    @pytc.compile
    def step(x, bits):
        return x + 1, jax.random.wrap_key_data(bits * 3)

    place = jax.NamedSharding(jax.make_mesh((2,), ("a",), axis_types=(AUTO,)), P("a"))
    bits, holder = jax.device_put(jnp.arange(2, dtype=jnp.uint32), place), types.SimpleNamespace()
    holder.x = jax.device_put(jnp.zeros(1000), place)

    def run():
        holder.x, holder.key = step(holder.x, bits)

    for _ in range(4):
        run()
    with jax.transfer_guard(guard):
        run()
    np.testing.assert_array_equal(holder.x, np.full(1000, 5))
    np.testing.assert_array_equal(jax.random.key_data(holder.key), [0, 3])


@pytest.mark.parametrize("spec", [P("a", None, None), P("a", "b")], ids=["of three axes", "not divisible"])
def test_an_output_that_does_not_fit_its_sharding_is_named_as_by_jit(spec):
    wanted = {"n": None, "x": jax.NamedSharding(mesh_of(AUTO), spec)}
    texts = set()
    for by, given in ((jax.jit, jnp.asarray), (pytc.compile, jnp.asarray), (pytc.compile, pytc.move)):
        with pytest.raises(ValueError, match=r"[Ss]hard") as caught:
            by(lambda x: {"n": x.sum(), "x": x + 1}, out_shardings=wanted)(given(jnp.ones((6, 3))))
        texts.add(str(caught.value))
    assert len(texts) == 1


@pytest.mark.parametrize("which", ["in_shardings", "out_shardings"])
def test_shardings_asked_for_keys(which):
    options = {which: jax.NamedSharding(mesh_of(AUTO), P("b"))}
    keys = jax.random.split(jax.random.key(0), 8)
    got, wanted = pytc.compile(split, **options)(keys), jax.jit(split, **options)(keys)
    assert got.sharding == wanted.sharding
    np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(wanted))


@pytest.mark.parametrize("shape", [(2,), (8, 2)], ids=str)
def test_keys_made_of_bits_that_are_apart(shape):
    """No key may be on several devices, so JAX brings its bits together."""
    sharding = jax.NamedSharding(mesh_of(AUTO), P(*[None] * (len(shape) - 1), "b"))
    bits = jax.device_put(jnp.arange(np.prod(shape), dtype=jnp.uint32).reshape(shape), sharding)
    got, wanted = (to(jax.random.wrap_key_data)(bits) for to in (pytc.compile, jax.jit))
    assert got.sharding.is_equivalent_to(wanted.sharding, got.ndim)
    np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(wanted))


def test_shard_map():
    mesh = mesh_of(AUTO)
    step = jax.shard_map(lambda x: x - jax.lax.pmean(x, "a"), mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"))
    compare(step, lambda: jax.device_put(jnp.arange(64.0).reshape(8, 8), jax.NamedSharding(mesh, P("a", "b"))))


def test_constraints():
    mesh = mesh_of(AUTO)
    rows, columns = jax.NamedSharding(mesh, P("a")), jax.NamedSharding(mesh, P(None, "b"))

    def step(x):
        y = jax.lax.with_sharding_constraint(x * 2, columns)
        return jax.lax.with_sharding_constraint(y + 1, rows)

    compare(step, lambda: jax.device_put(jnp.arange(64.0).reshape(8, 8), rows))


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT], ids=str)
def test_under_set_mesh(kind):
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        compare(
            lambda x: jnp.sin(x),
            lambda: jax.device_put(jnp.arange(64.0).reshape(8, 8), jax.NamedSharding(mesh, P("a"))),
        )


def by_spec_alone(wrap, kind, make, fun):
    with jax.set_mesh(mesh_of(kind)):
        x, step = jax.device_put(make(), P("a")), wrap(fun, in_shardings=P("a"), out_shardings=P("a"))
        for _ in range(3):
            x = step(x)
        return x


@pytest.mark.parametrize("fun", [jnp.sin, split], ids=lambda fun: fun.__name__)
@pytest.mark.parametrize("kind", [AUTO, EXPLICIT], ids=str)
def test_everything_is_asked_for_by_specs_of_the_mesh_in_context(kind, fun):
    def make():
        return jax.random.split(jax.random.key(0), 8) if fun is split else jnp.arange(8.0)

    got, wanted = (by_spec_alone(wrap, kind, make, fun) for wrap in (pytc.compile, jax.jit))
    assert got.sharding == wanted.sharding
    np.testing.assert_array_equal(*(bits_of(x) for x in (got, wanted)))


def test_a_spec_without_a_mesh_is_refused_as_by_jax_jit():
    for option in ("in_shardings", "out_shardings"):
        with pytest.raises(RuntimeError, match="mesh in context if you are passing"):
            jax.jit(jnp.sin, **{option: P("a")})(jnp.ones(8))
        with pytest.raises(RuntimeError, match=rf"{option} .* mesh in context: jax.set_mesh"):
            pytc.compile(jnp.sin, **{option: P("a")})(jnp.ones(8))


def test_results_are_asked_for_over_a_mesh_that_has_only_a_shape():
    mesh = mesh_of(EXPLICIT)
    spread = jax.NamedSharding(mesh.abstract_mesh, P("a"))
    with jax.set_mesh(mesh):
        x = jnp.arange(8.0)
        results = [jit(lambda a: (a * 2, a.sum()), out_shardings=(spread, None))(x) for jit in (jax.jit, pytc.compile)]
    assert results[0][0].sharding == results[1][0].sharding
    np.testing.assert_array_equal(results[0][0], results[1][0])


def test_uneven_shardings():
    # Seven rows over four devices: JAX refuses such arguments, and takes them inside.
    mesh = mesh_of(AUTO)
    rows, whole = jax.NamedSharding(mesh, P("a")), jax.NamedSharding(mesh, P())
    compare(
        lambda x: jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(x, rows) * 2, whole),
        lambda: jax.device_put(jnp.arange(7.0), whole),
    )


def kept_shards(step, x):
    """A shard of the state at two of many calls."""
    kept = []
    for n in range(12):
        if n in (5, 9):
            kept.append(x.addressable_data(0))
        x = step(x)
    return kept


def test_a_shard_is_kept_where_arrays_were_cut_otherwise_before():
    mesh = mesh_of(AUTO)
    step = pytc.compile(lambda x: x + 1)
    for spec in (P("a"), P(None, "a"), P("b"), P("a", "b"), P(None, "b")):
        kept = kept_shards(step, jax.device_put(jnp.zeros((8, 8)), jax.NamedSharding(mesh, spec)))
        assert [float(shard[0, 0]) for shard in kept] == [5, 9], spec


def ask_for_a_shard(x):
    x.addressable_data(0)


@pytest.mark.parametrize("ask", [jax.device_get, str, ask_for_a_shard])
@pytest.mark.parametrize("spec", [P(), P("a"), P("a", "b")], ids=str)
def test_what_an_array_keeps_for_itself_when_asked_for_its_value(spec, ask):
    step = pytc.compile(lambda x: x + 1)

    def loop(x):
        for _ in range(6):
            x = step(x)
            ask(x)
        return x

    loop(jax.device_put(jnp.zeros((8, 8)), jax.NamedSharding(mesh_of(AUTO), spec)))
    (site,) = pytc.explain(step).sites
    assert (site.donated, site.copied_calls) == (1, 0)


@pytest.mark.parametrize("spec", [P(), P("a"), P("a", "b")], ids=str)
def test_two_states_are_looked_at_with_care_at_first_alone(monkeypatch, spec):
    """To look at all arrays makes the shards of the other state, which that keeps for itself."""
    careful = []
    remember = proof.remember
    monkeypatch.setattr(proof, "remember", lambda *args: (careful.append(1), remember(*args)))
    one, other = pytc.compile(lambda x: [v + 1 for v in x]), pytc.compile(lambda x: [v * 2 for v in x])
    place = jax.NamedSharding(mesh_of(AUTO), spec)

    def loop(x, y):
        kept = []
        for n in range(60):
            x = one(x)
            y = other(y)
            if n in (40, 50):
                kept.append(x[1].addressable_data(0))
        return x, y, kept

    x, _, kept = loop(*jax.device_put(([jnp.zeros((8, 8))] * 3, [jnp.ones((8, 8))] * 3), place))
    assert [float(shard[0, 0]) for shard in (*kept, x[1])] == [41, 51, 60]
    assert sum(site.copied_calls for step in (one, other) for site in pytc.explain(step).sites) <= 4
    assert len(careful) <= 20


def call_once(step, x):
    return step(x)


def test_shardings_that_do_not_match_share_no_memory():
    mesh = mesh_of(AUTO)
    whole, rows = jax.NamedSharding(mesh, P()), jax.NamedSharding(mesh, P("a"))
    options = {"in_shardings": whole, "out_shardings": rows}
    x = jnp.arange(64.0).reshape(8, 8)
    step = pytc.compile(lambda x: x * 2, donate="all", **options)
    got = call_once(step, jax.device_put(x, whole))
    assert got.sharding == rows
    np.testing.assert_array_equal(got, x * 2)
    told = pytc.explain(step, jax.device_put(x, whole))
    assert [each.verdict for each in told.inputs] == ["kept"]


def read_weakly(step):
    """What weak references to parts of the old arrays find after the calls."""
    x = jax.device_put(jnp.zeros(8), jax.NamedSharding(mesh_of(AUTO), P("a")))
    found = []
    for _ in range(6):
        x = step(x)
        part = weakref.ref(x.addressable_data(0))
        new = step(x)
        found.append(None if part() is None else part().tolist())
        x = new
    return found


def test_a_part_that_is_referred_to_weakly():
    def step(x):
        return x + 1

    expected = read_weakly(jax.jit(step))
    assert expected[0] == [1.0, 1.0]
    assert read_weakly(pytc.compile(step)) == expected


BASE = np.arange(8, dtype=np.float32)


def at(place):
    return lambda: jax.device_put(BASE, place() if callable(place) else place)


def half(which):
    return lambda: jax.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[4 * which :][:4]), ("i",)), P("i"))


PLACES = {
    "anywhere": lambda: jnp.asarray(BASE),
    "NumPy": lambda: BASE,
    "device 1": at(lambda: jax.devices()[1]),
    "device 2": at(lambda: jax.devices()[2]),
    "a mesh": at(half(0)),
    "another mesh": at(half(1)),
}


@pytest.mark.parametrize("where", [place for place in PLACES if place != "NumPy"])
@pytest.mark.parametrize("order", [1, -1])
def test_what_is_captured_goes_where_the_arguments_are(where, order):
    """As a constant does: at each call, whatever the calls before were given."""
    captured = PLACES[where]()
    ours, theirs = pytc.compile(lambda x: x * 2 + captured), jax.jit(lambda x: x * 2 + captured)
    for place in [*PLACES][::order] * 2:
        got, wanted = ours(PLACES[place]()), theirs(PLACES[place]())
        assert (got.sharding, got.committed) == (wanted.sharding, wanted.committed), place
        np.testing.assert_array_equal(got, wanted)


WEIGHTS = np.arange(32.0, dtype=np.float32).reshape(8, 4) / 7
ROWS = np.arange(16.0, dtype=np.float32).reshape(2, 8)
PUT = {
    "anywhere": jnp.asarray,
    "NumPy": lambda value: value,
    "device 1": lambda value: jax.device_put(value, jax.devices()[1]),
    "device 2": lambda value: jax.device_put(value, jax.devices()[2]),
    "a mesh": lambda value: jax.device_put(value, jax.NamedSharding(half(0)().mesh, P())),
}


@pytest.mark.parametrize("where", PUT)
@pytest.mark.parametrize("order", [1, -1])
def test_so_does_what_becomes_an_input(where, order):
    captured = PUT[where](WEIGHTS)
    ours, theirs = pytc.compile(lambda x: x @ captured), jax.jit(lambda x: x @ captured)
    for place in [*PUT][::order] * 2:
        got, wanted = ours(PUT[place](ROWS)), theirs(PUT[place](ROWS))
        assert (got.sharding, got.committed) == (wanted.sharding, wanted.committed), place
        np.testing.assert_array_equal(got, wanted)
    assert "is an input" in str(pytc.explain(ours, PUT["NumPy"](ROWS), passes=True))


def test_it_follows_the_default_device():
    captured, x = jnp.asarray(large(160, 2)), jnp.ones((4, 160))
    compiled = pytc.compile(lambda x: x @ captured)
    compiled(jax.device_put(x, jax.devices()[0]))
    with jax.default_device(jax.devices()[1]):
        compiled(x)
    with jax.transfer_guard("disallow"):
        assert compiled(x).devices() == {jax.devices()[0]}


@pytest.mark.parametrize(
    "captured",
    [lambda: jax.random.split(jax.random.key(0), 4), lambda: jnp.broadcast_to(jnp.asarray(2.0), (64, 64))],
    ids=["keys", "weak"],
)
def test_what_is_committed_and_of_another_type_than_numpy_has_commits_nothing(captured):
    captured = jax.device_put(captured(), jax.devices()[2])
    compiled, by_jit = (compiler(lambda i: captured[i]) for compiler in (pytc.compile, jax.jit))
    mine, wanted = compiled(jnp.asarray(1)), by_jit(jnp.asarray(1))
    assert (mine.committed, mine.devices(), mine.aval.weak_type) == (
        wanted.committed,
        wanted.devices(),
        wanted.aval.weak_type,
    )
    assert mine.dtype == wanted.dtype


def large(side, seed):
    return np.random.default_rng(seed).standard_normal((side, side)).astype(np.float32)


@pytest.mark.parametrize("where", ["NumPy", "device 1", "device 2"])
def test_a_copy_of_it_is_nowhere_else(where):
    weights = PUT[where](large(200, 0))
    before = {id(each) for each in jax.live_arrays()}
    compiled = pytc.compile(lambda x: jnp.tanh(x @ weights))
    x = PUT["device 2"](large(200, 1)[:4])
    for _ in range(3):
        x = compiled(x)
    new = {
        (each.unsafe_buffer_pointer(), *each.devices())
        for each in jax.live_arrays()
        if id(each) not in before and each.shape == weights.shape
    }
    if where != "NumPy":  # JAX keeps other objects of its own on its buffer
        new.discard((weights.unsafe_buffer_pointer(), *weights.devices()))
    assert [device for _, device in new] == [jax.devices()[2]]


@pytest.mark.parametrize(
    "fun",
    [lambda x, held: held @ x, lambda x, held: held[x[0].astype(int)], lambda x, held: (held, x + 1)],
    ids=["product", "lookup", "returned"],
)
@pytest.mark.parametrize("checks", [False, True])
def test_what_is_captured_in_the_host_s_memory_stays_there(fun, checks):
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    held = jax.device_put(np.arange(16.0, dtype=np.float32).reshape(4, 4), host)
    x = jax.device_put(np.arange(4.0, dtype=np.float32), host)
    with jax.enable_checks(checks):
        results = [jax.tree.leaves(compiler(lambda x: fun(x, held))(x)) for compiler in (pytc.compile, jax.jit)]
    for mine, by_jit in zip(*results, strict=True):
        assert (mine.sharding, jax.typeof(mine)) == (by_jit.sharding, jax.typeof(by_jit))
        np.testing.assert_array_equal(mine, by_jit)


def test_arguments_in_the_host_s_memory_are_explained():
    host = jax.sharding.SingleDeviceSharding(jax.devices()[1], memory_kind="pinned_host")
    (leaf,) = pytc.explain(lambda x: x * 2, jax.device_put(jnp.ones(8), host)).inputs
    assert leaf.verdict == "reused"
    assert leaf.target == "result"


def test_an_argument_of_another_platform_decides_where_the_rest_goes_though_it_is_handed_back(monkeypatch):
    default, other = jax.devices()[:2]  # a GPU and the CPU, say
    w = jax.device_put(jnp.ones(3), other)
    monkeypatch.setattr(jax, "devices", lambda *_: [default])
    monkeypatch.setattr(jax, "device_count", lambda *_: 1)
    for compiler in (jax.jit, pytc.compile):
        handed_back, n = compiler(lambda w, n: (w, n + 1))(w, jnp.int32(0))
        assert handed_back.devices() == n.devices() == {other}
        assert n.committed


def alike(fun, *args, **options):
    """The results and places of `jax.jit`, or its error."""

    def outcome(compiler):
        try:
            results = jax.tree.leaves(compiler(fun, **options)(*args))
        except (ValueError, TypeError) as error:
            return type(error)
        return [
            (x.sharding, x.committed, jax.typeof(x), [(s.devices(), np.asarray(s).tolist()) for s in shards_of(x)])
            for x in results
        ]

    wanted = outcome(jax.jit)
    assert outcome(pytc.compile) == wanted
    return wanted


@pytest.mark.parametrize("place", ["device 1", "a mesh"])
def test_an_argument_that_nothing_reads_is_not_where_the_others_are(place):
    for fun in (lambda x, y: x * 2 + BASE, lambda y, x: x * 2 + BASE):
        for args in ((BASE, PLACES[place]()), (PLACES[place](), BASE), (PLACES[place](), PLACES["device 2"]())):
            alike(fun, *args)


@pytest.mark.parametrize("spec", [P("a"), P(None, "a"), P(None, "b")])
def test_what_is_captured_is_cut_as_a_constant_is(spec):
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(8, 16)).astype(np.float32), rng.normal(size=(16, 8)).astype(np.float32)
    on_mesh = jax.NamedSharding(mesh_of(AUTO), spec)
    alike(lambda x: x @ weights, jax.device_put(rows, on_mesh))
    alike(lambda x: x @ weights, rows, in_shardings=on_mesh)


def test_a_captured_array_whose_type_says_where_it_is():
    mesh = mesh_of(EXPLICIT)
    batch = jax.device_put(jnp.arange(64.0).reshape(8, 8), jax.NamedSharding(mesh, P("a", None)))
    weights = jax.device_put(jnp.ones((8, 2)), jax.NamedSharding(mesh, P()))
    for fun in (lambda w: batch @ w, lambda w: batch[:, :2] + w, lambda w: batch[:, 0] * w[0, 0]):
        alike(fun, weights)


ON_MESH = {
    "nothing else": lambda p, k: (p, k * 2),
    "something on the mesh": lambda p, k: (p, jnp.zeros(4) + k.sum()),
}


@pytest.mark.parametrize("fun", ON_MESH.values(), ids=ON_MESH)
@pytest.mark.parametrize("kind", ["a device", AUTO, EXPLICIT], ids=str)
def test_an_argument_that_is_only_handed_back_says_where_the_rest_is_computed(fun, kind):
    place = jax.devices()[2] if kind == "a device" else jax.NamedSharding(mesh_of(kind), P("a"))
    (_, committed, *_), (_, too, *_) = alike(fun, jax.device_put(jnp.ones(4), place), jnp.arange(4.0))
    assert committed
    assert too


def test_arguments_on_different_devices_are_refused_though_one_is_only_handed_back():
    p, q = (jax.device_put(jnp.ones(3), device) for device in jax.devices()[1:3])
    assert alike(lambda p, q: (p, q * 2), p, q) is ValueError


CAPTURED = np.ones(3)


@pytest.mark.parametrize(
    "fun", [lambda p, kind, x: (p["w"] * 2, x + 1), lambda p, kind, x: (p["w"] * CAPTURED, x)], ids=["static", "passed"]
)
def test_arguments_that_do_not_fit_together_are_called_what_jax_calls_them(fun):
    p, x = {"b": jnp.ones(2), "w": jax.device_put(jnp.ones(3), jax.devices()[1])}, jnp.ones(3)
    x = jax.device_put(x, jax.devices()[2])
    with pytest.raises(ValueError, match=r"Got argument p\['w'\] of <lambda> .* and argument x of") as by_jax:
        jax.jit(fun, static_argnums=1)(p, "static", x)
    with pytest.raises(ValueError, match="Got argument") as raised:
        pytc.compile(fun)(p, "static", x)
    assert str(raised.value) == str(by_jax.value)


@pytest.mark.parametrize(
    "fun",
    [lambda *given, x: (given[1] * 2, x + 1), lambda *given, x: (given[1] * CAPTURED, x)],
    ids=["whole", "flat"],
)
def test_so_are_those_of_any_number(fun):
    p, x = (jax.device_put(jnp.ones(3), device) for device in jax.devices()[1:3])
    with pytest.raises(ValueError, match=r"Got argument given\[1\] of <lambda> .* and argument x of") as by_jax:
        jax.jit(fun)(jnp.ones(2), p, x=x)
    with pytest.raises(ValueError, match="Got argument") as raised:
        pytc.compile(fun)(jnp.ones(2), p, x=x)
    assert str(raised.value) == str(by_jax.value)


def test_at_a_place_that_was_called_before_an_abstract_mesh_is_refused_as_by_jax_jit():
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)

    def outcomes(compiler):
        double, state, found = compiler(lambda s: s * 2), jnp.ones((8, 8)), []
        for k in range(6):
            odd = jax.sharding.use_abstract_mesh(mesh.abstract_mesh) if k in (3, 4) else contextlib.nullcontext()
            with odd:
                try:
                    state = double(state)
                except (ValueError, RuntimeError) as error:
                    found.append((type(error), str(error)))
        return found, float(state.sum())

    wanted = outcomes(jax.jit)
    assert len(wanted[0]) == 2
    assert outcomes(pytc.compile) == wanted


class Model:
    def __call__(self, a, b):
        return a + b

    def step(self, a, b):
        return a + b


@pytest.mark.parametrize(
    "fun",
    [Model().step, functools.partial(Model.step, None), lambda a, b: (a + b, a)],
    ids=["method", "partial", "lambda"],
)
def test_functions_are_called_what_jax_calls_them(fun):
    a, b = (jax.device_put(jnp.ones(3), device) for device in jax.devices()[1:3])
    with pytest.raises(ValueError, match="Got argument") as raised:
        pytc.compile(fun)(a, b)
    named = str(raised.value)
    assert f" of {getattr(fun, '__qualname__', 'Model.step')} with" in named
    if not isinstance(fun, functools.partial):  # there `jax.jit` tells the address of the function
        with pytest.raises(ValueError, match="Got argument") as by_jax:
            jax.jit(fun)(a, b)
        assert named == str(by_jax.value)


def holder_of(array):
    def held():
        return array

    return held


def test_a_held_array_that_was_on_a_mesh_before():
    step, spread = pytc.compile(lambda x: x + 1), jax.NamedSharding(mesh_of(AUTO), P("a"))
    held = holder_of(jax.device_put(jax.device_put(jnp.arange(16.0), spread), jax.devices()[0]))
    for _ in range(3):
        np.testing.assert_array_equal(step(held()), jnp.arange(16.0) + 1)
    np.testing.assert_array_equal(held(), jnp.arange(16.0))


def test_types_of_what_is_yet_to_be_summed_and_of_what_came_of_that():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(EXPLICIT,))
    weights = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(mesh, P(reduced={"x"})))
    batch = jax.device_put(jnp.arange(64.0).reshape(8, 8), jax.NamedSharding(mesh, P("x", None)))
    grad = jax.grad(lambda w, b: ((b @ w) ** 2).mean())
    alike(lambda w: w * 2, weights)
    alike(grad, weights, batch)
    accumulate = lambda total, w, b: total + grad(w, b)  # noqa: E731
    alike(accumulate, jax.jit(grad)(weights, batch), weights, batch)


def test_a_layout_by_the_compiler_where_the_sharding_is_its_own_too():
    x = jax.device_put(jnp.arange(64.0).reshape(8, 8), jax.NamedSharding(mesh_of(AUTO), P("a")))
    step = lambda x: x + 1  # noqa: E731
    np.testing.assert_array_equal(
        pytc.compile(step, in_shardings=x.sharding, out_shardings=Format(Layout.AUTO))(x), x + 1
    )


@pytest.mark.parametrize("which", ["in_shardings", "a committed argument", "a constraint"])
def test_a_result_whose_sharding_is_asked_for_is_not_written_over_what_the_compiler_cuts(which):
    """Its parts may be of another size then, which XLA refuses as an internal error; plain donation does, too."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AUTO,))
    cut, whole = jax.NamedSharding(mesh, P("a")), jax.NamedSharding(mesh, P())
    options = {"out_shardings": whole, **({"in_shardings": (None, cut)} if which == "in_shardings" else {})}
    batch = jax.device_put(jnp.ones((8, 4)), cut) if which == "a committed argument" else jnp.ones((8, 4))

    def step(stats, batch):
        if which == "a constraint":
            batch = jax.lax.with_sharding_constraint(batch, cut)
        return 0.9 * stats + 0.1 * batch

    compiled = pytc.compile(step, **options)
    expected = jax.jit(step, **options)(jnp.zeros((8, 4)), batch)
    got = compiled(jnp.zeros((8, 4)), batch)
    np.testing.assert_array_equal(got, expected)
    assert got.sharding == expected.sharding
    assert "kept" in str(pytc.explain(compiled, jnp.zeros((8, 4)), batch))


@pytest.mark.parametrize("arguments", [(8, 8), (8, ())], ids=str)
def test_shardings_that_do_not_fit_are_refused_in_the_words_of_jax(arguments):
    """Of a scalar, that of a vector."""
    cut = jax.NamedSharding(jax.make_mesh((8,), ("a",), axis_types=(AUTO,)), P("a"))

    def step(x, y):
        return x + y, (x * y).sum()

    for compiler in (jax.jit, pytc.compile):
        with pytest.raises(ValueError, match="with pytree key path"):
            compiler(step, in_shardings=(cut, cut), out_shardings=cut)(*map(jnp.ones, arguments))


def repeat(step, x):
    for _ in range(4):
        x, y = step(x, x)
    return x, y


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT], ids=str)
def test_one_array_that_is_asked_for_in_two_places(kind):
    """It is passed twice, so none of the two is written over while the other is read."""
    mesh = mesh_of(kind)
    split, whole = jax.NamedSharding(mesh, P("a")), jax.NamedSharding(mesh, P())

    def both(x, y):
        return x + 1, y + 2

    for asked in [(split, whole), (None, whole), (whole, None)]:
        x = jnp.arange(8.0)
        got, wanted = (wrap(both, in_shardings=asked)(x, x) for wrap in (pytc.compile, jax.jit))
        assert [v.sharding for v in got] == [v.sharding for v in wanted]
    for asked in [(None, whole), (whole, None)]:
        got = repeat(pytc.compile(both, in_shardings=asked), jax.device_put(x, whole))
        for ours, theirs in zip(got, repeat(jax.jit(both, in_shardings=asked), jax.device_put(x, whole)), strict=True):
            np.testing.assert_array_equal(ours, theirs)


COMPILED = []
monitoring.register_event_duration_secs_listener(
    lambda name, _, **__: COMPILED.append(name) if name.endswith("backend_compile_duration") else None
)


def placed(kind, spec, **how):
    return lambda array: jax.device_put(array, jax.NamedSharding(mesh_of(kind), spec, **how))


STARTS = {
    "on one device": (AUTO, jnp.asarray),
    "whole on each device": (AUTO, placed(AUTO, P())),
    "of another type": (EXPLICIT, placed(EXPLICIT, P())),
    "in the host's memory": (AUTO, placed(AUTO, P("a"), memory_kind="pinned_host")),
}


@pytest.mark.parametrize("start", STARTS)
def test_a_state_that_begins_elsewhere_than_it_comes_back(start, monkeypatch):
    """As what `optimizer.init` makes, in a training that is started time and again: compiled for both places once, and
    once more each as the plan changes, by the fifth time that the state is held; and nothing else is copied."""
    kind, begin = STARTS[start]
    weights, momentum = placed(kind, P("a"))(jnp.ones((64, 8))), begin(jnp.ones((64, 8)))

    def update(weights, momentum, batch):
        momentum = 0.9 * jax.device_put(momentum, jax.memory.Space.Device) + batch * weights
        return weights - 0.1 * momentum, momentum

    def train(step, weights, momentum, batch):
        for _ in range(5):
            weights, momentum = step(weights, momentum, batch)
        return weights

    copied, by_training = [], []
    copies = decide.private_copies
    monkeypatch.setattr(
        decide, "private_copies", lambda arrays: copied.extend(a.sharding for a in arrays) or copies(arrays)
    )
    batch, step = weights * 2, pytc.compile(update)
    wanted = train(jax.jit(update), weights, momentum, batch)
    for _ in range(8):
        COMPILED.clear()
        copied.clear()
        np.testing.assert_array_equal(train(step, weights, momentum, batch), wanted)
        by_training.append((len(COMPILED), len(copied)))
    assert sum(compilations for compilations, _ in by_training) <= 4
    assert [compilations for compilations, _ in by_training[5:]] == [0] * 3
    assert max(copies for _, copies in by_training[2:]) <= 2


@pytest.mark.parametrize("pass_on", [lambda x: x, pytc.move], ids=["passed", "moved"])
def test_what_jax_refuses_is_refused_by_jax(pass_on):
    """An array that still has the type that it had on a mesh of explicit axes."""

    def refused_by(step, pass_on):
        spread = jax.device_put(jnp.ones(4), jax.NamedSharding(mesh_of(EXPLICIT), P()))
        x = jax.device_put(spread, jax.devices()[0])
        try:
            step(pass_on(x))
        except ValueError as error:
            return str(error)

    wanted = refused_by(jax.jit(lambda x: x + 1), lambda x: x)
    for _ in range(2):
        assert refused_by(pytc.compile(lambda x: x + 1), pass_on) == wanted


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("where", ["one device", "a mesh"])
def test_static_leaves_do_not_change_where_results_are(where, structured):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[3])
    place = device if where == "one device" else jax.NamedSharding(mesh_of(AUTO), P("a"))
    asked = {"in_shardings": (place, None), "out_shardings": {"a": place, "name": None, "b": [place, place]}}
    if not structured:
        asked = {"out_shardings": place}
    f = pytc.compile(lambda x, name: {"a": x * 2, "name": name, "b": [x + 1, x]}, **asked)
    x = jnp.arange(16.0)

    def check(result, name="n"):
        assert result["name"] == name
        assert [leaf.sharding for leaf in (result["a"], *result["b"])] == [place] * 3
        np.testing.assert_array_equal(result["a"], x * 2)

    check(f(x, "n"))
    check(f.lower(x, "n").compile()(x, "n"))
    check(f.trace(x, "n").lower().compile()(x, "n"))
    with jax.debug_nans(True):
        check(f(x, "n"))
        check(f(x, "m"), "m")
    shapes = f.eval_shape(x, "n")
    assert (shapes["name"], shapes["a"].sharding, shapes["b"][0].sharding) == ("n", place, place)
    for transform in (jax.jit, lambda g: lambda x: jax.vmap(g)(x[None]), lambda g: jax.grad(lambda x: g(x).sum())):
        assert transform(lambda x: f(x, "n")["a"])(x).sharding.device_set == place.device_set


def test_a_call_that_failed_on_one_device_may_have_deleted_its_argument():
    step = pytc.compile(lambda x: x + 1)
    x = jax.device_put(jnp.ones(16), jax.NamedSharding(mesh_of(AUTO), P("a")))
    step(x)
    x.delete()
    with pytest.raises(RuntimeError, match=r"`x` was deleted before this call \(.*\), or by this one"):
        step(x)


def with_a_dead_read(y, z):
    y.sum()
    return y, z + 1


@pytest.mark.parametrize(
    "function",
    [
        lambda y, z: (with_a_dead_read(y, z)[0], jnp.zeros(3)),
        lambda y, z: jax.lax.scan(lambda c, _: (c, jnp.zeros(2)), y, None, length=2),
        lambda y, z: (jax.lax.cond(True, lambda y: y, lambda y: y, y), jnp.zeros(3)),
        lambda y, z: jax.lax.while_loop(lambda s: s[1] < 2, lambda s: (s[0], s[1] + 1), (y, 0)),
    ],
    ids=["a dead read", "a loop's carry", "branches", "another loop's carry"],
)
def test_what_is_handed_back_places_the_rest(function):
    y, z = jax.device_put(jnp.ones(2), jax.devices()[1]), jnp.ones(2)
    got, wanted = pytc.compile(function)(y, z)[1], jax.jit(function)(y, z)[1]
    assert (got.devices(), got.committed) == (wanted.devices(), wanted.committed)


def test_what_is_handed_back_must_be_where_the_rest_is():
    y, z = (jax.device_put(jnp.ones(2), device) for device in jax.devices()[:2])
    with pytest.raises(ValueError, match="incompatible devices"):
        pytc.compile(with_a_dead_read)(y, z)


def test_shards_are_copied_as_they_lie():
    """As of an array that no process sees whole. JAX 0.10 reads a copy made without a layout in another order."""
    asked = Format(Layout((1, 0)), jax.NamedSharding(jax.make_mesh((4,), ("i",)), P("i")))
    array = jax.device_put(np.arange(96.0, dtype=np.float32).reshape(8, 12), asked)
    copy = _copy_of_shards(array)
    assert copy.format == array.format
    np.testing.assert_array_equal(jax.jit(lambda x: x + 1, in_shardings=asked)(copy), np.asarray(array) + 1)


def test_a_program_of_another_device_is_explained_for_a_device_by_name():
    """What is captured, or committed nowhere, runs where the rest does."""
    x = jnp.ones((8, 8))
    far = jax.device_put(x, jax.devices()[2])
    for fun, args in ((lambda a: a @ x + 1, (far,)), (lambda a, b: a + b, (far, x)), (lambda a: a * 2, (far,))):
        here, named = pytc.explain(fun, *args), pytc.explain(fun, *args, device="cpu")
        assert named.memory.program.total == here.memory.program.total


@pytest.mark.filterwarnings("error")
def test_a_state_that_is_spread_otherwise_than_before_is_no_warning_of_a_donation():
    """`jax.jit` lowers once more for it, and its parts are of another size than those that are asked for."""
    mesh = mesh_of(AUTO)
    step = pytc.compile(lambda x: x + 1, out_shardings=jax.NamedSharding(mesh, P("b")))
    for spec in (P(None, "b"), P(None, "a"), P("b"), P("a"), P()):
        x = jax.device_put(jnp.ones((16, 16)), jax.NamedSharding(mesh, spec))
        x = step(x)
        np.testing.assert_array_equal(x, np.full((16, 16), 2))


def crossed(where):
    """Each result is written over the other argument's place in the order of arguments. What both have in common, the
    product, is cut as the one asks that XLA comes across first."""

    def step(a, b):
        product = a @ b
        results = b + product, a + product
        return results if where is None else tuple(map(jax.lax.with_sharding_constraint, results, where))

    return step


@pytest.mark.parametrize("inside", [False, True], ids=["asked for", "constrained inside"])
@pytest.mark.parametrize(
    ("given", "made"),
    [
        ((P("a"), P("b")), (P("a"), P(None, "b"))),
        ((P("b"), P("b")), (P("b"), P(None, "b"))),
        ((P("a", "b"), P()), (P(None, "a"), P(None, "b"))),
        ((P("a", "b"), P("b")), (P(None, "a"), P())),
        ((P("a", "b"), P("a", "b")), (P("a", "b"), P("b", "a"))),
    ],
    ids=str,
)
def test_what_results_have_in_common_is_cut_as_under_jax_jit(given, made, inside):
    mesh = mesh_of(AUTO)
    made = tuple(jax.NamedSharding(mesh, spec) for spec in made)
    a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float32)

    def arguments():
        return [jax.device_put(x, jax.NamedSharding(mesh, spec)) for x, spec in zip((a, b), given, strict=True)]

    step, options = crossed(made if inside else None), {} if inside else {"out_shardings": made}
    expected = jax.jit(step, **options)(*arguments())
    got = pytc.compile(step, donate="all", **options)(*arguments())
    assert [x.sharding for x in got] == [x.sharding for x in expected]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one).view(np.int32), np.asarray(other).view(np.int32))


def test_the_first_results_are_written_over_arguments_where_their_order_is_kept():
    """As by hand: JAX is told which arguments, and gives each to the first result of its type that is left."""
    rows = jax.NamedSharding(mesh_of(AUTO), P("a"))
    step, options = lambda a, b: (a @ b, a + 1, b * 2), {"out_shardings": (rows, rows, rows)}
    a, b = (jax.device_put(jnp.arange(64.0).reshape(8, 8) + k, rows) for k in range(2))
    expected = jax.jit(step, **options)(a, b)
    got = pytc.compile(step, donate="all", **options)(a, b)
    assert a.is_deleted()
    assert b.is_deleted()
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
