"""What holds a leaf that was not proven dead, in words.

Slow, and only for messages to people (`donate="require"`, `explain`). It is no part of the proof, so it may look
anywhere. If several things hold a leaf, the answer is the one that people can most easily act on.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import pathlib
import reprlib
import sys
import threading
import types
from collections.abc import Mapping, Sequence, Set
from types import FrameType
from typing import Any, Literal, TypeAlias, get_args

import jax

from pytc.classes import attributes_of, bases_of, defines, ids_of, qualname_of
from pytc.ownership.bytecode.events import Step
from pytc.ownership.cpython import interpreter
from pytc.ownership.cpython.plain import is_key
from pytc.ownership.references import counts
from pytc.ownership.references.loops import REUSE_A_TUPLE
from pytc.ownership.words.referrers import Referrers

DEEPEST = 3
"""Containers in one another that are looked through: a list of tuples of arrays has two."""
LARGEST = 4096
"""Containers with more items are not looked through: to do so takes time, and the call waits for it."""

DICTIONARIES = (dict, collections.OrderedDict, collections.defaultdict)
"""Types of containers that refer to keys and values."""

_PLAIN_KEYS = ids_of(str, int, float, bool, bytes, type(None))

ANY_FUNCTION = ", which any function can read"
"""What is said of a global."""

BY_C = "C code (an iterator, `map`, `functools.partial`, an object with a `__call__`, ...)"
"""Who holds what no object that the interpreter knows of refers to."""

_OfObjects: TypeAlias = Literal["history", "attribute", "global", "closure", "traceback", "item", "unknown"]
"""Kinds of holders that `gc.get_referrers` finds, those first that people can most easily act on."""
Kind: TypeAlias = Literal[
    _OfObjects, "variable", "weakref", "buffer", "observer", "interpreter", "introspection", "thread", "finaliser"
]
Remedy: TypeAlias = Literal[
    "local", "store", "plain", "key", "rename", "apart", "weakref", "traceback", "call", "watch", "copy", "none"
]
"""What would have a leaf reused:

    local      to hold it in a local variable
    store      to store the result at once
    plain      to have it in an attribute or an item of a plain object
    key        to have it in an item under a key that is worked out before
    rename     to call the variable otherwise than what is in a string
    apart      to make the call in a function that does not read its variables by other means
    weakref    to drop a weak reference
    traceback  to drop an exception, or its traceback
    call       to make the call by plain Python code
    watch      to run without whoever watches
    copy       to copy the elements that are shown
    none       nothing that is known
"""


Sources: TypeAlias = Mapping[Step, bool]
"""The last steps of the places that a call's expression loads: its globals, attributes and items; and of each whether
the result is assigned to such a place at once."""
_NO_SOURCES: Sources = {}


@dataclasses.dataclass(frozen=True)
class Held:
    """What keeps a leaf from being reused."""

    kind: Kind
    text: str
    """In words: "also `best` in train.py:41"."""
    file: str | None = None
    line: int | None = None
    source: Step | None = None
    """If the place that the call loaded the value from holds it: the last step to that place, the attribute `state` in
    `self.state = step(self.state)`."""
    onlooker: str = ""
    """If nothing else holds the value: who may read that place before the result is stored there."""
    remedy: Remedy = "local"

    @property
    def is_only_exposed(self) -> bool:
        """Whether nothing else holds the value: somebody may read the place that the call got it from."""
        return self.source is not None or self.kind in ("observer", "introspection")


def place_in(frame: FrameType, line: int | None) -> str:
    """`train.py:57`; in a cell of a notebook `In[3]:1`."""
    file = frame.f_code.co_filename
    return f"{_cell(file) or pathlib.Path(file).name}:{line or frame.f_lineno}"


def _cell(file: str) -> str:
    """The cell whose code IPython has compiled under the name of this file, as its tracebacks call it; "" if it is none
    of them."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return "" if named is None else str(named[1])


