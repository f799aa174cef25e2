"""effort="high": the compiler judges several plans, and the best of them runs.

The callers are functions without asserts: pytest's look into `locals()`, which rightly stops every donation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import monitoring

import pytc
from pytc import effort, hlo, passes
from pytc.emit import Emitted, emit_jit
from pytc.measurements import FORMAT, Measurements
from pytc.passes.candidates import candidates
from tests.squares import functions

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

ROOT = Path(__file__).parent.parent

compilations: list[str] = []
monitoring.register_event_duration_secs_listener(
    lambda event, _, **__: compilations.append(event) if "backend_compile" in event else None
)


def sgd(params, momentum, batch):
    """XLA on a CPU copies the first weight before it updates it."""

    def loss(params):
        return jnp.mean(jnp.tanh(batch @ params["a"] @ params["b"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return value, jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum


def two_fields(u, v):
    """Stencils in which either field can go over either."""
    around = lambda x: jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) - 2 * x  # noqa: E731
    reaction = u * v * v
    return u + 0.1 * around(u) - reaction, v + 0.05 * around(v) + reaction


def arguments(n=128):
    random = np.random.default_rng(0)
    made = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    params = {"a": made(n, n), "b": made(n, n)}
    return params, jax.tree.map(jnp.zeros_like, params), made(16, n)


def train(step, steps):
    params, momentum, batch = arguments()
    for _ in range(steps):
        value, params, momentum = step(params, momentum, batch)
    return value, params, momentum


def explained(fun, *args, **options):
    return pytc.explain(pytc.compile(fun, effort="high", **options), *args)


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def all_plans(step):
    return [
        plan
        for layout in step.__pytc__.lookup.layouts.values()
        for signatures in layout
        for signature in signatures.newest
        for plan in signature.plans
    ]


@contextlib.contextmanager
def cache_in(folder):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None if folder is None else str(folder))
    try:
        yield folder
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture(autouse=True)
def _measured_anew():
    """Nothing is remembered of other tests' plans. (What was compiled for these is.)"""
    shutil.rmtree(Path(jax.config.jax_compilation_cache_dir) / "pytc", ignore_errors=True)


@pytest.mark.parametrize("wrong", ["low", "HIGH", None, 2])
def test_an_unknown_effort(wrong):
    with pytest.raises(ValueError, match=r"effort is .*it can be 'default' or 'high'"):
        pytc.compile(sgd, effort=wrong)
    with pytest.raises(ValueError, match=r"effort is .*it can be 'default' or 'high'"):
        pytc.compile(effort=wrong)  # where it is written, not where the decorator is used


def test_results_are_those_of_jax_jit_and_memory_is_reused():
    step = pytc.compile(sgd, effort="high")
    assert same(train(step, 5), train(jax.jit(sgd), 5))
    assert any(plan.program.donated for plan in all_plans(step))


def test_the_least_is_chosen_and_the_first_of_equals():
    for fun, args in ((sgd, arguments()), (two_fields, arguments()[:2])):
        args = jax.tree.leaves(args[0]) if fun is two_fields else args
        tried = explained(fun, *args).plans
        figures = [(each.figures.total, each.figures.copied) for each in tried if each.figures is not None]
        compiled = [each for each in tried if each.figures is not None]
        assert len(figures) > 2
        assert [each.chosen for each in compiled].index(True) == figures.index(min(figures))
        assert sum(each.chosen for each in tried) == 1
        assert tried[0].name == "by data flow"


def test_what_runs_is_what_was_explained():
    step = pytc.compile(sgd, effort="high", donate="all")
    args = arguments()
    explanation = pytc.explain(step, *args)
    step(*args)
    (plan,) = all_plans(step)
    chosen = next(each for each in explanation.plans if each.chosen)
    assert plan.program.donated == explanation.program.donated
    assert explanation.memory.program.total == chosen.figures.total
    assert len(explanation.memory.program.copies) == chosen.figures.copies


def test_a_copy_is_saved_that_the_flow_of_data_does_not_show():
    plain, high = pytc.explain(sgd, *arguments()), explained(sgd, *arguments())
    assert plain.memory.program.copied > 0
    assert high.memory.program.total <= plain.memory.program.total
    assert high.memory.program.copied < plain.memory.program.copied or (
        high.memory.program.total < plain.memory.program.total
    )


