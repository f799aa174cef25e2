"""Rewriting a jaxpr and the jaxprs inside it: what several passes have in common.

Two equations may share one jaxpr object (a function jitted once and called twice, the body of a differentiated loop),
and JAX lowers it once. So a rewrite keeps one result for each jaxpr object, and what was shared stays shared.

Vars are never reused: a jaxpr that is inlined gets new vars, so that it can be inlined in several places.
"""

from __future__ import annotations

import abc
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from pytc.jax_compat import jaxprs
from pytc.jax_compat.effects import has_visible_effects, renamed_effects
from pytc.jax_compat.jaxprs import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Primitive, Var
from pytc.jax_compat.origins import home, names_within, source_within
from pytc.passes.dataflow import ELEMENTWISE, INDEXED

Atom: TypeAlias = "Var | Literal"

OPAQUE = frozenset({"core_map", "custom_partitioning", "mpmd_map", "pallas_call", "program_order"})
"""Primitives whose jaxprs must not be rewritten: they are no XLA programs, or are read by code that expects them as
traced, such as what puts a barrier between any two equations."""


_FLAT = ELEMENTWISE | INDEXED | {"dot_general", "reshape", "squeeze"}


@functools.cache
def is_flat(primitive: Primitive) -> bool:
    """Whether this is one of JAX's own common primitives that compute one array, have no effect and hold no jaxpr."""
    return primitive.name in _FLAT and home(primitive) == "jax"


class Once(abc.ABC):
    """What `changed`, of a subclass, makes of a jaxpr, open or closed: asked once of each."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Any, Any]] = {}

    def __call__(self, jaxpr: Any) -> Any:
        """The changed jaxpr: open if the jaxpr is open, else closed."""
        # The jaxpr is kept beside the result so that its id is not reused.
        if id(jaxpr) not in self._done:
            self._done[id(jaxpr)] = jaxpr, self.changed(jaxpr)
        return self._done[id(jaxpr)][1]

    @abc.abstractmethod
    def changed(self, jaxpr: Any) -> Any:
        """What becomes of a jaxpr that has not been seen yet."""


class Memo(Once):
    """Applies `change`, a function from jaxpr to jaxpr, once to each jaxpr (open or closed) that it is called with.

    `change` gets the jaxpr, and this `Memo` for the jaxprs inside. (A reference from `change` itself would be a cycle,
    and keep the arrays that the jaxprs captured until garbage is collected.)
    """

    def __init__(self, change: Callable[[Jaxpr, Memo], Jaxpr]) -> None:
        super().__init__()
        self._change = change

    def changed(self, jaxpr: Any) -> Any:
        """The jaxpr after `change`; a closed one keeps its consts."""
        if isinstance(jaxpr, Jaxpr):
            return self._change(jaxpr, self)
        changed = self(jaxpr.jaxpr)
        return jaxpr if changed is jaxpr.jaxpr else ClosedJaxpr(changed, jaxpr.consts)


def rename(eqn: JaxprEqn, names: dict[Var, Atom]) -> JaxprEqn:
    """The equation with its invars replaced as `names` says; the same object if it has none of them."""
    if not names or not any(isinstance(v, Var) and v in names for v in eqn.invars):
        return eqn
    invars = [renamed(v, names) for v in eqn.invars]
    result: JaxprEqn = eqn.replace(invars=invars, effects=renamed_effects(eqn, invars))
    return result


def renamed(atom: Atom, names: dict[Var, Atom]) -> Atom:
    """The atom that replaces `atom`, following `names` as far as they go."""
    while isinstance(atom, Var) and atom in names:
        atom = names[atom]
    return atom


def inline(eqn: JaxprEqn, body: Jaxpr, operands: Sequence[Atom], name: str = "") -> tuple[list[JaxprEqn], list[Atom]]:
    """The equations of `body` on these operands, to replace `eqn`, and its results.

    Their name stacks begin with that of `eqn` (and `name`, which JAX adds when it lowers such an equation), so that
    profiles and `jax.named_scope` show the same names as before.
    """
    stack = names_within(eqn, name)
    names: dict[Var, Atom] = dict(zip([*body.constvars, *body.invars], operands, strict=True))
    eqns = []
    for inner in body.eqns:
        invars = [renamed(v, names) for v in inner.invars]
        outvars = [v if isinstance(v, DropVar) else Var(v.aval) for v in inner.outvars]
        names.update((old, new) for old, new in zip(inner.outvars, outvars, strict=True) if old is not new)
        eqns.append(
            inner.replace(
                invars=invars,
                outvars=outvars,
                effects=renamed_effects(inner, invars),
                source_info=source_within(inner, stack),
            )
        )
    return eqns, [renamed(v, names) for v in body.outvars]


JaxprChange: TypeAlias = Callable[[Any], Any]
"""A function from Jaxpr to Jaxpr, and from ClosedJaxpr to ClosedJaxpr."""


def map_subjaxprs(eqn: JaxprEqn, change: JaxprChange) -> JaxprEqn:
    """The equation with `change` applied to each jaxpr in its parameters; the same object if nothing changed."""
    params: dict[str, Any] = {}
    for name, value in eqn.params.items():
        changed = _map_jaxprs(value, change)
        if changed is not value:
            params[name] = changed
    return eqn.replace(params={**eqn.params, **params}) if params else eqn


def _map_jaxprs(value: Any, change: JaxprChange) -> Any:
    if isinstance(value, (Jaxpr, ClosedJaxpr)):
        return change(value)
    if isinstance(value, (tuple, list)) and any(isinstance(v, (Jaxpr, ClosedJaxpr, tuple, list)) for v in value):
        parts = [_map_jaxprs(v, change) for v in value]
        if all(map(operator.is_, parts, value)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def effects_in_order(jaxpr: Jaxpr) -> Iterator[str]:
    """The names of the primitives with a visible effect, at every depth, in order."""
    for eqn in jaxpr.eqns if jaxpr.effects else ():
        inner = list(jaxprs.subjaxprs(eqn))
        for sub in inner:
            yield from effects_in_order(sub)
        if not inner and has_visible_effects(eqn):
            yield eqn.primitive.name


def count(jaxpr: Jaxpr, known: dict[int, int] | None = None) -> int:
    """The number of equations at every depth. Those of a jaxpr that is used twice count twice.

    `known` has the counts of jaxprs by id, and gets those counted here; whoever keeps it must keep the jaxprs.
    """
    known = {} if known is None else known
    if id(jaxpr) not in known:
        known[id(jaxpr)] = len(jaxpr.eqns) + sum(
            count(sub, known) for eqn in jaxpr.eqns for sub in jaxprs.subjaxprs(eqn)
        )
    return known[id(jaxpr)]


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Each equation at every depth. Those of a jaxpr that is used twice come once."""
    seen: set[int] = set()
    ahead = [jaxpr]
    while ahead:
        each = ahead.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield from each.eqns
            nested = [eqn for eqn in each.eqns if not is_flat(eqn.primitive)]
            ahead += [inner for eqn in nested for inner in jaxprs.subjaxprs(eqn)]


