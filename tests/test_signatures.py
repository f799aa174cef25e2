"""Which of its signatures a function's arguments are for."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest

from pytc.calls.cache import Probe, Shared, Signatures
from pytc.context import Context


def signature(described: Any) -> Any:
    """As much of one as is asked for here."""
    staged = mock.Mock(context=Context(), described=described, program=mock.Mock(calls_python=False))
    return mock.Mock(staged=staged, described=described)


@pytest.mark.parametrize("seed", range(20))
def test_each_is_told_from_all_others_by_few_of_the_leaves(seed):
    rng = random.Random(seed)
    places, shapes = rng.choice([(1, 3), (3, 1), (2, 2)])
    probe, known = Probe(), []
    for _ in range(60):
        new = signature(tuple(((rng.randrange(shapes),), "f32", False, rng.randrange(places)) for _ in range(5)))
        probe = probe.add(new, known)
        known.insert(0, new)
        if rng.random() < 0.1:
            known = rng.sample(known, len(known) // 2)
            known.sort(key=lambda each: -rng.random())
            probe = probe.refilled(known)
        for each in known:
            newest = next(other for other in known if other.described == each.described)
            assert probe.found[probe.told(each.described)] is newest
    assert places > 1 or not probe.by_place


def test_places_are_asked_only_where_nothing_else_differs():
    one, two, elsewhere = (
        signature((("f32", (n,), False, place), ("f32", (n,), False, place))) for n, place in [(1, 0), (2, 1), (2, 2)]
    )
    probe = Probe().add(one, ()).add(two, (one,))
    assert (probe.leaves, probe.by_place) == ((0,), False)
    assert probe.add(elsewhere, (two, one)).by_place


class Part:
    """A part of a description, which counts how often it is compared with another."""

    compared = 0

    def __init__(self, value: int):
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        Part.compared += 1
        return isinstance(other, Part) and other.value == self.value


def test_a_new_one_is_not_compared_with_all_the_others():
    """Sequences of hundreds of lengths, behind hundreds of weights."""
    signatures = Signatures(Shared(lambda leaf: leaf))
    leaves, per_signature = 50, []
    for length in range(200):
        before = Part.compared
        new = signature((*((Part(-1), "f32", False) for _ in range(leaves)), (Part(length), "f32", False)))
        signatures.make_room(new)
        signatures.add(new)
        assert signatures.alike(new.described) == (new,)
        assert signatures.shared.alike(new.described) == (new,)
        per_signature.append(Part.compared - before)
    assert max(per_signature[100:]) <= max(per_signature[2:10])


def test_nothing_is_left_of_what_no_call_will_use():
    signatures = Signatures(Shared(lambda leaf: leaf))
    for n in range(3):
        with signatures.shared.being_made(((n,),)):
            signatures.add(signature(((n,),)))
        signatures.shared.was_made(((n,),))
    for each in signatures.newest[1:]:
        each.staged.context.is_spent = lambda: True
    (newest, *_) = signatures.newest
    signatures.make_room(newest)
    assert signatures.newest == (newest,)
    assert (*signatures._alike,) == (*signatures.shared._known,) == (newest.described,)
    assert (*signatures.shared._being_made,) == (newest.described,)
    with signatures.shared.being_made(((9,),)):
        signatures.shared.was_made(((9,),))  # though it did not compile
    assert (*signatures.shared._being_made,) == (newest.described,)
    assert signatures.alike(newest.described) == (newest,)
