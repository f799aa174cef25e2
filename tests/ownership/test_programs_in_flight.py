"""What a program calls back that was begun before, and runs on while the next call is made: it may read any slot.

In processes of their own: nothing in these has called Python before.
"""

import textwrap

import pytest

from tests import interpreters

PRELUDE = """
import gc
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import pytc

UNTOLD = jax.ShapeDtypeStruct((), "float32")
step = pytc.compile(lambda state: state + 1)


class Holder:
    def __init__(self):
        self.state = jnp.zeros(64)

    def reuses(self):
        "Whether the state is written over itself."
        before = self.state.unsafe_buffer_pointer()
        self.state = step(self.state)
        return self.state.unsafe_buffer_pointer() == before


holder = Holder()
"""

FOUND = """
def in_a_variable():
    state = jnp.zeros(64)
    before = state.unsafe_buffer_pointer()
    state = step(state)
    return state.unsafe_buffer_pointer() == before


def where_only_variables_lead():
    return Holder().reuses()


def found():
    print(holder.reuses(), in_a_variable(), where_only_variables_lead())


for _ in range(3):
    holder.reuses(), in_a_variable(), where_only_variables_lead()
found()
"""

LOOKS = {
    "debug.print": "jax.debug.print('{}', x)",
    "debug.callback": "jax.debug.callback(print, x)",
    "debug.callback, ordered": "jax.debug.callback(print, x, ordered=True)",
    "io_callback": "io_callback(lambda x: x, UNTOLD, x)",
    "io_callback, ordered": "io_callback(lambda x: x, UNTOLD, x, ordered=True)",
    "pure_callback": "x + jax.pure_callback(lambda x: x, UNTOLD, x)",
}


def printed(*parts: str) -> list[str]:
    return interpreters.printed(["-c", "\n".join(parts)]).splitlines()


@pytest.mark.parametrize("compiler", ["jax.jit", "pytc.compile"])
@pytest.mark.parametrize("look", LOOKS)
def test_a_slot_is_kept_while_there_is_a_program_that_calls_python(look, compiler):
    program = f"""
    def fun(x):
        return {LOOKS[look]}

    other = {compiler}(fun)
    jax.block_until_ready(other(np.float32(3)))
    jax.effects_barrier()
    """
    gone = """
    del other, fun
    jax.clear_caches()
    gc.collect()
    for _ in range(8):  # what holds a state is looked for again now and then
        holder.reuses()
    found()
    """
    lines = printed(PRELUDE, FOUND, textwrap.dedent(program), "found()", textwrap.dedent(gone))
    assert [line for line in lines if line.endswith(("True", "False"))] == [
        "True True True",
        "False True True",
        "True True True",
    ]


def test_once_buffers_may_be_handed_to_python_it_cannot_be_told():
    program = """
    import jax.experimental.buffer_callback

    found()
    """
    assert printed(PRELUDE, FOUND, textwrap.dedent(program)) == ["True True True", "False True True"]


def test_a_program_that_nothing_but_its_execution_holds_may_still_call_python():
    program = """
    read, deleted = [], []


    def look(_):
        until = time.monotonic() + 1
        while time.monotonic() < until:
            state = holder.state
            (deleted if state.is_deleted() else read).append(None)


    @jax.jit
    def slow(x):
        for _ in range(6):
            x = jnp.sin(x @ x)
        return x[0, 0]


    slow(jnp.ones((1500, 1500))).block_until_ready()
    holder.state = jnp.zeros(1 << 18)  # which takes a while to be computed
    for _ in range(4):
        holder.reuses()
    for _ in range(2):
        # What it reads is not there yet, so it is begun later, by a thread of XLA's.
        jax.jit(lambda x: (jax.debug.callback(look, x), x)[1])(slow(jnp.ones((1500, 1500))))
        gc.collect()
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            holder.state = step(holder.state)
        jax.effects_barrier()
    print(len(read) > 0, len(deleted))
    """
    assert printed(PRELUDE, textwrap.dedent(program)) == ["True 0"]
