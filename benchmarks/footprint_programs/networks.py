"""Training steps of other networks: convolutions, attention, experts, recurrence, diffusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.footprint_programs import Workload, array

WIDTH = 1024


def momentum(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step of `loss` with momentum."""

    def step(params: Any, velocity: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        return jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity, value

    return step


def convolution(x: Any, kernel: Any) -> jax.Array:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def convolutional(params: Any, images: Any, labels: Any) -> jax.Array:
    x = images
    for kernel, bias in params["layers"]:
        x = x + jax.nn.relu(convolution(x, kernel) + bias)
    return jnp.mean((x.mean((1, 2)) @ params["head"] - labels) ** 2)


def batch_normalised(params: Any, velocity: Any, averages: Any, images: Any) -> Any:
    """Running averages come out of the loss beside its value."""

    def loss(params: Any) -> Any:
        x, new = images, []
        for (kernel, scale), average in zip(params, averages, strict=True):
            x = convolution(x, kernel)
            mean = x.mean((0, 1, 2))
            new.append(0.9 * average + 0.1 * mean)
            x = jax.nn.relu((x - mean) * scale)
        return jnp.mean(x**2), new

    (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity, new, value


def attend(q: Any, k: Any, v: Any) -> jax.Array:
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / jnp.sqrt(q.shape[-1])
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)


def transformer(params: Any, tokens: Any) -> jax.Array:
    x = params["embedding"][tokens]
    for layer in params["layers"]:
        y = x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
        x = x + attend(y @ layer["q"], y @ layer["k"], y @ layer["v"]) @ layer["o"]
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    logits = jax.nn.log_softmax(x @ params["embedding"].T)
    return -jnp.mean(jnp.take_along_axis(logits[:, :-1], tokens[:, 1:, None], -1))


def experts(params: Any, x: Any, y: Any) -> jax.Array:
    gates = jax.nn.softmax(x @ params["router"])
    hidden = jax.nn.gelu(jnp.einsum("nd,edh->enh", x, params["up"]))
    out = jnp.einsum("ne,end->nd", gates, jnp.einsum("enh,ehd->end", hidden, params["down"]))
    return jnp.mean((out - y) ** 2)


def recurrent(params: Any, sequence: Any, y: Any) -> jax.Array:
    def cell(h: Any, x: Any) -> Any:
        gate = jax.nn.sigmoid(x @ params["wg"] + h @ params["ug"])
        return gate * h + (1 - gate) * jnp.tanh(x @ params["w"] + h @ params["u"]), None

    h, _ = jax.lax.scan(cell, jnp.zeros(sequence.shape[1:]), sequence)
    return jnp.mean((h - y) ** 2)


def denoise(params: Any, images: Any, noise: Any, level: Any) -> jax.Array:
    x = jnp.sqrt(1 - level) * images + jnp.sqrt(level) * noise
    for kernel in params:
        x = x + jax.nn.silu(convolution(x, kernel))
    return jnp.mean((x - noise) ** 2)


def chained_convolutions(x: Any, kernels: Any) -> Any:
    """Inference: the image that comes in is not needed after the first layer."""
    for kernel in kernels:
        x = convolution(x, kernel)
    return x


def residual_inference(x: Any, weights: Any) -> Any:
    for up, down in weights:
        x = x + jax.nn.gelu(x @ up) @ down
    return x


def normalise(x: Any) -> Any:
    """Each row is read whole before any of it is written."""
    return jax.nn.softmax(x - x.mean(-1, keepdims=True))


CONVOLUTIONAL = {"layers": [(array(3, 3, 32, 32), array(32)) for _ in range(4)], "head": array(32, 10)}
NORMALISED = [(array(3, 3, 32, 32), array(32)) for _ in range(4)]
TRANSFORMER = {
    "embedding": array(4096, WIDTH),
    "layers": [
        {
            **{name: array(WIDTH, WIDTH) for name in "qkvo"},
            "up": array(WIDTH, 4 * WIDTH),
            "down": array(4 * WIDTH, WIDTH),
        }
        for _ in range(2)
    ],
}
EXPERTS = {"router": array(WIDTH, 4), "up": array(4, WIDTH, 2048), "down": array(4, 2048, WIDTH)}
RECURRENT = {name: array(WIDTH, WIDTH) for name in ("w", "u", "wg", "ug")}
IMAGES = array(64, 64, 64, 32)
KERNELS = [array(3, 3, 32, 32) for _ in range(4)]

PROGRAMS = [
    Workload(
        "convolutional",
        momentum(convolutional),
        (CONVOLUTIONAL, CONVOLUTIONAL, IMAGES, array(64, 10)),
        remarks={"v5e": "where the parameters, 0.6 MB, are written in place, it keeps 67 MB of activations longer."},
    ),
    Workload(
        "batch norm",
        batch_normalised,
        (NORMALISED, NORMALISED, [array(32)] * 4, IMAGES),
        remarks={
            "cpu": "with the results of the last layer first and not written over the weights in their order, the"
            " compiler's scheduler gets by with one activation less. The weights are a thousandth of the memory; `high`"
            " finds that plan, the flow of the data does not know of it."
        },
    ),
    Workload(
        "transformer",
        momentum(transformer),
        (TRANSFORMER, TRANSFORMER, array(8, 256, dtype=jnp.int32)),
        remarks={
            "h200": "with its loss as the first result the compiler needs 8% less, and copies nothing; `high` tries it."
        },
    ),
    Workload("mixture of experts", momentum(experts), (EXPERTS, EXPERTS, array(512, WIDTH), array(512, WIDTH))),
    Workload("recurrent", momentum(recurrent), (RECURRENT, RECURRENT, array(16, 128, WIDTH), array(128, WIDTH))),
    Workload("diffusion", momentum(denoise), (KERNELS, KERNELS, IMAGES, IMAGES, array())),
    Workload(
        "chained convolutions", chained_convolutions, (IMAGES, [array(3, 3, 32, 32) for _ in range(10)]), kept=(1,)
    ),
    Workload(
        "residual inference",
        residual_inference,
        (array(2048, 2048), [(array(2048, 2048), array(2048, 2048))] * 3),
        kept=(1,),
    ),
    Workload(
        "softmax",
        normalise,
        (array(4096, 4096),),
        remarks={
            "cpu": "the compiler makes one kernel of it all, which reads a row while it writes it; so the pair saves"
            " nothing, and costs a copy. As separate loops it would be in place."
        },
    ),
]
