"""Program -> callable, through `jax.jit` on a flat function.

The flat function takes every traced leaf (an array at several leaves once), then the captured arrays, and returns the
computed outputs. Leaves that the program no longer reads are passed all the same: `jax.jit` looks only at their types,
and does not transfer them; so its own dispatch, in C++, is what notices that a call has another signature.

Which output goes into which donated input is JAX's to say: it takes the outputs in order, and gives each the first
donated input that is left of the same shape and dtype. So the outputs are ordered here such that exactly the
program's aliases come about: as they are, or from the last to the first, where that does it; else aliased outputs
first, in the order of their inputs, then the others as they are made. (Among inputs and outputs of one shape and dtype,
the k-th donated input then meets the k-th output, and no donated input is left over for a later one. Outputs of other
shapes and dtypes stay where they are.)

PRNG keys are passed and returned as their bits, and are keys only inside of the program. Bits are arrays like any
other, whose owners can be counted; and `jax.jit` would make keys of a result's bits by Python code of its own, with the
arguments gone already, where here that is done once the results have landed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import jax

from pytc import ownership
from pytc.context import Context
from pytc.interrupt import call_into, has_room, put_off
from pytc.jax_compat import api
from pytc.jax_compat.arrays import home_of, place_at
from pytc.jax_compat.avals import fits
from pytc.jax_compat.donated import first_come
from pytc.jax_compat.inlined import inlined
from pytc.jax_compat.jaxprs import Var
from pytc.jax_compat.keys import KeyType, bits_of, bits_sharding, key_types
from pytc.jax_compat.layouts import memory_of
from pytc.jax_compat.trees import classes_in, is_plain_class
from pytc.jax_compat.warned import unusable_donations_ignored
from pytc.ownership.cpython.facts import Holding
from pytc.picking import picker
from pytc.program import Alias, Computed, Kept, Leaf, Passed, Program
from pytc.uncollected import uncollected

_ROOM_FOR_KEYS = 12
"""More frames than it takes to make PRNG keys of their bits."""
_ROOM_FOR_TRANSFERS = 30
"""And more than it takes to put these onto other devices before."""
_SHALLOW = 4
"""Fewer frames than the proof has had before: for so many there is room."""


class Retrace(Exception):
    """This call is not for this program: `jax.jit` would trace it again, for another signature or in another context,
    or lower it for arguments in a kind of memory that it is not for. Raised before anything runs."""


class _Path(str):
    """The path of a leaf as the name of a parameter: JAX's messages call the argument by it."""

    def isidentifier(self) -> bool:
        """What `inspect.Parameter` asks. The parameter is positional-only, so its name need not be an identifier."""
        return True


