"""What `pytc.compile` and `pytc.pmap` return, to a type checker. At run time it is a plain function with attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

import jax

if TYPE_CHECKING:
    from pytc.explain import Calls, Explanation

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Self_ = TypeVar("Self_")
Self_contra = TypeVar("Self_contra", contravariant=True)


class _Method(Protocol[Self_contra, Q, R_co]):
    """What is called with an object first, as a method is. (By `Concatenate`, mypy takes one of which no parameters are
    known, as of what `partial(pytc.compile, ...)` returns, for one that has no others.)"""

    def __call__(self, instance: Self_contra, /, *args: Q.args, **kwargs: Q.kwargs) -> R_co: ...


class Compiled(Protocol[P, R_co]):
    """A function with the signature of the one that was compiled, as a method too, and what `jax.jit` gives its own."""

    __name__: str
    __qualname__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the compiled program; see `pytc.compile`."""
        ...

    @overload
    def __get__(self, instance: None, owner: type, /) -> Compiled[P, R_co]: ...
    @overload
    def __get__(self: _Method[Self_, Q, R], instance: Self_, owner: type | None = ..., /) -> Compiled[Q, R]: ...

    @property
    def __wrapped__(self) -> Callable[P, R_co]:
        """The function that was compiled."""
        ...

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """`jax.jit(fun).lower(...)`."""
        ...

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """`jax.jit(fun).trace(...)`."""
        ...

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.eval_shape` of the function."""
        ...

    def clear_cache(self) -> None:
        """Forget every compiled program and call site."""
        ...

    @overload
    def explain(self) -> Calls: ...
    @overload
    def explain(self, *args: Any, **kwargs: Any) -> Explanation: ...
