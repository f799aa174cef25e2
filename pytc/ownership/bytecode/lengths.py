"""What is known of a call's result before it is there: how it can be taken apart without code being run, or failing."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from jax.tree_util import PyTreeDef

from pytc.classes import defined
from pytc.jax_compat.trees import container, is_named_tuple
from pytc.ownership.cpython.plain import is_field


@dataclasses.dataclass(frozen=True)
class Fields:
    """A named tuple in a result."""

    kind: type
    names: tuple[str, ...]
    """Its fields."""


@dataclasses.dataclass(frozen=True)
class Fitting:
    """A result that is not known, but that is taken to be what the code that takes it apart expects."""


FITTING = Fitting()


Lengths: TypeAlias = tuple[Any, ...] | dict[Any, Any] | Fields | Fitting | None
"""Of a tuple or a list a tuple of the `Lengths` of its items, of a dictionary the same by its keys; of a named tuple
its fields; None of anything else, and where nothing is known."""


def lengths_of(tree: PyTreeDef, deepest: int = 4) -> Lengths:
    """What is known of a result with this tree, and of what is in it, up to some depth."""
    node = container(tree) if deepest else None
    if node is None:
        return None
    parts = [lengths_of(child, deepest - 1) for child in node.children]
    if node.kind is tuple or node.kind is list:
        return tuple(parts)
    if node.kind is dict:
        return dict(zip(node.data, parts, strict=True))
    names = defined(node.kind, "_fields") if is_named_tuple(tree) else None
    if type(names) is tuple and len(names) == len(parts) and all(type(name) is str for name in names):
        return Fields(node.kind, names)
    return None


def has(known: Lengths, kind: str, name: Any) -> bool:
    """Whether this attribute or item, as `kind` says, can be taken from what is so known: no code runs, and nothing is
    raised."""
    if isinstance(known, Fitting):
        return True
    if isinstance(known, Fields):
        return kind == "attribute" and name in known.names and is_field(known.kind, name, known.names.index(name))
    if kind != "item" or known is None:
        return False
    if isinstance(known, dict):
        return name in known
    return type(name) is int and -len(known) <= name < len(known)


def part_of(known: Lengths, kind: str, name: Any) -> Lengths:
    """What is known of that; None if it cannot be taken so."""
    if isinstance(known, Fitting):
        return known
    return known[name] if has(known, kind, name) and isinstance(known, tuple | dict) else None


def has_as_many(known: Lengths, number: int) -> bool:
    """Whether what is so known is unpacked into so many items, without code being run or anything being raised."""
    return isinstance(known, Fitting) or (isinstance(known, tuple) and len(known) == number)
