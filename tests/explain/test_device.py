"""Hardware that is not here: what names stand for, programs moved there, and what fits."""

import contextlib
import dataclasses
import functools
import gc
import io
import os
import sys
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import pytc
from pytc.errors import DeviceError, RequirementError
from pytc.explain import explain
from pytc.explain.device import find, here
from pytc.explain.hardware import GPUS, TPUS
from pytc.explain.largest import Progress, search
from pytc.explain.memory import Compiler, Footprint, needed
from pytc.jax_compat.devices import compiler_is_installed, described_devices
from tests import interpreters

pytestmark = pytest.mark.usefixtures("_quickly_compiled")

ROOT = Path(__file__).parents[2]


def train(params, batch, rate=0.1):
    def loss(params):
        return jnp.mean((jnp.tanh(batch["x"] @ params["a"]) @ params["b"] - batch["y"]) ** 2)

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), value


def arguments(mesh=None, size=64):
    def array(shape, *axes):
        sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    params = {"a": array((64, 128), None, "model"), "b": array((128, 64), "model")}
    return params, {"x": array((size, 64), "data"), "y": array((size, 64), "data")}


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["h2000", "", "tpu", "h200:2x2", "tpu v5e:", "cpu:4", "v9", "tpu h200", "tpu cpu"])
def test_an_unknown_device_is_refused_with_those_that_are_known(name):
    with pytest.raises(DeviceError, match=r"no device is called .*cpu, .*h200.*tpu v5e"):
        find(name)


def test_a_device_is_for_the_arguments_of_a_call():
    with pytest.raises(TypeError, match=r"device= is about a program for given arguments: pytc.explain\(fun, \*args"):
        pytc.explain(pytc.compile(lambda x: x), device="cpu")


def test_what_is_no_name_of_a_device_is_refused():
    with pytest.raises(DeviceError, match="device is 3; it can be a name"):
        find(3)


EXTRAS = {"cuda": "cuda13", "tpu": "tpu"}


@pytest.mark.parametrize(("name", "platform"), [("h200", "cuda"), ("A100", "cuda"), ("tpu v5e", "tpu")])
def test_a_missing_compiler_is_named_with_what_installs_it(name, platform, monkeypatch):
    module = sys.modules[find.__module__]
    monkeypatch.setattr(module, "compiler_is_installed", lambda asked: asked != platform)
    module._gpu.cache_clear()
    module._tpu.cache_clear()
    with pytest.raises(DeviceError, match=rf"pip install 'jax\[{EXTRAS[platform]}\]'"):
        explain(train, *arguments(), device=name)


def test_the_environment_stays_as_it_is(monkeypatch):
    """Whether there is a compiler or not: other processes may be started with it."""
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "elsewhere")
    before, seen = dict(os.environ), []

    def describe(*_):
        seen.append((os.environ["TPU_SKIP_MDS_QUERY"], os.environ["TPU_WORKER_HOSTNAMES"]))
        raise RuntimeError("no such device")

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", describe)
    with pytest.raises(RuntimeError, match="no such device"):
        described_devices("tpu", "v5e:2x2", None)
    assert seen == [("1", "elsewhere")]
    assert dict(os.environ) == before


@pytest.mark.parametrize(("kind", "given"), [("v4", {"chip_config_name": "megacore"}), ("v5e", {})])
def test_the_two_cores_of_a_tpu_v4_are_one_device(kind, given, monkeypatch):
    seen = []

    def describe(*asked, **options):
        seen.append((*asked, options))
        raise RuntimeError("no such device")

    monkeypatch.setattr(sys.modules[find.__module__], "compiler_is_installed", lambda _: True)
    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", describe)
    with pytest.raises(DeviceError, match="no such device"):
        find(f"tpu {kind}:2x2")
    assert seen == [(f"{kind}:2x2", "tpu", given)]