def is_container(value: Any) -> bool:
    """Whether it is a list, a queue, a tuple (a named one, too) or a dictionary of the standard library; but not of a
    module's globals, which `_by_dict` describes."""
    kind = type(value)
    if kind is dict:
        return "__builtins__" not in value
    return kind in (list, collections.deque, *DICTIONARIES) or issubclass(kind, tuple)


def length(container: Any) -> int:
    """How many items it has. (A class of named tuples may have a `__len__` of its own.)"""
    return tuple.__len__(container) if issubclass(type(container), tuple) else len(container)


def in_objects(value: Any, referrers: Referrers, dead: Set[int], arguments: Sources) -> Held | None:
    """An object that refers to the value, in words. Not one of the `dead` (ids), whose references are accounted for;
    `arguments` are the `sources` of the call."""
    found: list[Held] = []
    for referrer in referrers.of(value):  # a loop, because a comprehension would capture the value in a cell
        if id(referrer) not in dead and (held := _by(referrer, value, referrers, arguments)) is not None:
            found.append(held)  # noqa: PERF401
    order = get_args(_OfObjects)
    return min(found, key=lambda held: (held.source is not None, order.index(held.kind)), default=None)


def _by(referrer: Any, value: Any, referrers: Referrers, arguments: Sources) -> Held | None:
    if _is_running(referrer):
        return None  # what its variables hold is told elsewhere
    if isinstance(referrer, FrameType):
        return _by_frame(referrer, value, referrers)
    if isinstance(referrer, dict):
        return _by_dict(referrer, value, referrers, arguments)
    if isinstance(referrer, types.CellType):
        return Held("closure", _captured(referrer, referrers) or "a nested function that has captured it")
    if isinstance(referrer, list | collections.deque | tuple | set | frozenset):
        if type(referrer) is tuple and (iterator := _hands_out(referrer, referrers)):
            return Held("item", f"the `{iterator}` of a loop, which holds what it has handed out until the next")
        if type(referrer) is tuple and (function := _function(referrer, "__defaults__", referrers)):
            return Held("item", f"a default argument of {function.__qualname__}")
        if type(referrer) is tuple and any(type(owner) is functools.partial for owner in referrers.of(referrer)):
            return Held("item", "an argument of a `functools.partial`", remedy="call")
        if type(referrer) is tuple and not referrers.of(referrer):
            return Held("unknown", f"the arguments of a call by {BY_C}", remedy="call")
        return Held("item", f"an item of {_named_or_not(referrer, referrers)}")
    if type(referrer).__name__ == "managedbuffer":
        return Held("unknown", "a NumPy array or a memoryview that shows its memory", remedy="copy")
    names = _attributes(referrer, value)
    if names:
        return _by_name("attribute", names, f"attribute `{{}}` of {type(referrer).__name__}", arguments)
    return Held("unknown", _nameless(referrer))


def _by_frame(frame: FrameType, value: Any, referrers: Referrers) -> Held | None:
    """The frame of a function that is over, since to the collector others do not refer to their variables. (Another
    thread may clear it at any moment.)"""
    variables = enumerate(frame.f_code.co_varnames)
    names = (name for n, name in variables if interpreter.variable_elsewhere(frame, n) is value)
    named = next(names, None)
    if named is None:
        return None
    traced = any(type(owner) is types.TracebackType for owner in referrers.of(frame))
    how = "in the traceback of an exception that is kept" if traced else "whose frame something else has hold of"
    return Held("traceback", f"`{named}` of {frame.f_code.co_qualname}, {how}", remedy="traceback")


def _is_running(value: Any) -> bool:
    """Whether it is a generator or a coroutine that is one of the callers."""
    if isinstance(value, types.GeneratorType):
        return value.gi_running
    if isinstance(value, types.AsyncGeneratorType):
        return value.ag_running
    return isinstance(value, types.CoroutineType) and value.cr_running


def _nameless(owner: Any) -> str:
    """An object that is no container, by what people know it for."""
    kind = type(owner)
    if kind is functools._lru_cache_wrapper:
        return f"the `lru_cache` of {_own(owner).get('__qualname__', 'a function')}"
    if kind in (types.GeneratorType, types.CoroutineType):
        return f"the suspended {owner.__qualname__}"
    if kind.__name__.startswith("hamt_"):  # the nodes of the tree that a context is
        return "a `ContextVar`"
    if kind is threading.local:
        return "a `threading.local`"
    return f"{'an' if kind.__qualname__[0] in 'AEIOUaeiou' else 'a'} {kind.__qualname__}"


