"""Which objects may run code when they die.

A `__del__` shows in the class, and weak references, which may have callbacks, are counted. This module also finds what
is less visible: memory whose owner is told of its release (`__release_buffer__`), objects that do not tell the garbage
collector what they refer to, which may be anything, and objects of C code that is not known, which may call back. Only
the object itself is examined here; `dying` goes on to what it refers to.
"""

from __future__ import annotations

import datetime
import gc
import re
import types
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import jax
import numpy as np

from pytc.classes import base_of, defined, defines, flags_of, ids_of, size_of
from pytc.ownership.cpython import native
from pytc.ownership.cpython.facts import Fact
from pytc.ownership.references.counts import ATOMS

LIVE_ON = ids_of(*ATOMS, type, range, bytearray, types.EllipsisType, types.NotImplementedType)
"""Types (ids) whose objects run no code when they die, or never die with the arguments because others refer to them."""
_COLLECTED = 1 << 14
"""The flag of classes whose objects tell the collector what they refer to (`Py_TPFLAGS_HAVE_GC`)."""
_OPEN = (int, float, complex, str, bytes, bytearray, np.generic, jax.sharding.Sharding)
"""Types whose objects are not garbage-collected because they refer to nothing."""
_SECRETIVE = ids_of(
    type(re.compile("").scanner("")),  # type: ignore[attr-defined]
    type(datetime.datetime_CAPI),
)
"""Types (ids) whose objects have contents that they do not tell the collector of: a scanner has the text that it
searches, a capsule may have anything (that of `__dlpack__` has an array)."""
OFTEN_SHARED = ids_of(
    type(jax.jit(abs)), jax.custom_jvp, jax.custom_vjp,
    *(getattr(types, f"{name}Type") for name in ("Function", "BuiltinFunction", "Method", "Module", "Frame")),
)  # fmt: skip
"""Types (ids) of objects that mostly live on: a function that is part of one state is also part of the next."""
BOUND = ids_of(types.MethodType, types.BuiltinMethodType)
"""Those of them whose objects are mostly made anew for each use, and may be equal without being identical."""
_dtype: Callable[[Any], np.dtype[Any]] = np.ndarray.__dict__["dtype"].__get__
_SUSPENDED = ids_of(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
ARRAYS: set[int] = set()
"""JAX's own array types (ids), added as they are seen. Not those of PRNG keys, which are objects around arrays."""
MOST = 4096
"""At most so many objects are examined."""


def lives_on(kind: type) -> bool:
    """Whether objects of this type run no code when they die, or have other references, so that they do not die."""
    return id(kind) in LIVE_ON or issubclass(kind, type)


def is_told_by_class(kind: type) -> bool:
    """Whether the answer of `is_loud` depends on the object's type alone, as long as the class gets no `__del__`. It
    does not for memory, whose owner and dtype differ from object to object."""
    return not issubclass(kind, np.ndarray | np.dtype | memoryview)


def is_loud(value: Any) -> bool:
    """Whether code may run when the object dies, or it has contents that cannot be examined. Not for JAX arrays."""
    kind = type(value)
    if issubclass(kind, np.ndarray):
        dtype = _dtype(value)
        if dtype.hasobject or not dtype.isbuiltin:
            return True
    elif issubclass(kind, np.dtype):
        return value.hasobject or not value.isbuiltin  # a dtype made by users may have metadata
    return not _is_quiet_class(kind)


def _ends_quietly(kind: type) -> bool:
    """Whether an object of this class runs no code as it dies, provided that its memory and dtype do not."""
    hides = _hides_contents(kind) and not issubclass(kind, np.ndarray)
    if hides or defines(kind, "__del__"):
        return False
    # From CPython 3.12 on, classes written in C show by this name what they do themselves.
    release = defined(kind, "__release_buffer__")
    if type(release) is not types.WrapperDescriptorType and defines(kind, "__release_buffer__"):
        return False
    return native.is_quiet(kind)


_is_quiet_class = Fact(_ends_quietly)


def any_loud(values: Iterable[Any], kinds: Sequence[type]) -> bool:
    """Whether any of the values `is_loud`. `kinds` are their types, each once, so that mostly each is asked once,
    however many values there are."""
    by_value = [id(kind) for kind in kinds if not is_told_by_class(kind)]
    return any(id(kind) not in by_value and not _is_quiet_class(kind) for kind in kinds) or bool(
        by_value and any(id(type(value)) in by_value and is_loud(value) for value in values)
    )


def _hides_contents(kind: type) -> bool:
    """Whether objects of this class, or of a class written in C that it derives from, may refer to something without
    telling the collector."""
    if id(kind) in _SECRETIVE:
        return True
    while flags_of(kind) & _COLLECTED:
        kind = base_of(kind) or object
    # It is not collected, and has fields besides the header: code has constants, a `datetime` a time zone.
    return size_of(kind) > object.__basicsize__ and (issubclass(kind, np.void) or not issubclass(kind, _OPEN))


def attached(arrays: Sequence[Any]) -> list[Any]:
    """The dictionaries of attributes that users have set on arrays."""
    found = gc.get_referents(*arrays)
    # As many referents as arrays: each refers to its class alone.
    return [part for part in found if type(part) is dict] if len(found) != len(arrays) else []


def reached(sought: Set[int], held: Iterable[Any], without: Set[int]) -> set[int]:
    """Those of the objects `sought` (ids) that can be reached from `held` without passing through `without` (ids).

    Only the first few thousand objects are searched. The search does not pass through functions and generators, which
    may refer to other things after they have run, nor through classes, which hold no state.
    """
    found: set[int] = set()
    level = [*held]
    while level and len(found) < MOST and not sought <= found:
        new = {id(v): v for v in level if id(v) not in found and id(v) not in without}
        new = {key: v for key, v in new.items() if id(type(v)) not in LIVE_ON and id(type(v)) not in ARRAYS}
        found.update(new)
        level = gc.get_referents(*(v for v in new.values() if _leads_on(type(v))))
    return found & sought


def _leads_on(kind: type) -> bool:
    return id(kind) not in OFTEN_SHARED and id(kind) not in _SUSPENDED and not issubclass(kind, type)
