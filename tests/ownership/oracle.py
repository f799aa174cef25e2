"""What a prover could donate at most that knows a program, but not what will happen: an oracle for random programs.

It answers the same question as `ownership.held`, by other means, so that the two can be compared:

- *what is read later* comes from the program's syntax tree (the prover reads bytecode): a variable is live where some
  path from here reads it before it is bound anew, and any call, attribute or item but the one in question may raise;
- *what holds the array* comes from marking: whatever can be reached from live variables, globals, suspended
  generators, values in flight and exceptions being handled is alive (the prover counts references). A weak
  reference and an object with a finaliser reach what they refer to; so do arrays on the same buffer;
- *slots* (attributes, items, globals, cells) are alive, but for those that the very statement of the call binds anew,
  with nothing in between that could read or fail; of a call through C code, Ctrl-C could.

Alive by these rules is what somebody may read: C code what it was handed, an iterator what it has passed, a
saved frame all its variables. What is left over can be read on no path that the program could take, and `Oracle.held`
may be put in the prover's place: the random programs then show that the oracle allows nothing wrong. That it does not
allow too little cannot be shown so, and is not what the share is about: an array that the prover finds dead and
the oracle does not is counted nowhere.

All that the two have in common is the knowledge of where CPython keeps the values of an expression half evaluated.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import gc
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import jax

from pytc import ownership
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.cpython.interpreter import UNBOUND, first_local, variable, words
from tests.ownership.syntax import Liveness, Point, has_known_length

PLACES, VARIABLES, CODE = (
    "a place that others can read",
    "a variable that is read on some path",
    "C code, or an iterator",
)
"""What may hold a leaf."""


@functools.lru_cache(256)
def _of_file(name: str) -> Liveness | None:
    try:
        return Liveness(Path(name).read_text())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


class Oracle:
    """The oracle of one program; `held` stands in for `ownership.held`."""

    def __init__(
        self, source: str, filename: str, bottom: types.CodeType, opaque: tuple[type, ...], watched: Iterable[Any]
    ):
        """`bottom` is the code that runs the program, `opaque` are types of the harness, whose objects read nothing,
        and `watched` are the objects that have finalisers."""
        self.filename = filename
        self.liveness = Liveness(source)
        self.bottom = bottom
        self.opaque = opaque
        self.watched = watched
        self.holders: list[dict[int, str]] = []
        """For each call, what holds the leaves that are not dead."""

    def held(self, call: ownership.Call, wanted: Sequence[int], outcome: Any) -> list[int]:
        """The leaves (of `wanted`) that something may read once the call has begun."""
        seen: set[int] = set()
        holders: dict[int, str] = {}
        by_kind, spared = self._roots(call.frame)
        for kind, roots in by_kind.items():
            reached = buffers_from(roots, self.opaque, spared, seen)
            for i in wanted:
                if call.leaves[i].unsafe_buffer_pointer() in reached:
                    holders.setdefault(i, kind)
        self.holders.append(holders)
        return list(holders)

    # -- where marking begins ---

    def _roots(self, frame: types.FrameType) -> tuple[dict[str, list[Any]], set[tuple[int, Any]]]:
        places: list[Any] = [*self.watched, sys.exception()]
        variables: list[Any] = []
        in_flight: list[Any] = []
        spared: set[tuple[int, Any]] = set()
        for ident, top in sys._current_frames().items():
            each: types.FrameType | None = top
            while each is not None and ident != threading.get_ident():
                places.append(each)
                each = each.f_back
        below = sys._getframe(2)
        while below.f_back is not frame and below.f_back is not None:
            below = below.f_back
        above: types.FrameType | None = frame
        atomic = slots = True
        while above is not None and above.f_code is not self.bottom:
            point = self._point(above)
            direct = point is not None and self._calls(above, point, below)
            # Behind C code the interpreter looks for signals, so there a Ctrl-C may raise.
            atomic, slots = atomic and direct and not _in_c(above), slots and direct and not _in_c(above)
            values = above.f_locals if above.f_code.co_flags & inspect.CO_OPTIMIZED else {}
            if point is None:
                variables += values.values()
            else:
                live = point.after if atomic else point.after | point.raises
                if slots:
                    spared |= self._overwritten(above, point)
                if _INTROSPECTION.intersection(above.f_code.co_names):
                    live = frozenset(name for name in values if (id(above), name) not in spared)
                variables += [value for name, value in values.items() if name in live or name.startswith(".")]
                atomic = slots = atomic and _returns(point)
            if above.f_code.co_filename == self.filename:
                places.append(above.f_globals)
            in_flight += _in_flight(above, direct)
            above, below = above.f_back, above
        return {PLACES: places, VARIABLES: variables, CODE: in_flight}, spared

    def _point(self, frame: types.FrameType) -> Point | None:
        liveness = self.liveness if frame.f_code.co_filename == self.filename else _of_file(frame.f_code.co_filename)
        positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        key = positions[0], positions[1], positions[2], positions[3]
        return None if liveness is None else liveness.points.get(key)

    def _calls(self, frame: types.FrameType, point: Point, below: types.FrameType) -> bool:
        """Whether the expression is a call of the function of `below` itself."""
        if not isinstance(point.node, ast.Call):
            return False
        if isinstance(point.node.func, ast.Lambda):
            return below.f_code.co_name == "<lambda>"
        function = _evaluate(point.node.func, frame)
        function = getattr(function, "__func__", function)
        return isinstance(function, types.FunctionType) and function.__code__ is below.f_code

    def _overwritten(self, frame: types.FrameType, point: Point) -> set[tuple[int, Any]]:
        """The slots that the statement of the call binds anew, with nothing in between."""
        if not isinstance(point.statement, ast.Assign):
            return set()
        targets: list[ast.expr] = []
        given = list(point.statement.targets)
        match given, point.following:
            case [ast.Name(name)], ast.Assign(targets=more, value=ast.Name(handed_on)) if name == handed_on:
                given += more  # `new = f(box.a); box.a = new`
        for target in given:
            if isinstance(target, ast.Tuple) and not has_known_length(point.statement.value):
                return set()
            targets += _parts_of(target)
        found: set[tuple[int, Any]] = set()
        stored: set[str] = set()
        for target in targets:
            if stored & {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}:
                break
            if isinstance(target, ast.Name):
                stored.add(target.id)
                found |= _slots_of_variable(frame, target.id)
                continue
            container = _evaluate(target.value, frame)  # type: ignore[attr-defined]
            if isinstance(target, ast.Attribute) and type(container).__setattr__ in _PLAIN:
                found.add((id(container), target.attr))
            elif isinstance(target, ast.Subscript) and type(container) in (dict, list):
                key = _evaluate(target.slice, frame)
                if isinstance(container, list):
                    if not -len(container) <= key < len(container):
                        break
                    key %= len(container)
                found.add((id(container), key))
            else:
                break
        return found


# -- marking ---


def buffers_from(
    ahead: list[Any], opaque: tuple[type, ...], spared: Set[tuple[int, Any]] = frozenset(), seen: set[int] | None = None
) -> set[int]:
    """The addresses of the buffers that can be reached from `ahead` by another way than the slots `spared`, past no
    object that is `opaque` or was `seen`."""
    seen = set() if seen is None else seen
    buffers: set[int] = set()
    while ahead:
        value = ahead.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, jax.Array):
            if not value.is_deleted():
                buffers.add(value.unsafe_buffer_pointer())
        elif not isinstance(value, opaque):
            ahead.extend(part for key, part in _parts(value) if (id(value), key) not in spared)
    return buffers


_PLAIN: tuple[Any, ...] = (object.__setattr__, types.SimpleNamespace.__setattr__)
_INTROSPECTION = frozenset({"locals", "_getframe"})
_CLOSED = (type, types.CodeType, types.BuiltinFunctionType)
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def _variables(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Those of a frame. Up to CPython 3.12 the frame keeps the dictionary of a function's, and what it holds would live
    longer than without the oracle."""
    variables = frame.f_locals
    found = [*variables.items()]
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        variables.clear()
    return found


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """What an object refers to, each under the key that a slot would have."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            pass
        case dict():
            yield from value.items()
        case list():
            yield from enumerate(value)
        case weakref.ref():
            yield None, value()
        case types.FrameType():
            # That of a generator which is gone has no variables left, and CPython 3.13.0 crashes when asked for them.
            is_suspendable = value.f_code.co_flags & _SUSPENDS
            if not is_suspendable or any(isinstance(each, _SUSPENDED) for each in gc.get_referrers(value)):
                yield from _variables(value)
        case types.FunctionType():
            yield from ((None, part) for part in (value.__closure__ or ()))
            yield None, value.__defaults__
            yield None, value.__kwdefaults__
        case types.GeneratorType() | types.CoroutineType() | types.AsyncGeneratorType():
            running = getattr(value, "gi_running", False) or getattr(value, "cr_running", False)
            yield from ((None, part) for part in ([] if running else gc.get_referents(value)))
        case types.CellType():
            with contextlib.suppress(ValueError):
                yield "cell", value.cell_contents
        case types.ModuleType():
            yield from vars(value).items() if value.__name__ == "module" else ()
        case BaseException():
            yield from ((None, part) for part in (value.args, value.__context__, value.__cause__))
            trace = value.__traceback__
            while trace is not None:
                yield None, trace.tb_frame
                trace = trace.tb_next
        case _ if not isinstance(value, _CLOSED) and gc.is_tracked(value):
            own = dict(getattr(value, "__dict__", None) or {})
            for name in getattr(type(value), "__slots__", ()):
                own[name] = getattr(value, name, None)
            yield from own.items()
            known = {id(getattr(value, "__dict__", None)), *map(id, own.values())}
            yield from ((None, part) for part in gc.get_referents(value) if id(part) not in known)


def _parts_of(target: ast.expr) -> list[ast.expr]:
    """What a target binds, from left to right."""
    return [part for each in target.elts for part in _parts_of(each)] if isinstance(target, ast.Tuple) else [target]


def _slots_of_variable(frame: types.FrameType, name: str) -> set[tuple[int, Any]]:
    """The slots that a variable is: a global, or what the frame shows of a local, and the content of its cell."""
    code = frame.f_code
    names = [*code.co_varnames, *(c for c in code.co_cellvars if c not in code.co_varnames), *code.co_freevars]
    if not code.co_flags & inspect.CO_OPTIMIZED or name not in names:
        return {(id(frame.f_globals), name)}
    value = variable(frame, names.index(name))
    return {(id(frame), name), (id(value), "cell")}


def _returns(point: Point) -> bool:
    """Whether the function returns the value as it is, with nothing in between that can raise."""
    match point.statement, point.following:
        case ast.Return(), _:
            return not point.guarded
        case ast.Assign(targets=[ast.Name(name)]), ast.Return(value=ast.Name(returned)):
            return name == returned and not point.guarded
    return False


_PLACES = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.UnaryOp, ast.expr_context, ast.unaryop)


def _evaluate(node: ast.expr, frame: types.FrameType) -> Any:
    """The value of a name, or of attributes and items of one, if it is no more than that."""
    if not all(isinstance(part, _PLACES) for part in ast.walk(node)):
        return None
    try:
        return eval(compile(ast.Expression(node), "<oracle>", "eval"), frame.f_globals, frame.f_locals)
    except Exception:
        return None


@functools.lru_cache(4096)
def _heights(code: types.CodeType) -> tuple[ControlFlow, list[int | None]]:
    flow = ControlFlow(code)
    return flow, flow.heights


def _in_c(frame: types.FrameType) -> bool:
    """Whether the frame waits for C code."""
    return bool(words(frame)[first_local - 1] & 0xFFFFFFFF == 0xFFFFFFFF)


def _in_flight(frame: types.FrameType, direct: bool) -> list[Any]:
    """The values of expressions half evaluated; and what C code was handed, where it was called."""
    flow, heights = _heights(frame.f_code)
    at = flow.index(frame.f_lasti)
    height, instruction = heights[at], flow.instructions[at]
    if height is None:
        return []
    argument = instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
    in_c = _in_c(frame)
    if flow.instructions[at - 1].opname == "PRECALL" and in_c and not direct:
        height = heights[at - 1] or 0  # on CPython 3.11 that is said to take the arguments, and does not
    elif direct or not in_c or "CALL" not in instruction.opname:
        height = min(height, height + dis.stack_effect(instruction.opcode, argument, jump=False) - 1)
    code = frame.f_code
    start = len({*code.co_varnames, *code.co_cellvars, *code.co_freevars})
    return [value for n in range(start, start + height) if (value := variable(frame, n)) is not UNBOUND]
