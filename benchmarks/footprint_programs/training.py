"""What stands around an optimiser: averages, target networks, accumulation, layers in a loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.footprint_programs import Workload, array
from benchmarks.footprint_programs.optimisers import BATCH, PARAMS, ROWS, WIDTH, loss

LAYERS = {"w": array(6, WIDTH, WIDTH), "b": array(6, WIDTH)}


def descend(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def ema(params: Any, average: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, batch)
    params = descend(params, grads)
    return params, jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, average, params), value


def target_network(online: Any, target: Any, batch: Any, count: Any) -> Any:
    """Q-learning: the target network follows in jumps."""
    x, reward = batch

    def error(online: Any) -> jax.Array:
        return loss(online, (x, reward + 0.9 * jax.lax.stop_gradient(predict(target, x))))

    grads = jax.grad(error)(online)
    online = descend(online, grads)
    target = jax.tree.map(lambda t, o: jnp.where(count % 100 == 0, o, t), target, online)
    return online, target, count + 1


def predict(params: Any, x: Any) -> jax.Array:
    for layer in params:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x


def target_by_cond(online: Any, target: Any, batch: Any, count: Any) -> Any:
    online = descend(online, jax.grad(loss)(online, batch))
    target = jax.lax.cond(count % 100 == 0, lambda o, t: o, lambda o, t: t, online, target)
    return online, target, count + 1


def accumulate(total: Any, params: Any, batch: Any) -> Any:
    """One micro-batch: gradients are added up, parameters stay."""
    value, grads = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(jnp.add, total, grads), value


def accumulate_in_scan(params: Any, batches: Any) -> Any:
    def micro(total: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(jnp.add, total, grads), value

    grads, values = jax.lax.scan(micro, jax.tree.map(jnp.zeros_like, params), batches)
    return descend(params, grads), values


def many_steps(params: Any, velocity: Any, batches: Any) -> Any:
    """An epoch in one call."""

    def step(carry: Any, batch: Any) -> Any:
        params, velocity = carry
        value, grads = jax.value_and_grad(loss)(params, batch)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        return (descend(params, velocity), velocity), value

    (params, velocity), values = jax.lax.scan(step, (params, velocity), batches)
    return params, velocity, values


def stacked_loss(layers: Any, batch: Any, remat: bool) -> jax.Array:
    x, y = batch

    def layer(x: Any, one: Any) -> Any:
        return jnp.tanh(x @ one["w"] + one["b"]), None

    return jnp.mean((jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, layers)[0] - y) ** 2)


def scanned(layers: Any, mu: Any, nu: Any, batch: Any, *, remat: bool = False) -> Any:
    """Adam over layers that are stacked and applied in a loop."""
    value, grads = jax.value_and_grad(stacked_loss)(layers, batch, remat)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, nu, grads)
    return jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), layers, mu, nu), mu, nu, value


def rematerialised(params: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(jax.checkpoint(loss))(params, batch)
    return descend(params, grads), value


def frozen(params: Any, adapters: Any, batch: Any) -> Any:
    """Low-rank adapters are trained; the weights that they adapt come back as they were."""

    def adapted(adapters: Any) -> jax.Array:
        return loss([{"w": p["w"] + a @ b, "b": p["b"]} for p, (a, b) in zip(params, adapters, strict=True)], batch)

    value, grads = jax.value_and_grad(adapted)(adapters)
    return descend(adapters, grads), value


def guarded(params: Any, batch: Any) -> Any:
    """A step that is undone when it is not finite."""
    value, grads = jax.value_and_grad(loss)(params, batch)
    fine = jnp.isfinite(value)
    return jax.tree.map(lambda p, n: jnp.where(fine, n, p), params, descend(params, grads)), value


def adversarial(generator: Any, critic: Any, batch: Any) -> Any:
    """Two networks of the same shapes, each trained against the other."""
    noise, real = batch

    def critic_loss(critic: Any) -> jax.Array:
        return jnp.mean(predict(critic, predict(generator, noise)) - predict(critic, real))

    critic = descend(critic, jax.grad(critic_loss)(critic))

    def generator_loss(generator: Any) -> jax.Array:
        return -jnp.mean(predict(critic, predict(generator, noise)))

    return descend(generator, jax.grad(generator_loss)(generator)), critic


BATCHES = (array(8, ROWS, WIDTH), array(8, ROWS, WIDTH))
COUNT = array(dtype=jnp.int32)

PROGRAMS = [
    Workload("ema", ema, (PARAMS, PARAMS, BATCH)),
    Workload("target network", target_network, (PARAMS, PARAMS, BATCH, COUNT)),
    Workload("target by cond", target_by_cond, (PARAMS, PARAMS, BATCH, COUNT)),
    Workload("accumulate", accumulate, (PARAMS, PARAMS, BATCH), kept=(1,)),
    Workload("accumulate in scan", accumulate_in_scan, (PARAMS, BATCHES)),
    Workload("many steps", many_steps, (PARAMS, PARAMS, BATCHES)),
    Workload("scan over layers", scanned, (LAYERS, LAYERS, LAYERS, BATCH)),
    Workload(
        "scan over layers, remat",
        lambda layers, mu, nu, batch: scanned(layers, mu, nu, batch, remat=True),
        (LAYERS, LAYERS, LAYERS, BATCH),
    ),
    Workload(
        "remat",
        rematerialised,
        (PARAMS, BATCH),
        remarks={
            "cpu": "with its loss as the first result the compiler needs 15 MB more, by hand too; `high` tries it last."
        },
    ),
    Workload(
        "low-rank adapters",
        frozen,
        (PARAMS, [(array(WIDTH, 8), array(8, WIDTH)) for _ in PARAMS], BATCH),
        kept=(0,),
    ),
    Workload("guarded step", guarded, (PARAMS, BATCH)),
    Workload(
        "adversarial",
        adversarial,
        (PARAMS, PARAMS, BATCH),
        remarks={"cpu": "the peak is over when the generator is updated, so that its pairs change nothing but copies."},
    ),
]
