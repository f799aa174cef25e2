"""Whether a function that puts a part of a result together does nothing but build.

Its bytecode is executed symbolically, for CPython 3.11 to 3.13, with what it was called with. Of a value it is known
what kind of thing it is, and each instruction must be one of those that do the same each time with such things, and run
no code but functions written in Python, which are looked at by themselves. So

- what is called is told: a function written in Python, a class whose objects such functions make and which has no
  `__del__`, or one of a few classes and functions of the interpreter's that build containers;
- stored is only into what was made here: nothing else changes, and nothing that was there before is dropped;
- looked into is only what was made here, and containers that do not change;
- globals, and variables of functions that have returned, are read if they are code;
- it branches only on the identity of what is the same each time, and handles no exceptions.

What a few packages' own code does (`BUILDERS`) is taken to be of that kind, if it is handed nothing but arrays, code
and what was made here.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import gc
import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, TypeAlias

from pytc.classes import attributes_of, bases_of, defined, defines
from pytc.jax_compat.running import Tracer
from pytc.ownership.interpreter import UNBOUND, running_function, variable

BUILDERS = frozenset(
    """pytc jax jaxlib numpy ml_dtypes equinox flax chex optax jax_dataclasses jax_md penzai simple_pytree abc
    collections copyreg dataclasses enum types typing""".split()
)
"""Packages whose own code builds containers of whatever it is given, or asks a tracer for its value."""

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_CODE = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod, property),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(types.MemberDescriptorType, types.GetSetDescriptorType),
)
"""Kinds of objects that code consists of."""
_GETTERS = (property, types.MemberDescriptorType, types.GetSetDescriptorType)
_SENTINELS = tuple(type(each) for each in (dataclasses.MISSING, dataclasses._HAS_DEFAULT_FACTORY))  # type: ignore[attr-defined]
CONTAINERS = (tuple, list, dict, set, frozenset)
"""The interpreter's."""
METHODS = frozenset("append copy extend get items keys setdefault update values".split())
"""Methods of containers that do the same whatever is in these."""
_OF_ARRAYS = frozenset(("shape", "dtype", "ndim", "size"))
"""Attributes that a tracer has as the array does."""
FUNCTIONS = (isinstance, iter, len, setattr, object.__new__, tuple.__new__, dict.__new__, list.__new__)
"""Functions of the interpreter's that do the same for all arrays of a type."""
_OF_BASES = {
    name: tuple(attributes_of(base)[name] for base in (object, *CONTAINERS) if name in attributes_of(base))
    for name in ("__new__", "__init__", "__setattr__", "__getattribute__")
}
"""What classes inherit from those of the interpreter that they may be derived from."""
_MANY = 100_000
"""With more young objects than that it is not looked for which are new."""
_LONGEST = 20_000
"""Instructions that are executed at most."""

_IGNORED = frozenset("CACHE EXTENDED_ARG NOP RESUME PRECALL KW_NAMES MAKE_CELL COPY_FREE_VARS".split())
_ON_NONE = frozenset(
    f"POP_JUMP_{where}IF_{sense}NONE" for where in ("", "FORWARD_", "BACKWARD_") for sense in ("", "NOT_")
)
_ON_TRUTH = frozenset(f"POP_JUMP_{where}IF_{sense}" for where in ("", "FORWARD_") for sense in ("TRUE", "FALSE"))
_OF_HANDLERS = frozenset("PUSH_EXC_INFO BEFORE_WITH SETUP_FINALLY RAISE_VARARGS LOAD_ASSERTION_ERROR".split())
_BUILT: dict[str, type] = {"BUILD_LIST": list, "BUILD_SET": set, "BUILD_MAP": dict, "BUILD_CONST_KEY_MAP": dict}
_COMPREHENSIONS: dict[str, type] = {"<listcomp>": list, "<setcomp>": set, "<dictcomp>": dict}
_LIST_TO_TUPLE = 6
"""The argument of `CALL_INTRINSIC_1` for that."""


