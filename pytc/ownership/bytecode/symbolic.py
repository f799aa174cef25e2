"""Instructions, executed symbolically: which places they load and overwrite, and so where arguments came from."""

from __future__ import annotations

import dis
from typing import Any, NamedTuple, TypeAlias

from pytc.ownership.bytecode.events import Built, Constant, Event, Kind, Part, Place, Step, Value, fast
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.cpython.plain import is_key, is_small_number


def loaded(flow: ControlFlow, at: int) -> list[Place]:
    """Every place that the expression of instruction `at` loads, as far as can be told: its arguments may come from
    there."""
    starts = flow.once(_starts)
    first = at
    while first not in starts:
        first -= 1
        if not _within(flow.instructions[first].positions, flow.instructions[at].positions):
            break
    return [place for n in range(first, at) for place in places_loaded(flow, n)]


def _starts(flow: ControlFlow) -> frozenset[int]:
    """The instructions that do not just come after the one before them: what is on the stack there is not told from
    that one alone."""
    targets = {n for follows in flow.follows for n in follows[:1]} | {h for h in flow.handlers if h is not None}
    ends = {n + 1 for n, follows in enumerate(flow.follows) if not follows}
    return frozenset({0} | {n for n in targets if n > 0 and flow.follows[n - 1] != (n,)} | ends)


def places_loaded(flow: ControlFlow, at: int) -> tuple[Place, ...]:
    """The places that instruction `at` loads, as far as can be told from those before it."""
    return _moves(flow, at)[0]


def passed(flow: ControlFlow, at: int) -> dict[int | str, Place | None]:
    """The arguments of the call at instruction `at`, by position, from -1 for the last one on, or by keyword: the place
    of each that just has the value of one, and None for the others. Of a starred call none."""
    code = flow.instructions
    if code[at].opname not in ("CALL", "CALL_KW"):
        return {}
    first = at
    while code[first - 1].opname in ("PRECALL", "KW_NAMES"):
        first -= 1
    count = code[at].arg or 0
    taken = count + (3 if code[at].opname == "CALL_KW" else 2)  # what is called, `self` or nothing, and the names
    machine = Machine(lenient=True)
    for n in range(_begin_of_call(flow, first, taken), first):
        machine.step(code[n])
    names: Any = ()
    if code[at].opname == "CALL_KW":  # from CPython 3.13 on, with the names on top
        top = machine.pop()
        names = top.value if isinstance(top, Constant) else ()
    elif code[first].opname == "KW_NAMES":
        names = flow.code.co_consts[code[first].arg or 0]
    given = [None] * count + machine.stack  # what was there before is not known
    keys = (*range(len(names) - count, 0), *names)
    values = given[len(given) - count :]
    return {key: value if isinstance(value, tuple) else None for key, value in zip(keys, values, strict=True)}


def _begin_of_call(flow: ControlFlow, at: int, taken: int) -> int:
    """Where the values begin to be put on the stack, so many, that are `taken` from there at instruction `at`; as far
    back as is told."""
    starts, heights = flow.once(_starts), flow.heights
    beneath = max((heights[at] or 0) - taken, 0)
    return next(n for n in range(at, -1, -1) if n in starts or ((here := heights[n]) is not None and here <= beneath))


def _begins(flow: ControlFlow) -> list[int]:
    """For each instruction the last one up to it at which the stack is empty, or from which on it is told what is
    there."""
    starts, begins, last = flow.once(_starts), list[int](), 0
    for n, height in enumerate(flow.heights):
        if n in starts or height == 0:
            last = n
        begins.append(last)
    return begins


def renamed(flow: ControlFlow, at: int) -> frozenset[int]:
    """The local variables (numbers) that instruction `at` gives the value of another place, or a new container with
    some, as far as can be told."""
    return _moves(flow, at)[1]


_Moves: TypeAlias = tuple[tuple[Place, ...], frozenset[int]]


