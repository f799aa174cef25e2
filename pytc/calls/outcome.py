"""What the proof may assume of a call of a program: whether Python code may run meanwhile, and what is returned.

JAX asks user-defined objects on the way: keys of dictionaries, numbers of derived classes, what it is set to.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jax.tree_util import PyTreeDef

from pytc import ownership
from pytc.classes import ids_of, is_among, shares
from pytc.jax_compat.keys import implementation_of, is_key_type
from pytc.jax_compat.trees import nodes
from pytc.ownership.bytecode.lengths import lengths_of
from pytc.ownership.others.compared import odd_setting
from pytc.program import Program
from pytc.provenance import is_of


def outcome_of(program: Program, leaves: Sequence[Any], doubt: str) -> ownership.Outcome:
    """What the proof may assume of a call with leaves of these types: whether Python code may run meanwhile, and how
    long the tuples in the result are. `doubt` says what may raise as it puts the result together (`unflattening`).

    If none may, and what puts the result together cannot raise, a call that raises has donated nothing:
    `pytc.interrupt` sees to that.
    """
    trees = (program.in_tree, program.out_tree)
    calls_python = (
        program.calls_python
        or not all(_is_plain_key(key) for tree in trees if tree is not None for key in _keys(tree))
        or any(not leaf.is_static and _is_asked(value) for leaf, value in zip(program.leaves, leaves, strict=True))
        or bool(odd_setting())  # which will be the key of what is compiled, and compared with others
    )
    return ownership.Outcome(
        calls_python,
        lengths_of(program.out_tree),
        not (calls_python or doubt),
        ownership.classes_of(program.out_tree),
        tuple(_static(program)),
        doubt,
        _made(program),
    )


def _made(program: Program) -> int:
    """How many objects a result is of, at the most: an array is one, a PRNG key two. A container that is no plain one
    may have a `__dict__`, and be made from a few others."""
    containers = sum(1 if issubclass(kind, _PLAIN_CONTAINERS) else 4 for kind, _ in nodes(program.out_tree))
    leaves: int = program.out_tree.num_leaves
    return containers + leaves + sum(is_key_type(aval) for aval in program.out_avals)


_PLAIN_CONTAINERS = (tuple, list, dict)
_NUMBERS = ids_of(bool, int, float, complex)
_HOST = (bool, int, float, complex, np.ndarray, np.generic)
_PLAIN_KEYS = _NUMBERS | ids_of(bytes, type(None))


def _is_asked(value: Any) -> bool:
    """Whether `jax.jit` asks a leaf for its value by code that people may have written: of a class of theirs that is
    derived from a number's or from NumPy's."""
    kind = type(value)
    return issubclass(kind, _HOST) and id(kind) not in _NUMBERS and not is_of(kind, ("numpy",))


def _keys(tree: PyTreeDef) -> Iterator[Any]:
    """Those of the dictionaries in a tree that JAX itself takes apart."""
    for kind, data in nodes(tree):
        if is_among(kind, (dict, collections.OrderedDict, collections.defaultdict)):
            yield from data[1] if kind is collections.defaultdict else data


def _is_plain_key(key: Any) -> bool:
    """Whether a key is compared and hashed by code of Python's own: JAX sorts and looks up keys."""
    kind = type(key)
    if kind is str:
        return True
    if issubclass(kind, str):
        # Of two that are compared, the one whose class is derived from the other's is asked first: `>` for `<`.
        return shares(kind, str, "__hash__", "__eq__", "__ne__", "__lt__", "__gt__")
    return id(kind) in _PLAIN_KEYS or (kind is tuple and all(_is_plain_key(each) for each in key))


def _static(program: Program) -> Iterator[Any]:
    """Objects that a program holds and that may be in the arguments, too, so that these do not die with them."""
    for leaf in program.leaves:
        if leaf.is_static:
            yield leaf.value
        elif leaf.aval is not None and is_key_type(leaf.aval):
            yield leaf.aval.dtype
            yield implementation_of(leaf.aval.dtype)
    if program.in_tree is not None:
        yield from (data for _, data in nodes(program.in_tree))
