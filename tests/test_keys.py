"""PRNG keys as arguments and results: `jax.jit`'s to the bit and in kind, their bits reused where nobody has them."""

from __future__ import annotations

import collections
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

CAPTURED = jax.random.key(7)


def bits_and_kind(x):
    """All there is to see of an array or of keys."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return type(x), x.shape, x.dtype, str(jax.random.key_impl(x)), np.asarray(jax.random.key_data(x)).tolist()
    return type(x), x.shape, x.dtype, np.asarray(x).tolist()


def seen(tree):
    return jax.tree.map(bits_and_kind, tree)


FUNCTIONS = {
    "drawn from": lambda k: jax.vmap(jax.random.bits)(k.reshape(-1)),
    "turned round": lambda k: k[::-1] if k.ndim else jax.random.split(k)[1],
    "handed back": lambda k: (k, {"again": k}, jax.random.key_data(k) * 2),
    "made inside": lambda k: (jax.random.key(3), jax.random.key(3), k.shape[0] if k.ndim else 0),
    "captured": lambda k: (jax.random.fold_in(CAPTURED, 3), jax.random.key_data(k).sum()),
    "captured and returned": lambda k: (CAPTURED, jax.random.key_data(k).sum()),
    "taken apart": lambda k: (d := jax.random.key_data(k), jax.random.wrap_key_data(d, impl=jax.random.key_impl(k))),
    "copied": lambda k: (jax.random.key_data(k) + 1, jax.random.clone(k)),
    "carried": lambda k: jax.lax.scan(lambda c, _: (c[::-1] if c.ndim else jax.random.split(c)[0], c), k, None, 2),
}


KINDS = [("threefry2x32", ()), ("rbg", (2, 3)), ("threefry2x32", (0,))]


@pytest.mark.parametrize(("impl", "shape"), KINDS, ids=str)
@pytest.mark.parametrize("fun", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_as_under_jax_jit(fun, impl, shape):
    def keys():
        key = jax.random.key(0, impl=impl)
        return jax.random.split(key, shape) if shape else key

    compiled, expected = pytc.compile(fun), seen(jax.jit(fun)(keys()))
    for _ in range(3):
        assert seen(compiled(keys())) == expected
    held = keys()
    for _ in range(2):
        assert seen(compiled(held)) == expected
    assert seen(held) == seen(keys())


def two_on_the_same_bits():
    key = jax.random.key(1)
    return key, jax.random.wrap_key_data(jax.random.key_data(key))


def one_twice():
    key = jax.random.key(1)
    return key, key


def key_and_its_bits():
    key = jax.random.key(1)
    return key, jax.random.key_data(key)


@pytest.mark.parametrize("options", [{}, {"share": False}, {"donate": "all"}, {"effort": "high"}], ids=str)
@pytest.mark.parametrize("make", [two_on_the_same_bits, one_twice, key_and_its_bits], ids=lambda f: f.__name__)
def test_one_array_of_bits_in_two_arguments(make, options):
    """Were it donated twice, or read as the one after the other has been written, JAX would refuse the call."""

    def both(key, other):
        is_key = jnp.issubdtype(other.dtype, jax.dtypes.prng_key)
        return jax.random.split(key)[0], jax.random.split(other)[1] if is_key else other + 1

    compiled, expected = pytc.compile(both, **options), seen(jax.jit(both)(*make()))
    for _ in range(4):
        assert seen(compiled(*make())) == expected


def addresses(step, state, steps):
    """Where the bits and the weights are after each step."""
    for _ in range(steps):
        state = step(state)
        yield jax.tree.map(lambda x: x.unsafe_buffer_pointer(), state)


def walk(state):
    key, drawn = jax.random.split(state["key"])
    return {"key": key, "x": state["x"] + jax.random.normal(drawn, (100,))}


def begin():
    return {"key": jax.random.key(0), "x": jnp.zeros(100)}


def as_attribute(step):
    holder, places = types.SimpleNamespace(state=begin()), []
    for _ in range(5):
        holder.state = step(holder.state)
        places.append(jax.tree.map(lambda x: x.unsafe_buffer_pointer(), holder.state))
    return places


def where_a_handler_reads_it(step):
    state, places = begin(), []
    try:
        for _ in range(5):
            state = step(state)
            places.append(jax.tree.map(lambda x: x.unsafe_buffer_pointer(), state))
    except ZeroDivisionError:
        print(state)
    return places


@pytest.mark.parametrize("caller", [as_attribute, where_a_handler_reads_it], ids=lambda f: f.__name__)
def test_a_state_with_a_key_in_it_is_reused(caller):
    places = caller(pytc.compile(walk))
    assert len({tuple(place.values()) for place in places[1:]}) == 1


def test_keys_for_many_walkers_are_reused():
    step = pytc.compile(lambda keys: jax.vmap(lambda key: jax.random.split(key)[0])(keys))
    places = list(addresses(step, jax.random.split(jax.random.key(0), 1000), 4))
    assert len(set(places[1:])) == 1
    assert "reused as result" in str(pytc.explain(step, jax.random.split(jax.random.key(0), 1000)))


def bits_held(step):
    key, held = jax.random.key(0), []
    for _ in range(4):
        held.append(jax.random.key_data(key))
        key = step(key)
    return [bits.tolist() for bits in held]


def test_bits_that_somebody_has_are_kept():
    def step(key):
        return jax.random.split(key)[0]

    assert bits_held(pytc.compile(step)) == bits_held(jax.jit(step))


HELD = r"key: key<fry>\[\], 8 bytes: an item of `held`"  # in the function it would be a string that names the variable


def test_require_names_the_key_whose_bits_are_held():
    step = pytc.compile(lambda key: jax.random.split(key)[0], donate="require")
    key = jax.random.key(0)
    held = [jax.random.key_data(key)]
    with pytest.raises(pytc.DonationError, match=HELD):
        step(key)
    assert held[0].tolist() == [0, 0]


def test_another_context_stages_again_for_the_keys_themselves():
    """What the call has done to its list of leaves by then is undone."""
    step = pytc.compile(lambda key: (key, jax.random.normal(key)))
    _, narrow = step(jax.random.key(0))
    with jax.enable_x64(True):
        key, wide = step(jax.random.key(0))
    assert (narrow.dtype, wide.dtype) == (jnp.float32, jnp.float64)
    assert seen(key) == seen(jax.random.key(0))


def test_a_moved_key_that_is_handed_back_stays_usable():
    step = pytc.compile(lambda key, other: (jax.random.split(key)[0], other))
    key, other = jax.random.key(0), jax.random.key(4)
    _, back = step(pytc.move(key), pytc.move(other))
    assert key.is_deleted()
    assert seen(back) == seen(jax.random.key(4))


def test_reuse_of_keys_is_noticed_as_by_jax():
    draw = pytc.compile(jax.random.normal)
    with jax.debug_key_reuse(True):
        key = jax.random.key(0)
        draw(key)
        with pytest.raises(jax.errors.KeyReuseError, match="consumed"):
            draw(key)


def with_one_key(step, steps):
    state, key = {"x": jnp.zeros(100)}, jax.random.key(0)
    for _ in range(steps):
        state, drawn = step(state, key)
    return state, drawn, key


def test_a_step_that_is_handed_a_key_goes_straight_to_jax_jit():
    def step(state, key):
        own, one, other = jax.random.split(key, 3)
        return {"x": state["x"] + jax.random.normal(own, (100,))}, [one, {"inside": (other,)}]

    compiled = pytc.compile(step)
    assert seen(with_one_key(compiled, 6)) == seen(with_one_key(jax.jit(step), 6))
    ((direct,),) = compiled.__pytc__.directly.values()
    assert (direct.site.calls, direct.site.missed) == (6, 0)


class Walker(NamedTuple):
    x: jax.Array
    key: jax.Array


CONTAINERS = {
    "tuple": lambda x, key: (x, key),
    "named tuple": Walker,
    "list": lambda x, key: [x, key],
    "dict": lambda x, key: {"x": x, "key": key},
    "ordered": lambda x, key: collections.OrderedDict(key=key, x=x),
    "nested": lambda x, key: [{"x": x}, Walker(x * 2, (key,))],
    "key alone": lambda x, key: key,
}


def in_a_loop(step, make):
    """The states, as their classes and contents, in order."""
    state, found = make(jnp.zeros(9), jax.random.key(0)), []
    for _ in range(6):
        state = step(state)
        found.append((str(jax.tree.structure(state)), seen(state)))
    return found


def drawn_from(tree):
    """Every key split, every array increased."""

    def one(x):
        return jax.random.split(x)[0] if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x + 1

    return jax.tree.map(one, tree)


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_containers_of_keys_are_of_their_classes(make):
    compiled = pytc.compile(drawn_from)
    assert in_a_loop(compiled, make) == in_a_loop(jax.jit(drawn_from), make)
    assert str(jax.tree.structure(make(1, 2))) in {place for place, _ in in_a_loop(compiled, make)}


@pytest.mark.parametrize("name", [name for name in CONTAINERS if name != "ordered"])
def test_a_state_with_a_key_that_is_taken_over_goes_straight_to_jax_jit(name):
    compiled = pytc.compile(drawn_from)
    in_a_loop(compiled, CONTAINERS[name])
    ((direct,),) = compiled.__pytc__.directly.values()
    assert (direct.site.calls, direct.site.missed) == (6, 0)


def test_what_comes_in_the_place_of_a_key_goes_the_usual_way():
    """Bits as they are, which are other numbers to add to; a key of another kind with bits of the same shape."""

    def run(step):
        found, state = [], jax.random.key(0, impl="rbg")
        for i in range(12):
            if i == 4:
                state = jax.random.key_data(state) + 0
            if i == 8:
                state = jax.random.wrap_key_data(state, impl="unsafe_rbg")
            state = step(state)
            found.append(seen(state))
        return found

    assert run(pytc.compile(drawn_from)) == run(jax.jit(drawn_from))


def with_an_array_attached(step):
    """Where a walk has found the bits of other keys there is an array that nobody has, and somebody has the bits."""
    state, held = {"key": jax.random.key(0)}, []
    for i in range(9):
        if i > 4:
            held.append(jax.random.key_data(state["key"]))
            del state["key"]._consumed
            state["key"].attached = jax.random.key_data(step({"key": jax.random.key(1)})["key"])
        state = step(state)
    return seen(held), seen(state)


def test_what_is_attached_to_a_key_is_not_taken_for_its_bits():
    assert with_an_array_attached(pytc.compile(drawn_from)) == with_an_array_attached(jax.jit(drawn_from))


def with_one_held_later(step):
    one, other, held, key = jnp.zeros(100), jnp.ones(100), [], jax.random.key(0)
    for i in range(10):
        if i > 2:
            held.append(one)
        one, other = step(one, other, key)
    return one, other, held, key


def test_the_plan_is_changed_where_something_is_held_each_time():
    def step(one, other, key):
        return one + jax.random.normal(key, (100,)), other * 2

    compiled = pytc.compile(step)
    assert seen(with_one_held_later(compiled)) == seen(with_one_held_later(jax.jit(step)))
    assert [site.copied_calls for site in compiled.explain().sites] == [3]


def test_keys_of_another_kind_are_another_signature():
    """Some kinds have bits of the same shape, so that these do not tell them apart."""

    def draw(state):
        key, noise = jax.random.split(state["key"])
        return {"key": key, "x": state["x"] + jax.random.normal(noise, (3,))}

    def run(step):
        drawn = []
        for impl in ("rbg", "unsafe_rbg", "threefry2x32", "rbg"):
            state = {"key": jax.random.key(0, impl=impl), "x": jnp.zeros(3)}
            for _ in range(3):
                state = step(state)
            drawn.append((str(jax.random.key_impl(state["key"])), jax.random.key_data(state["key"]), state["x"]))
        return drawn

    for (impl, *arrays), (expected_impl, *expected) in zip(run(pytc.compile(draw)), run(jax.jit(draw)), strict=True):
        assert impl == expected_impl
        jax.tree.map(np.testing.assert_array_equal, arrays, expected)
