"""Each workload runs under every contender at its smallest size, and the figures add up."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import pytest

from benchmarks import calls, chart, contenders, devices, memory, report, sharing, timing, workloads
from benchmarks.measure import QUICK, as_json, entrants
from benchmarks.observe import Observation, digest, digests, observe
from benchmarks.workload import Workload

CALLS = 3
ALIKE = {"gpt_adamw", "finetune"}
"""Workloads that train the model of `gpt_reordered`, too: `make bench` compares their bits."""

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


@pytest.mark.parametrize("name", [name for name in workloads.names() if name not in ALIKE])
def test_every_contender_gives_the_same_bits(name):
    workload = workloads.make(name, QUICK.size)
    arguments = workload.arguments()
    names, excluded = entrants(workload, contenders.ALL)
    assert set(names) | set(excluded) == set(contenders.ALL)

    useful = max(contenders.subsets(workload, arguments), key=len)
    found = {c: digests(workload, contenders.build(c, workload, useful), CALLS) for c in names}
    assert len(found[contenders.JIT]) == CALLS
    assert {c for c in names if found[c] != found[contenders.JIT]} == set()


@pytest.mark.parametrize("name", workloads.names())
def test_names_and_docstrings(name):
    assert len(workloads.describe(name)) > 20
    workload = workloads.make(name, 1)
    arity = len(contenders.parameters(workload))
    assert set(workload.dead) <= set(range(arity))
    assert len(jax.eval_shape(workload.init)) + (workload.batch is not None) == arity


def test_the_unknown_workload_is_named():
    with pytest.raises(ValueError, match=r"no workload is called 'mlp'.*mlp_adam"):
        workloads.find("mlp")


def test_watching_tells_donation_from_fresh_memory():
    workload = workloads.make("conv_chain", 1)
    (x,) = workload.init()
    plain = observe(workload, jax.jit(workload.step), CALLS)
    donated = observe(workload, jax.jit(workload.step, donate_argnums=0), CALLS)
    assert plain.fresh == (x.nbytes,) * CALLS
    assert donated.fresh == (0,) * CALLS
    assert [more - less for more, less in zip(plain.held, donated.held, strict=True)] == [x.nbytes] * CALLS


def test_the_call_from_which_an_observation_is_settled():
    held = (400, 400, 400)
    assert Observation((0, 0, 0), held).settled == 1
    assert Observation((4, 0, 0), held).settled == 1
    assert Observation((8, 0, 0), held).settled == 2
    assert Observation((0, 8, 0), held).settled == 3


def test_the_best_by_hand_is_found_and_never_breaks_a_promise():
    assert contenders.best_by_hand(workloads.make("conv_chain", 1)) == (0,)
    assert 0 not in contenders.best_by_hand(workloads.make("kv_cache", 1))


def test_filter_jit_takes_part_only_where_its_promise_is_true():
    names, excluded = entrants(workloads.make("wave", 1), contenders.ALL)
    assert contenders.FILTER_JIT not in names
    assert "current" in excluded[contenders.FILTER_JIT]
    assert entrants(workloads.make("kv_cache", 1), contenders.ALL)[1] == {}


def test_digests_tell_one_bit_and_one_place_apart():
    a = {"x": jnp.float32(1.0), "k": jax.random.key(0)}
    assert digest(a) == digest(dict(a))
    assert digest(a) != digest({**a, "x": jnp.nextafter(a["x"], jnp.float32(2))})
    assert digest(a) != digest({**a, "k": jax.random.key(1)})
    assert digest((a["x"], jnp.float32(2))) != digest((jnp.float32(2), a["x"]))


def test_copies_are_read_from_the_program():
    stats = jax.jit(jnp.sin).lower(jnp.zeros(4)).compile().memory_analysis()
    program = """
    %copy.1 = f32[4,8]{1,0} copy(%p)
    %copy.2 = f32[] copy(%q)
    %c = (bf16[16]{0:T(256)}, bf16[16]{0}, u32[]) copy-start(%r), cross_program_prefetch_index=0
    %d = f32[4,8]{1,0} add(%copy.1, %copy.1)
    %e = pred[3]{0} copy(%s)
    """
    found = memory.memory(stats, program)
    assert (found.copies, found.copied) == (3, 4 * 8 * 4 + 16 * 2 + 3)
    assert found.total == 4 * 4 * 2


def test_figures_are_those_of_the_executable_that_ran():
    workload = workloads.make("wave", 1)
    step = jax.jit(workload.step, donate_argnums=0)
    arguments = workload.arguments()
    expected = contenders.compiled_memory(workload.step, arguments, (0,))
    jax.clear_caches()
    ran = memory.Executables(jax.devices()[0])
    step(*arguments)
    assert ran.step() == (expected, 1)
    assert expected.alias == arguments[0].nbytes


def test_ratios_are_taken_within_a_round():
    seconds = {"a": [1.0, 10.0, 2.0], "b": [2.0, 20.0, 4.0]}
    assert timing.ratios(seconds, "a")["b"] == timing.Spread(2.0, 2.0, 2.0)
    order: list[str] = []
    measurements = {name: lambda name=name: float(order.append(name) is None) for name in "abc"}
    assert timing.interleaved(measurements, 2) == {name: [1.0, 1.0] for name in "abc"}
    assert "".join(order) == "abcbca"


@pytest.mark.parametrize("state", list(calls.STATES))
def test_calls_are_timed_on_as_many_leaves_as_they_say(state):
    workload: Workload = calls.tiny(state)
    loop = calls.STATES[state][-1]
    assert len(jax.tree.leaves(workload.arguments()[1])) == int(state.split()[0])
    for contender in calls.CONTENDERS:
        assert loop(contenders.build(contender, workload, workload.dead), workload.init, 2) > 0


def test_on_eight_devices_pytc_takes_what_the_best_by_hand_takes(tmp_path):
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "devices", "--quick", "--out", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(out.read_text())["devices"]
    totals = {contender: row["total"] for contender, row in found.items()}
    assert list(totals) == list(devices.ALL)
    assert totals["pytc"] <= totals["by hand"] < totals["out_axes"] < totals["jax.pmap"]
    assert {c for c, row in found.items() if row["in_place"]} == {"by hand", "filter_pmap", "pytc"}
    assert all(row["same_bits"] for row in found.values())
    assert "data-parallel training on eight devices" in run.stdout


def figures(excluded):
    spread = timing.Spread(0.9, 1.0, 1.1)

    def row(total):
        return {
            "memory": memory.Memory(total, total, 0, total, 2, 8), "total": total, "compilations": 1,
            "seen": Observation((0,), (total,)), "fresh": 0, "held": total, "settled": 1, "same_bits": total != 75,
            "step_milliseconds": spread, "step_over_by_hand": spread,
            "first_call_seconds": spread, "first_call_over_jit": spread,
        }  # fmt: skip

    rows = {"jax.jit": row(100), "by hand": row(50), "filter_jit": row(75), "pytc": row(60)}
    timed = {"microseconds": spread, "over_by_hand": spread}
    result = {
        "size": 1, "leaves": 3, "argument_bytes": 50, "by_hand": ["state"],
        "rows": {c: plain(r) for c, r in rows.items() if c not in excluded},
        "excluded": dict.fromkeys(excluded, "cannot take part"),
    }  # fmt: skip
    on = dict.fromkeys(("device", "cpus", "system", "python", "jax", "equinox", "size"), "this")
    calls_ = {"1": {c: plain(timed) for c in calls.CONTENDERS}}
    mapped = {"in_place": True, "call_milliseconds": plain(spread), "call_over_by_hand": plain(spread)}
    devices_ = {c: {**plain(row(70)), **mapped} for c in devices.ALL}
    return json.loads(json.dumps({"on": on, "workloads": {"some_model": result}, "devices": devices_, "calls": calls_}))


def plain(values):
    values = as_json(values) if dataclasses.is_dataclass(values) else values
    return {k: as_json(v) if dataclasses.is_dataclass(v) else v for k, v in values.items()}


@pytest.mark.parametrize("excluded", [(), ("filter_jit",)])
def test_tables_show_losses_as_plainly_as_wins(excluded):
    made = figures(excluded)
    markdown = report.markdown(made)
    assert "| 1.200 (+10 B) |" in markdown  # pytc's 60 bytes beside 50 by hand
    assert ("bits differ" in markdown) == (not excluded)
    table = report.workload_table(made["workloads"])
    assert ("DIFFER" in table) == (not excluded)
    assert ("cannot take part" in table) == bool(excluded)
    assert "1.00 (0.90 to 1.10)" in report.calls_table(made["calls"])


@pytest.mark.parametrize("excluded", [(), ("filter_jit",)])
def test_the_chart_is_svg_with_a_bar_for_each_contender(excluded):
    root = ET.fromstring(chart.draw(figures(excluded)))
    labels = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "some_model" in labels
    assert [share in labels for share in ("100%", "50%", "75%", "60%")] == [True, True, True, True]
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}title") if e.text and e.text.startswith("some_model")]
    assert len(bars) == 4 - len(excluded)


@pytest.mark.parametrize("donate", sharing.DONATIONS)
def test_the_price_of_sharing_is_measured(donate: Literal["auto", "none"]) -> None:
    name, burst, step, leaves = sharing.CASES[1]
    assert name == "2 leaves"
    call, added, error = sharing.compared(burst, step, leaves, 4, donate)
    assert 1e-7 < call < 1
    assert math.isfinite(added)
    assert error > 0


def test_what_sharing_adds_is_the_median_difference() -> None:
    """By a clock that is told: 10 us a call, 3 more with sharing, and once, by chance, 1000."""
    taken = {True: itertools.cycle([13e-6] * 7 + [1010e-6]), False: itertools.cycle([10e-6])}

    def burst(step: Any, leaves: int, calls: int) -> float:
        assert (leaves, calls) == (2, 80)
        return next(taken[step.__pytc__.share])

    call, added, error = sharing.compared(burst, lambda state: state, 2, turns=16)
    assert call == pytest.approx(10e-6)
    assert added == pytest.approx(3e-6)
    assert error < 1e-6


def test_the_docs_show_the_figures_that_are_there() -> None:
    root = Path(__file__).parents[1]
    figures = json.loads((root / "benchmarks/results/cpu.json").read_text(encoding="utf-8"))
    assert report.markdown(figures) in (root / "docs" / "benchmarks.md").read_text(encoding="utf-8")
