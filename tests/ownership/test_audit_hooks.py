"""Audit hooks, which are told of functions that the proof uses and shown what it looks into: nothing is proven."""

from __future__ import annotations

import pytest

from pytc.ownership.cpython import interpreter
from tests import interpreters

HOOKED = """
import sys, types
import jax.numpy as jnp
import pytc

step = pytc.compile(lambda state: {"p": state["p"] + 1})
box = types.SimpleNamespace()
events, taken, kept = [], [], []

def hook(event, shown):
    if on:
        on.clear()  # it is told of what it does itself, too
        events.append(event)
        taken.append(shown)
        kept.append(box.state)
        frame = sys._getframe(1)
        while frame is not None:
            kept.extend(v for v in list(frame.f_locals.values()) if type(v) is dict and "p" in v)
            frame = frame.f_back
        on.append(True)

def in_an_attribute():
    box.state = {"p": jnp.zeros(1000)}
    for _ in range(6):
        before = box.state["p"].unsafe_buffer_pointer()
        box.state = step(box.state)
        moved.append(box.state["p"].unsafe_buffer_pointer() != before)

def in_a_variable():
    state = {"p": jnp.zeros(1000)}
    for _ in range(6):
        before = state["p"].unsafe_buffer_pointer()
        state = step(state)
        moved.append(state["p"].unsafe_buffer_pointer() != before)

on, moved = [], []
for run in (in_an_attribute, in_a_variable):
    run()
assert not all(moved), moved  # so that what follows is the hook's doing

sys.addaudithook(hook)
on, moved = [True], []
for run in (in_an_attribute, in_a_variable):
    run()
on.clear()
assert all(moved), moved
assert events and kept
assert not any(state["p"].is_deleted() for state in kept)

strict = pytc.compile(lambda x: x + 1, donate="require")
try:
    strict(jnp.zeros(1000))
except pytc.DonationError as error:
    assert "an audit hook is active" in str(error), error
else:
    raise AssertionError
"""


def test_nothing_is_given_away_where_there_is_one() -> None:
    """In a process of its own, since a hook stays for good."""
    interpreters.printed(["-c", HOOKED])


def test_what_the_handler_of_a_signal_raises_meanwhile_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def struck(_: object) -> None:
        raise TypeError("time is up")

    monkeypatch.setattr(interpreter, "_audit", struck)
    with pytest.raises(TypeError, match="time is up"):
        interpreter.is_audited()