def test_the_order_of_results_does_not_matter():
    turned = explained(lambda u, v: two_fields(u, v)[::-1], *arguments()[0].values()).memory.program
    straight = explained(two_fields, *arguments()[0].values()).memory.program
    assert (straight.total, straight.copied) == (turned.total, turned.copied)


def test_a_loss_is_also_given_first_or_last():
    first, last = (f"by data flow; results written over nothing {place}" for place in ("first", "last"))
    names = [each.name for each in explained(lambda *args: sgd(*args)[::-1], *arguments()).plans]
    assert (first in names, last in names) == (True, False)  # it is the last anyway
    names = [each.name for each in explained(sgd, *arguments()).plans]
    assert (first in names, last in names) == (False, True)


def test_each_plan_is_compiled_once_and_the_best_not_again():
    with cache_in(None):
        step = pytc.compile(lambda *args: sgd(*args), effort="high", donate="all")
        args, again = arguments(), arguments()
        before = len(compilations)
        value, params, momentum = step(*args)
        jax.block_until_ready(value)
        first = len(compilations) - before
        step(params, momentum, again[2])
        assert len(compilations) - before == first
        tried = pytc.explain(step, *again).plans
        assert first == sum(each.figures is not None for each in tried)


def test_default_effort_compiles_once():
    args = arguments()
    before = len(compilations)
    pytc.compile(sgd, donate="all")(*args)
    assert len(compilations) - before == 1


def test_with_one_plan_there_is_nothing_to_choose():
    assert explained(lambda x: jnp.sum(x), jnp.ones((64, 64))).plans == ()


def test_leaves_that_are_kept_are_kept_in_every_plan():
    step = pytc.compile(sgd, effort="high", donate={"params": "none", "momentum": "all"})
    args = arguments()
    step(*args)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(args[0]))
    program = passes.run(pytc.stage(sgd, *args), passes.split(passes.pipeline)[0])
    planned = passes.alias(dataclasses.replace(program, keep=frozenset([0, 1])))
    for candidate in candidates(planned):
        assert not {program.inputs[pair.input].leaf for pair in candidate.pairs} & {0, 1}


def test_no_plan_writes_two_results_to_one_place():
    """Nor one twice, also where an array of another type could hold a large one."""

    def beam(tokens, logits):
        return tokens[jnp.argmax(logits, 1)]

    program = passes.run(pytc.stage(beam, jnp.zeros((256, 256), jnp.int32), jnp.ones((256, 256))))
    found = candidates(program)
    assert {"by data flow", "every pair that fits"} <= {candidate.name for candidate in found}
    for candidate in found:
        assert len({pair.input for pair in candidate.pairs}) == len(candidate.pairs)
        assert len({pair.output for pair in candidate.pairs}) == len(candidate.pairs)


def test_passes_after_the_pairing_have_the_last_word():
    def not_the_first(program):
        return program.noted("not_the_first", [], aliases=tuple(p for p in program.aliases if p.input != 0))

    explanation = explained(sgd, *arguments(), passes=(*passes.pipeline, not_the_first))
    assert 0 not in {pair.input for pair in explanation.program.aliases}


def test_a_pipeline_that_pairs_nothing_stays_one():
    unpaired = tuple(each for each in passes.pipeline if each is not passes.alias)
    assert explained(sgd, *arguments(), passes=unpaired).program.aliases == ()


def test_the_last_argument_moved():
    step = pytc.compile(sgd, effort="high")
    args = arguments()
    expected = jax.jit(sgd)(*arguments())
    assert same(step(args[0], pytc.move(args[1]), args[2]), expected)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(args[0]))


def of_six(*arrays):
    return [jnp.sin(array) for array in reversed(arrays)]


