"""Whether the code that puts a result together may raise, or look at anything but what it is given.

When `tree_unflatten` runs, the arguments are gone: if it raised then, an exception handler, or an attribute, would be
left with a deleted array. A constructor that checks values does that (a `__post_init__` that raises at NaN). And what
it reads elsewhere may be an array that is gone.

Which code runs is observed: the tree is unflattened once while JAX traces, with tracers in place of arrays. The next
time it will do the same, whatever the values are, if

- it did not raise now, as what asks a tracer for its value does (`float(x)`, `if x > 0`), and what it computed by JAX
  was made of the arrays alone;
- it reads only what it is given, what it builds, classes and functions (`_Reader`): nothing that others may change or
  set anew meanwhile;
- it calls no functions written in C but a few that build and assign;
- it handles no exceptions, and does not compare or branch, but on the identity of what it is given.

What a few packages do themselves, among them JAX, is taken to be of that kind (`_BUILDERS`); what they call is not.
"""

from __future__ import annotations

import collections
import dataclasses
import dis
import sys
import types
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from pytc.classes import attributes_of, bases_of, defined, defines
from pytc.interrupt import is_from_handler
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
_JAXS_OWN = (dict, collections.OrderedDict, collections.defaultdict)
"""Nodes whose data are keys."""
_CHANGING = (list, dict, set, bytearray, collections.deque, np.ndarray, jax.Array, Iterator)
_SENTINELS = tuple(type(each) for each in (dataclasses.MISSING, dataclasses._HAS_DEFAULT_FACTORY))  # type: ignore[attr-defined]
_UNKNOWN = object()


class _Instruction(NamedTuple):
    """One that does one thing: CPython 3.13 has some for two."""

    opname: str
    argval: Any


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
    if not all(_is_fixed(data) for kind, data in nodes(tree) if kind not in _JAXS_OWN):
        return Unflattening("a constructor that is given what others may change")
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
        if is_from_handler(error):
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
        self.certain: set[tuple[int, ...]] = set()
        """Code that has been looked at, by its id, and those of its globals and of the class that it is for."""

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
        else:
            reader = _Reader(frame, self.kinds)
            key = id(code), id(frame.f_globals), id(reader.kind)
            if key not in self.certain or code.co_freevars:
                self.certain.add(key)
                if not reader.only_builds():
                    self.odd = self.last


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


def _is_fixed(value: Any) -> bool:
    """Whether what the interpreter's own functions find in a value stays as it is. (Where a dictionary or a list has
    something in it, and nothing that does not stay, it is taken for one that was made for its node.)"""
    if isinstance(value, tuple | frozenset):
        return all(_is_fixed(each) for each in value)
    if type(value) in (list, dict):
        return bool(value) and _is_fixed(tuple(value.items() if type(value) is dict else value))
    return not isinstance(value, _CHANGING)


def _is_code(value: Any) -> bool:
    """Whether it is a class, a module, or a function. (Those that `functools` makes call others, by what they are
    given.)"""
    if type(value) is types.FunctionType:
        return value.__globals__.get("__name__") != "functools"
    if type(value) is types.BuiltinFunctionType:
        return isinstance(value.__self__, type | types.ModuleType)  # else it is a method of some object
    return isinstance(value, _CODE)


