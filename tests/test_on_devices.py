"""What needs several devices, in processes that have eight."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = sorted(Path(__file__).parent.glob("on_devices/cases_*.py"))


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_on_eight_devices(file: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        env=environment,
        cwd=file.parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
