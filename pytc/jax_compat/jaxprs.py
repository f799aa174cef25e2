"""Jaxprs and their equations: the classes, and what stands where in them.

For JAX 0.10 to 0.12: `jax.extend.core`, and the parameters of `jit`, `scan` and `while`, where 0.12 differs as said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from jax.extend import core as jex_core

from pytc.jax_compat.api import UNSPECIFIED

T = TypeVar("T")

# Up to JAX 0.11 a ClosedJaxpr pairs a Jaxpr with its consts; from 0.12 on both names are one class. On either,
# `closed.jaxpr` has invars, outvars, eqns and constvars, and `closed.consts` the values of the constvars.
Jaxpr = jex_core.Jaxpr
ClosedJaxpr = jex_core.ClosedJaxpr
JaxprEqn = jex_core.JaxprEqn
Literal = jex_core.Literal
Var = jex_core.Var
DropVar = jex_core.DropVar
Primitive = jex_core.Primitive


def inner(jaxpr: Jaxpr | ClosedJaxpr) -> Jaxpr:
    """The open jaxpr in a parameter that holds one or the other."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def shape_of(atom: Var | Literal) -> tuple[int, ...]:
    """The shape of a variable's or a literal's array."""
    shape: tuple[int, ...] = atom.aval.shape  # type: ignore[attr-defined]
    return shape


def subjaxprs(eqn: JaxprEqn) -> Iterator[Jaxpr]:
    """The jaxprs among an equation's parameters."""
    for sub in jex_core.jaxprs_in_params(eqn.params):
        yield inner(sub)


# Calls, and the parameter that holds what is called. (A `shard_map`'s is given a part of each operand.)
CALLS = {
    "call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "composite": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "eval_jaxpr": "call_jaxpr",
    "jit": "jaxpr",
    "linear_call": "callee",
    "remat2": "jaxpr",
    "shard_map": "jaxpr",
}


HOLD_CONSTS = frozenset("closed_call cond custom_jvp_call custom_vjp_call jit scan while".split())
"""Primitives whose jaxprs may have consts of their own: up to JAX 0.11 theirs are `ClosedJaxpr`s."""


def called(eqn: JaxprEqn) -> Jaxpr | None:
    """What an equation calls, if it hands on its operands, and hands back the results, one for one."""
    param = CALLS.get(eqn.primitive.name)
    if param is None:
        return None
    body = eqn.params.get(param)
    opened = inner(body) if isinstance(body, Jaxpr | ClosedJaxpr) else None
    fits = opened is not None and (len(opened.invars), len(opened.outvars)) == (len(eqn.invars), len(eqn.outvars))
    return opened if fits else None


def split_scan(eqn: JaxprEqn, values: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
    """What stands at a scan's operands, as (consts, initial carry, scanned)."""
    if "num_consts" in eqn.params:  # up to JAX 0.11
        consts, carry = eqn.params["num_consts"], eqn.params["num_carry"]
    else:
        consts, carry = (len(part) for part in eqn.params["ft_in"].unpack()[:2])
    return list(values[:consts]), list(values[consts : consts + carry]), list(values[consts + carry :])


def has_steps(scan: JaxprEqn) -> bool:
    """Whether a scan is sure to run its body. (How long it is may be a symbol, under `jax.export`.)"""
    length = scan.params["length"]
    return isinstance(length, int) and length > 0


def split_while(eqn: JaxprEqn, values: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
    """What stands at a while loop's operands, as (consts of the condition, consts of the body, initial carry)."""
    cond, body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    return list(values[:cond]), list(values[cond : cond + body]), list(values[cond + body :])


def split_linear_solve(eqn: JaxprEqn, values: Sequence[T]) -> tuple[Jaxpr, list[T]]:
    """The jaxpr with which a `custom_linear_solve` computes its results, and what stands at its operands. (Those of the
    equation are what its four functions captured, one after another, then the right-hand sides.)"""
    lengths = eqn.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    sides = values[sum(lengths) :]
    return inner(eqn.params["jaxprs"].solve), [*values[start : start + lengths.solve], *sides]


def input_names(jaxpr: Jaxpr) -> list[str]:
    """What JAX calls the invars in its messages."""
    names = list(jaxpr.debug_info.arg_names or ())
    return [name or "" for name in names] if len(names) == len(jaxpr.invars) else [""] * len(jaxpr.invars)


def is_plain_jit(eqn: JaxprEqn) -> bool:
    """Whether an inner `jit` only groups equations: no shardings, layouts, mesh, donation or compiler options."""
    params = eqn.params
    return (
        all(s is UNSPECIFIED for s in (*params["in_shardings"], *params["out_shardings"]))
        and all(layout is None for layout in (*params["in_layouts"], *params["out_layouts"]))
        and not any(params["donated_invars"])
        and not params["compiler_options_kvs"]
        and params["ctx_mesh"].empty
        and str(getattr(params["inline"], "value", params["inline"])) in ("False", "True", "auto", "jax_late")
        and eqn.ctx.compute_type is None
        and not has_metadata(eqn)
    )


def has_metadata(eqn: JaxprEqn) -> bool:
    """Whether `set_xla_metadata` was at work where the equation was traced."""
    return bool(eqn.ctx.xla_metadata)


def inlined_late(eqn: JaxprEqn) -> bool:
    """Whether JAX emits the body of this call where it stands: what an inner `jit` with `inline=True` means from JAX
    0.12 on."""
    return getattr(eqn.params.get("inline"), "value", "") == "jax_late"
