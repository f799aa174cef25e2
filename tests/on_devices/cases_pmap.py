"""`pytc.pmap` against `jax.pmap` with everything written by hand."""

import pickle

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import pytc
from pytc.jax_compat.arrays import shards_of
from tests.on_devices import devices  # noqa: F401 - sets up

ROWS = jnp.arange(32.0).reshape(8, 4)
P = jax.P


def pointers(array):
    return [shard.unsafe_buffer_pointer() for shard in shards_of(array)]


def same(got, wanted):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (one.shape, one.dtype, one.weak_type) == (other.shape, other.dtype, other.weak_type)
        assert one.sharding == other.sharding
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def step(params, batch):
    loss, grads = jax.value_and_grad(lambda p: jnp.sum((batch @ p["w"] + p["b"]) ** 2))(params)
    grads = jax.lax.pmean(grads, "batch")
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), loss, jax.lax.pmean(loss, "batch")


def start():
    return {"w": jnp.linspace(-1, 1, 12).reshape(4, 3), "b": jnp.ones(3)}


def test_what_does_not_vary_comes_back_once():
    got = pytc.pmap(step, "batch", in_axes=(None, 0))(start(), ROWS)
    same(got, jax.pmap(step, "batch", in_axes=(None, 0), out_axes=(None, 0, None))(start(), ROWS))
    assert [x.shape for x in jax.tree.leaves(got)] == [(3,), (4, 3), (8,), ()]


def train(mapped, places):
    params = start()
    for _ in range(6):
        params, loss, mean = mapped(params, ROWS)
        places.append((pointers(params["w"]), pointers(params["b"])))
    return params, loss, mean


def test_parameters_are_updated_where_they_are():
    places = []
    mapped = pytc.pmap(step, "batch", in_axes={"params": None}, donate={"batch": "none"})
    got = train(mapped, places)
    wanted = jax.pmap(step, "batch", in_axes=(None, 0), out_axes=(None, 0, None), donate_argnums=0)
    same(got, train(wanted, []))
    assert all(place == places[0] for place in places)
    copied = sum(site.copied_calls for site in mapped.explain().sites)
    assert copied == 0


class Trainer:
    """An attribute has a state with an optimiser in it, which lives on when the state dies."""

    def __init__(self, mapped):
        self.mapped = mapped
        state = TrainState.create(apply_fn=None, params=start(), tx=optax.sgd(1e-3))
        self.state = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 8), state)

    def train(self):
        places = []
        for _ in range(6):
            self.state, _ = self.mapped(self.state, ROWS)
            places.append(pointers(self.state.params["w"]))
        return places


def apply_gradients(state, batch):
    grads = jax.tree.map(lambda p: p * jax.lax.pmean(batch.sum(), "batch"), state.params)
    return state.replace(params=jax.tree.map(lambda p, g: p - 1e-3 * g, state.params, grads)), batch.sum()


def test_a_state_with_an_optimiser_in_an_attribute_is_updated_where_it_is():
    trainer = Trainer(pytc.pmap(apply_gradients, "batch"))
    places = trainer.train()
    assert all(place == places[1] for place in places[1:])
    wanted = Trainer(jax.pmap(apply_gradients, "batch", donate_argnums=0))
    wanted.train()
    same(trainer.state.params, wanted.state.params)


def heavy(params, batch):
    """The two take each other's place, so how they are paired is worth a look."""
    mean = jax.lax.pmean(batch.sum(), "batch")
    return {"a": params["b"] * mean, "b": params["a"] + mean}, batch + 1


def exchange(mapped):
    params = {"a": jnp.ones((64, 64)), "b": jnp.zeros((64, 64))}
    for _ in range(3):
        params, batch = mapped(params, ROWS)
    return params, batch


def test_high_effort_changes_no_result_and_takes_no_more():
    low, high = (pytc.pmap(heavy, "batch", in_axes=(None, 0), effort=effort) for effort in ("default", "high"))
    same(exchange(high), exchange(low))
    params = {"a": jnp.ones((64, 64)), "b": jnp.zeros((64, 64))}
    told = high.explain(params, ROWS)
    assert len(told.plans) > 1
    assert told.memory.program.total <= low.explain(params, ROWS).memory.program.total
    with pytest.raises(ValueError, match="effort is 'most'; it can be 'default' or 'high'"):
        pytc.pmap(heavy, "batch", effort="most")


