"""Programs of the kinds that people run, small enough to compile in seconds: what `footprints.py` measures.

Each module has one kind and a list `PROGRAMS`. A program is a function and the shapes of its arguments; nothing is
run, so no values are needed. Arrays are megabytes large: smaller ones fit a TPU's vector memory, and say little.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Workload:
    """One program to measure."""

    name: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kept: tuple[int, ...] = ()
    """Arguments (by number) that such a program's caller reads again, so that nobody would donate them."""
    specs: Any = None
    """How the arguments lie over the axes `data` and `model` of a mesh: a prefix of their tree; None where the program
    may run on one device, and on a mesh with each array cut along its last axes."""
    remarks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """By target: why the figures are what they are, where that is not plain."""


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An argument of this shape."""
    return jax.ShapeDtypeStruct(shape, dtype)


def shapes_of(fun: Callable[..., Any], *args: Any) -> Any:
    """The shapes that `fun` returns, as arguments for another function."""
    return jax.eval_shape(fun, *args)


def everything() -> list[Workload]:
    """All programs, by kind."""
    from benchmarks.footprint_programs import bench, networks, optimisers, sequences, sharded, simulations, training

    modules = (optimisers, training, networks, sequences, simulations, sharded, bench)
    return [workload for module in modules for workload in module.PROGRAMS]
