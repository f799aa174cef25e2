"""Whether the code that puts a result together may raise, or look at anything but what it is given.

When `tree_unflatten` runs, the arguments are gone: if it raised then, an exception handler, or an attribute, would be
left with a deleted array. A constructor that checks values does that (a `__post_init__` that raises at NaN).

Which code runs is observed: the tree is unflattened once while JAX traces, with tracers in place of arrays. The next
time it will do the same, whatever the values are, if

- it did not raise now, as what asks a tracer for its value does: `float(x)`, `if x > 0`;
- what it computes has no effects and does not call Python, as a check of values by JAX does;
- no instruction depends on values: no `raise`, no `try`, no comparison or branch but on the identity of what is passed;
- it calls no functions of the interpreter's own but a few that build and assign.

What the standard library, JAX and a few libraries of containers do themselves is taken to be of that kind
(`_BUILDERS`); what they call is not.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import jax
from jax.tree_util import PyTreeDef

from pytc.interrupt import is_from_outside
from pytc.jax_compat.effects import may_call_python
from pytc.jax_compat.trees import is_plain_tree
from pytc.program import Computed, Kept, Passed, Program
from pytc.uncollected import uncollected

_BUILDERS = frozenset(
    (*sys.stdlib_module_names, "pytc", "jax", "jaxlib", "numpy", "ml_dtypes", "equinox", "flax", "chex", "optax")
)
"""Packages whose own code builds containers of whatever it is given."""

_FUNCTIONS = (getattr, isinstance, iter, len, setattr, vars, object.__new__, tuple.__new__, dict.__new__, list.__new__)
"""Functions of the interpreter's that do the same for all arrays of a type."""
_METHODS = frozenset("append copy extend get items keys setdefault update values".split())
"""Methods of its containers that do."""
_CONTAINERS = (dict, list, tuple, set, frozenset, types.MappingProxyType)

_INSTRUCTIONS = frozenset(
    """BINARY_SLICE BUILD_CONST_KEY_MAP BUILD_LIST BUILD_MAP BUILD_SET BUILD_SLICE BUILD_TUPLE CALL CALL_FUNCTION_EX
    CALL_INTRINSIC_1 CALL_KW COPY COPY_FREE_VARS DELETE_FAST DICT_MERGE DICT_UPDATE END_FOR FOR_ITER GET_ITER IS_OP
    JUMP_BACKWARD JUMP_FORWARD KW_NAMES LIST_APPEND LIST_EXTEND LIST_TO_TUPLE LOAD_ATTR LOAD_CLOSURE LOAD_CONST
    LOAD_DEREF LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST LOAD_GLOBAL LOAD_METHOD LOAD_SUPER_ATTR
    MAKE_CELL MAKE_FUNCTION MAP_ADD NOP POP_TOP PRECALL PUSH_NULL RERAISE RESUME RETURN_CONST RETURN_GENERATOR
    RETURN_VALUE SET_ADD SET_FUNCTION_ATTRIBUTE SET_UPDATE STORE_ATTR STORE_DEREF STORE_FAST STORE_FAST_LOAD_FAST
    STORE_FAST_STORE_FAST SWAP UNPACK_EX UNPACK_SEQUENCE YIELD_VALUE""".split()
)
"""Instructions that do the same whatever the values are. (What a `RERAISE` passes on was raised by another one.)"""
_ON_NONE = ("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")
_ON_TRUTH = ("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")


def doubt_of(program: Program) -> str:
    """The function that is not certain to do nothing but build, in words, among those that put the result of a program
    together; empty if all are."""
    return doubtful(program.out_tree, [_standing_for(program, output.origin) for output in program.outputs])


def _standing_for(program: Program, origin: Computed | Passed | Kept) -> Any:
    """What stands for a leaf of the result before it is there."""
    match origin:
        case Kept(value):
            return value
        case Passed(leaf):
            aval: Any = program.leaves[leaf].aval
        case Computed(index):
            aval = program.out_avals[index]
    return ArrayOf(aval.shape, aval.dtype) if hasattr(aval, "shape") else object()