def test_the_compiler_is_asked_of_so_many_plans_whatever_it_says(monkeypatch):
    leaves = [jnp.full(64, float(k)) for k in range(6)]
    program = passes.run(pytc.stage(of_six, *leaves))
    assert len(candidates(program)) > 2
    monkeypatch.setattr(effort, "MOST", 2)
    monkeypatch.setattr(effort._Search, "measured", lambda *_: (None, "no room"))
    tried = effort.choose(program, lambda plan: plan.of(program, program), leaves, {}).tried
    assert [each.why for each in tried[:3]] == ["no room", "no room", "not compiled, as 2 others were"]


def test_a_compiler_that_tells_nothing_is_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(effort, "_figures", lambda *_: asked.append(1))
    program = passes.run(pytc.stage(sgd, *arguments()))
    tried = effort.choose(program, lambda plan: plan.of(program, program), jax.tree.leaves(arguments()), {}).tried
    assert len(asked) == 1 < len(tried)
    assert tried[0].chosen
    assert {each.why for each in tried} == {hlo.SILENT}


def test_a_plan_that_does_not_compile_is_out(monkeypatch):
    def refuse(self, leaves):
        lowered = lower(self, leaves)
        if not self.program.aliases:
            return lowered

        class TooLarge:
            def as_text(self):
                return lowered.as_text()

            def compile(self, options):
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room\nand a long story")

        return TooLarge()

    lower = Emitted.lower
    monkeypatch.setattr(Emitted, "lower", refuse)
    program = passes.run(pytc.stage(sgd, *arguments()))
    tried = effort.choose(program, lambda plan: plan.of(program, program), jax.tree.leaves(arguments()), {}).tried
    (chosen,) = [each.name for each in tried if each.chosen]
    assert chosen.startswith("nothing written over anything")
    assert tried[0].why == "does not compile: RESOURCE_EXHAUSTED: no room"


@settings(max_examples=8, deadline=None)
@given(functions(64))
def test_never_more_than_at_default_effort_or_by_hand(drawn):
    fun, args = drawn
    explanation = pytc.explain(pytc.compile(fun, effort="high"), *args)
    total = explanation.memory.program.total
    assert total <= pytc.explain(fun, *args).memory.program.total
    assert total <= explanation.memory.undonated.total
    assert total <= explanation.memory.by_hand.footprint.total


@settings(max_examples=8, deadline=None)
@given(functions(32))
def test_whatever_the_plan_the_bits_are_those_of_jax_jit(drawn):
    fun, args = drawn
    wanted = jax.jit(fun)(*args)
    prepared = passes.run(pytc.stage(fun, *args), passes.split(passes.pipeline)[0])
    planned = passes.alias(prepared)
    for candidate in candidates(planned):
        emitted, landed, copies = emit_jit(candidate.of(prepared, planned)), [], [x.copy() for x in args]
        emitted.call(copies, landed)
        assert same(emitted.result(landed[0], copies), wanted)


def plans():
    for fun, args in ((sgd, arguments()), (two_fields, tuple(arguments()[0].values()))):
        for plan in pytc.explain(pytc.compile(fun, effort="high"), *args).plans:
            yield str(plan)


def test_every_process_chooses_alike():
    """Whatever the order of its sets is."""
    code = "from tests.test_effort import plans; print(*plans(), sep='\\n')"
    seed = str(1 + (os.environ.get("PYTHONHASHSEED") == "1"))
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == (told := [*plans()])
    assert sum("chosen=True" in plan for plan in told) == 2


# -- remembered on disk ---------------------------------------------------------------------------------------------


def compiled_for(tmp_path, **options):
    """How many programs are compiled to choose a plan, and what is chosen."""
    with cache_in(tmp_path):
        step = pytc.compile(sgd, effort="high", **options)
        given = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments())
        function = step.__pytc__
        prepared = function.planner.prepared(function.stageable.stage(given, {}, share=True))
        paired = function.planner.paired(prepared, frozenset())
        before = len(compilations)
        choice = function.planner.choose(prepared, paired, jax.tree.leaves(given))
    return len(compilations) - before, choice.emitted.program.aliases


def remembered(tmp_path):
    return sorted((tmp_path / "pytc").glob("*"))