class Kind(enum.Enum):
    """Of what is known by its kind alone."""

    LEAF = enum.auto()
    """An array, which may be the same one as another leaf."""
    ATOM = enum.auto()
    """A number or a text, or what an array's type tells."""
    STATIC = enum.auto()
    """An object that was there before, and that others may have."""
    UNKNOWN = enum.auto()
    """Any of these."""
    NULL = enum.auto()
    """Nothing: what the interpreter puts on the stack beside a function."""
    SUPER = enum.auto()
    """`super()`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """An object that is the same one each time and does not change: code, or a constant."""

    value: Any
    literal: bool = False
    """Whether the function's code has it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and other.value is self.value and other.literal == self.literal

    def __hash__(self) -> int:
        return hash((id(self.value), self.literal))


@dataclasses.dataclass(frozen=True)
class Made:
    """An object that is new, of a class that `is_open`."""

    kind: type
    attributes: frozenset[str] = frozenset()
    """Those in its `__dict__` when the function began."""


@dataclasses.dataclass(frozen=True)
class Container:
    """One of the interpreter's containers that is new, or does not change; or a slice."""

    kind: type
    items: tuple[Value, ...] | None = None
    """Those of a tuple, or the bounds of a slice; None if they are not told."""
    new: bool = True


@dataclasses.dataclass(frozen=True)
class Several:
    """An iterator."""

    item: Value


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of a container."""

    of: Container
    name: str


@dataclasses.dataclass(frozen=True)
class Inherited:
    """What `super()` has under a name: one of these."""

    name: str
    among: tuple[Known, ...]


@dataclasses.dataclass(frozen=True)
class Truth:
    """The outcome of a comparison by identity; None if it is not told."""

    value: bool | None


Value: TypeAlias = Kind | Known | Made | Container | Several | Method | Inherited | Truth


class Odd(Exception):
    """The function may do something else the next time, or something that is not looked at."""


class Newcomers:
    """Which objects are new: made since this was, while no garbage was collected."""

    def __init__(self) -> None:
        self.are_told = gc.get_count()[0] < _MANY
        if self.are_told:
            gc.collect(0)  # what is young from now on is new
        self._new: set[int] = set()

    def has(self, value: Any) -> bool:
        """Whether the object is new."""
        if id(value) in self._new:
            return True
        found = self.are_told and any(each is value for each in reversed(gc.get_objects(0)))
        if found:
            self._new.add(id(value))
        return found


def only_builds(frame: FrameType, new: Newcomers, certain: set[Any]) -> bool:
    """Whether the function that begins in a frame does the same each time, whatever the values of arrays are, and
    nothing but build. `certain` remembers the functions, with kinds of arguments, of which that is known."""
    try:
        building = _Building(frame, new)
        key = frame.f_code, id(frame.f_globals), tuple(building.given.items())
        if key not in certain or frame.f_code.co_freevars:
            building.run()
            certain.add(key)
    except Odd:
        return False
    return True


def is_constant(value: Any) -> bool:
    """Whether the value never changes, and has nothing in it that does."""
    if type(value) in (tuple, frozenset):
        return all(is_constant(each) for each in value)
    return type(value) in _ATOMS or is_code(value)


def is_code(value: Any) -> bool:
    """Whether it is a class, a module, or a function. (Those that `functools` makes call others, by what they are
    given.)"""
    if type(value) is types.FunctionType:
        return value.__globals__.get("__name__") != "functools"
    if type(value) is types.BuiltinFunctionType:
        return isinstance(value.__self__, type | types.ModuleType)  # else it is a method of some object
    return isinstance(value, _CODE)


def is_open(kind: type) -> bool:
    """Whether objects of the class are made, and have their attributes read and set, by functions written in Python, or
    as those of `object` and of the interpreter's containers; and run no code when they die."""
    call = defined(type(kind), "__call__")
    return (
        (call is attributes_of(type)["__call__"] or type(call) is types.FunctionType)
        and all(_is_of_python(has := defined(kind, name)) or _is_among(has, own) for name, own in _OF_BASES.items())
        and not defines(kind, "__del__")
    )


def _is_among(value: Any, others: Iterable[Any]) -> bool:
    return any(value is each for each in others)


def _is_of_python(value: Any) -> bool:
    """Whether it is a function written in Python, as a class has it."""
    value = value.__func__ if type(value) in (staticmethod, classmethod) else value
    return type(value) is types.FunctionType


def _is_marker(value: Any) -> bool:
    """Whether it stands for a missing default or, in Equinox's modules, a missing attribute."""
    return type(value) in _SENTINELS or attributes_of(type(value)).get("__module__") == "equinox._module._flatten"


