"""Outputs that are not arrays, and cannot be handed out at every call as they were when the function was traced.

`jax.jit` refuses every output that is not an array. pytc returns it as it is, one object for all calls; so it refuses
what a first reader would use up, and what holds tracers of the function, which mean nothing once it has been traced.
"""

from __future__ import annotations

import functools
import types
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from pytc.jax_compat.running import is_traced_here

_DEPTH = 4
"""How far down tracers are looked for: a method of an object with a list of them."""
_MOST = 10_000
"""How many objects are looked at for one."""


def why_not(value: Any) -> str | None:
    """Why an output that is not an array cannot be returned at every call, in words that follow its name; or None.

    Costs a look at what the value refers to, each time the function is traced.
    """
    kind = type(value).__name__
    if isinstance(value, Iterator | AsyncIterator | Coroutine):
        return f"is a {kind}, which can be read only once, and each call would return this one: return what it gives"
    if _holds_tracer(value):
        return (
            f"is a {kind}, which is no pytree, and holds a traced array, which has no value: return the array itself, "
            "or make it a pytree (jax.tree_util.register_dataclass; of a function, jax.tree_util.Partial)"
        )
    return None


def _holds_tracer(value: Any) -> bool:
    level = {id(value): value}
    seen: set[int] = set()
    for _ in range(_DEPTH + 1):
        if any(map(is_traced_here, level.values())):
            return True
        seen.update(level)
        if len(seen) > _MOST:
            return False
        parts = (part for each in level.values() for part in _parts(each))
        level = {id(part): part for part in parts if id(part) not in seen}
    return False


def _parts(value: Any) -> list[Any]:
    """What a value shows of what it is made of: what a closure has captured, arguments, items, attributes."""
    if isinstance(value, types.FunctionType):
        filled = [cell for cell in value.__closure__ or () if cell != types.CellType()]  # only empty cells are equal
        return [
            *(cell.cell_contents for cell in filled),
            *(value.__defaults__ or ()),
            *(value.__kwdefaults__ or {}).values(),
        ]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, dict):
        return [*value.values()]
    if isinstance(value, tuple | list | set | frozenset):
        return [*value]
    if isinstance(value, type | types.ModuleType) or not isinstance(getattr(value, "__dict__", None), dict):
        return []
    return [*vars(value).values()]
