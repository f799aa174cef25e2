"""Which local variables of a function are dead at a call: classic backward liveness on its bytecode.

A variable is live before an instruction if some path from there, exception handlers included, reads it before
overwriting or deleting it. One pass over the instructions to a fixed point, a machine integer as the set; done
once for each code object.

    live(i) = reads(i)  |  (live after i - writes(i))  |  live(handler of i)

The handler's part is not diminished by what `i` writes, because `i` may raise before it has written anything. A
suspended generator is no exception to this: it goes on at the next instruction, or at its handler, or not at all.
Cells are never called dead here: whoever has the closure can read them.

A string constant counts as a read of the variables that it names, unless it is a key made of words alone
(`log["train/loss"]`): libraries such as `numexpr.evaluate("x + 1")`, `frame.query("price > @limit")` and formulas of
statistics packages read these from their caller's frame. A string that is passed to a call is read again there, since
other calls may come in between: `evaluate("x + 1", step(x))`. One that is more than a single name may also be evaluated
later, by anything that runs code: a call, an operator, a loop. In a local variable, or in a call's result that is
stored in one (`formula = Formula("x + 1")`), it counts as a read where the variable is used. Stored elsewhere, or put
into a container, it counts as a read at each instruction that is not known to run no code.

The instructions that touch a fast local are few, and named below for CPython 3.11 to 3.13. Code with any other
that `dis` says touches one is not analysed (`UnknownInstruction`), so that a new interpreter is a refusal and not a
mistake.
"""

from __future__ import annotations

import bisect
import dis
import functools
import inspect
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, TypeVar, cast

from pytc.interrupt import SUSPENDS
from pytc.set_bits import set_bits

T = TypeVar("T")

_READS_ONE = {"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR"}
_WRITES_ONE = {"STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"}
_TWO = {
    "LOAD_FAST_LOAD_FAST": (True, True),
    "STORE_FAST_LOAD_FAST": (False, True),
    "STORE_FAST_STORE_FAST": (False, False),
}
_UNCONDITIONAL = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
_LEAVES = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
# Interrupts arrive only at calls and at jumps backwards, so not here either. (`STORE_FAST` stores first, and then lets
# go of the old value; if its destructor raises, the interpreter prints that and goes on.)
_CANNOT_RAISE = {"STORE_FAST", "STORE_FAST_STORE_FAST", "NOP", "POP_TOP", "COPY", "SWAP", "PUSH_NULL", "LOAD_CONST"}
if sys.version_info >= (3, 12):  # `LOAD_FAST_CHECK` is there for variables that may be unbound
    _CANNOT_RAISE |= {"LOAD_FAST", "LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST"}