def test_figures_are_remembered_beside_the_compilation_cache(tmp_path):
    first, chosen = compiled_for(tmp_path)
    (file,) = remembered(tmp_path)
    told = json.loads(file.read_text())
    assert told["format"] == FORMAT
    assert len(told["plans"]) == first > 2
    assert compiled_for(tmp_path) == (0, chosen)
    assert remembered(tmp_path) == [file]
    # Other options are another program.
    assert compiled_for(tmp_path, keep_unused=True)[0] > 0
    assert len(remembered(tmp_path)) == 2


def test_nothing_is_written_where_jax_writes_nothing(tmp_path):
    assert compiled_for(None)[0] > 0
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert compiled_for(tmp_path)[0] > 0
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert remembered(tmp_path) == []


def test_nothing_is_written_of_plans_that_the_callers_own_passes_have_changed(tmp_path):
    """No hash would tell that these do something else the next time."""
    with cache_in(tmp_path):
        assert len(explained(sgd, *arguments(), passes=(*passes.pipeline, lambda program: program)).plans) > 2
    assert remembered(tmp_path) == []


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What was compiled, and the name and the text of the file that remembers it."""
    folder = tmp_path_factory.mktemp("cache")
    first = compiled_for(folder)
    (file,) = remembered(folder)
    return first, file.name, file.read_text()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 100_000,
        lambda text: "\x00\xff",
        lambda text: "[]",
        lambda text: '"pytc"',
        lambda text: text.replace(FORMAT, "pytc.measurements/0"),
        lambda text: text.replace('"temp": ', '"temp": -'),
        lambda text: text.replace('"temp"', '"time"'),
        lambda text: json.dumps({"format": FORMAT, "plans": [1, 2]}),
        lambda text: json.dumps({"format": FORMAT, "plans": {"0>0": {"total": 0}}}),
        lambda text: json.dumps({"format": FORMAT}),
    ],
)
def test_a_file_that_is_spoilt_is_as_good_as_none(tmp_path, spoil, written):
    _, _, whole = written
    file = tmp_path / "figures.json"
    file.write_text(whole)
    plans = json.loads(whole)["plans"]
    assert all(Measurements(file, {}).get(plan) for plan in plans)
    file.write_text(spoil(whole), "latin-1")
    assert not any(Measurements(file, {}).get(plan) for plan in plans)


def test_a_file_that_is_spoilt_is_written_anew(tmp_path, written):
    first, name, whole = written
    file = tmp_path / "pytc" / name
    file.parent.mkdir()
    file.write_text(whole[: len(whole) // 2])
    assert compiled_for(tmp_path) == first
    assert file.read_text() == whole
    assert remembered(tmp_path) == [file]


def test_part_of_a_file_is_used_as_far_as_it_goes(tmp_path):
    first, chosen = compiled_for(tmp_path)
    (file,) = remembered(tmp_path)
    told = json.loads(file.read_text())
    told["plans"].popitem()
    file.write_text(json.dumps(told))
    assert compiled_for(tmp_path) == (1, chosen)
    assert len(json.loads(file.read_text())["plans"]) == first


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "pytc").write_text("in the way")
    first, chosen = compiled_for(tmp_path)
    assert compiled_for(tmp_path) == (first, chosen)
    assert (tmp_path / "pytc").read_text() == "in the way"


# -- explain --------------------------------------------------------------------------------------------------------


def test_explain_shows_the_plans():
    explanation = explained(sgd, *arguments())
    chosen = next(each for each in explanation.plans if each.chosen)
    text = explanation.text(100)
    (line,) = [line for line in text.splitlines() if line.startswith("* ")]
    assert line.endswith(chosen.name)
    assert "not compiled, as it saves too little to be the best" in text
    told = json.loads(explanation.to_json())["plans"]
    assert [each["name"] for each in told if each["chosen"]] == [chosen.name]
    assert next(each for each in told if each["chosen"])["figures"]["total"] == chosen.figures.total
    page = explanation._repr_html_()
    assert "<h2>Plans</h2>" in page
    assert html.escape(chosen.name) in page


def test_without_effort_explain_is_as_it_was():
    explanation = pytc.explain(sgd, *arguments())
    assert explanation.plans == ()
    assert "plans" not in explanation.text(100).splitlines()
    assert "<h2>Plans</h2>" not in explanation._repr_html_()
    assert json.loads(explanation.to_json())["plans"] == []