def test_the_extras_are_those_that_the_messages_name():
    extras = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    for name, extra in EXTRAS.items():
        assert f'{name} = ["jax[{extra}]"]' in extras


@pytest.mark.parametrize("name", sorted(GPUS))
def test_what_a_gpu_is_described_by_is_whole(name):
    text = GPUS[name].description()
    assert text.count("{") == text.count("}") == 3
    assert f"device_memory_size: {GPUS[name].memory}" in text


def test_memory_is_close_to_what_people_call_it():
    for known, memory in [*((g.memory_name, g.memory) for g in GPUS.values()), *((n, m) for _, n, m in TPUS.values())]:
        assert 0.9 < memory / (int(known.removesuffix(" GB")) * 1e9) < 1.1


# -- what fits -------------------------------------------------------------------------------------------------------


def test_the_headline_says_whether_it_fits():
    roomy = explain(train, *arguments(), device="cpu", memory=2**30)
    assert roomy.fits
    assert roomy.text(200).splitlines()[0].startswith("train on CPU: 64 KiB reused, 32 KiB kept; fits in 1.0 GiB: ")
    tight = explain(train, *arguments(), device="cpu", memory=2**16)
    assert tight.fits is False
    assert "; does not fit in 64 KiB: " in tight.text(200)
    assert "says the caller" in tight.text(200)
    roomy.require(fits=True)
    with pytest.raises(RequirementError, match="and there are 65,536"):
        tight.require(fits=True)


def test_where_nobody_knows_the_memory_nothing_is_said_of_fitting():
    explanation = explain(train, *arguments(), device="cpu")
    assert explanation.fits is None
    assert "; total " in explanation.text(200).splitlines()[0]
    with pytest.raises(ValueError, match="memory="):
        explanation.require(fits=True)
    with pytest.raises(ValueError, match="memory="):
        explanation.largest("batch")


def test_a_gpu_of_which_jax_takes_too_little():
    explanation = explain(train, *arguments(), device="cpu")
    total = explanation.memory.program.total
    nearly = explain(train, *arguments(), device="cpu", memory=int(total * 1.1))
    gpu = dataclasses.replace(nearly, device=dataclasses.replace(nearly.device, platform="cuda"))
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in gpu.text(100, compare=False)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in nearly.text(100, compare=False)


class Here:
    """One of JAX's devices, of which its runtime says this."""

    def __init__(self, platform, version, limit=None):
        self.platform, self.platform_version, self.limit = platform, version, limit
        self.device_kind, self.client = "Some Device", self

    def memory_stats(self):
        return None if self.limit is None else {"bytes_limit": self.limit}


@pytest.mark.parametrize(
    ("platform", "version", "told"),
    [
        ("cpu", "cpu", "cpu"),
        ("tpu", "TFRT TPU v5 lite\nlibtpu", "tpu"),
        ("gpu", "PJRT C API\ncuda 13000", "cuda"),
        ("gpu", "PJRT C API\nrocm 70000", "gpu"),
    ],
)
def test_the_device_that_is_here(platform, version, told, monkeypatch):
    for devices in ("devices", "local_devices"):
        monkeypatch.setattr(jax, devices, lambda: [Here(platform, version, 1000)])
    device = here(None)
    assert (device.platform, device.memory, device.source) == (told, 1000, "its runtime")
    assert here(2000).source == "the caller"


def test_of_a_gpu_that_is_here_the_runtime_says_what_jax_takes():
    nearly = explain(train, *arguments(), device="cpu")
    memory = int(nearly.memory.program.total * 1.1)
    for source, hint in (("the caller", True), ("its runtime", False)):
        device = dataclasses.replace(nearly.device, platform="gpu", memory=memory, source=source)
        text = dataclasses.replace(nearly, device=device).text(100, compare=False)
        assert ("XLA_PYTHON_CLIENT_MEM_FRACTION" in text) is hint


