"""Outputs that are not arrays, and cannot be handed out at every call as they were when the function was traced.

`jax.jit` refuses every output that is not an array. pytc returns it as it is, one object for all calls; so it refuses
what a first reader would use up, and what holds tracers of the function, which mean nothing once it has been traced.
"""

from __future__ import annotations

import gc
import types
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from pytc.jax_compat.running import Tracer, is_traced_here

_DEPTH = 6
"""How far down tracers are looked for: a method of an object with a list of them, and dicts between."""
_MOST = 10_000
"""How many objects are looked at for one."""


def is_used_up(value: Any) -> bool:
    """Whether a value can be read only once: an iterator, a coroutine."""
    return isinstance(value, Iterator | AsyncIterator | Coroutine)


def why_not(value: Any) -> str | None:
    """Why an output that is not an array cannot be returned at every call, in words that follow "it"; or None.

    Costs a look at what the value refers to, each time the function is traced.
    """
    kind = type(value).__name__
    if isinstance(value, Coroutine):
        return f"is a {kind}, which can be awaited only once: compile a plain function, not an `async` one"
    if is_used_up(value):
        return (
            f"is of type {kind}, which can be read only once, and every call would return this one: return a list of "
            "its items"
        )
    if _holds_tracer(value):
        return (
            f"is of type {kind}, which is no pytree, and holds a traced array, which has no value: return the array "
            "itself, or make it a pytree (jax.tree_util.register_dataclass; of a function, jax.tree_util.Partial)"
        )
    return None


def _holds_tracer(value: Any) -> bool:
    level = {id(value): value}
    seen: set[int] = set()
    for _ in range(_DEPTH + 1):
        if any(is_traced_here(each) for each in level.values()):
            return True
        seen.update(level)
        if len(seen) > _MOST:
            return False
        parts = (part for each in level.values() for part in _parts(each))
        level = {id(part): part for part in parts if id(part) not in seen}
    return False


_CLOSED = (type, types.ModuleType, types.CodeType, types.FrameType, types.TracebackType, Tracer)
"""Code rather than data, whose variables are not what an object holds; and tracers, of which only they themselves
count."""


def _parts(value: Any) -> list[Any]:
    """What a value is made of: of a function what it has captured, its defaults and attributes, but not its globals; of
    anything else whatever Python knows that it refers to (items, attributes, slots, what a view or a method is of)."""
    if isinstance(value, types.FunctionType):
        filled = [cell for cell in value.__closure__ or () if cell != types.CellType()]  # only empty cells are equal
        return [
            *(cell.cell_contents for cell in filled),
            *(value.__defaults__ or ()),
            *(value.__kwdefaults__ or {}).values(),
            *vars(value).values(),
        ]
    return [] if isinstance(value, _CLOSED) else gc.get_referents(value)
