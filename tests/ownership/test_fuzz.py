# ruff: noqa: PT008 - the patches are to be functions, because their places are
"""A slice of the random programs, and what they and the named tests are worth: each obligation broken in turn."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pytc.ownership import callers, frames, look
from pytc.ownership.others import watchers
from tests.ownership import fuzz_compiled, mutants
from tests.ownership.fuzz_callers import ASKED, Tally, Wrong, check, check_beside_a_thread


def tally(kind: str, programs: range, asks: bool) -> Tally:
    counted = Tally()
    for seed in programs:
        counted.add(check(seed, kind=kind, asks=asks))
    return counted


@pytest.mark.parametrize("kind", ASKED)
def test_random_programs(kind: str) -> None:
    """No wrong value, and nearly all that one could donate who knows the program, but not its future."""
    counted = tally(kind, range(70), asks=True)
    assert counted.allowed > 150
    assert counted.share > 0.95, counted


def test_more_random_programs() -> None:
    assert tally("hostile", range(70, 110), asks=False).dead_found > 0


def test_random_programs_in_which_destructors_make_calls() -> None:
    counted = tally("ending", range(60), asks=False)
    assert counted.dead_found > counted.dead / 2


def test_random_programs_in_which_variables_own_objects() -> None:
    counted = tally("owners", range(25), asks=False)
    assert counted.dead_found > 0.9 * counted.dead


def test_random_programs_whose_state_is_a_field() -> None:
    counted = tally("fields", range(40), asks=False)
    assert counted.dead_found > 0.4 * counted.dead


@pytest.mark.parametrize("kind", ["hostile", "training", "owners", "fields"])
def test_random_programs_beside_a_thread(kind: str) -> None:
    counted = Tally()
    for seed in range(20):
        counted.add(check_beside_a_thread(seed, kind))
    assert counted.dead_found > counted.dead / 5


def test_random_programs_show_what_a_thread_can_read() -> None:
    with mutants.broken(mutants.threads_reach_nothing):
        wrong = [seed for seed in range(10) if gives_away_too_much(seed)]
    assert wrong


def gives_away_too_much(seed: int) -> bool:
    try:
        check_beside_a_thread(seed, "owners")
    except (Wrong, RuntimeError):
        return True
    return False


LAZY: dict[str, Callable[[], Any]] = {
    "slots": lambda: mock.patch.object(look, "onlookers", lambda *_: watchers.Onlookers("somebody", "")),
    "frames above": lambda: mock.patch.object(callers, "HIGHEST", 1),
    "handlers": lambda: mock.patch.object(frames, "raising_handler", lambda: "somebody"),
}


@pytest.fixture(name="full", scope="module")
def _full() -> Tally:
    """What the prover finds as it is."""
    return tally("training", range(40), asks=True)


@pytest.mark.parametrize("lazy", LAZY.values(), ids=LAZY.keys())
def test_the_share_shows_a_prover_that_keeps_too_much(full: Tally, lazy: Callable[[], Any]) -> None:
    """That the oracle does not just repeat what the prover says."""
    with mutants.broken(lazy):
        kept = tally("training", range(40), asks=True)
    assert kept.allowed == full.allowed
    assert kept.share < full.share - 0.005


def test_random_programs_around_the_compiler() -> None:
    for seed in range(20):
        fuzz_compiled.check(seed)


@pytest.mark.parametrize("program", mutants.PROGRAMS, ids=[p.__name__ for p in mutants.PROGRAMS])
def test_nobody_notices_anything_else(program: Callable[..., Any]) -> None:
    """What shows that an obligation is gone meets no deleted array as long as all of them stand."""
    for _ in range(2):
        assert not mutants.fails(program)


def test_the_obligations_that_the_docs_list_are_here() -> None:
    """Each with modules that there are, and mutants that leave it out; and no module of the proof is in none."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "proof.md").read_text("utf-8")
    listed = page[page.index("## The obligations") : page.index("## Facts about CPython")]
    rows = [line.split("|") for line in listed.splitlines() if line.startswith("| ")][2:]
    there = {file.stem for file in (root / "pytc/ownership").rglob("*.py")}
    assert len(rows) > 10
    for _, obligation, modules, without, _ in rows:
        assert set(_quoted(modules)) <= there, obligation
        assert all(hasattr(mutants, name) for name in _quoted(without)), obligation
    named = {name for _, _, modules, *_ in rows for name in _quoted(modules)}
    packages = ("arrays", "bytecode", "references", "others", "cpython")
    proving = {file.stem for package in packages for file in (root / "pytc/ownership" / package).glob("[!_]*.py")}
    assert proving - named == _IN_NO_OBLIGATION


_IN_NO_OBLIGATION = {
    # What others need to know of code, of classes and of the arguments.
    *("callsite", "events", "instructions", "analysed", "stack", "stores", "symbolic", "facts", "wanted"),
    # Whether the proof is worth its price.
    "alive",
}


def _quoted(cell: str) -> list[str]:
    names = re.findall("`(.+?)`", cell)
    assert names
    return names


@pytest.mark.parametrize("mutant", mutants.ALL, ids=[m.__name__ for m in mutants.ALL])
def test_a_broken_obligation_is_noticed(mutant: Callable[[], Any]) -> None:
    with contextlib.closing(mutants.noticing(mutant)) as noticing:
        assert next(noticing, ""), "no program notices that this obligation is gone: it is untested"
