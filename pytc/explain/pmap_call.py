"""How a mapped function is mapped, as the options of a `jax.pmap` call that people can write themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.tree_util import tree_structure, tree_unflatten

from pytc.mapped import MappedStageable
from pytc.mapping import UNNAMED, axis_of
from pytc.program import Computed, Program

_ANY = object()  # stands for what has no axis to speak of: a static leaf, an output that is no array


def pmap_options(
    stageable: MappedStageable, args: tuple[Any, ...], kwargs: dict[str, Any], staged: Program
) -> list[str]:
    """`axis_name='batch'`, `in_axes=(None, 0)`, ...: those that are not the defaults.

    Where one argument or result has leaves that are mapped in several ways, and is made of more than dictionaries,
    lists and tuples, `...` stands for what a person has to write.
    """
    mapped = stageable.mapped
    tree = tree_structure(stageable.parameters.wrap_static(args, kwargs))
    given, named = tree_unflatten(tree, [_ANY if leaf.is_static else str(leaf.axis) for leaf in staged.leaves])
    # `jax.pmap` maps all keyword arguments over axis 0, so those that can be passed by position are.
    later = stageable.parameters.positional[len(given) :]
    while later and later[-1] not in named:
        later = later[:-1]
    specs = [_spec(argument) for argument in (*given, *(named.get(name, _ANY) for name in later))]
    results = [axis_of(o.requested.spec) if isinstance(o.origin, Computed) else _ANY for o in staged.outputs]
    stacked = _spec(tree_unflatten(staged.out_tree, [each if each is _ANY else str(each) for each in results]))
    options = {
        "axis_name": None if mapped.axis_name == UNNAMED else repr(mapped.axis_name),
        "in_axes": _all_alike(specs) or _tuple(spec or "None" for spec in specs),
        "out_axes": stacked,
        "devices": None if mapped.devices is None else "...",
        "backend": None if mapped.backend is None else repr(mapped.backend),
        "axis_size": None if mapped.axis_size is None else str(mapped.axis_size),
    }
    defaults = {"in_axes": "0", "out_axes": "0"}
    return [f"{name}={text}" for name, text in options.items() if text not in (None, defaults.get(name))]


def _all_alike(specs: Sequence[str | None]) -> str | None:
    """What is written for all arguments at once, if they are mapped alike."""
    told = {spec for spec in specs if spec is not None}
    return told.pop() if len(told) == 1 and "None" not in told else None


def _spec(tree: Any) -> str | None:
    """A pytree prefix of axes for a tree of them, as short as can be; None where any would do."""
    told = {leaf for leaf in jax.tree.leaves(tree) if leaf is not _ANY}
    if len(told) < 2:
        return str(told.pop()) if told else None
    if type(tree) is dict:
        return f"{{{', '.join(f'{key!r}: {_spec(value)}' for key, value in tree.items())}}}"
    if type(tree) is list:
        return f"[{', '.join(str(_spec(each)) for each in tree)}]"
    if type(tree) is tuple:
        return _tuple(str(_spec(each)) for each in tree)
    return "..."


def _tuple(texts: Iterable[str]) -> str:
    texts = list(texts)
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
