"""axes: which values differ between the devices of a mapped axis.

Every row of a `pmap` runs the same program, so a value can differ from row to row only because it was made of
something that does: a mapped argument, the row's own number, a message that not every row receives alike. This finds,
for each value, the named axes over which it *may* vary:

    an input                                  what the caller says
    arithmetic, data movement, random bits    the union over the operands
    `psum`, `pmax`, `pmin`, `all_gather`      the operand's axes without those that it works over
    `axis_index`, `ppermute`, `all_to_all`,   the operand's axes and those that it works over
    `psum_scatter`, anything with groups
    callbacks, primitives not listed here     every axis
    a branch                                  the union over its branches, and the axes of what chooses between them
    a loop                                    the least fixed point; where its condition varies, so does every carry
    a `Ref`                                   all that was ever written to it, and what decided that it was

The answer errs on one side: what is said not to vary is computed by every row from the same bits by the same
instructions. (Whoever lets XLA:GPU scatter with atomic additions has no such instructions: see
`--xla_gpu_deterministic_ops`.)

Cost: a visit to each equation; in a loop, as many as it takes until no more carries vary, at most one for each.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeAlias

from pytc.jax_compat import jaxprs
from pytc.jax_compat.avals import is_ref
from pytc.jax_compat.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from pytc.jax_compat.origins import home

Axes: TypeAlias = frozenset[Hashable]
"""Names of mapped axes."""

NOWHERE: Axes = frozenset()

# Results are a function of the operands, the same on every device.
_FUNCTIONS = frozenset(
    """abs acos acosh add add_any and approx_top_k argmax argmin asin asinh atan atan2 atanh bessel_i0e bessel_i1e
    bitcast_convert_type broadcast_in_dim broadcast_to cbrt ceil cholesky cholesky_update clamp clz complex
    concatenate conj conv_general_dilated convert_element_type copy cos cosh cumlogsumexp cummax cummin cumprod
    cumsum device_put digamma div dot_general dynamic_slice dynamic_update_slice eig eigh eq eq_to erf erf_inv erfc
    exp exp2 expm1 fft floor gather ge geqp3 geqrf gt hessenberg householder_product igamma igamma_grad_a igammac
    imag integer_pow iota iota_2x32_shape is_finite layout_constraint le le_to lgamma log log1p log2 logistic lt
    lt_to lu lu_pivots_to_permutation max min mul mulhi name ne neg nextafter not one_minus_square or ormqr pad
    philox2x32 philox4x32 platform_index polygamma polynomial population_count pow pvary qr ragged_dot_general
    random_bits random_clone random_fold_in random_gamma random_seed random_split random_unwrap random_wrap real
    reduce reduce_and reduce_max reduce_min reduce_or reduce_precision reduce_prod reduce_sum reduce_window
    reduce_window_max reduce_window_min reduce_window_sum reduce_xor regularized_incomplete_beta relayout rem
    reshape reshard rev rng_bit_generator round rsqrt scaled_dot scatter scatter-add scatter-max scatter-min
    scatter-mul scatter-sub schur select_and_gather_add select_and_scatter select_and_scatter_add select_n
    sharding_constraint shift_left shift_right_arithmetic shift_right_logical sign sin sinh slice sort split sqrt
    square squeeze stack stop_gradient sub svd symmetric_product tan tanh threefry2x32 threefry4x32 tile top_k
    transpose triangular_solve tridiagonal tridiagonal_solve unstack with_memory_space_constraint xor zeta""".split()
)

# Collectives after which every device of the axis holds the same, and the parameter that names the axis.
_EQUALISE = {
    "psum": "axes",
    "pmax": "axes",
    "pmin": "axes",
    "psum_invariant": "axes",
    "all_gather": "axis_name",
    "all_gather_invariant": "axis_name",
    "pbroadcast": "axis_name",
}

# What gives each device of the axis something else.
_SPREAD = {
    "axis_index": "axis_name",
    "ppermute": "axis_name",
    "all_to_all": "axis_name",
    "reduce_scatter": "axis_name",
}


def varying(jaxpr: Jaxpr | ClosedJaxpr, inputs: Sequence[Iterable[Hashable]], axes: Iterable[Hashable]) -> list[Axes]:
    """For each outvar of `jaxpr`, those of the named `axes` over which it may vary.

    Args:
      jaxpr: a function of one device's share, as `jax.shard_map` traces its body: with collectives over `axes`.
      inputs: for each invar, the names of the axes over which it varies. Constants vary over none.
      axes: every axis that the jaxpr may name.

    What is not in the answer is proven: the value has the same bits on all devices along that axis. What is in it may
    still be the same everywhere (`x - x`); that is not looked for.

    Raises `ValueError` when there are more or fewer `inputs` than invars.
    """
    opened = jaxprs.inner(jaxpr)
    if len(inputs) != len(opened.invars):
        raise ValueError(f"{len(inputs)} inputs are described, and the jaxpr has {len(opened.invars)}")
    results, _ = _Walk(frozenset(axes)).run(opened, [frozenset(each) for each in inputs])
    return results


class _Walk:
    """One walk over a jaxpr and those inside it. `everywhere` are all the axes there are."""

    def __init__(self, everywhere: Axes) -> None:
        self.everywhere = everywhere

    def run(self, jaxpr: Jaxpr, given: Sequence[Axes]) -> tuple[list[Axes], list[Axes]]:
        """The axes of the outvars; and those of the invars afterwards, since what a `Ref` holds may have changed."""
        # Of a `Ref`'s var, the axes of what it holds.
        # (One that was there before may hold anything.)
        env: dict[Var, Axes] = {var: self.everywhere if is_ref(var.aval) else NOWHERE for var in jaxpr.constvars}
        env.update(zip(jaxpr.invars, given, strict=True))
        for eqn in jaxpr.eqns:
            operands = [NOWHERE if isinstance(v, Literal) else env[v] for v in eqn.invars]
            results, after = self.equation(eqn, operands)
            env.update(zip(eqn.outvars, results, strict=True))
            for atom, axes in zip(eqn.invars, after, strict=True):
                if isinstance(atom, Var) and is_ref(atom.aval):
                    env[atom] |= axes
        return [NOWHERE if isinstance(v, Literal) else env[v] for v in jaxpr.outvars], [env[v] for v in jaxpr.invars]

    def equation(self, eqn: JaxprEqn, given: list[Axes]) -> tuple[list[Axes], list[Axes]]:
        """The axes of the results, and of the operands afterwards."""
        name = eqn.primitive.name
        number = len(eqn.outvars)
        if home(eqn.primitive) == "jax":
            if name in _FUNCTIONS:
                return [NOWHERE.union(*given)] * number, given
            if name == "optimization_barrier":
                return given, given
            if name in _EQUALISE or name in _SPREAD:
                return self.collective(eqn, given), given
            if name != "shard_map" and (body := jaxprs.called(eqn)) is not None:
                return self.run(body, given)
            method = getattr(self, f"_{name}", None)
            if method is not None:
                found: tuple[list[Axes], list[Axes]] = method(eqn, given)
                return found
        return [self.everywhere] * number, [self.everywhere] * len(given)

    def collective(self, eqn: JaxprEqn, given: list[Axes]) -> list[Axes]:
        name, params = eqn.primitive.name, eqn.params
        named = _names(params[_EQUALISE.get(name) or _SPREAD[name]])
        if len(given) != len(eqn.outvars):
            given = [NOWHERE.union(*given)] * len(eqn.outvars)
        if name in _EQUALISE and params.get("axis_index_groups") is None:
            return [axes - named for axes in given]
        return [axes | named for axes in given]

    # -- control flow --------------------------------------------------------------------------------------------

    def _cond(self, eqn: JaxprEqn, given: list[Axes]) -> tuple[list[Axes], list[Axes]]:
        which, operands = given[0], given[1:]
        results, after = [which] * len(eqn.outvars), [which | axes for axes in operands]
        for branch in eqn.params["branches"]:
            made, left = self.run(jaxprs.inner(branch), operands)
            results, after = _joined(results, made), _joined(after, left)
        return results, [which, *after]

    def _while(self, eqn: JaxprEqn, given: list[Axes]) -> tuple[list[Axes], list[Axes]]:
        cond, body = (jaxprs.inner(eqn.params[which]) for which in ("cond_jaxpr", "body_jaxpr"))
        of_cond, of_body, carry = jaxprs.split_while(eqn, given)
        while True:
            before = _one_each(eqn, [*of_cond, *of_body, *carry])
            of_cond, of_body, carry = jaxprs.split_while(eqn, before)
            (go_on,), left = self.run(cond, [*of_cond, *carry])
            of_cond = _written(cond, left[: len(of_cond)], go_on)
            made, left = self.run(body, [*of_body, *carry])
            of_body = _written(body, left[: len(of_body)], go_on)
            carry = [axes | new | go_on for axes, new in zip(carry, made, strict=True)]
            if [*of_cond, *of_body, *carry] == before:
                return carry, before

    def _scan(self, eqn: JaxprEqn, given: list[Axes]) -> tuple[list[Axes], list[Axes]]:
        body = jaxprs.inner(eqn.params["jaxpr"])
        consts, carry, slices = jaxprs.split_scan(eqn, given)
        while True:
            before = [*consts, *carry, *slices]
            made, left = self.run(body, before)
            after = _joined(before, left)
            after[len(consts) : len(consts) + len(carry)] = _joined(carry, made[: len(carry)])
            if after == before:
                # A loop without a step, or one that may have none, returns the carry that it was given.
                returned = made[: len(carry)] if jaxprs.has_steps(eqn) else carry
                return [*returned, *made[len(carry) :]], before
            consts, carry, slices = jaxprs.split_scan(eqn, after)

    def _custom_linear_solve(self, eqn: JaxprEqn, given: list[Axes]) -> tuple[list[Axes], list[Axes]]:
        results, _ = self.run(*jaxprs.split_linear_solve(eqn, given))
        return results, given

    def _shard_map(self, eqn: JaxprEqn, given: list[Axes]) -> tuple[list[Axes], list[Axes]]:
        """A map inside: its own axes are known only inside it."""
        own = frozenset(eqn.params["newly_manual_axes"])
        inside = _Walk(self.everywhere | own)
        split = [axes | _mentioned(spec) & own for axes, spec in zip(given, eqn.params["in_specs"], strict=True)]
        made, left = inside.run(jaxprs.inner(eqn.params["jaxpr"]), split)
        results = []
        for axes, spec in zip(made, eqn.params["out_specs"], strict=True):
            # What varies over an axis that its spec does not mention is one device's word: which, nobody says.
            unsaid = axes & own - _mentioned(spec) or getattr(spec, "unreduced", None)
            results.append(self.everywhere if unsaid else axes - own)
        return results, [self.everywhere if axes & own else axes for axes in left]

    # -- Refs ----------------------------------------------------------------------------------------------------

    def _new_ref(self, _eqn: JaxprEqn, given: list[Axes]) -> tuple[list[Axes], list[Axes]]:
        return [given[0]], given

    def _get(self, _eqn: JaxprEqn, given: list[Axes]) -> tuple[list[Axes], list[Axes]]:
        return [NOWHERE.union(*given)], given

    def _swap(self, eqn: JaxprEqn, given: list[Axes]) -> tuple[list[Axes], list[Axes]]:
        held = NOWHERE.union(*given)
        return [held] * len(eqn.outvars), [held, *given[1:]]

    _addupdate = _swap

    _freeze = _new_ref


def _joined(one: Sequence[Axes], other: Sequence[Axes]) -> list[Axes]:
    return [a | b for a, b in zip(one, other, strict=True)]


def _one_each(eqn: JaxprEqn, given: Sequence[Axes]) -> list[Axes]:
    """What an equation is given where one `Ref` may stand at several operands."""
    held: dict[Any, Axes] = {}
    for atom, axes in zip(eqn.invars, given, strict=True):
        if is_ref(atom.aval):
            held[atom] = held.get(atom, NOWHERE) | axes
    return [
        held.get(atom, axes) if held and isinstance(atom, Var) else axes
        for atom, axes in zip(eqn.invars, given, strict=True)
    ]


def _written(jaxpr: Jaxpr, given: Sequence[Axes], go_on: Axes) -> list[Axes]:
    """What a loop was `given` besides its carry, afterwards: how often a `Ref` was written depends on the condition."""
    return [axes | go_on if is_ref(var.aval) else axes for var, axes in zip(jaxpr.invars, given, strict=False)]


def _names(axes: Any) -> Axes:
    """The axes of a collective. (A number is a dimension of the array: what `vmap` makes of the axis that it names.)"""
    return frozenset(axes if isinstance(axes, tuple | list | frozenset | set) else (axes,))


def _mentioned(spec: Any) -> Axes:
    """The axes that a `PartitionSpec` splits an array over."""
    return frozenset(name for part in spec if part is not None for name in _names(part))
