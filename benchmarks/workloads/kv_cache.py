"""Decoding with a key-value cache: each step writes one position of the cache, and the weights stay."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload
from benchmarks.workloads.gpt_adamw import HEADS, init_gpt, norm


def make(size: int) -> Workload:
    layers, width, length, sequences = 1 + size // 2, 48 * size, 128 * size, 4

    def attend(block: Arrays, cache: Arrays, x: jax.Array, position: jax.Array) -> tuple[jax.Array, Arrays]:
        q, k, v = (a.reshape(sequences, 1, HEADS, -1) for a in jnp.split(x @ block["qkv"], 3, axis=-1))
        keys = jax.lax.dynamic_update_slice_in_dim(cache["keys"], k, position, axis=1)
        values = jax.lax.dynamic_update_slice_in_dim(cache["values"], v, position, axis=1)
        seen = (jnp.arange(length) <= position)[None, None, None, :]
        y = jax.nn.dot_product_attention(q, keys, values, mask=seen)
        return y.reshape(sequences, width) @ block["out"], {"keys": keys, "values": values}

    def step(
        params: Arrays, cache: list[Arrays], token: jax.Array, position: jax.Array
    ) -> tuple[list[Arrays], jax.Array, jax.Array]:
        x = params["embedding"][token] + params["position"][position]
        written = []
        for block, old in zip(params["blocks"], cache, strict=True):
            y, new = attend(block, old, norm(block["norm1"], x), position)
            written.append(new)
            x = x + y
            x = x + jax.nn.gelu(norm(block["norm2"], x) @ block["up"]) @ block["down"]
        token = jnp.argmax(norm(params["norm"], x) @ params["embedding"].T, -1).astype(token.dtype)
        return written, token, position + 1

    def init() -> tuple[Arrays, ...]:
        params = init_gpt(jax.random.key(0), layers, width, length)
        shape = (sequences, length, HEADS, width // HEADS)
        cache = [{"keys": jnp.zeros(shape), "values": jnp.zeros(shape)} for _ in range(layers)]
        return params, cache, jnp.arange(sequences, dtype=jnp.int32), jnp.int32(0)

    return Workload(step, init, loop, dead=(1, 2, 3))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    params, cache, token, position = init()
    for _ in batches:
        cache, token, position = step(params, cache, token, position)
        watch(token, position, cache)
    return params, cache, token, position
