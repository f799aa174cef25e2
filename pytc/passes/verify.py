"""verify: whether a pass kept the program's meaning, checked on the program itself (`PYTC_VERIFY=1`).

Nothing here is needed for a right result; it is how a wrong one is found, and by whom it was made. After each pass
the jaxpr is type-checked by JAX's own checker, its effects are compared with those before, in order, and both
programs are compiled and run on made-up data of the right types: what the caller would see must agree to the bit.

Made-up data may never end a loop, so loops stop after a few rounds in both. A program with effects is not run: its
callbacks belong to the user, who does not expect them to be called with such data. Nor is one that draws hidden
random numbers, which differ from run to run, or one whose types say how an array is spread over a mesh, as the data
would have to be.

Cost: two compilations and two runs for every pass that changed anything.
"""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pytc.errors import VerificationError
from pytc.jax_compat import api, rewriting, rules
from pytc.jax_compat.avals import held, is_ref, key_bits, spec_on_axes
from pytc.jax_compat.effects import draws_hidden_numbers
from pytc.jax_compat.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, shape_of
from pytc.passes import subjaxprs
from pytc.program import Computed, Passed, Program

_MOST_ROUNDS = 8  # of a loop


def verify(before: Program, after: Program, by: str) -> None:
    """Check that `after`, which the pass `by` made of `before`, is well typed and means the same.

    Raises `VerificationError`, which names the pass and a file with both jaxprs.
    """
    try:
        type_check(after.jaxpr)
    except Exception as error:
        if _type_checks(before):
            raise _failure(before, after, by, f"its result does not type-check: {error}") from error
    if len(after.inputs) != len(after.in_avals):
        raise _failure(before, after, by, f"{len(after.inputs)} inputs for {len(after.in_avals)} invars")
    effects = [list(subjaxprs.effects_in_order(p.jaxpr.jaxpr)) for p in (before, after)]
    if effects[0] != effects[1]:
        raise _failure(before, after, by, f"the effects were {effects[0]} and are {effects[1]}")
    if effects[0] or draws_hidden_numbers(before.jaxpr) or any(spec_on_axes(aval) for aval in before.in_avals):
        return
    captured = list({id(ref): ref for p in (before, after) for ref in _captured_refs(p)}.values())
    seen_before, seen_after = (_seen(p, captured) for p in (before, after))
    if len(seen_before) != len(seen_after):
        raise _failure(before, after, by, f"the caller saw {len(seen_before)} values and sees {len(seen_after)}")
    places = _places(before) + ["what a captured Ref holds"] * len(captured)
    for what, one, other in zip(places, seen_before, seen_after, strict=True):
        if not same(one, other):
            raise _failure(before, after, by, f"{what} was\n{one!r}\nand is\n{other!r}")


def type_check(closed: ClosedJaxpr) -> None:
    """JAX's own type checker; it raises where the jaxpr is not well formed."""
    rules.check(subjaxprs.Memo(_checkable)(closed))


def _type_checks(program: Program) -> bool:
    """Not every program that JAX runs does: a parameter may be an integer where the checker wants a bool."""
    try:
        type_check(program.jaxpr)
    except Exception:  # noqa: BLE001 - whatever the checker raises
        return False
    return True


def _checkable(jaxpr: Jaxpr, change: subjaxprs.Memo) -> Jaxpr:
    """The jaxpr as JAX checks it: up to JAX 0.10 the checker does not know the names that JAX gives some calls."""
    eqns: list[JaxprEqn] = []
    for before in jaxpr.eqns:
        eqn = before if before.primitive.name in subjaxprs.OPAQUE else subjaxprs.map_subjaxprs(before, change)
        if eqn.primitive.name == "closed_call" and "name" in eqn.params:
            eqn = eqn.replace(params={name: value for name, value in eqn.params.items() if name != "name"})
        eqns.append(eqn)
    return jaxpr if all(map(operator.is_, eqns, jaxpr.eqns)) else rewriting.with_equations(jaxpr, eqns)


def same(one: Any, other: Any) -> bool:
    """Whether two outputs are alike in type and in every bit."""
    if not (_is_array(one) and _is_array(other)):
        return one is other or bool(one == other)
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if getattr(one, "weak_type", False) != getattr(other, "weak_type", False):
        return False
    return _bits(one) == _bits(other)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _bits(array: Any) -> bytes:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array).tobytes()


def _seen(program: Program, captured: Sequence[jax.Ref]) -> list[Any]:
    """What the caller would see after a call with made-up data: the outputs, then what the `Ref`s given hold, and the
    `captured` ones."""
    leaves = [
        leaf.value if leaf.aval is None else _made_up(leaf.aval, i if leaf.same_as is None else leaf.same_as)
        for i, leaf in enumerate(program.leaves)
    ]
    # A captured array keeps its value. The user's own `Ref`s are the exception, which a run must not write to.
    stand_ins = {id(ref): _made_up(jax.typeof(ref), seed) for seed, ref in enumerate(captured, len(leaves))}

    def stand_in(value: Any) -> Any:
        return stand_ins.get(id(value), value)

    given = [stand_in(each.captured) if each.leaf is None else leaves[each.leaf] for each in program.inputs]
    closed = _with_refs_as_consts(program)
    closed = _bounded(rewriting.close(closed.jaxpr, [stand_in(const) for const in closed.consts]))
    results = api.jit(lambda *operands: rules.evaluate(closed, operands))(*given)
    outputs = []
    for output in program.outputs:
        origin = output.origin
        if isinstance(origin, Computed):
            outputs.append(results[origin.index])
        else:
            outputs.append(leaves[origin.leaf] if isinstance(origin, Passed) else origin.value)
    refs = [leaf for leaf in leaves if isinstance(leaf, jax.Ref)]
    return outputs + [np.asarray(ref[...]) for ref in (*refs, *stand_ins.values())]