def keep_each(mapped):
    params, kept = start(), []
    for _ in range(4):
        kept.append(params)
        params, _, _ = mapped(params, ROWS)
    return kept, params


def test_what_is_held_is_kept():
    got = keep_each(pytc.pmap(step, "batch", in_axes=(None, 0)))
    same(got[1:], keep_each(jax.pmap(step, "batch", in_axes=(None, 0), out_axes=(None, 0, None)))[1:])
    same(got[0][1:], keep_each(jax.pmap(step, "batch", in_axes=(None, 0), out_axes=(None, 0, None)))[0][1:])


def share_a_shard():
    mapped = pytc.pmap(lambda x: x - 1, "i", in_axes=None, axis_size=8)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    one = jax.device_put(jnp.arange(5.0) + 0, jax.devices()[0])
    everywhere = jax.device_put(one, jax.NamedSharding(mesh, P()))
    for _ in range(3):
        everywhere = mapped(everywhere)
    shard = everywhere.addressable_data(3)
    before = np.array(shard)
    everywhere = mapped(everywhere)
    return one, before, shard, everywhere


def test_a_shared_shard_is_kept():
    one, before, shard, everywhere = share_a_shard()
    np.testing.assert_array_equal(one, np.arange(5.0))
    np.testing.assert_array_equal(before, shard)
    np.testing.assert_array_equal(everywhere, np.arange(5.0) - 4)


def ensemble(mapped, models):
    for _ in range(3):
        models = mapped(models)
    return models


def test_ensembles():
    make = pytc.pmap(lambda key: eqx.nn.MLP(2, 3, 4, 1, activation=jax.nn.gelu, key=key), "member")
    models = make(jax.random.split(jax.random.key(0), 8))
    assert models.layers[0].weight.shape == (8, 4, 2)
    assert isinstance(models, eqx.nn.MLP)
    assert models.in_size == 2
    again = pytc.pmap(lambda m: jax.tree.map(lambda x: x * 2 if eqx.is_array(x) else x, m), "member")
    doubled = ensemble(again, models)
    np.testing.assert_array_equal(
        doubled.layers[0].weight, make(jax.random.split(jax.random.key(0), 8)).layers[0].weight * 8
    )
    out = pytc.pmap(lambda m, x: m(x), "member", in_axes=(0, None))(doubled, jnp.ones(2))
    assert out.shape == (8, 3)


@pytest.mark.parametrize(
    "in_axes",
    [
        (0, None, 1),
        {"y": None, "z": 1},
        (0, None, {"a": 1}),
        (pytc.if_array(0), None, 1),
        lambda leaf: {(8, 4): 0, (4, 8): 1}.get(leaf.shape),
        (0, None, -1),
    ],
    ids=str,
)
def test_ways_to_write_in_axes(in_axes):
    def f(x, y, z):
        return x + y, jax.lax.psum(z["a"], "i") * y, jax.lax.all_gather(x, "i")

    args = (ROWS, jnp.ones(4), {"a": ROWS.T})
    wanted = jax.pmap(f, "i", in_axes=(0, None, 1), out_axes=(0, None, None))(*args)
    same(pytc.pmap(f, "i", in_axes=in_axes)(*args), wanted)


def test_without_a_name_as_a_bare_decorator_and_as_one_with_arguments():
    @pytc.pmap
    def double(x):
        return x * 2

    @pytc.pmap(in_axes=1)
    def columns(x):
        return x * 2

    same(double(ROWS), jax.pmap(lambda x: x * 2)(ROWS))
    same(columns(ROWS.T), jax.pmap(lambda x: x * 2, in_axes=1)(ROWS.T))
    with pytest.raises(ValueError, match=r"^the mapped axis has 9 rows \(`x`\), and there are 8 devices"):
        double(jnp.ones(9))
    assert "varies over the mapped axis" in str(double.explain(ROWS))


