"""Slots: attributes, items, globals and cells that the instructions right behind the call overwrite.

`callsite` says which slots those are by name; here the names meet the objects of one call. A slot is dead if

- the way to it runs no code: plain attributes of plain objects, items of exact dicts and lists under string or
  integer keys, no property, no `__getattr__`, no `__setattr__`, no descriptor but `__slots__`;
- none of the stores before it redirects the way to it;
- what those stores drop runs no code either when it dies;
- unpacking the result cannot fail: its length is known;
- nothing else can look in the meantime. Other threads can, at any moment, so there must be none but those that are
  known never to read a program's data; so can a signal handler written in Python, and a callback that the compiled
  program makes, so there must be none of these.

What may raise between the call and the store is then the call alone, and a call that raises has donated nothing:
JAX confirms a donation only once the execution is under way, and `pytc.compile` puts off an interrupt that arrives
between the two.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import collections
import sys
import threading
import types
from collections.abc import Iterable
from types import FrameType, MemberDescriptorType, ModuleType
from typing import Any

import jax
import numpy as np

from pytc.ownership import interpreter
from pytc.ownership.callsite import Event, Place, Site, Step
from pytc.ownership.counts import only_marked
from pytc.ownership.interpreter import UNBOUND, variable

_PLAIN_GETATTRIBUTE: tuple[Any, ...] = (object.__getattribute__, types.SimpleNamespace.__getattribute__)
_PLAIN_SETATTR: tuple[Any, ...] = (object.__setattr__, types.SimpleNamespace.__setattr__)
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_ATOMS = (type(None), bool, int, float, complex, str, bytes, np.ndarray)
_SIGNALS = tuple(s for s in _signal.valid_signals() if s < 32)
_DEFAULT_HANDLERS = (_signal.SIG_DFL, _signal.SIG_IGN, None, _signal.default_int_handler)

# The functions at the bottom of threads that wait for work of their own and never read a program's data.
_HARMLESS = {
    ("tqdm._monitor", "TMonitor.run"),
    ("IPython.core.history", "HistorySavingThread.run"),
    ("ipykernel.heartbeat", "Heartbeat.run"),
    ("ipykernel.iostream", "IOPubThread._thread_main"),
    ("ipykernel.control", "ControlThread.run"),
    ("ipykernel.parentpoller", "ParentPollerUnix.run"),
}


class _NotPlain(Exception):
    """Reaching a place, or storing there, may run code."""


def onlookers(calls_python: bool, atomic: bool) -> str:
    """Who, besides this thread's next instructions, may read a slot before it is overwritten; empty if nobody."""
    if not atomic:
        return "the call may raise after it has donated, and the old value would then still be there"
    if calls_python:
        return "the compiled program may call back into Python while it runs"
    if interpreter.threads() and (name := other_thread()):
        return f"another thread, {name}, may read it"
    for number in _SIGNALS:
        if _signal.getsignal(number) not in _DEFAULT_HANDLERS:
            return f"a handler of signal {number} may read it"
    return ""


def other_thread() -> str:
    """The name of a thread that may read anything at any time, besides this one; empty if there is none."""
    here = threading.get_ident()
    for ident, frame in sys._current_frames().items():
        if ident == here:
            continue
        bottom: FrameType | None = frame
        code_names = set()
        while bottom is not None:
            code_names.add((bottom.f_globals.get("__name__"), bottom.f_code.co_qualname))
            bottom = bottom.f_back
        if not code_names & _HARMLESS:
            thread = threading._active.get(ident)  # type: ignore[attr-defined]
            return repr(thread.name) if thread is not None else f"number {ident}"
    return ""


