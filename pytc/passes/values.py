"""Which variables of a jaxpr are sure to hold equal values: value numbering.

Two results have one number if the same repeatable primitive makes them, with equal parameters, of operands that have
one number each; so two chains of such equations do. A jaxpr among the parameters stands for what its results are as
functions of its operands, so that two traces of one loop body are equal.

What is not certain to be equal is different. An equation is repeatable unless it has an effect, reads or makes a
`Ref`, may call foreign code, draws hidden random numbers (`lax.rng_uniform`), is not JAX's own, or is there in order
not to be merged with another like it (`optimization_barrier`, a remat's recomputation, a copy that was asked for).
Parameters are equal if they are of one type and compare equal, floats if their bits do; what cannot be hashed is equal
to nothing but itself.

Cost: one look at each equation at every depth, in time linear in their operands and results.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from pytc.jax_compat import jaxprs
from pytc.jax_compat.avals import is_ref
from pytc.jax_compat.effects import may_be_foreign
from pytc.jax_compat.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from pytc.jax_compat.origins import home
from pytc.passes.subjaxprs import OPAQUE

_UNREPEATABLE = OPAQUE | {"copy", "optimization_barrier", "remat2", "rng_uniform"}

_SMALL = 16
"""Up to how many elements an array among the parameters is compared bit by bit; larger ones are equal if they are one
object."""


def value_numbers(jaxpr: Jaxpr, places: Sequence[int] | None = None) -> list[int]:
    """A number for each outvar; outvars of one number have one type, and hold equal bits whenever the jaxpr is run. Or
    where it is run on equal arguments for invars that have the same among `places`: for each the first that is equal.
    """
    return _Numbering().of_results(jaxpr, places=places)


class _Numbering:
    """Numbers for values, told apart by what they are made of. An operand of a jaxpr is told by its place alone, so a
    number means the same in every jaxpr."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, tuple[Any, int | None]] = {}
        self._calls: dict[tuple[int, tuple[int, ...]], tuple[Any, Sequence[int]]] = {}
        self._unlike = 0

    def of_results(
        self, jaxpr: Jaxpr, consts: Sequence[Any] | None = None, places: Sequence[int] | None = None
    ) -> list[int]:
        """For each result. Operands that are equal to one before have its place among `places`."""
        values: dict[Var, int] = {}
        for i, var in enumerate(jaxpr.constvars):
            values[var] = self._number(("constvar", i, var.aval) if consts is None else ("const", id(consts[i])))
        for i, var in enumerate(jaxpr.invars):
            values[var] = self._number(("operand", i if places is None else places[i], var.aval))
        for eqn in jaxpr.eqns:
            operands = [self._atom(v, values) for v in eqn.invars]
            made = self._number(("equation", self._equation(eqn, operands)))  # hashed once, not for each result
            for which, var in zip(self._which(eqn, operands), eqn.outvars, strict=True):
                values[var] = self._number((made, which, var.aval))
        return [self._atom(v, values) for v in jaxpr.outvars]

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

    def _new(self) -> Hashable:
        self._unlike += 1
        return "unlike any other", self._unlike

    def _atom(self, atom: Any, values: dict[Var, int]) -> int:
        if isinstance(atom, Literal):
            return self._number(("literal", atom.aval, self._parameter(atom.val)))
        return values[atom]

    def _equation(self, eqn: JaxprEqn, operands: list[int]) -> Hashable:
        if not _is_repeatable(eqn):
            return self._new()
        params = tuple((name, self._parameter(value)) for name, value in eqn.params.items())
        return eqn.primitive, id(eqn.ctx), tuple(operands), params

    def _which(self, eqn: JaxprEqn, operands: list[int]) -> Sequence[int]:
        """What tells the results of one equation from each other: of a call, what they are made of."""
        if eqn.primitive.name != "jit" or not jaxprs.is_plain_jit(eqn):
            return range(len(eqn.outvars))
        body = eqn.params["jaxpr"]
        first: dict[int, int] = {}
        places = tuple(first.setdefault(operand, i) for i, operand in enumerate(operands))
        key = id(body), places
        if key not in self._calls:
            inside, consts = jaxprs.inner(body), getattr(body, "consts", ())
            fits = len(consts) == len(inside.constvars)
            self._calls[key] = body, self.of_results(inside, consts, places) if fits else range(len(eqn.outvars))
        return self._calls[key][1]

    def _parameter(self, value: Any) -> Hashable:
        if isinstance(value, (Jaxpr, ClosedJaxpr)):
            return self._jaxpr(value)
        if isinstance(value, (tuple, list)):
            return type(value), *(self._parameter(each) for each in value)
        if isinstance(value, (float, complex, np.generic, np.ndarray)) and np.size(value) <= _SMALL:
            array = np.asarray(value)
            return type(value), array.dtype, array.shape, array.tobytes()
        try:
            hash(value)
        except TypeError:
            return "is", id(value)
        return type(value), value

    def _jaxpr(self, jaxpr: Any) -> Hashable:
        """One number for all of it: what stands deep inside is hashed once, not again at every level above."""
        if id(jaxpr) not in self._known:
            inside, consts, unlike = jaxprs.inner(jaxpr), getattr(jaxpr, "consts", ()), self._unlike
            repeatable = len(consts) == len(inside.constvars)
            if repeatable:
                results = self.of_results(inside, consts)
                repeatable = self._unlike == unlike
            known = self._number(("jaxpr", *results, *(v.aval for v in inside.invars))) if repeatable else None
            self._known[id(jaxpr)] = jaxpr, known
        known = self._known[id(jaxpr)][1]
        return self._new() if known is None else ("jaxpr", known)


def _is_repeatable(eqn: JaxprEqn) -> bool:
    """Whether doing the equation again on equal operands gives equal results and nothing else."""
    return (
        not eqn.effects
        and eqn.primitive.name not in _UNREPEATABLE
        and home(eqn.primitive) == "jax"
        and not may_be_foreign(eqn.primitive.name)
        and not jaxprs.has_metadata(eqn)
        and not any(is_ref(v.aval) for v in (*eqn.invars, *eqn.outvars))
    )
