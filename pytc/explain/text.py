"""An explanation as text: a headline, and tables with the bytes first and the largest on top."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from pytc.explain import plans
from pytc.explain.decisions import InputReport, OutputReport, PassReport
from pytc.explain.device import ITS_RUNTIME, JAX_TAKES, Device
from pytc.explain.equations import Change, Namer, changes
from pytc.explain.jit_call import mixed
from pytc.explain.memory import Copy, Footprint, Memory
from pytc.explain.sizes import size
from pytc.explain.terminal import NARROWEST, Paint, counted, painter, wrapped
from pytc.fold import Fold, fold

if TYPE_CHECKING:
    from pytc.explain.explanation import Explanation

FEWEST_ROWS = 10
"""So many rows of a table are shown however few bytes they are about."""

MOST_NOTES = 6
"""At most so many notes are shown for one pass, and leaves for one call site."""

MOST_CHANGES = 40
"""At most so many lines are shown of what one pass changed in the equations."""

HARDLY = 100
"""Captured arrays of less than 1/`HARDLY` of the memory are not spoken of."""

MOST_COPIES = 8
"""At most so many lines are shown of the arrays that the compiled program copies."""


class Sized(Protocol):
    """Anything that has a size in bytes."""

    @property
    def nbytes(self) -> int:
        """The bytes."""
        ...


def headline(explanation: Explanation, compare: bool = True) -> str:
    """`step: 1.1 GiB reused, 12 MiB kept; total 1.3 GiB, jax.jit 2.4 GiB, best by hand 1.6 GiB`. If the device's memory
    is known, `fits in 141 GB: 1.3 GiB, 1%` replaces the total."""
    memory, device = explanation.memory, explanation.device
    place = "" if device.name == "here" else f" on {device.kind}"
    said = (
        f"{explanation.name}{place}: {size(explanation.reused_bytes)} reused, {size(explanation.kept_bytes)} kept; "
        f"{_fit(explanation)}"
    )
    if memory.program.devices > 1:
        said += f" on each of {memory.program.devices} devices"
    if not compare:
        return said
    best, then = memory.by_hand.footprint, "," if device.memory is None else ";"
    uncounted = ", both without their constants" if about_captured(explanation) else ""
    by_jit = f"{memory.as_jit.called} {size(memory.undonated.total)}, best by hand {size(best.total)}"
    return f"{said}{then} {by_jit}{uncounted}"


def about_captured(explanation: Explanation) -> str:
    """How the figures of a function that captures arrays compare; empty where it does not, or hardly."""
    captured, called = explanation.captured_bytes, explanation.memory.as_jit.called
    if captured * HARDLY < explanation.memory.program.total * explanation.memory.program.devices or not captured:
        return ""
    return (
        f"Of pytc's memory, {size(captured)} are arrays that the function captured. Under {called} these are constants "
        "of the program, which take as much, and which the compiler does not count."
    )


def _fit(explanation: Explanation) -> str:
    total, device = explanation.memory.program.total, explanation.device
    if device.memory is None:
        return f"total {size(total)}"
    there = device.memory_name or size(device.memory)
    return f"{'fits' if explanation.fits else 'does not fit'} in {there}: {size(total)}, {_share(total, device.memory)}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if part * 200 >= whole else "<1%"


def about_device(explanation: Explanation) -> str:
    """What there is to say about the device's memory besides the headline; empty if it is not known."""
    device, program = explanation.device, explanation.memory.program
    if device.memory is None:
        return ""
    said = f"{size(device.memory)} of memory on each {device.kind}, says {device.source}."
    if program.refused:
        said += " The compiler makes no program that does not fit, and tells of it only what it needs in all."
    elif _is_a_whole_gpu(device) and explanation.fits and program.total > JAX_TAKES * device.memory:
        said += (
            f" JAX takes {JAX_TAKES:.0%} of a GPU's memory by itself, which is not enough here: "
            "set XLA_PYTHON_CLIENT_MEM_FRACTION=.95."
        )
    return said


def _is_a_whole_gpu(device: Device) -> bool:
    """Whether the memory is all of a GPU's. (For a GPU that is here, the runtime reports only the share of JAX.)"""
    return device.platform not in ("cpu", "tpu") and device.source != ITS_RUNTIME


