"""Code that can read its own variables, or let others read them, without its bytecode saying which.

By a name (`locals`, `sys._getframe`), by a global that is such a function under another name, or by a string that looks
it up. Whether a name is meant is told from the code alone, so some are taken for readers that are none: the variables
are then kept.
"""

from __future__ import annotations

import dis
import gc
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import jax

from pytc.classes import attributes_of, bases_of, ids_of
from pytc.ownership.bytecode import strings
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.provenance import space_of

_OF_FRAMES = frozenset(
    "_getframe _current_frames currentframe getargvalues getinnerframes getouterframes getgeneratorlocals "
    "getcoroutinelocals getasyncgenlocals walk_stack walk_tb tb_frame gi_frame cr_frame ag_frame f_back "
    "breakpointhook embed_kernel PyEval_GetFrame PyEval_GetFrameLocals PyEval_GetLocals PyFrame_GetLocals "
    "PyThreadState_GetFrame".split()
)
"""Names that are used for nothing but getting at a frame object, or at what its variables hold."""
# Names by which a function reads its own variables, or lets others read them, without the bytecode saying which.
INTROSPECTION = _OF_FRAMES.union(
    "locals vars eval exec dir f_locals stack trace breakpoint breakpoint_if set_trace embed interact runcode "
    "runsource post_mortem settrace setprofile".split()
)


_OF_MODULES = {"stack": "inspect", "trace": "inspect", "embed": "IPython", "interact": "code"}
"""Those of them that other modules and objects have as well (`jnp.stack`, `model.embed`), each with the module that is
meant."""
_BUILTIN = frozenset(("vars", "eval", "exec", "dir"))
"""Those that are builtins. As an attribute of anything else, such a name is somebody's method: `self.eval(x)`. (Not so
`locals`; nor `breakpoint`, since `jax.debug.breakpoint()` and `debugpy.breakpoint()` show variables, too.)"""


_NAMES_ALONE = _OF_FRAMES | {"locals", "f_locals"}
"""Those that count even as a string constant, since a string like this is hardly there for anything else:
`getattr(builtins, "locals")()`."""
_MODES = frozenset(("eval", "exec"))
_NAMES_WITH_OTHERS = _MODES | {"vars"}
_OF_BUILTINS = frozenset(("builtins", "__builtins__", "__self__"))
"""Names by which code has to do with the module `builtins`: `print.__self__` is that."""
_OTHERS = _OF_BUILTINS | {"getattr", "__import__", "import_module"}
"""As string constants, `_NAMES_WITH_OTHERS` may be ordinary words. They count if the code also names one of `_OTHERS`,
by which it could look them up. `_MODES` do not count if it calls the builtin `compile`, to which they are given, and
has nothing to do with `builtins`."""


_PATH = re.compile(r"[\w.:]+")
"""A string constant in which names count: `operator.attrgetter("tb_frame.f_locals")`. Others are prose."""


_METHODS = ids_of(BuiltinFunctionType, MethodType)


# The functions themselves, by id: code may call them by other names.
_READERS = frozenset(
    id(function)
    for function in (
        *(locals, vars, eval, exec, breakpoint, jax.debug.breakpoint),
        *(sys._getframe, sys._current_frames, sys.settrace, sys.setprofile, sys.breakpointhook),
        *(inspect.currentframe, inspect.stack, inspect.trace),
        *(inspect.getargvalues, inspect.getinnerframes, inspect.getouterframes),
        *(inspect.getgeneratorlocals, inspect.getcoroutinelocals),
    )
)


def introspects(flow: ControlFlow, names: Mapping[str, Any], builtins: Mapping[str, Any]) -> str:
    """What the code names by which any of its variables may be read; empty if there is nothing. `names` are the globals
    that it sees, and `builtins` what it finds where there is no such global."""
    used = flow.code.co_names
    seen = {name: builtins[name] for name in used if name in builtins and name not in _BUILTIN}
    seen |= {name: names[name] for name in used if name in names}
    return _by_global(used, seen) or _by_string(flow, seen) or _by_name(flow, seen)