def _by_name(kind: Literal["attribute", "item"], names: Sequence[Any], text: str, arguments: Sources) -> Held:
    """The holder of the value under one of `names` in one object."""
    # What the call's code names is a string or an integer; others may have a `__hash__` and an `__eq__` of their own.
    steps = [Step(kind, name) if is_key(name) else None for name in names]
    at, source = _not_read_or_not_stored(steps, arguments)
    name = names[at]
    told = name if kind == "attribute" and type(name) is str else key_in_words(name)
    return Held(kind, text.format(told), source=source)


def _not_read_or_not_stored(steps: Sequence[Step | None], arguments: Sources) -> tuple[int, Step | None]:
    """Which of the places in one object that hold the value is told: one that the call did not read, if possible; or
    one that it did not overwrite, either, where it does overwrite another. Else the first, with its step."""
    for at, step in enumerate(steps):
        if step is None or step not in arguments:
            return at, None
    stored = [step is not None and arguments[step] for step in steps]
    return (stored.index(False), None) if True in stored and False in stored else (0, steps[0])


def key_in_words(key: Any) -> str:
    """A key as messages show it, shortened; what is not of Python's own plain types by its class alone, as its
    `__repr__` would run in the midst of a call."""
    return reprlib.repr(key) if _is_plain(key) else f"under a {qualname_of(type(key))}"


def _is_plain(key: Any) -> bool:
    if type(key) is tuple:
        return len(key) <= reprlib.aRepr.maxtuple and all(_is_plain(part) for part in key)
    if type(key) is int:
        return key.bit_length() <= 64  # Python refuses to write very long ones in decimal
    return id(type(key)) in _PLAIN_KEYS


def _by_dict(space: dict[Any, Any], value: Any, referrers: Referrers, arguments: Sources) -> Held | None:
    """The dictionary `space`, which refers to the value."""
    if "__name__" in space and "__builtins__" in space:
        return by_globals(space, value, arguments)
    keys = [key for key, item in space.items() if item is value]
    if not keys:
        return Held("item", f"a key of {_named_or_not(space, referrers)}")
    key = keys[0]
    owners = referrers.of(space)
    if type(key) is int and any(isinstance(owner, dict) and owner.get("Out") is space for owner in owners):
        return Held("history", f"IPython's Out[{key}]")
    for owner in owners:
        if isinstance(owner, type):
            if all(type(key) is str and attributes_of(owner).get(key) is value for key in keys):
                return _by_name("attribute", keys, f"attribute `{{}}` of the class {owner.__qualname__}", arguments)
        elif _own(owner) is space:
            return _by_name("attribute", keys, f"attribute `{{}}` of {type(owner).__name__}", arguments)
    return _by_name("item", keys, f"item {{}} of {_named_or_not(space, referrers)}", arguments)


def by_globals(space: dict[Any, Any], value: Any, arguments: Sources = _NO_SOURCES) -> Held | None:
    """The globals of a module, which refer to the value."""
    keys = [key for key, item in space.items() if item is value and type(key) is str]
    if not keys:
        return None
    file = space.get("__file__")
    where = f" in {pathlib.Path(file).name}" if isinstance(file, str) else ""
    at, source = _not_read_or_not_stored([Step("global", key) for key in keys], arguments)
    text = f"also `{keys[at]}`{where}" if source is None else f"the global `{keys[at]}`{where}{ANY_FUNCTION}"
    return Held("global", text, file if isinstance(file, str) else None, source=source)


def _function(part: Any, name: str, referrers: Referrers) -> types.FunctionType | None:
    """The function that has `part` under a name of its own (`__defaults__`, `__closure__`); None if none has."""
    functions = (each for each in referrers.of(part) if type(each) is types.FunctionType)
    return next((each for each in functions if getattr(each, name) is part), None)


