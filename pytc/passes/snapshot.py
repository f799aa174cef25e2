"""snapshot: what stays a constant of the program stays as it is now.

The program may be compiled again later: for callers that keep more than the first did, for arguments that are moved. It
would then find other values where a NumPy array that the function captured has been written to, and none where a
`jax.Array` has been deleted; `jax.jit` has compiled what it captured once and for all. So the jaxpr is given copies of
its consts, at every depth, each at its place: to lift one out of an inner `jit` could change bits (`hoist`).

It is the last of what is done to a program before its plans are made, whatever the pipeline: what `hoist` makes an
input is a copy already. A `jax.Ref` is meant to change; and what an `OPAQUE` primitive holds is left alone.

Cost: one visit to each equation at every depth, and the bytes of the constants, once for all programs (`copies`).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

from pytc.jax_compat import arrays, jaxprs, rewriting
from pytc.jax_compat.jaxprs import Jaxpr, JaxprEqn, Literal
from pytc.passes import copies, subjaxprs
from pytc.program import Program


def snapshot(program: Program) -> Program:
    """The program with copies of the arrays that it captured."""
    jaxpr = _Snapshot(_with_copies)(program.jaxpr)
    return program if jaxpr is program.jaxpr else dataclasses.replace(program, jaxpr=jaxpr)


class _Snapshot(subjaxprs.Memo):
    """A `Memo` of jaxprs with copies of their consts. A const that is in two of them stays one."""

    def __init__(self, change: Callable[[Jaxpr, Any], Jaxpr]) -> None:
        super().__init__(change)
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._taken: set[int] = set()

    def changed(self, jaxpr: Any) -> Any:
        """The jaxpr, with copies of its consts if it is closed."""
        changed = super().changed(jaxpr)
        consts = getattr(jaxpr, "consts", ())  # an open jaxpr has none
        copies = [self.copy(value) for value in consts]
        return changed if all(map(operator.is_, copies, consts)) else rewriting.close(jaxprs.inner(changed), copies)

    def copy(self, value: Any) -> Any:
        """The copy of a const or of a literal's value."""
        # The original is kept beside it so that its id is not reused.
        if id(value) not in self._copies:
            copy = copies.constant_copy(value, self._taken)
            self._copies[id(value)] = value, copy
            self._taken.add(id(copy))
        return self._copies[id(value)][1]


def _with_copies(jaxpr: Jaxpr, of: _Snapshot) -> Jaxpr:
    """The jaxpr with copies of the values of its literals, and of what is captured inside its equations."""

    def atom(given: subjaxprs.Atom) -> subjaxprs.Atom:
        if not isinstance(given, Literal) or arrays.is_nobody_elses(given.val):
            return given
        return rewriting.literal(of.copy(given.val), given)

    def equation(eqn: JaxprEqn) -> JaxprEqn:
        invars = [atom(given) for given in eqn.invars]
        if not all(map(operator.is_, invars, eqn.invars)):
            eqn = eqn.replace(invars=invars)
        if subjaxprs.is_flat(eqn.primitive) or eqn.primitive.name in subjaxprs.OPAQUE:
            return eqn
        return subjaxprs.map_subjaxprs(eqn, of)

    eqns, outvars = [equation(eqn) for eqn in jaxpr.eqns], [atom(given) for given in jaxpr.outvars]
    if all(map(operator.is_, (*eqns, *outvars), (*jaxpr.eqns, *jaxpr.outvars))):
        return jaxpr
    return rewriting.with_equations(jaxpr, eqns, outvars=outvars)