def has(jaxpr: Jaxpr, name: str) -> bool:
    """Whether the jaxpr has an equation with a primitive of this name, at any depth."""
    return any(eqn.primitive.name == name for eqn in equations(jaxpr))


def handed_on(eqn: JaxprEqn) -> dict[Var, Atom]:
    """For an equation that is a loop, a `cond` or a `jit`: its results that are unchanged operands, and these operands.

    JAX finds most of them while it traces; others show only once the wrappers inside are gone.
    """
    name, operands = eqn.primitive.name, eqn.invars
    pairs: list[tuple[int, int]] = []  # (outvar, operand)
    if name == "scan":
        body = jaxprs.inner(eqn.params["jaxpr"])
        _, carry, slices = jaxprs.split_scan(eqn, range(len(operands)))
        place: dict[Any, int] = dict(zip(body.invars, range(len(operands)), strict=True))
        for out, var in enumerate(body.outvars):
            given = None if isinstance(var, Literal) else place.get(var)
            if given is not None and (given == carry[out] if out < len(carry) else given in slices):
                pairs.append((out, given))
    elif name == "while":
        body = jaxprs.inner(eqn.params["body_jaxpr"])
        *_, carry = jaxprs.split_while(eqn, range(len(operands)))
        carried = body.invars[len(body.invars) - len(carry) :]
        pairs = [(i, carry[i]) for i, (old, new) in enumerate(zip(carried, body.outvars, strict=True)) if old is new]
    elif name == "cond":
        of_branches = [_outvars_that_are_invars(jaxprs.inner(branch)) for branch in eqn.params["branches"]]
        first, *others = of_branches
        pairs = [(out, given + 1) for out, given in first.items() if all(o.get(out) == given for o in others)]
    elif name == "jit" and jaxprs.is_plain_jit(eqn):
        pairs = list(_outvars_that_are_invars(jaxprs.inner(eqn.params["jaxpr"])).items())
    return {
        eqn.outvars[out]: operands[given]
        for out, given in pairs
        if not isinstance(eqn.outvars[out], DropVar) and eqn.outvars[out].aval == operands[given].aval
    }


def _outvars_that_are_invars(jaxpr: Jaxpr) -> dict[int, int]:
    place = {var: i for i, var in enumerate(jaxpr.invars)}
    return {i: place[v] for i, v in enumerate(jaxpr.outvars) if isinstance(v, Var) and v in place}
