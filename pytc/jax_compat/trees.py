"""The nodes of trees, and trees of nothing but what JAX takes apart itself.

For JAX 0.10 to 0.12: `PyTreeDef.__getstate__`, `node_data` and `children`.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax.tree_util import PyTreeDef

from pytc.classes import defined, defines, is_among, shares


def is_plain_tree(tree: PyTreeDef) -> bool:
    """Whether a tree consists of what JAX itself takes apart, item by item: tuples, lists, dicts, None and named tuples
    that are not registered as anything else, and whose classes have no say in that. False where JAX does not tell."""
    return (
        bool(_PLAIN_NODES)
        and set(_kinds_of_nodes(tree)) <= _PLAIN_NODES
        and all(is_plain_class(kind) for kind in classes_in(tree))
    )


def classes_in(tree: PyTreeDef) -> tuple[type, ...]:
    """The classes of the containers in a tree that people have written, each once."""
    kinds = {id(kind): kind for kind, _ in nodes(tree)}.values()  # some classes cannot be hashed
    return tuple(kind for kind in kinds if not is_among(kind, (*_CONTAINERS, types.NoneType)))


def is_named_tuple(tree: PyTreeDef) -> bool:
    """Whether the outermost node is a named tuple that JAX itself makes, of a class that has no say in that. False
    where JAX does not tell."""
    kind, _ = tree.node_data() or (type(None), None)
    return bool(_NAMED_NODES) and _kinds_of_nodes(tree)[-1:] == _NAMED_NODES and is_plain_class(kind)


def nodes(tree: PyTreeDef) -> Iterator[tuple[type, Any]]:
    """The class of each container in a tree, and what tells it apart from others of the class: the keys of a
    dictionary, what `tree_flatten` of a custom node returns beside the children. The outermost comes first."""
    ahead = [tree]
    while ahead:
        each = ahead.pop()
        node = each.node_data()
        if node is not None:  # as it is of a leaf
            yield node
            ahead += reversed(each.children())


class Container(NamedTuple):
    """The outermost node of a tree that is more than a leaf."""

    kind: type
    data: Any
    """What tells it apart from others of the class, as of `nodes`."""
    children: list[PyTreeDef]


def container(tree: PyTreeDef) -> Container | None:
    """The outermost node of a tree; None where that is a leaf."""
    node = tree.node_data()
    if node is None:
        return None
    kind, data = node
    return Container(kind, data, tree.children())


def keys_of(tree: PyTreeDef) -> list[str]:
    """What the children of a node are called in messages; of a custom one, they are numbered."""
    kind, told = tree.node_data()
    children = tree.children()
    if is_among(kind, (dict, collections.OrderedDict, collections.defaultdict)):
        names = told[1] if kind is collections.defaultdict else told  # its factory comes first
        return [f"[{name!r}]" for name in names]
    names = getattr(kind, "_fields", ())
    return [f".{name}" for name in names] if len(names) == len(children) else [f"[{k}]" for k in range(len(children))]


def paths_of(tree: PyTreeDef, path: str = "") -> Iterator[str]:
    """Where each leaf is in a tree of which nothing else is known."""
    if tree.node_data() is None:
        yield path
        return
    for key, child in zip(keys_of(tree), tree.children(), strict=True):
        yield from paths_of(child, path + key)


def is_plain_class(kind: type) -> bool:
    """Whether a container is made, iterated over and indexed as `tuple` does, and its fields are those of the class, if
    it is a named tuple. JAX asks for them as it takes one apart, after the proof; and around copies of the leaves one
    is made, which dies unseen."""
    if not issubclass(kind, tuple) or kind is tuple:
        return True
    if type(kind) is not type:
        return False
    if defines(kind, "__del__") or defines(kind, "__getattr__") or type(defined(kind, "_fields")) is not tuple:
        return False
    new = defined(kind, "__new__")
    made_by = new.__func__ if type(new) is staticmethod else None
    return type(made_by) is types.FunctionType and _makes_a_tuple(made_by) and shares(kind, _Named, *_OWN)


def _makes_a_tuple(function: types.FunctionType) -> bool:
    """Whether it is the `__new__` that `collections.namedtuple` makes for a class."""
    code = function.__code__
    own = _made_for(code.co_argcount - 1)
    alike = all(getattr(code, part) == getattr(own, part) for part in ("co_code", "co_names", "co_consts", "co_flags"))
    return alike and function.__globals__.get("_tuple_new") is tuple.__new__


@functools.cache
def _made_for(fields: int) -> types.CodeType:
    """The code of the `__new__` of named tuples with so many fields."""
    new: Any = collections.namedtuple("_Fields", [f"f{k}" for k in range(max(fields, 0))]).__new__
    code: types.CodeType = new.__code__
    return code


def _kinds_of_nodes(tree: PyTreeDef) -> list[int]:
    """JAX's numbers for the kinds of nodes in a tree, the outermost last: `PyTreeDef.__getstate__`, as of JAX 0.10 to
    0.12."""
    _, nodes = tree.__getstate__()
    return [node[0] for node in nodes]


class _Named(NamedTuple):
    leaf: int


_CONTAINERS = (tuple, list, dict)
_OWN = ("__getattribute__", "__getitem__", "__init__", "__iter__", "__len__")
"""What named tuples have from `tuple` and `object`. (`collections.namedtuple` makes a `__new__` for each of them.)"""


def _known_kinds(example: Any) -> list[int]:
    """The numbers for the kinds of nodes in the tree of the example; none where JAX does not tell."""
    try:
        return _kinds_of_nodes(jax.tree.structure(example))
    except (AttributeError, TypeError, ValueError, IndexError):
        return []


_PLAIN_NODES = set(_known_kinds([(_Named(0), None), {"": 0}]))
_NAMED_NODES = _known_kinds(_Named(0))[-1:]
