"""What the callers in `test_callers_keep` and `test_callers_let_go` have compiled, and what they begin with."""

from __future__ import annotations

import jax
import jax.numpy as jnp

STEPS = 5


def body(state, batch):
    return jax.tree.map(lambda x: x * 1.5 + batch, state)


def with_loss(state, batch):
    return body(state, batch), state["w"].sum()


def of_two(params, opt_state, batch):
    return body(params, batch), body(opt_state, batch), params["w"].sum()


MADE = []
"""Where the arrays of every state are, or were, that `init` has made."""


def init():
    state = {"w": jnp.arange(6.0), "n": jnp.ones((2, 2))}
    MADE.extend(addresses(state))
    return state


def addresses(tree):
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