def test_options_of_explain_are_the_functions_own_where_it_has_them():
    def f(x, memory, *, device):
        return x + memory, device

    explanation = explain(f, jnp.ones(3), memory=jnp.ones(3), device="mine")
    assert [each.path for each in explanation.inputs] == ["x", "device", "memory"]
    assert explanation.device.name == "here"


def test_calls_are_not_explained_for_another_device():
    with pytest.raises(TypeError, match="device"):
        explain(pytc.compile(train), device="cpu")


def test_what_a_compiler_says_that_gives_up():
    said = "RESOURCE_EXHAUSTED: E1000: the total memory required for HLO temporaries (54.77G) exceeds HBM (15.75G)."
    assert needed(said) == pytest.approx(54.77 * 2**30, abs=1)
    assert needed("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 512.0M of 16M hbm.") == 512 * 2**20
    assert needed("INVALID_ARGUMENT: required (54.77G)") is None
    assert needed("RESOURCE_EXHAUSTED: out of something else") is None


class Refusing:
    """A lowered program that its compiler refuses."""

    def __init__(self, message):
        self.message = message

    def as_text(self):
        return self.message

    def compile(self, compiler_options=None):
        raise jax.errors.JaxRuntimeError(self.message)


def test_a_refused_program_has_a_total_and_nothing_else():
    compiler = Compiler({})
    found = compiler.footprint(Refusing("RESOURCE_EXHAUSTED: required (2.00G) exceeds (1G)"), [], [])
    assert found == Footprint(0, 0, 2**31, 0, refused="RESOURCE_EXHAUSTED: required (2.00G) exceeds (1G)")
    with pytest.raises(jax.errors.JaxRuntimeError, match="broken"):
        compiler.footprint(Refusing("INTERNAL: broken"), [], [])


def test_a_refused_program_is_shown_as_such():
    explanation = explain(train, *arguments(), device="cpu", memory=2**30)
    refused = Footprint(0, 0, 2**31, 0, refused="RESOURCE_EXHAUSTED")
    vars(explanation.memory)["undonated"] = refused
    text = explanation.text(100)
    assert "  jax.jit       2.0 GiB         ?" in text
    assert '<i class="refused"' in explanation._repr_html_()


# -- the largest batch -----------------------------------------------------------------------------------------------


def test_the_largest_batch_is_the_largest():
    explanation = explain(train, *arguments(), device="cpu")
    for memory in (200_000, 1_000_000, 12_345_678):
        found = explanation.largest("batch", memory=memory)
        assert found.total_bytes <= memory < dict(found.tried)[found.size + 1]
        assert explain(train, *arguments(size=found.size), device="cpu").memory.program.total == found.total_bytes
        assert len(found.tried) <= 12
    assert str(found).startswith(f"batch: {found.size:,} fits in 12 MiB: 12 MiB, ")


def test_leaves_of_a_batch_by_their_paths():
    explanation = explain(train, *arguments(), device="cpu")
    both = explanation.largest(("batch['x']", "batch['y']"), memory=2**20)
    assert both.size == explanation.largest("batch", memory=2**20).size
    with pytest.raises(ValueError, match="there are params, batch"):
        explanation.largest("x", memory=2**20)
    with pytest.raises(ValueError, match=r"params\['a'\]: 64, params\['b'\]: 128"):
        explanation.largest("params", memory=2**20)


def test_not_even_one_fits():
    found = explain(train, *arguments(), device="cpu").largest("batch", memory=1000)
    assert (found.size, found.total_bytes) == (0, 0)
    assert str(found).startswith("batch: not even 1 fits in 1000 B: it takes ")


def test_a_batch_of_numpy_data_and_static_leaves():
    @functools.partial(pytc.compile, static_argnames="power")
    def f(state, x, power, name):
        return state + (x**power).sum(0)

    explanation = explain(f, jnp.ones(8), np.ones((4, 8), np.float32), 2, "name", device="cpu")
    found = explanation.largest("x", memory=2**16)
    assert found.size > 4
    assert found.total_bytes <= 2**16


