"""Which local variables of a function are dead at a call: classic backward liveness on its bytecode.

A variable is live before an instruction if some path from there, exception handlers included, reads it before
overwriting or deleting it. Sweeps over the instructions, from the last to the first, to a fixed point; a set of locals
is the bits of an integer. Done once for each code object.

    live(i) = reads(i)  |  (live after i - writes(i))  |  live(handler of i)

The handler's part is not diminished by what `i` writes, because `i` may raise before it has written anything. A
suspended generator is no exception to this: it goes on at the next instruction, or at its handler, or not at all.

A variable that nested functions mention is in a cell, and whoever has one of these functions can read it. Here only the
function's own instructions count, and to make such a function reads all that it mentions. So what is said of a cell is
true as long as nothing but the frame refers to it (`frames.own`): the nested functions are gone, and those that are yet
to be made are readers.

What strings name counts as read, too (`strings`, `taint`).
"""

from __future__ import annotations

import bisect
import dis
import functools
import inspect
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from pytc.interrupt import SUSPENDS
from pytc.ownership.bytecode import strings, taint
from pytc.ownership.bytecode.aside import puts_back
from pytc.ownership.bytecode.instructions import (
    CANNOT_RAISE,
    JUMPS,
    LEAVES,
    OF_CELLS,
    PUTS_ASIDE,
    UNCONDITIONAL,
    UnknownInstruction,
    effect,
    exception_table,
    own_names,
)
from pytc.set_bits import by_member, set_bits

T = TypeVar("T")


_LATEST = 4
"""So many calls are remembered for which was found out what is reached from there."""


class Live(Protocol):
    """The locals, as bits, that are live before each instruction."""

    def __getitem__(self, at: int, /) -> int: ...


class _Reached(NamedTuple):
    """What is reached from a call."""

    instructions: frozenset[int]
    written: int
    """The locals, as bits, that these write."""
    named: int
    """And those that strings name which they may evaluate."""


