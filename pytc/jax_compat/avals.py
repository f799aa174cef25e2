"""Abstract values, or avals: the types of arrays, of PRNG keys and of `Ref`s.

For JAX 0.10 to 0.12: `jax.core.ShapedArray`, its `str_short` and `strip_weak_type`, extended dtypes and
`AbstractRef.inner_aval`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pytc.errors import LeftToJit

AbstractValue: TypeAlias = Any
"""A `ShapedArray` or an `AbstractRef`; JAX exports no precise public type."""

DESCRIPTIONS = (jax.ShapeDtypeStruct, jax.core.ShapedArray)
"""What may stand for an array where none is needed. (The latter is what `jax.typeof` gives.)"""

T = TypeVar("T")


def is_for_jit(aval: AbstractValue) -> bool:
    """Whether only `jax.jit` knows what to pass for a value of this type: one of `jax.experimental.hijax`, which is
    several arrays to the program, or none; or a token, which has no dtype."""
    return bool(getattr(aval, "is_high", False)) or not hasattr(aval, "dtype")


def is_view_of_ref(value: Any) -> bool:
    """Whether it is a part of a `jax.Ref` (`ref.at[0]`, from JAX 0.11 on). JAX exports no class of these, and has no
    type for one: `jax.jit` takes it apart by rules of its own."""
    kind = type(value)
    return kind.__name__ == "TransformedRef" and kind.__module__.partition(".")[0] == "jax"


def of_each(function: Callable[[AbstractValue], T], avals: Sequence[AbstractValue]) -> list[T]:
    """What `function` says of each type. It is asked once for each object: equal types of a trace mostly are one."""
    distinct = {id(aval): aval for aval in avals}
    found = {key: function(aval) for key, aval in distinct.items()}
    return [found[id(aval)] for aval in avals]


@functools.cache
def is_extended(dtype: Any) -> bool:
    """Whether it is a dtype of JAX's own, such as that of PRNG keys, whose arrays wrap another array."""
    dtypes: Any = jax.dtypes
    return bool(dtypes.issubdtype(dtype, dtypes.extended))


def nbytes(aval: AbstractValue) -> int:
    """The bytes of an array of this shape and dtype. PRNG keys count the array of bits that they wrap."""
    return _nbytes(*held_as(aval))


@functools.lru_cache(1024)
def _nbytes(shape: tuple[int, ...], dtype: Any) -> int:
    return 0 if dtype == jax.dtypes.float0 else -(-math.prod(shape) * _bits(np.dtype(dtype)) // 8)


@functools.cache
def _bits(dtype: np.dtype[Any]) -> int:
    """What an element takes in an array's buffer, in bits: XLA packs elements of two and of four."""
    if dtype.itemsize > 1 or dtype.kind == "b":
        return 8 * dtype.itemsize
    info: Any = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    bits = int(info(dtype).bits)
    return bits if bits in (2, 4) else 8


def held_as(aval: AbstractValue) -> tuple[tuple[int, ...], Any]:
    """The shape and dtype of the array that holds a value of this type: of PRNG keys, that of their bits."""
    if is_extended(aval.dtype):
        aval, _ = key_bits(aval)
    return aval.shape, aval.dtype


@functools.lru_cache(1024)
def key_bits(aval: AbstractValue) -> tuple[Any, Any]:
    """The type of the bits that PRNG keys of this type wrap, and the keys' implementation.

    Raises `LeftToJit` for values that JAX does not compute with itself either, and that are no keys: what these are
    held as, only who has made their type knows.
    """
    if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        raise LeftToJit(f"{short(aval)} has a dtype of somebody's own: how such values are held is up to jax.jit")
    found: list[Any] = []

    def bits(keys: Any) -> Any:
        found.append(jax.random.key_impl(keys))
        return jax.random.key_data(keys)

    keys: Any = jax.ShapeDtypeStruct(aval.shape, aval.dtype)  # type: ignore[no-untyped-call]
    return jax.eval_shape(bits, keys), found[0]


def short(aval: AbstractValue) -> str:
    """`f32[8,128]`."""
    return str(aval.str_short(short_dtypes=True))


def alike(one: AbstractValue, other: AbstractValue) -> bool:
    """Whether two types differ in weak type at most."""
    return bool(one == other or (not is_ref(one) and one.strip_weak_type() == other.strip_weak_type()))


def on_axes(aval: AbstractValue) -> Any:
    """The sharding that a type has on the explicit axes of a mesh; None where it leaves it to the compiler how an array
    is spread, even if it names a mesh."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return None if mesh is None or mesh.empty or mesh.are_all_axes_auto else aval.sharding


def spec_on_axes(aval: AbstractValue) -> Any:
    """How such a type is spread, if it is: a `PartitionSpec`; else None."""
    spec = getattr(on_axes(aval), "spec", None)
    if spec is None or not (getattr(spec, "unreduced", None) or getattr(spec, "reduced", None) or any(spec)):
        return None
    return spec


def fits(aval: AbstractValue, expected: AbstractValue) -> bool:
    """Whether a value of this type can be given where the other type is expected: whether they are equal, but for a
    mesh of which neither says how the array is spread over it."""
    if aval == expected:
        return True
    if is_ref(aval) or is_ref(expected) or on_axes(aval) is not None or on_axes(expected) is not None:
        return False
    parts = operator.attrgetter("shape", "dtype", "weak_type", "memory_space")
    return bool(parts(aval) == parts(expected))


def is_array(aval: AbstractValue) -> bool:
    """Whether this is the type of arrays, which PRNG keys are, too, rather than of a `Ref` or a token."""
    return type(aval) is jax.core.ShapedArray


def is_ref(aval: AbstractValue) -> bool:
    """Whether this is the type of a `Ref`."""
    return hasattr(aval, "inner_aval")


def held(aval: AbstractValue) -> AbstractValue:
    """What a `Ref` of this type holds."""
    return aval.inner_aval


def stand_in(aval: AbstractValue, sharding: Any) -> Any:
    """Something to trace or lower for, of this type and at this place, that holds no memory."""
    if isinstance(sharding, jax.sharding.SingleDeviceSharding) and sharding.memory_kind not in (None, "device"):
        # JAX forgets the kind of memory of what only describes an array, unless it is on a mesh.
        everywhere: Any = jax.P
        mesh = jax.sharding.Mesh(np.array([*sharding.device_set]), ("only",))
        sharding = jax.NamedSharding(mesh, everywhere(), memory_kind=sharding.memory_kind)
    described = {"weak_type": bool(getattr(aval, "weak_type", False)), "sharding": sharding}
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, **described)  # type: ignore[no-untyped-call]