def of_explanation(explanation: Explanation, width: int, rows: int, colour: bool, compare: bool, passes: bool) -> str:
    """The whole text; `Explanation.text` documents the arguments."""
    width = max(width, NARROWEST)
    paint = painter(colour)
    memory = explanation.memory
    sections = [
        [paint(line, "headline") for line in wrapped(headline(explanation, compare), width, 2)]
        + wrapped(explanation.assumption, width),
        [paint("inputs", "title"), *_inputs(explanation.inputs, width, rows, paint)],
        [paint("outputs", "title"), *_outputs(explanation.outputs, width, rows, paint)],
        [paint("passes", "title"), *_passes(explanation.passes, width, Namer() if passes else None, paint)],
        [
            paint("memory", "title"),
            *_memory(memory, width, compare),
            *(wrapped(about_captured(explanation), width, 2, 2) if compare else ()),
            *_copies(memory, width),
            *wrapped(about_device(explanation), width, 2, 2),
        ],
    ]
    if explanation.plans:
        told = [line for text in plans.lines(explanation.plans) for line in wrapped(text, width, 6, 0)]
        sections.append([paint("plans", "title"), *told])
    if compare:
        about = wrapped(about_by_hand(memory), width, 2, 2)
        sections.append([paint(f"nearest {memory.as_jit.called} call", "title"), f"  {explanation.jit_call}", *about])
    return "\n\n".join("\n".join(lines) for lines in sections)


def fold_inputs(inputs: Iterable[InputReport]) -> list[Fold[InputReport]]:
    """The inputs, similar ones folded; largest first."""
    folds = fold(
        inputs,
        lambda each: (each.path, each.target or "", each.reason),
        lambda each: (each.type, each.nbytes, each.verdict, each.advice, each.copied),
    )
    return sorted(folds, key=lambda found: -found.count * found.members[0].nbytes)


def fold_outputs(outputs: Iterable[OutputReport]) -> list[Fold[OutputReport]]:
    """The outputs, similar ones folded; largest first."""
    folds = fold(
        outputs, lambda each: (each.path, each.source or ""), lambda each: (each.type, each.nbytes, each.origin)
    )
    return sorted(folds, key=lambda found: -found.count * found.members[0].nbytes)


def verdict_of(report: InputReport, path: str, target: str, reason: str) -> tuple[str, str]:
    """What happens to a leaf, and why, in words; `path`, `target` and `reason` are the report's own or a fold's.

    A leaf that is reused without a copy needs no reason.
    """
    match report.verdict:
        case "reused":
            return f"reused {_where(report.parameter, path, target)}", reason if report.copied else ""
        case "passed through":
            return f"passed through {_where(report.parameter, path, target)}", ""
        case "shared":
            return f"shared with {target}", reason
        case verdict:
            return verdict, reason + (f"; to free it: {report.advice}" if report.advice else "")


def _where(parameter: str, path: str, target: str) -> str:
    """`as result[1].w`; or `in result[0]`, if the leaf has the same path there as in its argument."""
    tail = path.removeprefix(parameter)
    return f"in {target.removesuffix(tail)}" if tail and target.endswith(tail) else f"as {target}"


def _inputs(inputs: Sequence[InputReport], width: int, rows: int, paint: Paint) -> list[str]:
    folds = fold_inputs(inputs)
    shown = folds[: _enough([found.count * found.members[0].nbytes for found in folds], rows)]
    lines = []
    for found in shown:
        first = found.members[0]
        verdict, why = verdict_of(first, *found.texts)
        lines.append((times(found.count, first.nbytes), first.type, found.texts[0], verdict, why, first.verdict))
    rest = [each for found in folds[len(shown) :] for each in found.members]
    return (_table(lines, width, paint) if lines or not rest else []) + more(rest, "leaf", "leaves")


