"""Fine-tuning a language model with low-rank adapters: most weights are frozen, inside the pytree that is trained."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from benchmarks.workload import Arrays, Batches, Init, Step, Watch, Workload, normal
from benchmarks.workloads import gpt_adamw

RANK = 4


def make(size: int) -> Workload:
    width = 48 * size

    def adapted(params: Arrays) -> Arrays:
        """The weights with the adapters' products added."""
        blocks = [
            {**block, "qkv": block["qkv"] + adapter["down"] @ adapter["up"]}
            for block, adapter in zip(params["base"]["blocks"], params["adapters"], strict=True)
        ]
        return {**params["base"], "blocks": blocks}

    optimizer = optax.adamw(1e-3)

    def step(params: Arrays, opt_state: Arrays, batch: jax.Array) -> tuple[Arrays, Arrays, jax.Array]:
        def loss_fn(adapters: Arrays) -> jax.Array:
            return gpt_adamw.loss_fn(adapted({**params, "adapters": adapters}), batch)

        loss, grads = jax.value_and_grad(loss_fn)(params["adapters"])
        updates, opt_state = optimizer.update(grads, opt_state, params["adapters"])
        return {**params, "adapters": optax.apply_updates(params["adapters"], updates)}, opt_state, loss

    def init() -> tuple[Arrays, ...]:
        layers = 1 + size // 2
        keys = jax.random.split(jax.random.key(1), layers)
        adapters = [{"down": normal(k, width, RANK), "up": jnp.zeros((RANK, 3 * width))} for k in keys]
        base = gpt_adamw.init_gpt(jax.random.key(0), layers, width, length=16 * size)
        return {"base": base, "adapters": adapters}, optimizer.init(adapters)

    return Workload(step, init, loop, dead=(0, 1, 2), batch=lambda i: gpt_adamw.tokens(size, i))


def loop(step: Step, init: Init, batches: Batches, watch: Watch) -> tuple[Arrays, ...]:
    params, opt_state = init()
    for batch in batches:
        params, opt_state, loss = step(params, opt_state, batch)
        watch(loss, params, opt_state)
    return params, opt_state
