"""Program -> callable, through `jax.jit` on a flat function, from `Arguments` to `Results`."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax

from pytc import ownership
from pytc.context import Context
from pytc.emit.arguments import Arguments
from pytc.emit.results import Results
from pytc.interrupt import call_into, has_room, put_off
from pytc.jax_compat import api
from pytc.jax_compat.avals import fits
from pytc.jax_compat.inlined import inlined
from pytc.jax_compat.trees import classes_in, is_plain_class
from pytc.jax_compat.warned import unusable_donations_ignored
from pytc.ownership.cpython.facts import Holding
from pytc.program import Leaf, Program
from pytc.uncollected import uncollected

_ROOM_FOR_KEYS = 12
"""More frames than it takes to make PRNG keys of their bits."""
_ROOM_FOR_TRANSFERS = 30
"""And more than it takes to put these onto other devices before."""
_SHALLOW = 4
"""So many more frames need no check whether the stack has room: the proof has just used more."""


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
        self._keeps_unused = bool(options.get("keep_unused"))
        self.arguments = arguments = Arguments(program, keep_unused=self._keeps_unused)
        aliased = sorted(program.aliases, key=lambda alias: arguments.place_of_input[alias.input])
        self.results = Results(program, aliased)
        self.hand_back = self.results.hand_back
        donated = [arguments.place_of_input[alias.input] for alias in aliased]
        self._room = _ROOM_FOR_KEYS + (_ROOM_FOR_TRANSFERS if jax.device_count() > 1 else 0) if self.results.keys else 0
        """More frames than it takes to make the keys of a result."""
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
        self._is_lowered_again = bool(donated) and self.results.requested is not None and jax.device_count() > 1
        """Whether a later call, too, may find that JAX has no use for a donated buffer: `jax.jit` lowers once more for
        arguments that are spread over the devices otherwise, whose parts may be larger or smaller than the results'."""
        self._jitted = self._jit(options, donated)

    def _jit(self, options: Mapping[str, Any], donated: Sequence[int]) -> Any:
        """The flat function under `jax.jit`, with `donated` of its arguments donated."""
        this: Any = weakref.proxy(self)  # a cycle would keep the executable, and what was captured, after its last use

        def flat(*values: Any) -> Any:
            return this._flat(values)

        flat.__name__ = self.program.name
        flat.__qualname__ = self.program.qualname or self.program.name
        paths = self.arguments.paths
        if len({*paths}) == len(paths):  # users' nodes may have one path for several leaves
            parameters = [inspect.Parameter(_Path(path), inspect.Parameter.POSITIONAL_ONLY) for path in paths]
            flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        asked = {"in_shardings": self.arguments.requested, "out_shardings": self.results.requested}
        shardings = {name: wanted for name, wanted in asked.items() if wanted is not None}
        return api.jit(flat, donate_argnums=tuple(donated), **shardings, **options)

    def _flat(self, values: Sequence[Any]) -> list[Any]:
        values = self.arguments.with_keys(values)
        leaves = self.arguments.leaves  # after them come the captured arrays
        if not self._untraced or not all(_fits(*each) for each in zip(values, leaves, strict=False)):
            raise Retrace
        self._untraced = False
        given = self.arguments.of_inputs(values)
        memories, keeps_unused = self.arguments.memories, self._keeps_unused
        outputs = uncollected(lambda: inlined(self.program.jaxpr, given, memories, Retrace, keeps_unused))
        return self.results.returned(outputs)

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

            def first() -> None:
                landed.append(self._jitted(*args, **kwargs))
                self.is_new = False

            unusable_donations_ignored(functools.partial(put_off, first) if self._ahead else first)
        elif self._is_lowered_again:
            unusable_donations_ignored(functools.partial(self._call, args, kwargs, landed))
        else:
            self._call(args, kwargs, landed)

    def compile(self, leaves: Sequence[Any]) -> None:
        """Compile for these leaves, whose call then only runs."""
        unusable_donations_ignored(lambda: self.lower(leaves).compile())
        self._ahead = True

    def _given(self, leaves: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """What the function under `jax.jit` is called with."""
        return self.arguments.given(leaves), {}

    def _call(self, args: Sequence[Any], kwargs: dict[str, Any], landed: list[Any]) -> None:
        """Raises `RecursionError` before the arguments are gone, if the stack has no room for making keys of bits, or
        for users' own code."""
        room = self._room + (self.depth if self.depth > _SHALLOW else 0)
        if room and not has_room(room):
            raise RecursionError("maximum recursion depth exceeded")
        call_into(landed, functools.partial(self._jitted, **kwargs) if kwargs else self._jitted, args)

    def result(self, results: Any, handed_back: Sequence[Any]) -> Any:
        """What the function returns, from what `call` appended and what `hand_back` picks."""
        return self.results.unflatten(results, handed_back)

    def remember(self, results: Any, in_one_go: bool) -> None:
        """Tell `ownership` that a call has made `results`; `in_one_go` says that no Python code ran meanwhile."""
        ownership.executed(self.marked(results), self.results.marked, in_one_go, lambda: self.arrays(results))

    def arrays(self, results: Any) -> Sequence[Any]:
        """The arrays that a call made, in the order in which it made them, from what `call` appended."""
        array_list: Sequence[Any] = results
        return array_list

    def marked(self, results: Any) -> Sequence[Any]:
        """Of `arrays`, those by which `ownership.executed` finds all of them again in the list of all arrays."""
        return self.results.pick_marked(results)

    def lower(self, leaves: Sequence[Any]) -> jax.stages.Lowered:
        """The program lowered for leaves of this kind (arrays or `jax.ShapeDtypeStruct`s), to look at what the compiler
        makes of it. Nothing is run or donated. A call with the same leaves runs what was compiled of it."""
        args, kwargs = self._given(leaves)
        lowered: jax.stages.Lowered = self._jitted.lower(*args, **kwargs)
        return lowered


def _fits(value: Any, leaf: Leaf) -> bool:
    """Whether a traced value is of the leaf's type; where `in_shardings` places it, wherever it is now."""
    aval, expected = jax.typeof(value), cast(Any, leaf.aval)  # no static leaf is passed
    if leaf.requested is None:
        return fits(aval, expected)
    return (aval.shape, aval.dtype, aval.weak_type) == (expected.shape, expected.dtype, expected.weak_type)
