"""Under a mesh and with arrays in the host's memory: donated as on one device. In a process of its own, with four."""

from __future__ import annotations

import inspect
import json

import jax
import numpy as np
import pytest

import pytc
from tests import interpreters

SCRIPT = """
import json

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

import jax.numpy as jnp
import numpy as np

import pytc

mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
split, whole = jax.NamedSharding(mesh, jax.P("data")), jax.NamedSharding(mesh, jax.P())
host = jax.NamedSharding(mesh, jax.P("data"), memory_kind="pinned_host")


def sharded(state, x):
    return {"a": state["a"] * 0.5 + x.sum(), "b": state["b"] + state["a"].sum()}, state["a"].mean()


def offloaded(params, momentum):
    moved = jax.device_put(momentum, split) * 0.9 + params
    return params - moved, jax.device_put(moved, host)


def both_on_the_device(params, momentum):
    return params + 1, jax.device_put(momentum, split) + params


def arguments(name):
    ones = np.ones((64, 64), np.float32)
    if name == "sharded":
        state = {"a": jax.device_put(ones, split), "b": jax.device_put(ones, whole)}
        return state, jax.device_put(np.ones(64, np.float32), whole)
    return jax.device_put(ones, split), jax.device_put(2 * ones, host)


def tell(fun, *, effort="default", **options):
    name = "sharded" if fun is sharded else "offloaded"
    wanted = jax.jit(fun, **options)(*arguments(name))
    args = arguments(name)
    step = pytc.compile(fun, donate="all", effort=effort, **options)
    explanation = pytc.explain(step, *args)
    got = step(*args)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    kinds = [x.sharding.memory_kind for x in jax.tree.leaves(got)]
    assert kinds == [x.sharding.memory_kind for x in jax.tree.leaves(wanted)]
    return {
        "reused": [each.path for each in explanation.inputs if each.verdict == "reused"],
        "by xla": explanation.memory.program.aliased,
        "declined": explanation.memory.declined,
        "devices": explanation.memory.program.devices,
        "deleted": [x.is_deleted() for x in jax.tree.leaves(args)],
    }


def in_turn():
    # The devices of each result, under one mesh, another, and the first again, of a wrapper and of a new one.
    meshes = [jax.sharding.Mesh(np.array(some), ("data",)) for some in (jax.devices()[:2], jax.devices()[2:])]
    found = []
    double = lambda x: x * 2
    for options in ({"out_shardings": jax.P("data")}, {"in_shardings": jax.P("data")}):
        compiled = pytc.compile(double, **options)
        for mesh in (*meshes, meshes[0]):
            with jax.set_mesh(mesh):
                for each in (compiled, pytc.compile(double, **options)):
                    result = each(np.arange(4.0))
                    np.testing.assert_array_equal(result, [0, 2, 4, 6])
                    found.append([device.id for device in result.sharding.mesh.devices.flat])
    return found


print(json.dumps({
    "unspecified": tell(sharded),
    "specified": tell(sharded, out_shardings=({"a": split, "b": whole}, None)),
    "high": tell(sharded, effort="high"),
    "host": tell(offloaded),
    "host, high": tell(offloaded, effort="high"),
    "one in the host's memory": tell(both_on_the_device),
    "in turn": in_turn(),
}))
"""


@pytest.fixture(scope="module")
def told():
    return json.loads(interpreters.printed(["-c", SCRIPT]).splitlines()[-1])


@pytest.mark.parametrize("case", ["unspecified", "specified", "high"])
def test_equal_shardings_pair_whether_or_not_they_are_asked_for(told, case):
    assert told[case]["reused"] == ["state['a']", "state['b']"]
    assert told[case]["by xla"] == ["state['a']", "state['b']"]
    assert told[case]["declined"] == []
    assert told[case]["devices"] == 4
    assert told[case]["deleted"] == [True, True, False]


@pytest.mark.parametrize("case", ["host", "host, high"])
def test_each_kind_of_memory_is_written_over_by_its_own(told, case):
    assert set(told[case]["reused"]) <= {"params", "momentum"}
    assert told[case]["reused"] == told[case]["by xla"]
    assert told[case]["declined"] == []
    assert told["host"]["reused"] == ["params", "momentum"]


def test_a_partition_spec_speaks_of_the_mesh_of_each_call(told):
    assert told["in turn"] == [[0, 1], [0, 1], [2, 3], [2, 3], [0, 1], [0, 1]] * 2


def test_an_array_in_the_hosts_memory_takes_no_output_of_the_devices(told):
    assert told["one in the host's memory"]["reused"] == ["params"]
    assert told["one in the host's memory"]["deleted"] == [True, False]


def test_what_jax_jit_takes_for_no_sharding_is_none():
    unspecified = inspect.signature(jax.jit).parameters["in_shardings"].default
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def both(x, y):
        return x * 2, y * 3

    for wanted in (unspecified, (here, unspecified), (unspecified, None)):
        f = pytc.compile(both, in_shardings=wanted, out_shardings=wanted)
        assert [int(each) for each in f(np.int32(1), np.int32(2))] == [2, 6]
    assert [int(each) for each in pytc.compile(both, in_shardings=unspecified)(np.int32(1), y=np.int32(2))] == [2, 6]
