"""Programs over 256 TPUs: a mesh of 16 by 16, data along one axis and parts of each layer along the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from benchmarks.footprint_programs import Workload, array, shapes_of
from benchmarks.footprint_programs.networks import momentum, transformer
from benchmarks.footprint_programs.sequences import decode

WIDTH, HIDDEN, LAYERS, VOCABULARY = 2048, 8192, 1, 8192

MODEL = {
    "embedding": array(VOCABULARY, WIDTH),
    "layers": [
        {**{name: array(WIDTH, WIDTH) for name in "qkvo"}, "up": array(WIDTH, HIDDEN), "down": array(HIDDEN, WIDTH)}
        for _ in range(LAYERS)
    ],
}
TENSOR_PARALLEL = {
    "embedding": P("model", None),
    "layers": [
        {
            **{name: P(None, "model") for name in "qkv"},
            "o": P("model", None),
            "up": P(None, "model"),
            "down": P("model", None),
        }
        for _ in range(LAYERS)
    ],
}
FULLY_SHARDED = jax.tree.map(lambda spec: P(*(axis or "data" for axis in spec)), TENSOR_PARALLEL)
TOKENS = array(32, 512, dtype=jnp.int32)

adamw = optax.adamw(1e-3)


def adamw_step(params: Any, state: Any, tokens: Any) -> Any:
    value, grads = jax.value_and_grad(transformer)(params, tokens)
    updates, state = adamw.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


ADAMW_STATE = (optax.ScaleByAdamState(P(), FULLY_SHARDED, FULLY_SHARDED), P(), P())

CACHES = [(array(64, 4096, 2048), array(64, 4096, 2048))] * 2
WEIGHTS = [{name: array(2048, 2048) for name in "qkv"}] * 2

PROGRAMS = [
    Workload(
        "language model, tensor parallel",
        momentum(transformer),
        (MODEL, MODEL, TOKENS),
        specs=(TENSOR_PARALLEL, TENSOR_PARALLEL, P("data")),
        remarks={
            "v5e 16x16": "as on one TPU, the order in which results and arguments are handed to the compiler is worth"
            " half a percent; `high` tries both."
        },
    ),
    Workload(
        "language model, AdamW, fully sharded",
        adamw_step,
        (MODEL, shapes_of(adamw.init, MODEL), TOKENS),
        specs=(FULLY_SHARDED, ADAMW_STATE, P("data")),
        remarks={
            "v5e 16x16": "with its loss as the first result the compiler schedules the same program in a sixth of the"
            " memory, by hand too: 23 MB of temporaries instead of 141. For several TPUs pytc puts it there."
        },
    ),
    Workload(
        "decode, sharded",
        decode,
        (CACHES, array(dtype=jnp.int32), array(64, 2048), WEIGHTS),
        kept=(3,),
        specs=(P("data", None, "model"), P(), P("data"), P(None, "model")),
    ),
]
