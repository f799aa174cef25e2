"""The table, as it stands in a terminal."""

import dataclasses
import functools
import re
from pathlib import Path

import jax.numpy as jnp
import pytest

from pytc.explain import Explanation, InputReport, explain
from pytc.explain.sizes import size
from tests.explain.programs import squared_thrice, update, update_arguments, with_figures

GOLDEN = Path(__file__).parent / "golden"


@functools.cache
def explained() -> Explanation:
    args, kwargs = update_arguments()
    return with_figures(explain(update, *args, **kwargs))


@pytest.mark.parametrize("width", [100, 64])
def test_the_table_is_as_it_was_looked_at(width):
    assert explained().text(width) == (GOLDEN / f"update_{width}.txt").read_text().rstrip("\n")


def test_str_is_the_table_and_plain_ascii():
    assert str(explained()) == explained().text()
    assert str(explained()).isascii()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_asked_for(width):
    lines = explained().text(width).splitlines()
    assert max(map(len, lines)) <= width


def test_without_a_comparison_nothing_more_is_compiled():
    explanation = explain(lambda x: x + 1, jnp.ones((32, 32)))
    text = explanation.text(100, compare=False)
    assert "undonated" not in vars(explanation.memory)
    assert "by_hand" not in vars(explanation.memory)
    assert text.splitlines()[0] == "<lambda>: 4.0 KiB reused, 0 B kept; total 4.0 KiB"
    assert "jax.jit" not in text
    assert text.splitlines()[-1].startswith("  pytc ")


def test_colour_changes_nothing_but_colour():
    coloured = explained().text(80, colour=True)
    assert "\033[32m" in coloured
    assert re.sub(r"\033\[\d+m", "", coloured) == explained().text(80)


def reports(layers):
    """5,000 leaves of a model as they come: many alike, a few not."""
    made = []
    for layer in range(layers):
        for name, shape, nbytes in [("wq", "f32[512,512]", 2**20), ("b", "f32[512]", 2**11)]:
            for tree in ("params", "mu"):
                made.append(
                    InputReport(
                        path=f"state.{tree}['layers_{layer}'].{name}",
                        parameter="state",
                        shape=(512, 512),
                        dtype="float32",
                        type=shape,
                        nbytes=nbytes,
                        verdict="reused",
                        target=f"result[0].{tree}['layers_{layer}'].{name}",
                        reason="updated in place",
                        advice="",
                        copied=0,
                    )
                )
    return tuple(made)


def test_leaves_alike_are_folded_and_the_largest_stand_on_top():
    explanation = dataclasses.replace(explained(), inputs=reports(1250))
    assert len(explanation.inputs) == 5000
    lines = explanation.text(100).split("inputs\n")[1].split("\n\n")[0].splitlines()
    assert lines == [
        "  1250 x 1.0 MiB  f32[512,512]  state.params['layers_0..1249'].wq  reused in result[0]",
        "  1250 x 1.0 MiB  f32[512,512]  state.mu['layers_0..1249'].wq      reused in result[0]",
        "  1250 x 2.0 KiB  f32[512]      state.params['layers_0..1249'].b   reused in result[0]",
        "  1250 x 2.0 KiB  f32[512]      state.mu['layers_0..1249'].b       reused in result[0]",
    ]


def test_a_leaf_that_moves_is_told_by_the_path_of_its_output():
    moved = dataclasses.replace(reports(1)[0], target="result[1].wq", copied=2**20, reason="copied first")
    text = dataclasses.replace(explained(), inputs=(moved,)).text(120)
    assert "state.params['layers_0'].wq  reused as result[1].wq: copied first" in text


def test_what_adds_up_to_little_is_summed_up():
    large = [
        dataclasses.replace(each, path=each.path + "x" * i) for i, each in enumerate(reports(5)) if each.nbytes > 2**11
    ]
    small = [
        dataclasses.replace(each, path=each.path + "x" * i) for i, each in enumerate(reports(5)) if each.nbytes == 2**11
    ]
    kept = dataclasses.replace(small[0], path="kept", verdict="kept")
    text = dataclasses.replace(explained(), inputs=(kept, *small, *large)).text(120)
    assert "  and 22 KiB in 11 more leaves: 10 reused, 1 kept\n" in text


def test_what_is_all_different_is_cut_short_and_summed_up():
    different = tuple(dataclasses.replace(each, path="x" * (i + 1)) for i, each in enumerate(reports(25)))
    lines = dataclasses.replace(explained(), inputs=different).text(400, rows=10).split("inputs\n")[1].splitlines()
    assert len(lines[: lines.index("")]) == 11
    assert lines[10] == "  and 40 MiB in 90 more leaves: 90 reused"


def test_a_function_of_nothing_to_reuse():
    text = explain(lambda x: x.sum(), jnp.ones((32, 32))).text(100)
    assert "0 B reused, 4.0 KiB kept" in text
    assert "Donating nothing is best by hand." in text


def test_copies_are_told():
    text = explain(squared_thrice, jnp.ones((32, 32)), jnp.ones(3)).text(100)
    assert "  copied: 4.0 KiB  f32[32,32]  a" in text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (10 * 1024 - 1, "10 KiB"),
        (4 * 2**20, "4.0 MiB"),
        (2**30 - 1, "1.0 GiB"),
        (1181116006, "1.1 GiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_sizes(nbytes, text):
    assert size(nbytes) == text


def test_no_rows_at_all():
    inputs = explained().text(rows=0).split("inputs\n")[1].splitlines()[0]
    assert inputs.startswith("  and ")
    assert "more leaves" in inputs
