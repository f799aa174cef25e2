"""An Equinox MLP-mixer on images, trained with AdamW."""

from __future__ import annotations

import equinox as eqx
import jax
import optax

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload
from benchmarks.workloads.mlp_adam import images

PATCHES = 16  # a 28 by 28 image in patches of 7 by 7


class Mixer(eqx.Module):
    """One block: tokens are mixed across patches, then channels within each."""

    tokens_up: eqx.nn.Linear
    tokens_down: eqx.nn.Linear
    channels_up: eqx.nn.Linear
    channels_down: eqx.nn.Linear
    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm

    def __init__(self, width: int, key: jax.Array):
        k = jax.random.split(key, 4)
        self.tokens_up = eqx.nn.Linear(PATCHES, width, key=k[0])
        self.tokens_down = eqx.nn.Linear(width, PATCHES, key=k[1])
        self.channels_up = eqx.nn.Linear(width, 4 * width, key=k[2])
        self.channels_down = eqx.nn.Linear(4 * width, width, key=k[3])
        self.norm1 = eqx.nn.LayerNorm(width)
        self.norm2 = eqx.nn.LayerNorm(width)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Mix patches by channels."""

        def mix_tokens(column: jax.Array) -> jax.Array:
            return self.tokens_down(jax.nn.gelu(self.tokens_up(column)))

        def mix_channels(row: jax.Array) -> jax.Array:
            return self.channels_down(jax.nn.gelu(self.channels_up(row)))

        x = x + jax.vmap(mix_tokens, in_axes=1, out_axes=1)(jax.vmap(self.norm1)(x))
        return x + jax.vmap(mix_channels)(jax.vmap(self.norm2)(x))


class Classifier(eqx.Module):
    """Patches of an image through mixers to ten logits."""

    patch: eqx.nn.Linear
    mixers: list[Mixer]
    head: eqx.nn.Linear

    def __init__(self, width: int, depth: int, key: jax.Array):
        key_patch, key_head, *keys = jax.random.split(key, 2 + depth)
        self.patch = eqx.nn.Linear(49, width, key=key_patch)
        self.mixers = [Mixer(width, k) for k in keys]
        self.head = eqx.nn.Linear(width, 10, key=key_head)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """The logits of one image."""
        patches = pixels.reshape(4, 7, 4, 7).swapaxes(1, 2).reshape(PATCHES, 49)
        x = jax.vmap(self.patch)(patches)
        for mixer in self.mixers:
            x = mixer(x)
        return self.head(x.mean(0))


def make(size: int) -> Workload:
    optimizer = optax.adamw(1e-3)

    def loss_fn(model: Classifier, x: jax.Array, y: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()

    def step(model: Classifier, opt_state: Arrays, batch: Arrays) -> tuple[Classifier, Arrays, jax.Array]:
        loss, grads = eqx.filter_value_and_grad(loss_fn)(model, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), opt_state, loss

    def init() -> tuple[Arrays, ...]:
        model = Classifier(width=32 * size, depth=1 + size // 2, key=jax.random.key(0))
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    return Workload(step, init, loop, dead=(0, 1, 2), batch=lambda i: images(4 * size, i))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    model, opt_state = init()
    for batch in batches:
        model, opt_state, loss = step(model, opt_state, batch)
        watch(loss, model, opt_state)
    return model, opt_state
