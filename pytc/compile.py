"""`compile`: the decorator and its options. The call path begins in `pytc.calls.wrapper`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from pytc import passes as _passes
from pytc.arguments.leaves import PythonScalars
from pytc.calls.function import Function
from pytc.calls.wrapper import wrap
from pytc.compiled import Compiled
from pytc.donation import Donate
from pytc.effort import Effort
from pytc.options import Missing, Options, check_function

P = ParamSpec("P")
R = TypeVar("R")


@overload
def compile(  # noqa: A001 - the public name
    fun: Callable[P, R],
    /,
    *,
    donate: Donate = ...,
    static_argnums: int | Sequence[int] | None = ...,
    static_argnames: str | Iterable[str] | None = ...,
    python_scalars: PythonScalars = ...,
    share: bool = ...,
    passes: Sequence[_passes.Pass] = ...,
    effort: Effort = ...,
    **jit_options: Any,
) -> Compiled[P, R]: ...


@overload
def compile(  # noqa: A001
    *,
    donate: Donate = ...,
    static_argnums: int | Sequence[int] | None = ...,
    static_argnames: str | Iterable[str] | None = ...,
    python_scalars: PythonScalars = ...,
    share: bool = ...,
    passes: Sequence[_passes.Pass] = ...,
    effort: Effort = ...,
    **jit_options: Any,
) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...


def compile(  # noqa: A001, D417 - two arguments described at once
    fun: Callable[..., Any] | Missing = Missing.FUNCTION,
    /,
    *,
    donate: Donate = "auto",
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    python_scalars: PythonScalars = "trace",
    share: bool = True,
    passes: Sequence[_passes.Pass] = _passes.pipeline,
    effort: Effort = "default",
    **jit_options: Any,
) -> Any:
    """`jax.jit` that donates by itself what nobody can read any more.

    A decorator, bare or with arguments. The result is called as `fun` is and returns what `jax.jit(fun)` returns. It
    writes outputs into the memory of those arguments that are provably dead at the call: `docs/proof.md` says what is
    proven, `docs/semantics.md` where the results differ from those of `jax.jit`.

    Args:
      fun: the function; its arguments and result are any pytrees. Arrays (JAX and NumPy) and Python scalars are
        traced; every other leaf is static, compared by equality. Outputs that are not arrays come back as they are.
      donate: which leaves may be overwritten. `"auto"`: those proven dead at this call. `"all"`: every leaf that an
        output fits into; the caller promises not to read them again. `"warn"`: as `"all"`, with a warning that names
        the leaves that no output fits into. `"require"`: as `"auto"`, but raises `pytc.DonationError` where an output
        fits into a `jax.Array` that is still alive (NumPy data and Python scalars are never donated, and do not count).
        `"none"`: none. Or a dict of these by parameter name, the rest `"auto"`.
      static_argnums, static_argnames: as in `jax.jit`.
      python_scalars: `"trace"` traces Python scalars, as `jax.jit` does; `"static"` makes them static.
      share: whether an array object at several leaves is passed, and donated, only once. (Where several processes run
        the program, it never is.)
      passes: the passes to run in place of `pytc.passes.pipeline`.
      effort: `"high"` compiles several plans for the device at hand, and keeps the one that needs the least memory,
        then the one that copies least. It changes no result, and costs compilations at the first call of a signature.
      **jit_options: what else `jax.jit` accepts (`in_shardings`, `out_shardings`, `compiler_options`, ...).
        `donate_argnums` and `donate_argnames` are understood as `"all"` for the parameters that they name; `donate` is
        for the others.

    Returns:
      A plain function with the name, doc and signature of `fun`, and `lower`, `trace`, `eval_shape`, `explain` and
      `clear_cache`.

    Raises:
      TypeError: `fun` or a pass is not callable; `share` is not a bool; an `argnums` option is not made of integers, or
        an `argnames` option not of strings; neither `pytc.compile` nor `jax.jit` has such an option.
      ValueError: `donate`, `python_scalars` or `effort` is none of its values; an option names a parameter that `fun`
        does not have, or donates one that is static.
      At a call: `StaticLeafError` naming a static leaf that cannot be hashed, that is an iterator, that only other
        libraries take for an array, or in which the function reads an array; `DonationError` as `donate="require"`
        says, `RuntimeError` naming a leaf that was deleted before, and whatever `jax.jit(fun)` raises.
    """
    options = Options(
        donate, static_argnums, static_argnames, python_scalars, share, passes, effort, jit_options
    ).checked(compile)

    def decorate(fun: Callable[..., Any]) -> Callable[..., Any]:
        check_function(compile, fun)
        return wrap(Function(fun, options))

    return decorate if isinstance(fun, Missing) else decorate(fun)
