"""A kind of memory that types do not tell from the device's own: what the runtime cannot write a result of the device's
into ends the process. In a process of its own, with four devices."""

from __future__ import annotations

import json

import pytest

from tests import interpreters

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

SCRIPT = """
import json
import sys

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

import jax.numpy as jnp
import numpy as np

import pytc

mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
PLACES = {
    "one device": lambda kind: jax.sharding.SingleDeviceSharding(jax.devices()[1], memory_kind=kind),
    "a mesh": lambda kind: jax.NamedSharding(mesh, jax.P("data"), memory_kind=kind),
}
WEIGHTS = np.arange(64, dtype=np.float32).reshape(8, 8)


def log(x):
    jax.debug.callback(lambda value: None, x.sum())
    return x + 1


FUNS = {
    "plain": lambda x: x * 2 + 1,
    "with a captured array": lambda x: x @ WEIGHTS,
    "calls Python": log,
    "in containers": lambda state: {"a": state["a"] + 1, "b": state["b"] * 2},
    "handed back": lambda state: (state["a"], state["b"] + 1),
    "keys": lambda keys: jax.vmap(lambda key: jax.random.split(key)[0])(keys),
}


def start(name, kind, place):
    def put(value):
        return jax.device_put(value, PLACES[place](kind))

    if name in ("in containers", "handed back"):
        return {"a": put(jnp.ones((16, 8))), "b": put(jnp.ones((8, 8)))}
    if name == "keys":
        return put(jax.random.split(jax.random.key(0), 8))
    return put(jnp.arange(128.0).reshape(16, 8))


def call(step, name, kind, place):
    return step(start(name, kind, place))


def moved(step, name, kind, place):
    return step(jax.tree.map(pytc.move, start(name, kind, place)))


def values(result):
    leaves = jax.tree.leaves(result)
    bits = [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in leaves]
    return [(np.asarray(b).tolist(), x.sharding) for b, x in zip(bits, leaves, strict=True)]


def tell(name, place, kinds, way, **options):
    fun = FUNS[name]
    step = pytc.compile(lambda x: fun(x), **options)
    alike = True
    for kind in kinds:
        wanted = values(call(jax.jit(lambda x: fun(x)), name, kind, place))
        for _ in range(3):
            alike &= values(way(step, name, kind, place)) == wanted
    return alike


DEVICE, HOST = "device", "unpinned_host"
WAYS = {
    "called": (call, {}),
    "promised": (call, {"donate": "all"}),
    "moved": (moved, {}),
    "high": (call, {"effort": "high"}),
}
told = {}
for name in FUNS:
    for place in PLACES:
        for kinds in ((DEVICE, HOST, DEVICE), (HOST, DEVICE, HOST)):
            for how, (way, options) in WAYS.items():
                case = f"{name}, {place}, {'-'.join(kinds)}, {how}"
                if how == "called" or name == "in containers":
                    print(case, file=sys.stderr)
                    told[case] = tell(name, place, kinds, way, **options)



def buffers(step):
    x, pointers = start("plain", HOST, "one device"), set()
    for _ in range(6):
        x = step(x)
        pointers.add(x.unsafe_buffer_pointer())
    return len(pointers)


print(json.dumps({"told": told, "buffers": [buffers(pytc.compile(lambda x: x * 2 + 1)) for _ in range(2)]}))
"""


@pytest.fixture(scope="module")
def told():
    return json.loads(interpreters.printed(["-c", SCRIPT]).splitlines()[-1])


def test_the_same_function_for_arrays_in_either(told):
    assert [case for case, alike in told["told"].items() if not alike] == []


def test_what_is_on_the_device_is_written_over_all_the_same(told):
    assert told["buffers"] == [1, 1]
