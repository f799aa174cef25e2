"""Formats: what asks for a layout in memory beside a sharding.

For JAX 0.10 to 0.12: `jax.experimental.layout`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.experimental.layout import Format, Layout


def sharding_of(placed: Any) -> Any:
    """The sharding of a format; a sharding itself, and what is neither, as it is."""
    return placed.sharding if isinstance(placed, Format) else placed


def is_by_the_compiler(placed: Any) -> bool:
    """Whether the compiler is to choose the layout."""
    return isinstance(placed, Format) and placed.layout is Layout.AUTO


def extended(placed: Format, more: int, extend: Callable[[Any], Any]) -> Format:
    """The format for arrays with so many dimensions more, which vary fastest; `extend` does so for the sharding."""
    layout: Any = placed.layout
    if isinstance(layout, Layout):
        order = layout.major_to_minor
        layout = Layout((*order, *range(len(order), len(order) + more)))
    return Format(layout, extend(placed.sharding))
