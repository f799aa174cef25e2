"""What becomes of a compiled function itself: it is let go of, or copied to another process."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import weakref

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytc


@pytest.fixture
def no_collections():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("decorator", [jax.jit, pytc.compile])
def test_the_last_reference_to_a_compiled_function_is_the_end_of_it(decorator):
    def build():
        offset = jnp.arange(3.0)

        def shift(x):
            return x + offset

        return decorator(shift), [weakref.ref(shift), weakref.ref(offset)]

    compiled, references = build()
    advance(compiled)
    jax.vmap(compiled)(jnp.ones((2, 3)))
    compiled.lower(jnp.ones(3))
    references.append(weakref.ref(compiled))
    del compiled
    assert [each() for each in references] == [None, None, None]


def advance(compiled, *others):
    pointers = set()
    x = jnp.arange(3.0)
    for _ in range(6):
        x = compiled(x, *others)
        pointers.add(x.unsafe_buffer_pointer())
    return np.asarray(x), len(pointers)


OFFSET = jnp.arange(3.0)


@pytest.mark.parametrize(
    ("fun", "options", "others"),
    [
        (lambda x: x + OFFSET, {}, ()),
        (lambda x, n: x * n, {"static_argnums": 1}, (2,)),
        (lambda x, y: x * y, {"donate_argnums": 0}, (2.0,)),
    ],
)
@pytest.mark.parametrize("called", [False, True])
def test_a_copy_by_cloudpickle_is_compiled_anew(fun, options, others, called):
    compiled = pytc.compile(fun, **options)
    if called:
        advance(compiled, *others)
    copy = pickle.loads(cloudpickle.dumps(compiled))
    values, buffers = advance(copy, *others)
    np.testing.assert_array_equal(values, advance(compiled, *others)[0])
    assert buffers == 1
    assert copy.explain().sites
    copy.clear_cache()
    assert copy.lower(OFFSET, *others).compile() is not None


SCRIPT = """
import gc
import pickle
import sys

import jax.numpy as jnp

holder = pickle.load(sys.stdin.buffer)
holder.state = jnp.arange(3.0)
for _ in range(4):
    holder.state = holder.step(holder.state)
assert gc.isenabled()  # no collection is put off for good, where a slot was found dead
print(holder.state.tolist())
"""


class Holder:
    def __init__(self):
        self.step = pytc.compile(lambda x: x + OFFSET)
        self.state = self.step(OFFSET)


def test_what_holds_a_compiled_function_goes_to_another_process():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        pickled = cloudpickle.dumps(Holder())
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=pickled, env=environment, capture_output=True, timeout=150, check=False
    )
    assert run.returncode == 0, run.stderr.decode()
    assert run.stdout.decode().strip() == "[0.0, 5.0, 10.0]"


class Box:
    """Something with attributes."""


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("donate", ["auto", "none"])
@pytest.mark.parametrize("where", ["variable", "attribute"])
def test_calls_give_the_garbage_collector_no_occasion(donate, where):
    """As under `jax.jit`: JAX has it call a function of Python's, in which a Ctrl-C that comes meanwhile is lost."""
    step = pytc.compile(lambda state: {"a": state["a"] + 1, "b": state["b"] * 2}, donate=donate)

    def most(calls):
        box, counts = Box(), []
        box.state = state = {"a": jnp.ones(5), "b": jnp.ones(3)}
        for _ in range(calls):
            if where == "variable":
                state = step(state)
            else:
                box.state = step(box.state)
            counts.append(gc.get_count()[0])
        return max(counts)

    few = most(50)
    assert most(500) - few < gc.get_threshold()[0] / 2