def test_more_and_fewer_rows_than_before():
    def f(x, w):
        return x @ w, jax.lax.psum(x, "i")

    mapped, wanted = pytc.pmap(f, "i", in_axes=(0, None)), jax.pmap(f, "i", in_axes=(0, None), out_axes=(0, None))
    w = jnp.eye(4)
    for number in (8, 4, 8, 1, 5, 4, 7):
        same(mapped(ROWS[:number], w), wanted(ROWS[:number], w))
    with pytest.raises(ValueError, match=r"axis 'i' has 9 rows \(`x`\), and there are 8 devices"):
        mapped(jnp.ones((9, 4)), w)
    added = pytc.pmap(lambda x, y: x + y, "i")
    added(ROWS, ROWS)
    with pytest.raises(ValueError, match=r"8 rows in `x` \(axis 0\); 3 rows in `y` \(axis 0\)"):
        added(ROWS, ROWS[:3])


def test_in_axes_of_starred_parameters():
    def f(*xs, **named):
        return xs[0] + xs[1] + named["u"] + named["v"]

    got = pytc.pmap(f, "i", in_axes={"xs": None, "xs[0]": 0, "v": None})(ROWS, jnp.ones(4), u=ROWS, v=jnp.ones(4))
    same(got, jax.pmap(lambda a, b, c: a + b + c + b, "i", in_axes=(0, None, 0))(ROWS, jnp.ones(4), ROWS))


def test_keywords_static_leaves_and_outputs_that_are_no_arrays():
    def f(x, kind, *, scale, n=2):
        return {"x": getattr(jnp, kind)(x) * scale, "kind": kind, "n": n, "s": jax.lax.pmax(x, "i"), "none": None}

    got = pytc.pmap(f, "i", in_axes={"scale": None})(ROWS, "sin", scale=2.0)
    assert (got["kind"], got["n"], got["none"]) == ("sin", 2, None)
    assert got["s"].shape == (4,)
    np.testing.assert_allclose(got["x"], jnp.sin(ROWS) * 2.0, rtol=1e-6)
    assert pytc.pmap(lambda x, flag: x if flag else -x, "i")(ROWS, True)[1, 1] == 5


def test_in_axes_that_are_no_prefix():
    mapped = pytc.pmap(lambda state, batch: (state["w"] + batch, state["b"]), "i", in_axes=({"w": {"x": 0}, "b": 0}, 0))
    with pytest.raises(ValueError, match=r"in_axes of `state` must be .*: a dict for a leaf at `state\['w'\]`\."):
        mapped({"w": ROWS, "b": ROWS}, ROWS)
    with pytest.raises(ValueError, match=r"in_axes of `state` must be .*: different keys of dict at `state`\."):
        mapped({"w": {"x": ROWS}, "c": ROWS}, ROWS)


def test_out_axes_given():
    def f(x):
        return x, jax.lax.psum(x, "i"), "text"

    got = pytc.pmap(f, "i", out_axes=(1, 0, 0))(ROWS)
    wanted = jax.pmap(lambda x: f(x)[:2], "i", out_axes=(1, 0))(ROWS)
    same(got[:2], wanted)
    assert got[2] == "text"
    got = pytc.pmap(f, "i", out_axes=("auto", None, pytc.if_array(0)))(ROWS)
    assert [got[0].shape, got[1].shape] == [(8, 4), (4,)]


