"""prune: dead equations go, then inputs that nothing reads, at every depth.

A training step that is handed more than it uses transfers and holds more than it needs; a loop that carries what
nobody reads computes it in every step. JAX's own dead-code rules decide what is dead. They keep every effect:
callbacks, `debug.print`, writes to a `Ref` that outlives the program, checkify's errors.

Outputs that the caller does not get from the program any more (they are handed back, or were the same as others) are
dropped first, since what only they needed is dead.

Cost: a few visits to each equation at every depth.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence

from pytc.jax_compat import jaxprs, rewriting, rules
from pytc.jax_compat.jaxprs import ClosedJaxpr, Jaxpr, Var
from pytc.passes import subjaxprs, while_loops
from pytc.program import Computed, Output, Program


def prune(program: Program) -> Program:
    """The program without what cannot change what the caller sees: dead equations, outputs and inputs."""
    closed = program.jaxpr
    wanted = {o.origin.index for o in program.outputs if isinstance(o.origin, Computed)}
    pruned, read = _without_dead_code(closed, [i in wanted for i in range(len(closed.jaxpr.outvars))])
    if pruned is closed:
        return program
    if closed.jaxpr.effects and not _same_effects(closed, pruned):
        return program.noted("prune", ["nothing is pruned: by JAX's own rules an effect would be lost"])
    numbers = {old: new for new, old in enumerate(sorted(wanted))}
    unread = [i for i, kept in enumerate(read) if not kept]
    notes: list[str | tuple[int, str]] = [_unread(program, i) for i in unread]
    if gone := subjaxprs.count(closed.jaxpr) - subjaxprs.count(pruned.jaxpr):
        notes.append(f"{gone} dead equation{'s' * (gone > 1)}")
    return program.noted(
        "prune",
        notes,
        jaxpr=pruned,
        inputs=tuple(given for given, kept in zip(program.inputs, read, strict=True) if kept),
        outputs=tuple(_renumbered(output, numbers) for output in program.outputs),
    )


def prune_outputs(program: Program) -> Program:
    """The program without the outputs that the caller does not get from it: the part of `prune` that leaves dead code
    and unread inputs where they are, as `keep_unused` asks for."""
    wanted = sorted({o.origin.index for o in program.outputs if isinstance(o.origin, Computed)})
    if len(wanted) == len(program.out_avals):
        return program
    numbers = {old: new for new, old in enumerate(wanted)}
    return program.noted(
        "prune",
        [],
        jaxpr=rewriting.with_outputs(program.jaxpr, wanted),
        outputs=tuple(_renumbered(output, numbers) for output in program.outputs),
    )


def _same_effects(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    """Whether the same effects are left, in their order. (JAX 0.10 takes a remat for dead that only has effects.)"""
    before, after = (list(subjaxprs.effects_in_order(closed.jaxpr)) for closed in (one, other))
    return before == after


def _without_dead_code(closed: ClosedJaxpr, used: list[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """The jaxpr without dead equations, outputs and inputs, and which inputs are left."""
    pruned, read = _dce(closed, used)
    less: ClosedJaxpr = subjaxprs.Memo(_swept)(pruned)
    if not rules.goes_into(rules.WHILE):
        less = while_loops.narrowed(less)
    if less is pruned:
        return pruned, read
    pruned, read_still = _without_dead_code(less, [True] * sum(used))
    still = iter(read_still)
    return pruned, [kept and next(still) for kept in read]


def _swept(jaxpr: Jaxpr, change: subjaxprs.Memo) -> Jaxpr:
    """The jaxpr without dead equations inside of what JAX's rules do not look into (`run_state`, in JAX 0.10 `while`):
    what goes in there and comes out stays as it is."""
    swept = subjaxprs.Memo(lambda inner, _: _without_dead_equations(inner))
    eqns = []
    for before in jaxpr.eqns:
        eqn = before
        if not (subjaxprs.is_flat(eqn.primitive) or eqn.primitive.name in subjaxprs.OPAQUE):
            eqn = subjaxprs.map_subjaxprs(eqn, change)
            if not rules.goes_into(eqn.primitive):
                eqn = subjaxprs.map_subjaxprs(eqn, swept)
            # A carry that nothing reads but what was dead goes before XLA sees the loop, and a tuple may with it.
            if eqn.primitive is rules.WHILE and eqn is not before and while_loops.becomes_one_array(before, eqn):
                eqn = before
        eqns.append(eqn)
    if all(map(operator.is_, eqns, jaxpr.eqns)):
        return jaxpr
    return rewriting.with_equations(jaxpr, eqns)


def _without_dead_equations(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr without what none of its outputs and effects needs, all inputs kept; itself if there is nothing, or if
    an effect would go with it (that of a dead `Ref`), which the equation around it says that it has, or a part of a
    loop inside (`while_loops.narrows_inside`)."""
    alive, _ = rules.dce(jaxpr, [True] * len(jaxpr.outvars), True)
    if alive.effects != jaxpr.effects or while_loops.narrows_inside(jaxpr, alive):
        return jaxpr
    return jaxpr if _same_equations(alive, jaxpr, set()) else alive


def _unread(program: Program, index: int) -> str | tuple[int, str]:
    leaf = program.inputs[index].leaf
    return f"{program.input_path(index)}: nothing reads it" if leaf is None else (leaf, "nothing reads it")


def _renumbered(output: Output, numbers: dict[int, int]) -> Output:
    if not isinstance(output.origin, Computed):
        return output
    return dataclasses.replace(output, origin=Computed(numbers[output.origin.index]))


def _dce(closed: ClosedJaxpr, used_outputs: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """The jaxpr without dead equations and the constants that only these read, and which inputs are read; itself if
    nothing was dead."""
    jaxpr, read = rules.dce(closed.jaxpr, used_outputs)
    mentioned = {v for eqn in jaxpr.eqns for v in eqn.invars if isinstance(v, Var)}
    mentioned.update(v for v in jaxpr.outvars if isinstance(v, Var))
    constants = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in mentioned]
    if len(constants) < len(jaxpr.constvars):
        names = jaxprs.input_names(jaxpr)
        closed = rewriting.with_inputs(
            ClosedJaxpr(jaxpr, closed.consts), constants=constants, invars=jaxpr.invars, names=names
        )
        return closed, read
    if all(read) and all(used_outputs) and _same_equations(jaxpr, closed.jaxpr, set()):
        return closed, read
    return ClosedJaxpr(jaxpr, closed.consts), read


def _same_equations(one: Jaxpr, other: Jaxpr, known: set[tuple[int, int]]) -> bool:
    """Whether two jaxprs consist of the same equations, at every depth, and not of like ones. `known` are pairs of
    jaxprs, by identity, that do: a jaxpr that stands in many places is looked at once."""
    if one is other or (id(one), id(other)) in known:
        return True
    same = len(one.eqns) == len(other.eqns) and all(
        a is b
        or (
            a.primitive is b.primitive
            and a.invars == b.invars
            and a.outvars == b.outvars
            and all(
                len(x.invars) == len(y.invars) and len(x.outvars) == len(y.outvars) and _same_equations(x, y, known)
                for x, y in zip(jaxprs.subjaxprs(a), jaxprs.subjaxprs(b), strict=True)
            )
        )
        for a, b in zip(one.eqns, other.eqns, strict=True)
    )
    if same:
        known.add((id(one), id(other)))
    return same