def package_of(space: dict[str, Any]) -> str:
    """The package of a function's globals."""
    return str(space.get("__name__", "")).partition(".")[0]


class _Building:
    """The symbolic execution of one function, from where it begins."""

    def __init__(self, frame: FrameType, new: Newcomers) -> None:
        self.frame, self.code, self.new = frame, frame.f_code, new
        self.instructions = list(dis.get_instructions(self.code))
        self.place = {each.offset: n for n, each in enumerate(self.instructions)}
        self.stored: set[str] = set()
        """Attributes that something was assigned to so far."""
        self.names: tuple[Any, ...] = ()
        """Those of the last arguments of the next call, up to CPython 3.12."""
        function = running_function(frame)
        self.defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        self.given = {name: self._told(value) for name, value in self._parameters()}
        """What the parameters have."""
        if self.code.co_flags & inspect.CO_VARKEYWORDS:
            self.given[self.code.co_varnames[len(self.given)]] = Container(dict)  # it is made for each call

    def run(self) -> None:
        """Raises `Odd` if the function may do anything but build."""
        if any(each.opname in _OF_HANDLERS for each in self.instructions):
            raise Odd
        ahead: list[tuple[int, tuple[Value, ...], dict[str, Value]]] = [(0, (), self.given)]
        states: dict[int, tuple[tuple[Value, ...], dict[str, Value]]] = {}
        for _ in range(_LONGEST):
            if not ahead:
                return
            at, stack, names = ahead.pop()
            if at in states:
                stack, names = _joined(states[at], (stack, names))
                if states[at] == (stack, names):
                    continue
            states[at] = stack, names
            left, variables = [*stack], {**names}
            for following, on_stack in self._step(at, left, variables):
                ahead.append((following, tuple(on_stack), variables))
        raise Odd

    # -- what values are ---

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        code = self.code
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        for number, name in enumerate(code.co_varnames[:count]):
            yield name, _contents(variable(self.frame, number))

    def _told(self, value: Any) -> Value:
        """What a function was given."""
        if isinstance(value, Tracer):
            return Kind.LEAF
        if (is_constant(value) and type(value) is not tuple) or _is_marker(value):
            return Known(value)
        if any(value is each for each in self.defaults):
            return Known(value) if is_constant(value) else Kind.STATIC
        kind = type(value)
        if kind is tuple:
            return Container(tuple, tuple([self._told(each) for each in value]))
        if kind in CONTAINERS:
            if self.new.has(value):
                return Container(kind)
            items = [*value, *value.values()] if kind is dict else [*value]
            return Container(kind, new=False) if items and all(is_constant(each) for each in items) else Kind.STATIC
        if issubclass(kind, Iterator) and kind.__module__ == "builtins" and self.new.has(value):
            of = gc.get_referents(value) if kind is type(iter(())) else []
            return Several(_item(self._told(of[0])) if of else Kind.UNKNOWN)
        if is_open(kind) and self.new.has(value):
            return Made(kind, frozenset(getattr(value, "__dict__", ())))
        return Kind.STATIC

    def _global(self, name: str) -> Value:
        value = self.frame.f_globals.get(name, self.frame.f_builtins.get(name, UNBOUND))
        if not (is_code(value) or _is_marker(value)):
            raise Odd
        return Known(value)

    def _outer(self, name: str) -> Value:
        """What a variable of an outer function has: code, or names of fields that a decorator has found, if it has
        returned."""
        code = self.code
        number = len({*code.co_varnames, *code.co_cellvars}) + code.co_freevars.index(name)
        cell = variable(self.frame, number)
        value = _contents(cell)
        if self.new.has(cell):
            return self._told(value)
        if type(value) in (tuple, list) and value and all(type(each) is str for each in value):
            return Container(type(value), new=False)
        if not (is_code(value) or _is_marker(value)):
            raise Odd
        return Known(value)

    # -- instructions ---

    def _step(self, at: int, stack: list[Value], names: dict[str, Value]) -> list[tuple[int, list[Value]]]:
        """Execute an instruction; return what may follow, with the stack then. Raises `Odd` for any that is not known
        to do the same each time."""
        instruction = self.instructions[at]
        name, argument, named = instruction.opname, instruction.arg or 0, instruction.argval
        if name in ("RETURN_VALUE", "RETURN_CONST"):
            return []
        if name in _ON_NONE or name in _ON_TRUTH:
            told = _is_none(stack.pop()) if name in _ON_NONE else _truth(stack.pop())
            jumps = None if told is None else told is not ("NOT_NONE" in name or "FALSE" in name)
            ways = ([] if jumps else [at + 1]) + ([] if jumps is False else [self.place[named]])
            return [(each, stack) for each in ways]
        if name in ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"):
            return [(self.place[named], stack)]
        if name == "KW_NAMES":
            self.names = self.code.co_consts[argument]  # (`argval` is not told by CPython 3.11)
        if name == "FOR_ITER":
            target, iterator = self.place[named], stack[-1]
            if not isinstance(iterator, Several):
                raise Odd
            behind = target + (self.instructions[target].opname == "END_FOR")
            # From CPython 3.13 on the iterator is dropped there.
            ended = stack if sys.version_info >= (3, 13) else stack[:-1]
            return [(at + 1, [*stack, iterator.item]), (behind, [*ended])]
        if not (name in _IGNORED or self._with_variables(instruction, stack, names)):
            self._with_the_stack(name, argument, named, stack)
        return [(at + 1, stack)]

    def _with_variables(self, instruction: dis.Instruction, stack: list[Value], names: dict[str, Value]) -> bool:
        """Execute an instruction if it reads or writes variables."""
        name, named = instruction.opname, instruction.argval
        both = name.split("_FAST_")
        if len(both) == 2 and isinstance(named, tuple):  # CPython 3.13 has some that do two things
            for each, of in zip((f"{both[0]}_FAST", both[1]), named, strict=True):
                self._with_variable(each, of, stack, names)
            return True
        if name == "LOAD_GLOBAL":
            stack += [Kind.NULL] * ((instruction.arg or 0) & 1)
            stack.append(self._global(named))
            return True
        return self._with_variable(name, named, stack, names)

    def _with_variable(self, name: str, named: Any, stack: list[Value], names: dict[str, Value]) -> bool:
        match name:
            case "LOAD_FAST" | "LOAD_FAST_CHECK":
                stack.append(_had(names, named))
            case "LOAD_FAST_AND_CLEAR":
                stack.append(names.pop(named, Kind.NULL))
            case "STORE_FAST":
                names[named] = stack.pop()
            case "DELETE_FAST":
                names.pop(named, None)
            case "LOAD_DEREF":
                stack.append(self._outer(named) if named in self.code.co_freevars else _had(names, named))
            case "STORE_DEREF" if named not in self.code.co_freevars:
                names[named] = stack.pop()
            case "LOAD_CLOSURE":
                stack.append(Kind.UNKNOWN)
            case _:
                return False
        return True

    def _with_the_stack(self, name: str, argument: int, named: Any, stack: list[Value]) -> None:
        match name:
            case "PUSH_NULL":
                stack.append(Kind.NULL)
            case "LOAD_CONST":
                stack.append(Known(named, literal=True))
            case "POP_TOP":
                stack.pop()
            case "COPY":
                stack.append(stack[-argument])
            case "SWAP":
                stack[-1], stack[-argument] = stack[-argument], stack[-1]
            case "RETURN_GENERATOR":
                stack.append(Kind.UNKNOWN)
            case "YIELD_VALUE":
                stack[-1] = Kind.UNKNOWN
            case "IS_OP":
                found = _identity(stack.pop(), stack.pop())
                stack.append(Truth(None if found is None else found is not bool(argument)))
            case "LOAD_ATTR" | "LOAD_METHOD" | "LOAD_SUPER_ATTR":
                self._load_attribute(name, argument, named, stack)
            case "STORE_ATTR":
                self._set(stack.pop(), Known(named))
                stack.pop()
            case "MAKE_FUNCTION":
                code = stack.pop()
                _drop(stack, argument.bit_count() if sys.version_info < (3, 13) else 0)
                stack.append(code)
            case "SET_FUNCTION_ATTRIBUTE":
                del stack[-2]
            case "CALL" | "CALL_KW" | "CALL_FUNCTION_EX":
                stack.append(self._called(name, argument, stack))
            case _:
                self._with_containers(name, argument, stack)

    def _load_attribute(self, name: str, argument: int, named: str, stack: list[Value]) -> None:
        if name == "LOAD_SUPER_ATTR":
            if _drop(stack, 3)[0] != Known(super):
                raise Odd
            stack.append(self._inherited(named))
        else:
            stack.append(self._attribute(stack.pop(), named))
        if name == "LOAD_METHOD" or (argument & 1 and sys.version_info >= (3, 12)):
            stack.append(Kind.NULL)  # what is loaded knows what it is of

    def _with_containers(self, name: str, argument: int, stack: list[Value]) -> None:
        match name:
            case "BUILD_TUPLE":
                stack.append(Container(tuple, _drop(stack, argument)))
            case "BUILD_SLICE":
                stack.append(Container(slice, _drop(stack, argument)))
            case "BUILD_LIST" | "BUILD_CONST_KEY_MAP":
                _drop(stack, argument + (name == "BUILD_CONST_KEY_MAP"))
                stack.append(Container(_BUILT[name]))
            case "BUILD_SET" | "BUILD_MAP":
                _check_keys(_drop(stack, argument * (1 + (name == "BUILD_MAP")))[:: 1 + (name == "BUILD_MAP")])
                stack.append(Container(_BUILT[name]))
            case "LIST_APPEND":
                stack.pop()
            case "SET_ADD" | "MAP_ADD":
                _check_keys(_drop(stack, 1 + (name == "MAP_ADD"))[:1])
            case "LIST_EXTEND":
                _item(stack.pop())
            case "SET_UPDATE":
                _check_keys([_item(stack.pop())])
            case "DICT_UPDATE" | "DICT_MERGE":
                _check_pairs(stack.pop())
            case "LIST_TO_TUPLE":
                stack[-1] = Container(tuple)
            case "CALL_INTRINSIC_1" if argument == _LIST_TO_TUPLE:
                stack[-1] = Container(tuple)
            case _:
                self._with_items(name, argument, stack)

    def _with_items(self, name: str, argument: int, stack: list[Value]) -> None:
        match name:
            case "GET_ITER":
                stack[-1] = Several(_item(stack[-1]))
            case "UNPACK_SEQUENCE":
                items = _items(stack.pop())
                parts = items if items is not None and len(items) == argument else (Kind.UNKNOWN,) * argument
                stack += reversed(parts)
            case "UNPACK_EX":
                _items(stack.pop())
                before, behind = argument & 0xFF, argument >> 8
                stack += [Kind.UNKNOWN] * behind + [Container(list)] + [Kind.UNKNOWN] * before
            case "BINARY_SUBSCR":
                key, owner = stack.pop(), stack.pop()
                stack.append(_part(owner, key))
            case "BINARY_SLICE":
                bounds = _drop(stack, 2)
                stack.append(_part(stack.pop(), Container(slice, bounds)))
            case "STORE_SUBSCR":
                key, owner, _ = stack.pop(), stack.pop(), stack.pop()
                if not _is_new(owner):
                    raise Odd
                _check_keys([key])
            case _:
                raise Odd

    # -- attributes ---

    def _attribute(self, owner: Value, name: str) -> Value:
        """What an attribute has."""
        match owner:
            case Kind.LEAF if name in _OF_ARRAYS:
                return Kind.ATOM
            case Container() if name in METHODS and owner.kind is not slice:
                return Method(owner, name)
            case Kind.SUPER:
                return self._inherited(name)
            case Made(kind):
                return self._of_object(owner, kind, name)
            case Known(types.ModuleType() as module):
                found = vars(module).get(name, UNBOUND)
                if is_code(found) or (callable(found) and module.__name__.partition(".")[0] in BUILDERS):
                    return Known(found)
            case Known(type() as kind):
                found = defined(kind, name) if defines(kind, name) else defined(type(kind), name)
                if is_code(found) and not isinstance(found, _GETTERS):
                    return Known(_function(found))
        raise Odd

    def _of_object(self, owner: Made, kind: type, name: str) -> Value:
        """What an attribute of a new object has: what was assigned, or what its class has."""
        if name == "__dict__" and type(defined(kind, name)) is types.GetSetDescriptorType:
            return Container(dict)
        if name == "__class__" and defined(kind, name) is attributes_of(object)[name]:
            return Known(kind)
        if name in owner.attributes or name in self.stored or not defines(kind, name):
            return Kind.UNKNOWN
        found = defined(kind, name)
        if type(found) is types.MemberDescriptorType:
            return Kind.UNKNOWN
        if type(found) is property:
            if _is_of_python(found.fget):
                return Kind.UNKNOWN
        elif is_code(found) or _is_marker(found):
            return Known(_function(found))
        elif _is_of_python(defined(type(found), "__get__")):
            return Kind.UNKNOWN
        raise Odd

    def _inherited(self, name: str) -> Value:
        """What `super()` has under a name: what one of the classes has that the first parameter may be of."""
        first = next(iter(self.given.values()), Kind.UNKNOWN)
        match first:
            case Made(kind) | Known(type() as kind):
                found = [attributes_of(base)[name] for base in bases_of(kind) if name in attributes_of(base)]
                if found and all(is_code(each) for each in found):
                    return Inherited(name, tuple(Known(_function(each)) for each in found))
        raise Odd

    def _set(self, owner: Value, name: Value) -> None:
        """Set an attribute of this name: only of what was made here."""
        if not isinstance(owner, Made):
            raise Odd
        if not isinstance(name, Known):
            return  # the name is one of those in a container that does not change
        found = defined(owner.kind, name.value) if isinstance(name.value, str) else None
        if type(found) is not types.MemberDescriptorType and defines(type(found), "__set__"):
            sets = found.fset if type(found) is property else defined(type(found), "__set__")
            if not _is_of_python(sets):
                raise Odd
        self.stored.add(name.value)

    # -- calls ---

    def _called(self, name: str, argument: int, stack: list[Value]) -> Value:
        """What a call returns."""
        if name == "CALL_FUNCTION_EX":
            named = _spread(stack.pop()) if argument & 1 else ()
            given = _spread(stack.pop())
        else:
            names = _items(stack.pop()) if name == "CALL_KW" else self.names
            count, self.names = len(names or ()), ()
            named, given = _drop(stack, count), _drop(stack, argument - count)
        first, second = _drop(stack, 2)
        if first is Kind.NULL:
            return self._result(second, given, named)
        return self._result(first, given if second is Kind.NULL else (second, *given), named)

    def _result(self, function: Value, arguments: Sequence[Value], named: Sequence[Value]) -> Value:
        """What a function returns for these arguments, and those that are passed by name."""
        is_tame = all(_is_tame(each) for each in (*arguments, *named))
        match function:
            case Known(CodeType() as code):
                if code.co_name in _COMPREHENSIONS:
                    return Container(_COMPREHENSIONS[code.co_name])
                return Several(Kind.UNKNOWN) if code.co_flags & inspect.CO_GENERATOR else Kind.UNKNOWN
            case Known(types.FunctionType() as python):
                if is_tame or package_of(python.__globals__) not in BUILDERS:
                    return Kind.UNKNOWN
            case Known(type() as kind):
                return _constructed(kind, arguments, is_tame)
            case Method(of, name):
                return _by_method(of, name, arguments)
            case Inherited(name, among):
                return self._by_super(name, among, (*arguments, *named))
            case Known(value):
                # One of a package that builds may be a jitted function of JAX's.
                home = str(getattr(value, "__module__", "")).partition(".")[0]
                if is_tame and home in BUILDERS and not is_code(value):
                    return Kind.UNKNOWN
                return self._by_c_code(value, (*arguments, *named))
        raise Odd

    def _by_super(self, name: str, among: Sequence[Known], arguments: Sequence[Value]) -> Value:
        own = _OF_BASES.get(name, ())
        if not all(type(each.value) is types.FunctionType or _is_among(each.value, own) for each in among):
            raise Odd
        if name == "__new__":
            match arguments:
                case [Known(type() as kind), *rest] if is_open(kind) and all(_is_tame(each) for each in rest):
                    return Made(kind)
            raise Odd
        if name == "__setattr__" and not isinstance(next(iter(self.given.values())), Made):
            raise Odd
        if name == "__init__" and not all(_is_of_python(each.value) or each.value is own[0] for each in among):
            for each in arguments:  # those of the interpreter's containers take other containers
                _check_pairs(each)
        return Kind.UNKNOWN

    def _by_c_code(self, value: Any, arguments: Sequence[Value]) -> Value:
        """What a function written in C returns."""
        match arguments:
            case [owner, name, _] if value is setattr or value is attributes_of(object)["__setattr__"]:
                self._set(owner, name)
                return Known(None)
            case [Made(), *_] if value is attributes_of(object)["__init__"]:
                return Known(None)
            case [Known(type() as kind), *rest] if any(value == each for each in FUNCTIONS[4:]) and is_open(kind):
                for each in rest if value == tuple.__new__ else ():
                    _item(each)
                return Made(kind)
            case [each] if value is iter:
                return Several(_item(each))
            case [Container() | Kind.LEAF] if value is len:
                return Kind.ATOM
            case [Known() | Made() | Container() | Kind.STATIC, Known() | Container()] if value is isinstance:
                return Kind.ATOM  # (of a tracer the answer may be another one than of the array)
        raise Odd


