"""The table of footprints: what is measured for a program, and what the table says of it."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from benchmarks import footprints
from benchmarks.footprint_programs import Workload, array, everything


def step(params, moment, batch):
    moment = 0.9 * moment + batch.T @ jnp.tanh(batch @ params)
    return params - 0.1 * moment, moment


WORKLOAD = Workload("small", step, (array(128, 128), array(128, 128), array(64, 128)), kept=(2,))


@pytest.fixture(scope="module")
def row():
    return {
        order: footprints.measure(WORKLOAD, fun, "cpu")
        for order, fun in (("plain", step), ("reversed", footprints.reverse(step)))
    }


def test_a_row_has_every_plan_and_none_is_better_than_high(row):
    for measured in row.values():
        totals = {name: measured[name]["total"] for name in ("nothing", "by_hand", "pytc", "high")}
        assert totals["high"] == min(totals.values()) < totals["nothing"]
        assert set(measured["by_hand"]["donated"]) <= {0, 1}


def test_every_set_of_arguments_that_could_be_best_is_tried_by_hand():
    tried = footprints.by_hand(WORKLOAD, step, "cpu")
    assert {(), (0, 1)} <= set(tried) <= {(), (0,), (1,), (0, 1)}
    assert min(each.total for each in tried.values()) < tried[()].total


def test_the_table_says_who_is_smaller_and_which_goals_are_met(row):
    text = footprints.table("cpu", {"small": {"cpu": row}}, [WORKLOAD])
    assert text.count("\n| small |") == 1
    assert '- No more than by hand, pytc with effort="high": 1 of 1\n' in text
    row = {"plain": row["plain"] | {"pytc": row["plain"]["nothing"]}, "reversed": row["reversed"]}
    text = footprints.table("cpu", {"small": {"cpu": row}}, [WORKLOAD])
    assert "- No more than by hand, pytc: 0 of 1 (not small)\n" in text
    assert "- The same bytes in either order, pytc: 0 of 1 (not small)\n" in text


def test_every_program_has_a_name_of_its_own():
    names = [workload.name for workload in everything()]
    assert len(names) == len(set(names)) > 80
