"""Work on constants alone is done while compiling: by whom, and so with which bits, depends on what stands around.

What JAX emits is folded twice. First within each function of the module, by other code than XLA's own, which folds
what is left once calls are inlined. The two do not always agree in the last bit. So a call that constants go into or
come out of decides by whom they are folded, and to take it away can change results.

A function of the module is what JAX emits for an inner `jit` and the few other `CALLS`. A custom derivative or a remat
is emitted where it stands; so are the branches of a `cond` and the body of a loop, which see the constants around them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from pytc.jax_compat import jaxprs
from pytc.jax_compat.avals import is_extended
from pytc.jax_compat.jaxprs import DropVar, Jaxpr, JaxprEqn, Literal, Var

# Move data without computing: of a constant they make the same constant at compile time as at run time.
_MOVES = frozenset(
    """broadcast_in_dim concatenate copy copy_p dynamic_slice expand_dims gather pad reshape rev select_n slice squeeze
    transpose""".split()
)

# Exact, so that it does not matter who computes them, or when.
_EXACT = frozenset("abs and ceil convert_element_type eq floor ge gt le lt max min ne neg not or sign xor".split())


_OF_ITSELF_KNOWN = frozenset("eq ne lt le gt ge sub xor div rem".split())
_ABSORBING: dict[str, tuple[int, ...]] = {"mul": (0,), "and": (0,), "or": (1, -1)}


CALLS = frozenset({"closed_call", "core_call", "eval_jaxpr", "jit", "pjit"})
"""Primitives that are emitted as calls of a function."""


def same_by_anyone(eqn: JaxprEqn) -> bool:
    """Whether constants alone give the same bits whoever computes them, and when."""
    if eqn.primitive.name in _MOVES or eqn.primitive.name in _EXACT:
        return True
    return not list(jaxprs.subjaxprs(eqn)) and all(map(_is_exact, (*eqn.invars, *eqn.outvars)))


def _is_exact(atom: Var | Literal) -> bool:
    """Whether it is of integers, bits or keys."""
    dtype = getattr(atom.aval, "dtype", np.dtype(bool))
    return is_extended(dtype) or np.issubdtype(dtype, np.integer) or dtype == np.bool_


def is_constant(atom: Var | Literal, constants: set[Var]) -> bool:
    """Whether it is a literal or one of `constants`."""
    return isinstance(atom, Literal) or atom in constants


def of_constants_alone(eqn: JaxprEqn, constants: set[Var]) -> bool:
    """Whether all that the equation reads is constant, or does not matter, and nothing happens beside."""
    return not eqn.effects and (all(is_constant(v, constants) for v in eqn.invars) or _is_known(eqn))


def _is_known(eqn: JaxprEqn) -> bool:
    """Whether integers or bits are what they are whatever the operands: `x != x`, `x - x`, `x * 0`, `x & False`."""
    if len(eqn.invars) != 2 or not all(map(_is_exact, eqn.invars)):
        return False
    name, (one, other) = eqn.primitive.name, eqn.invars
    if one is other:
        return name in _OF_ITSELF_KNOWN
    absorbing = _ABSORBING.get(name, ())
    return any(isinstance(v, Literal) and not np.ndim(v.val) and v.val in absorbing for v in (one, other))


def has_constant_loop(jaxpr: Jaxpr, constants: Collection[Var] = ()) -> bool:
    """Whether a loop in it, at any depth, works on constants alone. `constants` are such among its invars.

    XLA moves that out of a loop around it, and compiles it there, if the loop has an operand that never changes.
    """
    known = {*jaxpr.constvars, *constants}
    for eqn in jaxpr.eqns:
        alone = of_constants_alone(eqn, known)
        if alone and eqn.primitive.name in ("scan", "while"):
            return True
        for body in jaxprs.subjaxprs(eqn):
            called = [v for v, outer in zip(body.invars, eqn.invars, strict=False) if is_constant(outer, known)]
            if has_constant_loop(body, called if len(body.invars) == len(eqn.invars) else ()):
                return True
        if alone:
            known.update(eqn.outvars)
    return False


def constant_in_regions(eqn: JaxprEqn, constants: set[Var]) -> dict[str, tuple[bool, ...]]:
    """For an equation whose jaxprs see the constants around it: by parameter, which of the jaxprs' invars are such.
    Empty where none is. A loop's carry that starts as a constant counts as one: it may turn out never to change."""
    given = [is_constant(v, constants) for v in eqn.invars]
    if not any(given):
        return {}
    if eqn.primitive.name == "cond":
        return {"branches": tuple(given[1:])}
    if eqn.primitive.name == "scan":
        consts, carry, slices = jaxprs.split_scan(eqn, given)
        return {"jaxpr": (*consts, *carry, *(False for _ in slices))}
    if eqn.primitive.name == "while":
        cond, body, carry = jaxprs.split_while(eqn, given)
        return {"cond_jaxpr": (*cond, *carry), "body_jaxpr": (*body, *carry)}
    return {}


def folded_across(body: Jaxpr, eqn: JaxprEqn, given: Sequence[bool]) -> bool:
    """Whether constants meet across the boundary of a call of `body`, where it would be inlined for `eqn`: work on
    constants alone in it, or in regions of it, that needs a constant operand (`given` says which are), or a constant
    among its results."""
    operands = {v for v, is_given in zip(body.invars, given, strict=True) if is_given}
    constants = operands.union(body.constvars)
    for inner in body.eqns:
        reads_operands = not operands.isdisjoint(v for v in inner.invars if isinstance(v, Var))
        if of_constants_alone(inner, constants):
            constants.update(inner.outvars)
            if reads_operands:
                operands.update(inner.outvars)
                if not same_by_anyone(inner):
                    return True
        elif reads_operands and constant_in_regions(inner, operands):
            return True
    return any(
        is_constant(result, constants) and not isinstance(out, DropVar)
        for result, out in zip(body.outvars, eqn.outvars, strict=True)
    )
