"""The figures as text: a table for the terminal, and one in Markdown. Both read what the JSON file holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import calls as of_calls
from benchmarks import devices as of_devices
from benchmarks.contenders import ALL, BY_HAND, FILTER_JIT, JIT, PROMISED, PYTC

MB = 1e6


def spread(value: dict[str, float], form: str = ".2f") -> str:
    """A median with its quartiles, as 1.02 (0.99 to 1.06)."""
    return f"{value['median']:{form}} ({value['low']:{form}} to {value['high']:{form}})"


def workload_table(results: dict[str, Any]) -> str:
    """For the terminal: a block of rows for each workload."""
    head = (
        "contender", "total MB", "of jit", "alias MB", "temp MB", "copies MB", "fresh MB", "held MB", "from",
        "step ms", "step / by hand", "first call s", "bits",
    )  # fmt: skip
    lines = []
    for name, result in results.items():
        hand = ", ".join(result["by_hand"]) or "nothing"
        megabytes = result["argument_bytes"] / MB
        lines.append(f"{name}: {result['leaves']} leaves, {megabytes:.2f} MB; by hand donates {hand}")
        rows = [head] + [workload_row(c, row, result["rows"][JIT]) for c, row in result["rows"].items()]
        lines += columns(rows)
        lines += [f"  {c}: {why}" for c, why in result["excluded"].items()]
        lines.append("")
    return "\n".join(lines)


def workload_row(contender: str, row: dict[str, Any], jit: dict[str, Any]) -> tuple[str, ...]:
    """One contender's figures."""
    found = row["memory"]
    return (
        contender,
        f"{row['total'] / MB:.2f}",
        f"{row['total'] / jit['total']:.0%}",
        f"{found['alias'] / MB:.2f}",
        f"{found['temp'] / MB:.2f}",
        f"{found['copies']}: {found['copied'] / MB:.2f}",
        f"{row['fresh'] / MB:.2f}",
        f"{row['held'] / MB:.2f}",
        str(row["settled"]),
        f"{row['step_milliseconds']['median']:.2f}",
        spread(row["step_over_by_hand"]),
        f"{row['first_call_seconds']['median']:.2f}",
        "equal" if row["same_bits"] else "DIFFER",
    )


def calls_table(calls: dict[str, Any]) -> str:
    """For the terminal: microseconds a call."""
    rows = [("arrays", "contender", "µs a call", "/ by hand", "µs over by hand")]
    for leaves, by_contender in calls.items():
        for contender, found in by_contender.items():
            over = found["microseconds"]["median"] - by_contender[BY_HAND]["microseconds"]["median"]
            rows.append(
                (leaves, contender, spread(found["microseconds"], ".1f"), spread(found["over_by_hand"]), f"{over:+.1f}")
            )
    return "\n".join(["calls: a trivial step on tiny arrays", *columns(rows)])


