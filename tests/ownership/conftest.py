"""What tests of the prover share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from pytc.ownership.others.watchers import onlooker_anywhere, onlooking_thread
from tests.ownership.harness import Functions, Stub, both, first


@pytest.fixture(autouse=True)
def _quickly(_quickly_compiled: None) -> None:
    """The prover knows nothing of what a program computes."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    """A failed test tells who may look at everything, since nothing that others can reach is dead then."""
    report = yield
    if report.failed and (found := onlooker_anywhere() or onlooking_thread()):
        report.sections.append(("somebody may look", found))
    return report


@pytest.fixture(name="made")
def _made() -> Functions:
    stub = Stub()
    return stub, stub.compile(first), stub.compile(both)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What C code keeps of a call is looked for among the youngest objects. Once in some hundred times a collection
    comes before that, or something alike is there, and the leaf is kept."""
    gc.collect(0)
    gc.disable()
    yield
    gc.enable()