def _joined(
    one: tuple[tuple[Value, ...], dict[str, Value]], other: tuple[tuple[Value, ...], dict[str, Value]]
) -> tuple[tuple[Value, ...], dict[str, Value]]:
    """What is known where two ways meet."""
    if len(one[0]) != len(other[0]):
        raise Odd
    stack = tuple(a if a == b else Kind.UNKNOWN for a, b in zip(one[0], other[0], strict=True))
    names = {name: a if a == other[1][name] else Kind.UNKNOWN for name, a in one[1].items() if name in other[1]}
    return stack, names


def _drop(stack: list[Value], count: int) -> tuple[Value, ...]:
    """Take so many values from the stack."""
    if not count:
        return ()
    dropped = tuple(stack[-count:])
    del stack[-count:]
    return dropped


def _contents(value: Any) -> Any:
    """What a variable has, also if it is one that inner functions read."""
    if type(value) is not types.CellType:
        return value
    try:
        return value.cell_contents
    except ValueError:
        raise Odd from None


def _had(names: dict[str, Value], name: str) -> Value:
    if name not in names:
        raise Odd
    return names[name]


def _function(value: Any) -> Any:
    """What is called where a class has this."""
    return value.__func__ if type(value) in (staticmethod, classmethod) else value


def _items(value: Value) -> tuple[Value, ...] | None:
    """The items of a container, if they are told. Raises `Odd` for anything else."""
    match value:
        case Container(kind, items) if kind is not slice:
            return items
        case Known(tuple() as constant):
            return tuple(Known(each, literal=True) for each in constant)
    raise Odd


