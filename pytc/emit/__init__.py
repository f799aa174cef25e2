"""Program -> callable."""

from pytc.emit.jit import Emitted, Retrace, emit_jit

__all__ = ["Emitted", "Retrace", "emit_jit"]
