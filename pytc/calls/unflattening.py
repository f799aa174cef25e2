"""Whether the code that puts a result together may raise, or look at anything but what it is given.

When `tree_unflatten` runs, the arguments are gone: if it raised then, an exception handler, or an attribute, would be
left with a deleted array. A constructor that checks values does that (a `__post_init__` that raises at NaN). And what
it reads elsewhere may be an array that is gone.

Which code runs is observed: the tree is unflattened once while JAX traces, with tracers in place of arrays. The next
time it will do the same, whatever the values are, if

- it did not raise now, as what asks a tracer for its value does (`float(x)`, `if x > 0`), and what it computed by JAX
  was made of the arrays alone;
- it reads only what it is given, what it builds, classes, functions and constants (`_Reader`): no object that others
  may change meanwhile;
- it calls no functions written in C but a few that build and assign;
- it handles no exceptions, and branches only on what cannot change: not on a constant that might be set anew, nor on
  anything that tells an array from a tracer.

What a few packages do themselves, among them JAX, is taken to be of that kind (`_BUILDERS`); what they call is not.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from pytc.classes import attributes_of, defined
from pytc.interrupt import is_from_outside
from pytc.jax_compat.effects import may_call_python
from pytc.jax_compat.jaxprs import ClosedJaxpr, Var
from pytc.jax_compat.trees import is_plain_tree, nodes
from pytc.program import Computed, Kept, Passed, Program
from pytc.uncollected import uncollected

_BUILDERS = frozenset(
    """pytc jax jaxlib numpy ml_dtypes equinox flax chex optax jax_dataclasses jax_md penzai simple_pytree abc
    collections copyreg dataclasses enum types typing""".split()
)
"""Packages whose own code builds containers of whatever it is given, or asks a tracer for its value."""

_FUNCTIONS = (isinstance, iter, len, setattr, object.__new__, tuple.__new__, dict.__new__, list.__new__)
"""Functions of the interpreter's that do the same for all arrays of a type."""
_METHODS = frozenset("append copy extend get items keys setdefault update values".split())
"""Methods of its containers that do."""
_CONTAINERS = (dict, list, tuple, set, frozenset, types.MappingProxyType)
_OF_ARRAYS = frozenset(("shape", "dtype", "ndim", "size", "__dict__"))
"""Attributes that a tracer has as the array does, and that which has the attributes of any object."""
_TELL_TRACERS = frozenset(("isinstance", "issubclass", "type", "hasattr", "callable", "Tracer"))
"""Names in code that may tell an array from a tracer."""

_BUILDING = frozenset(
    """BINARY_SLICE BUILD_CONST_KEY_MAP BUILD_LIST BUILD_MAP BUILD_SET BUILD_SLICE BUILD_TUPLE CALL CALL_FUNCTION_EX
    CALL_INTRINSIC_1 CALL_KW COPY COPY_FREE_VARS DELETE_FAST DICT_MERGE DICT_UPDATE END_FOR FOR_ITER GET_ITER IS_OP
    JUMP_BACKWARD JUMP_FORWARD KW_NAMES LIST_APPEND LIST_EXTEND LIST_TO_TUPLE LOAD_ATTR LOAD_CLOSURE LOAD_CONST
    LOAD_DEREF LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST LOAD_GLOBAL LOAD_METHOD LOAD_SUPER_ATTR
    MAKE_CELL MAKE_FUNCTION MAP_ADD NOP POP_TOP PRECALL PUSH_NULL RERAISE RESUME RETURN_CONST RETURN_GENERATOR
    RETURN_VALUE SET_ADD SET_FUNCTION_ATTRIBUTE SET_UPDATE STORE_ATTR STORE_DEREF STORE_FAST STORE_FAST_LOAD_FAST
    STORE_FAST_STORE_FAST SWAP UNPACK_EX UNPACK_SEQUENCE YIELD_VALUE""".split()
)
"""Instructions that do the same whatever the values are. (What a `RERAISE` passes on was raised by another one.)"""
_DECIDING = frozenset(
    """BINARY_OP BUILD_STRING COMPARE_OP CONTAINS_OP CONVERT_VALUE FORMAT_SIMPLE FORMAT_VALUE FORMAT_WITH_SPEC
    JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP LOAD_ASSERTION_ERROR RAISE_VARARGS TO_BOOL UNARY_NEGATIVE
    UNARY_NOT""".split()
)
"""Instructions that may do something else, or raise, for other values: all conditional jumps, too."""
_SUBSCRIPTS = ("BINARY_SUBSCR", "STORE_SUBSCR")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_ON_NONE = ("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")
_ON_TRUTH = ("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")

_CODE = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod, property),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(types.MemberDescriptorType, types.GetSetDescriptorType),
)
"""Kinds of objects that code consists of: if one is called, it is seen what that does."""
_SINGLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), np.dtype, object)
_UNKNOWN = object()


