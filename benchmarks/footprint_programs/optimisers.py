"""One training step of a dense network under each of the common optimisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.footprint_programs import Workload, array, shapes_of

WIDTH, ROWS = 2048, 256
PARAMS = [{"w": array(WIDTH, WIDTH), "b": array(WIDTH)} for _ in range(4)]
BATCH = (array(ROWS, WIDTH), array(ROWS, WIDTH))


def loss(params: Any, batch: Any) -> jax.Array:
    x, y = batch
    for layer in params:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return jnp.mean((x - y) ** 2)


def step(optimiser: optax.GradientTransformation) -> Callable[..., Any]:
    def train(params: Any, state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return train


def adam_by_hand(params: Any, state: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, batch)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state[0], grads)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state[1], grads)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, mu, nu)
    return params, (mu, nu), value


def shampoo(params: Any, state: Any, batch: Any) -> Any:
    """Left and right preconditioners, updated every step and applied as they are."""
    value, grads = jax.value_and_grad(loss)(params, batch)
    new_state, new_params = [], []
    for layer, (left, right), grad in zip(params, state, grads, strict=True):
        left, right = left + grad["w"] @ grad["w"].T, right + grad["w"].T @ grad["w"]
        scaled = left @ grad["w"] @ right
        new_state.append((left, right))
        new_params.append({"w": layer["w"] - 1e-3 * scaled, "b": layer["b"] - 1e-3 * grad["b"]})
    return new_params, new_state, value


def clipped(params: Any, state: Any, batch: Any) -> Any:
    """Every gradient is needed before any parameter is written."""
    value, grads = jax.value_and_grad(loss)(params, batch)
    scale = jnp.minimum(1.0, 1.0 / optax.global_norm(grads))
    velocity = jax.tree.map(lambda v, g: 0.9 * v + scale * g, state, grads)
    return jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity, value


def mixed_precision(params: Any, state: Any, batch: Any) -> Any:
    """Parameters in bfloat16 for the network, and the real ones in float32."""
    value, grads = jax.value_and_grad(loss)(params, batch)
    master, mu = state
    mu = jax.tree.map(lambda m, g: 0.9 * m + g.astype(jnp.float32), mu, grads)
    master = jax.tree.map(lambda p, m: p - 0.1 * m, master, mu)
    return jax.tree.map(lambda p: p.astype(jnp.bfloat16), master), (master, mu), value


def of_optax(name: str, optimiser: optax.GradientTransformation, **remarks: str) -> Workload:
    return Workload(name, step(optimiser), (PARAMS, shapes_of(optimiser.init, PARAMS), BATCH), remarks=remarks)


def half(tree: Any) -> Any:
    return jax.tree.map(lambda x: array(*x.shape, dtype=jnp.bfloat16), tree)


PROGRAMS = [
    of_optax(
        "sgd",
        optax.sgd(0.1),
        v5e="here and for the other optimisers, it is worth 0.2 to 0.5% in which order results and arguments are"
        " handed to the compiler, whatever is written over what; `high` tries both. By hand, the reversed results also"
        " have weights copied that pytc's pairs leave alone.",
    ),
    of_optax("momentum", optax.sgd(0.1, momentum=0.9)),
    of_optax("nesterov", optax.sgd(0.1, momentum=0.9, nesterov=True)),
    of_optax("adam", optax.adam(1e-3)),
    Workload("adam by hand", adam_by_hand, (PARAMS, (PARAMS, PARAMS), BATCH)),
    of_optax("adamw", optax.adamw(1e-3)),
    of_optax("adamw clipped", optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))),
    of_optax("adafactor", optax.adafactor(1e-3)),
    of_optax("lion", optax.lion(1e-4)),
    of_optax("lamb", optax.lamb(1e-3)),
    of_optax("rmsprop", optax.rmsprop(1e-3, momentum=0.9)),
    of_optax("adagrad", optax.adagrad(1e-2)),
    of_optax("amsgrad", optax.amsgrad(1e-3)),
    of_optax("yogi", optax.yogi(1e-3)),
    Workload(
        "shampoo",
        shampoo,
        (PARAMS, [(array(WIDTH, WIDTH), array(WIDTH, WIDTH)) for _ in PARAMS], BATCH),
    ),
    Workload("momentum clipped", clipped, (PARAMS, PARAMS, BATCH)),
    Workload("mixed precision", mixed_precision, (half(PARAMS), (PARAMS, PARAMS), half(BATCH))),
]
