"""`explain`: what is decided for each input and output of a function, why, and what it does to memory.

    subject      what an explanation is about: a function for some arguments on some device, staged and compiled
    explanation  everything that is known about it, as data; sizes: bytes in words
    decisions    what was decided: one record for each input, output and pass
    memory       the compiler's own figures, and what its optimised program copies and reuses
    plans        the plans that the compiler judged with effort="high", as text
    by_hand      the same figures for `jax.jit` with the best `donate_argnums`; jit_call, pmap_call: that call as text
    device       hardware that need not be here; hardware: its data; placement: a program moved there
    largest      the largest batch that fits
    calls        what happened at each call site so far; calls_text: as text; places: of calls in the source
    text         a table that is short however many leaves there are; terminal: lines that fit
    timeline     what is alive at each equation
    equations    what each pass changed in the equations
    page         an explanation as an HTML page
    schema       an explanation as JSON
    audit        what an unchanged script could donate

Explaining never changes anything: it runs nothing and donates nothing, and has no effect on later calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, overload

from pytc import ownership
from pytc.arguments.leaves import Parameters
from pytc.calls.function import Function
from pytc.compile import compile as pytc_compile
from pytc.effort import Tried
from pytc.explain.by_hand import ByHand
from pytc.explain.calls import Calls, HeldReport, SiteReport, calls_of
from pytc.explain.decisions import (
    InputReport,
    OutputReport,
    PassReport,
    inputs_of,
    outputs_of,
    without_memory,
)
from pytc.explain.device import Device, find, here
from pytc.explain.explanation import Explanation
from pytc.explain.largest import LargestBatch
from pytc.explain.memory import Copy, Footprint, Memory
from pytc.explain.subject import Subject
from pytc.move import unmoved
from pytc.stage import with_its_object

__all__ = [
    "ByHand",
    "Calls",
    "Copy",
    "Device",
    "Explanation",
    "Footprint",
    "HeldReport",
    "InputReport",
    "LargestBatch",
    "Memory",
    "OutputReport",
    "PassReport",
    "SiteReport",
    "Tried",
    "compiled_function",
    "explain",
    "explain_program",
]

_BEST_CASE = (
    "The best case, in which the caller lets go of its arguments. At a call, those that are not proven dead are kept; "
    "pytc.explain(fun) tells which."
)
_UNPROVEN = "Nothing is ever proven dead on this interpreter, so only what donate= promises is reused."
_PROMISE = "The caller promises, by donate=, that nobody reads its arguments after a call."
_NOTHING = 'Nothing may be reused: donate="none".'
_MIXED = f"What donate= promises counts as promised. For the rest: {_BEST_CASE[0].lower()}{_BEST_CASE[1:]}"


@overload
def explain(
    fun: Callable[..., Any],
    /,
) -> Calls: ...


@overload
def explain(
    fun: Callable[..., Any],
    /,
    *args: Any,
    device: str | None = ...,
    memory: int | None = ...,
    passes: bool = ...,
    **kwargs: Any,
) -> Explanation: ...


def explain(
    fun: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Explanation | Calls:
    """What pytc makes of `fun` for these arguments, and why. Without arguments: what happened at each call so far. (Of
    a function that takes none, and is not compiled or comes with options: what pytc makes of it.)

    The function is traced and its program compiled once; nothing is run and nothing is donated. Arrays may be
    `jax.ShapeDtypeStruct`s. The explanation keeps no argument alive.

    There is no call, and so no caller to examine. The plan that is explained is the best case: everything that the
    `donate` option allows is reused where that saves memory.

    Args:
      fun: a function made by `pytc.compile`, with its options, or any other, which is compiled with the defaults.
      *args: the positional arguments of a call.
      device: hardware to compile for, which need not be here: `"h200"`, `"tpu v5e:16x16"`; the error for an unknown
        name lists all. A program over a mesh is moved to it; the mesh may be a `jax.sharding.AbstractMesh`.
      memory: bytes on each device, in place of what is known about it, for `fits` and `largest`.
      passes: whether the text shows the equations that each pass removed and added.
      **kwargs: the keyword arguments of a call. If `fun` itself has a parameter `device`, `memory` or `passes`, that
        name is passed on to `fun`; wrap `fun` to use the option.

    Returns:
      An `Explanation`; without arguments, a `Calls`.

    Raises:
      TypeError: `fun` is not callable; or it takes arguments and there are none, and it was not made by `pytc.compile`,
        which records calls, or there are options.
      pytc.errors.DeviceError: the device is unknown, its compiler is not installed, the program's mesh does not fit on
        it, or `memory` is no positive number of bytes; and whatever staging and compiling raise.
    """
    if not callable(fun):
        raise TypeError(f"pytc.explain takes a function, not {fun!r}")
    function = getattr(fun, "__pytc__", None)
    own = {name: kwargs.pop(name) for name in _names_free_in(fun) if name in kwargs}
    if args or kwargs or (takes_nothing(fun) and (own or function is None)):
        return explain_program(*compiled_function(fun, args), kwargs, **own)
    if function is None:
        name = getattr(fun, "__name__", repr(fun))
        raise TypeError(
            f"{name} was not made by pytc.compile, so its calls were not recorded: give the arguments of one call"
        )
    if own:
        raise TypeError(
            f"{', '.join(f'{name}=' for name in own)} is about a program for given arguments: "
            "pytc.explain(fun, *args, ...), with those of a call"
        )
    return calls_of(function)


def takes_nothing(fun: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments."""
    try:
        inspect.signature(fun).bind()
    except (TypeError, ValueError):  # it takes some, or tells no signature
        return False
    return True


def compiled_function(fun: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Function, tuple[Any, ...]]:
    """The compiled function of `fun`, with the default options unless `pytc.compile` made it; and the positional
    arguments that it gets if `fun` is called with `args`: for a bound method, the object too."""
    function = getattr(fun, "__pytc__", None)
    if function is None:
        return pytc_compile(fun).__pytc__, args  # type: ignore[attr-defined]
    return function, with_its_object(fun, args)


def _names_free_in(fun: Callable[..., Any]) -> tuple[str, ...]:
    """The options of `explain` that are no parameters of the function."""
    taken = {parameter.name for parameter in Parameters(fun).parameters}
    return tuple(name for name in ("device", "memory", "passes") if name not in taken)


def explain_program(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    device: str | None = None,
    memory: int | None = None,
    passes: bool = False,
) -> Explanation:
    """The explanation of a compiled function for these arguments, if any; see `explain`."""
    target = None if device is None else find(device, memory)
    found = here(memory) if target is None else target.device
    subject = Subject(function, *unmoved(args, kwargs), target)
    program, declined, footprint = subject.program, subject.declined, subject.footprint
    return Explanation(
        name=program.name,
        inputs=inputs_of(program, subject.kept, declined, copies=bool(footprint.copies or footprint.refused)),
        outputs=outputs_of(program, declined),
        passes=subject.reports,
        plans=subject.plans,
        memory=Memory(footprint, declined, subject.as_jit()),
        assumption=_assumption(function.planner.policy.modes),
        device=found,
        program=without_memory(program),
        resizable=subject.resizable(),
        with_passes=passes,
    )


def _assumption(modes: Collection[str]) -> str:
    """What the explanation assumes about the caller under these `donate` modes, in words."""
    if set(modes) == {"none"}:
        return _NOTHING
    promised, proven = bool({"all", "warn"} & set(modes)), bool({"auto", "require"} & set(modes))
    if proven and ownership.refusal:
        return _UNPROVEN
    return _MIXED if promised and proven else _PROMISE if promised else _BEST_CASE