class Slots:
    """What stands in the slots that the frames of a call overwrite right behind it, in order.

    `onlooker` is who may read them before they are overwritten; if there is anybody, none of them counts.
    """

    def __init__(self, roots: Iterable[Any], onlooker: str):
        self.onlooker = onlooker
        self.values: list[Any] = []
        self._open = not onlooker
        self._roots = {id(root) for root in roots}
        self._overwritten: set[tuple[int, Any]] = set()
        self._loaded: set[int] = set()

    def add(self, frame: FrameType, site: Site, length: int | None) -> None:
        """Take over what the instructions behind `site` overwrite in `frame`, up to the first that may run code.

        `length` is the length of the result, if it is a tuple or a list.
        """
        self._open = self._open and self._walk(frame, site.events, length) and site.returns

    def _walk(self, frame: FrameType, events: Iterable[Event], length: int | None) -> bool:
        for event in events:
            if event.does == "unpack":
                if event.place[0].name != length:
                    return False
                continue
            try:
                container, key, value = self._locate(frame, event.place, event.does == "store")
            except _NotPlain:
                return False
            if event.does == "load":
                if value is UNBOUND:
                    return False
                self._read(value)
                continue
            if value is UNBOUND or (id(container), key) in self._overwritten:
                self._overwritten.add((id(container), key))
                continue
            self._overwritten.add((id(container), key))
            if id(value) in self._loaded:
                return False  # read before it was overwritten: `z, x = x, z`
            if container is not frame:  # a local variable of the frame is for `liveness` to call dead
                self.values.append(value)
            if not (id(value) in self._roots or self._dies_quietly(value)):
                return False
        return True

    def _read(self, value: Any) -> None:
        """Note that the value is read behind the call: it may live on elsewhere, whatever its slot is given next."""
        self._loaded.add(id(value))

    def peek(self, frame: FrameType, place: Place) -> Any:
        """What stands in a place, or `UNBOUND` where looking may run code."""
        try:
            return self._locate(frame, place, False)[2]
        except _NotPlain:
            return UNBOUND

    def _dies_quietly(self, value: Any) -> bool:
        if type(value) in (tuple, list):
            return all(self._dies_quietly(v) for v in value)
        if type(value) is dict:
            return all(self._dies_quietly(v) for v in value.values())
        return type(value) in _ATOMS or (isinstance(value, jax.Array) and only_marked(value))

    def _locate(self, frame: FrameType, place: Place, storing: bool) -> tuple[Any, Any, Any]:
        """The object that a slot is in, the key that tells it from others there, and its value."""
        container, key, value = self._variable(frame, place[0], storing and len(place) == 1)
        for step in place[1:]:
            if value is UNBOUND or (id(container), key) in self._overwritten:
                raise _NotPlain
            container = value
            if step.kind == "attribute":
                key, value = step.name, attribute(container, step.name, storing and step is place[-1])
            else:
                key = step.name
                if isinstance(key, tuple):
                    _, _, key = self._locate(frame, key, False)
                value = item(container, key)
        return container, key, value

    def _variable(self, frame: FrameType, step: Step, storing: bool) -> tuple[Any, Any, Any]:
        if step.kind == "global":
            space = frame.f_globals
            if type(space) is not dict:
                raise _NotPlain
            if not frame.f_code.co_flags & 1 and frame.f_locals is not space:
                raise _NotPlain  # a class body, or `exec` with variables of its own
            value = space.get(step.name, UNBOUND)
            if value is UNBOUND and not storing:
                raise _NotPlain
            return space, step.name, value
        value = variable(frame, step.name)
        if step.kind == "cell":
            if type(value) is not types.CellType:
                raise _NotPlain
            try:
                return value, "cell_contents", value.cell_contents
            except ValueError:
                return value, "cell_contents", UNBOUND
        return frame, step.name, value


def attribute(target: Any, name: str, storing: bool) -> Any:
    """The value of a plain attribute in `target` itself, `UNBOUND` if it has none there; raises if it is not plain."""
    kind = type(target)
    if kind is ModuleType:
        return vars(target).get(name, UNBOUND)
    if kind.__getattribute__ not in _PLAIN_GETATTRIBUTE or (storing and kind.__setattr__ not in _PLAIN_SETATTR):
        raise _NotPlain
    in_class: Any = UNBOUND
    for base in kind.__mro__:
        if name in base.__dict__:
            in_class = base.__dict__[name]
            if type(in_class) is not MemberDescriptorType and hasattr(type(in_class), "__get__"):
                raise _NotPlain
            if type(in_class) is not MemberDescriptorType and hasattr(type(in_class), "__set__"):
                raise _NotPlain
            break
    try:
        value = object.__getattribute__(target, name)
    except AttributeError:
        return UNBOUND
    return UNBOUND if value is in_class else value


def item(target: Any, key: Any) -> Any:
    """The value of an item; raises if finding it may run code."""
    if type(key) not in (str, int):
        raise _NotPlain
    if type(target) in _DICTS:
        return dict.get(target, key, UNBOUND)
    if type(target) is list and type(key) is int and -len(target) <= key < len(target):
        return target[key]
    raise _NotPlain