class Unflattening(NamedTuple):
    """What has been seen of the code that puts a result together."""

    doubt: str = ""
    """The function that is not certain to do nothing but build, in words; empty if all are."""
    depth: int = 0
    """How many frames deep it is."""


def observed(program: Program) -> Unflattening:
    """What is seen of the code that puts the result of a program together."""
    return of_tree(program.out_tree, [_standing_for(program, output.origin) for output in program.outputs])


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


def of_tree(tree: PyTreeDef, leaves: Sequence[Any]) -> Unflattening:
    """The same of the code that unflattens a tree with these leaves, of which an `ArrayOf` stands for an array."""
    if is_plain_tree(tree):
        return Unflattening()
    if sys.getprofile() is not None:
        return Unflattening("a function that is not known, since a profiler was on when the function was compiled,")
    seen = _Seen(tree)
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
            types_of_arrays: list[Any] = [
                jax.ShapeDtypeStruct(*each)  # type: ignore[no-untyped-call]
                for each in arrays.values()
            ]
            computed = jax.make_jaxpr(unflatten)(*types_of_arrays)
    except Exception as error:  # users' code, which may raise anything
        if is_from_outside(error):
            raise
        return Unflattening(seen.last, seen.depth)
    return Unflattening(seen.odd or (seen.first if _may_raise(computed) else ""), seen.depth)


def _may_raise(computed: ClosedJaxpr) -> bool:
    """Whether what was computed may raise where it ran before: checks of values call Python, and what is not made of
    the arrays alone is sent to a device, which may be forbidden by then."""
    sent = (v for eqn in computed.jaxpr.eqns for v in eqn.invars or [None] if not isinstance(v, Var))
    return may_call_python(computed) or bool(computed.consts) or any(True for _ in sent)


class _Seen:
    """A profile function that looks at what code runs, except that of `_BUILDERS`."""

    def __init__(self, tree: PyTreeDef) -> None:
        self.kinds = {id(kind) for kind, _ in nodes(tree)}
        self.odd = ""
        """A function that may do anything, in words; empty if there is none."""
        self.first = self.last = "a constructor"
        """The functions that were called first and last, in words."""
        self.depth = 0
        """How many frames there were at once."""
        self.certain: set[int] = set()
        """Ids of code without variables of outer functions that has been looked at."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event not in ("call", "c_call"):
            return
        self.depth = max(self.depth, _distance(frame))
        if self.odd:
            return
        # What the standard library does for a builder is the builder's.
        code, user = frame.f_code, _of_users(frame)
        package = _package(user)
        if package in _BUILDERS and (user is frame or package != "pytc"):
            return
        self.last = f"`{user.f_code.co_qualname}`"
        if self.first == "a constructor":
            self.first = self.last
        if event == "c_call":
            if not _is_certain(arg):
                self.odd = f"`{arg.__qualname__}`, which {self.last} calls,"
        elif id(code) not in self.certain:
            if not _Reader(frame, self.kinds).only_builds():
                self.odd = self.last
            elif not code.co_freevars:
                self.certain.add(id(code))


def _distance(frame: FrameType) -> int:
    """How many frames there are from one of pytc's on."""
    distance, above = 0, frame
    while _package(above) != "pytc" and above.f_back is not None:
        distance, above = distance + 1, above.f_back
    return distance


def _of_users(frame: FrameType) -> FrameType:
    """The innermost frame on the way here that is no standard library's, and has a module: what is made of text belongs
    to who calls it."""
    above: FrameType | None = frame
    while above is not None and ((package := _package(above)) in sys.stdlib_module_names or not package):
        above = above.f_back
    return above or frame


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_certain(function: Any) -> bool:
    """Whether a function written in C is one of those known to build and assign."""
    owner = getattr(function, "__self__", None)
    return any(function == each for each in _FUNCTIONS) or (
        type(owner) in _CONTAINERS and function.__name__ in _METHODS
    )


def _is_constant(value: Any) -> bool:
    """Whether it is one, or a tuple of some; or an object that is nothing but itself."""
    kind = type(value)
    if kind in (tuple, frozenset):
        return all(_is_constant(each) for each in value)
    package = str(attributes_of(kind).get("__module__")).partition(".")[0]
    is_sentinel = package in ("dataclasses", "equinox", "flax", "chex") and not getattr(value, "__dict__", None)
    return kind in _SINGLE or isinstance(value, np.dtype) or is_sentinel


def _is_code(value: Any) -> bool:
    """Whether it is a class, a module, or a function. (Those that `functools` makes call others, by what they are
    given.)"""
    if type(value) is types.FunctionType:
        return value.__globals__.get("__name__") != "functools"
    return isinstance(value, _CODE)