def _item(value: Value) -> Value:
    """What each item of a container or an iterator is."""
    if isinstance(value, Several):
        return value.item
    items = _items(value)
    if items and all(each == items[0] for each in items):
        return items[0]
    return Kind.ATOM if items and all(_is_atom(each) for each in items) else Kind.UNKNOWN


def _spread(value: Value) -> tuple[Value, ...]:
    """What is passed by `*` or `**`."""
    items = _items(value)
    return (Kind.UNKNOWN,) if items is None else items


def _is_atom(value: Value) -> bool:
    return value is Kind.ATOM or (isinstance(value, Known) and type(value.value) in _ATOMS)


def _check_keys(values: Iterable[Value]) -> None:
    """Raises `Odd` for what may not be a key the next time: a tracer can be one, and an array cannot."""
    if not all(_is_atom(each) for each in values):
        raise Odd


def _check_pairs(value: Value) -> None:
    """Raises `Odd` unless a dictionary can be made of it the next time, too."""
    match value:
        case Container(kind) if kind is dict:
            return
        case Several(Container(_, (key, _))):
            _check_keys([key])
            return
    raise Odd


def _part(owner: Value, key: Value) -> Value:
    """An item or a slice of a container, under a key that the code itself has."""
    if isinstance(key, Container) and key.kind is slice:
        if owner is Kind.ATOM:
            return owner
        items, bounds = _items(owner), key.items or ()
        told = items is not None and all(isinstance(each, Known) and each.literal for each in bounds)
        cut = slice(*(each.value for each in bounds if isinstance(each, Known)))
        return Container(owner.kind if isinstance(owner, Container) else tuple, items[cut] if items and told else None)
    if not (isinstance(key, Known) and key.literal):
        raise Odd
    if owner is Kind.ATOM:
        return owner
    items = _items(owner)
    if items is None:
        return Kind.UNKNOWN
    if type(key.value) is not int or not -len(items) <= key.value < len(items):
        raise Odd
    return items[key.value]


