"""Values that are computed from constants alone.

XLA computes them at compile time where it can, with other code than at run time, and the two may differ in the last
bit. So a pass that makes a value constant, or no longer constant, may change bits.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from pytc.jax_compat import jaxprs
from pytc.jax_compat.avals import is_extended
from pytc.jax_compat.jaxprs import Jaxpr, JaxprEqn, Literal, Var

# Primitives whose result has the operand's elements, in order, each once or repeated.
_RESHAPES = frozenset("broadcast_in_dim copy reshape squeeze".split())


_OF_ITSELF_KNOWN = frozenset("eq ne lt le gt ge sub xor div rem".split())
_ABSORBING: dict[str, tuple[int, ...]] = {"mul": (0,), "and": (0,), "or": (1, -1)}


# With this as an operand they return the other one, as XLA knows. (Some only as the second; but to take too much for
# neutral does no more than keep a pass from something.)
_NEUTRAL = {"add": 0, "add_any": 0, "div": 1, "mul": 1, "or": 0, "pow": 1, "sub": 0, "xor": 0}
CALCULATE = frozenset({"and", "max", "min", *_NEUTRAL})
"""Primitives of two operands that return one of them where the other is neutral."""


def is_neutral(name: str, literal: Literal) -> bool:
    """Whether the primitive of this name, with this literal as an operand, returns the other operand."""
    value, dtype = literal.val, getattr(literal.aval, "dtype", np.dtype(bool))
    if np.ndim(value) or is_extended(dtype):
        return False
    if name not in ("and", "max", "min"):
        return name in _NEUTRAL and bool(value == _NEUTRAL[name])
    least: float = -np.inf
    most: float = np.inf
    if dtype == np.bool_:
        least, most = False, True
    elif np.issubdtype(dtype, np.integer):
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    if name == "and":
        return bool(value == (most if least == 0 else -1))
    return bool(value == (least if name == "max" else most))


def same_by_anyone(eqn: JaxprEqn) -> bool:
    """Whether the equation, on constants, gives the same bits at compile time and at run time, and so do its readers.

    Moving floats around (a transpose, say) does not qualify: what is moved at compile time is an array like any other,
    but a move at run time is fused into its reader, such as a dot product or a sum, which may then add in another
    order.
    """
    if eqn.primitive.name in _RESHAPES:
        return True
    return not list(jaxprs.subjaxprs(eqn)) and all(_is_exact(atom) for atom in (*eqn.invars, *eqn.outvars))


def _is_exact(atom: Var | Literal) -> bool:
    """Whether the type is exact: integers, booleans or PRNG keys."""
    dtype = getattr(atom.aval, "dtype", np.dtype(bool))
    return is_extended(dtype) or np.issubdtype(dtype, np.integer) or dtype == np.bool_


def is_constant(atom: Var | Literal, constants: set[Var]) -> bool:
    """Whether the atom is a literal or one of `constants`."""
    return isinstance(atom, Literal) or atom in constants


def of_constants_alone(eqn: JaxprEqn, constants: set[Var]) -> bool:
    """Whether the equation has no effects, and its operands are constant or do not matter (`x - x`)."""
    return not eqn.effects and (all(is_constant(v, constants) for v in eqn.invars) or has_known_result(eqn))


def has_known_result(eqn: JaxprEqn) -> bool:
    """Whether the result of exact type is known whatever the operands are: `x != x`, `x - x`, `x * 0`, `x & False`."""
    if len(eqn.invars) != 2:
        return False
    name, (one, other) = eqn.primitive.name, eqn.invars
    if one is other:
        return name in _OF_ITSELF_KNOWN and _is_exact(one)
    absorbing = _ABSORBING.get(name)
    if absorbing is None or not (_is_exact(one) and _is_exact(other)):
        return False
    return any(isinstance(v, Literal) and not np.ndim(v.val) and v.val in absorbing for v in (one, other))


def has_constant_loop(
    jaxpr: Jaxpr, constants: Collection[Var] = (), known: dict[tuple[int, frozenset[Var]], bool] | None = None
) -> bool:
    """Whether a loop in the jaxpr, at any depth, reads constants alone. `constants` are those of its invars that are
    constant.

    XLA moves such a loop out of a loop around it, and compiles it there, if the outer loop has an operand that never
    changes.

    `known` has the answers for the jaxprs inside, so that one that is called twice is looked into once.
    """
    known = {} if known is None else known
    key = id(jaxpr), frozenset(constants)
    if key not in known:
        known[key] = _has_constant_loop(jaxpr, {*jaxpr.constvars, *constants}, known)
    return known[key]


def _has_constant_loop(jaxpr: Jaxpr, fixed: set[Var], known: dict[tuple[int, frozenset[Var]], bool]) -> bool:
    for eqn in jaxpr.eqns:
        alone = of_constants_alone(eqn, fixed)
        if alone and eqn.primitive.name in ("scan", "while"):
            return True
        for body in jaxprs.subjaxprs(eqn):
            called = [v for v, outer in zip(body.invars, eqn.invars, strict=False) if is_constant(outer, fixed)]
            if has_constant_loop(body, called if len(body.invars) == len(eqn.invars) else (), known):
                return True
        if alone:
            fixed.update(eqn.outvars)
    return False
