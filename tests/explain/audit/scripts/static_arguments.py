# Options and comments in all the places where people put them, and static arguments that are tuples or nothing.
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

OPTIONS = {"static_argnums": (0,), "inline": False}


def scale(config, state):
    return {name: value * len(config) for name, value in state.items()}


scale = jax.jit(
    scale,  # the step (fast), and its
    static_argnums=(0,),  # configuration: (name, layers)
    # donate_argnums=(0, 1),
)


@partial(
    nnx.jit,
    static_argnums=1,  # ("relu", "tanh")
)
def train(model, config, x):
    model.kernel[...] = model.kernel[...] * 0.5 + x.mean() * len(config)
    return x.sum()


def shift(config, nothing, state, *, by):
    return jax.tree.map(lambda value: value + by, state)


shift = jax.jit(
    shift, donate_argnums=1  # of the state (wrongly numbered), since
    # there was no configuration then
    , static_argnames=("config", "by"))
blend = jax.jit(lambda options, é, b: {k: é[k] * 0.5 + b[k] * 0.5 for k in é} if options is None else é, **OPTIONS)


def run():
    config = ("mlp", (2, 3))
    state, average = ({"w": jnp.ones((64, 64)), "b": jnp.ones(64)} for _ in range(2))
    model = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
    for step in range(3):
        state = scale(config, state)
        state = shift((), None, state, by=2.0)
        average = blend(None, average, state)
        print(step, float(train(model, ("relu",), state["w"])))
    return float(average["w"].sum()), float(model.kernel[...].sum())


print(run())
