"""`python -m benchmarks`: automatic donation against donation by hand, side by side.

    python -m benchmarks                      all workloads, several devices, and the price of a call
    python -m benchmarks mlp_adam wave        some of them
    python -m benchmarks --quick              a smoke run, in seconds
    python -m benchmarks --markdown           the tables for docs/benchmarks.md, from the file

A run of everything writes its figures to benchmarks/results/, in a file named by the device, and draws
docs/images/benchmarks.svg. Each workload has a process of its own, so that none meets another's memory or caches.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from benchmarks import calls, chart, devices, report, workloads
from benchmarks.measure import QUICK, Effort, as_json, measure

HERE = Path(__file__).parent
CHART = HERE.parent / "docs" / "images" / "benchmarks.svg"
CALLS, DEVICES = "calls", "devices"


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="workload", help=f"workloads by name, {DEVICES!r} or {CALLS!r}; all by default"
    )
    parser.add_argument("--size", type=int, help=f"how large; {Effort.size} by default, 1 is the smallest")
    parser.add_argument("--quick", action="store_true", help="smallest sizes, one round: to see that it works")
    parser.add_argument("--rounds", type=int, help=f"rounds of timing; {Effort.rounds} by default")
    parser.add_argument("--list", action="store_true", help="say what the workloads are")
    parser.add_argument(
        "--markdown", action="store_true", help="print the tables of docs/benchmarks.md from the file of figures"
    )
    parser.add_argument("--chart", action="store_true", help="draw the chart from the file of figures")
    parser.add_argument("--out", type=Path, help="the file of figures to write, or to read with the two above")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()

    if options.list:
        for name in workloads.names():
            print(f"{name:20s} {workloads.describe(name)}")
        return
    out: Path = options.out or HERE / "results" / f"{device_name()}.json"
    if options.markdown or options.chart:
        figures = json.loads(out.read_text())
        if options.markdown:
            print(report.markdown(figures))
        if options.chart:
            CHART.write_text(chart.draw(figures))
        return

    everything = [*workloads.names(), DEVICES, CALLS]
    names = options.names or everything
    if unknown := sorted(set(names) - set(everything)):
        parser.error(f"no workload is called {', '.join(unknown)}; there are {', '.join(everything)}")
    effort = effort_of(options)
    if options.alone:
        out.write_text(json.dumps(run_alone(names[0], effort)))
        return
    figures = run(names, effort, options)
    if options.out or (not options.names and not options.quick):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"figures: {out}")
    if not options.out and not options.names and not options.quick:
        CHART.parent.mkdir(parents=True, exist_ok=True)
        CHART.write_text(chart.draw(figures))
        print(f"chart: {CHART}")


def effort_of(options: argparse.Namespace) -> Effort:
    """How much to measure, from the command line."""
    base = QUICK if options.quick else Effort()
    rounds = options.rounds or base.rounds
    return Effort(
        size=options.size or base.size,
        calls=base.calls,
        rounds=rounds,
        seconds=base.seconds,
        first_rounds=min(base.first_rounds, rounds),
    )


def run(names: list[str], effort: Effort, options: argparse.Namespace) -> dict[str, Any]:
    """Each workload in a process of its own, its rows printed as they come."""
    figures: dict[str, Any] = {"on": surroundings(effort), "workloads": {}, "devices": {}, "calls": {}}
    print(report.about(figures), end="\n\n")
    failed = []
    for name in names:
        found = in_a_process(name, options)
        if found is None:
            failed.append(name)
        elif name == CALLS:
            figures["calls"] = found
            print(report.calls_table(found), flush=True)
        elif name == DEVICES:
            figures["devices"] = found
            print(report.devices_table(found), flush=True)
        else:
            figures["workloads"][name] = found
            print(report.workload_table({name: found}), flush=True)
    if failed:
        raise SystemExit(f"failed, so no figures are written: {', '.join(failed)}")
    return figures


def in_a_process(name: str, options: argparse.Namespace) -> Any:
    """What `run_alone` returns, from a new interpreter; None where that failed, which it has said itself."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "figures.json"
        command = [sys.executable, "-m", "benchmarks", name, "--alone", "--out", str(out)]
        command += ["--size", str(options.size)] if options.size else []
        command += ["--rounds", str(options.rounds)] if options.rounds else []
        command += ["--quick"] if options.quick else []
        environment = {**os.environ, **devices.ENVIRONMENT} if name == DEVICES else None
        done = subprocess.run(command, check=False, cwd=HERE.parent, env=environment)
        return json.loads(out.read_text()) if done.returncode == 0 else None


def run_alone(name: str, effort: Effort) -> Any:
    """One workload, several devices, or the price of a call."""
    if name == DEVICES:
        return devices.measure(effort)
    if name == CALLS:
        quick = effort.seconds == 0
        found = calls.measure(rounds=2, count=100) if quick else calls.measure(rounds=60, count=2000)
        return {
            leaves: {c: {k: as_json(v) for k, v in values.items()} for c, values in by_contender.items()}
            for leaves, by_contender in found.items()
        }
    return as_json(measure(name, effort))


def device_name() -> str:
    """The device as a file's name: cpu, nvidia-h200."""
    device = jax.devices()[0]
    return "cpu" if device.platform == "cpu" else re.sub(r"[^a-z0-9]+", "-", device.device_kind.lower())


def surroundings(effort: Effort) -> dict[str, Any]:
    """What the figures depend on beside the code."""
    device = jax.devices()[0]
    return {
        "device": device.device_kind if device.platform != "cpu" else f"CPU {platform.machine()}",
        "cpus": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("jax", "jaxlib", "equinox", "optax", "flax")},
        "size": effort.size,
        "rounds": effort.rounds,
    }


if __name__ == "__main__":
    main()
