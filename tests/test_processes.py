"""Several devices and processes: donated as on one device; what one process keeps changes nothing in another."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tests import interpreters

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

PROGRAM = """
import sys

import jax

port, me = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=me, initialization_timeout=60)

import jax.numpy as jnp
import numpy as np

import pytc

mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
split = jax.NamedSharding(mesh, jax.P("data"))


def averaged(state):
    return state * 0.5 + jnp.mean(state)  # a collective


def own(state):
    return np.concatenate([np.asarray(s.data) for s in state.addressable_shards])


def train(step, state, keep, steps):
    kept = []
    for _ in range(steps):
        if keep:
            kept.append(state)
        state = step(state)
    return state, kept


def start():
    return jax.make_array_from_callback((8,), split, lambda index: np.arange(8, dtype=np.float32)[index])


expected = np.arange(8, dtype=np.float32)
values = [expected]
for _ in range(8):
    values.append((values[-1] * np.float32(0.5) + values[-1].mean()).astype(np.float32))
mine = slice(4 * me, 4 * me + 4)

for effort in ("default", "high"):
    step = pytc.compile(averaged, effort=effort)
    state, kept = train(step, start(), me == 0, 8)
    np.testing.assert_allclose(own(state), values[8][mine], rtol=1e-6)
    for value, array in zip(values, kept):
        np.testing.assert_allclose(own(array), value[mine], rtol=1e-6)
    (layout,) = step.__pytc__.lookup.layouts.values()
    (signatures,) = layout
    copied = sum(site.copied_calls for s in signatures.newest for site in s.sites.values())
    plans = [plan.program.aliases for s in signatures.newest for plan in s.plans]
    print(effort, "COPIED", copied, "KEPT", len(kept), "PLANS", len(plans), flush=True)
    print(effort, "PLAN", plans, flush=True)


def walk(keys):
    return jax.vmap(lambda key: jax.random.split(key)[0])(keys)


def wander(step, keep):
    keys, kept = jax.jit(lambda: jax.random.split(jax.random.key(0), 8), out_shardings=split)(), []
    for _ in range(4):
        if keep:
            kept.append(keys)
        keys = step(keys)
    assert keys.sharding.is_equivalent_to(split, 1), keys.sharding
    return [own(jax.random.key_data(each)) for each in [keys, *kept]]


for ours, theirs in zip(wander(pytc.compile(walk), me == 0), wander(jax.jit(walk), me == 0), strict=True):
    np.testing.assert_array_equal(ours, theirs)

# What one process has as one array may be two in another.
both = pytc.compile(lambda a, b: (a + a.mean(), b + b.mean()))
for _ in range(2):
    one = start()
    for mean in both(one, one if me == 0 else start()):
        np.testing.assert_array_equal(own(mean), expected[mine] + expected.mean())

# In each process alike, though the first device is one of the other's.
assert str(pytc.explain(averaged, start())).startswith("averaged: ")
"""


def in_two_processes(tmp_path, program):
    """What two processes print that run this program, given a port and their number."""
    script = tmp_path / "worker.py"
    script.write_text(program)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), port, str(me)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for me in (0, 1)
    ]
    try:
        outputs = [worker.communicate(timeout=150)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(outputs)
    return outputs


def test_one_process_may_keep_what_another_lets_go(tmp_path):
    keeps, lets_go = (
        [line for line in out.splitlines() if line.startswith(("default ", "high "))]
        for out in in_two_processes(tmp_path, PROGRAM)
    )
    assert keeps[1::2] == lets_go[1::2]  # the plans
    # With high effort the compiler finds that the state is better left alone, which costs nobody a copy.
    assert keeps[::2] == ["default COPIED 8 KEPT 8 PLANS 1", "high COPIED 0 KEPT 8 PLANS 1"]
    assert lets_go[::2] == ["default COPIED 0 KEPT 0 PLANS 1", "high COPIED 0 KEPT 0 PLANS 1"]


NUMPY_DATA = """
import sys

import jax

port, me = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_platforms", "cpu")
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=me, initialization_timeout=60)

import jax.numpy as jnp
import numpy as np

import pytc

split = jax.NamedSharding(jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P("data"))
numbers = np.arange(8, dtype=np.float32)


@pytc.compile
def train(state, rate, key):
    return state * rate - state.mean(), rate * 0.5, jax.random.split(key)[0]


state = jax.make_array_from_callback((8,), split, lambda index: numbers[index])
rate, key = np.float32(2) if me else jnp.float32(2), jax.random.key(0)
for number in range(4):
    state, other, key = train(state, rate, key)
    numbers = (numbers * np.float32(rate) - numbers.mean()).astype(np.float32)
    for shard in state.addressable_shards:
        np.testing.assert_allclose(shard.data, numbers[shard.index], rtol=1e-5)
    rate = rate * np.float32(0.9) if number != 1 else (np.float32(2) if not me else jnp.float32(2))
    assert jax.jit(lambda x: x + 1)(rate) > 1  # it was not deleted
plans = [plan.program.donated for each in train.__pytc__.signatures() for plan in each.plans]
print("PLANS", plans)
"""


def test_numpy_data_in_one_process_are_an_array_in_another(tmp_path):
    """As where one has read a number from a file, and another has computed it."""
    one, other = (
        [line for line in out.splitlines() if line.startswith("PLANS")]
        for out in in_two_processes(tmp_path, NUMPY_DATA)
    )
    assert one == other == ["PLANS [(0, 1, 2), (0, 1, 2)]"]  # the key is of one process at first, and then of both


MAPPED = """
import itertools
import sys