def test_errors_name_leaf_axis_and_sizes():
    f = pytc.pmap(lambda x, y: x["a"] + y, "i")
    with pytest.raises(ValueError, match=r"(?s)'i'.*8 rows in `x\['a'\]` \(axis 0\); 4 rows in `y` \(axis 0\)"):
        f({"a": ROWS}, ROWS[:4])
    with pytest.raises(ValueError, match=r"axis 'i' has 9 rows \(`x\['a'\]`\), and there are 8 devices"):
        f({"a": jnp.ones((9, 4))}, jnp.ones((9, 4)))
    with pytest.raises(ValueError, match=r"`y` has no axis 0 to map: its shape is \(\)"):
        f({"a": ROWS}, jnp.ones(()))
    with pytest.raises(ValueError, match=r"(?s)result\['w'\]: made of `x`, which is mapped on axis 0"):
        pytc.pmap(lambda x: {"w": x + jax.lax.psum(x, "i")}, "i", out_axes=None)(ROWS)
    with pytest.raises(ValueError, match=r"(?s)result: made by something that is not the same on every row"):
        pytc.pmap(lambda x: jax.lax.axis_index("i"), "i", out_axes=None)(ROWS)
    with pytest.raises(ValueError, match="no leaf is mapped over axis 'i'"):
        pytc.pmap(lambda x: x, "i", in_axes=None)(ROWS)
    with pytest.raises(ValueError, match=r"axis_size is 4, and `x` \(axis 0\) has 8 rows"):
        pytc.pmap(lambda x: x, "i", axis_size=4)(ROWS)
    with pytest.raises(ValueError, match="names 'z', which is not a parameter"):
        pytc.pmap(lambda x: x, "i", in_axes={"z": 0})(ROWS)
    with pytest.raises(ValueError, match="in_axes has length 2, but the function takes 1 positional"):
        pytc.pmap(lambda x: x, "i", in_axes=(0, 0))(ROWS)
    with pytest.raises(ValueError, match=r"axis 'i' has no rows \(`x`\)"):
        pytc.pmap(lambda x: x, "i")(ROWS[:0])
    with pytest.raises(ValueError, match="axis_size is -1, and an axis has one row at least"):
        pytc.pmap(lambda: 1, "i", axis_size=-1)
    with pytest.raises(TypeError, match="axis_size is 'i'; it can be an integer, the number of rows"):
        pytc.pmap(lambda: 1, axis_size="i")
    with pytest.raises(ValueError, match="devices is empty"):
        pytc.pmap(lambda x: x, "i", devices=[])
    for wrong in (5, "cpu", jax.devices()[0]):
        with pytest.raises(TypeError, match=r"devices is .*; it can be a sequence of devices"):
            pytc.pmap(lambda x: x, "i", devices=wrong)
    np.testing.assert_array_equal(pytc.pmap(lambda x: x, "i", devices=np.array(jax.devices()))(ROWS), ROWS)
    with pytest.raises(TypeError, match=r"axis_name is \[\]; it can be a string"):
        pytc.pmap(lambda x: x, [])
    with pytest.raises(TypeError, match="in_axes of `x` is 'zero'"):
        pytc.pmap(lambda x: x, "i", in_axes="zero")(ROWS)
    with pytest.raises(ValueError, match=r"out_axes of `result` is 3, and it has 2 axes once"):
        pytc.pmap(lambda x: x, "i", out_axes=3)(ROWS)


def test_refs_are_refused_where_they_come_in():
    ref = jax.new_ref(jnp.zeros(4))
    for captures in (lambda x: x + ref[...], lambda x: jax.jit(lambda: x + ref[...])()):
        with pytest.raises(TypeError, match=r"is mapped and captured a jax.Ref \(f32\[4\]\)"):
            pytc.pmap(captures, "i")(ROWS)
    for in_axes in (0, None):
        with pytest.raises(TypeError, match=r"`r` is a jax.Ref, which cannot be mapped: pass what it holds"):
            pytc.pmap(lambda x, r: x + r[...], "i", in_axes=(0, in_axes))(ROWS, ref)


def test_arrays_of_one_object_mapped_in_two_ways():
    def f(x, whole):
        return x + whole[jax.lax.axis_index("i")], jax.lax.psum(x, "i")

    wanted = jax.pmap(f, "i", in_axes=(0, None), out_axes=(0, None))(ROWS, ROWS)
    x = ROWS + 0
    for donate in ("auto", "none"):
        same(pytc.pmap(f, "i", in_axes=(0, None), donate=donate)(x, x), wanted)


def call_alone(mapped):
    return mapped(ROWS + 1, jnp.full((8, 4), 2.0))


def test_an_unmapped_array_is_not_written_over_by_a_stacked_one():
    # Both are f32[8,4], but every device holds all of one and a row of the other.
    def f(x, whole):
        return x * whole[0]

    got = call_alone(pytc.pmap(f, "i", in_axes=(0, None), donate="all"))
    same(got, call_alone(jax.pmap(f, "i", in_axes=(0, None))))


