"""A function run by `jax.jit` and by pytc, and by each pass alone; everything that the caller can see, compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import pytc
from pytc import jax_compat
from pytc.passes import finalise, prune, subjaxprs
from pytc.program import Computed, Input, Leaf, Output, Passed, Program
from pytc.verify import effects_in_order, same


def program_of(fun: Callable[..., Any], *args: Any) -> Program:
    """The Program of a function of arrays, as staging gives it; leaf number i is called `x<i>`."""
    jaxpr = jax.jit(fun).trace(*args).jaxpr
    return Program(
        name=getattr(fun, "__name__", "fun"),
        jaxpr=jaxpr,
        leaves=tuple(Leaf(f"x{i}", f"x{i}", v.aval) for i, v in enumerate(jaxpr.jaxpr.invars)),
        inputs=tuple(Input(i) for i in range(len(jaxpr.jaxpr.invars))),
        outputs=tuple(Output(f"[{i}]", Computed(i)) for i in range(len(jaxpr.jaxpr.outvars))),
        out_tree=jax.tree.structure([0] * len(jaxpr.jaxpr.outvars)),
    )


def run(program: Program, leaves: Sequence[Any]) -> list[Any]:
    """The outputs of a program, compiled, for these leaves of the arguments."""
    given = [each.captured if each.leaf is None else leaves[each.leaf] for each in program.inputs]
    results = jax.jit(lambda *operands: jax_compat.evaluate(program.jaxpr, operands))(*given)
    jax.effects_barrier()

    def value(output: Output) -> Any:
        origin = output.origin
        if isinstance(origin, Computed):
            return results[origin.index]
        return leaves[origin.leaf] if isinstance(origin, Passed) else origin.value

    return [value(output) for output in program.outputs]


def by_jax_jit(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What `jax.jit(fun)` returns, leaves that are not arrays kept out of its sight on the way in and out."""
    leaves, tree = jax.tree.flatten((tuple(args), kwargs))
    traced = [isinstance(x, jax.Array | np.ndarray | bool | int | float | complex) for x in leaves]
    seen: list[Any] = []

    def of_arrays(arrays: list[Any]) -> list[Any]:
        remaining = iter(arrays)
        inner_args, inner_kwargs = jax.tree.unflatten(
            tree, [next(remaining) if t else x for x, t in zip(leaves, traced, strict=True)]
        )
        out, out_tree = jax.tree.flatten(fun(*inner_args, **inner_kwargs))
        returned = [isinstance(x, jax.Array | np.ndarray) for x in out]
        seen[:] = [out_tree, [None if r else x for x, r in zip(out, returned, strict=True)], returned]
        return [x for x, r in zip(out, returned, strict=True) if r]

    arrays = iter(jax.jit(of_arrays)([x for x, t in zip(leaves, traced, strict=True) if t]))
    jax.effects_barrier()
    out_tree, others, returned = seen
    return jax.tree.unflatten(out_tree, [next(arrays) if r else x for x, r in zip(others, returned, strict=True)])


def check_passes(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], log: list[Any]) -> None:
    """Raise AssertionError unless each pass alone, and the whole compiler, do what `jax.jit` does.

    `log` is what the function's effects append to.
    """
    log.clear()
    wanted = by_jax_jit(fun, args, kwargs)
    wanted_log = list(log)

    log.clear()
    got = pytc.compile(fun)(*args, **kwargs)
    jax.effects_barrier()
    assert jax.tree.structure(got) == jax.tree.structure(wanted), "pytc.compile: another tree"
    _equal("pytc.compile", wanted, wanted_log, got, log)

    staged = pytc.stage(fun, *args, **kwargs)
    leaves = jax.tree.leaves((tuple(args), kwargs))
    for each in (finalise, prune):
        after = each(staged)
        if after is staged:
            continue
        jax_compat.check(after.jaxpr)
        before_count, after_count = (subjaxprs.count(p.jaxpr.jaxpr) for p in (staged, after))
        assert after_count <= before_count, f"{each.__name__}: {before_count} equations became {after_count}"
        effects = [list(effects_in_order(p.jaxpr.jaxpr)) for p in (staged, after)]
        assert effects[0] == effects[1], f"{each.__name__}: effects {effects[0]} became {effects[1]}"
        assert each(after).jaxpr is after.jaxpr, f"{each.__name__}: doing it again changes something"
        log.clear()
        results = run(after, leaves)
        _equal(each.__name__, wanted, wanted_log, results, log)


def _equal(what: str, wanted: Any, wanted_log: Sequence[Any], got: Any, log: Sequence[Any]) -> None:
    one, other = jax.tree.leaves(wanted), jax.tree.leaves(got)
    assert len(one) == len(other), f"{what}: {len(one)} leaves and {len(other)}"
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        assert same(a, b), f"{what}: result leaf {number} is\n{b!r}\nand by jax.jit\n{a!r}"
    # JAX keeps the effects of one kind in order, not those of different kinds.
    for kind in {entry[0] for entry in (*wanted_log, *log)}:
        before, after = ([entry for entry in entries if entry[0] == kind] for entries in (wanted_log, log))
        assert before == after, f"{what}: {kind} effects {[e[1] for e in before]} became {[e[1] for e in after]}"
