"""Values that are sure not to be known while XLA compiles.

That a value depends on an argument does not make it one. XLA finds out that `i + 1 - i` is 1, that a lookup in a table
of one row is that row, that `lax.real(lax.complex(c, x))` is c and `jnp.where(p, c, c)` too, that a sum over nothing is
0. So what is listed here is what cannot come out as a constant; whatever is not listed may. It holds for each part of a
value, since XLA looks for what a slice is a slice of.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pytc.jax_compat.jaxprs import JaxprEqn, Literal, shape_of

# The result is the first operand's elements: moved, repeated, or each changed in a way that loses nothing.
_MOVES = frozenset(
    """bitcast_convert_type broadcast_in_dim copy imag name neg not real reduce_precision reshape rev slice split
    squeeze sharding_constraint stop_gradient transpose""".split()
)
# The results are the operands, one for one.
_ONE_FOR_ONE = frozenset("device_put optimization_barrier sort".split())
# Of floats, any operand is enough: XLA does not take `x - x` or `x * 0` for 0, as x may be infinite.
_ON_FLOATS = frozenset(
    """abs acos acosh add add_any asin asinh atan atan2 atanh cbrt ceil conv_general_dilated cos cosh cumlogsumexp
    cummax cummin cumprod cumsum div dot_general erf erf_inv erfc exp exp2 expm1 fft floor lgamma log log1p logistic max
    min mul nextafter reduce_max reduce_min reduce_prod reduce_sum rem round rsqrt sign sin sinh sqrt square sub tan
    tanh""".split()
)
_REDUCED = ("reduce_max", "reduce_min")
_RANDOM = frozenset("random_bits random_fold_in random_split random_unwrap random_wrap threefry2x32".split())
_ORDERED = frozenset("ge gt le lt".split())


def results_unknown(eqn: JaxprEqn, unknown: Sequence[bool]) -> list[bool]:
    """Which results of an equation without jaxprs XLA is sure not to know, given which operands it does not know."""
    name = eqn.primitive.name
    if not all(_has_elements(v) for v in (*eqn.invars, *eqn.outvars)):
        return [False] * len(eqn.outvars)
    if name in _ONE_FOR_ONE:
        return list(unknown) if len(eqn.invars) == len(eqn.outvars) else [False] * len(eqn.outvars)
    if name == "top_k":
        return [unknown[0], False]
    return [_is_unknown(eqn, name, unknown)] * len(eqn.outvars)


def _is_unknown(eqn: JaxprEqn, name: str, unknown: Sequence[bool]) -> bool:
    if not any(unknown) or not eqn.outvars:
        return False
    result = _dtype(eqn.outvars[0])
    if name in _MOVES or name in _REDUCED:
        return unknown[0]
    if name in _RANDOM:
        return True
    if name in ("argmax", "argmin"):
        return all(shape_of(eqn.invars[0])[axis] > 1 for axis in eqn.params["axes"])
    if name == "convert_element_type":  # the imaginary part of what was real is 0
        return unknown[0] and (_is_complex(_dtype(eqn.invars[0])) or not _is_complex(result))
    if name in ("concatenate", "complex", "dynamic_update_slice"):
        return all(unknown[:2]) if name == "dynamic_update_slice" else all(unknown)
    if name == "select_n":
        return all(unknown[1:]) or (unknown[0] and any(unknown[1:]))
    if name == "dynamic_slice":
        return unknown[0]
    if name == "gather":
        return unknown[0] and (unknown[1] or "FILL" not in str(eqn.params["mode"]))
    if name == "pad":
        return all(unknown) or (unknown[0] and all(max(each) <= 0 for each in eqn.params["padding_config"]))
    if name == "clamp":
        low, _, high = eqn.invars
        return unknown[1] and (_is_inexact(result) or _number(low) < _number(high))
    if _is_inexact(result):
        return _is_unknown_float(eqn, name, unknown)
    return len(unknown) == 2 and unknown[0] != unknown[1] and _is_unknown_exact(eqn, name, unknown[1])


def _is_unknown_float(eqn: JaxprEqn, name: str, unknown: Sequence[bool]) -> bool:
    if name == "integer_pow":
        return bool(eqn.params["y"] != 0)
    if name == "pow":
        power = _number(eqn.invars[1])
        return unknown[0] and (unknown[1] or power < 0 or power > 0)
    if name == "scatter-add":
        return unknown[0] or (unknown[1] and unknown[2])
    if name.startswith("reduce_window_"):
        windows = zip(eqn.params["padding"], eqn.params["window_dimensions"], strict=True)
        return max(eqn.params["base_dilation"]) == 1 and all(max(padding) < size for padding, size in windows)
    return name in _ON_FLOATS


def _is_unknown_exact(eqn: JaxprEqn, name: str, is_second: bool) -> bool:
    """Of integers and booleans, where one operand is known."""
    if name in ("add", "add_any", "eq", "ne", "sub", "xor"):
        return True
    known = eqn.invars[0 if is_second else 1]
    if not isinstance(known, Literal) or np.ndim(known.val):
        return False
    number, dtype = known.val, _dtype(known)
    if dtype == np.bool_:
        is_extreme = bool(number)
    else:
        is_extreme = np.issubdtype(dtype, np.integer) and int(number) in (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if name in _ORDERED:
        # Nothing is beyond an extreme; and of what cannot be negative, XLA knows that it is not less than 0.
        return not is_extreme and not (number == 0 and name in (("gt", "le") if is_second else ("lt", "ge")))
    if not np.issubdtype(dtype, np.integer):
        return False
    if name == "mul":
        return bool(number != 0)
    if name in ("max", "min", "or"):
        return not is_extreme and bool(number != -1)
    if name in ("div", "rem"):
        return not is_second and bool(abs(int(number)) > 1)
    if name in ("shift_left", "shift_right_arithmetic", "shift_right_logical"):
        return not is_second and bool(0 <= number < 8 * dtype.itemsize)
    return False


def may_be_anywhere(eqn: JaxprEqn, unknown: Sequence[bool]) -> bool:
    """Whether a lookup (`dynamic_slice`, `gather`) is one at a place that XLA does not know, and there are several."""
    sizes = list(zip(eqn.params["slice_sizes"], shape_of(eqn.invars[0]), strict=True))
    if eqn.primitive.name == "dynamic_slice":
        return any(is_unknown and part < whole for is_unknown, (part, whole) in zip(unknown[1:], sizes, strict=False))
    indexed = eqn.params["dimension_numbers"].start_index_map
    return unknown[1] and bool(indexed) and all(sizes[axis][0] < sizes[axis][1] for axis in indexed)


def _has_elements(atom: Any) -> bool:
    """Whether it is an array with at least one element."""
    shape = getattr(atom.aval, "shape", None)
    return shape is not None and _are_sizes(shape)


@functools.lru_cache(maxsize=1000)
def _are_sizes(shape: tuple[Any, ...]) -> bool:
    """Whether each is a number above 0. (It may be a symbol, under `jax.export`.)"""
    return all(isinstance(size, int) and size > 0 for size in shape)


def _dtype(atom: Any) -> Any:
    return getattr(atom.aval, "dtype", np.dtype(bool))


@functools.lru_cache(maxsize=100)
def _is_inexact(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def _is_complex(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, np.complexfloating))


def _number(atom: Any) -> float:
    """The number that a literal is; else one that is neither more nor less than others."""
    return atom.val if isinstance(atom, Literal) and not np.ndim(atom.val) else float("nan")
