"""`pytc.finalise`: functions and jaxprs without custom primitives and wrappers (`passes.finalise`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import jax

from pytc.attributes import resemble
from pytc.errors import LeftToJit
from pytc.jax_compat import rules
from pytc.jax_compat.jaxprs import ClosedJaxpr
from pytc.move import unmoved
from pytc.passes.finalise import finalise as finalise_program
from pytc.passes.finalise import finalise_jaxpr
from pytc.program import Computed, Kept, Program
from pytc.stage import Returned, Stageable, refuse_namesakes, stageable_of, with_its_object

F = TypeVar("F", bound=Callable[..., Any])


@overload
def finalise(what: Program, /) -> Program: ...
@overload
def finalise(what: ClosedJaxpr, /) -> ClosedJaxpr: ...
@overload
def finalise(what: F, /) -> F: ...
def finalise(what: Any, /) -> Any:
    """Replace custom primitives and wrappers by what they stand for, through every higher-order primitive.

    A jaxpr gives the finalised jaxpr. A function gives one with the same signature that computes the same by finalised
    equations; it is traced at each call, as by `jax.make_jaxpr`, so put it under `jax.jit`, `jax.export` or
    `pytc.compile`. A `Program` gives a `Program`: that is the pass. Finalising twice changes nothing more.

    Replaced are `custom_jvp`, `custom_vjp` and the primitives that `register_finalisation` was given rules for; any
    other primitive stays. Derivative rules are lost: differentiate and `vmap` before, not after. Inner `jit`s are
    replaced, too, except in a `Program`; without them XLA may fuse, and so round, otherwise than under `jax.jit`.

    Raises `TypeError` for anything else; where a registered rule's result does not have the type of what it replaces,
    or the rule uses what it replaces; and where a custom primitive has the name of one of JAX's. What a rule itself
    raises is passed on, with a note that names the primitive.
    """
    if isinstance(what, Program):
        return finalise_program(what)
    if isinstance(what, ClosedJaxpr):
        refuse_namesakes(what, "the jaxpr")
        return finalise_jaxpr(what)
    if callable(what):
        return _function(what)
    raise TypeError(f"finalise takes a function, a ClosedJaxpr or a Program, not {type(what).__name__}")


def _function(fun: F) -> F:
    def finalised(*args: Any, **kwargs: Any) -> Any:
        stageable, (args, kwargs) = stageable_of(fun), unmoved(with_its_object(fun, args), kwargs)
        try:
            program = stageable.stage(args, kwargs, share=True)
        except LeftToJit:
            if type(stageable) is not Stageable:
                raise
            return _with_tracers(stageable, args, kwargs)
        leaves = jax.tree.leaves(stageable.parameters.wrap_static(args, kwargs))
        given = [each.captured if each.leaf is None else leaves[each.leaf] for each in program.inputs]
        results = rules.evaluate(finalise_jaxpr(program.jaxpr), given)
        origins = (output.origin for output in program.outputs)
        values = [results[o.index] if isinstance(o, Computed) else cast(Kept, o).value for o in origins]
        return jax.tree.unflatten(program.out_tree, values)

    resemble(finalised, fun)
    return cast(F, finalised)


def _with_tracers(stageable: Stageable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function returns that has captured tracers, or `Ref`s, of a transformation around it: no constants of a
    `Program`, but consts of a jaxpr that is traced in there."""
    returned: list[Returned] = []
    traceable = stageable.traceable(lambda split, _: returned.append(split))
    hidden_args, hidden_kwargs = stageable.hide(args, kwargs, stageable.leaves(args, kwargs, share=True))
    closed = jax.make_jaxpr(traceable)(*hidden_args, **hidden_kwargs)
    results = rules.evaluate(finalise(closed), jax.tree.leaves((hidden_args, hidden_kwargs)))
    return returned[-1].result(results)
