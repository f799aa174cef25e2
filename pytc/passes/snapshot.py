"""snapshot: what stays a constant of the program stays as it is now.

The program may be compiled again later: for callers that keep more than the first did, for arguments that are moved. It
would then find other values where a NumPy array that the function captured has been written to, and none where a
`jax.Array` has been deleted; `jax.jit` has compiled what it captured once and for all. So the jaxpr is given copies of
its consts, at every depth, each at its place: to lift one out of an inner `jit` could change bits (`hoist`).

It is the last of what is done to a program before its plans are made, whatever the pipeline: what `hoist` makes an
input is a copy already. A `jax.Ref` is meant to change; and what an `OPAQUE` primitive holds is left alone.

Cost: one visit to each equation at every depth, and the bytes of the constants.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from pytc.jax_compat import arrays, jaxprs, rewriting
from pytc.jax_compat.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from pytc.passes import subjaxprs
from pytc.program import Program


def snapshot(program: Program) -> Program:
    """The program with copies of the arrays that it captured."""
    jaxpr = _Snapshot()(program.jaxpr)
    return program if jaxpr is program.jaxpr else dataclasses.replace(program, jaxpr=jaxpr)


class _Snapshot:
    """Copies of jaxprs and of their constants; what two share they still share."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Any, Any]] = {}
        """By id: a jaxpr or a constant, which so keeps its id, and its copy."""

    def __call__(self, jaxpr: Any) -> Any:
        """The jaxpr, open or closed as it was; the same object if there is nothing to copy."""
        if id(jaxpr) not in self._done:
            self._done[id(jaxpr)] = jaxpr, self._of(jaxpr)
        return self._done[id(jaxpr)][1]

    def _of(self, jaxpr: Jaxpr | ClosedJaxpr) -> Any:
        opened = jaxprs.inner(jaxpr)
        eqns = [self._equation(eqn) for eqn in opened.eqns]
        outvars = [self._atom(atom) for atom in opened.outvars]
        changed = not all(map(operator.is_, (*eqns, *outvars), (*opened.eqns, *opened.outvars)))
        if changed:
            opened = rewriting.with_equations(opened, eqns, outvars=outvars)
        if not isinstance(jaxpr, ClosedJaxpr):
            return opened
        consts = [self._constant(value) for value in jaxpr.consts]
        changed = changed or not all(map(operator.is_, consts, jaxpr.consts))
        return rewriting.close(opened, consts) if changed else jaxpr

    def _equation(self, eqn: JaxprEqn) -> JaxprEqn:
        invars = [self._atom(atom) for atom in eqn.invars]
        if not all(map(operator.is_, invars, eqn.invars)):
            eqn = eqn.replace(invars=invars)
        if subjaxprs.is_flat(eqn.primitive) or eqn.primitive.name in subjaxprs.OPAQUE:
            return eqn
        return subjaxprs.map_subjaxprs(eqn, self)

    def _atom(self, atom: subjaxprs.Atom) -> subjaxprs.Atom:
        if not isinstance(atom, Literal) or arrays.is_nobody_elses(atom.val):
            return atom
        return rewriting.literal(self._constant(atom.val), atom)

    def _constant(self, value: Any) -> Any:
        if id(value) not in self._done:
            self._done[id(value)] = value, arrays.constant_copy(value)
        return self._done[id(value)][1]