def test_inside_transformations():
    def f(p, x):
        return jax.lax.pmean(jnp.sum(p * x), "i"), x * p

    ours, theirs = pytc.pmap(f, "i", in_axes=(None, 0)), jax.pmap(f, "i", in_axes=(None, 0), out_axes=(None, 0))
    p = jnp.ones(4)
    for transform in (
        lambda g: jax.grad(lambda p: g(p, ROWS)[0]),
        lambda g: jax.jit(lambda p: g(p, ROWS)),
        lambda g: jax.vmap(lambda p: g(p, ROWS)),
    ):
        given = jnp.stack([p, p]) if transform(ours).__name__ == "vmap" else p
        jax.tree.map(np.testing.assert_array_equal, transform(ours)(given), transform(theirs)(given))
    with jax.debug_nans(True):
        same(ours(p, ROWS), theirs(p, ROWS))
    with jax.disable_jit():
        jax.tree.map(np.testing.assert_allclose, ours(p, ROWS), theirs(p, ROWS))
    assert jax.tree.map(lambda x: x.shape, ours.eval_shape(p, ROWS)) == ((), (8, 4))
    assert "all-reduce" in ours.lower(p, ROWS).compile().as_text()


@pytest.mark.parametrize("way", [lambda f: f.lower, lambda f: lambda *args, **kwargs: f.trace(*args, **kwargs).lower()])
def test_what_is_compiled_ahead_of_time_is_called_without_the_static_arguments_that_options_name(way):
    """As under `jax.pmap`."""
    ours = pytc.pmap(lambda x, n: x * n, static_broadcasted_argnums=1)
    lowered = way(ours)(ROWS, 3)
    compiled = lowered.compile()
    assert isinstance(lowered, jax.stages.Lowered)
    assert isinstance(compiled, jax.stages.Compiled)
    same(compiled(ROWS), jax.pmap(lambda x, n: x * n, static_broadcasted_argnums=1).lower(ROWS, 3).compile()(ROWS))
    with pytest.raises(TypeError, match="called without the static arguments"):
        compiled(ROWS, 3)
    named = way(pytc.pmap(lambda x, *, n: x * n, static_argnames="n"))(ROWS, n=3).compile()
    same(named(ROWS), compiled(ROWS))
    with pytest.raises(TypeError, match=r"`n` is 4, and .* was compiled for 3"):
        named(ROWS, n=4)
    mixed = way(pytc.pmap(lambda n, x, mode: x * n if mode == "times" else x, static_argnums=0))(3, ROWS, "times")
    same(mixed.compile()(3, ROWS, "times"), compiled(ROWS))


@pytest.mark.parametrize(
    ("fun", "in_axes", "args", "kwargs", "told"),
    [
        (lambda d: d["x"] * d["y"], ({"x": 0, "y": None},), ({"x": ROWS, "y": 2.0},), {}, "({'x': 0, 'y': None},)"),
        (lambda d: d[0] * d[1], ((0, None),), ((ROWS, 2.0),), {}, "((0, None),)"),
        (lambda x, *, y: x * y, {"y": None}, (ROWS,), {"y": 2.0}, "..."),  # which `jax.pmap` maps over axis 0
    ],
    ids=["a dictionary", "a tuple", "by keyword alone"],
)
def test_the_call_that_comes_nearest_says_how_one_argument_is_mapped(fun, in_axes, args, kwargs, told):
    mapped = pytc.pmap(fun, "i", in_axes=in_axes)
    call = pytc.explain(mapped, *args, **kwargs).jit_call
    assert call == f"jax.pmap(fun, axis_name='i', in_axes={told}, donate_argnums=(0,))"
    if told != "...":
        same(mapped(*args, **kwargs), jax.pmap(fun, "i", in_axes=eval(told))(*args, **kwargs))


def test_a_map_inside_a_map():
    @pytc.pmap(axis_name="i")
    def outer(x):
        @pytc.pmap(axis_name="j")
        def inner(y):
            return y + jax.lax.psum(y, ("i", "j")), jax.lax.psum(y, "j"), jax.lax.axis_index("i")

        return inner(x)

    x = jnp.arange(8.0).reshape(2, 4)
    both, row, index = outer(x)
    np.testing.assert_array_equal(both, x + x.sum())
    np.testing.assert_array_equal(row, x.sum(1))
    np.testing.assert_array_equal(index, [0, 1])


