"""Function + arguments -> Program: trace the function once, as `jax.jit` traces it.

`jax.jit` itself does the tracing, of a function that takes the caller's own pytrees, so that weak types, 64-bit
mode, the argument names in error messages and everything else about tracing are JAX's. Two kinds of leaf are taken
out of the arguments first and put back inside: static leaves, and further occurrences of one array object, for
which the function sees one tracer. What the function returns is split in the same way: its arrays are outputs of
the jaxpr, and anything else is remembered as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import (
    PyTreeDef,
    register_pytree_with_keys,
    tree_flatten,
    tree_leaves,
    tree_structure,
    tree_unflatten,
)

from pytc.arguments import shardings
from pytc.arguments.leaves import (
    LeafKind,
    Parameters,
    PythonScalars,
    key_paths,
    kind_of,
    static_key,
    unhashable,
    unwrapped,
)
from pytc.arguments.parted import Again, Hidden, part, put_together
from pytc.arguments.static_objects import check_not_of_static
from pytc.attributes import name_of, qualname_of, resemble
from pytc.classes import defines
from pytc.errors import LeftToJit, StaticLeafError
from pytc.interrupt import is_from_outside
from pytc.jax_compat import api, rewriting
from pytc.jax_compat.avals import DESCRIPTIONS, is_for_jit, is_view_of_ref, stand_in
from pytc.jax_compat.effects import namesake
from pytc.jax_compat.jaxprs import ClosedJaxpr
from pytc.jax_compat.origins import home
from pytc.jax_compat.running import Tracer
from pytc.jax_compat.trees import nodes
from pytc.move import unmoved
from pytc.program import Computed, Input, Kept, Leaf, Output, Program
from pytc.static_outputs import is_used_up, why_not
from pytc.unheld import Unheld, told_by_identity


@dataclasses.dataclass(frozen=True, eq=False)
class Returned:
    """What a traced function returned. Its children are the arrays; unflattened, it is the caller's result."""

    arrays: Sequence[Any]
    origins: tuple[Computed | Kept, ...]
    tree: PyTreeDef
    paths: tuple[str, ...]
    """Where each leaf stands in the result."""

    def result(self, arrays: Sequence[Any]) -> Any:
        """The caller's result with these arrays."""
        leaves = [arrays[o.index] if isinstance(o, Computed) else o.value for o in self.origins]
        return tree_unflatten(self.tree, leaves)


@dataclasses.dataclass(frozen=True)
class _Path:
    """A key of a pytree: where an array stands in the caller's result, for JAX's messages."""

    path: str

    def __str__(self) -> str:
        return self.path


def _flatten(node: Returned) -> tuple[Sequence[Any], Returned]:
    return node.arrays, dataclasses.replace(node, arrays=())  # JAX remembers trees; they must not hold the tracers


def _flatten_with_paths(node: Returned) -> tuple[list[tuple[_Path, Any]], Returned]:
    places = {o.index: path for o, path in zip(node.origins, node.paths, strict=True) if isinstance(o, Computed)}
    arrays, tree = _flatten(node)
    return [(_Path(places[i]), array) for i, array in enumerate(arrays)], tree


register_pytree_with_keys(Returned, _flatten_with_paths, lambda node, arrays: node.result([*arrays]), _flatten)


_traced: weakref.WeakKeyDictionary[Any, dict[PythonScalars, Callable[..., Returned]]] = weakref.WeakKeyDictionary()
"""`Stageable.traced` of each function: nothing in it depends on other options."""


