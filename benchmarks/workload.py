"""What a benchmark program is: a step to compile, and the loop that a person would write around it.

The loop belongs to the workload because donation is about the caller as much as about the step: a
buffer is dead when nobody reads it again. So each workload spells out its own loop, and every contender
runs in that same loop; nothing else holds the state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

Arrays: TypeAlias = Any
"""A pytree of arrays."""


Step: TypeAlias = Callable[..., Any]
Init: TypeAlias = Callable[[], tuple[Arrays, ...]]
Batches: TypeAlias = Iterable[Any]
Watch: TypeAlias = Callable[..., None]
Loop: TypeAlias = Callable[[Step, Init, Batches, Watch], tuple[Arrays, ...]]
"""Make the state with `init()`, take a step for each of `batches` and return the last state; after each step give its
results to `watch`, where a person would log the loss."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One program. The step's arguments are the state's parts and then, where there are any, the batch."""

    step: Step
    """The function that each contender compiles."""
    init: Init
    """The step's first arguments but the batch, as arrays that nothing else holds."""
    loop: Loop
    """The program around it."""
    dead: tuple[int, ...]
    """The arguments that the loop never reads again after the call: a person may promise to donate any of these."""
    batch: Callable[[int], Arrays] | None = None
    """Batch number i as arrays that nothing else holds; None where the step takes none."""

    def arguments(self) -> tuple[Arrays, ...]:
        """Arguments of one call of the step."""
        return self.init() if self.batch is None else (*self.init(), self.batch(0))


def normal(key: jax.Array, *shape: int, scale: float = 1.0) -> jax.Array:
    """Weights or data to start from."""
    return scale * jax.random.normal(key, shape, jnp.float32)
