"""Dead carries of `while` loops: which may go, and taking them out where JAX's own rules leave a `while` whole (up to
0.10).

A carry is alive if it is read after the loop, by the condition, or by what the body computes for a carry that is
alive: the least fixed point of that, found by JAX's dead-code elimination on the condition and the body.

A loop that would be left with one array, carried or only read, stays whole. XLA takes out itself what is dead, but what
it does with a loop it does with a tuple of arrays: that a counter which starts at 0 will end at 2 it finds out of a
tuple, and computes what is made of the 2 while it compiles, by other code than at run time. Whether a loop is a tuple
must not change. So does one that would be left with constants alone: XLA would move it out of loops around it. And so
does one with another loop inside of which a part would go (`narrows_inside`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

from pytc.jax_compat import jaxprs, rewriting, rules
from pytc.jax_compat.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from pytc.passes import subjaxprs
from pytc.passes.constants import CALCULATE, is_constant, is_neutral, of_constants_alone

# What they return is never what they are given, for all that the compiler can see. (Not so `log`, of an `exp`, or `eq`,
# of a truth value and True.)
_COMPUTE = frozenset(
    """acos acosh argmax argmin asin asinh atan atan2 atanh cbrt conv_general_dilated cos cosh digamma dot_general erf
    erf_inv erfc fft lgamma logistic nextafter random_bits random_fold_in random_split rem sin sinh tan tanh
    threefry2x32""".split()
)

_NOT_SURE, _BY_A_NUMBER, _SURE = range(3)
"""How a value is computed. What one number does, the next may undo: `k + 1 - 1`."""


def narrowed(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr with the dead carries of its loops taken out, at every depth; itself if there are none."""
    result: ClosedJaxpr = subjaxprs.Memo(_narrowed)(closed)
    return result


def _narrowed(jaxpr: Jaxpr, change: subjaxprs.Memo) -> Jaxpr:
    eqns: list[JaxprEqn] = []
    read: set[Var] | None = None
    constants: set[Var] = {*jaxpr.constvars}
    has_loops = any(eqn.primitive.name == "while" for eqn in jaxpr.eqns)
    for before in jaxpr.eqns:
        eqn = before
        if not (subjaxprs.is_flat(eqn.primitive) or eqn.primitive.name in subjaxprs.OPAQUE):
            eqn = subjaxprs.map_subjaxprs(eqn, change)
        if eqn.primitive.name == "while":
            if read is None:
                read = {v for e in jaxpr.eqns for v in e.invars if isinstance(v, Var)}
                read.update(v for v in jaxpr.outvars if isinstance(v, Var))
            narrow = _without_dead_carries(eqn, [v in read for v in eqn.outvars])
            if not (
                becomes_one_array(eqn, narrow)
                or of_constants_alone(narrow, constants)
                or any(
                    narrows_inside(*each) for each in zip(jaxprs.subjaxprs(eqn), jaxprs.subjaxprs(narrow), strict=True)
                )
            ):
                eqn = narrow
        eqns.append(eqn)
        if has_loops and of_constants_alone(eqn, constants):
            constants.update(eqn.outvars)
    if all(map(operator.is_, eqns, jaxpr.eqns)):
        return jaxpr
    return rewriting.with_equations(jaxpr, eqns)


def narrows_too_far(before: Jaxpr, after: Jaxpr, *, in_loop: bool = False) -> bool:
    """Whether `after`, which is `before` without dead code, has a loop, at some depth, that has become one of a single
    array, or of constants alone and is `in_loop`, out of which XLA would move it."""
    constants: set[Var] = {*after.constvars}
    for old, eqn in _what_became(before, after):
        of_constants = of_constants_alone(eqn, constants)
        if eqn.primitive.name == "while":
            if _most_arrays(eqn) < _most_arrays(old) and becomes_one_array(old, eqn):
                return True
            if in_loop and of_constants and not of_constants_alone(old, constants):
                return True
        inside = zip(jaxprs.subjaxprs(old), jaxprs.subjaxprs(eqn), strict=True)
        is_loop = in_loop or eqn.primitive.name in ("scan", "while")
        if any(narrows_too_far(*each, in_loop=is_loop) for each in inside):
            return True
        if of_constants:
            constants.update(eqn.outvars)
    return False


def _without_dead_carries(eqn: JaxprEqn, used: list[bool]) -> JaxprEqn:
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    cond_consts, body_consts, _ = jaxprs.split_while(eqn, eqn.invars)
    _, read_by_cond = rules.dce(cond.jaxpr, [True])
    alive = list(map(operator.or_, used, read_by_cond[len(cond_consts) :]))
    while True:
        keep = [False] * len(body_consts) + alive
        new_body, read_by_body = rules.dce(body.jaxpr, alive, keep)
        grown = list(map(operator.or_, alive, read_by_body[len(body_consts) :]))
        if grown == alive:
            break
        alive = grown
    new_cond, read_by_cond = rules.dce(cond.jaxpr, [True], [False] * len(cond_consts) + alive)
    read = [*read_by_cond[: len(cond_consts)], *read_by_body[: len(body_consts)], *alive]
    if all(read):
        return eqn
    return rewriting.like(
        eqn,
        invars=[v for v, kept in zip(eqn.invars, read, strict=True) if kept],
        outvars=[v for v, kept in zip(eqn.outvars, alive, strict=True) if kept],
        params=dict(
            eqn.params,
            cond_jaxpr=rewriting.close(new_cond, cond.consts),
            body_jaxpr=rewriting.close(new_body, body.consts),
            cond_nconsts=sum(read_by_cond[: len(cond_consts)]),
            body_nconsts=sum(read_by_body[: len(body_consts)]),
        ),
    )


