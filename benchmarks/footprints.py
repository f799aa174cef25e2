"""Does pytc choose as well as one could by hand? Bytes and copies, as three compilers count them, of many programs.

    python -m benchmarks.footprints                       on the CPU's compiler, and whichever others are installed
    python -m benchmarks.footprints -t cpu,h200 adam sgd  some targets, some programs

Nothing is run. The CPU's compiler is always there; `jax[cuda13]` brings the one for GPUs and `libtpu` the one for
TPUs, and neither needs the hardware: `jax.experimental.topologies` describes devices that are not there, and what is
compiled for them says what it would need.

Each program is compiled with nothing donated, with every choice of `donate_argnums` that one might write by hand
(`by hand` is the best of them; arguments that such a program's caller reads again are left out), with the pairs that
pytc chooses when all else is dead, and with `effort="high"` (`high`); and all of that again with the results in the
opposite order, where the pairing of `jax.jit` is at its luckiest or unluckiest. Totals within a thousandth count as
equal: alignment. What is in the results already is not compiled again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import itertools
import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import tree_broadcast

import pytc
from benchmarks import memory
from benchmarks.footprint_programs import Workload, everything
from pytc import hlo
from pytc.effort import choose
from pytc.explain.device import find
from pytc.jax_compat.avals import nbytes
from pytc.jax_compat.devices import compiler_is_installed

RESULTS = Path(__file__).parent / "results"
SAME = 1e-3
SLACK = 1.02
"""Arrays may take this much more than their elements' bytes before a set of arguments is left out unseen."""
MB = 1e6

POD, SIDE = "v5e 16x16", 16
NOTES = {
    POD: "But for the language models and `decode, sharded`, arrays are cut into 256 parts that mostly take some "
    "kilobytes and fit a TPU's vector memory. What is written over what then matters less than when the compiler "
    "has which result made: donating less, or nothing, may be best by hand, and pairs that cost a copy may take "
    "less memory. `high` finds them; data flow does not tell. (`fixed border` is put together from parts that no "
    "mesh divides, so the compiler has every device gather the whole.)",
}
"""What there is to know of all programs for one target."""
COMPILERS = {"h200": "cuda", "v5e": "tpu", POD: "tpu"}
"""Whose compiler has to be there for each target."""


def targets() -> list[str]:
    """What can be compiled for here."""
    return ["cpu", *(name for name, platform in COMPILERS.items() if compiler_is_installed(platform))]


@functools.cache
def device(target: str) -> Any:
    """A device of this kind, perhaps one that is only compiled for."""
    return find(target).devices[0]


def on(target: str, workload: Workload) -> tuple[Any, ...]:
    """The arguments on a device of this kind, or laid out over many."""
    if target == POD:
        mesh = Mesh(np.array(find("tpu v5e:16x16").devices).reshape(SIDE, SIDE), ("data", "model"))
        if workload.specs is None:
            specs = jax.tree.map(lambda x: cut(x.shape), workload.args)
        else:
            specs = tree_broadcast(workload.specs, workload.args, is_leaf=lambda x: isinstance(x, PartitionSpec))
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    else:
        one = NamedSharding(Mesh([device(target)], ("all",)), PartitionSpec())
        shardings = jax.tree.map(lambda _: one, workload.args)
    placed: tuple[Any, ...] = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), workload.args, shardings
    )
    return placed


def cut(shape: Sequence[int]) -> PartitionSpec:
    """Arrays of this shape cut along the last axis that the mesh divides, and along the last such one before it."""
    axes: list[str | None] = [None] * len(shape)
    divisible = [axis for axis, size in enumerate(shape) if size % SIDE == 0]
    for axis, name in zip(divisible[::-1], ("model", "data"), strict=False):
        axes[axis] = name
    return PartitionSpec(*axes)


@dataclasses.dataclass(frozen=True)
class Memory(memory.Memory):
    """On each device; moves between kinds of memory, a TPU's prefetches, are no copies."""

    copied_arguments: int
    """How many of the copies are of arguments."""


measured: dict[str, Memory] = {}
"""What was compiled before, by the program's text."""


def footprint(lowered: jax.stages.Lowered, target: str) -> Memory:
    """Compile, and count."""
    key = hashlib.sha256(f"{jax.__version__} {target} {lowered.as_text()}".encode()).hexdigest()
    if key not in measured:
        options = {} if target == POD else dict(find(target).compiler_options)
        compiled = lowered.compile(compiler_options=options or None)
        counted, text = compiled.memory_analysis(), compiled.as_text() or ""
        copies = hlo.read(text, range(text.partition("\nENTRY")[2].count(" parameter("))).copies
        measured[key] = Memory(
            counted.argument_size_in_bytes,
            counted.output_size_in_bytes,
            counted.temp_size_in_bytes,
            counted.alias_size_in_bytes,
            len(copies),
            sum(copy.nbytes for copy in copies),
            sum(copy.argument is not None for copy in copies),
        )
    return measured[key]


