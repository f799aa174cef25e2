"""Fields: what a variable's container holds and nobody reads again, although other parts of it are read.

In `state = {"params": step(state["params"]), "n": state["n"] + 1}` the variable `state` is live at the call, but only
for its item "n". If nothing but the variable refers to the dictionary, then nothing else can read the item "params",
and what the variable is read for tells whether the function itself does:

    every instruction that may read the variable loads it, and the next one takes a member of it under a constant name

Then the container never leaves the variable, and the members under other names are as dead as a variable that is not
read again. (Dead variables of the callers may refer to the container, too: `frames.dead_above`.) Taking an item of an
exact dictionary, list or tuple runs no code, now and at any time (`plain`; nobody can put another key there), so these
may be read whenever the function likes. An attribute may become a property later, if somebody changes the class. So of
other objects the fields count only if all is read right after the call, before any code could run that does that:
`slots` sees to these.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from pytc.classes import has_dictionary
from pytc.ownership.bytecode.events import Event, Place, Step
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.symbolic import loads_method
from pytc.ownership.cpython.plain import NotPlain, is_key, item, of_strings
from pytc.ownership.references.private import has_own_attributes, is_held_once
from pytc.set_bits import set_bits

_MOST = 64
"""Nothing of a larger container is looked at."""


Read: TypeAlias = list[tuple[str, Any]]
"""Fields that are read, by the names of attributes, or without a name. (A class may have an attribute under the name of
another field.)"""


class Member(NamedTuple):
    """A member that two or three instructions in a row load: a local variable, and then an attribute or an item of what
    it has, under a constant name."""

    local: int
    step: Step
    last: int
    """The instruction that takes it."""


def member_of(flow: ControlFlow, at: int) -> Member | None:
    """The member for which instruction `at` loads a local variable; None if it does not, or for anything else."""
    code = flow.instructions
    names = [each.opname for each in code[at : at + 3]]
    argument = code[at].arg or 0
    match names[0]:
        case "LOAD_FAST" | "LOAD_FAST_CHECK":
            local = argument
        case "LOAD_FAST_LOAD_FAST":
            local = argument & 15
        case "STORE_FAST_LOAD_FAST" if argument >> 4 != argument & 15:  # else it loads what it has stored
            local = argument & 15
        case _:
            return None
    if names[1:2] == ["LOAD_ATTR"] and not loads_method("LOAD_ATTR", code[at + 1].arg or 0):
        return Member(local, Step("attribute", code[at + 1].argval), at + 1)
    if names[1:] == ["LOAD_CONST", "BINARY_SUBSCR"] and is_key(code[at + 1].argval):
        return Member(local, Step("item", code[at + 1].argval), at + 2)
    return None


def loads(flow: ControlFlow, at: int) -> list[int]:
    """The local variables that instruction `at` reads, as often as it loads them."""
    argument = flow.instructions[at].arg or 0
    twice = flow.instructions[at].opname == "LOAD_FAST_LOAD_FAST"
    return [argument >> 4, argument & 15] if twice else set_bits(flow.reads[at])


def members_read(flow: ControlFlow, at: int, local: int, calm: int) -> frozenset[Step] | None:
    """The members of what a local variable (a number) has that may be read after the call at instruction `at`; None if
    it may be read as a whole, or if that instruction is none that only calls. The first `calm` instructions from there
    on are known not to raise."""
    if flow.writes[at] or not flow.locals >> local & 1:
        return None
    found: set[Step] = set()
    for n in flow.readers(at, local, calm):
        member = member_of(flow, n)
        if member is None or member.local != local or loads(flow, n).count(local) > 1:
            return None
        found.add(member.step)
    return frozenset(found)


def attributes_read(events: Iterable[Event], place: Place) -> frozenset[Step]:
    """The attributes of what a variable has, named by its place, that the instructions after a call read, if they end
    with reading the variable (`continuation`)."""
    return frozenset(event.place[1] for event in events if len(event.reads) > 1 and event.place[:1] == place)


def fields_but(nodes: list[Any], read: Read) -> list[Any]:
    """What the one object in the list `nodes` refers to, each attribute by itself, but for what is `read`; nothing if
    somebody may have its `__dict__`."""
    found, kept = gc.get_referents(*nodes), {id(value) for _, value in read}
    if has_dictionary(type(nodes[0])):
        if not all(has_own_attributes(nodes, name, value) for name, value in read):
            return []
        # Where one of these attributes is in the object's `__dict__`, that is no field but has them.
        spaces = [p for p in found if type(p) is dict and of_strings(p) and any(n in p and p[n] is v for n, v in read)]
        spaces = [space for space in spaces if id(space) not in kept]
        found = [part for part in found if not any(part is space for space in spaces)]
        for space in spaces:
            found += space.values()
    return [value for value in found if id(value) not in kept]


def unread(nodes: list[Any], read: frozenset[Step], dead: int) -> list[Any]:
    """What the one object in the list `nodes`, a dictionary, list or tuple, holds except under the members that are
    `read` again; nothing if a variable, and so many `dead` ones, are not all that refers to it. Each is a reference of
    its own; what is also one of those members is left out."""
    if len(nodes[0]) > _MOST or not is_held_once(nodes, dead) or any(step.kind != "item" for step in read):
        return []
    try:
        kept = {id(item(nodes[0], step.name, False)) for step in read}
    except NotPlain:
        return []
    inside = dict.values(nodes[0]) if type(nodes[0]) is dict else nodes[0]
    return [value for value in inside if id(value) not in kept]
