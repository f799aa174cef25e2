"""Whether the code that puts a result together may raise, or look at anything but what it is given.

When `tree_unflatten` runs, the arguments are gone: if it raised then, an exception handler, or an attribute, would be
left with a deleted array. A constructor that checks values does that (a `__post_init__` that raises at NaN). And what
it reads elsewhere may be an array that is gone.

Which code runs is observed: the tree is unflattened once while JAX traces, with tracers in place of arrays. The next
time it will do the same, whatever the values are, if

- it did not raise now, as what asks a tracer for its value does (`float(x)`, `if x > 0`), and computed nothing, for
  which there may be no memory the next time;
- the bytecode of each function shows that it only builds (`building`);
- it calls no functions written in C but a few that build and assign.

What a few packages do themselves, among them JAX, is taken to be of that kind (`BUILDERS`); what they call is not.
"""

from __future__ import annotations

import collections
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence, Set
from types import CodeType, FrameType, NoneType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from pytc.calls.building import BUILDERS, CONTAINERS, FUNCTIONS, METHODS, Record, is_of_python, only_builds
from pytc.classes import defined, is_among
from pytc.interrupt import is_from_handler
from pytc.jax_compat.trees import is_plain_tree, nodes
from pytc.program import Computed, Kept, Passed, Program
from pytc.provenance import package_of
from pytc.uncollected import uncollected

_JAXS_OWN = (dict, collections.OrderedDict, collections.defaultdict)
"""Nodes whose data are keys."""
_STANDARD = (f"{pathlib.Path(os.__file__).parent}{os.sep}", "<frozen ")
"""Where the standard library's code comes from."""
_CHANGING = (list, dict, set, bytearray, collections.deque, np.ndarray, jax.Array, Iterator)


class Unflattening(NamedTuple):
    """What has been seen of the code that puts a result together."""

    doubt: str = ""
    """The function that is not certain to do nothing but build, in words; empty if all are."""
    depth: int = 0
    """How many frames deep it is."""


def observed(program: Program) -> Unflattening:
    """What is seen of the code that puts the result of a program together."""
    return of_tree(program.out_tree, [_standing_for(program, output.origin) for output in program.outputs])


def _standing_for(program: Program, origin: Computed | Passed | Kept) -> Any:
    """What stands for a leaf of the result before it is there."""
    match origin:
        case Kept(value):
            return value
        case Passed(leaf):
            aval: Any = program.leaves[leaf].aval
        case Computed(index):
            aval = program.out_avals[index]
    return ArrayOf(aval.shape, aval.dtype, aval.weak_type) if hasattr(aval, "shape") else object()


