"""What needs several devices, in processes that have eight."""

from pathlib import Path

import pytest

from tests import interpreters

CASES = sorted(Path(__file__).parent.glob("on_devices/cases_*.py"))


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_on_eight_devices(file: Path) -> None:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    interpreters.printed(command, XLA_FLAGS="--xla_force_host_platform_device_count=8")
