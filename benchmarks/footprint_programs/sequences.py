"""Decoding with caches, replay buffers, samplers: state that is updated in part."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.footprint_programs import Workload, array

WIDTH, LENGTH = 1024, 4096


def decode(caches: Any, position: Any, x: Any, weights: Any) -> Any:
    """One token through layers that each keep the keys and values of all tokens before."""
    new = []
    for (keys, values), layer in zip(caches, weights, strict=True):
        keys = jax.lax.dynamic_update_slice(keys, (x @ layer["k"])[:, None], (0, position, 0))
        values = jax.lax.dynamic_update_slice(values, (x @ layer["v"])[:, None], (0, position, 0))
        scores = jnp.einsum("bd,bld->bl", x @ layer["q"], keys)
        scores = jnp.where(jnp.arange(keys.shape[1]) <= position, scores, -1e9)
        x = x + jnp.einsum("bl,bld->bd", jax.nn.softmax(scores), values)
        new.append((keys, values))
    return new, position + 1, x


def generate(caches: Any, position: Any, x: Any, weights: Any) -> Any:
    """Sixteen tokens in one call."""
    carry, _ = jax.lax.scan(lambda carry, _: (decode(*carry, weights), None), (caches, position, x), length=16)
    return carry


def rolling(cache: Any, x: Any) -> Any:
    """A window that forgets its oldest row: every row moves by one."""
    cache = jnp.concatenate([cache[1:], x[None]])
    return cache, cache.mean(0)


def ring(buffer: Any, where: Any, rows: Any) -> Any:
    """A replay buffer, written by scatter."""
    places = (where + jnp.arange(rows.shape[0])) % buffer.shape[0]
    return buffer.at[places].set(rows), (where + rows.shape[0]) % buffer.shape[0]


def replay(buffer: Any, where: Any, rows: Any, key: Any) -> Any:
    """Write some rows, then sample others."""
    buffer, where = ring(buffer, where, rows)
    key, use = jax.random.split(key)
    return buffer, where, key, buffer[jax.random.randint(use, (32,), 0, buffer.shape[0])]


def histogram(counts: Any, tokens: Any) -> Any:
    return counts.at[tokens].add(1.0), counts.sum()


def metropolis(state: Any, energy: Any, key: Any) -> Any:
    key, propose, accept = jax.random.split(key, 3)
    proposal = state + 0.1 * jax.random.normal(propose, state.shape)
    new = jnp.sum(proposal**2, -1)
    taken = jax.random.uniform(accept, energy.shape) < jnp.exp(energy - new)
    return jnp.where(taken[:, None], proposal, state), jnp.where(taken, new, energy), key


def hamiltonian(position: Any, momentum: Any, weight: Any) -> Any:
    """Leapfrog through a potential with a matrix in it."""
    force = jax.grad(lambda q: jnp.sum(jnp.tanh(q @ weight) ** 2))
    momentum = momentum - 0.05 * force(position)
    position = position + 0.1 * momentum
    return position, momentum - 0.05 * force(position)


def langevin(state: Any, key: Any, weight: Any) -> Any:
    def step(carry: Any, _: Any) -> Any:
        x, key = carry
        key, use = jax.random.split(key)
        x = x - 0.1 * jax.grad(lambda x: jnp.sum((x @ weight) ** 2))(x) + 0.1 * jax.random.normal(use, x.shape)
        return (x, key), None

    return jax.lax.scan(step, (state, key), length=8)[0]


def beam(tokens: Any, scores: Any, logits: Any, position: Any) -> Any:
    """Beam search reorders all that it has written."""
    best, picked = jax.lax.top_k((scores[:, None] + logits).reshape(-1), scores.shape[0])
    tokens = tokens[picked // logits.shape[1]]
    return tokens.at[:, position].set(picked % logits.shape[1]), best, position + 1


CACHES = [(array(4, LENGTH, WIDTH), array(4, LENGTH, WIDTH)) for _ in range(2)]
WEIGHTS = [{name: array(WIDTH, WIDTH) for name in "qkv"} for _ in range(2)]
INDEX = array(dtype=jnp.int32)
KEY = array(2, dtype=jnp.uint32)

PROGRAMS = [
    Workload("decode", decode, (CACHES, INDEX, array(4, WIDTH), WEIGHTS), kept=(3,)),
    Workload("generate", generate, (CACHES, INDEX, array(4, WIDTH), WEIGHTS), kept=(3,)),
    Workload("rolling window", rolling, (array(LENGTH, 4096), array(4096))),
    Workload("ring buffer", ring, (array(LENGTH, 4096), INDEX, array(16, 4096))),
    Workload("replay", replay, (array(LENGTH, 4096), INDEX, array(16, 4096), KEY)),
    Workload(
        "histogram",
        histogram,
        (array(1 << 24), array(4096, dtype=jnp.int32)),
        remarks={
            "cpu": "nothing orders the sum before the update, so that this compiler copies what others update in place."
        },
    ),
    Workload("metropolis", metropolis, (array(4096, 2048), array(4096), KEY)),
    Workload("hamiltonian", hamiltonian, (array(2048, 2048), array(2048, 2048), array(2048, 2048)), kept=(2,)),
    Workload("langevin", langevin, (array(2048, 2048), KEY, array(2048, 2048)), kept=(2,)),
    Workload("beam search", beam, (array(1024, LENGTH, dtype=jnp.int32), array(1024), array(1024, 4096), INDEX)),
]