class ArrayOf(NamedTuple):
    """An array that is not there yet."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False


def of_tree(tree: PyTreeDef, leaves: Sequence[Any]) -> Unflattening:
    """What is seen of the code that unflattens a tree with these leaves, of which an `ArrayOf` stands for an array."""
    if is_plain_tree(tree):
        return Unflattening()
    if sys.getprofile() is not None:
        return Unflattening("a function that is not known, since a profiler was on when the function was compiled,")
    if not all(_is_fixed(data) for kind, data in nodes(tree) if not is_among(kind, _JAXS_OWN)):
        return Unflattening("a constructor that is given what others may change")
    seen = _Seen()
    arrays = {k: leaf for k, leaf in enumerate(leaves) if type(leaf) is ArrayOf}

    def unflatten(*tracers: Any) -> None:
        standing = dict(zip(arrays, tracers, strict=True))
        given = [standing.get(k, leaf) for k, leaf in enumerate(leaves)]
        seen.begin(sys._getframe(), tree)
        sys.setprofile(seen)
        try:
            tree.unflatten(given)
        finally:
            saw_all = sys.getprofile() is seen
            sys.setprofile(None)
            seen.end(tree, saw_all)

    def compute() -> Any:
        types_of_arrays: list[Any] = [
            jax.ShapeDtypeStruct(each.shape, each.dtype, weak_type=each.weak_type)  # type: ignore[no-untyped-call]
            for each in arrays.values()
        ]
        return jax.make_jaxpr(unflatten)(*types_of_arrays)

    try:
        computed = uncollected(compute)
    except Exception as error:  # users' code, which may raise anything
        if is_from_handler(error):
            raise
        return Unflattening(seen.last, seen.depth)
    computes = computed.jaxpr.eqns or computed.consts
    return Unflattening(seen.odd or (seen.first if computes else ""), seen.depth)


class _Seen:
    """A profile function that looks at what code runs, except that of `BUILDERS`."""

    record: Record
    bottom: CodeType
    kinds: Set[int]

    def __init__(self) -> None:
        self.odd = ""
        """A function that may do anything, in words; empty if there is none."""
        self.first = self.last = "a constructor"
        """The functions that were called first and last, in words."""
        self.depth = 0
        """How many frames there were at once."""
        self.built = 0
        """How many nodes were built by functions written in Python."""

    def begin(self, frame: FrameType, tree: PyTreeDef) -> None:
        """Look at what is called from a frame on."""
        self.record, self.bottom, self.kinds = Record(), frame.f_code, {id(kind) for kind, _ in nodes(tree)}

    def end(self, tree: PyTreeDef, saw_all: bool) -> None:
        """Note what can be told only now that the tree was put together. `saw_all` says that nothing has switched this
        off meanwhile."""
        custom = sum(not _is_of_jax(kind) for kind, _ in nodes(tree))
        if not self.odd and (self.built < custom or self.record.hides_methods() or not saw_all):
            self.odd = self.first

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        try:
            if event in ("call", "c_call"):
                self._look(frame, event, arg)
        except BaseException:  # it ends the profiling, and who called may not pass it on
            self.odd = self.odd or self.last
            raise

    def _look(self, frame: FrameType, event: str, arg: Any) -> None:
        above = frame.f_back
        if event == "call" and above is not None and above.f_code is self.bottom:
            self.built += _builds(frame, self.kinds)
        self.depth = max(self.depth, _distance(frame))
        if self.odd:
            return
        user = _of_users(frame)
        package = package_of(user.f_globals)
        if package in BUILDERS and (user is frame or package != "pytc"):
            return
        self.last = f"`{user.f_code.co_qualname}`"
        if self.first == "a constructor":
            self.first = self.last
        if event == "c_call":
            if not _is_certain(arg):
                self.odd = f"`{arg.__qualname__}`, which {self.last} calls,"
        elif not only_builds(frame, self.record):
            self.odd = self.last


def _is_of_jax(kind: type) -> bool:
    """Whether JAX puts nodes of a kind together with no Python code."""
    return is_among(kind, (tuple, list, NoneType, *_JAXS_OWN))


def _builds(frame: FrameType, kinds: Set[int]) -> bool:
    """Whether a function that JAX calls builds a node: it is given the node's children, its class (the ids of all are
    `kinds`) or an object of that. Not the `__init__` of one that a `__new__` written in Python has made before."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    given = [frame.f_locals.get(name) for name in names]
    if frame.f_code.co_name == "__init__" and given and is_of_python(defined(type(given[0]), "__new__")):
        return False
    return any(id(each) in kinds or id(type(each)) in kinds or type(each) is tuple for each in given)


def _distance(frame: FrameType) -> int:
    """How many frames there are from one of pytc's on."""
    distance, above = 0, frame
    while package_of(above.f_globals) != "pytc" and above.f_back is not None:
        distance, above = distance + 1, above.f_back
    return distance


def _of_users(frame: FrameType) -> FrameType:
    """The innermost frame on the way here that is not the standard library's: what that does for a builder is the
    builder's."""
    above: FrameType | None = frame
    while above is not None and _is_standard(above.f_code.co_filename):
        above = above.f_back
    return above or frame


def _is_standard(file: str) -> bool:
    """Whether code of this file is the standard library's. (Where there is no virtual environment, what is installed
    lies beneath it.)"""
    return file.startswith(_STANDARD) and not any(part in file for part in ("site-packages", "dist-packages"))


def _is_certain(function: Any) -> bool:
    """Whether a function written in C is one of those known to build and assign."""
    owner = getattr(function, "__self__", None)
    return is_among(function, FUNCTIONS) or (is_among(type(owner), CONTAINERS) and function.__name__ in METHODS)


def _is_fixed(value: Any) -> bool:
    """Whether what the interpreter's own functions find in a value stays as it is. (Where a dictionary or a list has
    something in it, and nothing that does not stay, it is taken for one that was made for its node.)"""
    if isinstance(value, tuple | frozenset):
        return all(_is_fixed(each) for each in value)
    if type(value) is list or type(value) is dict:
        return bool(value) and _is_fixed(tuple(value.items() if type(value) is dict else value))
    return not isinstance(value, _CHANGING)
