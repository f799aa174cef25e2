"""A long run that somebody stops."""

import os
import signal

import jax
import jax.numpy as jnp

signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background, where a shell has it ignored
step = jax.jit(lambda x: jnp.sin(x) * 2)


def run():
    x = jnp.ones(5000)
    for i in range(1_000_000):
        x = step(x)
        if i == 20:
            print("stopping", flush=True)
            os.kill(os.getpid(), signal.SIGINT)


run()