class ArrayOf(NamedTuple):
    """An array that is not there yet."""

    shape: tuple[int, ...]
    dtype: Any


def doubtful(tree: PyTreeDef, leaves: Sequence[Any]) -> str:
    """The same of those that unflatten a tree with these leaves, of which an `ArrayOf` stands for an array."""
    if is_plain_tree(tree):
        return ""
    if sys.getprofile() is not None:
        return "a function that is not known, since a profiler was on when the function was compiled,"
    seen = _Seen()
    arrays = {k: leaf for k, leaf in enumerate(leaves) if type(leaf) is ArrayOf}

    def unflatten(*tracers: Any) -> None:
        standing = dict(zip(arrays, tracers, strict=True))
        given = [standing.get(k, leaf) for k, leaf in enumerate(leaves)]
        sys.setprofile(seen)
        try:
            tree.unflatten(given)
        finally:
            sys.setprofile(None)

    try:
        with uncollected():
            types: list[Any] = [jax.ShapeDtypeStruct(*each) for each in arrays.values()]  # type: ignore[no-untyped-call]
            computed = jax.make_jaxpr(unflatten)(*types)
    except Exception as error:  # users' code, which may raise anything
        if is_from_outside(error):
            raise
        return seen.last
    if may_call_python(computed):
        return next((f"`{code.co_qualname}`" for code in seen.codes), seen.last)
    return next((f"`{code.co_qualname}`" for code in seen.codes if not _only_builds(code)), seen.odd)


class _Seen:
    """A profile function that notes what code runs, except that of `_BUILDERS`."""

    def __init__(self) -> None:
        self.codes: dict[CodeType, None] = {}
        """The code of functions written in Python."""
        self.odd = ""
        """A function written in C that may do anything, in words; empty if there is none."""
        self.last = "a constructor"
        """The function that was called last, in words."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event not in ("call", "c_call"):
            return
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _BUILDERS:
            return
        self.last = f"`{frame.f_code.co_qualname}`"
        if event == "call":
            self.codes[frame.f_code] = None
        elif not _is_certain(arg):
            self.odd = f"`{arg.__qualname__}`, which `{frame.f_code.co_qualname}` calls,"


def _is_certain(function: Any) -> bool:
    """Whether a function written in C is one of those known to build and assign."""
    owner = getattr(function, "__self__", None)
    return any(function == each for each in _FUNCTIONS) or (
        type(owner) in _CONTAINERS and function.__name__ in _METHODS
    )


def _only_builds(code: CodeType) -> bool:
    """Whether no instruction of a function depends on values, as of CPython 3.11 to 3.13."""
    instructions = [each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "EXTENDED_ARG")]
    given = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}  # and not assigned to anything else so far

    def is_given(n: int) -> bool:
        """Whether instruction `n` loads a parameter, or an item of one."""
        if n > 1 and instructions[n].opname == "BINARY_SUBSCR" and instructions[n - 1].opname == "LOAD_CONST":
            return is_given(n - 2)
        return n >= 0 and instructions[n].opname == "LOAD_FAST" and instructions[n].argval in given

    for n, each in enumerate(instructions):
        name, before = each.opname, instructions[n - 1].opname if n else ""
        if name.startswith("STORE_FAST"):
            given.difference_update(each.argval if isinstance(each.argval, tuple) else (each.argval,))
        known = (
            name in _INSTRUCTIONS
            or (name in _ON_NONE and is_given(n - 1))
            or (name in _ON_TRUTH and before == "IS_OP" and is_given(n - 3))
            or (name == "BINARY_SUBSCR" and before == "BUILD_SLICE")
            or (name in ("BINARY_SUBSCR", "STORE_SUBSCR") and before == "LOAD_CONST")
        )
        if not known:
            return False
    return True
