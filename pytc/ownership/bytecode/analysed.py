"""What has been analysed so far: functions' code and the places in it, forgotten with the code."""

from __future__ import annotations

import weakref
from types import CodeType, FrameType
from typing import Any

from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.bytecode.instructions import UnknownInstruction
from pytc.ownership.bytecode.liveness import ControlFlow


class NotTrusted(Exception):
    """The bytecode of a frame cannot be analysed; the message says why."""


# By the ids of code objects. An entry is removed when its code dies, unless the stack is full or a signal handler
# raises just then; and the id may be reused. So each entry has a weak reference to its code, which is compared.
_sites: dict[tuple[int, int], CallSite] = {}
_flows: dict[int, tuple[weakref.ref[CodeType], ControlFlow | str]] = {}


def flow_of(code: CodeType) -> ControlFlow:
    """The analysis of a code object, made once and forgotten with it. Raises `NotTrusted` if it cannot be made."""
    key = id(code)
    known = _flows.get(key)
    if known is None or known[0]() is not code:
        # The dictionaries are defaults: this also runs when the interpreter ends and the module's names are gone.
        def forget(_: object, flows: dict[int, Any] = _flows, sites: dict[tuple[int, int], CallSite] = _sites) -> None:
            flows.pop(key, None)
            for place in [place for place in tuple(sites) if place[0] == key]:
                sites.pop(place, None)

        try:
            flow: ControlFlow | str = ControlFlow(code)
        except UnknownInstruction as error:
            flow = f"the bytecode of {code.co_qualname} has an instruction that is not known here, {error}"
        known = _flows[key] = weakref.ref(code, forget), flow
    if isinstance(known[1], str):
        raise NotTrusted(known[1])
    return known[1]


def site_of(frame: FrameType) -> CallSite:
    """The analysis of a frame's current instruction, made once. Raises `NotTrusted` if it cannot be made."""
    site = known_site(frame)
    if site is None:
        code, lasti = frame.f_code, frame.f_lasti
        site = _sites[id(code), lasti] = CallSite(flow_of(code), lasti, frame.f_globals, frame.f_builtins)
    return site


def known_site(frame: FrameType) -> CallSite | None:
    """The analysis of a frame's current instruction if it has been made, else None."""
    code = frame.f_code
    site = _sites.get((id(code), frame.f_lasti))
    return site if site is not None and site.of() is code else None
