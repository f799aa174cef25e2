"""What JAX is set to and is doing at this moment, and where: its configuration, the trace at work, devices, compiler.

For JAX 0.10 to 0.12: `jax.config`, `jax.extend.core.find_top_trace`, the trace that a tracer is of, the names of
settings, the size of a jitted function's cache, and the callback of the garbage collector that JAX installs.
Of `jaxlib`, `_jax.config`: a tuple of all settings that what is traced depends on.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jaxlib
from jax.extend import core as jex_core

from pytc.jax_compat.layouts import devices_of

Tracer = jax.core.Tracer
config: Any = jax.config
_find_top_trace: Any = jex_core.find_top_trace

with jax.ensure_compile_time_eval():
    _EvalTrace = type(_find_top_trace(None))


def executing() -> bool:
    """Whether an operation done now is executed, rather than recorded by a transformation."""
    return type(_find_top_trace(None)) is _EvalTrace


def is_traced_here(value: Any) -> bool:
    """Whether a value is of the function that is being traced, rather than of a transformation around that."""
    return isinstance(value, Tracer) and getattr(value, "_trace", None) is _find_top_trace(None)


def inside_a_map() -> bool:
    """Whether the code being traced is one device's part of a `shard_map` or `pmap`."""
    mesh: Any = jax.sharding.get_abstract_mesh()
    return bool(mesh.manual_axes)


def mesh_in_context() -> Any:
    """The mesh that a `PartitionSpec` alone speaks of here; an empty one where there is none."""
    # `jax.sharding.get_mesh` is refused while something is traced.
    mesh: Any = jax.sharding.get_mesh() if executing() else jax.sharding.get_abstract_mesh()
    return jax.sharding.get_abstract_mesh() if mesh.empty else mesh


def places_freely() -> bool:
    """Whether NumPy data that a program is given go to the device as `jax.device_put` puts them there: where nothing is
    traced, no mesh is set, and nobody is to be told of transfers or kept from them."""
    guard = config.jax_transfer_guard_host_to_device
    return executing() and guard in (None, "allow") and bool(mesh_in_context().empty)


def executing_once() -> bool:
    """Whether an operation done now is executed, as `executing` says, and a failed call is not run again, operation by
    operation, on the same arguments, as JAX may do in a debugging mode."""
    return type(_find_top_trace(None)) is _EvalTrace and not (config.jax_debug_nans or config.jax_debug_infs)


def is_of_no_tracing(error: Exception) -> bool:
    """Whether it says that `jax.jit` would trace again, where it may not (`jax.no_tracing`). What a callback of the
    program raises is of another class, whatever it says: the program has run then."""
    return bool(config.jax_no_tracing) and type(error) is RuntimeError and str(error).startswith("re-tracing")


def cache_size(jitted: Any) -> int:
    """For how many signatures `jax.jit` has compiled a function."""
    size: int = jitted._cache_size()
    return size


settings: Callable[[], tuple[Any, ...] | None] = getattr(
    getattr(getattr(jaxlib, "_jax", None), "config", None), "trace_context", lambda: None
)
"""What JAX is set to on this thread: what `jax.jit` compares at each call, beside the arguments. It returns None where
that is not to be had."""

_let_go: Any = next((call for call in gc.callbacks if getattr(call, "__name__", "") == "_xla_gc_callback"), None)


def let_go() -> bool:
    """Let JAX let go of the Python objects that it has no use for any more, such as NumPy's memory that an array was
    in. It does so at the beginning of some later call otherwise, and they may have finalisers. False where that is not
    to be had.
    """
    if _let_go is None:
        return False
    _let_go()
    return True


def device_of(placed: Iterable[Any]) -> jax.Device:
    """The device that arrays placed like these live on, one of several alike; JAX's default where none says."""
    for each in placed:
        for device in devices_of(each):
            return device
    default = config.jax_default_device
    if isinstance(default, jax.Device):
        return default
    return jax.devices(default)[0]


def other_device_of(placed: Iterable[Any]) -> jax.Device | None:
    """The same, of one device alone; None if it is JAX's default."""
    placed = [each for each in placed if each is not None]
    if not placed or len(devices_of(placed[0])) != 1:
        return None
    device = device_of(placed)
    return None if device == device_of(()) else device


def is_elsewhere(placed: Any) -> bool:
    """Whether an array placed like this is on none of the devices of JAX's default platform: on the CPU, say, beside a
    GPU."""
    devices = devices_of(placed)
    return bool(devices) and not {*devices} <= {*jax.devices()}


def compiler_of(device: jax.Device) -> list[str]:
    """What the compiler's output for this device depends on besides the program and its options."""
    client = getattr(device, "client", None)
    return [
        jax.__version__,
        importlib.metadata.version("jaxlib"),
        str(getattr(client, "platform_version", "")),
        platform.machine(),
        device.platform,
        device.device_kind,
        *(os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
    ]


def compilation_cache_dir() -> pathlib.Path | None:
    """The folder of JAX's compilation cache, if that is on and on a file system."""
    folder = config.jax_compilation_cache_dir
    if not folder or "://" in str(folder) or not config.jax_enable_compilation_cache:
        return None
    return pathlib.Path(folder)
