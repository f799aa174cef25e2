"""A slice of the random programs, and what they and the named tests are worth: each obligation broken in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.ownership import fuzz_compiled, mutants
from tests.ownership.fuzz_callers import check


def test_random_programs() -> None:
    dead = found = 0
    for seed in range(150):
        possible, made = check(seed)
        dead, found = dead + possible, found + made
    assert found > 0.5 * dead


def test_random_programs_around_the_compiler() -> None:
    for seed in range(15):
        fuzz_compiled.check(seed)


@pytest.mark.parametrize("mutant", mutants.ALL, ids=[m.__name__ for m in mutants.ALL])
def test_a_broken_obligation_is_noticed(mutant: Callable[[], Any]) -> None:
    assert mutants.noticed(mutant), "no program notices that this obligation is gone: it is untested"