_RUNS_NO_CODE = _CANNOT_RAISE | _UNCONDITIONAL | _READS_ONE | _WRITES_ONE | _TWO.keys()
_RUNS_NO_CODE |= {"RESUME", "PRECALL", "KW_NAMES", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE", "STORE_DEREF", "IS_OP"}
_RUNS_NO_CODE |= {"BUILD_TUPLE", "BUILD_LIST", "MAKE_FUNCTION", "PUSH_EXC_INFO", "POP_EXCEPT", "END_FOR"}
_RUNS_NO_CODE |= {"RETURN_VALUE", "RETURN_CONST", "RERAISE"}
"""Instructions that run none but that of finalisers: any other may evaluate a string that was stored."""
_WITHOUT_RESULT = {"POP_TOP", "RETURN_VALUE", "RAISE_VARARGS", "END_FOR", "END_SEND", "POP_EXCEPT", "RERAISE"}
"""Instructions that take something from the stack and put nothing there."""
_TAKE_NAMES = {"CALL_KW", "IMPORT_NAME"}
_TAKE_KEYS = {"BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "BUILD_CONST_KEY_MAP"}
"""Instructions that use the constant loaded right before them as names of keywords or imports, or as keys."""
_KEY = re.compile(r"[\w ./:-]*")
"""Keys like these are names for things and not code: `log["train/loss"]`."""
_STORE = ("STORE_", "LIST_APPEND", "LIST_EXTEND", "SET_", "MAP_ADD", "DICT_")
"""How instructions begin that store a value, or add it to a container."""
_MAKE = ("BINARY_OP", "BUILD_", "FORMAT_", "CONVERT_")
"""How instructions begin that replace a value by one made of it, or by a container with it."""
_NAME = re.compile(r"[^\W\d]\w*")
_LOCAL_OPCODES = frozenset(dis.haslocal)
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


class UnknownInstruction(Exception):
    """The code has an instruction that this analysis does not know."""


class ControlFlow:
    """The control flow of one code object, and the locals live at each of its instructions."""

    def __init__(self, code: CodeType):
        self.of = weakref.ref(code)  # what is known of code must not keep it alive
        self.instructions = list(dis.get_instructions(code))
        self.offsets = [i.offset for i in self.instructions]
        position = {offset: at for at, offset in enumerate(self.offsets)}
        self.handlers: list[int | None] = [None] * len(self.instructions)
        self.handler_depths: dict[int, int] = {}
        for start, end, target, depth in exception_table(code):
            self.handler_depths[position[target]] = depth
            for at in range(bisect.bisect_left(self.offsets, start), bisect.bisect_left(self.offsets, end)):
                if self.handlers[at] is not None:
                    raise UnknownInstruction(f"{self.instructions[at].opname} with two handlers")
                self.handlers[at] = position[target]
        if code.co_flags & inspect.CO_OPTIMIZED:
            for instruction in self.instructions:
                if instruction.opname.endswith("_NAME") and instruction.opname != "IMPORT_NAME":
                    raise UnknownInstruction(f"{instruction.opname} in a function")  # whose locals are no dictionary
        self.follows: list[tuple[int, ...]] = []
        for at, instruction in enumerate(self.instructions):
            after: tuple[int, ...] = ()
            if instruction.opcode in _JUMPS:
                after = (position[instruction.argval],)
            if instruction.opname not in _LEAVES | _UNCONDITIONAL and at + 1 < len(self.instructions):
                after += (at + 1,)
            self.follows.append(after)
        effects = [_effect(i) for i in self.instructions]
        numbers = {name: number for number, name in enumerate(code.co_varnames)}
        self.reads = [r | self._named(at, numbers) for at, (r, _) in enumerate(effects)]
        self.writes = [w for _, w in effects]
        self._by_strings = self._evaluated(numbers, [r for r, _ in effects])
        """What each instruction may read through strings, if it may run code: all that those name that are passed to
        it, or in what is passed to it, or were stored."""
        self.live = self._solve()
        captured = set(code.co_cellvars)
        if "__class__" in code.co_freevars:
            captured.update(code.co_varnames[:1])  # `super()` reads the first argument, and no instruction says so
        self.locals = sum(1 << i for i, name in enumerate(code.co_varnames) if name not in captured)
        """The fast locals that only instructions read, as a set of bits: no cells."""
        self._told: dict[Callable[[ControlFlow], Any], Any] = {}
        """By function: what it tells of this flow."""

    def once(self, tell: Callable[[ControlFlow], T]) -> T:
        """`tell(self)`, asked once: a table of the whole code, which each call site in it needs."""
        if tell not in self._told:
            self._told[tell] = tell(self)
        return cast(T, self._told[tell])

    @property
    def code(self) -> CodeType:
        """The code that this is about. Raises `ReferenceError` if it is gone."""
        code = self.of()
        if code is None:
            raise ReferenceError("the code that was analysed is gone")
        return code

    def _named(self, at: int, numbers: Mapping[str, int]) -> int:
        """The locals, as bits, that are named in the string constants that instruction `at` loads."""
        instruction, behind = self.instructions[at], self.instructions[at + 1 : at + 2]
        taken_by = behind[0].opname if behind else ""
        if instruction.opname != "LOAD_CONST" or taken_by in _TAKE_NAMES:
            return 0
        texts = [text for text in _strings(instruction.argval) if not (taken_by in _TAKE_KEYS and _KEY.fullmatch(text))]
        names = [name for text in texts for name in _NAME.findall(text)]
        return functools.reduce(int.__or__, (1 << numbers[name] for name in names if name in numbers), 0)

    def _evaluated(self, numbers: Mapping[str, int], loads: Sequence[int]) -> list[int]:
        """For each instruction the locals, as bits, that strings name which it may evaluate. `loads` are the locals, as
        bits, that each instruction loads.

        A string, and then each variable that has it or something made of it, is followed over the stack from where it
        is loaded. It ends with what takes it, or in a variable, whose loads are followed in turn, or elsewhere: from
        there anything may have it. What cannot be followed counts as that. It ends because what a variable carries only
        grows. (What a call has made of it and is in no variable is dropped, or handed to another call: followed no
        further, as most of these calls print.)
        """
        passed = [0] * len(self.instructions)
        carried = [0] * len(numbers)
        """By local: what those strings name that are its value, or that its value was made of."""
        stored = 0
        ahead = [(at, named) for at in range(len(passed)) if (named := self._named(at, numbers))]
        while ahead:
            at, named = ahead.pop()
            name = self.instructions[at].opname
            takers, beneath = (None, set[int]()) if name in _TWO else self._takers(at)
            for n in takers or ():
                passed[n] |= named
            if name == "LOAD_CONST" and not _is_text(self.instructions[at]):
                continue
            if name != "LOAD_CONST":  # an object with a string in it, which any operator may evaluate
                for n in beneath:
                    passed[n] |= named
            for n in (at,) if takers is None else takers:
                local = None if name in _TWO else self._stored_into(n)
                if local is None:
                    if takers is None or self._takers(n, result=True)[0] is None:
                        stored |= named
                elif named & ~carried[local]:
                    carried[local] |= named
                    ahead += [(m, carried[local]) for m, loaded in enumerate(loads) if loaded >> local & 1]
        return [
            0 if instruction.opname in _RUNS_NO_CODE else bits | stored
            for bits, instruction in zip(passed, self.instructions, strict=True)
        ]

    def _stored_into(self, at: int) -> int | None:
        """The local that the instruction behind `at` stores into; None if it is another instruction."""
        behind = self.instructions[at + 1] if at + 1 < len(self.instructions) else None
        if behind is None or not behind.opname.startswith("STORE_FAST"):
            return None
        return (behind.arg or 0) >> (4 if behind.opname in _TWO else 0)

    def _takers(self, at: int, *, result: bool = False) -> tuple[set[int] | None, set[int]]:
        """The instructions that may take what instruction `at` loads, or something made of it, from the stack; None if
        it is stored rather than taken by one. And those that run while it is there. The same of its `result`, if it
        takes something itself, and there is one."""
        heights = self.heights
        takers: set[int] = set()
        seen: set[tuple[int, int]] = set()
        ahead = [(at, height)] if (height := heights[at]) is not None else []
        if result:
            behind = [(n, above - 1) for n in self.follows[at] if (above := heights[n]) is not None]
            ahead = [] if self.instructions[at].opname in _WITHOUT_RESULT else behind
        while ahead:
            n, height = each = ahead.pop()
            if each in seen:
                continue
            seen.add(each)
            name = self.instructions[n].opname
            copies = name == "COPY" and (heights[n] or 0) - (self.instructions[n].arg or 0) == height
            for after in self.follows[n]:
                above = heights[after]
                if above is None or copies or (name.startswith(_STORE) and above <= height):
                    return None, set()
                if above > height:
                    ahead.append((after, height))
                elif name.startswith(_MAKE):
                    ahead.append((after, above - 1))
                else:
                    takers.add(after if name == "PRECALL" else n)  # CPython 3.11: the call is the next one
            handler = self.handlers[n]
            if handler is not None and (above := heights[handler]) is not None and above > height:
                ahead.append((handler, height))
        return takers, {n for n, _ in seen}

    def _solve(self) -> list[int]:
        live = [0] * len(self.instructions)
        changed = True
        while changed:
            changed = False
            for at in range(len(live) - 1, -1, -1):
                reads = self.reads[at] | self._by_strings[at]
                now = reads | (self._after(live, at) & ~self.writes[at]) | self._handled(live, at)
                if now != live[at]:
                    live[at] = now
                    changed = True
        return live

    def _after(self, live: list[int], at: int) -> int:
        return functools.reduce(int.__or__, (live[n] for n in self.follows[at]), 0)

    def _handled(self, live: list[int], at: int) -> int:
        handler = self.handlers[at]
        return 0 if handler is None or self.instructions[at].opname in _CANNOT_RAISE else live[handler]

    def index(self, lasti: int) -> int:
        """Which instruction a frame with this `f_lasti` is at. (It may point into the inline cache behind it.)"""
        return bisect.bisect_right(self.offsets, lasti) - 1

    def dead(self, at: int, calm: int = 0) -> frozenset[int]:
        """The locals that no path from instruction `at` on reads before overwriting them, `at` itself included.

        The first `calm` instructions, from `at` on, are known not to raise, and to come one after the other.
        What `at` itself writes is not called dead: if `at` is a store, the call was made by the destructor of the value
        that it has dropped, so it has already written the new value, and later instructions read that. The same goes
        for a store right behind `at`: up to CPython 3.12 the interpreter executes such a pair as one, while `f_lasti`
        says that it is at the first.
        """
        live = self._following(at, calm) if calm else self._after(self.live, at) | self._handled(self.live, at)
        here = self.instructions[at]
        if here.opname == "STORE_FAST_LOAD_FAST":
            live |= 1 << ((here.arg or 0) & 15)
        if [each.opname for each in self.instructions[at : at + 2]] == ["STORE_FAST", "STORE_FAST"]:
            live |= self._after(self.live, at + 1)
        return frozenset(set_bits(self.locals & ~(self.reads[at] | live)))

    def _following(self, at: int, calm: int) -> int:
        """What is live behind instruction `at`, where it and the next ones, `calm` in all, do not raise."""
        return functools.reduce(int.__or__, (self._from(n, calm - 1) for n in self.follows[at]), 0)

    def _from(self, at: int, calm: int) -> int:
        """What is live before instruction `at`, where it and the next ones, `calm` in all, do not raise."""
        reads = self.reads[at] | (0 if self.instructions[at].opname == "UNPACK_SEQUENCE" else self._by_strings[at])
        return reads | (self._following(at, calm) & ~self.writes[at]) if calm else self.live[at]

    def live_behind(self, at: int) -> int:
        """The locals, as bits, that are live behind instruction `at` if that does not raise."""
        return self._after(self.live, at)

    def readers(self, at: int, local: int, calm: int) -> frozenset[int]:
        """The instructions that may read what the local of this number has behind instruction `at`, also by strings;
        and `at` itself, if it reads the local. The first `calm` instructions are those of `dead`."""
        bit = 1 << local
        found = {at} if self.reads[at] & bit else set[int]()
        seen: set[tuple[int, int]] = set()
        ahead = self._next(at, calm, bit, 0)
        while ahead:
            n, calm = each = ahead.pop()
            if each in seen:
                continue
            seen.add(each)
            by_strings = 0 if calm and self.instructions[n].opname == "UNPACK_SEQUENCE" else self._by_strings[n]
            if (self.reads[n] | by_strings) & bit:
                found.add(n)
            ahead += self._next(n, calm, bit, self.writes[n])
        return frozenset(found)

    def _next(self, at: int, calm: int, bit: int, writes: int) -> list[tuple[int, int]]:
        """The instructions to which control may go from instruction `at`, and before which the local of this `bit` is
        live; each with how many from there on, itself included, do not raise."""
        raises = not calm and self.instructions[at].opname not in _CANNOT_RAISE
        handler = self.handlers[at] if raises else None
        follows = () if writes & bit else self.follows[at]
        next_ones = [(n, max(calm - 1, 0)) for n in follows] + ([] if handler is None else [(handler, 0)])
        return [each for each in next_ones if self.live[each[0]] & bit]

    def evaluated(self, at: int) -> frozenset[int]:
        """The locals that the function which instruction `at` calls may read through strings, as long as it runs."""
        return frozenset(set_bits(self._by_strings[at]))

    def strings(self) -> Iterator[str]:
        """Those in the constants that the code uses, but for the names of keywords and imports."""
        for at, each in enumerate(self.instructions):
            behind = self.instructions[at + 1].opname if at + 1 < len(self.instructions) else ""
            if each.opcode in dis.hasconst and each.opname != "KW_NAMES" and behind not in _TAKE_NAMES:
                yield from _strings(each.argval)

    @functools.cached_property
    def heights(self) -> list[int | None]:
        """How high the stack is before each instruction; None where it is never reached."""
        code = self.code
        suspends = code.co_flags & SUSPENDS
        # Up to CPython 3.11 a generator starts with what it is sent already on the stack.
        starts = 1 if suspends and dis.stack_effect(dis.opmap["RETURN_GENERATOR"]) == 0 else 0
        heights: list[int | None] = [None] * len(self.instructions)
        ahead = [(0, starts), *self.handler_depths.items()]
        while ahead:
            at, height = ahead.pop()
            if heights[at] is not None:
                continue
            heights[at] = height
            instruction = self.instructions[at]
            argument = instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
            jumps = instruction.opcode in _JUMPS
            for n in self.follows[at]:
                taken = jumps and n != at + 1
                ahead.append((n, height + dis.stack_effect(instruction.opcode, argument, jump=taken)))
        return heights

    def next_read(self, at: int, local: int) -> tuple[int, bool] | None:
        """The source line where local number `local` is read first after instruction `at`, if it is read at all; and
        whether it is nowhere read but by strings that name it."""
        bit = 1 << local
        seen: set[int] = set()
        ahead = [n for n in (*self.follows[at], self.handlers[at]) if n is not None]
        found: list[int] = []
        by_strings: list[int] = []
        while ahead:
            n = ahead.pop()
            if n in seen or not self.live[n] & bit:
                continue
            seen.add(n)
            if self.reads[n] & bit and self.instructions[n].opname != "LOAD_CONST":
                found.append(n)
                continue
            if (self.reads[n] | self._by_strings[n]) & bit:
                by_strings.append(n)
            ahead.extend(m for m in (*self.follows[n], self.handlers[n]) if m is not None)
        if not (every := found or by_strings):
            return None
        return self.once(_lines)[min([n for n in every if n > at] or every)], not found


def _lines(flow: ControlFlow) -> list[int]:
    """The source line of each instruction; where that is not known, the one before it."""
    lines = []
    current = flow.code.co_firstlineno
    for instruction in flow.instructions:
        current = (instruction.positions.lineno if instruction.positions else None) or current
        lines.append(current)
    return lines


def _is_text(instruction: dis.Instruction) -> bool:
    """Whether it loads a string that is more than a name."""
    return instruction.opname == "LOAD_CONST" and any(
        _NAME.search(text) and not _NAME.fullmatch(text) for text in _strings(instruction.argval)
    )


def _strings(constant: object) -> Iterator[str]:
    """Those in a constant, which may be a tuple or a set of others. (`eval` takes bytes, too.)"""
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, bytes):
        yield constant.decode(errors="replace")
    elif isinstance(constant, tuple | frozenset):
        for part in constant:
            yield from _strings(part)


def _effect(instruction: dis.Instruction) -> tuple[int, int]:
    """The locals that an instruction reads and writes, as sets of bits."""
    if instruction.opcode not in _LOCAL_OPCODES:
        return 0, 0
    name, argument = instruction.opname, instruction.arg or 0
    if name in _TWO:
        reads = writes = 0
        for local, is_read in zip((argument >> 4, argument & 15), _TWO[name], strict=True):
            # The second half reads what the first half wrote.
            reads |= is_read << local & ~writes
            writes |= (not is_read) << local
        return reads, writes
    if name in _READS_ONE or name in _WRITES_ONE:
        return (name in _READS_ONE) << argument, (name in _WRITES_ONE) << argument
    raise UnknownInstruction(name)


def exception_table(code: CodeType) -> Iterator[tuple[int, int, int, int]]:
    """`(start, end, target, depth)` for each entry of the table of exception handlers: which instructions it covers,
    where the handler is (in bytes), and how high the stack is when it begins.

    The format is described in CPython's `Objects/exception_handling_notes.txt`: big-endian groups of six bits, the
    seventh says that more follow, the eighth marks the beginning of an entry.
    """
    table = iter(code.co_exceptiontable)

    def number(first: int) -> int:
        value = first & 63
        while first & 64:
            first = next(table)
            value = value << 6 | first & 63
        return value

    for byte in table:
        start = number(byte) * 2
        length = number(next(table)) * 2
        target = number(next(table)) * 2
        depth, pushes_lasti = divmod(number(next(table)), 2)
        yield start, start + length, target, depth + pushes_lasti + 1
