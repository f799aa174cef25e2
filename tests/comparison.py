"""A function run by `jax.jit` and by pytc, and by each pass alone; everything that the caller can see, compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import pytc
from pytc.jax_compat import rules
from pytc.jax_compat.arrays import private_copy
from pytc.passes import pipeline, subjaxprs
from pytc.passes.verify import same, type_check
from pytc.program import Computed, Input, Leaf, Output, Passed, Program


def program_of(fun: Callable[..., Any], *args: Any) -> Program:
    """The Program of a function of arrays, as staging gives it; leaf number i is called `x<i>`."""
    jaxpr = jax.jit(fun).trace(*args).jaxpr
    return Program(
        name=getattr(fun, "__name__", "fun"),
        jaxpr=jaxpr,
        leaves=tuple(Leaf(f"x{i}", f"x{i}", v.aval) for i, v in enumerate(jaxpr.jaxpr.invars)),
        inputs=tuple(Input(i) for i in range(len(jaxpr.jaxpr.invars))),
        outputs=tuple(Output(f"[{i}]", Computed(i)) for i in range(len(jaxpr.jaxpr.outvars))),
        out_tree=jax.tree.structure([0] * len(jaxpr.jaxpr.outvars)),
    )


def run(program: Program, leaves: Sequence[Any]) -> list[Any]:
    """The outputs of a program, compiled, for these leaves of the arguments."""
    results = _flat(program)(*_given(program, leaves))
    jax.effects_barrier()
    return _outputs(program, leaves, results)


def _flat(program: Program) -> Any:
    return jax.jit(lambda *operands: rules.evaluate(program.jaxpr, operands))


def _given(program: Program, leaves: Sequence[Any]) -> list[Any]:
    return [each.captured if each.leaf is None else leaves[each.leaf] for each in program.inputs]


def _outputs(program: Program, leaves: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    def value(output: Output) -> Any:
        origin = output.origin
        if isinstance(origin, Computed):
            return results[origin.index]
        return leaves[origin.leaf] if isinstance(origin, Passed) else origin.value

    return [value(output) for output in program.outputs]


def by_jax_jit(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What `jax.jit(fun)` returns, leaves that are not arrays kept out of its sight on the way in and out."""
    plain = _OfArrays(fun, args, kwargs)
    arrays = jax.jit(plain)(plain.arrays)
    jax.effects_barrier()
    return plain.result(arrays)


class _OfArrays:
    """A function as one from a list of arrays, and Python scalars, to a list of arrays. An array that is there twice is
    in the list once: XLA may fuse, and so round, otherwise where it knows that two arrays are one."""

    def __init__(self, fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.__name__ = "of_arrays"
        self._fun = fun
        self._leaves, self._tree = jax.tree.flatten((tuple(args), kwargs))
        self.arrays: list[Any] = []
        self._places: list[int | None] = []
        """Which of the arrays each leaf is."""
        first: dict[int, int] = {}
        for leaf in self._leaves:
            place: int | None = None
            if isinstance(leaf, jax.Array | np.ndarray | bool | int | float | complex):
                new = len(self.arrays)
                place = first.setdefault(id(leaf), new) if isinstance(leaf, jax.Array) else new
                if place == new:
                    self.arrays.append(leaf)
            self._places.append(place)

    def leaves(self, arrays: Sequence[Any]) -> list[Any]:
        """The leaves of the arguments, with these arrays among them."""
        return [x if k is None else arrays[k] for x, k in zip(self._leaves, self._places, strict=True)]

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        args, kwargs = jax.tree.unflatten(self._tree, self.leaves(arrays))
        self._out, self._out_tree = jax.tree.flatten(self._fun(*args, **kwargs))
        self._is_array = [isinstance(x, jax.Array | np.ndarray) for x in self._out]
        return [x for x, is_array in zip(self._out, self._is_array, strict=True) if is_array]

    def result(self, arrays: Sequence[Any]) -> Any:
        """What the function returns where its arrays are these."""
        remaining = iter(arrays)
        leaves = [next(remaining) if is_array else x for x, is_array in zip(self._out, self._is_array, strict=True)]
        return jax.tree.unflatten(self._out_tree, leaves)


def check_passes(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], log: list[Any]) -> None:
    """Raise AssertionError unless each pass alone, and the whole compiler, do what `jax.jit` does.

    `log` is what the function's effects append to. The whole compiler is given copies of the arguments, and may write
    over all of them. A pass that leads to a program which has been compared already is not run once more.
    """
    log.clear()
    wanted = by_jax_jit(fun, args, kwargs)
    wanted_log = list(log)
    got, staged = _by_pytc(fun, args, kwargs, log)
    _alike(wanted, got)
    _equal("pytc.compile", wanted, wanted_log, got, log)
    runs = _Runs(jax.tree.leaves((tuple(args), kwargs)), log)
    for name, after in _after_each_pass(staged):
        results, log_of_run = runs.of(after)
        _equal(name, wanted, wanted_log, results, log_of_run)


