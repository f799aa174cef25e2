"""`explain`: what is decided for each input and output of a function, why, and what it does to memory.

    decisions    what was decided, one record for each input, output and pass
    memory, hlo  the compiler's own figures, and what its optimised program copies and reuses
    jit_call     the nearest `jax.jit` call
    calls        what happened at each call site so far
    fold, text   a table that a person can read at a glance, however many leaves there are
    timeline     what is alive at each equation
    equations    what each pass changed
    page         all of it as a page
    schema       the same as JSON

Explaining reads and never steers: it runs nothing and donates nothing, and what it finds changes no later call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, overload

from jax.stages import Compiled
from jax.tree_util import tree_flatten

from pytc import passes
from pytc.compile import Function
from pytc.compile import compile as pytc_compile
from pytc.emit import emit_jit
from pytc.explain.calls import Calls, HeldReport, SiteReport, calls_of
from pytc.explain.decisions import (
    InputReport,
    OutputReport,
    PassReport,
    inputs_of,
    kept_by_the_caller,
    outputs_of,
    pass_report,
    without_memory,
)
from pytc.explain.explanation import Explanation, RequirementError
from pytc.explain.memory import AsJit, ByHand, Copy, Footprint, Memory, footprint_of, given_arguments, stand_ins
from pytc.program import Program

__all__ = [
    "ByHand",
    "Calls",
    "Copy",
    "Explanation",
    "Footprint",
    "HeldReport",
    "InputReport",
    "Memory",
    "OutputReport",
    "PassReport",
    "RequirementError",
    "SiteReport",
    "explain",
]

_BEST_CASE = (
    "The best case, in which the caller lets go of its arguments. At a call, those that are not proven dead are kept; "
    "pytc.explain(fun) tells which."
)
_PROMISE = "The caller promises, by donate=, that nobody reads its arguments after a call."
_NOTHING = 'Nothing may be reused: donate="none".'
_MIXED = f"What donate= promises counts as promised. For the rest: {_BEST_CASE[0].lower()}{_BEST_CASE[1:]}"


@overload
def explain(fun: Callable[..., Any], /) -> Calls: ...


@overload
def explain(fun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation: ...


def explain(fun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation | Calls:
    """What pytc makes of `fun` for these arguments, and why. Without arguments: what happened at each call so far.

    Nothing is run and nothing is donated; the function is traced and its program compiled once. Arrays may be
    `jax.ShapeDtypeStruct`s. The explanation holds on to no argument.

    Ahead of a call there is no caller to look at, so the plan that is explained is the best case: everything that the
    `donate` option allows is taken over where that is of use.

    Args:
      fun: a function made by `pytc.compile`, whose options count, or any other, which is compiled with the defaults.
      *args: what it would be called with.
      **kwargs: what it would be called with.

    Returns:
      An `Explanation`; a `Calls` where there are no arguments.

    Raises:
      TypeError: there are no arguments, and `fun` was not made by `pytc.compile`, which would have seen its calls;
        and whatever staging and compiling raise.
    """
    function = getattr(fun, "__pytc__", None)
    if args or kwargs:
        if function is None:
            function = pytc_compile(fun).__pytc__  # type: ignore[attr-defined]
        return explain_program(function, args, kwargs)
    if function is None:
        name = getattr(fun, "__name__", repr(fun))
        raise TypeError(f"{name} was not made by pytc.compile, so nobody has seen its calls: give the arguments of one")
    return calls_of(function)


def explain_program(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    """The explanation of a compiled function for these arguments, of which there may be none."""
    parameters, stageable, planner = function.parameters, function.stageable, function.planner
    values, _ = tree_flatten(parameters.wrap_static(args, kwargs))
    staged = stageable.stage(args, kwargs, share=function.share)
    kept = kept_by_the_caller(planner.policy, staged.leaves, values)
    program, reports = _run(dataclasses.replace(staged, keep=frozenset(kept)), planner.pipeline)

    given = stand_ins(staged.leaves, values)
    footprint = footprint_of_program(
        program, emit_jit(program, **planner.options).lower(given).compile(), planner.options
    )
    declined = tuple(path for i in program.donated if (path := program.leaves[i].path) not in footprint.aliased)
    shared = {frozenset((i, leaf.same_as)) for i, leaf in enumerate(staged.leaves) if leaf.same_as is not None}
    as_jit = AsJit(
        stageable.stage(args, kwargs, share=False) if shared else staged,
        given,
        planner.options,
        tuple(map(parameters.positional_name, range(len(args)))),
        tuple(name for name in function.jit_options if not name.startswith("static_")),
        tuple(shared),
    )
    return Explanation(
        name=program.name,
        inputs=inputs_of(program, kept, declined),
        outputs=outputs_of(program, declined),
        passes=reports,
        memory=Memory(footprint, declined, as_jit),
        assumption=_assumption(planner.policy.modes),
        program=without_memory(program),
    )


def footprint_of_program(program: Program, compiled: Compiled, options: Mapping[str, Any]) -> Footprint:
    """The figures of an emitted program, whose flat arguments are the traced leaves and then the captured arrays."""
    passed = [i for i, leaf in enumerate(program.leaves) if leaf.aval is not None and leaf.same_as is None]
    captured = [i for i, each in enumerate(program.inputs) if each.leaf is None]
    leaf_place = {leaf: number for number, leaf in enumerate(passed)}
    captured_place = {i: len(passed) + number for number, i in enumerate(captured)}
    places = [
        captured_place[i] if each.leaf is None else leaf_place[each.leaf] for i, each in enumerate(program.inputs)
    ]
    paths = [program.leaves[i].path for i in passed] + [program.input_path(i) for i in captured]
    given = given_arguments(program.jaxpr, places, len(paths), options)
    return footprint_of(compiled, paths, given)


def _assumption(modes: Collection[str]) -> str:
    """What the `donate` options in force leave to the caller."""
    if set(modes) == {"none"}:
        return _NOTHING
    promised, proven = bool({"all", "warn"} & set(modes)), bool({"auto", "require"} & set(modes))
    return _MIXED if promised and proven else _PROMISE if promised else _BEST_CASE


def _run(program: Program, pipeline: Sequence[passes.Pass]) -> tuple[Program, tuple[PassReport, ...]]:
    """The program after the pipeline, and a report for each pass."""
    reports = []
    for each in pipeline:
        after = passes.run(program, (each,))
        reports.append(pass_report(getattr(each, "__name__", type(each).__name__), program, after))
        program = after
    return program, tuple(reports)
