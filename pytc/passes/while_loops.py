"""Dead carries of `while` loops, for the versions of JAX whose own rules leave a `while` whole (up to 0.10).

A carry is alive if it is read after the loop, by the condition, or by what the body computes for a carry that is
alive: the least fixed point of that, found by JAX's dead-code elimination on the condition and the body.

A loop that would be left with one array stays whole. XLA takes dead carries out itself, but what it does with a loop
it does with a tuple of arrays: that a counter which starts at 0 will end at 2 it finds out of a tuple, and computes
what is made of the 2 while it compiles, by other code than at run time. Whether a loop is a tuple must not change.
"""

from __future__ import annotations

import operator

from pytc import jax_compat
from pytc.jax_compat import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from pytc.passes import subjaxprs

# What they return may be what they are given, for all that the compiler can see.
_HAND_ON = frozenset(
    """broadcast_in_dim convert_element_type copy copy_p expand_dims name reshape select_n slice squeeze stop_gradient
    transpose""".split()
)


def narrowed(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr with the dead carries of its loops taken out, at every depth; itself if there are none."""
    change: subjaxprs.Memo = subjaxprs.Memo(lambda jaxpr: _narrowed(jaxpr, change))
    result: ClosedJaxpr = change(closed)
    return result


def _narrowed(jaxpr: Jaxpr, change: subjaxprs.Memo) -> Jaxpr:
    eqns: list[JaxprEqn] = []
    read: set[Var] | None = None
    for before in jaxpr.eqns:
        eqn = before
        if eqn.primitive.name not in subjaxprs.OPAQUE:
            eqn = subjaxprs.map_subjaxprs(eqn, change)
        if eqn.primitive.name == "while":
            if read is None:
                read = {v for e in jaxpr.eqns for v in e.invars if isinstance(v, Var)}
                read.update(v for v in jaxpr.outvars if isinstance(v, Var))
            eqn = _without_dead_carries(eqn, [v in read for v in eqn.outvars])
        eqns.append(eqn)
    if all(map(operator.is_, eqns, jaxpr.eqns)):
        return jaxpr
    return subjaxprs.with_equations(jaxpr, eqns)


def _without_dead_carries(eqn: JaxprEqn, used: list[bool]) -> JaxprEqn:
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    cond_consts, body_consts, _ = jax_compat.split_while(eqn, eqn.invars)
    _, read_by_cond = jax_compat.dce(cond.jaxpr, [True])
    alive = list(map(operator.or_, used, read_by_cond[len(cond_consts) :]))
    while True:
        keep = [False] * len(body_consts) + alive
        new_body, read_by_body = jax_compat.dce(body.jaxpr, alive, keep)
        grown = list(map(operator.or_, alive, read_by_body[len(body_consts) :]))
        if grown == alive:
            break
        alive = grown
    new_cond, read_by_cond = jax_compat.dce(cond.jaxpr, [True], [False] * len(cond_consts) + alive)
    read = [*read_by_cond[: len(cond_consts)], *read_by_body[: len(body_consts)], *alive]
    if all(read):
        return eqn
    narrow = jax_compat.like(
        eqn,
        invars=[v for v, kept in zip(eqn.invars, read, strict=True) if kept],
        outvars=[v for v, kept in zip(eqn.outvars, alive, strict=True) if kept],
        params=dict(
            eqn.params,
            cond_jaxpr=jax_compat.close(new_cond, cond.consts),
            body_jaxpr=jax_compat.close(new_body, body.consts),
            cond_nconsts=sum(read_by_cond[: len(cond_consts)]),
            body_nconsts=sum(read_by_body[: len(body_consts)]),
        ),
    )
    return eqn if becomes_one_array(eqn, narrow) else narrow


def becomes_one_array(before: JaxprEqn, after: JaxprEqn) -> bool:
    """Whether a loop of several arrays may be one of a single array for XLA once `after` has taken its place.

    Carries that every step hands on unchanged do not count: they are taken out of the loop before XLA sees it.
    """
    body = jax_compat.inner(before.params["body_jaxpr"])
    carried = body.invars[before.params["body_nconsts"] :]
    return sum(map(operator.is_not, carried, body.outvars)) > 1 and may_be_one_array(after)


def may_be_one_array(eqn: JaxprEqn) -> bool:
    """Whether fewer than two carries of a loop are sure to be computed anew, by more than handing on, in each step."""
    body = jax_compat.inner(eqn.params["body_jaxpr"])
    computed: set[Var] = set()
    for inner in body.eqns:
        name = inner.primitive.name
        handed_on = inner.invars[name == "select_n" :]
        if name not in _HAND_ON or any(isinstance(v, Var) and v in computed for v in handed_on):
            computed.update(inner.outvars)
    return sum(isinstance(v, Var) and v in computed for v in body.outvars) < 2