def check_passes_together(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], log: list[Any]) -> None:
    """As `check_passes`, with two compilations: of what `pytc.compile` makes of the function, and of the function
    together with what each pass makes of it. What these have in common XLA compiles once.

    XLA may fuse, and so round, otherwise there than in a program of its own: a difference calls for `check_passes`.
    """
    got, staged = _by_pytc(fun, args, kwargs, log)
    log_of_pytc = list(log)
    plain = _OfArrays(fun, args, kwargs)
    variants = list(_after_each_pass(staged))
    captured = [[given.captured for given in after.inputs if given.leaf is None] for _, after in variants]

    def everything(arrays: list[Any], captured: list[list[Any]]) -> list[list[Any]]:
        results, leaves = [plain(arrays)], plain.leaves(arrays)
        for (_, after), values in zip(variants, captured, strict=True):
            remaining = iter(values)
            operands = [next(remaining) if each.leaf is None else leaves[each.leaf] for each in after.inputs]
            results.append(rules.evaluate(after.jaxpr, operands))
        return results

    log.clear()
    arrays, *others = jax.jit(everything)(plain.arrays, captured)
    jax.effects_barrier()
    wanted = plain.result(arrays)
    _alike(wanted, got)
    _equal("pytc.compile", wanted, log, got, log_of_pytc * (1 + len(variants)))
    leaves = plain.leaves(plain.arrays)
    for (name, after), results in zip(variants, others, strict=True):
        _equal(name, wanted, [], _outputs(after, leaves, results), [])


def _by_pytc(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], log: list[Any]
) -> tuple[Any, Program]:
    """What the compiled function returns for copies of the arguments, and the program before any pass."""
    seen: list[Program] = []

    def look(program: Program) -> Program:
        seen.append(program)
        return program

    log.clear()
    given, given_named = copied((tuple(args), kwargs))
    got = pytc.compile(fun, donate="all", passes=(look, *pipeline))(*given, **given_named)
    jax.effects_barrier()
    return got, seen[0]


def _after_each_pass(staged: Program) -> Iterator[tuple[str, Program]]:
    """What each pass alone makes of the program, where that is anything new; well formed, or AssertionError."""
    for each in pipeline:
        after = each(staged)
        if after.jaxpr is not staged.jaxpr or after.outputs != staged.outputs:
            _well_formed(each, staged, after)
            yield each.__name__, after


class _Runs:
    """Programs run on the same leaves: one that is compiled to what another was is not run once more."""

    def __init__(self, leaves: Sequence[Any], log: list[Any]) -> None:
        self._leaves = leaves
        self._log = log
        self._known: dict[Any, tuple[Sequence[Any], list[Any]]] = {}
        self._jaxprs: list[Any] = []

    def of(self, program: Program) -> tuple[list[Any], list[Any]]:
        """The outputs of the program, and what its effects left behind."""
        self._jaxprs.append(program.jaxpr)  # so that its id stays its own
        if id(program.jaxpr) not in self._known:
            given = _given(program, self._leaves)
            lowered = _flat(program).lower(*given)
            text = lowered.as_text(), *map(id, given)
            if text not in self._known:
                self._log.clear()
                results = lowered.compile()(*given)
                jax.effects_barrier()
                self._known[text] = results, list(self._log)
            self._known[id(program.jaxpr)] = self._known[text]
        results, log = self._known[id(program.jaxpr)]
        return _outputs(program, self._leaves, results), log


def copied(tree: Any) -> Any:
    """The tree with every array copied, once however often it stands there."""
    copies = {id(x): private_copy(x) for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)}
    return jax.tree.map(lambda x: copies.get(id(x), x), tree)


def _well_formed(each: Callable[[Program], Program], before: Program, after: Program) -> None:
    name = each.__name__
    type_check(after.jaxpr)
    before_count, after_count = (subjaxprs.count(p.jaxpr.jaxpr) for p in (before, after))
    assert after_count <= before_count, f"{name}: {before_count} equations became {after_count}"
    effects = [list(subjaxprs.effects_in_order(p.jaxpr.jaxpr)) for p in (before, after)]
    assert effects[0] == effects[1], f"{name}: effects {effects[0]} became {effects[1]}"
    again = each(after)
    unchanged = again.jaxpr is after.jaxpr or str(again.jaxpr) == str(after.jaxpr)
    assert unchanged, f"{name}: doing it again changes something"
    assert again.outputs == after.outputs, f"{name}: doing it again changes the outputs"


def _alike(wanted: Any, got: Any) -> None:
    one, other = jax.tree.structure(wanted), jax.tree.structure(got)
    assert one == other, f"pytc.compile: the result is\n{other}\nand by jax.jit\n{one}"


def _equal(what: str, wanted: Any, wanted_log: Sequence[Any], got: Any, log: Sequence[Any]) -> None:
    one, other = jax.tree.leaves(wanted), jax.tree.leaves(got)
    assert len(one) == len(other), f"{what}: {len(one)} leaves and {len(other)}"
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        assert same(a, b), f"{what}: result leaf {number} is\n{b!r}\nand by jax.jit\n{a!r}"
    # JAX keeps the effects of one kind in order, not those of different kinds.
    for kind in {entry[0] for entry in (*wanted_log, *log)}:
        before, after = ([entry for entry in entries if entry[0] == kind] for entries in (wanted_log, log))
        assert before == after, f"{what}: {kind} effects {[e[1] for e in before]} became {[e[1] for e in after]}"