def _outputs(outputs: Sequence[OutputReport], width: int, rows: int, paint: Paint) -> list[str]:
    """A table of the outputs that the table of inputs does not have, after a line for those that it has."""
    words = {"computed": "in memory of its own", "not an array": "not an array, returned as it is"}
    reusing = [each for each in outputs if each.origin == "reuses"]
    passed = [each for each in outputs if each.origin == "passed through"]
    lines = [f"  {_sum(reusing, 'output')}, in place of inputs"] if reusing else []
    lines += [f"  {_sum(passed, 'output')}, handed back as they came"] if passed else []
    folds = fold_outputs(each for each in outputs if each.origin in words)
    shown = folds[: _enough([found.count * found.members[0].nbytes for found in folds], rows)]
    table = []
    for found in shown:
        first = found.members[0]
        said = words[first.origin]
        table.append((times(found.count, first.nbytes), first.type, found.texts[0], said, "", first.origin))
    rest = [each for found in folds[len(shown) :] for each in found.members]
    said_nothing = not (table or lines or rest)
    return lines + (_table(table, width, paint) if table or said_nothing else []) + more(rest, "output", "outputs")


def _enough(sizes: Sequence[int], rows: int) -> int:
    """How many rows to show for things of these sizes, largest first: at most `rows`; and after the first
    `FEWEST_ROWS`, only until all but a hundredth of the bytes are shown."""
    left = sum(sizes)
    enough = left / 100
    for shown, nbytes in enumerate(sizes):
        if shown >= rows or (shown >= FEWEST_ROWS and left <= enough):
            return shown
        left -= nbytes
    return len(sizes)


def _table(rows: Sequence[tuple[str, str, str, str, str, str]], width: int, paint: Paint) -> list[str]:
    """Lines for rows of (bytes, type, path, verdict, reason, kind). The verdict is beside the path if that fits, else
    below it."""
    if not rows:
        return ["  none"]
    first = max(len(row[0]) for row in rows)
    second = min(max(len(row[1]) for row in rows), 24)
    third = max(len(row[2]) for row in rows)
    left = 2 + first + 2 + second + 2
    beside = [wrapped(_said(row), max(width - left - third - 2, 1)) for row in rows]
    below = [wrapped(_said(row), max(width - left - 2, 24)) for row in rows]
    is_beside = sum(map(len, beside)) <= sum(map(len, below)) + len(rows)
    is_beside = is_beside and max(len(line) for lines in beside for line in lines) <= width - left - third - 2
    lines = []
    for (nbytes, kind, path, _, _, key), said in zip(rows, beside if is_beside else below, strict=True):
        head = f"  {nbytes:>{first}}  {kind:<{second}}  "
        coloured = [paint(said[0], key), *(paint(line, "reason") for line in said[1:])]
        if is_beside:
            lines.append(f"{head}{path:<{third}}  {coloured[0]}")
            lines += [" " * (left + third + 2) + line for line in coloured[1:]]
        else:
            lines.append(f"{head}{_elide(path, width - left)}")
            lines += [" " * (left + 2) + line for line in coloured]
    return lines


def _said(row: tuple[str, str, str, str, str, str]) -> str:
    return f"{row[3]}: {row[4]}" if row[4] else row[3]


def _passes(passes: Sequence[PassReport], width: int, namer: Namer | None, paint: Paint) -> list[str]:
    """What each pass did; with a `namer`, also which equations it removed and added."""
    lines = []
    name = max((len(each.name) for each in passes), default=0)
    for each in passes:
        counts = each.in_numbers()
        notes = fold(each.notes, lambda note: (note,), lambda _: None)
        told = [counts] if counts else []
        told += [
            found.texts[0] + (f" ({found.count} times)" if found.count > 1 else "") for found in notes[:MOST_NOTES]
        ]
        if rest := sum(found.count for found in notes[MOST_NOTES:]):
            told.append(f"and {rest:,} more")
        under = [line for text in told for line in wrapped(text, width, 6 + name, 4 + name)]
        if under:
            under[0] = f"  {each.name:<{name}}  {under[0].lstrip()}"
        lines += under
        if namer is not None and each.changed:
            for change in changes(each, namer, MOST_CHANGES):
                lines.append(f"  {paint(_elide(_changed(change), width - 2), change.kind)}")
    if idle := [each.name for each in passes if not each.changed]:
        lines += wrapped(f"{', '.join(idle)}: nothing to do", width, 4, 2)
    return lines or ["  none"]


