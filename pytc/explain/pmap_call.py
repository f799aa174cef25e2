"""How a function is mapped, as the source of the options of a `jax.pmap` call."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jax.tree_util import PyTreeDef, tree_structure

from pytc.jax_compat.api import UNNAMED
from pytc.jax_compat.trees import container
from pytc.mapping import axis_of
from pytc.program import Computed, Program
from pytc.stage_mapped import MappedStageable

_ANY = object()  # the axis of what has none: a static leaf, an output that is no array


def pmap_options(
    stageable: MappedStageable, args: tuple[Any, ...], kwargs: dict[str, Any], staged: Program
) -> list[str]:
    """`axis_name='batch'`, `in_axes=(None, 0)`, ...: the options that differ from the defaults.

    If the leaves of an argument or a result are mapped differently, and it has containers other than dictionaries,
    lists and tuples, or something is passed by keyword alone that `jax.pmap` cannot map so, `...` marks what people
    have to write themselves.
    """
    mapped = stageable.mapped
    args, kwargs = stageable.parameters.wrap_static(args, kwargs)
    axes = iter([_ANY if leaf.is_static else str(leaf.axis) for leaf in staged.leaves])
    given = [_spec(tree_structure(each), axes) for each in args]
    named = {name: _spec(tree_structure(kwargs[name]), axes) for name in sorted(kwargs)}
    # `jax.pmap` maps all keyword arguments over axis 0, so those that can be passed by position are.
    later = stageable.parameters.positional[len(given) :]
    while later and later[-1] not in named:
        later = later[:-1]
    specs = [*given, *(named.get(name) for name in later)]
    cannot_be_said = any(spec not in (None, "0") for name, spec in named.items() if name not in later)
    results = [axis_of(o.requested.spec) if isinstance(o.origin, Computed) else _ANY for o in staged.outputs]
    stacked = _spec(staged.out_tree, iter([each if each is _ANY else str(each) for each in results]))
    options = {
        "axis_name": None if mapped.axis_name == UNNAMED else repr(mapped.axis_name),
        "in_axes": "..." if cannot_be_said else _all_alike(specs) or _tuple(spec or "None" for spec in specs),
        "out_axes": stacked,
        "devices": None if mapped.devices is None else "...",
        "backend": None if mapped.backend is None else repr(mapped.backend),
        "axis_size": None if mapped.axis_size is None else str(mapped.axis_size),
    }
    defaults = {"in_axes": "0", "out_axes": "0"}
    return [f"{name}={text}" for name, text in options.items() if text not in (None, defaults.get(name))]


def _all_alike(specs: Sequence[str | None]) -> str | None:
    """The axis of all arguments, if they are mapped alike, else None. (What is no number is for one argument.)"""
    told = {spec for spec in specs if spec is not None}
    return told.pop() if len(told) == 1 and all(spec.isdigit() for spec in told) else None


def _spec(tree: PyTreeDef, axes: Iterator[Any]) -> str | None:
    """The shortest pytree prefix for a tree whose leaves have these `axes`; None if any axis would do."""
    own = list(itertools.islice(axes, tree.num_leaves))
    told = {axis for axis in own if axis is not _ANY}
    if len(told) < 2:
        return str(told.pop()) if told else None
    node = container(tree)
    if node is None:
        return "..."
    rest = iter(own)
    parts = [_spec(child, rest) for child in node.children]
    if node.kind is dict:
        return f"{{{', '.join(f'{key!r}: {part}' for key, part in zip(node.data, parts, strict=True))}}}"
    if node.kind is list:
        return f"[{', '.join(map(str, parts))}]"
    return _tuple(map(str, parts)) if node.kind is tuple else "..."


def _tuple(texts: Iterable[str]) -> str:
    texts = list(texts)
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
