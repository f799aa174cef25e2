"""Hardware that need not be here: what a name such as `h200` or `tpu v5e:16x16` stands for.

JAX can compile for a device that it only has a description of, and the executable has the figures of that device's own
compiler. This takes the compiler (`pip install 'jax[cuda13]'` or `'jax[tpu]'`, no hardware) and the description: a
TPU's compiler has its own, that of a GPU is put together here.

    h200, h100, a100, a100-40gb, b200, a6000      one GPU; up to eight of them for a program over a mesh
    h200:64                                       up to so many GPUs
    tpu v5e, tpu v5p, tpu v6e, ...                one chip
    tpu v5e:16x16, v5p:4x4x4                      a slice, by Google's name for it
    cpu                                           the processor that is here

Programs are compiled for it but not run, so nothing is known about time.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from pytc.errors import DeviceError
from pytc.explain.hardware import GPUS, MEGACORES, TPUS
from pytc.hlo import UNTIMED
from pytc.jax_compat.devices import compiler_is_installed, described_devices, platform_of

GPUS_OF_A_HOST = 8
"""So many GPUs are described if a name has no number."""

JAX_TAKES = 0.75
"""The share of a GPU's memory that JAX allocates, unless `XLA_PYTHON_CLIENT_MEM_FRACTION` says otherwise."""


ITS_RUNTIME = "its runtime"
"""The `source` of the memory of a device that is here."""


@dataclasses.dataclass(frozen=True)
class Device:
    """A kind of device, and what is known about its memory."""

    name: str
    """The name that the user gave: `h200`, `tpu v5e:16x16`."""
    kind: str
    """Its maker's name for it: `NVIDIA H200`."""
    platform: str
    """`cpu`, `cuda` or `tpu`; for others JAX's name, such as `gpu` for one that is not NVIDIA's."""
    count: int
    """How many devices were described; a program need not use all."""
    memory: int | None
    """Bytes on each device that a program can have; None if that is not known."""
    memory_name: str
    """What people call that: `141 GB`; empty if there is no such name."""
    source: str
    """Where `memory` is from, in words."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A device to compile for."""

    device: Device
    devices: Sequence[Any] = dataclasses.field(repr=False, compare=False)
    """JAX's devices: those of a topology, which can only be compiled for, or those that are here."""

    @property
    def compiler_options(self) -> Mapping[str, Any]:
        """Options that the compiler needs for this device."""
        return UNTIMED if self.device.platform == "cuda" else {}  # to time needs the GPU itself


_NAME = re.compile(r"(?P<tpu>tpu[ _-]+)?(?P<kind>[a-z0-9-]+)(?::(?P<shape>[0-9x]+))?")


def find(name: str, memory: int | None = None) -> Target:
    """The device of this name, in upper or lower case. `memory` is the bytes of each device, in place of what is known.

    Raises `DeviceError` if the name is unknown, or if its compiler is not installed or not loaded; the message says
    what to do.
    """
    check_memory(memory)
    if not isinstance(name, str):
        raise DeviceError(f"device is {name!r}; it can be a name, such as 'h200' or 'tpu v5e:16x16'")
    parts = _NAME.fullmatch(name.strip().lower())
    tpu, kind, shape = parts.group("tpu", "kind", "shape") if parts else (None, "", None)
    if kind in TPUS:
        target = _tpu(name, kind, shape or TPUS[kind][0])
    elif kind == "cpu" and shape is None and not tpu:
        target = _host(name)
    elif kind in GPUS and (shape is None or shape.isdecimal()) and not tpu:
        target = _gpu(name, kind, int(shape or GPUS_OF_A_HOST))
    else:
        known = ", ".join(["cpu", *GPUS, *(kind if kind.startswith("tpu") else f"tpu {kind}" for kind in TPUS)])
        raise DeviceError(
            f"no device is called {name!r}. Known are {known}; a GPU with a number of them (h200:16), a TPU with the "
            "shape of a slice (tpu v5e:16x16)"
        )
    return target if memory is None else with_memory(target, memory)


def with_memory(target: Target, memory: int) -> Target:
    """The target with this many bytes on each device."""
    device = dataclasses.replace(target.device, memory=memory, memory_name="", source="the caller")
    return dataclasses.replace(target, device=device)


def check_memory(memory: int | None) -> None:
    """Raise `DeviceError` if `memory` is neither None nor a positive number of bytes."""
    if memory is not None and not (isinstance(memory, int) and not isinstance(memory, bool) and memory > 0):
        raise DeviceError(f"memory is {memory!r}, and should be a positive number of bytes")


def here(memory: int | None) -> Device:
    """This process's first device, with `memory` bytes, or with what its runtime says; a CPU's says nothing.

    Raises `DeviceError` if `memory` is no positive number of bytes.
    """
    check_memory(memory)
    first = jax.local_devices()[0]  # of another process's device no runtime here knows the memory
    limit = (first.memory_stats() or {}).get("bytes_limit") if memory is None else memory
    return Device(
        "here",
        first.device_kind,
        platform_of(first),
        len(jax.devices()),
        limit,
        "",
        "" if limit is None else "the caller" if memory is not None else ITS_RUNTIME,
    )


@functools.cache
def _host(name: str) -> Target:
    devices = jax.devices("cpu")
    return Target(Device(name, "CPU", "cpu", len(devices), None, "", ""), devices)


@functools.cache
def _gpu(name: str, kind: str, count: int) -> Target:
    if count < 1:
        raise DeviceError(f"{name!r} is no GPU at all: give the number of them, as in h200:8")
    if not compiler_is_installed("cuda"):
        raise DeviceError(f"compiling for {name!r} takes NVIDIA's compiler, but no GPU: pip install 'jax[cuda13]'")
    gpu = GPUS[kind]
    devices = _described(name, "cuda", f"1x1x{count}", gpu.description())
    device = Device(name, gpu.kind, "cuda", count, gpu.memory, gpu.memory_name, "NVIDIA's driver")
    return Target(device, devices)


@functools.cache
def _tpu(name: str, kind: str, shape: str) -> Target:
    if not compiler_is_installed("tpu"):
        raise DeviceError(f"compiling for {name!r} takes the TPU's compiler, but no TPU: pip install 'jax[tpu]'")
    devices = _described(name, "tpu", f"{kind}:{shape}", None, are_megacores=kind in MEGACORES)
    _, memory_name, memory = TPUS[kind]
    source = "the TPU's compiler"
    return Target(Device(name, devices[0].device_kind, "tpu", len(devices), memory, memory_name, source), devices)


_LOST = (
    " If the hardware is not here, start Python with JAX_PLATFORMS=cpu: a GPU's or TPU's plugin that looks for its "
    "hardware and finds none takes its compiler away with it."
)


def _described(
    name: str, platform: str, topology: str, description: str | None, *, are_megacores: bool = False
) -> Sequence[Any]:
    try:
        return described_devices(platform, topology, description, are_megacores=are_megacores)
    except RuntimeError as error:  # also what JAX raises for a platform that cannot be described
        hint = "" if os.environ.get("JAX_PLATFORMS") == "cpu" else _LOST
        raise DeviceError(f"JAX cannot compile for {name!r}: {str(error).splitlines()[0]}.{hint}") from error
