"""The workloads of `make bench`, larger: what they need is compiled for here, and measured at run time there."""

from __future__ import annotations

import jax

from benchmarks import workloads
from benchmarks.footprint_programs import Workload

SIZE = 4

_ORDER = "what differs is in which order results and arguments are handed to the compiler; `high` tries both."
_PAIRS = (
    "with the results reversed, the pairs that are made by hand are of other arrays of the same shape. They cost"
    " copies, and the compiler gets by with less memory all the same; `high` tries them."
)
REMARKS = {
    "ema": {"cpu": _ORDER, "v5e": _ORDER},
    "equinox_mixer": {"v5e": _PAIRS},
    "finetune": {"h200": _ORDER, "v5e": _ORDER},
    "gpt_adamw": {"v5e": _PAIRS},
    "gpt_reordered": {"v5e": _PAIRS},
    "grad_accumulation": {"v5e": _ORDER},
    "mlp_adam": {"v5e": _PAIRS},
    "modifiable_buffers": {"v5e": _ORDER},
}


def of_bench(name: str) -> Workload:
    """The step of a workload of `make bench`."""
    made = workloads.make(name, SIZE)
    args = jax.eval_shape(made.arguments)
    kept = tuple(i for i in range(len(args)) if i not in made.dead)
    return Workload(f"bench {name}", made.step, args, kept, remarks=REMARKS.get(name, {}))


PROGRAMS = [of_bench(name) for name in workloads.names()]
