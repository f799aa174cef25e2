"""A GPT-style language model trained with AdamW, its results returned in the order of its arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload, normal

HEADS = 4
VOCABULARY = 256


def norm(scale: jax.Array, x: jax.Array) -> jax.Array:
    return scale * x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def attention(block: Arrays, x: jax.Array) -> jax.Array:
    batch, time, width = x.shape
    q, k, v = jnp.split(x @ block["qkv"], 3, axis=-1)
    q, k, v = (a.reshape(batch, time, HEADS, width // HEADS) for a in (q, k, v))
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return y.reshape(batch, time, width) @ block["out"]


def gpt(params: Arrays, tokens: jax.Array) -> jax.Array:
    """The logits of each next token."""
    x = params["embedding"][tokens] + params["position"][: tokens.shape[1]]
    for block in params["blocks"]:
        x = x + attention(block, norm(block["norm1"], x))
        x = x + jax.nn.gelu(norm(block["norm2"], x) @ block["up"]) @ block["down"]
    return norm(params["norm"], x) @ params["embedding"].T


def init_gpt(key: jax.Array, layers: int, width: int, length: int) -> Arrays:
    def block(key: jax.Array) -> Arrays:
        k = jax.random.split(key, 4)
        return {
            "norm1": jnp.ones(width),
            "qkv": normal(k[0], width, 3 * width, scale=width**-0.5),
            "out": normal(k[1], width, width, scale=width**-0.5),
            "norm2": jnp.ones(width),
            "up": normal(k[2], width, 4 * width, scale=width**-0.5),
            "down": normal(k[3], 4 * width, width, scale=(4 * width) ** -0.5),
        }

    key_embedding, key_position, key_blocks = jax.random.split(key, 3)
    return {
        "embedding": normal(key_embedding, VOCABULARY, width, scale=0.02),
        "position": normal(key_position, length, width, scale=0.02),
        "blocks": [block(k) for k in jax.random.split(key_blocks, layers)],
        "norm": jnp.ones(width),
    }


def tokens(size: int, i: int) -> jax.Array:
    """Batch number i: sequences one token longer than what the model reads, as each token is also a target."""
    return jax.random.randint(jax.random.key(i), (4, 16 * size + 1), 0, VOCABULARY)


def loss_fn(params: Arrays, batch: jax.Array) -> jax.Array:
    logits = gpt(params, batch[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


def make(size: int) -> Workload:
    optimizer = optax.adamw(3e-4, weight_decay=0.1)

    def step(params: Arrays, opt_state: Arrays, batch: jax.Array) -> tuple[Arrays, Arrays, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def init() -> tuple[Arrays, ...]:
        params = init_gpt(jax.random.key(0), layers=1 + size // 2, width=48 * size, length=16 * size)
        return params, optimizer.init(params)

    return Workload(step, init, loop, dead=(0, 1, 2), batch=lambda i: tokens(size, i))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    params, opt_state = init()
    for batch in batches:
        params, opt_state, loss = step(params, opt_state, batch)
        watch(loss, params, opt_state)
    return params, opt_state