class _Reader:
    """What the bytecode of a function that begins tells, as of CPython 3.11 to 3.13."""

    def __init__(self, frame: FrameType, kinds: set[int]) -> None:
        """`kinds` has the ids of the classes of nodes."""
        code = frame.f_code
        self.frame = frame
        self.instructions = _single(code)
        self.given = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
        """Parameters that nothing has been assigned to so far."""
        self.first = code.co_varnames[0] if code.co_argcount else ""
        self.owner = frame.f_locals.get(self.first)
        kind = self.owner if isinstance(self.owner, type) else type(self.owner)
        self.kind = kind if id(kind) in kinds else None
        """The class of nodes that the first parameter is, or is of."""
        self.stored: set[str] = set()
        """Attributes that something was assigned to so far."""

    def only_builds(self) -> bool:
        """Whether the function does the same each time, whatever the values are."""
        for n, each in enumerate(self.instructions):
            if not (self._is_known(n, each.opname) and self._reads_code(n, each.opname)):
                return False
            if each.opname == "STORE_FAST":
                self.given.discard(each.argval)
            elif each.opname == "STORE_ATTR":
                self.stored.add(each.argval)
        return True

    def _is_known(self, n: int, name: str) -> bool:
        before = self.instructions[n - 1].opname if n else ""
        if name in _SUBSCRIPTS:
            return before in ("LOAD_CONST", "BUILD_SLICE") and not self._is_loaded(
                n - (2 if before == "LOAD_CONST" else 4)
            )
        return (
            name in _BUILDING
            or (name in _ON_NONE and self._is_given(n - 1))
            or (name in _ON_TRUTH and before == "IS_OP" and self._is_given(n - 3))
        )

    def _is_given(self, n: int) -> bool:
        """Whether instruction `n` loads a parameter, or an item of one."""
        if n > 1 and self.instructions[n].opname == "BINARY_SUBSCR" and self.instructions[n - 1].opname == "LOAD_CONST":
            return self._is_given(n - 2)
        return n >= 0 and self.instructions[n].opname == "LOAD_FAST" and self.instructions[n].argval in self.given

    def _is_loaded(self, n: int) -> bool:
        """Whether instruction `n` loads what does not belong to the function."""
        return n >= 0 and self.instructions[n].opname in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME")

    def _reads_code(self, n: int, name: str) -> bool:
        """Whether an instruction that reads a global, an outer function's variable or an attribute reads code, or what
        the function was given or has built."""
        if self._is_loaded(n):
            value = self._loaded(n)
            if name == "LOAD_DEREF" and type(value) in (tuple, list) and value:
                return all(type(each) is str for each in value)  # the names of fields, which a decorator has found
        elif name in _ATTRIBUTES:
            attribute = self.instructions[n].argval
            if attribute in _OF_ARRAYS or attribute in _METHODS:
                return True
            value = self._attribute(n - 1, attribute)
        elif name == "LOAD_SUPER_ATTR":
            value = self._inherited(self.instructions[n].argval)
        else:
            return True
        return _is_code(value) or type(value) in _SENTINELS or _is_equinoxs(value)

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
            return self._own(name)
        if each.opname == "CALL" and [i.argval for i in self.instructions[max(n - 2, 0) : n - 1]] == ["super"]:
            return self._inherited(name)  # on CPython 3.11
        if self._is_loaded(n):
            return _member(self._loaded(n), name)
        if each.opname in _ATTRIBUTES:
            return _member(self._attribute(n - 1, each.argval), name)
        return _UNKNOWN

    def _own(self, name: str) -> Any:
        """What the attribute of a name is of the first parameter, where that is a node or a class of nodes."""
        if self.kind is None:
            return _UNKNOWN
        if name in self.stored or (self.owner is not self.kind and name in getattr(self.owner, "__dict__", ())):
            return type
        for kind in (self.kind, *([type(self.kind)] if self.owner is self.kind else [])):
            if defines(kind, name):
                return defined(kind, name)
        return type

    def _inherited(self, name: str) -> Any:
        """What `super()` has under a name: code, if that is what all classes have of which it may be."""
        bases = bases_of(self.kind) if self.kind is not None else ()
        found = [attributes_of(base)[name] for base in bases if name in attributes_of(base)]
        return next((each for each in found if not _is_code(each)), type) if found else _UNKNOWN


def _single(code: CodeType) -> list[_Instruction]:
    """The instructions of a function, each of which does one thing."""
    found = []
    for each in dis.get_instructions(code):
        names = each.opname.split("_FAST_") if each.opname.count("_FAST") == 2 else [each.opname]
        if len(names) == 2 and isinstance(each.argval, tuple):
            both = f"{names[0]}_FAST", names[1]
            found += [_Instruction(name, value) for name, value in zip(both, each.argval, strict=True)]
        elif each.opname not in ("CACHE", "EXTENDED_ARG", "PUSH_NULL"):
            found.append(_Instruction(each.opname, each.argval))
    return found


def _is_equinoxs(value: Any) -> bool:
    """Whether it is what stands for a missing attribute in Equinox's modules."""
    return attributes_of(type(value)).get("__module__") == "equinox._module._flatten"


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