class _Walked(NamedTuple):
    """How far instructions have been executed, and what they do."""

    known: dict[int, _Moves]
    """By instruction."""
    left: dict[int, tuple[Machine, int]]
    """By where a walk began: the machine, and the instruction that is the next."""


def _moves(flow: ControlFlow, at: int) -> _Moves:
    """Both. Instructions are executed from the last one on at which the stack is empty, where one after it is asked
    for: a call site has to do with few of those of a long function. Each is executed once."""
    known, left = flow.once(_nothing_walked)
    if at not in known:
        begin = flow.once(_begins)[at]
        begun = left.pop(begin, None)  # taken out: another thread begins anew
        walk, n = (Machine(lenient=True), begin) if begun is None else begun
        while n <= at:
            walk.step(flow.instructions[n])
            known[n] = tuple(walk.seen), frozenset(walk.renamed)
            walk.forget()
            n += 1
        left[begin] = walk, n
    return known[at]


def _nothing_walked(_: ControlFlow) -> _Walked:
    return _Walked({}, {})


def _within(inner: dis.Positions | None, outer: dis.Positions | None) -> bool:
    """Whether a piece of source is part of another; also True if that is not known."""
    if inner is None or outer is None or None in inner or None in outer:
        return True
    start, end = (outer.lineno, outer.col_offset), (outer.end_lineno, outer.end_col_offset)
    return start <= (inner.lineno, inner.col_offset) and (inner.end_lineno, inner.end_col_offset) <= end


_NULL_IS_ABOVE = "CALL_KW" in dis.opmap
"""Whether what is called comes before the empty place of `self` on the stack, rather than after it: from CPython 3.13
on."""
_METHODS_ARE_ATTRIBUTES = "LOAD_SUPER_ATTR" in dis.opmap
"""Whether `LOAD_ATTR` also loads methods for calls, with a bit set in its argument: from CPython 3.12 on."""


def loads_method(name: str, argument: int) -> bool:
    """Whether an instruction loads an attribute for a call, and what it is a method of, or nothing."""
    return name == "LOAD_METHOD" or (name == "LOAD_ATTR" and _METHODS_ARE_ATTRIBUTES and bool(argument & 1))


_ARITHMETIC = {
    instruction.arg
    for operator in ("+", "-", "*", "+=", "-=", "*=")
    for instruction in dis.get_instructions(compile(f"a {operator} b", "", "exec"))
    if instruction.opname == "BINARY_OP"
}
"""What of two numbers makes another one, as far as it cannot fail: arguments of `BINARY_OP`."""