class Emitted:
    """A program compiled for calls: `call` appends results to a list, and `result(results, hand_back(leaves))` is what
    the caller gets of them.

    The first call, or `lower`, traces and compiles. A call that JAX would trace again, or whose arguments are in
    other kinds of memory than the program is for, raises `Retrace` before anything ran.
    """

    def __init__(self, program: Program, options: Mapping[str, Any]) -> None:
        self.program = program
        passed = program.passed
        place = {leaf: i for i, leaf in enumerate(passed)}
        captured = [i for i, given in enumerate(program.inputs) if given.leaf is None]
        place_of_captured = {i: len(passed) + number for number, i in enumerate(captured)}
        place_of_input = [
            place_of_captured[i] if given.leaf is None else place[given.leaf] for i, given in enumerate(program.inputs)
        ]
        aliased = sorted(program.aliases, key=lambda alias: place_of_input[alias.input])
        self._order = order_of(program, aliased)
        self.place_of_input = place_of_input
        """For each invar of the program, which of the flat function's arguments it is."""
        self.arguments = len(passed) + len(captured)
        """How many arguments the flat function takes."""
        self._memories = [
            None if given.leaf is None else memory_of(program.leaves[given.leaf].placed) for given in program.inputs
        ]
        """For each invar the kind of memory that its leaf is in; None where it is captured."""
        self._captured = [program.inputs[i].captured for i in captured]
        read = (place[given.leaf] for given in program.inputs if given.leaf is not None)
        self._keeps_unused = bool(options.get("keep_unused"))
        self._read = range(len(passed)) if self._keeps_unused else sorted(read)
        """The arguments whose devices decide where the program runs: `jax.jit` leaves out what nothing reads, unless it
        is told not to."""
        self._captured_at: dict[Any, list[Any]] = {}
        """Copies of `_captured` for calls whose committed arguments are elsewhere, by where (`home_of`)."""
        self.donated = tuple(passed[place_of_input[alias.input]] for alias in aliased)
        """Leaves (indices) whose buffers a call takes over."""
        paired = {alias.output for alias in aliased}
        self._marks = marks([outvar in paired for outvar in self._order])
        self._pick_marked = picker(self._marks)
        self._marked = len(self._order) - self._marks[-1] if self._marks else 0
        """How many results there are from the first that took over an argument's memory to the last."""

        self._room = _ROOM_FOR_KEYS + (_ROOM_FOR_TRANSFERS if jax.device_count() > 1 else 0)
        """More frames than it takes to put a result with keys together."""
        self._passed = [program.leaves[i] for i in passed]
        self._keys_in = key_types([leaf.aval for leaf in self._passed] + [program.in_avals[i] for i in captured])
        self._keys_out = key_types(program.out_avals[i] for i in self._order)
        handed_back = list(dict.fromkeys(o.origin.leaf for o in program.outputs if isinstance(o.origin, Passed)))
        self.hand_back = picker(handed_back)
        """Picks, of the leaves, those that the result has as they are."""
        self._take = None if passed == tuple(range(len(program.leaves))) else picker(passed)
        self._arrange = self._arrangement(handed_back)
        self._unflatten: Callable[[Sequence[Any]], Any] = program.out_tree.unflatten
        trees = [tree for tree in (program.in_tree, program.out_tree) if tree is not None]
        plain = [
            kind for tree in trees for kind in classes_in(tree) if issubclass(kind, tuple) and is_plain_class(kind)
        ]
        self.are_as_staged = Holding(is_plain_class, plain)
        """Whether the classes of the named tuples in the arguments and in the result still have no say in how these are
        taken apart and put together. Somebody may have changed one."""
        self.context: Context | None = None
        """The context that the program was staged in, if it must not be traced in another one."""
        self.certain = False
        """Whether `result` is known to raise nothing of its own."""
        self.depth = 0
        """How many frames deep the code is, besides that for keys, that puts a result together."""
        self._untraced = True
        self._ahead = False
        self.is_new = True
        """Whether it has not been called yet: its first call may compile, and returns through Python code of JAX."""
        self._jitted = self._jit(options, [place_of_input[alias.input] for alias in aliased], len(captured))

    def _jit(self, options: Mapping[str, Any], donated: Sequence[int], captured: int) -> Any:
        """The flat function under `jax.jit`, `donated` of its arguments donated, the last `captured` ones captured."""
        this: Any = weakref.proxy(self)  # a cycle would keep the executable, and what was captured, after its last use

        def flat(*values: Any) -> Any:
            return this._flat(values)

        program = self.program
        flat.__name__ = flat.__qualname__ = program.name
        paths = [leaf.path for leaf in self._passed] + [f"captured[{number}]" for number in range(captured)]
        if len({*paths}) == len(paths):  # users' nodes may have one path for several leaves
            parameters = [inspect.Parameter(_Path(path), inspect.Parameter.POSITIONAL_ONLY) for path in paths]
            flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        shardings: dict[str, Any] = {}
        if any(leaf.requested is not None for leaf in program.leaves):
            requested = self._of_bits([leaf.requested for leaf in self._passed], self._keys_in)
            shardings["in_shardings"] = (*requested, *(None for _ in range(captured)))
        by_outvar = {o.origin.index: o.requested for o in program.outputs if isinstance(o.origin, Computed)}
        if any(wanted is not None for wanted in by_outvar.values()):
            shardings["out_shardings"] = self._of_bits([by_outvar[i] for i in self._order], self._keys_out)
        return api.jit(flat, donate_argnums=tuple(donated), **shardings, **options)

    @staticmethod
    def _of_bits(shardings: Sequence[Any], keys: Mapping[int, KeyType]) -> list[Any]:
        """Shardings of which some are of keys, as those of their bits."""
        return [bits_sharding(s, keys[k].more) if k in keys else s for k, s in enumerate(shardings)]

    def _flat(self, values: Sequence[Any]) -> list[Any]:
        values = [self._keys_in[k].wrap(value) if k in self._keys_in else value for k, value in enumerate(values)]
        leaves = values[: len(self._passed)]  # behind them come the captured arrays
        if not self._untraced or not all(_fits(*each) for each in zip(leaves, self._passed, strict=True)):
            raise Retrace
        self._untraced = False
        closed = self.program.jaxpr
        given = [values[place] for place in self.place_of_input]
        with uncollected():
            results = inlined(closed, given, self._memories, Retrace, self._keeps_unused)
        results = [results[i] for i in self._order]
        return [jax.random.key_data(r) if k in self._keys_out else r for k, r in enumerate(results)]

    def _arrangement(self, passed: Sequence[int]) -> Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] | None:
        """A function that puts the leaves of the result together, of the flat function's results and the leaves that
        are handed back, `passed` (keys as their bits). None where they are the flat function's results as they are."""
        outputs = self.program.outputs
        position = {outvar: i for i, outvar in enumerate(self._order)}
        place = {leaf: len(position) + k for k, leaf in enumerate(passed)}
        kept = [o.origin.value for o in outputs if isinstance(o.origin, Kept)]
        next_kept = itertools.count(len(position) + len(passed))
        wanted = []
        for output in outputs:
            match output.origin:
                case Computed(index):
                    wanted.append(position[index])
                case Passed(leaf):
                    wanted.append(place[leaf])
                case Kept():
                    wanted.append(next(next_kept))
        pick = picker(wanted)
        passed_keys = key_types(self.program.leaves[i].aval for i in passed)
        keys = [*self._keys_out.items(), *((len(position) + k, key_type) for k, key_type in passed_keys.items())]
        if keys:

            def with_keys(results: Sequence[Any], handed_back: Sequence[Any]) -> Sequence[Any]:
                values = [*results, *handed_back, *kept]
                for k, key_type in keys:
                    values[k] = key_type(values[k])
                return pick(values)

            return with_keys
        if passed or kept:
            return lambda results, handed_back: pick([*results, *handed_back, *kept])
        return None if wanted == list(range(len(position))) else lambda results, _: pick(results)

    def call(self, leaves: Sequence[Any], landed: list[Any]) -> None:
        """Run the program on the leaves of the arguments, and append what it returns to `landed`, keys as their bits.

        The results are in `landed` as soon as the arguments are gone, even if a Ctrl-C arrives in between. That does
        not hold of a first call that was not compiled ahead: it returns through Python code of `jax.jit`.

        Raises `Retrace`, or whatever compiling or running raises.
        """
        if not self.are_as_staged():
            raise Retrace
        args, kwargs = self._given(leaves)
        if self.is_new:
            if self._untraced and self.context is not None and not self.context.is_current():
                raise Retrace
            with unusable_donations_ignored(), put_off() if self._ahead else contextlib.nullcontext():
                landed.append(self._jitted(*args, **kwargs))
                self.is_new = False
        else:
            self._call(args, kwargs, landed)

    def compile(self, leaves: Sequence[Any]) -> None:
        """Compile for these leaves, whose call then only runs."""
        with unusable_donations_ignored():
            self.lower(leaves).compile()
        self._ahead = True

    def _given(self, leaves: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """What the function under `jax.jit` is called with."""
        given = leaves if self._take is None else self._take(leaves)
        if self._captured or self._keys_in:
            given = [*given, *(self._captured and self._captured_beside(given))]
            for k in self._keys_in:
                given[k] = bits_of(given[k])
        return given, {}

    def _captured_beside(self, given: Sequence[Any]) -> list[Any]:
        """What the program captured, on the devices of the committed arguments among `given` that it reads."""
        home = home_of(given[k] for k in self._read) if jax.device_count() > 1 else None
        if home is None:
            return self._captured
        if home not in self._captured_at:
            self._captured_at[home] = [place_at(value, home) for value in self._captured]
        return self._captured_at[home]

    def _call(self, args: Sequence[Any], kwargs: dict[str, Any], landed: list[Any]) -> None:
        """Raises `RecursionError` before the arguments are gone, if the stack has no room for making keys of bits, or
        for users' own code."""
        room = self.depth if self.depth > _SHALLOW else 0
        if self._keys_out:
            room += self._room
        if room and not has_room(room):
            raise RecursionError("maximum recursion depth exceeded")
        call_into(landed, functools.partial(self._jitted, **kwargs) if kwargs else self._jitted, args)

    def result(self, results: Any, handed_back: Sequence[Any]) -> Any:
        """What the function returns, from what `call` appended and what `hand_back` picks."""
        return self._unflatten(results if self._arrange is None else self._arrange(results, handed_back))

    def remember(self, results: Any, in_one_go: bool) -> None:
        """Tell `ownership` that a call has made `results`; `in_one_go` says that no Python code ran meanwhile."""
        ownership.executed(self.marked(results), self._marked, in_one_go, lambda: self.arrays(results))

    def arrays(self, results: Any) -> Sequence[Any]:
        """The arrays that a call made, in the order in which it made them, from what `call` appended."""
        array_list: Sequence[Any] = results
        return array_list

    def marked(self, results: Any) -> Sequence[Any]:
        """Of `arrays`: the last one, and the last and the first that took over an argument's memory; each only once. By
        these `ownership.executed` finds all of them again in the list of all arrays."""
        return self._pick_marked(results)

    def lower(self, leaves: Sequence[Any]) -> jax.stages.Lowered:
        """The program lowered for leaves of this kind (arrays or `jax.ShapeDtypeStruct`s), to look at what the compiler
        makes of it. Nothing is run or donated. A call with the same leaves runs what was compiled of it."""
        args, kwargs = self._given(leaves)
        lowered: jax.stages.Lowered = self._jitted.lower(*args, **kwargs)
        return lowered


def order_of(program: Program, aliased: Sequence[Alias]) -> list[int]:
    """The outputs in an order in which JAX makes exactly the program's pairs: the first of these that does.

    As the function returns them; from the last to the first; the aliased ones in the order of their inputs, and then
    the others as they are made. Outputs of a shape and dtype that no pair has are never paired, wherever they stand, so
    they keep their places: a compiler may schedule a loss that is the first result in far less memory than one that is
    the last. `Program.order` may ask for them first or last, or for everything backwards.
    """
    outputs = list(range(len(program.out_avals)))
    in_turn = [alias.output for alias in aliased]
    others = _as_made(program, {*outputs} - {*in_turn})
    if program.order == "backwards":
        return in_turn + others[::-1]
    apart = dict.fromkeys(program.unpaired)
    rest = [k for k in outputs if k not in apart]
    last = in_turn + [k for k in others if k not in apart]
    rest = next((way for way in (rest, rest[::-1]) if _pairs_by_jax(program, aliased, way)), last)
    if program.order != "forwards":
        return [*apart, *rest] if program.order == "unpaired first" else [*rest, *apart]
    remaining = iter(rest)
    return [k if k in apart else next(remaining) for k in outputs]


def _pairs_by_jax(program: Program, aliased: Sequence[Alias], order: Sequence[int]) -> bool:
    """Whether JAX would make these pairs, were their inputs donated in turn, and the outputs in this order."""
    in_avals, out_avals = program.in_avals, program.out_avals
    donated = ((alias.input, in_avals[alias.input]) for alias in aliased)
    pairs = first_come(donated, ((output, out_avals[output]) for output in order))
    return pairs == {alias.output: alias.input for alias in aliased}


def _as_made(program: Program, outputs: Collection[int]) -> list[int]:
    """`outputs` (outvar numbers) in the order in which the program makes them."""
    if not outputs:
        return []
    jaxpr = program.jaxpr.jaxpr
    made = {var: number for number, var in enumerate(var for eqn in jaxpr.eqns for var in eqn.outvars)}
    return sorted(outputs, key=lambda k: (made.get(var, -1) if isinstance(var := jaxpr.outvars[k], Var) else -1, k))


def _fits(value: Any, leaf: Leaf) -> bool:
    """Whether a traced value is of the leaf's type; where `in_shardings` places it, wherever it is now."""
    aval, expected = jax.typeof(value), cast(Any, leaf.aval)  # no static leaf is passed
    if leaf.requested is None:
        return fits(aval, expected)
    return (aval.shape, aval.dtype, aval.weak_type) == (expected.shape, expected.dtype, expected.weak_type)


def marks(paired: Sequence[bool]) -> list[int]:
    """Which of the results (positions) `Emitted.marked` picks; `paired` says of each result whether it took over an
    argument's memory."""
    last = len(paired) - 1
    places = [k for k, is_paired in enumerate(paired) if is_paired] or [0]
    return list(dict.fromkeys([last, places[-1], places[0]])) if paired else []