def _captured_refs(program: Program) -> list[jax.Ref]:
    """The user's `Ref`s that the program reads or writes without being given them."""
    captured = [*(each.captured for each in program.inputs), *_with_refs_as_consts(program).consts]
    return [value for value in captured if isinstance(value, jax.Ref)]


def _with_refs_as_consts(program: Program) -> ClosedJaxpr:
    """The program with captured `Ref`s among its own consts, rather than those of the `jit`s in it."""
    return rewriting.lift_inner_consts(program.jaxpr, lambda value: isinstance(value, jax.Ref))


def _places(program: Program) -> list[str]:
    refs = [leaf for leaf in program.leaves if leaf.aval is not None and is_ref(leaf.aval)]
    return [f"result{output.path}" for output in program.outputs] + [f"what {leaf.path} holds" for leaf in refs]


def _made_up(aval: Any, seed: int) -> Any:
    """Small numbers, the same for the same seed."""
    if is_ref(aval):
        return jax.new_ref(_made_up(held(aval), seed))
    shape, dtype = aval.shape, aval.dtype
    random = np.random.default_rng(seed)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        bits, impl = key_bits(aval)
        return jax.random.wrap_key_data(random.integers(0, 2**31, bits.shape).astype(bits.dtype), impl=impl)
    if dtype == jax.dtypes.float0:
        return np.zeros(shape, dtype)
    if jnp.issubdtype(dtype, np.bool_):
        values = random.integers(0, 2, shape)
    elif jnp.issubdtype(dtype, np.integer):
        values = random.integers(0, 4, shape)
    else:
        values = random.normal(size=shape)
        if jnp.issubdtype(dtype, np.complexfloating):
            values = values + 1j * random.normal(size=shape)
    with jax.enable_x64(True):  # types of 64 bits are in a program whatever JAX is set to now
        made = jnp.asarray(values, dtype)
    if aval.weak_type and made.size:
        weak = jnp.full(shape, made.ravel()[0].item())  # one number: arithmetic with several would not be weak
        return weak if weak.dtype == dtype else made
    return made


def _bounded(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with every `while` loop stopped after a few rounds."""
    bounded: ClosedJaxpr = subjaxprs.Memo(_bounded_jaxpr)(closed)
    return bounded


def _bounded_jaxpr(jaxpr: Jaxpr, change: subjaxprs.Memo) -> Jaxpr:
    eqns: list[JaxprEqn] = []
    for before in jaxpr.eqns:
        if before.primitive.name in subjaxprs.OPAQUE:
            eqns.append(before)
            continue
        eqn = subjaxprs.map_subjaxprs(before, change)
        if eqn.primitive.name != "while":
            eqns.append(eqn)
            continue
        body = rules.trace_rule(eqn, _bounded_while)
        # What the loop's own jaxprs have captured: a finalised primitive may have brought a table.
        captured = [rewriting.literal(value, var) for var, value in zip(body.jaxpr.constvars, body.consts, strict=True)]
        inlined, results = subjaxprs.inline(eqn, body.jaxpr, [*captured, *eqn.invars])
        eqns += inlined
        eqns += [rewriting.retyped(eqn, new, old) for new, old in zip(results, eqn.outvars, strict=True)]
    return rewriting.with_equations(jaxpr, eqns)


def _bounded_while(
    *operands: Any,
    cond_jaxpr: ClosedJaxpr,
    body_jaxpr: ClosedJaxpr,
    cond_nconsts: int,
    body_nconsts: int,
    **_: Any,
) -> list[Any]:
    cond_consts = operands[:cond_nconsts]
    body_consts = operands[cond_nconsts : cond_nconsts + body_nconsts]

    def goes_on(carry: Sequence[Any]) -> Any:
        return jnp.asarray(rules.evaluate(cond_jaxpr, [*cond_consts, *carry])[0])

    def condition(state: tuple[Any, Any]) -> Any:
        rounds, carry = state
        return goes_on(carry).any() & (rounds < _MOST_ROUNDS)

    def step(state: tuple[Any, Any]) -> Any:
        rounds, carry = state
        done = rules.evaluate(body_jaxpr, [*body_consts, *carry])
        if axes := range(len(shape_of(cond_jaxpr.jaxpr.outvars[0]))):
            each = goes_on(carry)  # of loops under `vmap`, those that have ended stay as they are
            done = [
                jax.lax.select(jax.lax.broadcast_in_dim(each, new.shape, axes), new, old)
                for new, old in zip(done, carry, strict=True)
            ]
        return rounds + 1, done

    start = (0, list(operands[cond_nconsts + body_nconsts :]))
    return list(jax.lax.while_loop(condition, step, start)[1])


def _failure(before: Program, after: Program, by: str, what: str) -> VerificationError:
    with tempfile.NamedTemporaryFile("w", prefix=f"pytc-{by}-", suffix=".txt", delete=False) as file:
        file.write(f"The pass `{by}` went wrong: {what}\n\nbefore {by}\n\n{before}\n\nafter {by}\n\n{after}\n")
    return VerificationError(f"the pass `{by}` went wrong on {before.name}: {what}\nboth programs are in {file.name}")