def devices_table(devices: dict[str, Any]) -> str:
    """For the terminal: megabytes on each device, and times."""
    rows = [
        (
            "contender",
            "total MB",
            "alias MB",
            "temp MB",
            "in place",
            "step / by hand",
            "call ms",
            "call / by hand",
            "bits",
        )
    ]
    rows += [
        (
            contender,
            f"{row['total'] / MB:.2f}",
            f"{row['memory']['alias'] / MB:.2f}",
            f"{row['memory']['temp'] / MB:.2f}",
            "yes" if row["in_place"] else "no",
            spread(row["step_over_by_hand"]),
            f"{row['call_milliseconds']['median']:.2f}",
            spread(row["call_over_by_hand"]),
            "equal" if row["same_bits"] else "DIFFER",
        )
        for contender, row in devices.items()
    ]
    return "\n".join(["devices: data-parallel training on eight devices, memory on each", *columns(rows), ""])


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned: the first column to the left, the rest to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(["", row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def markdown(report: dict[str, Any]) -> str:
    """For docs/benchmarks.md: total bytes for each contender, and what pytc's step costs beside the best by hand."""
    parts = (
        about(report),
        markdown_workloads(report["workloads"]),
        markdown_calls(report["calls"]),
        markdown_devices(report["devices"]),
    )
    return "\n\n".join(parts)


def about(report: dict[str, Any]) -> str:
    """On what the figures were taken."""
    on = report["on"]
    return (
        f"Measured on {on['device']} ({on['cpus']} cores, {on['system']}) with Python {on['python']}, JAX {on['jax']},"
        f" Equinox {on['equinox']}, size {on['size']}."
    )


def markdown_workloads(results: dict[str, Any]) -> str:
    """Megabytes of each call in all; the smallest in bold, and pytc's excess or saving over the best by hand."""
    lines = [
        "| workload | jax.jit | by hand | donated by hand | filter_jit | pytc | pytc / by hand | fresh, by hand → pytc"
        " | step time, pytc / by hand | first call, pytc / jax.jit |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, result in results.items():
        rows = result["rows"]
        smallest = min(row["total"] for row in rows.values())
        totals = {c: total_cell(rows.get(c), smallest) for c in ALL}
        ours, hand = rows[PYTC], rows[BY_HAND]
        lines.append(
            f"| `{name}` | {totals[JIT]} | {totals[BY_HAND]} | {', '.join(f'`{p}`' for p in result['by_hand']) or '—'}"
            f" | {totals[FILTER_JIT]} | {totals[PYTC]} | {difference(ours['total'], hand['total'])}"
            f" | {hand['fresh'] / MB:.2f} → {ours['fresh'] / MB:.2f}"
            f" | {spread(ours['step_over_by_hand'])} | {spread(ours['first_call_over_jit'])} |"
        )
    return "\n".join(lines)


def difference(ours: int, hand: int) -> str:
    """A ratio, and the bytes that it would round away."""
    return "equal" if ours == hand else f"{ours / hand:.3f} ({ours - hand:+,} B)"


def total_cell(row: dict[str, Any] | None, smallest: int) -> str:
    """A total in megabytes, marked where it is the smallest or its results differ."""
    if row is None:
        return "n/a"
    cell = f"{row['total'] / MB:.2f}"
    cell = f"**{cell}**" if row["total"] == smallest else cell
    return cell if row["same_bits"] else f"{cell} (bits differ)"


def markdown_calls(calls: dict[str, Any]) -> str:
    """Microseconds a call by number of leaves, and what of it is the proof."""
    names = of_calls.CONTENDERS
    lines = [
        "| arrays | " + " | ".join(f"{c}, µs" for c in names) + " | pytc / by hand | the proof, µs, and of by hand |",
        "| ---: |" + " ---: |" * (len(names) + 2),
    ]
    for leaves, found in calls.items():
        median = {c: found[c]["microseconds"]["median"] for c in names}
        cells = " | ".join(f"{median[c]:.1f}" for c in names)
        proof = median[PYTC] - median[PROMISED]
        lines.append(
            f"| {leaves} | {cells} | {spread(found[PYTC]['over_by_hand'])}"
            f" | {proof:.1f}, {proof / median[BY_HAND]:.0%} |"
        )
    return "\n".join(lines)


_ON_DEVICES = {
    of_devices.PMAP: "`jax.pmap`",
    of_devices.OUT_AXES: "with `out_axes=None`",
    of_devices.BY_HAND: "and `donate_argnums`: by hand",
    of_devices.FILTER_PMAP: "`equinox.filter_pmap`",
    of_devices.PYTC: "`pytc.pmap`",
}
"""What each contender is called, in turn."""


def markdown_devices(devices: dict[str, Any]) -> str:
    """Megabytes on each of several devices, and times beside those of the best by hand."""
    lines = [
        "| on each of 8 devices | MB | parameters in place | step time / by hand | a call on tiny arrays / by hand |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    smallest = min(row["total"] for row in devices.values())
    for contender, row in devices.items():
        lines.append(
            f"| {_ON_DEVICES[contender]} | {total_cell(row, smallest)} | {'yes' if row['in_place'] else 'no'}"
            f" | {spread(row['step_over_by_hand'])} | {spread(row['call_over_by_hand'])} |"
        )
    return "\n".join(lines)
