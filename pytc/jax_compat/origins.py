"""Where things come from: an equation's line of code and names, a primitive's package, whether a file is a library's.

For JAX 0.10 to 0.12: `source_info`, `jax.extend.source_info_util`, and what `def_abstract_eval` makes of the function
that it is given.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys
import sysconfig
from typing import Any

from jax.extend import source_info_util

from pytc.jax_compat.jaxprs import JaxprEqn, Primitive

# Or JAX would name a line here where an error or an operation comes from.
source_info_util.register_exclusion(str(pathlib.Path(__file__).parent.parent) + os.sep)


@functools.lru_cache(maxsize=1)
def _spaces_of_jax(_: int) -> list[dict[str, Any]]:
    """What JAX's modules have; asked anew once there are more modules."""
    return [vars(module) for name, module in [*sys.modules.items()] if name.partition(".")[0] == "jax"]


@functools.cache
def home(primitive: Primitive) -> str:
    """The top-level package that defined a primitive: `jax` for JAX's own, which its modules have."""
    spaces = _spaces_of_jax(len(sys.modules))
    usual = primitive.name.replace("-", "_") + "_p"
    if any(space.get(usual) is primitive for space in spaces):
        return "jax"
    if any(value is primitive for space in spaces for value in [*space.values()]):
        return "jax"
    # What was given to `def_abstract_eval` is in the closure of what JAX made of it.
    todo: list[Any] = [primitive.abstract_eval, primitive.impl]
    while todo:
        function = todo.pop()
        if isinstance(function, functools.partial):
            todo += [function.func, *function.args]
        elif callable(function) and not isinstance(function, type):
            package = str(getattr(function, "__module__", "jax")).partition(".")[0]
            if package not in ("jax", "jaxlib", "functools"):
                return package
            todo += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return "another package"


def source_line(eqn: JaxprEqn) -> str:
    """The innermost line outside of libraries that an equation comes from, `train.py:88 (loss)`; empty if unknown."""
    traceback = eqn.source_info.traceback
    frames: Any = () if traceback is None else traceback.frames
    for frame in frames:
        name = str(frame.file_name)
        if not is_library(name):
            return f"{pathlib.Path(name).name}:{frame.line_num} ({frame.function_name})"
    return ""


def names_within(eqn: JaxprEqn, name: str) -> Any:
    """The name stack of what is put in the place of an equation: its own, and `name` if given."""
    stack = eqn.source_info.name_stack
    return stack.extend(name) if name else stack


def source_within(eqn: JaxprEqn, stack: Any) -> Any:
    """Where an equation comes from, with this name stack around its own."""
    source = eqn.source_info
    return source.replace(name_stack=stack + source.name_stack) if stack.stack else source


def is_library(file: str) -> bool:
    """Whether a file belongs to the interpreter, to an installed package or to pytc itself."""
    return file.startswith(_LIBRARIES)


_LIBRARIES = (
    "<frozen",
    str(pathlib.Path(__file__).parent.parent / "_")[:-1],
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""What the names of files begin with that belong to the interpreter, to installed packages or to pytc itself."""
