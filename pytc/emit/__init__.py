"""Program -> callable."""

from pytc.emit.jit import Emitted, Retrace, emit_jit
from pytc.emit.pmap import emit_pmap

__all__ = ["Emitted", "Retrace", "emit_jit", "emit_pmap"]
