"""What JAX does instead, where a compiled function leaves a call to it: under a transformation, in a debugging mode,
for arguments that only JAX can pass, and ahead of time (`lower`, `trace`, `eval_shape`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pytc.arguments.leaves import Parameters, StaticArgument, kind_of
from pytc.attributes import plain
from pytc.calls.hiding import JitHiding
from pytc.calls.planner import Planner
from pytc.errors import LeftToJit
from pytc.jax_compat import api
from pytc.jax_compat.running import cache_size
from pytc.program import Program
from pytc.stage import Stageable


class Instead(Protocol):
    """`jax.jit` of a function, or `jax.pmap`, with the options of the compiled one."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]) -> Any:
        """What JAX returns; where leaves are static, as if they were static arguments."""

    def without_jit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call with `jax_disable_jit`."""

    def ahead(self, args: tuple[Any, ...], kwargs: dict[str, Any], method: Callable[[Any], Any]) -> Any:
        """What a method of the jitted function returns for these arguments, of which the caller has moved none."""

    def cache_size(self) -> int:
        """How many calls JAX has compiled it for."""

    def clear_cache(self) -> None:
        """Have JAX forget what it has compiled."""


class JitInstead(Instead):
    """`jax.jit` of a function."""

    def __init__(self, stageable: Stageable, planner: Planner) -> None:
        self._stageable = stageable
        self._planner = planner
        parameters = stageable.parameters
        self._options = {
            "static_argnums": parameters.static_argnums,
            "static_argnames": parameters.static_argnames,
            **stageable.shardings,
            **planner.options,
        }
        self._jitted: Any = api.jit(plain(stageable.fun), **self._options)
        self._hiding = JitHiding(stageable, planner.options)
        """The same for arguments with static leaves that no option names."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]) -> Any:
        """As described by `Instead`."""
        if self._stageable.shardings and not any(
            kind_of(leaf, self._stageable.python_scalars) == "static" and not isinstance(leaf, StaticArgument)
            for leaf in leaves
        ):
            return self._jitted(*args, **kwargs)
        return self._hiding.call(args, kwargs)

    def without_jit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As described by `Instead`."""
        return self._stageable.fun(*args, **kwargs)

    def ahead(self, args: tuple[Any, ...], kwargs: dict[str, Any], method: Callable[[Any], Any]) -> Any:
        """As described by `Instead`. What the caller has promised and the program can reuse is donated, in whole
        arguments."""
        named = self._stageable.leaves(args, kwargs, share=False)
        if any(leaf.is_static and not isinstance(leaf.value, StaticArgument) for leaf in named):
            return self._hiding.ahead(args, kwargs, named, method)
        if not any(self._planner.promised(leaf) for leaf in named):
            return method(self._jitted)(*args, **kwargs)
        try:
            staged = self._stageable.stage(args, kwargs, share=False)
            donated = donated_options(self._stageable.parameters, self._planner, staged, args, kwargs)
        except LeftToJit:  # as is a call of it, which donates nothing
            return method(self._jitted)(*args, **kwargs)
        return method(api.jit(plain(self._stageable.fun), **self._options, **donated))(*args, **kwargs)

    def cache_size(self) -> int:
        """As described by `Instead`."""
        return sum(cache_size(jitted) for jitted in self._every())

    def clear_cache(self) -> None:
        """As described by `Instead`."""
        for jitted in self._every():
            jitted.clear_cache()

    def _every(self) -> list[Any]:
        return [self._jitted, *self._hiding.jitted.values()]


def donated_options(
    parameters: Parameters, planner: Planner, staged: Program, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The options by which `jax.jit` donates those of the arguments whose leaves the caller has promised, where the
    program can reuse one."""
    promised = {leaf.parameter for leaf in staged.leaves if planner.promised(leaf)}
    if not promised:
        return {}
    program = planner.promised_program(staged)
    names = promised & {program.leaves[i].parameter for i in program.donated}
    numbers = tuple(i for i in range(len(args)) if parameters.positional_name(i) in names)
    return {"donate_argnums": numbers, "donate_argnames": tuple(names & set(kwargs))}