import jax

port, me = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_cpu_enable_async_dispatch", False)
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=me, initialization_timeout=60)

import jax.numpy as jnp
import numpy as np

import pytc
from pytc.jax_compat.arrays import shards_of


def step(params, batch, rate):
    loss, grad = jax.value_and_grad(lambda p: jnp.mean((batch @ p) ** 2))(params)
    grad = jax.lax.pmean(grad, "batch")
    return params - rate * grad, loss, jax.lax.pmean(loss, "batch"), jax.lax.axis_index("batch")


def train(mapped, keep):
    rng = np.random.default_rng(0)
    params, kept, places = jnp.ones((16, 16)), [], []
    for _ in range(6):
        batch = rng.normal(size=(2, 4, 3, 16)).astype(np.float32)[me]  # the rows of this process
        if keep:
            kept.append(params)
        params, *rest = mapped(params, batch, 0.01)
        places.append([shard.unsafe_buffer_pointer() for shard in shards_of(params)])
    return (params, *rest), kept, places


wanted, all_params, _ = train(jax.pmap(step, "batch", in_axes=(None, 0, None), out_axes=(None, 0, None, 0)), True)
for effort, keep in itertools.product(("default", "high"), (False, me == 0)):
    mapped = pytc.pmap(step, "batch", in_axes=(None, 0, None), effort=effort)
    got, kept, places = train(mapped, keep)
    for ours, theirs in zip((*got, *kept[1:]), (*wanted, *all_params[1:])):
        assert ours.sharding == theirs.sharding and ours.shape == theirs.shape, (ours.sharding, theirs.sharding)
        np.testing.assert_array_equal(ours, theirs)
    (layout,) = mapped.__pytc__.lookup.layouts.values()
    (signatures,) = layout
    copied = sum(site.copied_calls for s in signatures.newest for site in s.sites.values())
    print("COPIED", copied, "PLACES", len(set(map(tuple, places[1:]))), flush=True)
np.testing.assert_array_equal(got[3], np.arange(4) + 4 * me)


def walk(key, shared):
    return jax.random.split(key)[0], jax.random.normal(key), jax.random.fold_in(shared, 1), jax.random.normal(shared)


def wander(mapped):
    rows, shared = jax.random.split(jax.random.key(1), (2, 4))[me], jax.random.key(2)
    for _ in range(3):
        rows, drawn, shared, noise = mapped(rows, shared)
    assert isinstance(rows, jax.Array) and rows.dtype == jax.random.key(0).dtype == shared.dtype
    return jax.random.key_data(rows), drawn, jax.random.key_data(shared), noise


wanted = wander(jax.pmap(walk, "i", in_axes=(0, None), out_axes=(0, 0, None, None)))
for ours, theirs in zip(wander(pytc.pmap(walk, "i", in_axes=(0, None))), wanted):
    assert ours.sharding.is_equivalent_to(theirs.sharding, ours.ndim), (ours.sharding, theirs.sharding)
    np.testing.assert_array_equal(ours, theirs)
"""


def test_mapped_over_the_devices_of_two_processes(tmp_path):
    keeps, lets_go = (
        [line for line in out.splitlines() if line.startswith("COPIED")] for out in in_two_processes(tmp_path, MAPPED)
    )
    assert [line.startswith("COPIED 6 ") for line in keeps] == [False, True] * 2
    assert {*keeps[::2], *lets_go} == {"COPIED 0 PLACES 1"}
    assert (len(keeps), len(lets_go)) == (4, 4)


SHARDED = """
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

import jax.numpy as jnp
import numpy as np

import pytc

mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
split, whole = jax.NamedSharding(mesh, jax.P("data")), jax.NamedSharding(mesh, jax.P())


@pytc.compile
def step(state):
    return {"split": state["split"] * 0.5 + state["whole"].mean(), "whole": state["whole"] + state["split"].sum()}


def train(step, keep):
    kept = []
    state = {"split": jax.device_put(jnp.arange(8.0), split), "whole": jax.device_put(jnp.ones(3), whole)}
    for _ in range(8):
        state = step(state)
        if keep:
            kept.append(state["split"].addressable_shards[1].data)
    return state, kept


wanted, wanted_shards = train(jax.jit(step.__wrapped__), True)
got, _ = train(step, False)
jax.tree.map(np.testing.assert_array_equal, got, wanted)
copied = sum(site.copied_calls for site in step.explain().sites)
got, shards = train(step, True)
jax.tree.map(np.testing.assert_array_equal, (got, shards), (wanted, wanted_shards))
print("COPIED", copied, flush=True)
"""


def test_shards_on_several_devices():
    assert interpreters.printed(["-c", SHARDED]).splitlines()[-1] == "COPIED 0"


def test_to_ask_about_functions_that_were_not_called_starts_nothing():
    """`jax.distributed.initialize` must come before JAX has looked for devices, and so must this setting."""
    code = """
import jax, pytc
fun = lambda x: x + 1
for made in (pytc.compile(fun), pytc.pmap(fun)):
    made.clear_cache()
    print(made._cache_size(), len(pytc.explain(made).sites))
jax.config.update("jax_num_cpu_devices", 3)
print(jax.device_count())
"""
    assert interpreters.printed(["-c", code]).split() == ["0", "0", "0", "0", "3"]
