"""A program moved to other devices: its meshes and shardings over local devices become ones over a target's devices.

Devices keep their order: the device with the lowest id that the program's arguments name becomes the target's first,
and so on. A mesh may also be a `jax.sharding.AbstractMesh`, which can describe 256 devices on a machine that has one:
it is laid over the target's first devices.

A function that asks for the machine while it is traced (`jax.devices()`, `jax.default_backend()`) is told about the
machine that it is traced on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, SingleDeviceSharding

from pytc.errors import DeviceError
from pytc.explain.device import Target
from pytc.jax_compat.api import UNNAMED
from pytc.jax_compat.avals import is_extended, stand_in
from pytc.jax_compat.devices import with_placements
from pytc.jax_compat.layouts import devices_of
from pytc.jax_compat.rewriting import close
from pytc.program import Leaf, Program


class Placement:
    """A mapping from the caller's devices to the target's."""

    def __init__(self, target: Target, named: Iterable[Any] = ()) -> None:
        """`named` are the shardings that the arguments have or that are requested for them."""
        self._target = target
        self._place: dict[Any, Any] = {device: device for device in target.devices}
        self._taken = 0
        self.spread = 1
        """The number of devices of the largest mesh."""
        found = {device for sharding in named for device in devices_of(sharding)}
        places = [self._device(device) for device in sorted(found, key=lambda each: int(each.id))]
        self._home = SingleDeviceSharding(places[0] if places else target.devices[0])
        """Where a program on one device runs."""

    def move(self, value: Any) -> Any:
        """A sharding, mesh or device on the target; anything else as it is.

        Raises `DeviceError` if the target has too few devices, and for kinds of shardings that cannot be moved.
        """
        if isinstance(value, NamedSharding):
            return NamedSharding(self.move(value.mesh), value.spec, memory_kind=value.memory_kind)
        if isinstance(value, SingleDeviceSharding):
            (device,) = value.device_set
            return SingleDeviceSharding(self._device(device), memory_kind=value.memory_kind)
        if isinstance(value, Mesh) and UNNAMED in value.axis_names:
            raise DeviceError(f"a jax.pmap cannot be moved to {self._target.device.name}: use jax.jit with shardings")
        if isinstance(value, Mesh) and not value.empty:
            self._spread_over(value.size)
            places = np.array([self._device(device) for device in value.devices.flat], object)
            return Mesh(places.reshape(value.devices.shape), value.axis_names, axis_types=value.axis_types)
        if isinstance(value, AbstractMesh) and not value.empty:
            count = math.prod(value.axis_sizes)
            self._spread_over(count)
            places = np.array(self._target.devices[:count], object)
            return Mesh(places.reshape(value.axis_sizes), value.axis_names, axis_types=value.axis_types)
        if isinstance(value, jax.Device):
            return self._device(value)
        if isinstance(value, jax.sharding.Sharding):
            raise DeviceError(
                f"a {type(value).__name__} cannot be moved to {self._target.device.name}: use a jax.NamedSharding"
            )
        return value

    def leaf(self, leaf: Leaf) -> Leaf:
        """The leaf on the target."""
        return dataclasses.replace(leaf, sharding=self._maybe(leaf.sharding), requested=self._maybe(leaf.requested))

    def program(self, program: Program) -> Program:
        """The program with its shardings, meshes and devices moved. A leaf without a sharding goes to the target's
        first device; if there is a mesh, wherever the compiler likes."""
        moved = with_placements(program.jaxpr, self._inner)
        # Captured arrays would tie the program to the devices that they are on.
        jaxpr = close(moved.jaxpr, [_anywhere(value) for value in moved.consts])
        outputs = tuple(
            dataclasses.replace(output, requested=self._maybe(output.requested)) for output in program.outputs
        )
        leaves = program.leaves
        if self.spread == 1:
            leaves = tuple(
                leaf if leaf.is_static or leaf.sharding is not None else dataclasses.replace(leaf, sharding=self._home)
                for leaf in leaves
            )
        return dataclasses.replace(program, jaxpr=jaxpr, outputs=outputs, leaves=leaves)

    def captured(self, program: Program) -> Program:
        """The program with stand-ins on the target for the arrays that its function captured."""
        alone = self._home if self.spread == 1 else None
        inputs = []
        for given, aval in zip(program.inputs, program.in_avals, strict=True):
            if given.leaf is None:
                sharding = getattr(given.captured, "sharding", None) if self.spread > 1 else None
                moved = self.move(sharding) if isinstance(sharding, NamedSharding) else alone
                given = dataclasses.replace(given, captured=stand_in(aval, moved))
            inputs.append(given)
        return dataclasses.replace(program, inputs=tuple(inputs))

    def _maybe(self, sharding: Any) -> Any:
        return None if sharding is None else self.move(sharding)

    def _inner(self, value: Any) -> Any:
        """The value of an equation's parameter, moved. An abstract mesh stays abstract; if it names a kind of device,
        that becomes the target's."""
        if isinstance(value, NamedSharding) and isinstance(value.mesh, AbstractMesh):
            return NamedSharding(self._inner(value.mesh), value.spec, memory_kind=value.memory_kind)
        if not isinstance(value, AbstractMesh):
            return self.move(value)
        return value if value.empty or value.abstract_device is None else self.move(value).abstract_mesh

    def _spread_over(self, count: int) -> None:
        self.spread = max(self.spread, count)
        if count > len(self._target.devices):
            raise DeviceError(
                f"the program runs on {count:,} devices, and {self._target.device.name!r} has "
                f"{len(self._target.devices):,}: name more, such as h200:{count} or a larger slice of a TPU"
            )

    def _device(self, device: Any) -> Any:
        if device not in self._place:
            if self._taken == len(self._target.devices):
                self._spread_over(self._taken + 1)
            self._place[device] = self._target.devices[self._taken]
            self._taken += 1
        return self._place[device]


def _anywhere(value: Any) -> Any:
    """A captured array as host data."""
    movable = isinstance(value, jax.Array) and not is_extended(value.dtype) and value.is_fully_addressable
    return np.asarray(value) if movable else value
