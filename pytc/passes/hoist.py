"""hoist: arrays that the function captured become inputs instead of constants baked into the program.

XLA spends compile time and host memory on a large constant, and every executable made of the function holds one. An
input is one buffer for all of them. It is a snapshot, as `jax.jit`'s constant is: the captured array can be donated or
deleted by its owner later, or the NumPy array written to, and the function goes on with what it captured. It is never
donated.

The one thing that could change is the result. XLA rewrites what it sees to be constant: it computes `tanh(c)` while
compiling, by other code than at run time, and turns `x / c` into `x * (1 / c)`. Results must stay those of `jax.jit`
to the bit, so an array is hoisted only where every equation that reads it is one that XLA treats alike whether or not
the operand is constant (`_VALUE_BLIND`), and leaves alone the arrays that take part in work on constants alone, those
of one element and those of one repeated value, which cost nothing to keep.

Cost: one visit to each equation at every depth, none where nothing is captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from pytc import jax_compat
from pytc.jax_compat import Jaxpr, JaxprEqn, Literal, Var
from pytc.passes import while_loops
from pytc.passes.constants import same_by_anyone
from pytc.program import Input, Program

# Done by the same code at run time, whether or not one of several operands is constant.
_VALUE_BLIND = frozenset(
    """add add_any and clamp concatenate conv_general_dilated dot_general dynamic_slice dynamic_update_slice eq gather
    ge gt le lt max min mul ne or pad scatter scatter-add scatter_add select_n sub xor""".split()
)

# Their jaxprs' invars and outvars are the equation's own.
_CALLS = frozenset("jit pjit closed_call core_call checkpoint remat2 remat custom_jvp_call custom_vjp_call".split())

_VARYING = 0  # depends on an argument
_CONSTANT = -1  # a constant of the program whatever is hoisted


def hoist(program: Program) -> Program:
    """Captured arrays as inputs, wherever that cannot change a bit of the result. They come before the leaves."""
    closed = jax_compat.lift_inner_consts(program.jaxpr)
    jaxpr = closed.jaxpr
    if not jaxpr.constvars:
        return program
    seen = _constants_looked_at(jaxpr)
    captured: list[tuple[Var, Any]] = []
    baked: list[tuple[Var, Any]] = []
    notes = []
    for i, (var, value) in enumerate(zip(jaxpr.constvars, closed.consts, strict=True)):
        why = _cheap(value) or seen.get(i, "")
        (baked if why else captured).append((var, value))
        what = f"the captured array {jax_compat.short(var.aval)}"
        notes.append(f"{what} stays a constant: {why}" if why else f"{what} is an input instead of a constant")
    return program.noted(
        "hoist",
        notes,
        jaxpr=jax_compat.with_inputs(
            closed,
            constants=baked,
            invars=[*(var for var, _ in captured), *jaxpr.invars],
            names=[*(f"captured[{i}]" for i in range(len(captured))), *jax_compat.input_names(jaxpr)],
        ),
        inputs=(*(Input(None, jax_compat.snapshot(value, var.aval)) for var, value in captured), *program.inputs),
    )


def _cheap(value: Any) -> str:
    """Why a constant is not worth hoisting, or nothing."""
    if not hasattr(value, "size") or isinstance(value, jax.Ref):
        return ""
    if value.size <= 1:
        return "it has one element"
    if isinstance(value, jax.Array) and (not value.is_fully_addressable or jax_compat.is_extended(value.dtype)):
        return ""
    with jax.transfer_guard("allow"):
        data = np.asarray(value)
    return "all its elements are equal" if bool((data == data.flat[0]).all()) else ""


def _constants_looked_at(jaxpr: Jaxpr) -> dict[int, str]:
    """Which constvars (by number) are read by an equation that XLA may treat otherwise for a constant; and why."""
    reasons: dict[int, str] = {}
    # A set of constvars as the bits of an integer.
    marks = {var: 1 << i for i, var in enumerate(jaxpr.constvars)}
    _walk(jaxpr, marks, reasons)
    return reasons


def _walk(jaxpr: Jaxpr, marks: dict[Var, int], reasons: dict[int, str]) -> list[int]:
    """Propagate `marks` (`_VARYING`, `_CONSTANT`, or the constvars that a value is made of) through the equations.

    Vars without a mark vary. Returns the outvars' marks.
    """

    def mark(atom: Any) -> int:
        return _CONSTANT if isinstance(atom, Literal) else marks.get(atom, _VARYING)

    for eqn in jaxpr.eqns:
        given = [mark(atom) for atom in eqn.invars]
        made = _CONSTANT if not any(m == _VARYING for m in given) and not eqn.effects else _VARYING
        captured = _union(given)
        results = [made] * len(eqn.outvars)
        if eqn.primitive.name in _CALLS and (captured or made == _VARYING):
            # What a call returns may be constant, whatever it is given.
            results = _walk_calls(eqn, given, reasons)
        elif captured and (inner := list(_bodies(eqn, given))):
            for body, given_inside in inner:
                _walk(body, dict(zip(body.invars, given_inside, strict=True)), reasons)
            results = [_VARYING] * len(eqn.outvars)
        elif captured and made == _CONSTANT and same_by_anyone(eqn):
            results = [captured] * len(eqn.outvars)
        elif captured and not (made == _VARYING and eqn.primitive.name in _VALUE_BLIND):
            what = "takes part in work on constants alone" if made == _CONSTANT else "is read by an equation"
            for i in _bits(captured):
                reasons.setdefault(i, f"it {what} (`{eqn.primitive.name}`), which XLA does otherwise for a constant")
        marks.update(zip(eqn.outvars, results, strict=True))
    return [mark(atom) for atom in jaxpr.outvars]


def _walk_calls(eqn: JaxprEqn, given: Sequence[int], reasons: dict[int, str]) -> list[int]:
    results = [_VARYING] * len(eqn.outvars)
    for body in jax_compat.subjaxprs(eqn):
        if len(body.invars) == len(given):
            results = _walk(body, dict(zip(body.invars, given, strict=True)), reasons)
    return results


def _bodies(eqn: JaxprEqn, given: Sequence[int]) -> Iterator[tuple[Jaxpr, list[int]]]:
    """The jaxprs of a loop or a branch, with what each of their invars is given; nothing where a captured array is
    given to something that changes from step to step, or that is not known here."""
    if eqn.primitive.name == "scan":
        consts, carry, slices = jax_compat.split_scan(eqn, given)
        if not _union(carry):
            (body,) = jax_compat.subjaxprs(eqn)
            yield body, [*consts, *(_VARYING for _ in carry), *slices]
    elif eqn.primitive.name == "while":
        cond_consts, body_consts, carry = jax_compat.split_while(eqn, given)
        # An input that is read beside one carry makes a tuple of the loop's state, which XLA sees through if it starts
        # with constants.
        becomes_tuple = _CONSTANT in carry and while_loops.may_be_one_array(eqn)
        if not _union(carry) and not becomes_tuple:
            varying = [_VARYING] * len(carry)
            yield jax_compat.inner(eqn.params["cond_jaxpr"]), [*cond_consts, *varying]
            yield jax_compat.inner(eqn.params["body_jaxpr"]), [*body_consts, *varying]
    elif eqn.primitive.name == "cond" and not _union(given[:1]):
        for body in jax_compat.subjaxprs(eqn):
            yield body, list(given[1:])


def _union(marks: Sequence[int]) -> int:
    union = 0
    for m in marks:
        if m > 0:
            union |= m
    return union


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
