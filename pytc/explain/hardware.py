"""Data on GPUs and TPUs: what their compilers need, and what people ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU as CUDA describes it; sizes in bytes, the clock in GHz, the bandwidth in bytes a second."""

    kind: str
    memory_name: str
    capability: tuple[int, int]
    cores: int
    units: int
    """Floating-point units per core."""
    threads: int
    """Threads that a core can hold."""
    shared: int
    """Shared memory per core, of which a block can have all but a KiB."""
    cache: int
    clock: float
    bandwidth: int
    memory: int

    def description(self) -> str:
        """The GPU as XLA's `GpuTargetConfigProto`, in text form."""
        major, minor = self.capability
        figures = {
            "core_count": self.cores,
            "fpus_per_core": self.units,
            "threads_per_core_limit": self.threads,
            "shared_memory_per_core": self.shared,
            "shared_memory_per_block_optin": self.shared - 1024,
            "shared_memory_per_block": 48 * 1024,
            "l2_cache_size": self.cache,
            "clock_rate_ghz": self.clock,
            "memory_bandwidth": self.bandwidth,
            "device_memory_size": self.memory,
            # These are the same for every GPU since 2017.
            "threads_per_warp": 32,
            "threads_per_block_limit": 1024,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "thread_dim_limit_x": 1024,
            "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64,
        }
        versions = {
            "driver_version": "13.0.0",
            "runtime_version": "13.0.0",
            "compile_time_toolkit_version": "13.0.0",
            "dnn_version": "9.10.0",
        }
        told = " ".join(f"{name}: {value}" for name, value in figures.items())
        told += "".join(f' {name}: "{value}"' for name, value in versions.items())
        return (
            f'platform_name: "CUDA" device_description_str: "{self.kind}" '
            f"dnn_version_info {{ major: 9 minor: 10 patch: 0 }} gpu_device_info {{ "
            f'name: "{self.kind}" cuda_compute_capability {{ major: {major} minor: {minor} }} {told} }}'
        )


GPUS: Mapping[str, Gpu] = {
    "a6000": Gpu(
        kind="NVIDIA RTX A6000",
        memory_name="48 GB",
        capability=(8, 6),
        cores=84,
        units=128,
        threads=1536,
        shared=100 * KIB,
        cache=6 * MIB,
        clock=1.8,
        bandwidth=768_096_000_000,
        memory=51_041_271_808,
    ),
    "a100-40gb": Gpu(
        kind="NVIDIA A100 40GB",
        memory_name="40 GB",
        capability=(8, 0),
        cores=108,
        units=64,
        threads=2048,
        shared=164 * KIB,
        cache=40 * MIB,
        clock=1.41,
        bandwidth=1_555_200_000_000,
        memory=42_297_786_368,
    ),
    "a100": Gpu(
        kind="NVIDIA A100 80GB",
        memory_name="80 GB",
        capability=(8, 0),
        cores=108,
        units=64,
        threads=2048,
        shared=164 * KIB,
        cache=40 * MIB,
        clock=1.41,
        bandwidth=2_039_040_000_000,
        memory=85_100_068_864,
    ),
    "h100": Gpu(
        kind="NVIDIA H100",
        memory_name="80 GB",
        capability=(9, 0),
        cores=132,
        units=128,
        threads=2048,
        shared=228 * KIB,
        cache=50 * MIB,
        clock=1.98,
        bandwidth=3_352_320_000_000,
        memory=84_942_979_072,
    ),
    "h200": Gpu(
        kind="NVIDIA H200",
        memory_name="141 GB",
        capability=(9, 0),
        cores=132,
        units=128,
        threads=2048,
        shared=228 * KIB,
        cache=50 * MIB,
        clock=1.98,
        bandwidth=4_800_000_000_000,
        memory=151_397_597_184,
    ),
    "b200": Gpu(
        kind="NVIDIA B200",
        memory_name="192 GB",
        capability=(10, 0),
        cores=148,
        units=128,
        threads=2048,
        shared=228 * KIB,
        cache=132_644_864,
        clock=1.965,
        bandwidth=7_672_320_000_000,
        memory=191_514_411_008,
    ),
}
"""As NVIDIA's driver reports them (`cudaGetDeviceProperties`)."""

TPUS: Mapping[str, tuple[str, str, int]] = {
    "v2": ("1x1", "8 GB", round(7.48 * GIB)),
    "v3": ("1x1", "16 GB", round(15.48 * GIB)),
    "v4": ("1x1x1", "32 GB", round(30.75 * GIB)),
    "v5e": ("1x1", "16 GB", round(15.75 * GIB)),
    "v5p": ("1x1x1", "95 GB", round(95.73 * GIB)),
    "v6e": ("1x1", "32 GB", round(31.24 * GIB)),
    "tpu7x": ("1x1x1", "96 GB", round(94.74 * GIB)),
}
"""The smallest slice; and the memory of one of JAX's devices: what people call it, and the bytes that the compiler
(libtpu 0.0.51) lets a program have. For v2, v3 and tpu7x, each of a chip's two cores is a device."""
MEGACORES = frozenset({"v4"})
"""Those whose two cores are one device where the hardware is. (A topology has two, unless it is asked for one.)"""
