"""Which axis of each leaf is mapped: `in_axes` and `out_axes`, from what the caller wrote to one answer a leaf.

Both are written as for `jax.pmap`, with more ways to say it: a dict by parameter name, a function of the leaf, and
`"auto"` for outputs. Only arrays have axes; a spec says nothing of other leaves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path, tree_structure

from pytc.arguments.leaves import Parameters, StaticArgument
from pytc.arguments.prefix import per_leaf
from pytc.jax_compat.api import UNNAMED
from pytc.jax_compat.avals import DESCRIPTIONS

AxesSpec: TypeAlias = Any
"""An axis number, None, a function from a leaf to one of the two, or a pytree prefix of these."""


def if_array(axis: int = 0) -> Callable[[Any], int | None]:
    """For `in_axes` and `out_axes`: `axis` for arrays (JAX and NumPy), None for everything else.

    A negative `axis` counts from the last. A call raises `ValueError` naming the leaf that has no such axis.
    """

    def axis_if_array(leaf: Any) -> int | None:
        return axis if _is_array(leaf) else None

    return axis_if_array


@dataclasses.dataclass(frozen=True)
class Mapped:
    """The options of a `pmap` that say what is mapped, and where."""

    axis_name: Hashable = UNNAMED
    in_axes: AxesSpec = 0
    out_axes: AxesSpec = "auto"
    devices: tuple[Any, ...] | None = None
    backend: str | None = None
    axis_size: int | None = None

    @property
    def called(self) -> str:
        """What messages call the mapped axis."""
        return "the mapped axis" if self.axis_name == UNNAMED else f"axis {self.axis_name!r}"

    def for_arguments(
        self, parameters: Parameters, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[int | Literal["static"] | None]:
        """For each leaf of the arguments (static ones wrapped), in flattening order: its mapped axis, not negative;
        None where every row gets all of it; or "static".

        Arrays have axes, and everything else is static; but a Python scalar for which None is written is an argument
        that every row gets, as it is for `jax.pmap`.

        Raises `ValueError` naming the leaf where an array has no such axis, and where `in_axes` does not match the
        arguments; `TypeError` for what is not an axis.
        """
        specs = self._of_each_argument(parameters, args, kwargs)
        found: list[int | Literal["static"] | None] = []
        trees = [*args, *(kwargs[name] for name in sorted(kwargs))]
        for (where, spec), tree in zip(specs, trees, strict=True):
            what, structure = f"in_axes of `{where}`", tree_structure(tree)
            asked = [None] if isinstance(tree, StaticArgument) else per_leaf(what, spec, structure, where)
            for (path, leaf), axis in zip(tree_flatten_with_path(tree)[0], asked, strict=True):
                found.append(_resolved(where + keystr(path), leaf, axis))
        return found

    def _of_each_argument(
        self, parameters: Parameters, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[str, AxesSpec]]:
        """What each argument is called and what `in_axes` says of it, keywords last and sorted."""
        spec = self.in_axes
        positions = [parameters.positional_name(i) for i in range(len(args))]
        keywords = sorted(kwargs)
        if isinstance(spec, Mapping):
            parameters.check_names("in_axes", [n.partition("[")[0] if isinstance(n, str) else n for n in spec])
            named = dict(spec)
            return [(name, named.get(name, named.get(name.partition("[")[0], 0))) for name in (*positions, *keywords)]
        if isinstance(spec, tuple | list):
            each = dict(enumerate(spec))
            if len(args) > len(each):
                raise ValueError(
                    f"in_axes has length {len(each)}, but the call has {len(args)} positional arguments: give an axis "
                    "for each, or a dict by parameter name"
                )
            if len(each) > len(args) and not parameters.takes_positional(len(each)):
                most = len(parameters.positional)
                raise ValueError(
                    f"in_axes has length {len(each)}, but the function takes {most} positional "
                    f"{'argument' if most == 1 else 'arguments'}: give an axis for each"
                )
            of_keywords = {name: each[i] for i, name in enumerate(parameters.positional) if i in each}
            return [
                *((name, each[i]) for i, name in enumerate(positions)),
                *((name, of_keywords.get(name, 0)) for name in keywords),
            ]
        # A number or None speaks of positional arguments, as for `jax.pmap`; a function of any leaf.
        return [*((name, spec) for name in positions), *((name, spec if callable(spec) else 0) for name in keywords)]

    def for_result(self, result: Any) -> list[int | Literal["auto"] | None]:
        """For each leaf of the result: the axis at which its rows are stacked, None for one value, or "auto"; None for
        what is not an array.

        Raises `ValueError` where `out_axes` does not match the result, or names an axis that a stacked leaf does not
        have; `TypeError` for what is not an axis.
        """
        asked = per_leaf("out_axes", self.out_axes, tree_structure(result))
        return [
            "auto" if axis == "auto" else _stacked_at(f"result{keystr(path)}", leaf, axis)
            for (path, leaf), axis in zip(tree_flatten_with_path(result)[0], asked, strict=True)
        ]

    def mesh(self, rows: Mapping[str, tuple[int, int]], *, traced: bool = False) -> jax.sharding.Mesh:
        """The devices that the rows are on, those that `jax.pmap` takes; `traced` inside another transformation.

        `rows` are the mapped leaves, by path: (axis, size). In a program of several processes each passes its own
        rows, and the axis is as long as all of them.

        Raises `ValueError` naming leaves, axis and sizes where these differ, or are more than there are devices.
        """
        local = self.size(rows)
        processes = jax.process_count(self.backend)
        everywhere = processes > 1 and not traced
        size = local * processes if everywhere and self.axis_size is None else local
        if everywhere and self.axis_size is not None:
            size = self.axis_size
        if self.devices is not None:
            devices = list(self.devices)
        elif processes > 1:
            each = range(processes) if everywhere else [jax.process_index()]
            devices = [d for i in each for d in jax.local_devices(process_index=i, backend=self.backend)]
        else:
            devices = jax.devices(self.backend)
        which = next(iter(rows), "axis_size")
        if not size:
            raise ValueError(
                f"{self.called} has no rows (`{which}`): it needs one; give in_axes=None for what is not mapped"
            )
        if size > len(devices):
            there, noun = ("is", "device") if len(devices) == 1 else ("are", "devices")
            raise ValueError(
                f"{self.called} has {size} rows (`{which}`), and there {there} {len(devices)} {noun}: "
                "map fewer rows, or use jax.vmap for some of them"
            )
        return jax.sharding.Mesh(np.array(devices[:size]), (self.axis_name,))

    def size(self, rows: Mapping[str, tuple[int, int]]) -> int:
        """How many rows this process passes. Raises as `mesh` does."""
        sizes: dict[int, list[str]] = {}
        for path, (axis, size) in rows.items():
            sizes.setdefault(size, []).append(f"`{path}` (axis {axis})")
        if len(sizes) > 1:
            told = "; ".join(
                f"{size} row{'s' * (size != 1)} in {', '.join(paths[:3])}"
                f"{f' and {len(paths) - 3} more' if len(paths) > 3 else ''}"
                for size, paths in sizes.items()
            )
            raise ValueError(
                f"{self.called} has one size, and the mapped leaves have several: {told}. Give in_axes=None for what "
                "every row gets whole, such as what another pytc.pmap returned once; or have that return it stacked, "
                "as jax.pmap does: out_axes=0"
            )
        if not sizes:
            if self.axis_size is None and self.devices is None:
                raise ValueError(
                    f"no leaf is mapped over {self.called}, so nothing says how long it is: give axis_size"
                )
            # What is given counts the rows of all processes.
            number = self.axis_size if self.axis_size is not None else len(self.devices or ())
            return int(number // jax.process_count(self.backend))
        (size,) = sizes
        if self.axis_size is not None and jax.process_count(self.backend) == 1 and size != self.axis_size:
            (paths,) = sizes.values()
            raise ValueError(
                f"axis_size is {self.axis_size}, and {paths[0]} has {size} rows: give axis_size={size}, or leave it out"
            )
        return size


def spec(axis_name: Hashable, axis: int | None) -> jax.sharding.PartitionSpec:
    """How an array is spread that is mapped at this axis."""
    given: Sequence[Any] = () if axis is None else (*(None for _ in range(axis)), axis_name)
    split: Any = jax.sharding.PartitionSpec
    result: jax.sharding.PartitionSpec = split(*given)
    return result


def axis_of(spec: jax.sharding.PartitionSpec) -> int | None:
    """The mapped axis of an array that is spread so: the inverse of `spec`."""
    return next((axis for axis, part in enumerate(spec) if part is not None), None)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, *DESCRIPTIONS))


def _resolved(path: str, leaf: Any, axis: Any) -> int | Literal["static"] | None:
    if isinstance(leaf, bool | int | float | complex) and axis is None:
        return None
    if isinstance(leaf, jax.Ref):
        raise TypeError(f"`{path}` is a jax.Ref, which cannot be mapped: pass what it holds, and return the new value")
    if not _is_array(leaf):
        return "static"
    axis = _number("in_axes", path, axis(leaf) if callable(axis) else axis)
    ndim = np.ndim(leaf) if not isinstance(leaf, DESCRIPTIONS) else len(leaf.shape)
    if axis is None:
        return None
    if not -ndim <= axis < ndim:
        raise ValueError(f"`{path}` has no axis {axis} to map: its shape is {tuple(leaf.shape)}; write None in in_axes")
    return int(axis % ndim)


def _stacked_at(path: str, leaf: Any, axis: Any) -> int | None:
    if not _is_array(leaf):
        return None
    axis = _number("out_axes", path, axis(leaf) if callable(axis) else axis)
    if axis is None:
        return None
    ndim = len(leaf.shape) + 1
    if not -ndim <= axis < ndim:
        axes = "1 axis" if ndim == 1 else f"{ndim} axes"
        raise ValueError(f"out_axes of `{path}` is {axis}, and it has {axes} once its rows are stacked")
    return int(axis % ndim)


def _number(what: str, path: str, axis: Any) -> int | None:
    if axis is None:
        return None
    if isinstance(axis, int) and not isinstance(axis, bool):
        return int(axis)
    auto = ', "auto"' if what == "out_axes" else ""
    raise TypeError(
        f"{what} of `{path}` is {axis!r}; it can be an axis number, None{auto}, or a function that returns one of these"
    )
