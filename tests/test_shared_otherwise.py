"""Calls of which each has other arrays that are one: programs for some ways to share, and one for all the others."""

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc
from pytc.calls.layout import MOST_SHARINGS

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


def mating():
    """A function of six arrays, of which nothing is known yet from other tests."""
    return lambda *parents: sum(i * x for i, x in enumerate(parents))


def population(count, size=4):
    return [jnp.full(size, float(i)) for i in range(count)]


def executables(compiled):
    plans = [plan for signature in compiled.__pytc__.lookup for plan in signature.plans]
    return len({id(plan.emitted) for plan in plans if not plan.emitted.is_new})


def test_programs_are_as_many_as_ways_to_share_up_to_some():
    compiled, by_jit = pytc.compile(mating()), jax.jit(mating())
    drawn, of = random.Random(0), population(12)
    for _ in range(200):
        parents = drawn.choices(of, k=6)
        np.testing.assert_array_equal(compiled(*parents), by_jit(*parents))
    assert executables(compiled) == MOST_SHARINGS + 1  # that of the others serves calls in which none are one, too
    assert compiled._cache_size() <= MOST_SHARINGS + 2


def test_wrappers_made_anew_have_as_many_programs_together():
    mate, drawn, of = mating(), random.Random(3), population(12)
    staged, expected = set(), jax.jit(mating())
    for _ in range(100):
        parents, compiled = drawn.choices(of, k=6), pytc.compile(mate)
        np.testing.assert_array_equal(compiled(*parents), expected(*parents))
        staged |= {id(plan.emitted) for signature in compiled.__pytc__.lookup for plan in signature.plans}
    assert len(staged) <= MOST_SHARINGS + 2
    (by_sharing,) = compiled.__pytc__.lookup.known.values()
    assert len(by_sharing) <= MOST_SHARINGS + 2


def test_without_a_call_that_shares_nothing():
    compiled, by_jit = pytc.compile(mating()), jax.jit(mating())
    a, b, c, d = population(4)
    for parents in itertools.product([a, b, c, d], repeat=6):
        if len({*map(id, parents)}) < 4:
            np.testing.assert_array_equal(compiled(*parents), by_jit(*parents))
    assert executables(compiled) == MOST_SHARINGS + 1


@pytest.mark.parametrize("options", [{}, {"donate": "all"}], ids=["auto", "all"])
def test_children_take_the_place_of_parents(options):
    results = []
    for step in (pytc.compile(mating(), **options), jax.jit(mating())):
        drawn, of = random.Random(1), population(6)
        for _ in range(100):
            if options:  # each call gives its arguments away
                parents = [drawn.choice(of) for _ in range(6)]
                kept = {id(x): jnp.copy(x) for x in of}
                child = step(*parents)
                of = [kept[id(x)] for x in of]
            else:
                child = step(*drawn.choices(of, k=6))
            of[drawn.randrange(6)] = child
        results.append([np.asarray(x) for x in of])
    np.testing.assert_array_equal(*results)


def test_a_way_that_is_known_is_told_from_those_that_are_not():
    def step(state, *others):
        return jax.tree.map(lambda w: 0.9 * w, state)

    compiled = pytc.compile(step)
    weight = jnp.ones(4)
    of = population(6)
    tied = compiled({"embed": weight, "unembed": weight}, *of)
    for parents in itertools.islice(itertools.product(of[:4], repeat=6), 60):
        compiled({"embed": jnp.ones(4), "unembed": jnp.ones(4)}, *parents)
    tied = compiled(tied, *of)
    assert tied["embed"] is tied["unembed"]


def test_other_shapes_are_another_program():
    compiled, by_jit = pytc.compile(mating()), jax.jit(mating())
    small, large = population(4), population(4, size=8)
    for parents in itertools.islice(itertools.product(range(4), repeat=6), 100):
        for of in (small, large):
            given = [of[i] for i in parents]
            np.testing.assert_array_equal(compiled(*given), by_jit(*given))
    assert executables(compiled) <= 2 * (MOST_SHARINGS + 1)


def test_what_is_given_twice_and_let_go_of_is_dead_for_all_that_is_read():
    def step(a, b, c, d):
        return a + 1, b * 2, c - 1, d / 2

    def in_turn(f, results):
        for which in itertools.product(range(4), repeat=4):
            of = [jnp.full(4, float(i)) for i in range(4)]
            kept = of[0]
            results.append([kept, *f(*[of[i] for i in which])])
            del of

    mine, others = [], []
    compiled = pytc.compile(lambda *args: step(*args))
    in_turn(compiled, mine)
    in_turn(jax.jit(step), others)
    jax.tree.map(np.testing.assert_array_equal, mine, others)
    assert executables(compiled) <= 2 * (MOST_SHARINGS + 2)


def test_an_explanation_says_so():
    compiled = pytc.compile(mating())
    drawn, of = random.Random(2), population(12)
    for _ in range(60):
        compiled(*drawn.choices(of, k=6))
    told = [dict(site.arguments) for site in pytc.explain(compiled).sites]
    assert sum(each.get("which arrays are one") == "another at each call" for each in told) == 1


def test_a_mapped_function_shares_as_many_ways():
    compiled, by_jax = pytc.pmap(mating()), jax.pmap(mating())
    of = [x[None] for x in population(4)]
    for parents in itertools.islice(itertools.product(of, repeat=6), 80):
        np.testing.assert_array_equal(compiled(*parents), by_jax(*parents))
    assert executables(compiled) == MOST_SHARINGS + 1