class _Reader:
    """What the bytecode of a function that begins tells, as of CPython 3.11 to 3.13."""

    def __init__(self, frame: FrameType, kinds: set[int]) -> None:
        """`kinds` has the ids of the classes of nodes."""
        code = frame.f_code
        self.frame, self.kinds = frame, kinds
        self.instructions = [
            each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "EXTENDED_ARG", "PUSH_NULL")
        ]
        self.given = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
        """Parameters that nothing has been assigned to so far."""
        self.first = code.co_varnames[0] if code.co_argcount else ""
        self.reads_constants = self.decides = False
        """Whether it reads a constant that might be set anew; and whether it might do something else for one."""

    def only_builds(self) -> bool:
        """Whether the function does the same each time, whatever the values are."""
        for n, each in enumerate(self.instructions):
            name = each.opname
            if name.startswith("STORE_FAST"):
                self.given.difference_update(each.argval if isinstance(each.argval, tuple) else (each.argval,))
            if not (self._is_known(n, name) and self._reads_code(n, name)):
                return False
        names = {*self.frame.f_code.co_names}
        return not self.decides or not (self.reads_constants or names & _TELL_TRACERS)

    def _is_known(self, n: int, name: str) -> bool:
        before = self.instructions[n - 1].opname if n else ""
        if name in _SUBSCRIPTS:
            return before in ("LOAD_CONST", "BUILD_SLICE") and not self._is_loaded(
                n - (2 if before == "LOAD_CONST" else 4)
            )
        if (name in _ON_NONE and self._is_given(n - 1)) or (
            name in _ON_TRUTH and before == "IS_OP" and self._is_given(n - 3)
        ):
            return True
        if name in _DECIDING or ("JUMP" in name and "_IF_" in name):
            self.decides = True
            return True
        return name in _BUILDING

    def _is_given(self, n: int) -> bool:
        """Whether instruction `n` loads a parameter, or an item of one."""
        if n > 1 and self.instructions[n].opname == "BINARY_SUBSCR" and self.instructions[n - 1].opname == "LOAD_CONST":
            return self._is_given(n - 2)
        return n >= 0 and self.instructions[n].opname == "LOAD_FAST" and self.instructions[n].argval in self.given

    def _is_loaded(self, n: int) -> bool:
        """Whether instruction `n` loads what does not belong to the function."""
        return n >= 0 and self.instructions[n].opname in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME")

    def _reads_code(self, n: int, name: str) -> bool:
        """Whether an instruction that reads a global, an outer function's variable or an attribute reads code, a
        constant, or what the function was given or has built."""
        if self._is_loaded(n):
            value = self._loaded(n)
        elif name in _ATTRIBUTES:
            attribute = self.instructions[n].argval
            if attribute in _OF_ARRAYS or attribute in _METHODS:
                return True
            value = self._attribute(n - 1, attribute)
        else:
            return True
        if _is_code(value):
            return True
        self.reads_constants = True
        if name == "LOAD_DEREF" and type(value) in (list, dict) and value:
            value = tuple(value)  # the names of fields, which a decorator has found
        return value is not _UNKNOWN and _is_constant(value)

    def _loaded(self, n: int) -> Any:
        """What an instruction loads that loads a name."""
        each, frame = self.instructions[n], self.frame
        if each.opname == "LOAD_DEREF":
            # A variable of its own that inner functions read has no value yet.
            return frame.f_locals.get(each.argval, _UNKNOWN if each.argval in frame.f_code.co_freevars else type)
        return frame.f_globals.get(each.argval, frame.f_builtins.get(each.argval, _UNKNOWN))

    def _attribute(self, n: int, name: str) -> Any:
        """What the attribute of a name is of what instruction `n` loads. Where it is one that the function, or another
        one that was looked at, has assigned, a class stands for it."""
        each = self.instructions[n]
        if each.opname == "LOAD_FAST" and each.argval == self.first and self.first in self.given:
            owner = self.frame.f_locals[self.first]
            kind = owner if isinstance(owner, type) else type(owner)
            if id(kind) not in self.kinds:
                return _UNKNOWN
            found = defined(kind, name)
            return type if found is None else found
        if each.opname == "CALL" and [i.argval for i in self.instructions[max(n - 2, 0) : n - 1]] == ["super"]:
            return type  # a method, which is looked at when it runs (CPython 3.11)
        if self._is_loaded(n):
            return _member(self._loaded(n), name)
        if each.opname in _ATTRIBUTES:
            return _member(self._attribute(n - 1, each.argval), name)
        return _UNKNOWN


def _member(owner: Any, name: str) -> Any:
    """What a module or a class has under a name."""
    if type(owner) is types.ModuleType:
        found = vars(owner).get(name, _UNKNOWN)
        of_builder = owner.__name__.partition(".")[0] in _BUILDERS
        return type if of_builder and callable(found) else found
    if isinstance(owner, type):
        found = defined(owner, name)
        return _UNKNOWN if found is None else found
    return _UNKNOWN