def decay(params, batch):
    return jax.tree.map(lambda p: p * 0.9 + jax.lax.pmean(batch.sum(), "batch"), params), batch.sum()


def test_the_nearest_call_by_hand_is_one_of_jax_pmap():
    told = pytc.explain(pytc.pmap(decay, "batch", in_axes=(None, 0)), start(), ROWS)
    call = "jax.pmap(decay, axis_name='batch', in_axes=(None, 0), out_axes=(None, 0), donate_argnums=(0,))"
    assert told.jit_call == call
    assert f"nearest jax.pmap call\n  {call}\n" in str(told)
    assert "jax.jit" not in str(told) + told._repr_html_()
    same(eval(call)(start(), ROWS), jax.pmap(decay, "batch", in_axes=(None, 0), out_axes=(None, 0))(start(), ROWS))


def several(x, kind, y=1.0, *, scale):
    return {"a": x["a"] + getattr(jnp, kind)(y) * scale, "b": [jax.lax.psum(x["b"], "i"), 0 * scale]}


def test_the_nearest_call_of_arguments_mapped_in_several_ways():
    mapped = pytc.pmap(several, "i", in_axes={"x": {"a": 1, "b": None}, "y": None}, axis_size=8)
    x = {"a": ROWS.T, "b": jnp.ones(3)}
    call = mapped.explain(x, "sin", y=2.0, scale=jnp.ones(8)).jit_call
    assert call == (
        "jax.pmap(several, axis_name='i', in_axes=({'a': 1, 'b': None}, None, None), "
        "out_axes={'a': 0, 'b': [None, 0]}, axis_size=8, static_broadcasted_argnums=(1,))"
    )
    got, wanted = mapped(x, "sin", y=2.0, scale=jnp.ones(8)), eval(call)(x, "sin", 2.0, scale=jnp.ones(8))
    same(got, wanted)
    columns = pytc.pmap(lambda x: x * 2, in_axes=1, out_axes=1, devices=jax.devices()[:4])
    assert columns.explain(ROWS[:, :4]).jit_call == (
        "jax.pmap(fun, in_axes=1, out_axes=1, devices=..., donate_argnums=(0,))"
    )


def test_explain_says_what_varies():
    told = str(pytc.explain(pytc.pmap(step, "batch", in_axes=(None, 0)), start(), ROWS))
    assert "varies over axis 'batch'" in told
    assert "does not vary over axis 'batch': returned once" in told


def test_keys_captured_arrays_and_no_mapped_argument():
    captured = jnp.arange(100.0)

    def f(key):
        own = jax.random.fold_in(key, jax.lax.axis_index("i"))
        return jax.random.normal(own, (3,)), jax.random.normal(key, (3,)) + captured[:3]

    key = jax.random.key(1)
    each, same_for_all = pytc.pmap(f, "i", in_axes=None, devices=jax.devices()[:4])(key)
    assert (each.shape, same_for_all.shape) == ((4, 3), (3,))
    np.testing.assert_array_equal(same_for_all, jax.random.normal(key, (3,)) + captured[:3])


def test_a_tracer_that_has_escaped_is_refused():
    escaped = []
    jax.jit(escaped.append)(jnp.ones(3))
    for _ in range(2):
        with pytest.raises(TypeError, match="a tracer that escaped from another function"):
            pytc.pmap(lambda x: x + escaped[0], "rows")(jnp.zeros((2, 3)))


def test_a_copy_by_cloudpickle():
    mean = pytc.pmap(lambda x: jax.lax.pmean(x, "rows"), "rows", out_axes=None)
    copy = pickle.loads(cloudpickle.dumps(mean))
    same(copy(ROWS), mean(ROWS))
    assert copy.__pytc__ is not mean.__pytc__


def test_what_cannot_be_passed_as_two_says_so_as_under_jax():
    """One array whose rows are wanted along two axes: JAX does not move it."""
    x = pytc.pmap(lambda x: x + 1)(jnp.zeros((8, 8)))
    for wrap in (pytc.pmap, jax.pmap):
        with pytest.raises(ValueError, match="Sharding passed to jit does not match"):
            wrap(lambda x, y: (x + 1, y + 2), in_axes=(0, 1))(x, x)
