"""The workloads, one a file: the module's docstring says what it is, and `make(size)` builds it.

Size 1 is for tests; 4 is what a benchmark run takes unless told otherwise, and larger sizes grow from there.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from benchmarks.workload import Workload


def names() -> list[str]:
    """All workloads, by name."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> ModuleType:
    """The module of the workload `name`. An unknown name is a ValueError."""
    if name not in names():
        raise ValueError(f"no workload is called {name!r}; there are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def make(name: str, size: int) -> Workload:
    """The workload `name`, anew: its step is a function that no contender has compiled before."""
    workload: Any = find(name).make(size)
    if not isinstance(workload, Workload):
        raise TypeError(f"{name}.make({size}) gave {workload!r}, which is not a Workload")
    return workload


def describe(name: str) -> str:
    """The first line of the workload's docstring."""
    return (find(name).__doc__ or "").strip().splitlines()[0]
