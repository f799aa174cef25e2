"""What a jaxpr does besides computing its results: effects, `Ref`s, Python and other code that is not XLA's.

For JAX 0.10 to 0.12, which export few of the classes of effects: the others are known by name, as primitives are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from pytc.jax_compat.avals import AbstractValue, held, is_ref
from pytc.jax_compat.jaxprs import CALLS, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, subjaxprs
from pytc.jax_compat.origins import home


def has_visible_effects(eqn: JaxprEqn) -> bool:
    """Whether an equation does more than compute, allocate, read and write `Ref`s or name a mapped axis. What a
    `HiPrim` does to a `Ref` counts, too: JAX 0.10 takes one whose results nobody reads for dead."""
    is_high = eqn.primitive.name == "call_hi_primitive"
    return any(
        (is_high or not hasattr(effect, "input"))
        and type(effect).__name__ not in ("NamedAxisEffect", "InternalMutableArrayEffect")
        for effect in eqn.effects
    )


def renamed_effects(eqn: JaxprEqn, invars: Sequence[Var | Literal]) -> Any:
    """The effects of `eqn` with other `invars`: an effect on a `Ref` names the var that holds it."""
    if not any(hasattr(effect, "input") for effect in eqn.effects):
        return eqn.effects
    effects: Iterable[Any] = eqn.effects
    names = {old: new for old, new in zip(eqn.invars, invars, strict=True) if isinstance(old, Var)}
    return {
        effect.replace(names.get(effect.input, effect.input)) if hasattr(effect, "input") else effect
        for effect in effects
    }


def makes_weak_refs(jaxpr: Jaxpr) -> bool:
    """Whether a `Ref` is made inside of a value of weak type. JAX takes such a `Ref` to be of a strong type, until it
    replaces it by its values: then equations have the types that follow from these, but for those inside calls."""
    if not any(type(effect).__name__ == "InternalMutableArrayEffect" for effect in jaxpr.effects):
        return False
    return any(
        (any(is_ref(v.aval) for v in eqn.outvars) and any(getattr(v.aval, "weak_type", False) for v in eqn.invars))
        or any(makes_weak_refs(inner) for inner in subjaxprs(eqn))
        for eqn in jaxpr.eqns
    )


def calls_in_order(jaxpr: Jaxpr) -> bool:
    """Whether an inner `jit` has an ordered effect, as `jax.debug.callback(..., ordered=True)` has, where XLA ends the
    process if there are two equal calls that are given nothing but a token (from JAX 0.11 on)."""
    if jax.__version_info__ < (0, 11) or not _is_ordered(jaxpr.effects):
        return False
    return any(
        (eqn.primitive.name == "jit" and _is_ordered(eqn.effects))
        or any(calls_in_order(inner) for inner in subjaxprs(eqn))
        for eqn in jaxpr.eqns
    )


def _is_ordered(effects: Iterable[Any]) -> bool:
    return any(type(effect).__name__.startswith("Ordered") for effect in effects)


def captured_refs(closed: ClosedJaxpr) -> Iterator[AbstractValue]:
    """What the `Ref`s hold that were there before, and that a function captured, itself or in a `jit` that it calls."""

    def found(jaxpr: Jaxpr) -> Iterator[AbstractValue]:
        yield from (held(var.aval) for var in jaxpr.constvars if is_ref(var.aval))
        for eqn in jaxpr.eqns:
            for sub in subjaxprs(eqn):
                yield from found(sub)

    return found(closed.jaxpr)


def may_call_python(closed: ClosedJaxpr) -> bool:
    """Whether Python code may run while the program does: callbacks, prints, primitives that may hide one, as those do
    that are not JAX's own: only their lowering tells."""
    return bool(closed.jaxpr.effects) or any(
        may_be_foreign(primitive.name) or home(primitive) != "jax" for primitive in _primitives(closed.jaxpr)
    )


def may_be_foreign(name: str) -> bool:
    """Whether a primitive of this name may run code that is not XLA's: callbacks, kernels, feeds, the solver that JAX
    has scipy do on a CPU, and what only its lowering expands."""
    parts = ("callback", "print", "ffi", "pallas", "custom_call", "infeed", "outfeed", "spsolve", "hi_primitive")
    return any(part in name for part in parts)


def draws_hidden_numbers(closed: ClosedJaxpr) -> bool:
    """Whether the result depends on the state of a random number generator of XLA's own (`lax.rng_uniform`)."""
    return any(primitive.name == "rng_uniform" for primitive in _primitives(closed.jaxpr))


def namesake(closed: ClosedJaxpr) -> Primitive | None:
    """A primitive that is not JAX's and has the name of one that is; None if there is none."""
    found = (each for each in _primitives(closed.jaxpr) if each.name in _OF_JAX and home(each) != "jax")
    return next(found, None)


_OF_JAX = (
    frozenset(each.name for each in vars(jex_core.primitives).values() if isinstance(each, Primitive)) | CALLS.keys()
)


def _primitives(jaxpr: Jaxpr) -> set[Primitive]:
    """Those of the equations at every depth."""
    found: set[Primitive] = set()
    seen: set[int] = set()
    ahead = [jaxpr]
    while ahead:
        each = ahead.pop()
        if id(each) not in seen:
            seen.add(id(each))
            found.update(eqn.primitive for eqn in each.eqns)
            ahead += [sub for eqn in each.eqns if eqn.params for sub in subjaxprs(eqn)]
    return found
