"""JAX's own interpreters of jaxprs (dead-code elimination, type check, evaluation, tracing), and its primitives' rules.

For JAX 0.10 to 0.12: `jax.interpreters.partial_eval`, `jax.core.eval_jaxpr` and the contexts of equations. `HiPrim`s
are there from 0.12 on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.interpreters import partial_eval as pe

from pytc.jax_compat.avals import is_ref
from pytc.jax_compat.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var


def dce(jaxpr: Jaxpr, used_outputs: Sequence[bool], keep: Sequence[bool] | bool = False) -> tuple[Jaxpr, list[bool]]:
    """JAX's own dead-code elimination: the jaxpr without what only the unused outputs needed, and which invars it
    still reads. Those of `keep` stay, read or not."""
    return pe.dce_jaxpr(jaxpr, list(used_outputs), keep if isinstance(keep, bool) else list(keep))


DEAD_GOES_FIRST = jax.__version_info__ >= (0, 12)
"""Whether JAX takes out what is dead before it expands `HiPrim`s, which may say what is left of them, or after that."""


def goes_into(primitive: Any) -> bool:
    """Whether JAX's dead-code elimination looks into what this primitive calls: into `while` not yet in 0.10."""
    return primitive in pe.dce_rules


WHILE = jex_core.primitives.while_p


def check(closed: ClosedJaxpr) -> None:
    """JAX's own type checker; it raises where the jaxpr is not well formed."""
    jex_core.check_jaxpr(closed.jaxpr)


def evaluate(closed: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
    """The jaxpr's results, computed or traced one equation after another."""
    return list(jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *operands))


def trace_rule(eqn: JaxprEqn, rule: Callable[..., Any], known: Mapping[Var, Any] | None = None) -> ClosedJaxpr:
    """The jaxpr of `rule` called as the equation's primitive is, with values for literals and the vars of `known`.

    A `Ref` that is several operands is one to the rule, as JAX allows no two names of one; the others go unread.
    """
    values = {i: v.val if isinstance(v, Literal) else (known or {}).get(v) for i, v in enumerate(eqn.invars)}
    refs = [v if isinstance(v, Var) and is_ref(v.aval) else None for v in eqn.invars]
    first = [i if ref is None else refs.index(ref) for i, ref in enumerate(refs)]

    def flat(*operands: Any) -> list[Any]:
        given = [operands[first[i]] if values[i] is None else values[i] for i in range(len(operands))]
        results = rule(*given, **eqn.params)
        return list(results) if eqn.primitive.multiple_results else [results]

    with eqn.ctx.manager:  # one type at two operands is one `Ref` to JAX
        return jax.make_jaxpr(flat)(
            *(v.aval if ref is None else copy.copy(v.aval) for v, ref in zip(eqn.invars, refs, strict=True))
        )


def expanded(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """What JAX lowers in the place of a `HiPrim`, which JAX 0.12 makes some of its functions of (`jnp.searchsorted`);
    None where types of its own go in or out."""
    primitive: Any = eqn.params["_prim"]
    if not all(hasattr(v.aval, "dtype") and not is_ref(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return None

    def flat(*operands: Any) -> list[Any]:
        return jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, operands)))

    mesh: Any = eqn.ctx.cur_abstract_mesh
    axes = [(name, mesh.shape[name]) for name in mesh.manual_axes]
    with eqn.ctx.manager:
        return jax.make_jaxpr(flat, axis_env=axes)(*(v.aval for v in eqn.invars))
