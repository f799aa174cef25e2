"""What a pass changed, as lines: a value keeps its name from one program to the next."""

import jax
import jax.numpy as jnp

from pytc.explain.equations import Change, Line, Namer, compare, first


def lines(*texts):
    return [Line(text, "") for text in texts]


def test_equations_at_every_depth_are_lines_with_their_sources():
    def looped(x):
        return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x * 2, None, length=3)[0]

    found = Namer().lines(jax.make_jaxpr(looped)(jnp.ones(4)).jaxpr)
    assert found[0].text == "v0:f32[4] = mul v1 2.0"
    assert found[0].source.startswith("test_equations.py:")
    assert found[0].source.endswith("looped)")
    assert found[1].text.startswith("v2:f32[4] = scan v0")
    assert found[2].text == "  v3:f32[4] = sin v4"


def test_a_value_keeps_its_name():
    jaxpr = jax.make_jaxpr(lambda x: (jnp.sin(x), jnp.cos(x), jnp.tan(x)))(1.0).jaxpr
    namer = Namer()
    before = namer.lines(jaxpr)
    after = namer.lines(jaxpr.replace(eqns=jaxpr.eqns[1:], debug_info=jaxpr.debug_info))
    assert after == before[1:]
    assert [change.kind for change in compare(before, after)] == ["went", "same", "skipped"]


def test_unchanged_lines_are_left_out_but_for_those_next_to_a_change():
    before = lines(*"abcdefghi")
    after = lines(*"abcdXfghi")
    assert list(compare(before, after)) == [
        Change("skipped", Line("3 more", "")),
        Change("same", Line("d", "")),
        Change("went", Line("e", "")),
        Change("came", Line("X", "")),
        Change("same", Line("f", "")),
        Change("skipped", Line("3 more", "")),
    ]


def test_a_long_list_says_how_much_more_there_is():
    changes = first(compare(lines(*"abcdef"), []), 4)
    assert [change.kind for change in changes] == ["went"] * 4 + ["skipped"]
    assert changes[-1].line.text == "2 more"
    assert len(first(compare(lines(*"ab"), []), 4)) == 2
