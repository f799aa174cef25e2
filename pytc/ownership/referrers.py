"""Which object holds a leaf, as a person would say it: the attribute, global, item or nested function that refers to
it, with the lines that put it there.

For messages to people; it looks at every object that the collector knows.
"""

from __future__ import annotations

import dataclasses
import gc
import pathlib
import types
from collections.abc import Iterable
from types import FrameType
from typing import Any

from pytc.ownership import stores
from pytc.ownership.callers import NotTrusted, flow_of, site_of
from pytc.ownership.callsite import Place, loaded
from pytc.ownership.holders import Held

_ORDER = ("history", "attribute", "global", "closure", "item", "unknown")


def in_objects(value: Any, ours: set[int], frame: FrameType) -> Held | None:
    """The object that refers to the value, in words; `ours` are the ids of what the call from `frame` made itself."""
    call = _call_of(frame)
    found: list[tuple[bool, Held]] = []
    for referrer in gc.get_referrers(value):  # a loop, because a comprehension would capture the value in a cell
        if id(referrer) not in ours and (held := _by(referrer, value, call, frame)) is not None:
            found.append(held)  # noqa: PERF401
    best = min(found, key=lambda each: (each[0], _ORDER.index(each[1].kind)), default=None)
    return None if best is None else best[1]


@dataclasses.dataclass(frozen=True)
class _Call:
    """The names by which the statement of the call reaches what it was given. Of other names for the same object there
    is more to learn."""

    read: frozenset[str]
    """Globals and attributes that the expression reads."""
    overwritten: frozenset[str]
    """Those that are given the result."""

    def telling(self, names: list[Any]) -> list[Any]:
        """The names among these that tell most: others, or at least such as live on."""
        others = [name for name in names if name not in self.read]
        return others or [name for name in names if name not in self.overwritten]


_NO_CALL = _Call(frozenset(), frozenset())


def _call_of(frame: FrameType) -> _Call:
    try:
        flow, site = flow_of(frame.f_code), site_of(frame)
    except NotTrusted:
        return _NO_CALL
    stored = [event.place for event in site.events if event.does == "store"]
    return _Call(_names(loaded(flow, site.at)), _names(stored))


def _names(places: Iterable[Place]) -> frozenset[str]:
    steps = [place[-1] for place in places]
    return frozenset(step.name for step in steps if step.kind in ("global", "attribute"))


def _by(referrer: Any, value: Any, call: _Call, frame: FrameType) -> tuple[bool, Held] | None:
    """What a referrer is, in words, and whether it is only where the argument comes from."""
    if isinstance(referrer, FrameType):
        return None
    if isinstance(referrer, dict):
        return _by_dict(referrer, value, call, frame)
    if isinstance(referrer, types.CellType):
        return False, _captured(referrer)
    if isinstance(referrer, list | tuple | set | frozenset):
        name = _named(referrer, frame)
        return False, Held("item", f"an item of {name}" if name else f"an item of a {type(referrer).__name__}")
    if isinstance(referrer, types.GeneratorType):
        return False, _suspended(referrer.gi_code, referrer.gi_frame)
    if isinstance(referrer, types.CoroutineType):
        return False, _suspended(referrer.cr_code, referrer.cr_frame)
    names = _attributes(referrer, value)
    if names:
        return _attribute(referrer, names, call, frame)
    return False, Held("unknown", f"a {type(referrer).__qualname__}")


def _captured(cell: types.CellType) -> Held:
    for closure in gc.get_referrers(cell):
        for function in gc.get_referrers(closure) if isinstance(closure, tuple) else ():
            if isinstance(function, types.FunctionType) and function.__closure__ is closure:
                code = function.__code__
                place = _line(code.co_filename, code.co_firstlineno)
                text = f"captured by the nested function `{code.co_name}` in {place}"
                return Held("closure", text, code.co_filename, code.co_firstlineno)
    return Held("closure", "a nested function that has captured it")


def _suspended(code: types.CodeType, at: FrameType | None) -> Held:
    line = code.co_firstlineno if at is None else at.f_lineno
    text = f"the suspended {code.co_qualname} in {_line(code.co_filename, line)}"
    return Held("unknown", text, code.co_filename, line)


def _by_dict(space: dict[Any, Any], value: Any, call: _Call, frame: FrameType) -> tuple[bool, Held] | None:
    keys = [key for key, item in space.items() if item is value]
    if not keys:
        return None
    key = keys[0]
    if isinstance(key, int) and any(
        isinstance(owner, dict) and owner.get("Out") is space for owner in gc.get_referrers(space)
    ):
        return False, Held("history", f"IPython's Out[{key}]")
    if "__name__" in space and "__builtins__" in space:
        return _global(space, keys, call, frame)
    for owner in gc.get_referrers(space):
        if getattr(type(owner), "__dictoffset__", 0) and not isinstance(owner, type) and vars(owner) is space:
            return _attribute(owner, keys, call, frame)
    name = _named(space, frame)
    return False, Held("item", f"{name}[{key!r}]" if name else f"item {key!r} of a {type(space).__name__}")


def _global(space: dict[str, Any], names: list[str], call: _Call, frame: FrameType) -> tuple[bool, Held]:
    file = space.get("__file__")
    where = f" in {pathlib.Path(file).name}" if isinstance(file, str) else ""
    others = call.telling(names)
    if not others:
        text = f"the global `{names[0]}`{where}, which any function can read"
        return True, Held("global", text, file if isinstance(file, str) else None)
    callers = [code for code in stores.of_callers(frame) if code.co_filename == file]
    places = stores.stored("global", others[0], [*callers, *stores.of_module(space)])
    line = places[0][1] if places else None
    text = f"also `{others[0]}`{stores.said(places)}" if places else f"also `{others[0]}`{where}"
    return False, Held("global", text, file if isinstance(file, str) else None, line)


def _attribute(owner: Any, names: list[str], call: _Call, frame: FrameType) -> tuple[bool, Held]:
    others = call.telling(names)
    name = (others or names)[0]
    places = stores.stored("attribute", name, [*stores.of_class(type(owner)), *stores.of_callers(frame)])
    file, line = places[0] if places else (None, None)
    text = f"attribute `{name}` of {type(owner).__name__}{stores.said(places)}"
    return not others, Held("attribute", text, file, line)


def _attributes(owner: Any, value: Any) -> list[str]:
    names = list(getattr(owner, "__dict__", ()))
    for base in type(owner).__mro__:
        names += [name for name, kind in vars(base).items() if isinstance(kind, types.MemberDescriptorType)]
    return [name for name in names if getattr(owner, name, None) is value]


def _named(container: Any, frame: FrameType) -> str:
    """What a container is called, if it is a global or an attribute."""
    for referrer in gc.get_referrers(container):
        if isinstance(referrer, dict):
            if "__name__" in referrer and "__builtins__" in referrer:
                held = _by_dict(referrer, container, _NO_CALL, frame)
                if held is not None:
                    return held[1].text.removeprefix("also ")
            keys = [key for key, item in referrer.items() if item is container]
            for owner in gc.get_referrers(referrer):
                if keys and not isinstance(owner, type | dict) and getattr(owner, "__dict__", None) is referrer:
                    return _attribute(owner, keys, _NO_CALL, frame)[1].text
        elif not isinstance(referrer, FrameType | list | tuple | type) and (names := _attributes(referrer, container)):
            return _attribute(referrer, names, _NO_CALL, frame)[1].text
    return ""


def _line(file: str, line: int) -> str:
    return f"{pathlib.Path(file).name}:{line}"
