"""What CPython's instructions do: which local variables they touch, where control goes from them, what cannot raise.

The instructions that touch a fast local are few, and named below for CPython 3.11 to 3.13. Code with any other that
`dis` says touches one is not analysed (`UnknownInstruction`), so that a new interpreter is a refusal and not a mistake.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from types import CodeType

PUTS_ASIDE = "LOAD_FAST_AND_CLEAR"
"""What a comprehension does with the variables around it that have the names of its own (`aside`)."""
READS_ONE = {"LOAD_FAST", "LOAD_FAST_CHECK", PUTS_ASIDE}
WRITES_ONE = {"STORE_FAST", "DELETE_FAST", PUTS_ASIDE}
TWO = {
    "LOAD_FAST_LOAD_FAST": (True, True),
    "STORE_FAST_LOAD_FAST": (False, True),
    "STORE_FAST_STORE_FAST": (False, False),
}
"""Those that touch two locals, one after the other: whether each is read."""
UNCONDITIONAL = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
LEAVES = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
"""By opcode."""
# Interrupts arrive only at calls and at jumps backwards, so not here either. (`STORE_FAST` stores first, and then lets
# go of the old value; if its destructor raises, the interpreter prints that and goes on.)
CANNOT_RAISE = {"STORE_FAST", "STORE_FAST_STORE_FAST", "NOP", "POP_TOP", "COPY", "SWAP", "PUSH_NULL", "LOAD_CONST"}
if sys.version_info >= (3, 12):  # `LOAD_FAST_CHECK` is there for variables that may be unbound
    CANNOT_RAISE |= {"LOAD_FAST", "LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST"}
RUN_NO_CODE = CANNOT_RAISE | UNCONDITIONAL | READS_ONE | WRITES_ONE | TWO.keys()
RUN_NO_CODE |= {"RESUME", "PRECALL", "KW_NAMES", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE", "STORE_DEREF", "IS_OP"}
RUN_NO_CODE |= {"BUILD_TUPLE", "BUILD_LIST", "MAKE_FUNCTION", "PUSH_EXC_INFO", "POP_EXCEPT", "END_FOR"}
RUN_NO_CODE |= {"RETURN_VALUE", "RETURN_CONST", "RERAISE"}
"""Instructions that run none but that of finalisers."""

_LOCAL_OPCODES = frozenset(dis.haslocal)
OF_CELLS = frozenset(dis.hasfree)
"""Opcodes whose argument is the number of a cell among a frame's variables."""
_READ_CELLS = {"LOAD_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
"""`LOAD_CLOSURE` hands the cell on, to a function that may read it at any time. (From 3.13 on `LOAD_FAST` does.)"""
_WRITE_CELLS = {"STORE_DEREF", "DELETE_DEREF"}


class UnknownInstruction(Exception):
    """The code has an instruction that this analysis does not know."""


def effect(instruction: dis.Instruction) -> tuple[int, int]:
    """The locals that an instruction reads and writes, as sets of bits; what a cell has counts as a local."""
    name, argument = instruction.opname, instruction.arg or 0
    if instruction.opcode in OF_CELLS and name != "MAKE_CELL":
        if name not in _READ_CELLS | _WRITE_CELLS:
            raise UnknownInstruction(name)
        return (name in _READ_CELLS) << argument, (name in _WRITE_CELLS) << argument
    if instruction.opcode not in _LOCAL_OPCODES:
        return 0, 0
    if name in TWO:
        reads = writes = 0
        for local, is_read in zip((argument >> 4, argument & 15), TWO[name], strict=True):
            # The second half reads what the first half wrote.
            reads |= is_read << local & ~writes
            writes |= (not is_read) << local
        return reads, writes
    if name in READS_ONE or name in WRITES_ONE:
        return (name in READS_ONE) << argument, (name in WRITES_ONE) << argument
    raise UnknownInstruction(name)


def own_names(code: CodeType) -> list[str]:
    """The names of a function's own variables, in the order of their numbers: first those that are not in cells, and
    parameters; then the others, which are."""
    return [*code.co_varnames, *(name for name in code.co_cellvars if name not in code.co_varnames)]


def exception_table(code: CodeType) -> Iterator[tuple[int, int, int, int, int]]:
    """`(start, end, target, kept, depth)` for each entry of the table of exception handlers: which instructions it
    covers, where the handler is (in bytes), how much of the stack is left, and how high that is when it begins.

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
        yield start, start + length, target, depth, depth + pushes_lasti + 1
