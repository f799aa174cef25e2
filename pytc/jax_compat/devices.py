"""What kind a device is, devices that are not here, and programs moved to them.

For JAX 0.10 to 0.12: `jax.experimental.topologies`, the version that a device's client tells, and the parameters of
equations in which meshes stand.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import topologies
from jax.extend import core as jex_core

from pytc.jax_compat.jaxprs import ClosedJaxpr, Jaxpr
from pytc.jax_compat.rewriting import close

_COMPILERS = {"cuda": ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"), "tpu": ("libtpu",)}


def compiler_is_installed(platform: str) -> bool:
    """Whether JAX finds a compiler for `cuda` or `tpu` among the installed packages, with or without the hardware."""
    return any(
        importlib.util.find_spec(name.partition(".")[0]) is not None and importlib.util.find_spec(name) is not None
        for name in _COMPILERS[platform]
    )


def platform_of(device: Any) -> str:
    """`cpu`, `tpu`, or what a `gpu` is for: `cuda`, and any other as JAX calls it."""
    return "cuda" if "cuda" in device.client.platform_version else str(device.platform)


def described_devices(
    platform: str, topology: str, description: str | None, *, are_megacores: bool = False
) -> Sequence[Any]:
    """Devices that need not be here, and that only compile: `("tpu", "v5e:2x2", None)`, or `("cuda", "1x1x8", text)`
    for hosts x processes x GPUs that XLA's `GpuTargetConfigProto` describes. If TPUs `are_megacores`, both cores of a
    chip are one device.

    Raises `RuntimeError`, or a kind of it, where the platform's plugin is not there or knows no such device.
    """
    if platform == "tpu":
        options = {"chip_config_name": "megacore"} if are_megacores else {}
        find = functools.partial(topologies.get_topology_desc, topology, "tpu", **options)
        found: Sequence[Any] = _with_no_tpu_looked_for(find).devices
        return found
    return topologies.get_topology_desc(topology, platform, target_config=description, topology=topology).devices


_OF_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def _with_no_tpu_looked_for(make: Callable[[], Any]) -> Any:
    """What `make` returns. A TPU's compiler without a TPU machine around it looks for one, unless the environment says
    not to."""
    added = [name for name in _OF_NO_TPU if name not in os.environ]
    try:
        os.environ.update((name, _OF_NO_TPU[name]) for name in added)
        return make()
    finally:
        for name in added:
            os.environ.pop(name, None)


def with_placements(closed: ClosedJaxpr, move: Callable[[Any], Any]) -> ClosedJaxpr:
    """The jaxpr with every sharding, mesh and device in its equations' parameters, at every depth, replaced by what
    `move` makes of it. `move` is given each value that stands in a parameter, and returns anything that is no placement
    unchanged."""
    return close(_placed(closed.jaxpr, move), closed.consts)


def _placed(jaxpr: Jaxpr, move: Callable[[Any], Any]) -> Jaxpr:
    eqns = []
    for eqn in jaxpr.eqns:
        params = {name: _moved(value, move) for name, value in eqn.params.items()}
        mesh = move(eqn.ctx.cur_abstract_mesh)
        if mesh is eqn.ctx.cur_abstract_mesh:
            eqns.append(eqn.replace(params=params))
            continue
        with eqn.ctx.manager, jax.sharding.use_abstract_mesh(mesh):  # a new equation remembers the mesh that it is in
            eqns.append(
                jex_core.new_jaxpr_eqn(eqn.invars, eqn.outvars, eqn.primitive, params, eqn.effects, eqn.source_info)
            )
    replaced: Jaxpr = jaxpr.replace(eqns=eqns)  # type: ignore[no-untyped-call]
    return replaced


def _moved(value: Any, move: Callable[[Any], Any]) -> Any:
    # From JAX 0.12 on the two are one class, and what has no consts may stand where an open jaxpr must.
    if isinstance(value, ClosedJaxpr) and value.consts:
        return with_placements(value, move)
    if isinstance(value, Jaxpr):
        return _placed(value, move)
    if isinstance(value, ClosedJaxpr):
        return with_placements(value, move)
    if type(value) in (tuple, list):
        return type(value)(_moved(each, move) for each in value)
    return move(value)
