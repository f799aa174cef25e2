"""What is alive when, on programs small enough to count by hand."""

import jax
import jax.numpy as jnp

from pytc.explain import explain
from pytc.explain.timeline import LAYERS, Step, thinned

KIB = 1024


def layers(step):
    return dict(zip(LAYERS, step.layers, strict=True))


def chain(x, y):
    a = jnp.sin(x)  # x is read for the last time
    b = jnp.cos(a)
    return b * y.sum(), y.sum()


def test_each_equation_is_a_step_and_the_end_is_one():
    steps = explain(chain, jnp.ones((16, 16)), jnp.ones((8, 16))).timeline
    assert [step.primitive for step in steps[:2]] == ["sin", "cos"]
    assert [step.number for step in steps] == list(range(len(steps)))
    assert steps[-1].primitive == "return"
    assert steps[0].source.startswith("test_timeline.py:")
    assert steps[0].source.endswith("(chain)")


def test_reused_memory_changes_hands_when_the_output_is_made():
    steps = explain(chain, jnp.ones((16, 16)), jnp.ones((8, 16))).timeline
    product = next(step.number for step in steps if step.primitive == "mul")
    for step in steps:
        found = layers(step)
        assert found["kept"] == KIB / 2
        assert found["reused"] + found["taken"] == KIB
        assert found["taken"] == (KIB if step.number >= product else 0)


def test_temporaries_are_alive_from_where_they_are_made_to_where_they_are_last_read():
    steps = explain(chain, jnp.ones((16, 16)), jnp.ones((8, 16))).timeline
    assert layers(steps[0])["temporary"] == KIB  # a
    assert layers(steps[1])["temporary"] == 2 * KIB  # a and b
    assert layers(steps[2])["temporary"] <= KIB + 8  # b, and a sum
    assert layers(steps[-1])["temporary"] == 0


def test_what_it_would_be_if_nothing_were_reused():
    steps = explain(chain, jnp.ones((16, 16)), jnp.ones((8, 16))).timeline
    assert steps[0].without == steps[0].total == 2 * KIB + KIB // 2
    assert steps[-1].without == steps[-1].total + KIB


def test_an_array_returned_twice_is_one():
    def twice(x):
        y = x + 1
        return y, y

    steps = explain(twice, jnp.ones((16, 16))).timeline
    assert layers(steps[-1])["taken"] == KIB
    assert steps[-1].total == KIB
    assert steps[-1].without == 2 * KIB


def test_long_programs_are_thinned_to_the_steps_with_the_most_alive():
    steps = [Step(i, "add", "", (0, 0, 0, 0, i % 10), 0) for i in range(1000)]
    shown = thinned(steps, 102)
    assert len(shown) <= 102
    assert (shown[0].number, shown[-1].number) == (0, 999)
    assert {step.total for step in shown[1:-1]} <= {8, 9}
    assert [step.number for step in shown] == sorted(step.number for step in shown)
    assert thinned(steps[:50], 102) == tuple(steps[:50])


def test_a_loop_is_one_step():
    def looped(x):
        return jax.lax.fori_loop(0, 5, lambda _, y: jnp.sin(y), x)

    assert [step.primitive for step in explain(looped, jnp.ones(4)).timeline] in (
        ["scan", "return"],
        ["while", "return"],
    )
