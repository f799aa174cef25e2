"""`python -m pytc explain`."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import pytc.__main__ as command_line

HERE = "tests.explain.programs"
SWAPPED = ["explain", f"{HERE}:swapped", "--args", f"{HERE}:swapped_arguments"]


def run(capsys, *arguments):
    status = command_line.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_table_is_printed_without_colour_where_there_is_no_terminal(capsys):
    status, out, err = run(capsys, *SWAPPED, "--width", "90")
    assert status == 0
    assert out.startswith("swapped: 32 KiB reused, 0 B kept; total ")
    assert "\033" not in out
    assert err == ""


def test_a_quick_table_compares_nothing(capsys):
    _, out, _ = run(capsys, *SWAPPED, "--quick")
    assert "best by hand" not in out


def test_it_runs_as_a_program():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytc", *SWAPPED, "--require", "reused=1"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "nearest jax.jit call" in done.stdout


def test_json(capsys):
    status, out, _ = run(capsys, *SWAPPED, "--json")
    assert status == 0
    assert json.loads(out)["schema"] == "pytc.explain/1"


def test_a_page_is_written(capsys, tmp_path):
    page = tmp_path / "report.html"
    status, out, _ = run(capsys, *SWAPPED, "--html", str(page))
    assert status == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert out == f"wrote {page}\n"
    _, out, _ = run(capsys, *SWAPPED, "--html", str(page), "--text")
    assert out.startswith("swapped: ")


@pytest.mark.parametrize("arguments", [(), ("--args", f"{HERE}:nothing_to_give")])
def test_a_function_that_takes_nothing(capsys, arguments):
    status, out, _ = run(capsys, "explain", f"{HERE}:started", *arguments)
    assert status == 0
    assert out.startswith("started: 0 B reused, 0 B kept")


def test_keyword_arguments(capsys):
    status, out, _ = run(capsys, "explain", f"{HERE}:update", "--args", f"{HERE}:update_arguments")
    assert status == 0
    assert "state['w']['layer0..3']" in out


def test_requirements_decide_the_exit_status(capsys):
    met = ["--require", "reused=1", "--require", "copies=9", "--require", "total_bytes=0.5MiB"]
    assert run(capsys, *SWAPPED, *met)[0] == 0
    status, out, err = run(capsys, *SWAPPED, "--require", "total_bytes=1KiB")
    assert status == 1
    assert out.startswith("swapped: ")
    assert err.startswith("swapped: it takes ")
    assert err.endswith("not 1,024\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "nowhere_to_be_found:f"], "no module 'nowhere_to_be_found'"),
        (["explain", f"{HERE}:nothing"], "there is no 'nothing'"),
        (["explain", HERE], "not of the form package.module:name"),
        (["explain", f"{HERE}:dataclasses"], "is of type module, not a function"),
        (
            ["explain", f"{HERE}:swapped", "--args", f"{HERE}:one_argument"],
            "do not fit tests.explain.programs:swapped",
        ),
        (["explain", f"{HERE}:swapped"], "--args is needed"),
        ([*SWAPPED, "--require", "reused=95"], "share from 0 to 1"),
        ([*SWAPPED, "--require", "speed=2"], "--require takes"),
        ([*SWAPPED, "--require", "copies=1GiB"], "'GiB' in '1GiB': there is no unit"),
        ([*SWAPPED, "--require", "copies=0.5"], "copies is a whole number"),
        ([*SWAPPED, "--require", "total_bytes=5XB"], "'XB' in '5XB': the unit is none of b, kib"),
        ([*SWAPPED, "--memory", "much"], "--memory: 'much' is no number of bytes, such as 40GiB"),
        ([*SWAPPED, "--memory", "0"], "memory is 0, and should be a positive number of bytes"),
        ([*SWAPPED, "--require", "reused=1.2.3"], "is no number"),
        ([*SWAPPED, "--html", "/nowhere/page.html"], "--html: /nowhere/page.html cannot be written: No such file"),
    ],
)
def test_wrong_usage_says_what_is_wrong(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        command_line.main(arguments)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: python -m pytc explain [-h] [--args package.module:name]")
    assert message in said


def test_an_error_inside_of_the_module_is_its_own(capsys, tmp_path, monkeypatch):
    (tmp_path / "importer_of_nothing.py").write_text("import nowhere_to_be_found")
    monkeypatch.syspath_prepend(tmp_path)
    status, _, err = run(capsys, "explain", "importer_of_nothing:f")
    assert status == 3
    assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in err


class State(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize(
    ("example", "args", "kwargs"),
    [
        ((1, 2), (1, 2), {}),
        ({"x": 1}, (), {"x": 1}),
        (((1,), {"y": 2}), (1,), {"y": 2}),
        (((1,), {"z": 2}), ((1,), {"z": 2}), {}),
        ({"w": 1}, ({"w": 1},), {}),
        ({1: 2}, ({1: 2},), {}),
        (State(1, 2), (State(1, 2),), {}),
        (5, (5,), {}),
        ([1, 2], ([1, 2],), {}),
        (lambda: (3,), (3,), {}),
    ],
)
def test_what_examples_mean(example, args, kwargs):
    def function(x, y=0):
        return x + y

    assert command_line._as_arguments(function, example) == (args, kwargs)


def test_whether_it_fits_on_a_device(capsys):
    on_cpu = [*SWAPPED, "--device", "cpu", "--quick", "--require", "fits", "--memory"]
    status, out, err = run(capsys, *on_cpu, "1MiB")
    assert (status, err) == (0, "")
    assert out.startswith("swapped on CPU: 32 KiB reused, 0 B kept; fits in 1.0 MiB: ")
    status, out, err = run(capsys, *on_cpu, "1KiB")
    assert status == 1
    assert "there are 1,024" in err


def test_the_largest_batch(capsys):
    status, out, _ = run(capsys, *SWAPPED, "--device", "cpu", "--quick", "--memory", "1MiB", "--largest", "a")
    assert status == 0
    assert re.search(r"\n\na: [\d,]+ fits in 1.0 MiB: 1.0 MiB, 100%; ", out)
    status, out, err = run(capsys, *SWAPPED, "--device", "cpu", "--memory", "1MiB", "--largest", "a", "--json")
    assert json.loads(out)["device"]["memory"] == 2**20
    assert err.startswith("\na: ")


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        ("swapped", "nothing", "--largest: 'nothing' is no argument with a leading axis; there are a, b"),
        ("update", "state", "--largest: the leading axes of a batch are of one size, but these are not: state"),
    ],
)
def test_a_wrong_batch_is_wrong_usage(capsys, function, name, message):
    command = ["explain", f"{HERE}:{function}", "--args", f"{HERE}:{function}_arguments", "--quick"]
    with pytest.raises(SystemExit, match="2"):
        run(capsys, *command, "--device", "cpu", "--memory", "1MiB", "--largest", name)
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_batch_that_takes_no_memory_is_wrong_usage(capsys):
    command = ["explain", f"{HERE}:half_read", "--args", f"{HERE}:swapped_arguments", "--quick", "--device", "cpu"]
    with pytest.raises(SystemExit, match="2"):
        run(capsys, *command, "--memory", "1MiB", "--largest", "b")
    said = "--largest: the program takes as much memory with a small batch as with a large one"
    assert said in capsys.readouterr().err


def test_what_the_function_raises_has_a_status_of_its_own(capsys):
    status, out, err = run(capsys, "explain", f"{HERE}:raising", "--require", "copies=0")
    assert (status, out) == (3, "")
    assert "in raising\n" in err
    assert "\nArithmeticError: not today\n" in err
    command = ["explain", f"{HERE}:picky", "--args", f"{HERE}:swapped_arguments", "--quick", "--device", "cpu"]
    status, _, err = run(capsys, *command, "--memory", "1MiB", "--largest", "a", "--largest", "b")
    assert status == 3
    assert "\nValueError: there are 64 rows\n" in err


@pytest.mark.parametrize(
    "wrong", [["--device", "h2000"], ["--device", "cpu", "--memory", "much"], ["--require", "fits"], ["--largest", "a"]]
)
def test_a_wrong_device_is_wrong_usage(capsys, wrong):
    with pytest.raises(SystemExit, match="2"):
        run(capsys, *SWAPPED, *wrong)
    assert "error: " in capsys.readouterr().err


def test_what_each_pass_changed(capsys):
    wasteful = ["explain", f"{HERE}:wasteful", "--args", f"{HERE}:swapped_arguments", "--quick"]
    _, out, _ = run(capsys, *wasteful, "--passes")
    assert re.search(r"\n  - v\d+:f32\[64,64\] = cos v\d+  programs.py:\d+ \(wasteful\)\n", out)
    _, out, _ = run(capsys, *wasteful)
    assert "= cos" not in out
