"""What pytc hands programs to, as it is when pytc is imported.

People put `pytc.compile` where `jax.jit` stands (`jax.jit = pytc.compile`), or a function that compiles nothing while
they debug; what was compiled before goes on as it was.
"""

from __future__ import annotations

import inspect

import jax

jit = jax.jit
pmap = jax.pmap
jit_parameters = inspect.signature(jit).parameters
UNSPECIFIED = jit_parameters["in_shardings"].default
"""A sharding that is not asked for, which `jax.jit` takes besides None."""
UNNAMED = "_internal_pmap_axis_name"
"""The name of the axis that `jax.pmap` maps where it is given none, so that arrays are spread alike by both."""
