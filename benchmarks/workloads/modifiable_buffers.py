"""Buffers that are modified but not trained: batch-norm statistics, and power iteration for spectral norms."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import optax

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload, normal
from benchmarks.workloads.mlp_adam import images, init_mlp


def power_iteration(w: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step towards the largest singular value of `w`, and the left vector to go on from."""
    v = w.T @ u
    v = v / (jnp.linalg.norm(v) + 1e-6)
    u = w @ v
    sigma = jnp.linalg.norm(u)
    return sigma, u / (sigma + 1e-6)


def smooth(old: jax.Array, new: jax.Array) -> jax.Array:
    return 0.9 * old + 0.1 * jax.lax.stop_gradient(new)


def make(size: int) -> Workload:
    optimizer = optax.sgd(1e-2, momentum=0.9)

    def layer(layer: Arrays, buffer: Arrays, x: jax.Array) -> tuple[jax.Array, Arrays]:
        sigma, u = power_iteration(jax.lax.stop_gradient(layer["w"]), buffer["u"])
        x = x @ (layer["w"] / sigma) + layer["b"]
        mean, variance = x.mean(0), x.var(0)
        x = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
        new = {"u": u, "mean": smooth(buffer["mean"], mean), "variance": smooth(buffer["variance"], variance)}
        return x, new

    def loss_fn(params: Arrays, buffers: list[Arrays], x: jax.Array, y: jax.Array) -> tuple[jax.Array, list[Arrays]]:
        new_buffers = []
        for weights, buffer in zip(params[:-1], buffers, strict=True):
            x, buffer = layer(weights, buffer, x)
            x = jax.nn.relu(x)
            new_buffers.append(buffer)
        logits = x @ params[-1]["w"] + params[-1]["b"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), new_buffers

    def step(
        params: Arrays, buffers: list[Arrays], opt_state: Arrays, batch: Arrays
    ) -> tuple[Arrays, list[Arrays], Arrays, jax.Array]:
        (loss, buffers), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, buffers, *batch)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), buffers, opt_state, loss

    def init() -> tuple[Arrays, ...]:
        widths = [784, 128 * size, 128 * size, 10]
        params = init_mlp(jax.random.key(0), widths)
        buffers = [
            {"u": normal(jax.random.key(n), n, scale=n**-0.5), "mean": jnp.zeros(m), "variance": jnp.ones(m)}
            for n, m in itertools.pairwise(widths[:-1])
        ]
        return params, buffers, optimizer.init(params)

    return Workload(step, init, loop, dead=(0, 1, 2, 3), batch=lambda i: images(16 * size, i))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    params, buffers, opt_state = init()
    for batch in batches:
        params, buffers, opt_state, loss = step(params, buffers, opt_state, batch)
        watch(loss, params, buffers, opt_state)
    return params, buffers, opt_state