def becomes_one_array(before: JaxprEqn, after: JaxprEqn) -> bool:
    """Whether a loop of several arrays may be one of a single array for XLA once `after` has taken its place."""
    return _most_arrays(before) > 1 and may_be_one_array(after)


def _most_arrays(eqn: JaxprEqn) -> int:
    """How many arrays a loop may have for XLA: those that its steps read, and those that they change.

    The others, carries that every step only hands on, are taken out of the loop before XLA sees it.
    """
    cond, body = (jaxprs.inner(eqn.params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    read = {v for each in (cond, body) for inner in each.eqns for v in inner.invars if isinstance(v, Var)}
    of_cond, of_body = cond.invars[: eqn.params["cond_nconsts"]], body.invars[: eqn.params["body_nconsts"]]
    carries = zip(cond.invars[len(of_cond) :], body.invars[len(of_body) :], body.outvars, strict=True)
    carried = sum(new is not old or old in read or checked in read for checked, old, new in carries)
    return carried + len(read.intersection(of_cond)) + len(read.intersection(of_body))


def narrows_inside(before: Jaxpr, after: Jaxpr) -> bool:
    """Whether an equation of `after`, at some depth, has fewer results than the one of `before` that it was made of.

    JAX narrows a `scan` in the program, but in what its rules leave whole it is lowered with all that it carries and
    stacks. The CPU's compiler, which computes bfloat16 in float32, takes the dead parts out only when it has decided
    where to round.
    """
    for old, eqn in _what_became(before, after):
        inside = zip(jaxprs.subjaxprs(old), jaxprs.subjaxprs(eqn), strict=True)
        if len(old.outvars) > len(eqn.outvars) or any(narrows_inside(*each) for each in inside):
            return True
    return False


def _what_became(before: Jaxpr, after: Jaxpr) -> Iterator[tuple[JaxprEqn, JaxprEqn]]:
    """Each equation of a jaxpr without dead code, after the one that it was made of."""
    made_of = {v: eqn for eqn in before.eqns for v in eqn.outvars}
    for eqn in after.eqns:
        yield next((made_of[v] for v in eqn.outvars if v in made_of), eqn), eqn


def may_be_one_array(eqn: JaxprEqn) -> bool:
    """Whether fewer than two carries of a loop are sure to be computed anew, by more than handing on, in each step."""
    return sum(_computed(jaxprs.inner(eqn.params["body_jaxpr"]))) < 2


def _computed(jaxpr: Jaxpr) -> list[bool]:
    """Which outvars are sure to be other values than the invars and constants."""
    computed: dict[Var, int] = {}
    constants = {*jaxpr.constvars}

    def how(atom: Var | Literal) -> int:
        return computed.get(atom, _NOT_SURE) if isinstance(atom, Var) else _NOT_SURE

    def is_computed(atom: Var | Literal) -> bool:
        return how(atom) > _NOT_SURE

    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "scan":
            carry = jaxprs.split_scan(eqn, [is_computed(atom) for atom in eqn.invars])[1]
            (body,) = jaxprs.subjaxprs(eqn)
            returned = map(operator.or_, carry, _computed(body)) if jaxprs.has_steps(eqn) else carry
            made = [*returned, *[True] * (len(eqn.outvars) - len(carry))]
        elif name == "while":
            carry = jaxprs.split_while(eqn, [is_computed(atom) for atom in eqn.invars])[2]
            made = list(map(operator.or_, carry, _computed(jaxprs.inner(eqn.params["body_jaxpr"]))))
        elif name == "cond":
            of_branches = zip(*(_computed(branch) for branch in jaxprs.subjaxprs(eqn)), strict=True)
            made = [any(is_computed(atom) for atom in eqn.invars[1:]) or any(by_branch) for by_branch in of_branches]
        else:
            if of_constants_alone(eqn, constants):
                constants.update(eqn.outvars)
            computed.update(dict.fromkeys(eqn.outvars, _how(eqn, [how(atom) for atom in eqn.invars], constants)))
            continue
        computed.update((v, _SURE) for v, is_made in zip(eqn.outvars, made, strict=True) if is_made)
    return [is_computed(atom) for atom in jaxpr.outvars]


def _how(eqn: JaxprEqn, operands: Sequence[int], constants: set[Var]) -> int:
    """How the results of an equation without jaxprs are computed, given how its operands are."""
    name = eqn.primitive.name
    if name in _COMPUTE:
        return _SURE
    handed_on = max(operands[name == "select_n" :], default=_NOT_SURE)
    numbers = [v for v in eqn.invars if is_constant(v, constants)]
    if name not in CALCULATE or any(not isinstance(v, Literal) or is_neutral(name, v) for v in numbers):
        return handed_on
    if not numbers:
        return _SURE
    return {_NOT_SURE: _BY_A_NUMBER, _BY_A_NUMBER: _NOT_SURE, _SURE: _SURE}[handed_on]