def _changed(change: Change) -> str:
    """`- v7:f32[8] = cos v3  train.py:8 (loss)`."""
    mark = {"went": "-", "came": "+", "same": " ", "skipped": "..."}[change.kind]
    return f"{mark} {change.line.text}  {change.line.source}".rstrip()


def _memory(memory: Memory, width: int, compare: bool) -> list[str]:
    table = [("", "total", "argument", "output", "temp", "alias", "copies"), _figures("pytc", memory.program)]
    if compare:
        table.append(_figures(memory.as_jit.called, memory.undonated))
        table.append(_figures("best by hand", memory.by_hand.footprint))
    columns = [[f"{row[0]:<12}" for row in table]]
    for k in range(1, len(table[0])):
        widest = max(len(row[k]) for row in table)
        columns.append([f"{row[k]:>{widest}}" for row in table])
    if sum(len(column[0]) + 2 for column in columns) > width:
        columns = [columns[k] for k in (0, 1, 4, 5, 6)]  # argument and output are also in the tables above
    return ["  " + "  ".join(row) for row in zip(*columns, strict=True)]


def _figures(name: str, found: Footprint) -> tuple[str, ...]:
    if found.refused:
        return name, size(found.total), "?", "?", "?", "?", "?"
    figures = (found.total, found.argument, found.output, found.temp, found.alias)
    return name, *map(size, figures), f"{len(found.copies)}: {size(found.copied)}" if found.copies else "0"


def _copies(memory: Memory, width: int) -> list[str]:
    """The arrays that the compiled program copies, and the leaves whose donation the compiler declined."""
    named = fold(
        [each for each in memory.program.copies if each.path is not None],
        lambda each: (each.path or "",),
        lambda each: (each.shape, each.nbytes),
    )
    named.sort(key=lambda found: -found.count * found.members[0].nbytes)
    lines = []
    for found in named[:MOST_COPIES]:
        first: Copy = found.members[0]
        lines += wrapped(f"copied: {times(found.count, first.nbytes)}  {first.shape}  {found.texts[0]}", width, 6, 2)
    lines += more([each for found in named[MOST_COPIES:] for each in found.members], "copy", "copies")
    if unnamed := [each for each in memory.program.copies if each.path is None]:
        lines.append(f"  copied: {_sum(unnamed, 'intermediate value')}")
    declined = fold(memory.declined, lambda path: (path,), lambda _: None)
    for each in declined:
        lines += wrapped(f"declined by the compiler: {each.texts[0]}", width, 6, 2)
    return lines


def about_by_hand(memory: Memory) -> str:
    """What the best call by hand promises, and which choices were compared."""
    best = memory.by_hand
    said = "Donating nothing is best by hand."
    if best.refusal and len(best.tried) == 1:
        said = "No donation by hand compiles."
    elif best.parameters:
        said = f"It promises that nobody reads {', '.join(best.parameters)} after a call."
    if unfit := mixed(memory):
        said += f" What is not an array has to be taken out of {', '.join(unfit)} first."
    return f"{said} Compared: {best.search}."


def times(count: int, nbytes: int) -> str:
    """`12 MiB`, or `3 x 4.0 MiB` for several of a size."""
    return f"{count} x {size(nbytes)}" if count > 1 else size(nbytes)


def _sum(things: Sequence[Sized], one: str, several: str = "") -> str:
    return f"{size(sum(each.nbytes for each in things))} in {counted(len(things), one, several)}"


def more(left: Sequence[Sized], one: str, several: str) -> list[str]:
    """A line about what is not shown; for inputs, with the number of each verdict."""
    if not left:
        return []
    verdicts = Counter(each.verdict for each in left if isinstance(each, InputReport))
    told = ", ".join(f"{number:,} {verdict}" for verdict, number in verdicts.most_common())
    return [f"  and {_sum(left, f'more {one}', f'more {several}')}{f': {told}' if told else ''}"]


def _elide(text: str, width: int) -> str:
    """The text; without its middle if it is too long."""
    if len(text) <= width:
        return text
    half = max((width - 3) // 2, 8)
    return f"{text[:half]}...{text[-half:]}"