class ControlFlow:
    """The control flow of one code object, and the locals live at each of its instructions."""

    def __init__(self, code: CodeType):
        self.of = weakref.ref(code)  # what is known of code must not keep it alive
        self.instructions = list(dis.get_instructions(code))
        self.offsets = [i.offset for i in self.instructions]
        position = {offset: at for at, offset in enumerate(self.offsets)}
        self.handlers: list[int | None] = [None] * len(self.instructions)
        self.handler_depths: dict[int, int] = {}
        """By handler: how high the stack is when it begins."""
        self.handler_keeps: dict[int, int] = {}
        """And how much of that was there before."""
        for start, end, target, kept, depth in exception_table(code):
            self.handler_keeps[position[target]], self.handler_depths[position[target]] = kept, depth
            for at in range(bisect.bisect_left(self.offsets, start), bisect.bisect_left(self.offsets, end)):
                if self.handlers[at] is not None:
                    raise UnknownInstruction(f"{self.instructions[at].opname} with two handlers")
                self.handlers[at] = position[target]
        if code.co_flags & inspect.CO_OPTIMIZED:
            for instruction in self.instructions:
                if instruction.opname.endswith("_NAME") and instruction.opname != "IMPORT_NAME":
                    raise UnknownInstruction(f"{instruction.opname} in a function")  # whose locals are no dictionary
        plain = {number for number, name in enumerate(code.co_varnames) if name not in code.co_cellvars}
        for instruction in self.instructions:
            if instruction.opcode in OF_CELLS and instruction.arg in plain:
                raise UnknownInstruction(f"{instruction.opname} of a variable that is no cell")
        self.follows: list[tuple[int, ...]] = []
        for at, instruction in enumerate(self.instructions):
            after: tuple[int, ...] = ()
            if instruction.opcode in JUMPS:
                after = (position[instruction.argval],)
            if instruction.opname not in LEAVES | UNCONDITIONAL and at + 1 < len(self.instructions):
                after += (at + 1,)
            self.follows.append(after)
        effects = [effect(i) for i in self.instructions]
        numbers = {name: number for number, name in enumerate(own_names(code))}
        optimised = code.co_flags & inspect.CO_OPTIMIZED
        cells = {numbers[name] for name in code.co_cellvars} if optimised else set[int]()
        named = [strings.named_by(self, at, numbers) for at in range(len(effects))]
        self.reads = [read | by_name for (read, _), by_name in zip(effects, named, strict=True)]
        self.writes = [w for _, w in effects]
        self._by_strings = taint.evaluated(self, named, [read for read, _ in effects], len(numbers))
        """What each instruction may read through strings, if it may run code: all that those name that are passed to
        it, or in what is passed to it, or were stored."""
        self.live: Live = self._solve_with_comprehensions()
        # `super()` reads the first argument, and no instruction says so. A comprehension puts cells aside as a whole.
        readable = {0} if "__class__" in code.co_freevars else set[int]()
        readable.update(each.arg or 0 for each in self.instructions if each.opname == PUTS_ASIDE and each.arg in cells)
        self.locals = sum(1 << number for number in range(len(code.co_varnames)) if number not in cells | readable)
        """The fast locals that only instructions read, as a set of bits: no cells."""
        self.cells = sum(1 << number for number in cells - readable)
        """The function's own variables that are in cells."""
        self._told: dict[Callable[[ControlFlow], Any], Any] = {}
        """By function: what it tells of this flow."""
        self._latest: tuple[tuple[tuple[int, int], _Reached], ...] = ()

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

    def _solve_with_comprehensions(self) -> list[int]:
        """As `_solve`, where what a comprehension puts aside is read only if it is live where it is put back.

        None of these is taken for read at first, and each is from when it proves to be: so the least fixed point.
        """
        put_aside = {at: puts_back(self, at) for at, each in enumerate(self.instructions) if each.opname == PUTS_ASIDE}
        reads = {at: self.reads[at] for at, back in put_aside.items() if back is not None}
        for at in reads:
            self.reads[at] = 0
        live = self._solve()
        while read := [at for at in reads if any(self._after(live, n) & reads[at] for n in put_aside[at] or ())]:
            for at in read:
                self.reads[at] = reads.pop(at)
            live = self._solve()
        return live

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

    def _after(self, live: Live, at: int) -> int:
        return functools.reduce(int.__or__, (live[n] for n in self.follows[at]), 0)

    def _handled(self, live: Live, at: int) -> int:
        handler = self.handlers[at]
        return 0 if handler is None or self.instructions[at].opname in CANNOT_RAISE else live[handler]

    def index(self, lasti: int) -> int:
        """Which instruction a frame with this `f_lasti` is at. (It may point into the inline cache after it.)"""
        return bisect.bisect_right(self.offsets, lasti) - 1

    def dead(self, at: int, calm: int = 0) -> frozenset[int]:
        """The locals, also those in cells, that no path from instruction `at` on reads before overwriting them, `at`
        itself included.

        The first `calm` instructions, from `at` on, are known not to raise, and to come one after the other.
        What `at` itself writes is not called dead: if `at` is a store, the call was made by the destructor of the value
        that it has dropped, so it has already written the new value, and later instructions read that. The same goes
        for a store right after `at`: up to CPython 3.12 the interpreter executes such a pair as one, while `f_lasti`
        says that it is at the first.
        """
        live = self._following(at, calm) if calm else self._after(self.live, at) | self._handled(self.live, at)
        here = self.instructions[at]
        if here.opname == "STORE_FAST_LOAD_FAST":
            live |= 1 << ((here.arg or 0) & 15)
        if [each.opname for each in self.instructions[at : at + 2]] == ["STORE_FAST", "STORE_FAST"]:
            live |= self._after(self.live, at + 1)
        return frozenset(set_bits((self.locals | self.cells) & ~(self.reads[at] | live)))

    def _following(self, at: int, calm: int) -> int:
        """What is live after instruction `at`, where it and the next ones, `calm` in all, do not raise."""
        return functools.reduce(int.__or__, (self._from(n, calm - 1) for n in self.follows[at]), 0)

    def _from(self, at: int, calm: int) -> int:
        """What is live before instruction `at`, where it and the next ones, `calm` in all, do not raise."""
        reads = self.reads[at] | (0 if self.instructions[at].opname == "UNPACK_SEQUENCE" else self._by_strings[at])
        return reads | (self._following(at, calm) & ~self.writes[at]) if calm else self.live[at]

    def live_after(self, at: int) -> int:
        """The locals, as bits, that are live after instruction `at` if that does not raise."""
        return self._after(self.live, at)

    def readers(self, at: int, local: int, calm: int) -> frozenset[int]:
        """The instructions that may read what the local of this number has after instruction `at`, also by strings;
        and `at` itself, if it reads the local. The first `calm` instructions are those of `dead`."""
        bit = 1 << local
        here = {at} if self.reads[at] & bit else set[int]()
        reached = self._reached(at, calm)
        if not (reached.written | reached.named) & bit:
            # Every way to a reader is one on which the local is live: nothing else ends it.
            return frozenset(here.union(reached.instructions.intersection(self.once(_readers).get(local, ()))))
        return frozenset(here.union(self._live_readers(at, calm, bit)))

    def _live_readers(self, at: int, calm: int, bit: int) -> set[int]:
        found: set[int] = set()
        seen: set[tuple[int, int]] = set()
        ahead = self._next(at, calm, bit, 0)
        while ahead:
            n, calm = each = ahead.pop()
            if each in seen:
                continue
            seen.add(each)
            if (self.reads[n] | self._may_evaluate(n, calm)) & bit:
                found.add(n)
            ahead += self._next(n, calm, bit, self.writes[n])
        return found

    def _reached(self, at: int, calm: int) -> _Reached:
        """What is reached from instruction `at`, whatever is live there. The call sites of a function may be many, so
        only the latest that were asked for are remembered."""
        for key, reached in self._latest:
            if key == (at, calm):
                return reached
        written = named = 0
        ahead = self._next(at, calm)
        seen = {*ahead}
        while ahead:
            n, left = ahead.pop()
            written |= self.writes[n]
            named |= self._may_evaluate(n, left)
            new = {*self._next(n, left)} - seen
            seen |= new
            ahead += new
        reached = _Reached(frozenset(n for n, _ in seen), written, named)
        self._latest = (((at, calm), reached), *self._latest[: _LATEST - 1])
        return reached

    def _may_evaluate(self, at: int, calm: int) -> int:
        """What instruction `at`, if it and the next ones, `calm` in all, do not raise, may read through strings."""
        return 0 if calm and self.instructions[at].opname == "UNPACK_SEQUENCE" else self._by_strings[at]

    def _next(self, at: int, calm: int, bit: int = 0, writes: int = 0) -> list[tuple[int, int]]:
        """The instructions to which control may go from instruction `at`, each with how many from there on, itself
        included, do not raise. With a local's `bit`, only those before which that is live, where `at` writes others."""
        raises = not calm and self.instructions[at].opname not in CANNOT_RAISE
        handler = self.handlers[at] if raises else None
        follows = () if writes & bit else self.follows[at]
        next_ones = [(n, max(calm - 1, 0)) for n in follows] + ([] if handler is None else [(handler, 0)])
        return [each for each in next_ones if self.live[each[0]] & bit] if bit else next_ones

    def evaluated(self, at: int) -> frozenset[int]:
        """The locals that the function which instruction `at` calls may read through strings, as long as it runs."""
        return frozenset(set_bits(self._by_strings[at]))

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
            jumps = instruction.opcode in JUMPS
            for n in self.follows[at]:
                taken = jumps and n != at + 1
                ahead.append((n, height + dis.stack_effect(instruction.opcode, argument, jump=taken)))
        return heights

    def next_read(self, at: int, local: int) -> tuple[int, bool] | None:
        """The source line where local number `local` may be read after instruction `at`, the next one further down if
        there is any, the first one in a loop else; None if it is not read. And whether it is nowhere read but by
        strings that name it."""
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


def _readers(flow: ControlFlow) -> dict[int, list[int]]:
    """By local: the instructions that read it."""
    return by_member(flow.reads)


def _lines(flow: ControlFlow) -> list[int]:
    """The source line of each instruction; where that is not known, the one before it."""
    lines = []
    current = flow.code.co_firstlineno
    for instruction in flow.instructions:
        current = (instruction.positions.lineno if instruction.positions else None) or current
        lines.append(current)
    return lines