def by_hand(workload: Workload, fun: Callable[..., Any], target: str) -> dict[tuple[int, ...], Memory]:
    """Every `donate_argnums` that one might write, of what the caller lets go of, the largest sets first. Left out
    are arguments into which no result fits, and sets that would take more than another had they no temporaries."""
    args = on(target, workload)
    results = {x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(fun, *args))}
    numbers = [
        i
        for i, arg in enumerate(args)
        if i not in workload.kept and any(x.size * x.dtype.itemsize in results for x in jax.tree.leaves(arg))
    ]
    found: dict[tuple[int, ...], Memory] = {}
    for size in (0, *range(len(numbers), 0, -1)):
        for some in itertools.combinations(numbers, size):
            least = min((each.total for each in found.values()), default=0)
            if found and found[()].argument + found[()].output - _fits(workload, fun, some) > SLACK * least:
                continue
            found[some] = footprint(jax.jit(fun, donate_argnums=some).lower(*args), target)
    return found


def _fits(workload: Workload, fun: Callable[..., Any], numbers: Sequence[int]) -> int:
    """The bytes, over all devices, of the results that fit into these arguments."""

    def kinds(tree: Any) -> Counter[tuple[Any, Any]]:
        return Counter((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree))

    both = kinds([workload.args[i] for i in numbers]) & kinds(jax.eval_shape(fun, *workload.args))
    return sum(n * nbytes(jax.core.ShapedArray(*kind)) for kind, n in both.items())


def planned(workload: Workload, fun: Callable[..., Any], target: str) -> tuple[pytc.Program, pytc.Program]:
    """The program before and after pytc pairs, if everything is dead but what its caller reads again."""
    before, after = pytc.passes.split(pytc.passes.pipeline)
    staged = pytc.passes.run(pytc.stage(fun, *on(target, workload)), before)
    sizes = [len(jax.tree.leaves(arg)) for arg in workload.args]
    ends = list(itertools.accumulate(sizes))
    keep = frozenset(leaf for i in workload.kept for leaf in range(ends[i] - sizes[i], ends[i]))
    prepared = dataclasses.replace(staged, keep=keep)
    return prepared, pytc.passes.run(prepared, after)


