"""A jaxpr as a single equation of what JAX traces, which is lowered equation by equation where it stands.

To trace a program that is a jaxpr already would take as long as it took the first time. Bound as one equation it is not
gone through, and JAX's own lowering of a jaxpr makes the same module of it, names and source lines included.

Its lowering is also where it shows in which kind of memory the arguments are. Types do not tell all kinds apart, so JAX
traces once for these, but lowers for each, before it compiles or runs anything for it. So to look there costs the calls
after that nothing.

For JAX 0.10 to 0.12: primitives of our own, the lowering by `jax.interpreters.mlir.jaxpr_subcomp`, and the attribute of
an argument that names its kind of memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.mlir import ir
from jax.interpreters import mlir

from pytc.jax_compat.avals import is_array, is_ref
from pytc.jax_compat.jaxprs import ClosedJaxpr, Jaxpr, Primitive, input_names
from pytc.jax_compat.layouts import laid_out
from pytc.jax_compat.rewriting import with_inputs
from pytc.jax_compat.rules import dce, evaluate

INLINED: Any = Primitive("pytc")
INLINED.multiple_results = True
LOOKED_AT: Any = Primitive("pytc_memory")
"""A value as it is, of which the kind of memory is looked at."""

UNTOLD = "unpinned_host"
"""The kind of memory that has the type of the device's own."""


def inlined(
    closed: ClosedJaxpr,
    operands: Sequence[Any],
    memories: Sequence[str | None],
    refused: type[Exception],
    keeps_unused: bool = False,
) -> list[Any]:
    """What `evaluate` traces; without dead code, unless it `keeps_unused`.

    To lower it raises `refused` where an operand is in another kind of memory than `memories` says (None: in any), as
    far as its type does not tell.

    As a single equation where the jaxpr has no effects, no `Ref`s, no `HiPrim`s and no constraints on the layout of a
    result, for which JAX looks itself, and the operands are of its very types, from which those of the results follow.
    """
    jaxpr = closed.jaxpr
    avals = [v.aval for v in jaxpr.invars]
    is_odd = jaxpr.effects or getattr(jaxpr, "is_high", False) or any(is_ref(aval) for aval in avals) or laid_out(jaxpr)
    if is_odd or avals != [jax.typeof(value) for value in operands]:
        looked_at = [
            value
            if memory is None or not is_array(jax.typeof(value))
            else LOOKED_AT.bind(value, memory=memory, refused=refused)
            for value, memory in zip(operands, memories, strict=True)
        ]
        return evaluate(closed, looked_at)
    if closed.consts:
        names = [""] * len(closed.consts) + input_names(jaxpr)
        jaxpr = with_inputs(closed, constants=(), invars=[*jaxpr.constvars, *jaxpr.invars], names=names).jaxpr
    # As JAX does itself with what is traced: what nothing reads is no argument of the compiled program.
    read = [True] * len(jaxpr.invars)
    if not keeps_unused:
        jaxpr, read = dce(jaxpr, [True] * len(jaxpr.outvars))
    bound = itertools.compress([*closed.consts, *operands], read)
    of_bound = tuple(itertools.compress([*(None for _ in closed.consts), *memories], read))
    results: list[Any] = INLINED.bind(*bound, jaxpr=jaxpr, memories=of_bound, refused=refused)
    return results


def _types(*_: Any, jaxpr: Jaxpr, **__: Any) -> list[Any]:
    return [v.aval for v in jaxpr.outvars]


def _lower(
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    jaxpr: Jaxpr,
    memories: Sequence[str | None],
    refused: type[Exception],
) -> Sequence[Any]:
    if any(_is_elsewhere(*each) for each in zip(operands, memories, strict=True)):
        raise refused
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


def _lower_looked_at(_: mlir.LoweringRuleContext, operand: Any, *, memory: str, refused: type[Exception]) -> list[Any]:
    if _is_elsewhere(operand, memory):
        raise refused
    return [operand]


def _is_elsewhere(operand: Any, memory: str | None) -> bool:
    """Whether what is lowered is an argument of the program in another kind of memory than this, of which its type does
    not tell."""
    if memory is None or not isinstance(operand, ir.BlockArgument):
        return False
    attributes: Any = operand.owner.owner.attributes
    named = attributes["arg_attrs"][operand.arg_number] if "arg_attrs" in attributes else {}
    is_untold = "mhlo.memory_kind" in named and named["mhlo.memory_kind"].value == UNTOLD
    return is_untold != (memory == UNTOLD)


LOOKED_AT.def_abstract_eval(lambda aval, **_: aval)
mlir.register_lowering(LOOKED_AT, _lower_looked_at, cacheable=False)
INLINED.def_abstract_eval(_types)
mlir.register_lowering(INLINED, _lower, cacheable=False)