def _captured(cell: types.CellType, referrers: Referrers) -> str:
    """The variable that a nested function has captured in a cell, in words; "" if there is none."""
    for closure in referrers.of(cell):
        if type(closure) is tuple and (function := _function(closure, "__closure__", referrers)):
            places = zip(function.__code__.co_freevars, closure, strict=True)
            name = next(name for name, each in places if each is cell)
            return f"`{name}` of the nested function {function.__qualname__}"
    return ""


def _attributes(owner: Any, value: Any) -> list[str]:
    names = [name for name, attribute in _own(owner).items() if attribute is value]
    for base in bases_of(type(owner)):
        for name, kind in attributes_of(base).items():
            if isinstance(kind, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # it is not set
                    names += [name] if kind.__get__(owner) is value else []
    return names


def _own(owner: Any) -> dict[str, Any]:
    """The `__dict__` of an object, read without running code of its class."""
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return own if isinstance(own, dict) else {}


def _hands_out(container: tuple[Any, ...], referrers: Referrers) -> str:
    """The iterator that reuses this tuple for each item, in words; "" if none does."""
    owners = (REUSE_A_TUPLE.get(type(owner)) for owner in referrers.of(container))
    return next((name for name in owners if name is not None), "")


def _named(container: Any, referrers: Referrers) -> str:
    """The global or attribute that a container is stored in, in words; "" if there is none."""
    for referrer in referrers.of(container):
        if isinstance(referrer, dict):
            if "__name__" in referrer and "__builtins__" in referrer and (held := by_globals(referrer, container)):
                return held.text.removeprefix("also ")
            keys = [key for key, item in referrer.items() if item is container and type(key) is str]
            for owner in referrers.of(referrer):
                if keys and not isinstance(owner, type | dict) and _own(owner) is referrer and not _is_ours(owner):
                    return f"attribute `{keys[0]}` of {type(owner).__name__}"
        elif isinstance(referrer, FrameType | list | tuple | type) or _is_ours(referrer):
            continue
        elif names := _attributes(referrer, container):
            return f"attribute `{names[0]}` of {type(referrer).__name__}"
    return ""


def _named_or_not(container: Any, referrers: Referrers) -> str:
    """A container in words: by its name, or what is around it."""
    return _named(container, referrers) or f"a {type(container).__name__}{_around(container, referrers)}"


def _is_ours(owner: Any) -> bool:
    """Whether it is of a class of pytc's: the proof's own lists have what it looks at."""
    return str(type(owner).__module__).partition(".")[0] == "pytc"


_SAY_NOTHING = (FrameType, types.FunctionType, types.CellType, type, list, tuple, dict, set, frozenset)


def _around(container: Any, referrers: Referrers, levels: int = DEEPEST - 1) -> str:
    """What is around a container that has no name itself, as words after it; "" if there is nothing to be said."""
    for referrer in referrers.of(container):
        if is_container(referrer):
            if name := _named(referrer, referrers):
                return f" in {name}"
            if levels > 1 and (further := _around(referrer, referrers, levels - 1)):
                return further
    owners = (each for each in referrers.of(container) if not isinstance(each, _SAY_NOTHING))
    return next((f" in {_nameless(owner)}" for owner in owners if not _is_ours(owner)), "")


def oddity(value: Any) -> Held | None:
    """What reaches the value without a counted reference to it, if anything does."""
    if not counts.only_marked(value):
        return Held("weakref", "a weak reference", remedy="weakref")
    if defines(type(value), "__del__") and not isinstance(value, jax.Array):
        return Held("finaliser", f"{type(value).__name__}.__del__, which can read it")
    if interpreter.may_share_attributes(type(value)) and interpreter.share_attributes([value]):
        return Held("attribute", f"the `__dict__` of {type(value).__name__}, which something else has")
    return None


def explain_interpreter() -> Held | None:
    """Why nothing at all can be proven now, if so."""
    if interpreter.refusal:
        return Held("interpreter", interpreter.refusal, remedy="none")
    observer = interpreter.observer()
    return Held("observer", observer, remedy="watch") if observer else None
