"""Program -> callable.

jit     through `jax.jit`, on a flat function: serves any program
whole   through `jax.jit`, on the arguments as they are, so that a call flattens nothing: for plain trees
pmap    the same for a mapped axis
arguments, results  what the flat function takes and returns; order: in which order, so that JAX makes the pairs
"""

from typing import Any

from pytc.emit.jit import Emitted, Retrace
from pytc.emit.pmap import emit_pmap
from pytc.emit.whole import EmittedWhole, emit_whole
from pytc.program import Program

__all__ = ["Emitted", "EmittedWhole", "Retrace", "emit_jit", "emit_pmap"]


def emit_jit(program: Program, **options: Any) -> Emitted:
    """Compile the program through `jax.jit`, on its first call. `options` are those of `jax.jit` that speak of the
    whole program (`compiler_options`, `keep_unused`, ...)."""
    return emit_whole(program, **options) or Emitted(program, options)
