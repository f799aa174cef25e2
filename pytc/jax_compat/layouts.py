"""Where arrays are, and how: shardings, and formats, which ask for a layout in memory beside a sharding.

For JAX 0.10 to 0.12: `jax.experimental.layout`, and the equations that ask for one; a mesh that has only a shape has no
`device_set`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any

import jax
from jax.experimental.layout import Format, Layout
from jax.sharding import AbstractMesh, Sharding

from pytc.jax_compat.jaxprs import Jaxpr, JaxprEqn, Literal, subjaxprs


def sharding_of(placed: Any) -> Any:
    """The sharding of a format; a sharding itself, and what is neither, as it is."""
    return placed.sharding if isinstance(placed, Format) else placed


def memory_of(placed: Any) -> str:
    """The kind of memory that a sharding or a format names; the device's own where it names none."""
    return getattr(sharding_of(placed), "memory_kind", None) or "device"


def devices_of(placed: Any) -> Collection[jax.Device]:
    """The devices that a sharding or a format names; none where it names none, as over a mesh that has only a shape."""
    sharding = sharding_of(placed)
    if isinstance(getattr(sharding, "mesh", None), AbstractMesh):
        return ()
    found: Collection[jax.Device] = getattr(sharding, "device_set", ())
    return found


def is_over_several(placed: Any) -> bool:
    """Whether what is asked for may put an array on several devices; not where nothing is (None)."""
    sharding = sharding_of(placed)
    mesh = getattr(sharding, "mesh", None)
    if sharding is None or isinstance(mesh, AbstractMesh):
        return mesh is not None and int(mesh.size) > 1
    # A `PartitionSpec` alone says nothing of devices.
    return not hasattr(sharding, "device_set") or len(sharding.device_set) > 1


_CUT = frozenset("custom_partitioning jit reshard shard_map sharding_constraint".split())
"""Primitives that may ask for parts over devices. (Where the axes of a mesh are explicit, the types of all values say
how they are cut, and nothing is left to decide.)"""


def asks_for_parts(jaxpr: Jaxpr) -> bool:
    """Whether some equation, at any depth, asks for values to be spread over several devices: a constraint, an inner
    `jit` with shardings, a `shard_map`."""
    seen: set[int] = set()
    ahead = [jaxpr]
    while ahead:
        each = ahead.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if any(eqn.primitive.name in _CUT and _asks_for_parts(eqn) for eqn in each.eqns):
            return True
        ahead += [inner for eqn in each.eqns if eqn.params for inner in subjaxprs(eqn)]
    return False


def _asks_for_parts(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name == "shard_map":
        return int(eqn.params["mesh"].size) > 1
    if eqn.primitive.name == "custom_partitioning":
        return True
    asked = (each for value in eqn.params.values() for each in (value if isinstance(value, tuple) else (value,)))
    return any(isinstance(each, Sharding) and is_over_several(each) for each in asked)


def place_and_layout(array: jax.Array) -> Any:
    """Where an array is: its sharding, or its format, where its rows do not lie one after the other.

    JAX 0.10 must be told. Otherwise what it copies keeps the order of the elements, and the next program takes it for
    the usual one. (Not so always: to a format JAX copies by a program, which takes twice as long.)"""
    placed = getattr(array, "format", None)  # keys have none
    order: tuple[int, ...] = getattr(getattr(placed, "layout", None), "major_to_minor", ())
    return array.sharding if order == tuple(range(len(order))) else placed


def is_by_the_compiler(placed: Any) -> bool:
    """Whether the compiler is to choose the layout."""
    return isinstance(placed, Format) and placed.layout is Layout.AUTO


_CONSTRAINTS = frozenset("layout_constraint relayout sharding_constraint".split())  # of the last not all have a layout


def laid_out(jaxpr: Jaxpr) -> frozenset[int]:
    """The results (numbers of outvars) that a constraint on their layout makes, which JAX hands out as they are laid
    out there. It looks for such constraints among the equations of the whole, and nowhere deeper."""
    constraints = (eqn for eqn in jaxpr.eqns if eqn.primitive.name in _CONSTRAINTS)
    asked = (eqn.outvars for eqn in constraints if eqn.params.get("layout", True) is not None)
    made = {*itertools.chain.from_iterable(asked)}
    return frozenset(k for k, v in enumerate(jaxpr.outvars) if not isinstance(v, Literal) and v in made)


def extended(placed: Format, more: int, extend: Callable[[Any], Any]) -> Format:
    """The format for arrays with so many dimensions more, which vary fastest; `extend` does so for the sharding."""
    layout: Any = placed.layout
    if isinstance(layout, Layout):
        order = layout.major_to_minor
        layout = Layout((*order, *range(len(order), len(order) + more)))
    return Format(layout, extend(placed.sharding))
