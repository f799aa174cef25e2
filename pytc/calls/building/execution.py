"""The symbolic execution of a function that builds: of its bytecode, for CPython 3.11 to 3.13."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Sequence
from types import FrameType
from typing import Any

from pytc.calls.building.code import (
    METHODS,
    OF_BASES,
    is_code,
    is_constant,
    is_of_python,
)
from pytc.calls.building.outside import Outside
from pytc.calls.building.record import Record
from pytc.calls.building.results import result
from pytc.calls.building.values import (
    Bound,
    Container,
    Inherited,
    Kind,
    Known,
    Made,
    Method,
    Odd,
    Several,
    Text,
    Truth,
    Value,
    check_keys,
    check_pairs,
    identity,
    is_new,
    is_none,
    item_of,
    items_of,
    joined,
    part_of,
    spread,
    truth,
)
from pytc.classes import attributes_of, bases_of, defined, defines, is_among
from pytc.ownership.cpython.interpreter import UNBOUND

_OF_ARRAYS = frozenset(("shape", "dtype", "ndim", "size"))
"""Attributes that a tracer has as the array does."""
_LONGEST = 20_000
"""Instructions that are executed at most."""
_IGNORED = frozenset("CACHE EXTENDED_ARG NOP RESUME PRECALL KW_NAMES MAKE_CELL COPY_FREE_VARS".split())
_ON_NONE = frozenset(
    f"POP_JUMP_{where}IF_{sense}NONE" for where in ("", "FORWARD_", "BACKWARD_") for sense in ("", "NOT_")
)
_ON_TRUTH = frozenset(f"POP_JUMP_{where}IF_{sense}" for where in ("", "FORWARD_") for sense in ("TRUE", "FALSE"))
_OF_HANDLERS = frozenset("PUSH_EXC_INFO BEFORE_WITH SETUP_FINALLY RAISE_VARARGS LOAD_ASSERTION_ERROR".split())
_BUILT: dict[str, type] = {"BUILD_LIST": list, "BUILD_SET": set, "BUILD_MAP": dict, "BUILD_CONST_KEY_MAP": dict}
_LIST_TO_TUPLE = 6
"""The argument of `CALL_INTRINSIC_1` for that."""


def only_builds(frame: FrameType, record: Record) -> bool:
    """Whether the function that begins in a frame does the same each time, whatever the values of arrays are, and
    nothing but build."""
    try:
        execution = Execution(frame, record)
        key = frame.f_code, id(frame.f_globals), tuple(execution.given.items())
        if key not in record.certain or frame.f_code.co_freevars:
            execution.run()
            record.certain.add(key)
    except Odd:
        return False
    return True


class Execution:
    """The symbolic execution of one function, from where it begins."""

    def __init__(self, frame: FrameType, record: Record) -> None:
        self.code, self.record = frame.f_code, record
        self.instructions = list(dis.get_instructions(self.code))
        self.place = {each.offset: n for n, each in enumerate(self.instructions)}
        self.names: tuple[Any, ...] = ()
        """Those of the last arguments of the next call, up to CPython 3.12."""
        self.outside = Outside(frame, record.new)
        self.bound = {name for each in self.instructions for name in _bound(each)}
        """Variables that something is assigned to."""
        self.given = self.outside.parameters()
        """What the parameters have."""

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
                stack, names = joined(states[at], (stack, names))
                if states[at] == (stack, names):
                    continue
            states[at] = stack, names
            left, variables = [*stack], {**names}
            for following, on_stack in self._step(at, left, variables):
                ahead.append((following, tuple(on_stack), variables))
        raise Odd

    # -- instructions ---

    def _step(self, at: int, stack: list[Value], names: dict[str, Value]) -> list[tuple[int, list[Value]]]:
        """Execute an instruction; return what may follow, with the stack then. Raises `Odd` for any that is not known
        to do the same each time."""
        instruction = self.instructions[at]
        name, argument, named = instruction.opname, instruction.arg or 0, instruction.argval
        if name in ("RETURN_VALUE", "RETURN_CONST"):
            return []
        if name in _ON_NONE or name in _ON_TRUTH:
            told = is_none(stack.pop()) if name in _ON_NONE else truth(stack.pop())
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
            after = target + (self.instructions[target].opname == "END_FOR")
            # From CPython 3.13 on the iterator is dropped there.
            ended = stack if sys.version_info >= (3, 13) else stack[:-1]
            return [(at + 1, [*stack, iterator.item]), (after, [*ended])]
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
            stack.append(self.outside.global_variable(named))
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
                stack.append(
                    self.outside.outer_variable(named) if named in self.code.co_freevars else _had(names, named)
                )
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
            case "TO_BOOL":
                stack[-1] = Truth(truth(stack[-1]))
            case "IS_OP":
                found = identity(stack.pop(), stack.pop())
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
            if _drop(stack, 3)[0] != Known(super) or argument & 2:  # the latter: it has arguments
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
                check_keys(_drop(stack, argument * (1 + (name == "BUILD_MAP")))[:: 1 + (name == "BUILD_MAP")])
                stack.append(Container(_BUILT[name]))
            case "LIST_APPEND":
                stack.pop()
            case "SET_ADD" | "MAP_ADD":
                check_keys(_drop(stack, 1 + (name == "MAP_ADD"))[:1])
            case "LIST_EXTEND":
                item_of(stack.pop())
            case "SET_UPDATE":
                check_keys([item_of(stack.pop())])
            case "DICT_UPDATE" | "DICT_MERGE":
                check_pairs(stack.pop())
            case "LIST_TO_TUPLE":
                stack[-1] = Container(tuple)
            case "CALL_INTRINSIC_1" if argument == _LIST_TO_TUPLE:
                stack[-1] = Container(tuple)
            case _:
                self._with_items(name, argument, stack)

    def _with_items(self, name: str, argument: int, stack: list[Value]) -> None:
        match name:
            case "GET_ITER":
                stack[-1] = Several(item_of(stack[-1]))
            case "UNPACK_SEQUENCE":
                items = items_of(stack.pop())
                parts = items if items is not None and len(items) == argument else (Kind.UNKNOWN,) * argument
                stack += reversed(parts)
            case "UNPACK_EX":
                items_of(stack.pop())
                before, after = argument & 0xFF, argument >> 8
                stack += [Kind.UNKNOWN] * after + [Container(list)] + [Kind.UNKNOWN] * before
            case "BINARY_SUBSCR":
                key, owner = stack.pop(), stack.pop()
                stack.append(part_of(owner, key))
            case "BINARY_SLICE":
                bounds = _drop(stack, 2)
                stack.append(part_of(stack.pop(), Container(slice, bounds)))
            case "STORE_SUBSCR":
                key, owner, _ = stack.pop(), stack.pop(), stack.pop()
                if not is_new(owner):
                    raise Odd
                check_keys([key])
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
                return self._of_object(kind, name)
            case Known(types.ModuleType() as module) if is_code(found := vars(module).get(name, UNBOUND)):
                return Known(found)
            case Known(type() as kind):
                return _of_class(kind, name)
        raise Odd

    def _of_object(self, kind: type, name: str) -> Value:
        """What an attribute of a new object has: what was assigned, or what its class has."""
        found = defined(kind, name)
        if name == "__dict__" and type(found) is types.GetSetDescriptorType:
            self.record.stores_anything = True
            return Container(dict)
        if type(found) is types.MemberDescriptorType or (type(found) is property and is_of_python(found.fget)):
            return Kind.UNKNOWN
        if is_of_python(found):
            self.record.methods.add(name)
            return Bound(getattr(found, "__func__", found))
        if defines(type(found), "__get__") or not is_constant(found):
            raise Odd
        return Kind.UNKNOWN  # if the class has a default, the object may have something else

    def _inherited(self, name: str) -> Value:
        """What `super()` has under a name. (It is of the first parameter's value at that moment.)"""
        if not self.bound.isdisjoint(self.code.co_varnames[:1]):
            raise Odd
        match self._first, self.outside.outer_variable("__class__") if "__class__" in self.code.co_freevars else None:
            case ((Made(kind) | Known(type() as kind)), Known(type() as own)) if own in bases_of(kind):
                above = bases_of(kind)[bases_of(kind).index(own) + 1 :]
                found = next((attributes_of(base)[name] for base in above if name in attributes_of(base)), None)
                if is_of_python(found) or is_among(found, OF_BASES.get(name, ())):
                    return Inherited(name, getattr(found, "__func__", found))
        raise Odd

    @property
    def _first(self) -> Value:
        """The first parameter."""
        return next(iter(self.given.values()), Kind.UNKNOWN)

    def _set(self, owner: Value, name: Value) -> None:
        """Note that an attribute of this name is set: only of what was made here."""
        match name:
            case Known(str() as text):
                names = frozenset({text})
            case Text(names):
                pass
            case _:
                raise Odd
        if not isinstance(owner, Made) or not names.isdisjoint(("__class__", "__dict__")):
            raise Odd
        for each in names:
            found = defined(owner.kind, each)
            if type(found) is not types.MemberDescriptorType and defines(type(found), "__set__"):
                sets = found.fset if type(found) is property else defined(type(found), "__set__")
                if not is_of_python(sets):
                    raise Odd
        self.record.stored.update(names)

    # -- calls ---

    def _called(self, name: str, argument: int, stack: list[Value]) -> Value:
        """What a call returns."""
        if name == "CALL_FUNCTION_EX":
            if argument & 1:
                check_pairs(stack.pop())
            given = spread(stack.pop())
        else:
            names = items_of(stack.pop()) if name == "CALL_KW" else self.names
            count, self.names = len(names or ()), ()
            _drop(stack, count)
            given = _drop(stack, argument - count)
        first, second = _drop(stack, 2)
        if first is Kind.NULL:
            return result(second, given, self._first, self._set)
        given = given if second is Kind.NULL else (second, *given)
        return result(first, given, self._first, self._set)


def _drop(stack: list[Value], count: int) -> tuple[Value, ...]:
    """Take so many values from the stack."""
    if not count:
        return ()
    dropped = tuple(stack[-count:])
    del stack[-count:]
    return dropped


def _had(names: dict[str, Value], name: str) -> Value:
    if name not in names:
        raise Odd
    return names[name]


def _bound(instruction: dis.Instruction) -> Sequence[str]:
    """The local variables that an instruction assigns to, or may."""
    others = ("DELETE_FAST", "LOAD_FAST_AND_CLEAR", "STORE_DEREF")
    if "STORE_FAST" not in instruction.opname and instruction.opname not in others:
        return ()
    return instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)


def _of_class(kind: type, name: str) -> Value:
    """What an attribute of a class has, if that is a function."""
    if defines(type(kind), name) and name not in OF_BASES:
        raise Odd  # its metaclass has a say
    found = defined(kind, name)
    if is_among(found, OF_BASES.get(name, ())):
        return Known(found)
    if not is_of_python(found):
        raise Odd
    return Bound(found.__func__) if type(found) is classmethod else Known(getattr(found, "__func__", found))
