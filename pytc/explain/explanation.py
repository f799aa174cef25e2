"""`Explanation`: everything that is known about a function for arguments of certain types, as data."""

from __future__ import annotations

import dataclasses
import functools
import json
import numbers
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

from pytc.effort import Tried
from pytc.errors import RequirementError
from pytc.explain import page, schema, text
from pytc.explain.decisions import InputReport, OutputReport, PassReport
from pytc.explain.device import Device, check_memory
from pytc.explain.jit_call import nearest_call
from pytc.explain.largest import LargestBatch, Progress, Resizable, search
from pytc.explain.memory import Memory
from pytc.explain.terminal import counted
from pytc.explain.timeline import Step, timeline
from pytc.program import Program


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation:
    """What `pytc` makes of a function for arguments of these types, and why.

    `str()` is a table as wide as the terminal; `text()` has options. The programs to compare with (`jax.jit`, and the
    best donation by hand) are compiled when they are first needed, and then remembered.
    """

    name: str
    """The function's name."""
    inputs: tuple[InputReport, ...]
    """Each leaf of the arguments in flattening order, then each captured array."""
    outputs: tuple[OutputReport, ...]
    """Each leaf of the result, in order."""
    passes: tuple[PassReport, ...]
    """Each pass, in order."""
    memory: Memory
    """The compiler's own figures."""
    assumption: str
    """What is assumed about the caller, in words."""
    device: Device
    """The device that was compiled for, and its memory."""
    program: Program = dataclasses.field(repr=False, compare=False)
    """The program after all passes, without the arrays that the function captured."""
    resizable: Resizable = dataclasses.field(repr=False, compare=False)
    """The function and the types of its arguments, for `largest`."""
    with_passes: bool = False
    """Whether the text shows the equations that each pass removed and added."""
    plans: tuple[Tried, ...] = ()
    """With `effort="high"`: each plan that was considered, and what the compiler said of it."""

    @property
    def reused_bytes(self) -> int:
        """Bytes of the arguments that outputs are written into, over all devices."""
        return sum(each.nbytes for each in self.inputs if each.verdict == "reused")

    @property
    def kept_bytes(self) -> int:
        """Bytes of the arguments that the program reads and leaves as they are, over all devices."""
        return sum(each.nbytes for each in self.inputs if each.verdict == "kept")

    @property
    def captured_bytes(self) -> int:
        """Bytes of the arrays that the function captured and that are inputs of the program, over all devices."""
        return sum(each.nbytes for each in self.inputs if each.verdict == "captured")

    @property
    def reused(self) -> float:
        """The share of the computed outputs' bytes that are written into arguments; 1 if nothing is computed.

        This is a share of the outputs, not of the arguments, because arguments that are only read (a batch, frozen
        weights) cannot be reused.
        """
        computed = [each for each in self.outputs if each.origin in ("computed", "reuses")]
        total = sum(each.nbytes for each in computed)
        return sum(each.nbytes for each in computed if each.origin == "reuses") / total if total else 1.0

    @property
    def fits(self) -> bool | None:
        """Whether the program fits in the memory of each device; None if that memory is not known.

        The whole memory counts. Of a GPU's memory JAX uses three quarters unless `XLA_PYTHON_CLIENT_MEM_FRACTION` says
        otherwise.
        """
        return None if self.device.memory is None else self.memory.program.total <= self.device.memory

    def largest(
        self, batch: str | Sequence[str], *, memory: int | None = None, step: int | None = None
    ) -> LargestBatch:
        """The largest size of a batch with which the program fits in the device's memory.

        Compiles for one size after another, mostly four to eight, and shows the progress on a terminal.

        Args:
          batch: the argument, or the path of a leaf, whose arrays have the batch as their leading axis: `"batch"`,
            `"data['x']"`; several of them if they are of one size: `("x", "y")`.
          memory: bytes on each device, in place of what is known about the device.
          step: the size is a multiple of this; by default of the number of devices that the axis is split over.

        Raises:
          ValueError: the memory is not known, `batch` is no argument with a leading axis, the axes differ in size, the
            program does not grow with them, or `step` is not positive; and whatever tracing and compiling raise for
            another size.
          TypeError: `batch` is no string or strings, or `step` no whole number.
        """
        names = (batch,) if isinstance(batch, str) else tuple(batch) if isinstance(batch, Sequence) else (batch,)
        if not names:
            raise ValueError("batch names no argument")
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"batch is the name of an argument, the path of a leaf, or several of these, not {batch!r}")
        asked: Any = step
        if asked is not None and (isinstance(asked, bool) or not isinstance(asked, numbers.Integral)):
            raise TypeError(f"step is a whole number, not {step!r}")
        if step is not None and step < 1:
            raise ValueError(f"step is {step}, and the size is a multiple of it: it is 1 or more")
        check_memory(memory)
        memory = self.device.memory if memory is None else memory
        if memory is None:
            raise ValueError(f"the memory of {self.device.kind} is not known: pass memory= in bytes")
        chosen, start, parts = self.resizable.batch(names)
        progress = Progress(", ".join(names), memory)
        try:
            tried = search(
                lambda measure: self.resizable.total_with(chosen, measure), memory, start, step or parts, progress.show
            )
        finally:
            progress.done()
        size, total = max((each for each in tried if each[1] <= memory), default=(0, 0))
        return LargestBatch(names, size, total, memory, tuple(tried))

    @functools.cached_property
    def jit_call(self) -> str:
        """The `jax.jit` call that comes nearest to this program, to write by hand. Compiles as much as
        `memory.by_hand`."""
        return nearest_call(self.name, self.memory)

    @functools.cached_property
    def timeline(self) -> tuple[Step, ...]:
        """What is alive at each equation of the program."""
        return timeline(self.program)

    def require(
        self,
        *,
        reused: float | None = None,
        copies: int | None = None,
        total_bytes: int | None = None,
        fits: bool = False,
    ) -> Explanation:
        """Check limits, in a test or in CI; returns the explanation itself.

        Args:
          reused: the least share of the outputs' bytes that must be written into arguments, from 0 to 1.
          copies: the most arrays that the compiled program may copy.
          total_bytes: the most that the program may take on each device, as `memory.program.total` counts.
          fits: whether the program must fit in the device's memory.

        Raises:
          pytc.errors.RequirementError: a limit is exceeded; the message says which, and ends with the table. Nothing
            more is compiled for it.
          TypeError: `reused`, `copies` or `total_bytes` is not a number.
          ValueError: no limit is given; `reused` is no share, or another limit is below 0; or `fits` is required and
            the device's memory is not known.
        """
        given: dict[str, Any] = {"reused": reused, "copies": copies, "total_bytes": total_bytes}
        if not fits and all(value is None for value in given.values()):
            raise ValueError("require needs a limit at least: reused, copies, total_bytes or fits")
        for name, value in given.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
                raise TypeError(f"{name} is a number, not {value!r}")
            if name != "reused" and value is not None and value < 0:
                raise ValueError(f"{name} is 0 or more, not {value!r}")
        if reused is not None and not 0 <= reused <= 1:
            raise ValueError(f"reused is a share from 0 to 1, not {reused!r}")
        program = self.memory.program
        unmet = []
        if reused is not None and self.reused < reused:
            unmet.append(f"{self.reused:.2%} of the outputs' bytes are written into arguments, not {reused:.2%}")
        if copies is not None and len(program.copies) > copies:
            many = counted(len(program.copies), "array is copied", "arrays are copied")
            unmet.append(f"{many} ({program.copied:,} bytes), not {copies}")
        if total_bytes is not None and program.total > total_bytes:
            unmet.append(f"it takes {program.total:,} bytes, not {total_bytes:,}")
        if fits and self.fits is None:
            raise ValueError(f"the memory of {self.device.kind} is not known: explain with memory= in bytes")
        if fits and not self.fits:
            unmet.append(f"it takes {program.total:,} bytes, and there are {self.device.memory:,}")
        if unmet:
            compare = "by_hand" in vars(self.memory)  # compile nothing for an error message
            raise RequirementError(f"{self.name}: {'; '.join(unmet)}\n\n{self.text(compare=compare)}")
        return self

    def to_json(self, **options: Any) -> str:
        """Everything as JSON, by the schema in `pytc/explain/schema.py`. `options` go to `json.dumps`.
        Compiles as much as `memory.by_hand`."""
        return json.dumps(schema.of_explanation(self), **options)

    def text(
        self,
        width: int | None = None,
        *,
        rows: int = 30,
        colour: bool = False,
        compare: bool = True,
        passes: bool | None = None,
    ) -> str:
        """The table.

        Args:
          width: in columns; by default the terminal's.
          rows: how many lines of inputs and of outputs to show at most, the largest first. The rest, and what adds up
            to less than a hundredth of the bytes, is summed up in a line.
          colour: whether to mark verdicts with ANSI colours.
          compare: whether to show the memory of `jax.jit` and of the best by hand, which compiles several programs.
          passes: whether to show the equations that each pass removed and added; by default as `explain` was told.
        """
        if width is None:
            width = shutil.get_terminal_size((100, 24)).columns
        passes = self.with_passes if passes is None else passes
        return text.of_explanation(self, width, rows, colour, compare, passes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page: one self-contained HTML file. Compiles as much as `memory.by_hand`."""
        pathlib.Path(path).write_text(page.document(self), "utf-8")

    def __repr__(self) -> str:
        """One line, without compiling anything, for error messages and debuggers."""
        return f"<Explanation of {self.name}: {self.reused_bytes:,} bytes reused, {self.kept_bytes:,} kept>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return page.fragment(self)

    def __str__(self) -> str:
        return self.text()
