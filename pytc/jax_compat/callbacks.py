"""Whether Python is called by programs that were compiled before: by `jax.jit` or by pytc.

A program runs on threads of XLA's, often long after the call that began it has returned. So what it calls back may read
anything at any moment, and no thread that Python knows of is there before.

For JAX 0.10 to 0.12: every lowering of a callback has `mlir.emit_python_callback` wrap it in a function of its own,
which the program holds for as long as it may run. These functions are made of the constants of that one's code, to
which each of them refers. So the constants' reference counts tell whether there are any. (Those of `buffer_callback`,
which is experimental, are wrapped elsewhere.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from jax.interpreters import mlir


def _made_by(function: Callable[..., Any]) -> list[CodeType]:
    """The code of the functions that a function makes."""
    return [each for each in function.__code__.co_consts if isinstance(each, CodeType)]


def _references_to_unused_code() -> int:
    def outer() -> Callable[[], None]:
        def inner() -> None: ...

        return inner

    found = _made_by(outer)
    return max(map(sys.getrefcount, found))


_WRAPPERS = _made_by(mlir.emit_python_callback)
_UNUSED = _references_to_unused_code()


def are_there() -> bool:
    """Whether some program that has not been let go of calls Python. True where that cannot be told."""
    if "jax.experimental.buffer_callback" in sys.modules or not _WRAPPERS:
        return True
    return max(map(sys.getrefcount, _WRAPPERS)) > _UNUSED