def _is_new(value: Value) -> bool:
    return isinstance(value, Container) and value.new and value.kind in (list, dict, set)


def _is_tame(value: Value) -> bool:
    """Whether a value may be handed to code that is not looked at: it has nothing in it that was there before but
    code."""
    match value:
        case Kind.LEAF | Kind.ATOM | Made() | Truth():
            return True
        case Known(known):
            return _is_called_openly(known)
        case Container(_, items):
            return items is not None and all(_is_tame(each) for each in items)
        case Several(item):
            return _is_tame(item)
    return False


def _is_called_openly(value: Any) -> bool:
    """Whether code that is not looked at may be handed the value: a constant, or code, which is looked at or is not to
    be if it is called there. (What the standard library does for a builder is not looked at, nor what is written in
    C.)"""
    if type(value) in _ATOMS or type(value) is CodeType:
        return True
    if type(value) is tuple:
        return all(_is_called_openly(each) for each in value)
    home = str(getattr(value, "__module__", "")).partition(".")[0]
    if home in BUILDERS:
        return home not in sys.stdlib_module_names
    is_python = type(value) is types.FunctionType or (isinstance(value, type) and is_open(value))
    return is_python and home not in sys.stdlib_module_names


def _identity(a: Value, b: Value) -> bool | None:
    """Whether two values are one, if that is told. Raises `Odd` where it may differ the next time."""
    if isinstance(a, Known) and isinstance(b, Known):
        told = type(a.value) not in _ATOMS or a.value is None
        return a.value is b.value if told and (type(b.value) not in _ATOMS or b.value is None) else None
    known, other = (a, b) if isinstance(a, Known) else (b, a)
    if not isinstance(known, Known):
        raise Odd
    if (
        other in (Kind.LEAF, Kind.STATIC)
        or isinstance(other, Made)
        or (isinstance(other, Container) and known.value is None)
    ):
        return False
    return None


