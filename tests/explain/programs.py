"""Programs small enough to know every figure of, for the tests of `explain`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import pytc
from pytc.explain import ByHand, Copy, Footprint, Memory


def update(state, batch, rate, *, rounds, clip=None):
    """An update with everything that an explanation can say: reused, kept, passed through, unused, static."""
    gradient = {name: w * batch.sum() for name, w in state["w"].items()}
    momentum = {name: 0.9 * m + gradient[name] for name, m in state["m"].items()}
    weights = {name: w - rate * momentum[name] for name, w in state["w"].items()}
    if clip is not None:
        weights = {name: jnp.clip(w, -clip, clip) for name, w in weights.items()}
    new = {"w": weights, "m": momentum, "embedding": state["embedding"], "activation": state["activation"]}
    return new, {"rounds": rounds, "norm": sum(jnp.vdot(w, w) for w in weights.values())}


def update_arguments():
    names = [f"layer{i}" for i in range(4)]
    state = {
        "w": {name: jnp.full((256, 128), i + 1.0) for i, name in enumerate(names)},
        "m": {name: jnp.zeros((256, 128)) for name in names},
        "embedding": jnp.ones((64, 128)),
        "unused": jnp.ones(10),
        "activation": jnp.tanh,
    }
    return (state, np.ones((8, 4), np.float32), 0.1), {"rounds": jnp.asarray(3)}


def swapped(a, b):
    """Whose outputs, in order, JAX pairs with the wrong inputs."""
    return jnp.sin(b), jnp.cos(a)


def half_read(a, b):
    """Whose memory is the same whatever `b` is."""
    return a + 1


def picky(a, b):
    """Which takes no other batch."""
    if a.shape[0] != 64:
        raise ValueError("there are 64 rows")
    return a + b


def raising():
    """Whose trace raises."""
    raise ArithmeticError("not today")


@functools.partial(pytc.compile, donate={"a": "none"})
def squared_thrice(a, b):
    """Which has to copy `a`, since the loop writes over what it starts with."""
    return jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x @ x), a), b + 1


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "shape") else x, tree)


def with_figures(explanation):
    """The explanation with figures made up, so that a text made of them is the same on every machine."""
    program = Footprint(1_500_000, 1_048_708, 2_500, 1_048_576, (Copy("state['w']['layer3']", "f32[256,128]", 2**17),))
    undonated = Footprint(1_500_000, 1_081_476, 2_500, 0, (Copy(None, "f32[64,128]", 2**15),))
    by_hand = ByHand(("state",), program, "every choice among state", (((), undonated), (("state",), program)))
    memory = Memory(program, (), explanation.memory.as_jit)
    vars(memory).update(undonated=undonated, by_hand=by_hand)
    return dataclasses.replace(explanation, memory=memory)


def wasteful(a, b):
    """Which computes what nobody reads."""
    jnp.cos(a) * 5
    return jnp.sin(a), b


def one_argument():
    """Too few."""
    return (jax.ShapeDtypeStruct((64, 64), jnp.float32),)


def swapped_arguments():
    """Types are enough."""
    return (jax.ShapeDtypeStruct((64, 64), jnp.float32),) * 2


def started() -> jax.Array:
    return jnp.zeros((4, 4))


nothing_to_give = ()
