"""Classes of people's own that convert or check what they are made of: they see what they see under `jax.jit`."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding
from jax.tree_util import register_dataclass, register_pytree_node_class

import pytc

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


@functools.partial(register_dataclass, data_fields=["a", "b"], meta_fields=[])
@dataclasses.dataclass
class Converting:
    a: Any
    b: Any

    def __post_init__(self):
        self.a, self.b = jnp.asarray(self.a), jnp.asarray(self.b)


@functools.partial(register_dataclass, data_fields=["a", "b"], meta_fields=[])
@dataclasses.dataclass
class Checking:
    a: Any
    b: Any

    def __post_init__(self):
        assert isinstance(self.a, jax.Array), type(self.a)
        assert isinstance(self.b, jax.Array), type(self.b)


@register_pytree_node_class
class Computing:
    """Adds up what it is made of, and cuts it to pieces."""

    def __init__(self, a, b):
        self.a, self.b, self.total, self.head = a, b, a + b, a[:2]

    def tree_flatten(self):
        return (self.a * 1, self.b), None

    @classmethod
    def tree_unflatten(cls, _, children):
        assert len(children[0]) == len(children[1])
        return cls(*children)


@functools.partial(register_dataclass, data_fields=["x", "activation"], meta_fields=[])
@dataclasses.dataclass
class Activated:
    x: Any
    activation: Any

    def __post_init__(self):
        assert callable(self.activation)


HERE = SingleDeviceSharding(jax.devices()[0])


def step(s, x):
    return type(s)(s.a + x, s.b * 2), s.a.sum()


@pytest.mark.parametrize("kind", [Converting, Checking, Computing])
@pytest.mark.parametrize(
    "options", [{}, {"in_shardings": HERE}, {"out_shardings": HERE}, {"out_shardings": (HERE, None)}], ids=str
)
@pytest.mark.parametrize("shared", [False, True], ids=["two arrays", "one array twice"])
def test_is_made_of_what_it_is_made_of_under_jax_jit(kind, options, shared):
    def trained(compiler):
        compiled = compiler(step, **options)
        a = jnp.arange(4.0)
        s, sums = kind(a, a if shared else a + 1), []
        for k in range(4):
            s, total = compiled(s, jnp.full(4, float(k)))
            sums.append(float(total))
        return np.asarray(s.a), np.asarray(s.b), sums

    for got, wanted in zip(trained(pytc.compile), trained(jax.jit), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kind", [Converting, Checking, Computing])
def test_an_array_that_comes_to_stand_twice_later(kind):
    compiled, a = pytc.compile(step), jnp.arange(4.0)
    for b in (a + 1, a):
        s, _ = compiled(kind(a, b), jnp.ones(4))
        np.testing.assert_array_equal(s.b, b * 2)


@pytest.mark.parametrize("kind", [Converting, Checking])
def test_mapped_finalised_and_explained(kind):
    rows = kind(jnp.ones((1, 4)), jnp.zeros((1, 4)))
    for mapped in (jax.pmap, pytc.pmap):
        s, _ = mapped(step, in_axes=(0, None))(rows, jnp.ones(4))
        np.testing.assert_array_equal(s.a, np.full((1, 4), 2.0))
    assert "in_axes" in pytc.explain(pytc.pmap(step, in_axes=(0, None)), rows, jnp.ones(4)).jit_call
    pytc.pmap(step, in_axes=(0, None)).trace(rows, jnp.ones(4))
    s = kind(jnp.arange(4.0), jnp.ones(4))
    jax.jit(pytc.finalise(step))(s, jnp.ones(4))
    explained = pytc.explain(jax.jit(step), s, jnp.ones(4))
    assert [each.path for each in explained.inputs] == ["s.a", "s.b", "x"]
    assert [each.path for each in explained.outputs] == ["result[0].a", "result[0].b", "result[1]"]


def test_the_largest_batch_of_a_class_that_checks():
    compiled = pytc.compile(lambda batch: batch.a @ batch.b.T)
    batch = Checking(jnp.ones((4, 8)), jnp.ones((4, 8)))
    assert pytc.explain(compiled, batch).largest("batch", memory=2**20).size > 4


@pytest.mark.parametrize("donate", ["auto", "all", "none"])
def test_a_leaf_that_is_static_is_what_it_is(donate):
    compiled = pytc.compile(lambda s: Activated(s.activation(s.x), s.activation), donate=donate)
    s = Activated(jnp.arange(4.0), jnp.sin)
    for _ in range(3):
        s = compiled(s)
    np.testing.assert_array_equal(s.x, jax.jit(lambda x: x)(jnp.sin(jnp.sin(jnp.sin(jnp.arange(4.0))))))
    total = pytc.compile(lambda s, w: (s.activation(s.x) * w).sum())
    assert jax.grad(total, 1)(s, jnp.ones(4)).shape == (4,)
    assert float(total.lower(s, jnp.ones(4)).compile()(s, jnp.ones(4))) == float(total(s, jnp.ones(4)))


class Batch(dict):
    pass


@register_pytree_node_class
class Sized(collections.OrderedDict):
    def tree_flatten(self):
        return tuple(self.values()), len(self)

    @classmethod
    def tree_unflatten(cls, size, children):
        return cls(zip("abcdefg"[:size], children, strict=True))


jax.tree_util.register_pytree_node(
    Batch, lambda batch: ((batch["a"], batch["b"]), None), lambda _, children: Batch(a=children[0], b=children[1])
)


@pytest.mark.parametrize("kind", [Batch, Sized])
def test_a_dictionary_of_a_class_that_is_a_node_of_its_own(kind):
    """Its static data need not be keys, nor anything that has items."""
    step = pytc.compile(lambda batch: kind((name, value + 1) for name, value in batch.items()))
    make = pytc.compile(lambda x: kind(a=x, b=2 * x))
    batch = make(jnp.ones(8))
    for _ in range(6):
        batch = step(batch)
    assert type(batch) is kind
    np.testing.assert_array_equal(batch["a"], np.full(8, 7))
    np.testing.assert_array_equal(batch["b"], np.full(8, 8))
