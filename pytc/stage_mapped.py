"""Function + arguments -> Program, where every row of the mapped axis runs the function on a device of its own.

The function is traced once, as one row sees it, inside the map over the devices; `passes.axes` says which of its
results may differ from row to row; and then the whole is traced, around the row's jaxpr: one `shard_map` under
`jax.jit`, which is what `jax.pmap` consists of. From there on it is a program like any other.

A result that does not vary is one array with a copy on every device, `out_axes=None`. It is spread as an argument
with `in_axes=None` is, so the parameters that a training step returns are what its next call takes, where they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
from jax.tree_util import tree_leaves, tree_structure

from pytc import mapping
from pytc.arguments.leaves import LeafKind, kind_of
from pytc.errors import DeviceError
from pytc.jax_compat import api
from pytc.jax_compat.avals import AbstractValue, short, stand_in
from pytc.jax_compat.effects import captured_refs
from pytc.jax_compat.jaxprs import ClosedJaxpr
from pytc.jax_compat.rewriting import close
from pytc.jax_compat.rules import evaluate
from pytc.jax_compat.running import inside_a_map
from pytc.mapping import Mapped
from pytc.passes.axes import Axes, varying
from pytc.passes.finalise import finalise_jaxpr
from pytc.program import Computed, Leaf, Note, Program
from pytc.stage import Returned, Stageable

Rows = Callable[[Callable[..., Any], Sequence[int | None], Sequence[int | None]], Callable[..., Any]]
"""Maps a function of flat rows, with these in_axes and out_axes, over flat arrays."""


class Row(NamedTuple):
    """What one row does, traced."""

    jaxpr: ClosedJaxpr
    returned: Returned
    result: Any


@dataclasses.dataclass(frozen=True)
class MappedStageable(Stageable):
    """A function with the options that say how it is mapped."""

    mapped: Mapped = dataclasses.field(default_factory=Mapped)

    def kinds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[LeafKind, ...]:
        """As of any function, but that only arrays are mapped: other leaves are static unless `in_axes` is None."""
        axes = self.mapped.for_arguments(self.parameters, args, kwargs)
        leaves = tree_leaves((args, kwargs))
        return tuple("static" if axis == "static" else kind_of(leaf) for leaf, axis in zip(leaves, axes, strict=True))

    def leaves(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, share: bool, parting: Sequence[Hashable] | None = None
    ) -> tuple[Leaf, ...]:
        """The leaves of these arguments with the axes that are mapped; one array at two leaves is one only where both
        are mapped alike."""
        found = super().leaves(args, kwargs, share=share, parting=parting)
        axes = self.mapped.for_arguments(self.parameters, *self.parameters.wrap_static(args, kwargs))
        numbers = [axis if isinstance(axis, int) else None for axis in axes]
        first: dict[tuple[int, int | None], int] = {}
        leaves = []
        for i, (leaf, axis) in enumerate(zip(found, numbers, strict=True)):
            same: int | None = first.setdefault((i if leaf.same_as is None else leaf.same_as, axis), i)
            elsewhere = leaf.elsewhere or (same == i and leaf.same_as is not None)
            leaves.append(
                dataclasses.replace(leaf, axis=axis, same_as=None if same == i else same, elsewhere=elsewhere)
            )
        return tuple(leaves)

    def stage(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        share: bool,
        parting: Sequence[Hashable] | None = None,
        place: Callable[[Leaf], Leaf] | None = None,
        traced: bool = False,
    ) -> Program:
        """Trace the function, once, as one row sees it, and the map around it. `traced` inside a transformation.

        Raises `ValueError` naming leaf, axis and sizes where the mapped leaves do not fit together or onto the
        devices, and where `out_axes` is None for a result that varies; `DeviceError` where leaves are to be placed.
        """
        if place is not None:
            raise DeviceError(
                f"{self.name} is mapped over devices of this process: what it would be on others, "
                "pytc.compile(jax.shard_map(...)) over a mesh can tell"
            )
        leaves = self.leaves(args, kwargs, share=share, parting=parting)
        sizes = {
            leaf.path: (leaf.axis, leaf.aval.shape[leaf.axis]) for leaf in leaves if leaf.aval and leaf.axis is not None
        }
        if inside_a_map():
            mesh, rows = None, _by_vmap(self.mapped.axis_name, self.mapped.size(sizes))
        else:
            mesh = self.mapped.mesh(sizes, traced=traced)
            rows = _by_shard_map(mesh)
        passed = [leaf for leaf in leaves if leaf.aval is not None and leaf.same_as is None]
        in_axes = [leaf.axis for leaf in passed]
        given = [_whole(leaf, mesh) for leaf in passed]
        row = self.row(args, kwargs, leaves, rows, in_axes, given)
        out_axes, notes = self.out_axes(row, passed)

        def program(*values: Any) -> list[Any]:
            def one(*own: Any) -> list[Any]:
                consts, own = own[: len(row.jaxpr.consts)], own[len(row.jaxpr.consts) :]
                return evaluate(close(row.jaxpr.jaxpr, consts), own)

            consts = row.jaxpr.consts
            return list(rows(one, [*(None for _ in consts), *in_axes], out_axes)(*consts, *values))

        jaxpr = api.jit(program).trace(*given).jaxpr
        origins = row.returned.origins
        placed = [_placed(mesh, out_axes[o.index]) if isinstance(o, Computed) else None for o in origins]
        leaves = tuple(
            leaf if leaf.is_static else dataclasses.replace(leaf, requested=_placed(mesh, leaf.axis)) for leaf in leaves
        )
        staged = self.program(jaxpr, leaves, row.returned, placed)
        in_tree = tree_structure(self.parameters.wrap_static(args, kwargs))
        return dataclasses.replace(staged, in_tree=in_tree, notes=tuple(Note("axes", text) for text in notes))

    def row(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Leaf],
        rows: Rows,
        in_axes: Sequence[int | None],
        given: Sequence[Any],
    ) -> Row:
        """The function traced as one row of the map sees it.

        Raises `TypeError` where it captured a `jax.Ref`, or a tracer that escaped from elsewhere.
        """
        hidden = self.hide(args, kwargs, leaves)
        tree: Any = tree_structure(hidden)
        seen: list[Row] = []

        def one(*own: Any) -> list[Any]:
            returned: list[tuple[Returned, Any]] = []
            traceable = self.traceable(lambda split, result: returned.append((split, result)))
            own_args, own_kwargs = tree.unflatten(own)
            jaxpr = api.jit(traceable).trace(*own_args, **own_kwargs).jaxpr
            self.check_traced(jaxpr, len(own))
            seen.append(Row(jaxpr, *returned[-1]))
            return []

        api.jit(rows(one, in_axes, [])).trace(*given)
        for held in captured_refs(seen[-1].jaxpr):
            raise TypeError(
                f"{self.name} is mapped and captured a jax.Ref ({short(held)}), which holds one value for "
                "all rows: pass what it holds, and return the new value"
            )
        return seen[-1]

    def out_axes(self, row: Row, passed: Sequence[Leaf]) -> tuple[list[int | None], list[str]]:
        """For each array that a row returns, the axis at which the rows are stacked, or None; and what to tell."""
        name, called = self.mapped.axis_name, self.mapped.called
        finalised = finalise_jaxpr(row.jaxpr)
        none: Axes = frozenset()
        mapped = [none if leaf.axis is None else frozenset([name]) for leaf in passed]
        varies = [name in axes for axes in varying(finalised, mapped, [name])]
        asked = self.mapped.for_result(row.result)
        paths = [f"result{path}" for path in row.returned.paths]
        axes: list[int | None] = []
        notes, wrong = [], []
        for path, origin, axis in zip(paths, row.returned.origins, asked, strict=True):
            if not isinstance(origin, Computed):
                continue
            if axis == "auto":
                axis = 0 if varies[origin.index] else None
            axes.append(axis)
            if varies[origin.index]:
                notes.append(f"{path} varies over {called}: its rows are stacked on axis {axis}")
                if axis is None:
                    wrong.append(f"  {path}: {self._why(finalised, passed, origin.index)}")
            else:
                stacked = "returned once" if axis is None else f"stacked on axis {axis} all the same"
                notes.append(f"{path} does not vary over {called}: {stacked}")
        if wrong:
            raise ValueError(
                f"out_axes is None for what may differ from row to row of {called}:\n"
                + "\n".join(wrong)
                + "\nMake it the same on all rows (jax.lax.pmean, psum, all_gather, ...), or stack it: out_axes=0 or "
                '"auto".'
            )
        return axes, notes

    def _why(self, jaxpr: ClosedJaxpr, passed: Sequence[Leaf], output: int) -> str:
        """Where an output gets what varies from."""
        name = self.mapped.axis_name
        none: Axes = frozenset()
        if name in varying(jaxpr, [none] * len(passed), [name])[output]:
            return "made by something that is not the same on every row (axis_index, ppermute, a callback, ...)"
        for number, leaf in enumerate(passed):
            alone = [frozenset([name]) if i == number else none for i in range(len(passed))]
            if leaf.axis is not None and name in varying(jaxpr, alone, [name])[output]:
                return f"made of `{leaf.path}`, which is mapped on axis {leaf.axis}"
        return "made of mapped arguments"


def _by_shard_map(mesh: jax.sharding.Mesh) -> Rows:
    """Every row on a device of its own."""
    (name,) = mesh.axis_names

    def rows(
        fun: Callable[..., Any], in_axes: Sequence[int | None], out_axes: Sequence[int | None]
    ) -> Callable[..., Any]:
        def shard(*shards: Any) -> list[Any]:
            own = [x if a is None else jax.lax.squeeze(x, [a]) for x, a in zip(shards, in_axes, strict=True)]
            results = fun(*own)
            return [r if a is None else jax.lax.expand_dims(r, [a]) for r, a in zip(results, out_axes, strict=True)]

        specs = tuple(mapping.spec(name, axis) for axis in in_axes)
        # `passes.axes` stands in for `check_vma`, under which a `psum` of what does not vary is an error.
        return jax.shard_map(
            shard, mesh=mesh, in_specs=specs, out_specs=[mapping.spec(name, a) for a in out_axes], check_vma=False
        )

    return rows


def _by_vmap(name: Hashable, size: int) -> Rows:
    """All rows on the device where the code around is."""

    def rows(
        fun: Callable[..., Any], in_axes: Sequence[int | None], out_axes: Sequence[int | None]
    ) -> Callable[..., Any]:
        stacked = jax.vmap(
            fun, in_axes=tuple(in_axes), out_axes=[a or 0 for a in out_axes], axis_name=name, axis_size=size
        )

        def each(*values: Any) -> list[Any]:
            results = stacked(*values)
            return [r[0] if a is None else r for r, a in zip(results, out_axes, strict=True)]

        return each

    return rows


def _placed(mesh: jax.sharding.Mesh | None, axis: int | None) -> Any:
    """Where an array is that is mapped at this axis."""
    return None if mesh is None else jax.NamedSharding(mesh, mapping.spec(mesh.axis_names[0], axis))


def _whole(leaf: Leaf, mesh: jax.sharding.Mesh | None) -> Any:
    """The type of the whole array of which each process passes its rows."""
    aval: AbstractValue = leaf.aval
    if mesh is not None and leaf.axis is not None:
        shape = list(aval.shape)
        shape[leaf.axis] = mesh.size
        aval = aval.update(shape=tuple(shape))
    return stand_in(aval, None)