def reverse(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with its results in the opposite order."""
    return lambda *args: jax.tree.leaves(fun(*args))[::-1]


def measure(workload: Workload, fun: Callable[..., Any], target: str) -> dict[str, Any]:
    """One row of the table."""
    with warnings.catch_warnings():
        # By hand, much that is donated turns out not to be usable.
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        choices = by_hand(workload, fun, target)
    best = min(choices, key=lambda numbers: (choices[numbers].total, choices[numbers].copied, len(numbers)))
    prepared, paired = planned(workload, fun, target)
    leaves = jax.tree.leaves(on(target, workload))
    choice = choose(paired, lambda plan: plan.of(prepared, paired), leaves, {})
    if choice.tried:
        figures = {
            name: dataclasses.asdict(each.figures)
            | {"total": each.figures.total, "copied_arguments": len(each.figures.copied_inputs), "plan": each.name}
            for name, each in (("high", next(t for t in choice.tried if t.chosen)), ("pytc", choice.tried[0]))
            if each.figures is not None
        }
    else:
        only = footprint(choice.emitted.lower(leaves), target)
        figures = dict.fromkeys(("high", "pytc"), dataclasses.asdict(only) | {"total": only.total})
    return {
        "nothing": dataclasses.asdict(choices[()]) | {"total": choices[()].total},
        "by_hand": dataclasses.asdict(choices[best]) | {"total": choices[best].total, "donated": best},
        "tried_by_hand": len(choices),
        "tried": sum(each.figures is not None for each in choice.tried),
        **figures,
    }


def table(target: str, results: dict[str, Any], workloads: Sequence[Workload]) -> str:
    """All rows for one target, in Markdown."""
    lines = [
        f"### {target}",
        "",
        "| program | nothing donated | by hand | pytc | high | copied (MB): by hand, pytc, high"
        " | reversed: by hand | pytc | high | copied (MB) |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    remarks = []
    rows = {}
    for workload in workloads:
        if (row := results.get(workload.name, {}).get(target)) is None:
            continue
        rows[workload.name] = row
        cells = [cell for order in ("plain", "reversed") for cell in _cells(row[order])]
        lines.append(f"| {workload.name} | {row['plain']['nothing']['total'] / MB:.1f} | {' | '.join(cells)} |")
        if (remark := workload.remarks.get(target)) is not None:
            remarks.append(f"- **{workload.name}**: {remark}")
    notes = [NOTES[target], ""] if target in NOTES else []
    lines += ["", *summary(rows), "", *notes, *remarks, ""]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    """By hand, pytc and pytc at high effort, each with how much less or more than by hand it is; bytes copied."""
    cells = [f"{row['by_hand']['total'] / MB:.1f}"]
    for name in ("pytc", "high"):
        if name not in row:
            cells.append("not measured")
            continue
        ratio = row[name]["total"] / row["by_hand"]["total"] - 1
        cells.append(f"{row[name]['total'] / MB:.1f} ({'=' if abs(ratio) <= SAME else f'{ratio:+.1%}'})")
    return [*cells, ", ".join(f"{row[name]['copied'] / MB:.1f}" for name in ("by_hand", "pytc", "high") if name in row)]


def summary(rows: dict[str, Any]) -> list[str]:
    """How many goals are met, and which are not."""
    whole = {name: row for name, row in rows.items() if "high" in row["plain"]}

    def met(goal: str, name: str, bad: Callable[[dict[str, Any]], bool], rows: dict[str, Any] = whole) -> str:
        missing = [each for each, row in rows.items() if bad(row)]
        said = f"- {goal}, {name}: {len(rows) - len(missing)} of {len(rows)}"
        return said + (f" (not {', '.join(missing)})" if missing else "")

    def larger(order: str, name: str) -> Callable[[dict[str, Any]], bool]:
        return lambda row: row[order][name]["total"] > row[order]["by_hand"]["total"] * (1 + SAME)

    def moved(name: str) -> Callable[[dict[str, Any]], bool]:
        return lambda row: abs(row["plain"][name]["total"] / row["reversed"][name]["total"] - 1) > SAME

    def copied(name: str) -> Callable[[dict[str, Any]], bool]:
        return lambda row: any(
            own[name]["copied_arguments"] > 0
            and any(
                each["copied_arguments"] == 0 and each["total"] <= own[name]["total"] * (1 + SAME)
                for each in _plans(own)
            )
            for own in (row["plain"], row["reversed"])
        )

    def loose(name: str) -> Callable[[dict[str, Any]], bool]:
        def bad(row: dict[str, Any]) -> bool:
            own = row["plain"]
            least = min(each["argument"] + each["output"] - each["alias"] for each in _plans(own)) * 1.1
            return bool(own[name]["total"] > least >= min(each["total"] for each in _plans(own)))

        return bad

    lines = []
    for name, said in (("pytc", "pytc"), ("high", 'pytc with effort="high"')):
        counted = rows if name == "pytc" else whole
        lines += [
            met("No more than by hand", said, larger("plain", name), counted),
            met("The same, results reversed", said, larger("reversed", name), counted),
            met("The same bytes in either order", said, moved(name), counted),
            met("No argument copied where a plan of as few bytes copies none", said, copied(name)),
            met("Within a tenth of arguments and results where some plan is", said, loose(name)),
        ]
    return lines


def _plans(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row[name] for name in ("nothing", "by_hand", "pytc", "high")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--targets", default=None, help="comma separated; all that are installed by default")
    parser.add_argument("--again", action="store_true", help="also what is in the results already, from this JAX")
    parser.add_argument("programs", nargs="*", help="names; all by default")
    options = parser.parse_args()
    # A GPU or TPU plugin that looks for its hardware and finds none takes its compiler away with it.
    jax.config.update("jax_platforms", "cpu")
    wanted = options.targets.split(",") if options.targets else targets()
    path = RESULTS / "footprints.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    workloads = everything()
    for target in wanted:
        for workload in workloads:
            if options.programs and workload.name not in options.programs:
                continue
            if target != POD and workload.specs is not None:
                continue
            known = results.get(workload.name, {}).get(target, {})
            if known.get("jax") == jax.__version__ and "high" in known["plain"] and not options.again:
                continue
            row = {
                "jax": jax.__version__,
                "plain": measure(workload, workload.fun, target),
                "reversed": measure(workload, reverse(workload.fun), target),
            }
            results.setdefault(workload.name, {})[target] = row
            print(f"{target} {workload.name}:", *_cells(row["plain"]), *_cells(row["reversed"]), flush=True)
            RESULTS.mkdir(exist_ok=True)
            path.write_text(json.dumps(results, indent=1) + "\n")
    measured_for = sorted({target for row in results.values() for target in row}, key=["cpu", "h200", "v5e", POD].index)
    text = "\n".join(table(target, results, workloads) for target in measured_for)
    (RESULTS / "footprints.md").write_text(f"## Memory, as the compilers count it (MB)\n\n{text}")
    print(text)


if __name__ == "__main__":
    main()
