"""Program -> callable, through `jax.jit` on a function of the arguments as they are.

`jax.jit` takes trees of tuples, lists and dicts apart in C++, and puts its results together there. So where a program
takes over all leaves of some arguments and none of the others, and JAX by itself pairs what the program pairs, it is
given the arguments whole and returns the result whole: a call then costs little more than a call of
`jax.jit(donate_argnums=...)`. Only the containers that PRNG keys are in are made anew, with bits in their places; and
where the program wants its results in another order, and the result is a tuple, that tuple is. Arguments that are
static are left out: the program is for their values.

A named tuple is made by Python code, its class's `__new__`. There the interpreter looks for signals: in a result of
`jax.jit`, when the arguments are gone and the results have not landed. So where there is one in the result, the program
returns a list of its leaves, and the result is put together once that has landed.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import keyword
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, cast

from jax.tree_util import PyTreeDef, tree_flatten, tree_leaves, tree_structure

from pytc.classes import is_among
from pytc.emit.jit import Emitted, Retrace
from pytc.emit.order import order_of
from pytc.jax_compat import api
from pytc.jax_compat.keys import are_of, bits_of
from pytc.jax_compat.trees import container, is_plain_tree, nodes
from pytc.picking import picker
from pytc.program import Computed, Program


class EmittedWhole(Emitted):
    """A program that takes the arguments, and returns the result, as the function does."""

    tree: PyTreeDef
    """Of `(args, kwargs)`, without the static ones."""
    static: frozenset[int | str]
    """The arguments that are static: positions and names."""
    taken: tuple[tuple[int, ...], tuple[str, ...]]
    """Positions and names of the arguments that a call takes over."""

    def __init__(
        self,
        program: Program,
        options: Mapping[str, Any],
        tree: PyTreeDef,
        static: frozenset[int | str],
        taken: tuple[tuple[int, ...], tuple[str, ...]],
        parts: Sequence[int] | None,
    ) -> None:
        """`parts` are those of the result, a tuple, in the order in which they are returned; none if it is returned as
        it is. They are None if the program returns a list of the leaves."""
        self.tree, self.static, self.taken = tree, static, taken
        self._in_a_list = parts is None
        super().__init__(program, options)
        args, kwargs = tree.unflatten(range(tree.num_leaves))
        count = len(args) + sum(isinstance(key, int) for key in static)
        self._pick_args = picker([k for k in range(count) if k not in static])
        self._names = [*kwargs]
        self._pick_parts = operator.itemgetter(*parts) if parts else None
        self._put_back = operator.itemgetter(*_places(parts)) if parts else None
        result = program.out_tree.unflatten(_places(self.results.order))
        ways = {place: way for way, place in _ways(self._pick_parts(result) if self._pick_parts else result)}
        self._ways = [ways[k] for k in self.results.marks]
        self._to_keys = _changes((ways[k], key_type) for k, key_type in self.results.keys.items())
        places = {place: way for way, place in _ways(tree.unflatten(range(tree.num_leaves)))}
        bits = {k: functools.partial(_bits_of, self.arguments.leaves[k].aval) for k in self.arguments.keys}
        self._to_bits = _changes((places[k], make) for k, make in bits.items())
        self._room += max((len(ways[k]) for k in self.results.keys), default=0)

    def _jit(self, options: Mapping[str, Any], donated: Sequence[int]) -> Any:
        this: Any = weakref.proxy(self)  # as of any program

        def whole(*args: Any, **kwargs: Any) -> Any:
            values, tree = tree_flatten((args, kwargs))
            if tree != this.tree:
                raise Retrace
            results = this._flat(values)
            if this._in_a_list:
                return results
            result = this.program.out_tree.unflatten(results[k] for k in _places(this.results.order))
            return this._pick_parts(result) if this._pick_parts else result

        whole.__name__ = self.program.name
        whole.__qualname__ = self.program.qualname or self.program.name
        if (signature := self._signature()) is not None:
            whole.__signature__ = signature  # type: ignore[attr-defined]
        numbers, names = self.taken
        return api.jit(whole, donate_argnums=numbers, donate_argnames=names, **options)

    def _signature(self) -> inspect.Signature | None:
        """What the arguments are called in JAX's messages and in what the compiler is given: as in the function; None
        where some have no name of their own."""
        args, kwargs = self.tree.unflatten(range(self.tree.num_leaves))
        leaves = self.arguments.leaves
        names = [leaves[mine[0]].parameter if (mine := tree_leaves(arg)) else f"_{k}" for k, arg in enumerate(args)]
        own = [name for name in names if not name.endswith("]")]
        starred = {name.partition("[")[0] for name in names[len(own) :]}  # `args` of `args[0]`
        if names[len(own) :] != [f"{name}[{k}]" for name in starred for k in range(len(names) - len(own))]:
            return None
        kinds = (
            (inspect.Parameter.POSITIONAL_ONLY, own),
            (inspect.Parameter.VAR_POSITIONAL, starred),
            (inspect.Parameter.KEYWORD_ONLY, kwargs),
        )
        every = [name for _, these in kinds for name in these]
        if len({*every}) < len(every) or any(keyword.iskeyword(name) or not name.isidentifier() for name in every):
            return None
        return inspect.Signature([inspect.Parameter(name, kind) for kind, these in kinds for name in these])

    def call_whole(self, args: tuple[Any, ...], kwargs: dict[str, Any], landed: list[Any]) -> None:
        """As `call`, with the arguments themselves; not for the first call. Static ones must be those that the program
        is for."""
        if self.static:
            args, kwargs = self.without_static(args, kwargs)
        if self._to_bits:
            args, kwargs = _changed((args, kwargs), self._to_bits)
        self._call(args, kwargs, landed)

    def without_static(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that are passed to `jax.jit`."""
        return cast("tuple[Any, ...]", self._pick_args(args)), {name: kwargs[name] for name in self._names}

    def _given(self, leaves: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        args, kwargs = self.tree.unflatten(super()._given(leaves)[0])
        return args, kwargs

    def result(self, results: Any, handed_back: Sequence[Any]) -> Any:
        """What the function returns: what `call` appended, with keys in the places of their bits."""
        if self._in_a_list:
            return super().result(results, handed_back)
        if self._to_keys:
            results = _changed(results, self._to_keys)
        return self._put_back(results) if self._put_back else results

    def arrays(self, results: Any) -> Sequence[Any]:
        """As of any program."""
        return super().arrays(results) if self._in_a_list else tree_leaves(results)

    def marked(self, results: Any) -> Sequence[Any]:
        """As of any program."""
        if self._in_a_list:
            return super().marked(results)
        return [functools.reduce(operator.getitem, way, results) for way in self._ways]


def emit_whole(program: Program, **options: Any) -> EmittedWhole | None:
    """Compile the program for calls with whole arguments; None where it is not one for that."""
    leaves, passed = program.leaves, program.passed
    if program.in_tree is None or [*passed] != sorted(passed):
        return None
    if not (is_plain_tree(program.in_tree) and is_plain_tree(program.out_tree)):
        return None
    tree, static = _without(program.in_tree, frozenset(k for k, leaf in enumerate(leaves) if leaf.is_static))
    if tree.num_leaves > len(passed):  # some leaves are static, or an array is at two of them
        return None
    if any(leaf.requested is not None for leaf in leaves) or any(given.leaf is None for given in program.inputs):
        return None
    if [output.origin for output in program.outputs] != [Computed(k) for k in range(len(program.out_avals))]:
        return None
    if any(output.requested is not None for output in program.outputs):
        return None
    parts = None
    if in_one_go := _is_made_in_one_go(program.out_tree):
        aliased = sorted(program.aliases, key=lambda alias: program.inputs[alias.input].leaf or 0)
        parts = _parts(program, order_of(program, aliased))
    donated = frozenset(program.donated)
    taken = _taken(tree, frozenset([k for k, leaf in enumerate(passed) if leaf in donated]))
    if taken is None or (in_one_go and parts is None):
        return None
    return EmittedWhole(program, options, tree, static, taken, parts)


def _is_made_in_one_go(tree: PyTreeDef) -> bool:
    """Whether JAX puts a plain tree together with no Python code: not named tuples."""
    return all(is_among(kind, (tuple, list, dict, NoneType)) for kind, _ in nodes(tree))


def _without(tree: PyTreeDef, leaves: frozenset[int]) -> tuple[PyTreeDef, frozenset[int | str]]:
    """A tree of `(args, kwargs)` without those arguments that are one of these leaves, and which arguments these
    are."""
    args, kwargs = tree.unflatten(range(tree.num_leaves))
    gone = {key for key, arg in (*enumerate(args), *kwargs.items()) if isinstance(arg, int) and arg in leaves}
    rest = [arg for k, arg in enumerate(args) if k not in gone], {k: arg for k, arg in kwargs.items() if k not in gone}
    return tree_structure((tuple(rest[0]), rest[1])), frozenset(gone)


def _parts(program: Program, order: Sequence[int]) -> tuple[int, ...] | None:
    """In which order to return the parts of the result, a tuple, so that its leaves come in `order`: () if they do
    already, None if there is no such order or the result is not a tuple."""
    if [*order] == sorted(order):
        return ()
    result = container(program.out_tree)
    if result is None or result.kind is not tuple:
        return None
    ends = [*itertools.accumulate((child.num_leaves for child in result.children), initial=0)]
    parts = [range(start, end) for start, end in itertools.pairwise(ends)]
    places = _places(order)
    # Those without leaves may stand anywhere.
    returned = sorted(range(len(parts)), key=lambda k: places[parts[k][0]] if parts[k] else len(places))
    return tuple(returned) if [leaf for k in returned for leaf in parts[k]] == [*order] else None


def _places(order: Sequence[int]) -> list[int]:
    """Where each number from 0 on stands in an order of these numbers."""
    return sorted(range(len(order)), key=order.__getitem__)


def _taken(tree: PyTreeDef, donated: frozenset[int]) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """The arguments, by position and by name, that are `donated` as a whole; None where one is in part."""
    args, kwargs = tree.unflatten(range(tree.num_leaves))
    keys: list[list[Any]] = [[], []]
    for which, arguments in enumerate((enumerate(args), kwargs.items())):
        for key, argument in arguments:
            own = donated.intersection(mine := tree_leaves(argument))
            if own and len(own) < len(mine):
                return None
            if own:
                keys[which].append(key)
    return tuple(keys[0]), tuple(keys[1])


def _changes(ways: Iterable[tuple[tuple[Any, ...], Callable[[Any], Any]]]) -> Any:
    """What `_changed` is to do: at the end of each way, make something else of what is there. By the first key of the
    ways, what is to be done there; a function at the end of one; {} if there are no ways."""
    changes: Any = {}
    for way, make in ways:
        if not way:
            return make
        inner = changes
        for key in way[:-1]:
            inner = inner.setdefault(key, {})
        inner[way[-1]] = make
    return changes


def _changed(tree: Any, changes: Any) -> Any:
    """A copy of a plain tree with these `_changes`. The tree itself stays as it is: after an interrupt this is done
    again."""
    if callable(changes):
        return changes(tree)
    parts = [*tree] if isinstance(tree, tuple) else tree.copy()
    for key, change in changes.items():
        parts[key] = _changed(parts[key], change)
    if not isinstance(tree, tuple):
        return parts
    return tuple(parts) if type(tree) is tuple else type(tree)(*parts)


def _bits_of(aval: Any, keys: Any) -> Any:
    """The bits of keys of the type `aval`. Raises `Retrace` for anything else, and where that cannot be told without
    comparing implementations of keys by users' code, which must not run after the proof."""
    bits = bits_of(keys)
    if bits is keys or not are_of(keys, aval.dtype):
        raise Retrace
    return bits


def _ways(tree: Any) -> Iterator[tuple[tuple[Any, ...], int]]:
    """For each leaf of a plain tree that has its leaves' numbers in their places, in no order: the keys that lead to
    it, and its number."""
    ahead: list[tuple[Any, tuple[Any, ...]]] = [(tree, ())]
    while ahead:
        each, way = ahead.pop()
        if isinstance(each, dict):
            ahead += [(value, (*way, key)) for key, value in each.items()]
        elif isinstance(each, tuple | list):
            ahead += [(value, (*way, place)) for place, value in enumerate(each)]
        elif each is not None:
            yield way, each