def _by_string(flow: ControlFlow, names: Mapping[str, Any]) -> str:
    """The word in a string constant by which the code may look up a function that reads variables; empty if there is
    none."""
    has_builtins = _has(flow, names, "builtins")
    may_look_up = has_builtins or not _OTHERS.isdisjoint(flow.once(_every_name))
    words = _NAMES_ALONE | _NAMES_WITH_OTHERS if may_look_up else _NAMES_ALONE
    if not has_builtins and "compile" in flow.once(_no_attributes) and names.get("compile", compile) is compile:
        words -= _MODES
    return min(words & flow.once(_in_strings), default="")


def _by_name(flow: ControlFlow, names: Mapping[str, Any]) -> str:
    """The name by which the code reads variables of its own, or lets others read them; empty if there is none.

    As an attribute, a name that is a builtin's or one module's is somebody else's (`model.eval()`, `jnp.stack`), unless
    the code has to do with that module.
    """
    for name in sorted(INTROSPECTION.intersection(flow.code.co_names)):
        module = "builtins" if name in _BUILTIN else _OF_MODULES.get(name)
        if name in flow.once(_no_attributes) or module is None or _has(flow, names, module):
            return name
    return ""


def _has(flow: ControlFlow, names: Mapping[str, Any], module: str) -> bool:
    """Whether the code has to do with a module, under its own name or that of a global."""
    called = _OF_BUILTINS if module == "builtins" else {module}
    loaded = sys.modules.get(module)
    return not called.isdisjoint(flow.once(_every_name)) or (
        loaded is not None and any(names.get(name) is loaded for name in flow.code.co_names)
    )


def _every_name(flow: ControlFlow) -> frozenset[str]:
    """All names in the code, also those in strings: `sys.modules["builtins"].locals()`."""
    code = flow.code
    variables = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return flow.once(_in_strings).union(variables, code.co_names)


_OF_ATTRIBUTES = frozenset(["LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR", "DELETE_ATTR"])


def _no_attributes(flow: ControlFlow) -> frozenset[str]:
    """The names that the code uses for something else than an attribute."""
    named = [i for i in flow.instructions if i.opcode in dis.hasname]
    return frozenset(i.argval for i in named if i.opname not in _OF_ATTRIBUTES)


def _in_strings(flow: ControlFlow) -> frozenset[str]:
    """The names in the string constants of the code that are no prose."""
    return frozenset(
        name for text in strings.constants(flow) if _PATH.fullmatch(text) for name in re.split("[.:]", text)
    )


def _by_global(used: Sequence[str], names: Mapping[str, Any]) -> str:
    """The name of a global that is one of the functions that read variables, or has one: as an item, or as an attribute
    under a name that is `used`. Empty if there is none."""
    by_class: dict[int, list[Any]] = {}  # many globals are of few classes
    for name in used:
        value: Any = names.get(name)
        kind = type(value)
        if kind is dict:
            found = [*value.values()]
        elif issubclass(kind, ModuleType):
            space = space_of(value)
            found = [space[each] for each in used if each in space]
        else:
            owner = value if issubclass(kind, type) else kind
            if id(owner) not in by_class:
                by_class[id(owner)] = _under(used, owner)
            found = by_class[id(owner)] + _held_by(value)
        if id(value) in _READERS or not _READERS.isdisjoint(map(id, found)):
            return name
    return ""


def _held_by(value: Any) -> list[Any]:
    """The items and attributes of an object that is no class or module; of a function only its attributes, as it holds
    what it is made of."""
    kind = type(value)
    if kind is FunctionType:
        return [*value.__dict__.values()]
    if issubclass(kind, type) or id(kind) in _METHODS:
        return []
    parts = gc.get_referents(value)
    return parts + [each for part in parts if type(part) is dict for each in part.values()]


def _under(names: Sequence[str], kind: type) -> list[Any]:
    """What a class and those that it inherits from have under some names."""
    spaces = [attributes_of(base) for base in bases_of(kind)]
    held = [space[name] for space in spaces for name in names if name in space]
    return [each.__func__ if type(each) is staticmethod else each for each in held]