def test_a_batch_of_nothing_can_grow():
    explanation = explain(lambda x: x * 2, np.zeros((0, 4), np.float32), device="cpu")
    assert explanation.largest("x", memory=2**16).size == 2**16 // 32


@pytest.mark.parametrize(
    ("batch", "step", "error", "match"),
    [
        ((), None, ValueError, "batch names no"),
        ("x", 0, ValueError, "step is 0"),
        ("x", -2, ValueError, "-2"),
        (3, None, TypeError, "batch is the name of an argument, .*, not 3"),
        (("x", 1), None, TypeError, r"not \('x', 1\)"),
        ("x", 1.5, TypeError, "step is a whole number, not 1.5"),
        ("x", "2", TypeError, "step is a whole number, not '2'"),
    ],
)
def test_what_is_no_batch_and_no_step_is_refused(batch, step, error, match):
    with pytest.raises(error, match=match):
        explain(lambda x: x + 1, jnp.ones(8), device="cpu").largest(batch, memory=2**20, step=step)


def test_what_does_not_grow_has_no_largest():
    with pytest.raises(ValueError, match="as much memory with a small batch as with a large one"):
        explain(lambda x, y: x + 1, jnp.ones(8), jnp.ones(8), device="cpu").largest("y", memory=2**20)


@pytest.mark.parametrize("limit", [0, 1, 2, 37, 1000, 1001, 65_536, 10**9])
@pytest.mark.parametrize("start", [1, 64, 4096])
@pytest.mark.parametrize(
    "total",
    [lambda n: n, lambda n: 7 * n + 13, lambda n: n * n, lambda n: n if n < 100 else 5 * n, lambda n: -(-n // 8)],
)
def test_the_search_finds_it_whatever_the_line(limit, start, total):
    tried = search(total, limit, start, 1, lambda size, seen: None)
    best = max((size for size, found in tried if found <= limit), default=0)
    assert total(best + 1) > limit
    assert best == 0 or total(best) <= limit
    assert len(tried) <= 60
    assert len(dict(tried)) == len(tried)


def test_the_search_keeps_to_multiples():
    tried = search(lambda n: 10 * n, 1234, 24, 8, lambda size, seen: None)
    assert all(size % 8 == 0 for size, _ in tried)
    assert max(size for size, found in tried if found <= 1234) == 120


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_on_a_terminal_alone():
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        with contextlib.redirect_stderr(stream):
            progress = Progress("batch", 2**20)
        progress.show(128, [(64, 2**19)])
        progress.done()
    assert "batch [###############---------------] 512 KiB of 1.0 MiB; trying 128" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\033[K")
    assert file.getvalue() == ""


def test_an_explanation_holds_on_to_no_argument():
    x = jnp.ones(1000)
    alive = weakref.ref(x)
    explanation = explain(lambda x: x + 1, x, device="cpu", memory=2**20)
    del x
    gc.collect()
    assert alive() is None
    assert explanation.largest("x").size > 1000


# -- meshes ----------------------------------------------------------------------------------------------------------

MESHES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P
from pytc.errors import DeviceError
from pytc.explain import explain
from tests.explain.test_device import arguments, train

AXES = ("data", "model")
AUTO = (AxisType.Auto,) * 2
real = Mesh(np.array(jax.devices()[::-1]).reshape(2, 4), AXES, axis_types=AUTO)
abstract = AbstractMesh((2, 4), AXES, axis_types=AUTO)

def constrained(params, batch):
    params, value = train(params, batch)
    return {k: jax.lax.with_sharding_constraint(p, NamedSharding(real, P("model"))) for k, p in params.items()}, value

def mapped(params, batch):
    params, value = train(params, batch)
    body = lambda a: a + jax.lax.psum(a, "data")
    return jax.shard_map(body, mesh=real, in_specs=P("data"), out_specs=P("data"))(params["a"]), value

for function, mesh in ((train, real), (train, abstract), (constrained, real), (mapped, real)):
    here = explain(function, *arguments(real)).memory.program
    there = explain(function, *arguments(mesh), device="cpu").memory.program
    assert (there.total, there.devices) == (here.total, 8), (function, mesh, here, there)
unplaced = explain(mapped, *arguments(), device="cpu").memory.program
assert unplaced.devices == 8

found = explain(train, *arguments(abstract), device="cpu").largest("batch", memory=2**20)
assert found.size % 2 == 0 and dict(found.tried)[found.size + 2] > 2**20, found

def refused(words, function, *args):
    try:
        explain(function, *args, device="cpu")
    except DeviceError as error:
        assert words in str(error), error
    else:
        raise SystemExit(f"not refused: {words}")

large = NamedSharding(AbstractMesh((16,), ("data",), axis_types=AUTO[:1]), P("data"))
refused("runs on 16 devices, and 'cpu' has 8", jnp.sin, jax.ShapeDtypeStruct((16,), jnp.float32, sharding=large))
refused("a jax.pmap cannot be moved", jax.pmap(jnp.sin), jnp.ones((8, 3)))
with jax.set_mesh(real):
    refused("under jax.set_mesh", train, *arguments(real))
refused("`ref` is a jax.Ref", lambda ref: ref[...], jax.new_ref(jnp.ones(3)))
print("moved")
"""


def test_programs_over_a_mesh_are_moved():
    eight = "--xla_force_host_platform_device_count=8"
    assert interpreters.printed(["-c", MESHES], XLA_FLAGS=eight) == "moved\n"


def test_what_is_mapped_over_devices_is_not_moved():
    with pytest.raises(DeviceError, match="is mapped over devices of this process"):
        explain(pytc.pmap(lambda x: x + 1), jnp.ones((1, 4)), device="cpu")


def test_captured_arrays_and_keys_go_along():
    weights, key = jnp.ones((64, 64)), jax.random.key(0)

    def f(x):
        return x @ weights + jax.random.normal(key, x.shape)

    there = explain(f, jnp.ones((64, 64)), device="cpu")
    assert there.memory.program.total == explain(f, jnp.ones((64, 64))).memory.program.total
    assert there.memory.by_hand.footprint.total <= there.memory.undonated.total


# -- the compilers, where they are installed -------------------------------------------------------------------------

COMPILED = """
import sys
from jax.sharding import AbstractMesh, AxisType
from pytc.explain import explain
from tests.explain.test_device import arguments, train

one, several, sides = sys.argv[1], sys.argv[2], tuple(map(int, sys.argv[3].split("x")))
found = explain(train, *arguments(), device=one)
assert found.fits and found.reused > 0.99, found
assert 0 < found.memory.by_hand.footprint.total <= found.memory.undonated.total, found.memory
assert found.largest("batch", memory=2**22).size > 64
mesh = AbstractMesh(sides, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
spread = explain(train, *arguments(mesh, 512), device=several)
assert spread.memory.program.devices == sides[0] * sides[1]
huge = explain(train, *arguments(None, 2**30), device=one)
assert huge.fits is False and "does not fit" in huge.text(100, compare=False)
print("compiled")
"""


@pytest.mark.parametrize(
    ("platform", "one", "several", "sides"),
    [
        ("cuda", "h200", "a100:16", "2x8"),
        ("tpu", "tpu v5e", "tpu v5e:16x16", "16x16"),
        ("tpu", "tpu v4", "tpu v4:2x2x4", "4x4"),
    ],
)
def test_the_devices_own_compiler(platform, one, several, sides):
    if not compiler_is_installed(platform):
        # What is left to check without it: that people are told how to get it.
        with pytest.raises(DeviceError, match=rf"pip install 'jax\[{EXTRAS[platform]}\]'"):
            find(one)
        return
    assert interpreters.printed(["-c", COMPILED, one, several, sides]) == "compiled\n"