class Machine:
    """Executes consecutive instructions on a symbolic stack.

    If it is `lenient`, it steps over unknown instructions, and `seen` has only hints; otherwise it stops there.
    """

    def __init__(self, lenient: bool):
        self.lenient = lenient
        self.stack: list[Value] = []
        self.digs = False
        """Whether a value was taken that was on the stack, beneath the call's, before the call."""
        self.events: list[Event] = []
        self.seen: list[Place] = []
        """Every place that was loaded."""
        self.renamed: set[int] = set()
        """The local variables that were given the value of a place, or a new container with some."""
        self.stored: dict[Place, Value] = {}
        """What each place was given: the result or a part of it, or None for something else."""
        self.taken: Value = None
        """The value that is about to be stored."""

    def forget(self) -> None:
        """Forget what it has seen, and go on with the same stack."""
        self.seen.clear()
        self.renamed.clear()
        self.events.clear()
        self.stored.clear()

    def pop(self) -> Value:
        """Take a value from the stack."""
        if self.stack:
            return self.stack.pop()
        self.digs = True
        return None

    def new(self) -> bool:
        """Take the value that is about to be stored. False if it was loaded from a place, and so may be older than the
        call: it would live on in its new place when the old one is overwritten."""
        self.taken = self.pop()
        return not isinstance(self.taken, tuple) or self.lenient

    def load(self, place: Place | None) -> None:
        """Put the value of a place on the stack, or an unknown one."""
        # A place that was stored has part of the result, not what it had at the call.
        known = place is not None and place in self.stored and not self.lenient
        self.stack.append(self.stored[place] if known and place is not None else place)
        if place is not None:
            self.seen.append(place)
            if not (known and len(place) == 1):  # a variable that was stored is bound
                self.events.append(Event("load", place))

    def store(self, place: Place) -> None:
        """Store the value that was taken."""
        if _has_a_place(self.taken) and len(place) == 1 and place[0].kind == "fast":
            self.renamed.add(place[0].name)
        self.stored[place] = self.taken if isinstance(self.taken, Part) and len(place) == 1 else None
        if len(place) > 1:  # an attribute of a module, or an item of its `__dict__`, is a global
            self.stored.update((other, None) for other in [*self.stored] if other[0].kind != "fast")
        taken = self.taken
        of_result = isinstance(taken, Part) or (isinstance(taken, Built) and taken.has_result())
        self.events.append(Event("store", place, of_result=of_result))

    def step(self, instruction: dis.Instruction) -> bool:
        """Execute an instruction. False if it may run Python code, unless `lenient`."""
        for does in (self._with_variables, self._with_members, self._with_numbers, self._with_the_stack):
            done = does(instruction.opname, instruction.arg or 0, instruction.argval)
            if done is not None:
                return done
        if self.lenient:
            self._skip(instruction)
        return self.lenient

    def _with_variables(self, name: str, argument: int, named: Any) -> bool | None:
        high, low = fast(argument >> 4), fast(argument & 15)
        stores: tuple[Place, ...] = ()
        loads: tuple[Place | None, ...] = ()
        match name:
            case "LOAD_FAST" | "LOAD_FAST_CHECK":
                loads = (fast(argument),)
            case "LOAD_FAST_LOAD_FAST":
                loads = high, low
            case "STORE_FAST":
                stores = (fast(argument),)
            case "STORE_FAST_STORE_FAST":
                stores = high, low
            case "STORE_FAST_LOAD_FAST":
                stores, loads = (high,), (low,)
            case "LOAD_DEREF":
                loads = ((Step("cell", argument),),)
            case "STORE_DEREF":
                stores = ((Step("cell", argument),),)
            case "LOAD_GLOBAL" | "LOAD_NAME":
                loads = ((Step("global", named),),)
                if name == "LOAD_GLOBAL" and argument & 1:
                    loads = (*loads, None) if _NULL_IS_ABOVE else (None, *loads)
            case "STORE_GLOBAL" | "STORE_NAME":
                stores = ((Step("global", named),),)
            case _:
                return None
        for place in stores:
            if not self.new():
                return False
            self.store(place)
        for loaded_place in loads:
            self.load(loaded_place)
        return True

    def _with_members(self, name: str, argument: int, named: Any) -> bool | None:
        match name:
            case "LOAD_ATTR" if not loads_method(name, argument):
                target = self.pop()
                return self._pick(target, Step("attribute", named)) or self._member("attribute", named, target)
            case "LOAD_METHOD" | "LOAD_ATTR" if not self.lenient:
                return self._method(named, self.pop())
            case "BINARY_SUBSCR":
                key, target = self.pop(), self.pop()
                if isinstance(key, Constant) and is_key(key.value):
                    return self._pick(target, Step("item", key.value)) or self._member("item", key, target)
                return self._member("item", key, target)
            case "STORE_ATTR":
                target = self.pop()
                return self.new() and self._store_member("attribute", named, target)
            case "STORE_SUBSCR":
                key, target = self.pop(), self.pop()
                return self.new() and self._store_member("item", key, target)
            case _:
                return None

    def _with_numbers(self, name: str, argument: int, _: Any) -> bool | None:
        if name != "BINARY_OP" or argument not in _ARITHMETIC:
            return None
        operands = self.pop(), self.pop()
        self.events += [Event("compute", operand) for operand in operands if isinstance(operand, tuple)]
        self.stack.append(None)
        return self.lenient or all(
            isinstance(operand, tuple) or (isinstance(operand, Constant) and is_small_number(operand.value))
            for operand in operands
        )

    def _with_the_stack(self, name: str, argument: int, named: Any) -> bool | None:
        match name:
            case "NOP" | "CACHE" | "EXTENDED_ARG":
                pass
            case "PUSH_NULL":
                self.stack.append(None)
            case "LOAD_CONST":
                self.stack.append(Constant(named))
            case "UNPACK_SEQUENCE":
                whole = self.pop()
                if isinstance(whole, Part):
                    self.events.append(Event("unpack", part=whole, number=argument))
                    self.stack.extend(Part((*whole.path, Step("item", n))) for n in reversed(range(argument)))
                    return True
                self.stack.extend([None] * argument)
                return self.lenient  # the length of anything but the result is unknown, so this may raise
            case "POP_TOP":
                # Dropping the result, or a part of it, may run code.
                return isinstance(self.pop(), tuple | Constant) or self.lenient
            case "COPY" if len(self.stack) >= argument:
                self.stack.append(self.stack[-argument])
            case "SWAP" if len(self.stack) >= argument:
                self.stack[-1], self.stack[-argument] = self.stack[-argument], self.stack[-1]
            case "BUILD_TUPLE":
                new = self._build(argument)
                self.events.append(Event("build"))
                return new
            case "BUILD_LIST" | "BUILD_CONST_KEY_MAP" | "BUILD_MAP" if self.lenient:
                if name == "BUILD_CONST_KEY_MAP":
                    self.pop()
                return self._build(argument * 2 if name == "BUILD_MAP" else argument)
            case _:
                return None
        return True

    def _build(self, count: int) -> bool:
        """Make a container of so many values. False if one of them may be older than the call."""
        new, items = True, []
        for _ in range(count):
            new = self.new() and new
            items.append(self.taken)
        self.stack.append(Built(tuple(reversed(items))))
        return new

    def _pick(self, target: Value, step: Step) -> bool:
        """Take something from a part of the result; False if that is none."""
        if isinstance(target, Part):
            self.events.append(Event("pick", part=target, step=step))
            self.stack.append(Part((*target.path, step)))
        return isinstance(target, Part)

    def _member(self, kind: Kind, name: Any, target: Value) -> bool:
        place = _member_place(kind, name, target)
        self.load(place)
        return self.lenient or place is not None

    def _method(self, name: str, target: Value) -> bool:
        """Load a method for a call, and what it is a method of; or, of a module, a function and nothing."""
        if not isinstance(target, tuple) or target in self.stored:
            return False
        place = (*target, Step("attribute", name))
        self.events.append(Event("method", place))
        self.stack += [place, target]
        return True

    def _store_member(self, kind: Kind, name: Any, target: Value) -> bool:
        place = _member_place(kind, name, target)
        if place is None:
            return False
        self.store(place)
        return True

    def _skip(self, instruction: dis.Instruction) -> None:
        """Step over an instruction by its effect on the height of the stack."""
        jump = False if instruction.opcode in (*dis.hasjrel, *dis.hasjabs) else None
        has_argument = instruction.opcode >= dis.HAVE_ARGUMENT
        change = dis.stack_effect(instruction.opcode, instruction.arg if has_argument else None, jump=jump)
        for _ in range(-change):
            self.pop()
        # Those that it puts there, or the one that it replaces: what is further down it leaves alone.
        self.stack[-1:] = [None] * (bool(self.stack) + max(change, 0))


def _has_a_place(value: Value) -> bool:
    """Whether it is the value of a place, or a container that was made of some."""
    return isinstance(value, tuple) or (isinstance(value, Built) and any(_has_a_place(item) for item in value.items))


def _member_place(kind: Kind, name: Any, target: Value) -> Place | None:
    """The place of a member; None if the place of its owner or the key is unknown."""
    if not isinstance(target, tuple):
        return None
    if kind == "item":
        if isinstance(name, Constant):
            if not is_key(name.value):
                return None
            name = name.value
        elif not isinstance(name, tuple):
            return None
    return (*target, Step(kind, name))