@dataclasses.dataclass(frozen=True)
class Stageable:
    """A function with the options that say how its arguments and its result are read."""

    fun: Callable[..., Any]
    parameters: Parameters
    python_scalars: PythonScalars = "trace"
    in_shardings: Any = None
    out_shardings: Any = None

    @property
    def name(self) -> str:
        """What profiles and messages call the function."""
        return name_of(self.fun)

    @property
    def shardings(self) -> dict[str, Any]:
        """Those of the options that say where arrays are, or go."""
        asked = {"in_shardings": self.in_shardings, "out_shardings": self.out_shardings}
        return {name: wanted for name, wanted in asked.items() if wanted is not None}

    def kinds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[LeafKind, ...]:
        """How each leaf of the arguments (static ones wrapped) is treated. Depends on their tree and types alone."""
        return tuple(kind_of(leaf, self.python_scalars) for leaf in tree_leaves((args, kwargs)))

    def leaves(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, share: bool, parting: Sequence[Hashable] | None = None
    ) -> tuple[Leaf, ...]:
        """The leaves of these arguments, in flattening order.

        With `share`, a leaf that is the same array object as an earlier one says so (`Leaf.same_as`), unless
        `in_shardings` asks for the two in different places, or `parting`, which has something for each leaf, has
        different things for them (`Leaf.elsewhere`).

        Raises `StaticLeafError` naming a static leaf that cannot be hashed or is an array to other libraries alone,
        `ValueError` where `in_shardings` does not match the arguments, and whatever JAX raises for data that it has no
        type for, with the leaf's path.
        """
        args, kwargs = self.parameters.wrap_static(args, kwargs)
        named = self.parameters.paths(args, kwargs)
        requested = shardings.for_arguments(self.in_shardings, args, kwargs)
        kinds = self.kinds(args, kwargs)
        first: dict[tuple[int, Any, Hashable], int] = {}
        seen: set[int] = set()
        leaves = []
        for i, (parameter, path, value) in enumerate(named):
            abstract = isinstance(value, DESCRIPTIONS)
            if not abstract and kinds[i] == "static":
                _check_static(path, value)
                leaves.append(Leaf(path, parameter, None, value=value))
                continue
            if _is_of_no_numbers(value):
                raise unhashable(path, value)
            array = isinstance(value, jax.Array) and not isinstance(value, Tracer)
            shares = share and array
            part = None if parting is None else parting[i]
            same_as = first.setdefault((id(value), requested[i], part), i) if shares else i
            elsewhere = shares and same_as == i and id(value) in seen
            seen.add(id(value))
            leaves.append(
                Leaf(
                    path,
                    parameter,
                    value if abstract else _type_of(path, value),
                    array=array or abstract,
                    sharding=_committed_sharding(value) if array or abstract else None,
                    requested=requested[i],
                    same_as=None if same_as == i else same_as,
                    elsewhere=elsewhere,
                )
            )
        return tuple(leaves)

    def hide(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Leaf], given: Sequence[Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that `jax.jit` is to trace: without static leaves and repeated arrays, for which the tree has
        nodes that `put_together` undoes. `given`, if there is any, is traced in place of the leaves."""
        if given is None and all(leaf.aval is not None and leaf.same_as is None for leaf in leaves):
            return args, kwargs
        args, kwargs = self.parameters.wrap_static(args, kwargs)
        values = tree_leaves((args, kwargs))
        left_out = [
            _hidden(value) if leaf.is_static else None if leaf.same_as is None else Again(leaf.same_as)
            for leaf, value in zip(leaves, values, strict=True)
        ]
        return part(args, kwargs, values if given is None else given, left_out, every=given is not None)

    @functools.cached_property
    def traced(self) -> Callable[..., Returned]:
        """`traceable()`, the same function object for all wrappers of `fun`, so that JAX traces it once: for calls and
        transformations, and where `fun` is wrapped anew."""
        if not told_by_identity(self.fun):
            return dataclasses.replace(self).traceable()  # of a copy: remembered in `self`, it must not hold `self`
        unheld = Stageable(Unheld(self.fun), self.parameters, self.python_scalars)
        return _traced.setdefault(self.fun, {}).setdefault(self.python_scalars, unheld.traceable())

    @functools.cached_property
    def traced_arrays(self) -> Callable[..., Sequence[Any]]:
        """As `traced`, but it returns the arrays of the result alone."""
        traced = self.traced

        def arrays(*args: Any, **kwargs: Any) -> Sequence[Any]:
            return list(traced(*args, **kwargs).arrays)

        resemble(arrays, self.fun, updated=())
        return arrays

    @functools.cached_property
    def jitted(self) -> Any:
        """`jax.jit` of `traced`, for what `hide` gives."""
        return api.jit(self.traced)

    def traceable(self, returned: Callable[[Returned, Any], None] | None = None) -> Callable[..., Returned]:
        """`fun` as `jax.jit` is to trace it: takes what `hide` gives, returns a `Returned`.

        Each time it is traced, `returned` is called with the `Returned` and with the result that `fun` gave.
        """

        def traced(*args: Any, **kwargs: Any) -> Returned:
            args, kwargs = put_together(args, kwargs)
            result = self.fun(*args, **kwargs)
            split = self.split(result)
            if returned is not None:
                returned(split, result)
            return split

        # The name and the signature are what JAX's error messages and profiles speak of. Not the attributes: those of a
        # compiled function would shadow `jax.jit`'s own.
        resemble(traced, self.fun, updated=())
        return traced

    def split(self, result: Any) -> Returned:
        """The arrays of a result, and what to put around them.

        Raises `TypeError` naming a leaf that is no array and cannot be returned at every call (`pytc.static_outputs`),
        or a NumPy array that JAX has no type for.
        """
        leaves, tree = tree_flatten(result)
        # Of the result itself: a copy of it made of placeholders might be refused by a user's own pytree class.
        paths = tuple(key_paths(result, len(leaves)))
        arrays: list[Any] = []
        origins: list[Computed | Kept] = []
        for path, leaf in zip(paths, leaves, strict=True):
            if kind_of(leaf, self.python_scalars) == "static":
                if (wrong := why_not(leaf)) is not None:
                    raise TypeError(f"{self.name} cannot return `result{path}`: it {wrong}")
                origins.append(Kept(leaf))
            elif _is_of_no_numbers(leaf):
                raise TypeError(
                    f"{self.name} cannot return `result{path}`: JAX has no type for a NumPy array of {leaf.dtype}. "
                    "Encode it as numbers, or return a tuple in its place"
                )
            else:
                origins.append(Computed(len(arrays)))
                arrays.append(leaf)
        return Returned(arrays, tuple(origins), tree, paths)

    def stage(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        share: bool,
        parting: Sequence[Hashable] | None = None,
        place: Callable[[Leaf], Leaf] | None = None,
    ) -> Program:
        """Trace the function, once. With `share`, an array object at several leaves becomes one input, and the
        function sees one tracer at all of them that do not part (`leaves`). Captured arrays are consts of the jaxpr.

        `place` puts leaves elsewhere than their arrays are: the function is traced for arrays of their types there.
        """
        leaves = self.leaves(args, kwargs, share=share, parting=parting)
        given = None
        if place is not None:
            leaves = tuple(place(leaf) for leaf in leaves)
            given = [None if leaf.is_static else stand_in(leaf.aval, leaf.sharding) for leaf in leaves]
        hidden_args, hidden_kwargs = self.hide(args, kwargs, leaves, given)
        traced = self.jitted.trace(*hidden_args, **hidden_kwargs)
        self.check_traced(traced.jaxpr, sum(not leaf.is_static and leaf.same_as is None for leaf in leaves))
        self.refuse_stale(leaves, self.jitted, traced)
        if any(isinstance(value, jax.Array) for value in traced.jaxpr.consts):
            self.jitted.clear_cache()  # or JAX would hold these arrays for as long as it remembers the trace
        _, split = next(nodes(traced.out_tree))
        requested = shardings.for_result(self.out_shardings, split.tree)
        staged = self.program(traced.jaxpr, leaves, split, requested)
        in_tree = tree_structure(self.parameters.wrap_static(args, kwargs))
        return dataclasses.replace(staged, in_tree=in_tree)

    def check_traced(self, jaxpr: ClosedJaxpr, count: int) -> None:
        """Raises `LeftToJit` where what was traced has more inputs than the `count` that it was given: the function has
        read what `jax.jit` makes a further input of the trace; or where it has a primitive that the passes would take
        for one of JAX's, or values that are no arrays of the program's."""
        if len(jaxpr.jaxpr.invars) > count:
            raise LeftToJit(
                f"{self.name} has captured what can be no constant of a program: a tracer that escaped from another "
                "function (jax.checking_leaks() tells where), or an object that has a state in the trace"
            )
        if any(is_for_jit(each) for each in (*jaxpr.in_avals, *jaxpr.out_avals)):
            raise LeftToJit(f"{self.name} takes or returns a token, or a value of a type of jax.experimental.hijax")
        refuse_namesakes(jaxpr, self.name)

    @staticmethod
    def refuse_stale(leaves: Sequence[Leaf], jitted: Any, traced: jax.stages.Traced) -> None:
        """Raises `StaticLeafError` where what was `traced` of the function by `jitted` has an array of a static object
        for a constant. It is forgotten then: once the object has another array, it would pass."""
        try:
            check_not_of_static(leaves, rewriting.lift_inner_consts(traced.jaxpr).consts)
        except StaticLeafError:
            jitted.clear_cache()
            raise

    def program(self, jaxpr: ClosedJaxpr, leaves: Sequence[Leaf], split: Returned, requested: Sequence[Any]) -> Program:
        """The program of what was traced: its leaves with the types that they have there."""
        inputs = [i for i, leaf in enumerate(leaves) if not leaf.is_static and leaf.same_as is None]
        avals = dict(zip(inputs, (v.aval for v in jaxpr.jaxpr.invars), strict=True))
        return Program(
            name=self.name,
            jaxpr=jaxpr,
            leaves=tuple(
                leaf
                if leaf.is_static or leaf.aval == (aval := avals[i if leaf.same_as is None else leaf.same_as])
                else dataclasses.replace(leaf, aval=aval)
                for i, leaf in enumerate(leaves)
            ),
            inputs=tuple(Input(i) for i in inputs),
            outputs=tuple(Output(*each) for each in zip(split.paths, split.origins, requested, strict=True)),
            out_tree=split.tree,
            qualname=qualname_of(self.fun),
        )


def refuse_namesakes(jaxpr: ClosedJaxpr, of: str) -> None:
    """Raises `LeftToJit` where a user's primitive has the name of one of JAX's, by which passes know these."""
    if (primitive := namesake(jaxpr)) is not None:
        raise LeftToJit(
            f"{of} has an operation of {home(primitive)} whose primitive is called `{primitive.name}`, and would be "
            "taken for one of JAX's, which is called so: give it another name"
        )


def stage(fun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Program:
    """The `Program` of a function for arguments of these shapes, dtypes and static values, before any pass.

    `fun` runs once, on tracers. In place of arrays the arguments may have `jax.ShapeDtypeStruct`s, or what
    `jax.typeof` gives. The options of a function made by `pytc.compile` (static arguments, shardings, ...) are kept.

    Raises `StaticLeafError` naming a static leaf that cannot be hashed, that is an iterator, that only other libraries
    take for an array, or in which the function reads an array; `ValueError` where `in_shardings` or `out_shardings` do
    not match the arguments or the result, `RuntimeError` where they are a `PartitionSpec` and no mesh is set;
    `TypeError` naming an output that cannot be returned (an iterator, an object that holds a tracer and is not a
    pytree), where `fun` is not a function, reads a tracer of another function, or has a primitive with the name of one
    of JAX's; and whatever `fun` or JAX's tracing raises.
    """
    if not callable(fun):
        raise TypeError(f"pytc.stage takes a function, not {fun!r}")
    compiled = getattr(fun, "__pytc__", None)
    args, kwargs = unmoved(with_its_object(fun, args), kwargs)
    return stageable_of(fun).stage(args, kwargs, share=compiled is None or compiled.share)


def stageable_of(fun: Callable[..., Any]) -> Stageable:
    """A function ready to be staged: with the options of `pytc.compile`, where that made it."""
    compiled = getattr(fun, "__pytc__", None)
    return Stageable(fun, Parameters(fun)) if compiled is None else compiled.stageable


def with_its_object(fun: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The positional arguments that the function which `pytc.compile` made gets as `fun(*args)` is called: of a bound
    method, its object first."""
    return (fun.__self__, *args) if inspect.ismethod(fun) and hasattr(fun, "__pytc__") else args


_DATA = ("__jax_array__", "__array__", "__dlpack__")
"""Methods by which an object is asked for the numbers in it."""


def _is_of_no_numbers(value: Any) -> bool:
    """Whether it is a NumPy array of strings, objects, times or records, which JAX has no types for."""
    if not isinstance(value, np.ndarray | np.generic):
        return False
    return value.dtype.kind in "OSUmM" or (issubclass(value.dtype.type, np.void) and value.dtype != jax.dtypes.float0)


def _type_of(path: str, value: Any) -> Any:
    """The type of a traced leaf. Where JAX has none for the value, its error is raised with the leaf's path."""
    try:
        return jax.typeof(value.ref if is_view_of_ref(value) else value)
    except (OverflowError, TypeError, ValueError) as error:
        kind = next(each for each in (OverflowError, TypeError, ValueError) if isinstance(error, each))
        raise kind(f"`{path}`: {error}") from error


def _hidden(leaf: Any) -> Hidden:
    key = static_key(leaf)
    return Hidden(type(leaf), hash(key), key, unwrapped(leaf))


def _check_static(path: str, leaf: Any) -> None:
    """Raises `StaticLeafError` for a static leaf that cannot be part of the key of a program: one that cannot be
    hashed, that is used up when the function is traced, or that other libraries take for an array."""
    if is_used_up(leaf):
        raise StaticLeafError(
            f"`{path}` is of type {type(leaf).__name__}, which can be read only once: the function would read it when "
            "it is traced, and no later call would. Pass what it yields: an array, or a list of arrays."
        )
    protocol = next((name for name in _DATA if defines(type(leaf), name)), None)
    if protocol is not None and not isinstance(leaf, np.generic):  # a string, a date
        raise StaticLeafError(
            f"`{path}` is of type {type(leaf).__name__}, which has numbers in it (by `{protocol}`), but is no array to "
            "JAX, and would be static: a constant of the compiled program. Pass jax.numpy.asarray of it, or an array; "
            "or name the argument in static_argnames, if a constant is what it should be."
        )
    try:
        hash(leaf)
    except (TypeError, ValueError) as error:  # the latter: of a `memoryview` that can be written
        if is_from_outside(error):
            raise
        raise unhashable(path, leaf) from error


def _committed_sharding(value: Any) -> Any:
    if isinstance(value, DESCRIPTIONS):
        return value.sharding if isinstance(value, jax.ShapeDtypeStruct) else None
    return value.sharding if value.committed else None
