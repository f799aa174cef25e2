"""A jaxpr as a single equation of what JAX traces, which is lowered equation by equation where it stands.

To trace a program that is a jaxpr already would take as long as it took the first time. Bound as one equation it is not
gone through, and JAX's own lowering of a jaxpr makes the same module of it, names and source lines included.

For JAX 0.10 to 0.12: a primitive of our own, and its lowering by `jax.interpreters.mlir.jaxpr_subcomp`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters import mlir

from pytc.jax_compat.avals import is_ref
from pytc.jax_compat.jaxprs import ClosedJaxpr, Jaxpr, Primitive, input_names
from pytc.jax_compat.layouts import laid_out
from pytc.jax_compat.rewriting import with_inputs
from pytc.jax_compat.rules import dce, evaluate

INLINED: Any = Primitive("pytc")
INLINED.multiple_results = True


def inlined(closed: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
    """What `evaluate` traces.

    As a single equation where the jaxpr has no effects, no `Ref`s, no `HiPrim`s and no constraints on the layout of a
    result, for which JAX looks itself, and the operands are of its very types, from which those of the results follow.
    """
    jaxpr = closed.jaxpr
    avals = [v.aval for v in jaxpr.invars]
    if jaxpr.effects or getattr(jaxpr, "is_high", False) or any(map(is_ref, avals)) or laid_out(jaxpr):
        return evaluate(closed, operands)
    if avals != [*map(jax.typeof, operands)]:
        return evaluate(closed, operands)
    if closed.consts:
        names = [""] * len(closed.consts) + input_names(jaxpr)
        jaxpr = with_inputs(closed, constants=(), invars=[*jaxpr.constvars, *jaxpr.invars], names=names).jaxpr
    # As JAX does itself with what is traced: what nothing reads is no argument of the compiled program.
    jaxpr, read = dce(jaxpr, [True] * len(jaxpr.outvars))
    results: list[Any] = INLINED.bind(*itertools.compress([*closed.consts, *operands], read), jaxpr=jaxpr)
    return results


def _types(*_: Any, jaxpr: Jaxpr) -> list[Any]:
    return [v.aval for v in jaxpr.outvars]


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, jaxpr: Jaxpr) -> Sequence[Any]:
    lowered, _ = mlir.jaxpr_subcomp(
        ctx.module_context,
        jaxpr,
        ctx.name_stack,
        ctx.tokens_in,
        (),
        *operands,
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=ctx.traceback,
    )
    return lowered


INLINED.def_abstract_eval(_types)
mlir.register_lowering(INLINED, _lower, cacheable=False)
