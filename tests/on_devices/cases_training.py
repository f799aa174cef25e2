"""Data-parallel training on the digits: as on one device, and the same bits each time; memory as by hand."""

import equinox as eqx
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

import pytc
from pytc.jax_compat.arrays import shards_of
from tests.on_devices import devices  # noqa: F401 - sets up

DIGITS = load_digits()
IMAGES = (DIGITS.data / 16).astype(np.float32)[:1792]
LABELS = DIGITS.target.astype(np.int32)[:1792]
OPTIMISER = optax.adam(1e-2)


def loss_of(model, images, labels):
    logits = jax.vmap(model)(images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def step(model, state, images, labels, mean):
    loss, grads = eqx.filter_value_and_grad(loss_of)(model, images, labels)
    loss, grads = mean(loss), mean(grads)
    updates, state = OPTIMISER.update(grads, state)
    return eqx.apply_updates(model, updates), state, loss


def mean_over_rows(tree):
    return jax.lax.pmean(tree, "batch")


def itself(tree):
    return tree


def train(run, mean, shape, places):
    model = eqx.nn.MLP(64, 10, 32, 2, key=jax.random.key(0))
    state = OPTIMISER.init(eqx.filter(model, eqx.is_array))
    losses = []
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(len(IMAGES)).reshape(-1, *shape)
        for batch in order:
            model, state, loss = run(model, state, IMAGES[batch], LABELS[batch], mean)
            losses.append(float(loss))
            places.append([shard.unsafe_buffer_pointer() for shard in shards_of(model.layers[0].weight)])
    return model, losses


def test_digits():
    mapped = pytc.pmap(step, "batch", in_axes=(None, None, 0, 0, None))
    places = []
    model, losses = train(mapped, mean_over_rows, (8, 16), places)
    alone, losses_alone = train(pytc.compile(step), itself, (128,), [])
    again, losses_again = train(mapped, mean_over_rows, (8, 16), [])
    np.testing.assert_allclose(losses, losses_alone, rtol=1e-3, atol=1e-4)
    assert losses[-1] < losses[0] / 4
    assert losses == losses_again
    for one, two, three in zip(
        *(jax.tree.leaves(eqx.filter(m, eqx.is_array)) for m in (model, again, alone)), strict=True
    ):
        assert np.asarray(one).tobytes() == np.asarray(two).tobytes()
        np.testing.assert_allclose(one, three, rtol=1e-2, atol=1e-3)
    assert len(set(map(tuple, places))) == 1
    assert sum(site.copied_calls for site in mapped.explain().sites) == 0


def test_memory_on_each_device_is_that_of_the_best_by_hand():
    model = eqx.nn.MLP(64, 10, 32, 2, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)
    state = OPTIMISER.init(params)
    images, labels = IMAGES[:128].reshape(8, 16, 64), LABELS[:128].reshape(8, 16)

    def by_hand(params, state, images, labels):
        params, state, loss = step(eqx.combine(params, static), state, images, labels, mean_over_rows)
        return eqx.filter(params, eqx.is_array), state, loss

    hand = jax.pmap(by_hand, "batch", in_axes=(None, None, 0, 0), out_axes=None, donate_argnums=(0, 1))
    figures = hand.lower(params, state, images, labels).compile().memory_analysis()
    total = figures.argument_size_in_bytes + figures.output_size_in_bytes - figures.alias_size_in_bytes
    total += figures.temp_size_in_bytes
    mapped = pytc.pmap(step, "batch", in_axes=(None, None, 0, 0, None))
    ours = pytc.explain(mapped, model, state, images, labels, mean_over_rows).memory.program
    assert ours.total <= total, (ours, total)
