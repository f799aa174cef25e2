"""What the compiler did: its figures, and what is read back from the optimised program's own text: aliases, copies.

The plan says which output should be written into which input. XLA has the last word: it may refuse a pair, and where
a buffer is still needed it copies. Both stand in the text of the optimised module, and nowhere else that JAX makes
public. Arguments are told by their position: the names in the text may be another program's, from the persistent cache.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from pytc.jax_compat.jaxprs import ClosedJaxpr
from pytc.jax_compat.rules import dce

UNTIMED: dict[str, str | bool] = {"xla_gpu_autotune_level": "0"}
"""Options for a GPU's compiler, which else chooses among algorithms by timing them. The memory is the same."""

_ALIAS = re.compile(r"\{[\d, ]*\}: \((\d+), \{[\d, ]*\}, (?:may|must)-alias\)")
_PARAMETER = re.compile(r"%?([\w.\-]+) = .* parameter\((\d+)\)")
_COPY = re.compile(r"= (\(.*?\)|\S+) copy(?:-start)?\((?:[^%)]*?)%?([\w.\-]+)\)")
_SHAPE = re.compile(r"([a-z]+\d*\w*)\[([\d,]+)\](\{[^}]*\})?")


@dataclasses.dataclass(frozen=True)
class CopyInstruction:
    """A copy of an array in the optimised program."""

    shape: str
    """As XLA writes it: `f32[8,128]`, of one device's part."""
    nbytes: int
    argument: int | None
    """The number of the flat argument that it copies, if it copies one directly."""


@dataclasses.dataclass(frozen=True)
class Optimised:
    """What the text of an optimised module tells."""

    aliased: frozenset[int]
    """Numbers of the flat arguments whose buffer an output is written into."""
    copies: tuple[CopyInstruction, ...]
    partitions: int
    """Over how many devices the program is partitioned; shapes and bytes are those of one of them."""


@dataclasses.dataclass(frozen=True)
class Bytes:
    """The memory of a compiled program on each device, as the compiler counts it."""

    argument: int
    output: int
    temp: int
    alias: int
    """Bytes of the outputs that are written into arguments."""

    @property
    def total(self) -> int:
        """What the program needs at its peak: argument + output + temp - alias."""
        return self.argument + self.output + self.temp - self.alias


@dataclasses.dataclass(frozen=True)
class Measured(Bytes):
    """All that the compiler tells of a program that it has compiled."""

    optimised: Optimised


SILENT = "the compiler of this backend tells nothing of the memory that its programs need"


def measured(compiled: jax.stages.Compiled, arguments: Sequence[int]) -> Measured | None:
    """The figures of a compiled program, `arguments` as in `read`; None where the compiler is `SILENT`."""
    counted, text = compiled.memory_analysis(), compiled.as_text()
    if counted is None or text is None:
        return None
    return Measured(
        counted.argument_size_in_bytes,
        counted.output_size_in_bytes,
        counted.temp_size_in_bytes,
        counted.alias_size_in_bytes,
        read(text, arguments),
    )


def read(text: str, arguments: Sequence[int]) -> Optimised:
    """Read `compiled.as_text()`. `arguments` are the numbers of the flat arguments that the program was given, in
    order: without those that JAX leaves out. What JAX puts in, it puts before them (tokens, hoisted constants).

    Copies of single numbers are not counted: they are loop counters and the like. Nor are moves between kinds of
    memory, such as a TPU's prefetches into its scratchpad, which are how it reads.
    """
    header = text[: text.find("\n")]
    in_entry = False
    parameters: dict[int, str] = {}
    copying: list[str] = []
    for line in text.splitlines():
        if not line.startswith(" "):
            in_entry = line.startswith("ENTRY")
        elif in_entry and " parameter(" in line and (match := _PARAMETER.search(line)):
            parameters[int(match[2])] = match[1]
        elif " copy(" in line or " copy-start(" in line:
            copying.append(line)
    before = len(parameters) - len(arguments)
    argument = {number: arguments[number - before] for number in parameters if number >= before}
    name = {parameters[number]: given for number, given in argument.items()}
    start = header.find("input_output_alias={")
    end = header.find("entry_computation_layout") if "entry_computation_layout" in header else len(header)
    aliases = _ALIAS.findall(header, start, end) if start >= 0 else []
    partitions = re.search(r"num_partitions=(\d+)", header)
    copies = []
    for match in filter(None, map(_COPY.search, copying)):
        shapes = list(_SHAPE.finditer(match[1]))  # a copy-start's are those that it writes and reads
        if shapes and not any("S(" in (shape[3] or "") for shape in shapes):
            dtype, dimensions = shapes[0][1], shapes[0][2]
            written = f"{dtype}[{dimensions}]"
            copies.append(CopyInstruction(written, _nbytes(dtype, dimensions), name.get(match[2])))
    return Optimised(
        frozenset(argument[int(i)] for i in aliases if int(i) in argument),
        tuple(copies),
        int(partitions[1]) if partitions else 1,
    )


def _nbytes(dtype: str, dimensions: str) -> int:
    """The bytes of an array by XLA's name for its type: `pred`, `bf16`, `f8e4m3fn`, `s4`, `c64`."""
    bits = re.search(r"\d+", dtype)
    return math.ceil(math.prod(map(int, dimensions.split(","))) * (int(bits[0]) if bits else 8) / 8)


def given_arguments(jaxpr: ClosedJaxpr, places: Sequence[int], count: int, options: Mapping[str, Any]) -> list[int]:
    """Which of `count` flat arguments JAX gives to the compiled program: those that are read, unless `keep_unused` says
    all. `places` are the numbers of the flat arguments that the jaxpr's invars are."""
    if options.get("keep_unused"):
        return list(range(count))
    _, are_read = dce(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.outvars))
    return sorted(place for place, is_read in zip(places, are_read, strict=True) if is_read)