def _is_none(value: Value) -> bool | None:
    return _identity(value, Known(None))


def _truth(value: Value) -> bool | None:
    if not isinstance(value, Truth):
        raise Odd
    return value.value


def _constructed(kind: type, arguments: Sequence[Value], is_tame: bool) -> Value:
    """An object of a class, made with these arguments. `is_tame` says that these, and others that are passed by name,
    may be handed to code that is not looked at."""
    if kind is dict:
        for each in arguments:
            _check_pairs(each)
        return Container(dict)
    if kind in CONTAINERS:
        items = [_items(each) if isinstance(each, Container) else None for each in arguments]
        found = [_item(each) for each in arguments]
        if kind in (set, frozenset):
            _check_keys(found)
        return Container(kind, items[0] if kind is tuple and items else None)
    if kind is zip:
        return Several(Container(tuple, tuple([_item(each) for each in arguments])))
    if kind is enumerate and arguments:
        return Several(Container(tuple, (Kind.ATOM, _item(arguments[0]))))
    if kind is reversed and len(arguments) == 1:
        return Several(_item(arguments[0]))
    if kind is super:
        return Kind.SUPER
    if kind is type and len(arguments) == 1 and isinstance(arguments[0], Made):
        return Known(arguments[0].kind)
    if kind in _ATOMS and all(isinstance(each, Known) and type(each.value) in _ATOMS for each in arguments):
        return Kind.ATOM
    if is_open(kind):
        if defined(type(kind), "__call__") is not attributes_of(type)["__call__"]:
            if not is_tame:
                raise Odd
            return Kind.UNKNOWN  # its metaclass returns whatever it likes
        if issubclass(kind, CONTAINERS) and not all(_is_of_python(defined(kind, n)) for n in ("__new__", "__init__")):
            _constructed(next(each for each in CONTAINERS if issubclass(kind, each)), arguments, is_tame)
        return Made(kind)
    raise Odd


def _by_method(of: Container, name: str, arguments: Sequence[Value]) -> Value:
    """What a method of a container returns."""
    if name in ("items", "keys", "values") and of.kind is dict:
        return Several(Container(tuple) if name == "items" else Kind.UNKNOWN)
    if name in ("append", "setdefault", "extend", "update"):
        if not _is_new(of):
            raise Odd
        if name == "setdefault" or (name == "update" and of.kind is set):
            _check_keys([_item(arguments[0]) if name == "update" else arguments[0]])
        elif name == "update":
            for each in arguments:
                _check_pairs(each)
        elif name == "extend":
            _item(arguments[0])
        return Kind.UNKNOWN
    if name == "copy":
        return Container(of.kind)
    if name == "get":
        _check_keys(arguments[:1])
        return Kind.UNKNOWN
    raise Odd
