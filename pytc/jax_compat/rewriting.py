"""Jaxprs and equations made of others: with other inputs, outputs, consts, operands or types.

For JAX 0.10 to 0.12: the constructors in `jax.extend.core`, `debug_info` and the parameters of `jit`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

from jax.extend import core as jex_core

from pytc.jax_compat.api import UNSPECIFIED
from pytc.jax_compat.avals import AbstractValue
from pytc.jax_compat.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, input_names


def close(jaxpr: Jaxpr, consts: Sequence[Any]) -> ClosedJaxpr:
    """The jaxpr with values for its constvars."""
    return ClosedJaxpr(jaxpr, list(consts))


def like(eqn: JaxprEqn, *, invars: Sequence[Any], outvars: Sequence[Var], params: dict[str, Any]) -> JaxprEqn:
    """The equation with other operands, results and parameters, and the effects that follow from these."""
    abstract_eval: Any = eqn.primitive.abstract_eval
    _, effects = abstract_eval(*(v.aval for v in invars), **params)
    return jex_core.new_jaxpr_eqn(list(invars), list(outvars), eqn.primitive, params, effects, eqn.source_info, eqn.ctx)


def retyped(eqn: JaxprEqn, value: Var | Literal, out: Var) -> JaxprEqn:
    """An equation in the place of `eqn` that binds `value` to `out`, which differs from it in weak type alone. XLA
    sees nothing of it."""
    aval: AbstractValue = out.aval
    params = {"new_dtype": aval.dtype, "weak_type": aval.weak_type, "sharding": None}
    primitive = jex_core.primitives.convert_element_type_p
    result: JaxprEqn = eqn.replace(
        invars=[value], outvars=[out], primitive=primitive, params=params, effects=jex_core.no_effects
    )
    return result


def literal(value: Any, like: Literal | Var) -> Literal:
    """A literal of the type of another one, or of a variable."""
    made: Any = Literal
    return cast(Literal, made(value, like.aval))


def with_equations(
    jaxpr: Jaxpr,
    eqns: Sequence[JaxprEqn],
    *,
    outvars: Sequence[Var | Literal] | None = None,
) -> Jaxpr:
    """The jaxpr with other equations, and other outvars if given, of the same number. Effects stay: what takes away an
    effect is `dce`. The type is that of `jaxpr`, and so are the consts that it may carry."""
    given: Any = jaxpr
    changed: Jaxpr = given.replace(
        eqns=list(eqns),
        outvars=list(jaxpr.outvars if outvars is None else outvars),
        debug_info=jaxpr.debug_info,
    )
    return changed


def with_inputs(
    closed: ClosedJaxpr,
    *,
    constants: Sequence[tuple[Var, Any]],
    invars: Sequence[Var],
    names: Sequence[str],
    eqns: Sequence[JaxprEqn] | None = None,
) -> ClosedJaxpr:
    """The jaxpr with other constvars and invars, and other equations if given."""
    jaxpr = closed.jaxpr
    return ClosedJaxpr(
        Jaxpr(
            [var for var, _ in constants],
            list(invars),
            jaxpr.outvars,
            jaxpr.eqns if eqns is None else list(eqns),
            jaxpr.effects,
            jaxpr.debug_info._replace(arg_names=tuple(names)),
        ),
        [value for _, value in constants],
    )


def with_outputs(closed: ClosedJaxpr, order: Sequence[int]) -> ClosedJaxpr:
    """The jaxpr with its outputs in another order."""
    jaxpr = closed.jaxpr
    outvars = [jaxpr.outvars[i] for i in order]
    info = jaxpr.debug_info._replace(result_paths=None)
    ordered = Jaxpr(jaxpr.constvars, jaxpr.invars, outvars, jaxpr.eqns, jaxpr.effects, info)
    return ClosedJaxpr(ordered, closed.consts)


def lift_inner_consts(closed: ClosedJaxpr, wanted: Callable[[Any], bool] = lambda value: True) -> ClosedJaxpr:
    """Consts of inner `jit`s, and of `jit`s in those, as consts of the whole, if they are `wanted`; one for each array.

    Tracing leaves what an inner `jit`ted function captured inside its equation.
    """
    lifted = _Lifted(wanted)
    jaxpr = closed.jaxpr
    eqns, constants = lifted.equations(jaxpr.eqns, jaxpr.constvars, closed.consts)
    if all(map(operator.is_, eqns, jaxpr.eqns)):
        return closed
    constants = [*zip(jaxpr.constvars, closed.consts, strict=True), *constants]
    return with_inputs(closed, constants=constants, invars=jaxpr.invars, names=input_names(jaxpr), eqns=eqns)


class _Lifted:
    """Equations with the `wanted` consts of their `jit`s made operands. A body that several call stays one."""

    def __init__(self, wanted: Callable[[Any], bool]) -> None:
        self._wanted = wanted
        self._bodies: dict[int, tuple[ClosedJaxpr, list[Any]]] = {}
        """By the body (id): the one that takes its place, and what it is given first."""

    def equations(
        self, eqns: Sequence[JaxprEqn], constvars: Sequence[Var], consts: Sequence[Any]
    ) -> tuple[list[JaxprEqn], list[tuple[Var, Any]]]:
        """Those of a jaxpr with these consts, and what else has to be among its consts or operands, with its vars."""
        known = {id(value): var for var, value in zip(constvars, consts, strict=True)}
        changed, lifted = [], []
        for eqn in eqns:
            if eqn.primitive is jex_core.primitives.jit_p:
                body, values = self._body(eqn.params["jaxpr"])
                for value, inner_var in zip(values, body.jaxpr.invars, strict=False):
                    if id(value) not in known:
                        known[id(value)] = Var(inner_var.aval)
                        lifted.append((known[id(value)], value))
                if values:
                    eqn = _with_leading_operands(eqn, body, [known[id(value)] for value in values])
            changed.append(eqn)
        return changed, lifted

    def _body(self, body: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
        if id(body) not in self._bodies:
            consts = list(zip(body.jaxpr.constvars, body.consts, strict=True))
            eqns, inner = self.equations(body.jaxpr.eqns, body.jaxpr.constvars, body.consts)
            constants = [*((var, value) for var, value in consts if self._wanted(value)), *inner]
            made = body
            if constants:
                made = with_inputs(
                    body,
                    constants=[(var, value) for var, value in consts if not self._wanted(value)],
                    invars=[*(var for var, _ in constants), *body.jaxpr.invars],
                    names=[""] * len(constants) + input_names(body.jaxpr),
                    eqns=eqns,
                )
            self._bodies[id(body)] = made, [value for _, value in constants]
        return self._bodies[id(body)]


def _with_leading_operands(eqn: JaxprEqn, body: ClosedJaxpr, operands: Sequence[Var]) -> JaxprEqn:
    """A `jit` equation with more operands, before those that it has, and the body that takes them."""
    n = len(operands)
    params = dict(
        eqn.params,
        jaxpr=body,
        in_shardings=(UNSPECIFIED,) * n + tuple(eqn.params["in_shardings"]),
        in_layouts=(None,) * n + tuple(eqn.params["in_layouts"]),
        donated_invars=(False,) * n + tuple(eqn.params["donated_invars"]),
    )
    replaced: JaxprEqn = eqn.replace(invars=[*operands, *eqn.invars], params=params)
    return replaced
