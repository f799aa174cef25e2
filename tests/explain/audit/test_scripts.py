"""Whole scripts, written as people write them: the audit changes nothing about them, its advice is right, and the
advice, applied to the source by the letter, saves what was promised and changes nothing either."""

import dataclasses
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import interpreters

SCRIPTS = Path(__file__).parent / "scripts"
AUDIT = interpreters.ROOT / "pytc" / "explain" / "audit" / "script.py"
"""What `python -m pytc audit` becomes (see `test_command`)."""


@dataclasses.dataclass(frozen=True)
class Case:
    advice: dict[str, str | None]
    """For each function what its `jax.jit` should say about donation, None where nothing is to change."""
    findings: tuple[str, ...] = ()
    """What is found besides what can be added."""
    arguments: tuple[str, ...] = ()
    status: int = 0
    repaired: int = 0
    """The exit status after the edits."""


CASES = {
    "plain": Case({"train_step": "donate_argnums=(0, 1)", "loss": None}),
    "flax_state": Case({"train_step": "donate_argnums=(0,)", "eval_step": None}, arguments=("--steps", "4")),
    "equinox_mlp": Case({"make_step": 'donate="all"'}),
    "equinox_first_model": Case({"make_step": None}, ("at times",)),
    "equinox_trainer": Case({"make_step": 'donate="all"'}),
    "equinox_epochs": Case({"make_step": 'donate="all"'}),
    "nnx_model": Case({"train_step": "donate_argnums=(0, 1)"}),
    "equinox_callback": Case({"step": None}, ("if unread",)),
    "equinox_no_loss": Case({"step": None}),
    "nnx_finaliser": Case({"step": None}),
    "nnx_first_weights": Case({"step": "donate_argnums=(1,)"}, ("at times",)),
    "nnx_first_attribute": Case({"step": None}, ("at times",)),
    "trainer": Case({"_update": "donate_argnums=(1,)", "_blend": None}),
    "notebook": Case({"<lambda>": "donate_argnums=(0, 1)"}),
    "rl": Case({"store": "donate_argnums=(0,)", "learn": "donate_argnums=(2,)", "act": None}),
    "devices": Case({"train_step": "donate_argnums=(0, 1)", "walk": "donate_argnums=(0,)"}),
    "interrupted": Case({"<lambda>": "donate_argnums=(0,)"}, status=-signal.SIGINT, repaired=-signal.SIGINT),
    "raises": Case({"update": "donate_argnums=(1,)", "score": None}, ("wrong", "useless", "at times"), status=1),
    "sampler": Case({"_step": "donate_argnums=(0,)"}),
    "pairing": Case({"step": None}, ("pairing",)),
    "donated_unread": Case({"step": None, "smooth": None, "learn": None, "keep": ""}, ("wrong", "at times")),
    "picked": Case({"move": "donate_argnums=(0,)", "cool": "donate_argnums=(0,)"}),
    "static_arguments": Case(
        {
            "scale": "donate_argnums=(1,)",
            "train": "donate_argnums=(0,)",
            "shift": "donate_argnums=(2,)",
            "<lambda>": "donate_argnums=(1,)",
        }
    ),
}


def audited(script: Path, arguments: tuple[str, ...], out: Path) -> tuple[subprocess.CompletedProcess[str], Any]:
    run = interpreters.run([AUDIT, "--json", "--out", out, script, *arguments])
    return run, json.loads(out.read_text("utf-8"))


def apply(report: Any, source: str) -> str:
    """The source with every edit of the report, the last one first."""
    lines = source.splitlines(keepends=True)
    edits = [function["edit"] for function in report["functions"] if function["edit"] is not None]
    for edit in sorted(edits, key=lambda edit: edit["start"], reverse=True):
        (first, start), (last, end) = edit["start"], edit["end"]
        text = "".join(lines[first - 1 : last])
        stop = len(text) - len(lines[last - 1]) + end
        assert text[start:stop] == edit["before"]
        lines[first - 1 : last] = [text[:start] + edit["after"] + text[stop:]]
    return "".join(lines)


@pytest.mark.parametrize("name", CASES)
def test_a_script(name: str, tmp_path: Path) -> None:
    case, script = CASES[name], SCRIPTS / f"{name}.py"
    alone = interpreters.run([script, *case.arguments])
    assert alone.returncode == case.status, alone.stderr
    watched, report = audited(script, case.arguments, tmp_path / "report.json")
    assert (watched.returncode, watched.stdout, watched.stderr) == (alone.returncode, alone.stdout, alone.stderr)

    functions = {function["name"]: function for function in report["functions"]}
    advice = {name: function["edit"] and function["edit"]["option"] for name, function in functions.items()}
    assert advice == case.advice
    kinds = [finding["kind"] for function in report["functions"] for finding in function["findings"]]
    assert tuple(kind for kind in kinds if kind != "add") == case.findings

    changed, source = tmp_path / script.name, script.read_text("utf-8")
    changed.write_text(apply(report, source), "utf-8")
    if changed.read_text("utf-8") == source:
        return
    again, after = audited(changed, case.arguments, tmp_path / "after.json")
    assert again.returncode == case.repaired, again.stderr
    if case.repaired == case.status:
        assert again.stdout == alone.stdout
    for function in after["functions"]:
        before = functions[function["name"]]
        assert function["edit"] is None, function
        assert not [finding for finding in function["findings"] if finding["kind"] in ("wrong", "useless")]
        if before["figures"] is not None:
            assert function["figures"]["now"] == before["figures"]["advised"]
        if before["edit"] is not None and "wrong" not in kinds:
            assert before["figures"]["now"] > before["figures"]["advised"]


def test_another_order_of_the_results_saves_what_was_said(tmp_path: Path) -> None:
    script = SCRIPTS / "pairing.py"
    _, report = audited(script, (), tmp_path / "report.json")
    (function,) = report["functions"]
    (finding,) = function["findings"]
    assert finding["text"].endswith("return what is now result[0], result[2], result[1], in this order")
    changed = tmp_path / "pairing.py"
    changed.write_text(script.read_text("utf-8").replace("value, moments, params", "value, params, moments"), "utf-8")
    run, after = audited(changed, (), tmp_path / "after.json")
    assert run.stdout == interpreters.run([script]).stdout
    assert after["functions"][0]["findings"] == []
    assert after["functions"][0]["figures"]["now"] == function["figures"]["advised"] - finding["saves"]
