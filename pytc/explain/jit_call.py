"""The `jax.jit` or `jax.pmap` call that comes nearest to a program, as source that people can write themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytc.explain.memory import Memory


def nearest_call(name: str, memory: Memory) -> str:
    """`jax.jit(step, donate_argnums=(0, 1))`: the choice of arguments that takes the least memory by hand.

    Other options of the function are shown without their values, `in_shardings=...`, but for plain ones. For a mapped
    function:
    `jax.pmap(step, axis_name='batch', in_axes=(None, 0), out_axes=(None, 0), donate_argnums=(0,))`.
    """
    as_jit = memory.as_jit
    static = {leaf.parameter for leaf in memory.as_jit.staged.leaves if leaf.is_static} - set(mixed(memory))
    options = [
        *(as_jit.mapped or (f"{name}={_value(as_jit.options.get(name))}" for name in as_jit.given)),
        *_option(
            "static" if as_jit.mapped is None else "static_broadcasted",
            memory,
            [name for name in as_jit.parameters if name in static],
        ),
        *_option("donate", memory, memory.by_hand.parameters),
    ]
    fun = name if as_jit.named and name.isidentifier() else "fun"
    return f"{as_jit.called}({', '.join([fun, *options])})"


def _value(option: Any) -> str:
    return repr(option) if isinstance(option, bool | int | str) else "..."


def mixed(memory: Memory) -> tuple[str, ...]:
    """Arguments that mix arrays with static leaves, which neither `jax.jit` nor `jax.pmap` accepts."""
    leaves = memory.as_jit.staged.leaves
    static = {leaf.parameter for leaf in leaves if leaf.is_static}
    traced = {leaf.parameter for leaf in leaves if not leaf.is_static}
    return tuple(name for name in memory.as_jit.parameters if name in static & traced)


def _option(what: str, memory: Memory, parameters: Sequence[str]) -> list[str]:
    """`donate_argnums=(0, 1)` for positional arguments, `donate_argnames=("state",)` for others."""
    positional = memory.as_jit.positional
    numbers = tuple(positional.index(p) for p in parameters if p in positional)
    names = tuple(p for p in parameters if p not in positional)
    written = []
    if numbers:
        written.append(f"{what}_argnums={numbers}")
    if names:
        written.append(f"{what}_argnames={names}")
    return written
