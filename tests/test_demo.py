"""`make demo` keeps its promises: it learns, loses no bit against `jax.jit`, and shows the memory."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def printed() -> str:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.digits"],
        cwd=ROOT,
        # It runs for longer than it compiles.
        env={
            **os.environ,
            "PYTHONIOENCODING": "utf-8",
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    assert "donated" not in run.stderr
    assert "Exception ignored" not in run.stderr, run.stderr
    return run.stdout


def test_it_learns(printed: str) -> None:
    accuracies = [float(percent) for percent in re.findall(r"held-out accuracy +([\d.]+)%", printed)]
    assert len(accuracies) == 3
    assert min(accuracies) >= 97


def test_losses_are_those_of_jit(printed: str) -> None:
    assert "440 losses, equal bit for bit: yes" in printed


def test_memory_is_no_more_than_by_hand(printed: str) -> None:
    rows = re.findall(r"^  (\S.*?) +([\d.]+) +([\d.]+) +([\d.]+)$", printed, flags=re.MULTILINE)
    totals = {name: float(total) for name, total, _, _ in rows}
    plain, by_hand, ours = (totals[name] for name in totals)
    assert ours <= by_hand < plain
