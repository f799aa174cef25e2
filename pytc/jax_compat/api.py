"""What pytc hands programs to, as it is when pytc is imported.

People put `pytc.compile` where `jax.jit` stands (`jax.jit = pytc.compile`), or a function that compiles nothing while
they debug; what was compiled before goes on as it was.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from pytc.jax_compat.warned import places_ignored

_jit = jax.jit
pmap = jax.pmap
jit_parameters = inspect.signature(_jit).parameters
UNSPECIFIED = jit_parameters["in_shardings"].default
"""A sharding that is not asked for, which `jax.jit` takes besides None."""
UNNAMED = "_internal_pmap_axis_name"
"""The name of the axis that `jax.pmap` maps where it is given none, so that arrays are spread alike by both."""


def jit(fun: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit`, silent about options that pytc's own caller has been warned of (`says_where`)."""
    make = functools.partial(_jit, fun, **options)
    return places_ignored(make) if says_where(options) else make()


def says_where(options: Mapping[str, Any]) -> bool:
    """Whether options of `jax.jit` say where the program runs, by names that JAX warns of."""
    return any(options.get(name) is not None for name in ("device", "backend"))
