# ruff: noqa: PT008 - the patches are to be functions, because their places are
"""The prover with one obligation broken, for each obligation; and a program for each that shows it.

    python -m tests.ownership.mutants [--programs 2000]

runs the random programs under each as well, and prints which of them notice.
"""

from __future__ import annotations

import argparse
import builtins
import concurrent.futures
import contextlib
import gc
import operator
import re
import signal
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np

from pytc.classes import defines
from pytc.ownership import callers, frames, look, proof, slots
from pytc.ownership.arrays import buffers, executions, placed, walk
from pytc.ownership.bytecode import (
    analysed,
    continuation,
    events,
    fields,
    introspection,
    liveness,
    managers,
    replacing,
    strings,
    symbolic,
    taint,
)
from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.cpython import interpreter, native, plain
from pytc.ownership.others import collector, exits, waiting_threads, watchers
from pytc.ownership.others.signal_handlers import Flags
from pytc.ownership.references import counts, dying, endings, loops, private, starred
from pytc.set_bits import set_bits
from tests.interrupting import loses, starred_call, starred_method_and_a_handler
from tests.ownership import test_fields, test_starred, test_strange_moments, test_written_in_c
from tests.ownership import test_strange as strange
from tests.ownership import test_strange_objects as strange_objects
from tests.ownership.fuzz_callers import Wrong, check
from tests.ownership.harness import Stub, both, first, of_length, of_lengths
from tests.ownership.odd_objects import Last, LastOfNothing, Node, capturing
from tests.threads import FOR_LONG

Mutant = Callable[[], Any]
Program = Callable[[Stub, Callable[..., Any], Callable[..., Any]], Any]


def everything_is_dead() -> Any:
    """No liveness: every local variable counts as dead."""
    return mock.patch.object(liveness.ControlFlow, "dead", lambda flow, at, calm=0: frozenset(set_bits(flow.locals)))


def handlers_do_not_count() -> Any:
    """No exception edges."""
    return mock.patch.object(liveness.ControlFlow, "_handled", lambda flow, live, at: 0)


def managers_pass_exceptions_on() -> Any:
    """No `with` statement ends an exception."""
    return mock.patch.object(exits, "_passes_on", lambda leave: True)


def the_next_manager_is_the_same() -> Any:
    """A `with` statement that is entered once more has the manager that it had."""

    def handled(flow: Any, live: list[int], at: int) -> int:
        of_the_statement = flow.handlers[at] == flow.innermost.handler
        return liveness.ControlFlow._handled(flow, live, flow.innermost.raises if of_the_statement else at)

    return _patches(
        mock.patch.object(managers._Passing, "_inside", lambda flow: [*range(len(flow.instructions))]),
        mock.patch.object(managers._Passing, "_handled", handled),
    )


def nothing_is_put_back() -> Any:
    """What a comprehension puts aside, for a variable that has the name of one of its own, is gone."""
    return mock.patch.object(liveness, "puts_back", lambda flow, at: frozenset())


def cells_are_the_frames_alone() -> Any:
    """No nested function is there that could read a variable which it shares."""

    def own(frame: Any, local: int) -> Any:
        value = interpreter.variable(frame, local)
        return interpreter.contents(value) if type(value) is types.CellType else value

    return _patches(
        mock.patch.object(callers, "own", own), mock.patch.object(frames, "is_shared", lambda frame, local: False)
    )


def to_make_a_function_reads_nothing() -> Any:
    """That a nested function is still to be made of a variable is not thought of."""

    effect = liveness.effect
    return mock.patch.object(liveness, "effect", lambda each: (0, 0) if each.opname == "LOAD_CLOSURE" else effect(each))


def strings_read_nothing() -> Any:
    """Nobody evaluates a string in the frame of a caller."""
    return mock.patch.object(strings, "named_by", lambda flow, at, numbers: 0)


def strings_are_read_where_they_are_loaded() -> Any:
    """A string that has been loaded for a call is not evaluated by it."""
    return mock.patch.object(taint, "evaluated", lambda flow, named, loads, count: [0] * len(named))


def strings_are_read_as_a_call_begins() -> Any:
    """A function has evaluated the strings that it was passed by the time that it calls another."""
    return mock.patch.object(liveness.ControlFlow, "evaluated", lambda flow, at: frozenset())


def variables_have_no_strings() -> Any:
    """A variable has none of the strings that were stored there, or passed to the call whose result it is."""

    def with_variable(taints: Any, does: str, local: int, stack: list[int]) -> None:
        stack.append(0) if does == "LOAD" else stack.pop()

    return mock.patch.object(taint._Taints, "_with_variable", with_variable)


def results_have_no_strings() -> Any:
    """What is made of a value with a text has nothing of it, nor has what a `with` statement or a loop gets of it."""
    replace = taint._Taints._replace

    def with_nothing(taints: Any, at: int, stack: list[int], height: int) -> None:
        replace(taints, at, stack, height)
        if not taints.flow.instructions[at].opname.startswith(taint._MADE_OF):
            stack[height - 1 :] = [0]

    return mock.patch.object(taint._Taints, "_replace", with_nothing)


def only_calls_run_code() -> Any:
    """No string is evaluated by an operator, an attribute or a loop."""
    return mock.patch.object(taint, "RUN_NO_CODE", _AllButCalls())


class _AllButCalls:
    def __contains__(self, name: str) -> bool:
        return not name.startswith("CALL")


def builtins_have_one_name() -> Any:
    """Nobody gets at `vars` or `eval` by a string but with the function `getattr`."""
    return _patches(
        mock.patch.object(introspection, "_OTHERS", frozenset(("getattr",))),
        mock.patch.object(introspection, "_OF_BUILTINS", frozenset()),
    )


def names_have_no_dots() -> Any:
    """A string in which a name is one among others tells nothing."""
    return mock.patch.object(introspection, "_PATH", re.compile(r"\w+"))


def builtins_are_what_they_were() -> Any:
    """Nobody has put another name for `locals` among the builtins."""
    by_global = introspection._by_global
    return mock.patch.object(
        introspection,
        "_by_global",
        lambda used, seen: by_global(used, {name: seen[name] for name in seen if not hasattr(builtins, name)}),
    )


def keys_are_no_code() -> Any:
    """No key is evaluated, whatever it looks like."""
    return mock.patch.object(strings, "_KEY", re.compile(".*"))


_opens = counts.opens


def counts_do_not_matter() -> Any:
    """No counting: references that are not accounted for are ignored."""
    return _patches(
        mock.patch.object(counts.Census, "remains", lambda census, key: 0),
        mock.patch.object(counts, "remainder", lambda *_: 0),
    )


def a_reference_too_many_is_forgiven() -> Any:
    """One unaccounted reference is let pass: a caller written in C holds no more than that."""
    remains = counts.Census.remains
    return _patches(
        mock.patch.object(counts.Census, "remains", lambda census, key: max(remains(census, key) - 1, 0)),
        mock.patch.object(counts, "remainder", lambda *_: 1),
    )


def weak_references_do_not_count() -> Any:
    """Weak references are ignored."""
    return _patches(
        mock.patch.object(counts, "_weakrefs", lambda value: 0),
        mock.patch.object(counts, "only_marked", lambda leaf: True),
    )


def finalisers_do_not_count() -> Any:
    """A container with `__del__` is opened like any other."""

    def opens(value: Any) -> bool:
        return (hasattr(type(value), "__del__") and not isinstance(value, jax.Array)) or _opens(value)

    return mock.patch.object(counts, "opens", opens)


def addresses_do_not_count() -> Any:
    """A container is opened whoever may have its address."""
    return mock.patch.object(counts, "_may_be_opened", lambda kind: not defines(kind, "__del__"))


def c_code_calls_nobody() -> Any:
    """Objects of any class written in C end without a word."""
    return _patches(
        mock.patch.object(native, "is_quiet", lambda kind: True),
        mock.patch.object(endings, "_is_quiet_class", endings._ends_quietly),
    )


def callers_read_nothing() -> Any:
    """What a helper's argument is in besides counts as dead variables of its callers."""
    modules = frames, slots
    return _patches(*(mock.patch.object(module, "dead_above", lambda *arguments: arguments[-1]) for module in modules))


def sharing_does_not_count() -> Any:
    """Other arrays on the same buffer are ignored."""
    return _patches(
        mock.patch.object(buffers, "shared", lambda leaves, **_: [False] * len(leaves)),
        mock.patch.object(buffers, "alone", lambda leaves: True),
        mock.patch.object(buffers, "shares_with_any", lambda *_: False),
    )


def newer_arrays_do_not_count() -> Any:
    """What was made since the last execution is not looked at."""
    return mock.patch.object(buffers, "shares_with_any", lambda *_: False)


def what_is_ready_shares_with_nothing() -> Any:
    """Newer arrays of the same kind are not compared by address, where all are ready."""
    return mock.patch.object(buffers, "_told_at_once", lambda arrays: set())


def what_was_a_result_is_one() -> Any:
    """The arrays are not compared with the results of the newest execution."""
    return mock.patch.object(walk, "are_same", lambda *_: True)


def what_is_newest_is_a_result() -> Any:
    """Nobody asks whether an execution has made the newest arrays."""

    def newest(alive: list[Any]) -> Any:
        _, _, marks = _newest(alive)
        return 0, executions._recent[0].results if executions._recent else 0, marks

    return mock.patch.object(executions, "newest", newest)


_newest = executions.newest


def all_that_shares_is_kept_for_itself() -> Any:
    """Nobody asks who refers to an array that another one keeps."""
    return mock.patch.object(buffers, "_are_kept_by", lambda *_: True)


def frames_are_trusted() -> Any:
    """Nobody asks who has hold of a frame."""
    return _patches(*(mock.patch.object(module, "getrefcount", lambda frame: _Any()) for module in (frames, callers)))


def parts_of_the_call_are_trusted() -> Any:
    """Nobody asks who has a frame of pytc's own, from which one gets at the caller's, or the lists of the arguments."""
    return mock.patch.object(proof, "_is_taken", lambda *_: False)


def numbers_are_opened() -> Any:
    """Numbers of users' classes are asked for nothing behind the proof."""
    return mock.patch.object(counts, "NUMBERS", ())


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def introspection_is_allowed() -> Any:
    """Code may use `locals()` and the like."""
    return mock.patch.object(introspection, "INTROSPECTION", frozenset())


def observers_are_ignored() -> Any:
    """Debuggers and profilers are ignored."""
    return mock.patch.object(interpreter, "observer", lambda: "")


def onlookers_are_ignored() -> Any:
    """Threads, signal handlers and callbacks are ignored."""
    return _patches(
        mock.patch.object(look, "onlookers", lambda *_: watchers.NOBODY),
        mock.patch.object(callers, "onlookers", lambda *_: watchers.NOBODY),
    )


def handlers_only_set_flags() -> Any:
    """All handlers of signals are taken to set flags and do nothing else."""
    return mock.patch.object(watchers, "flags_of", lambda _: Flags(frozenset(), frozenset()))


def flags_are_read_by_nobody() -> Any:
    """What handlers set is taken not to be read between the call and the store of its result."""
    flags_of = watchers.flags_of
    return mock.patch.object(watchers, "flags_of", lambda each: flags_of(each) and Flags(frozenset(), frozenset()))


def others_only_wait() -> Any:
    """All other threads are taken to wait until this one wakes them."""
    return mock.patch.object(watchers, "all_wait", lambda *_: True)


def who_waits_has_not_been_woken() -> Any:
    """Nobody asks whether a thread that waits has been woken by now."""
    look = waiting_threads._at_one_moment

    def looking(*args: Any) -> Any:
        *others, are_still, _ = look(*args)
        return [*others, [True for _ in are_still], [waiting_threads._UNUSED]]

    return mock.patch.object(waiting_threads, "_at_one_moment", looking)


def workers_go_on() -> Any:
    """Nobody asks whether an executor's workers have been told to end, or given work."""
    return mock.patch.object(waiting_threads, "_may_be_handed_over", lambda *_: False)


def threads_reach_nothing() -> Any:
    """No slot is within the reach of another thread."""
    return mock.patch.object(slots.Slots, "_are_private", lambda *_: True)


def variables_hold_all_alone() -> Any:
    """Beside a thread nobody asks what else refers to what a variable has."""
    return mock.patch.object(private.StackVariables, "hold_alone", lambda *_: True)


def weak_references_lead_nowhere() -> Any:
    """Beside a thread no weak reference counts."""
    return mock.patch.object(private, "_weakrefs", lambda _: 0)


def what_is_in_a_private_object_is_private() -> Any:
    """Beside a thread nobody asks what else refers to a part of an object."""
    return mock.patch.object(slots, "is_held_once", lambda *_: True)


def nobody_has_the_attributes() -> Any:
    """Beside a thread nobody asks who has an object's `__dict__`."""
    return mock.patch.object(slots, "has_own_attributes", lambda *_: True)


def containers_are_read_for_nothing() -> Any:
    """What a variable has is taken not to be read again, as long as it is a dictionary, a list or a tuple."""
    return mock.patch.object(CallSite, "members_read", lambda *_: frozenset())


def handlers_read_no_members() -> Any:
    """Nobody asks what exception handlers read of a container."""
    following = liveness.ControlFlow._next

    def calm(flow: Any, at: int, calm: int, *local: int) -> Any:
        return following(flow, at, max(calm, 1), *local)

    return mock.patch.object(liveness.ControlFlow, "_next", calm)


def strings_name_no_members() -> Any:
    """Nobody asks what is read of a container by a string that names its variable."""
    reached = liveness.ControlFlow._reached

    def nothing_named(flow: Any, at: int, calm: int) -> Any:
        return reached(flow, at, calm)._replace(named=0)

    return mock.patch.object(liveness.ControlFlow, "_reached", nothing_named)


def items_are_held_by_variables_alone() -> Any:
    """Nobody asks what else refers to the dictionary, list or tuple that a variable has."""
    return mock.patch.object(fields, "is_held_once", lambda *_: True)


def one_value_is_one_item() -> Any:
    """What is also under a key that is read counts as not read under the others."""
    return mock.patch.object(fields, "item", lambda *_: object())


def classes_stay_as_they_are() -> Any:
    """Attributes may be read at any time behind the call, whatever runs before."""

    def unread(nodes: list[Any], read: Any, dead: int) -> list[Any]:
        if type(nodes[0]) in counts.PLAIN:
            return _unread(nodes, read, dead)
        if any(step.kind == "item" for step in read):
            return []
        return fields.fields_but(nodes, [(step.name, getattr(nodes[0], step.name)) for step in read])

    return _patches(mock.patch.object(frames, "unread", unread), mock.patch.object(frames, "PLAIN", _Everything()))


_unread = frames.unread


def all_numbers_are_small() -> Any:
    """Arithmetic runs no code, whatever it is with."""
    return mock.patch.object(slots, "is_small_number", lambda _: True)


def objects_end_without_a_word() -> Any:
    """Nobody asks whether an object reads its fields as it dies."""
    return mock.patch.object(slots, "opens", lambda _: True)


def one_value_is_one_field() -> Any:
    """What is also a field that is read counts as not read in the others."""
    but = fields.fields_but

    def both_of_one(nodes: list[Any], read: Any) -> list[Any]:
        return but(nodes, read) + [v for _, v in read if v is nodes[0].p for _ in range(2)]

    return mock.patch.object(slots, "fields_but", both_of_one)


def nobody_has_the_attributes_of_fields() -> Any:
    """Nobody asks who has the `__dict__` of the object of which fields are read."""
    return _patches(
        mock.patch.object(fields, "has_own_attributes", lambda *_: True),
        mock.patch.object(slots, "opens", lambda _: True),
    )


def copies_read_nothing() -> Any:
    """What makes a changed copy of an object reads none of it."""
    return mock.patch.object(replacing, "_read_by", lambda *_: [])


def tuples_are_gone_through_as_they_are() -> Any:
    """A class has no say in how `_replace` goes through its items, nor in how a dataclass's fields are read."""
    return mock.patch.object(replacing, "shares", lambda *_: True)


def methods_do_what_their_names_say() -> Any:
    """Any function of an object that is passed names makes a changed copy of it."""
    return mock.patch.object(replacing, "_only_calls_replace", lambda _: True)


def old_ones_are_passed_once() -> Any:
    """An object of which a copy is made may be passed to that as a new value, too."""
    return mock.patch.object(continuation._Uses, "is_read_once", lambda uses, local, before: uses.is_private(local))


class _Unseen(set):  # type: ignore[type-arg]
    def __bool__(self) -> bool:
        return False


def copies_call_what_they_called() -> Any:
    """A store to a global or an attribute does not change what makes a copy, nor what that calls."""
    init = slots.Slots.__init__

    def unseen(self: Any, *args: Any) -> None:
        init(self, *args)
        self._counted = _Unseen()

    return mock.patch.object(slots.Slots, "__init__", unseen)


def one_slot_has_one_name() -> Any:
    """What is read behind the call is what was there before, unless it was stored to under the same name."""
    return mock.patch.object(slots.Slots, "_is_overwritten", lambda *_: False)


def signals_are_no_matter_to_members() -> Any:
    """Nobody asks whether a handler of signals may raise where a handler of exceptions reads a member."""
    members = CallSite.members_read

    def read(site: CallSite, flow: Any, local: int, atomic: bool, fits: bool) -> Any:
        return members(site, flow, local, True, fits)

    return mock.patch.object(CallSite, "members_read", read)


def constructors_are_all_alike() -> Any:
    """A `_make` of a class's own is taken for that of all named tuples."""
    of_tuple = replacing._of_named_tuple

    def anything(function: Any, nodes: list[Any], names: tuple[str, ...]) -> Any:
        if isinstance(nodes[0], tuple):
            return [("", value) for name, value in zip(nodes[0]._fields, nodes[0], strict=False) if name not in names]
        return of_tuple(function, nodes, names)

    return mock.patch.object(replacing, "_of_named_tuple", anything)


def copies_cannot_raise() -> Any:
    """What is read if making the copy fails does not count."""
    leave = continuation._Uses.ending

    def ending(uses: Any, n: int) -> list[int]:
        return leave(uses, n) or [uses._ends[n]] if n in uses._ends else []

    return _patches(
        mock.patch.object(liveness.ControlFlow, "_handled", lambda flow, live, at: 0),
        mock.patch.object(continuation._Uses, "ending", ending),
    )


def frames_above_are_trusted() -> Any:
    """Beside a thread nobody asks who has the frames further up."""
    count = private.getrefcount  # of what a function of Python is passed it counts two more
    return mock.patch.object(private, "getrefcount", lambda v: 3 if type(v) is types.FrameType else count(v) - 2)


def slots_are_always_plain() -> Any:
    """Attributes are taken for plain whatever their class does."""

    def attribute(target: Any, name: str, storing: bool) -> Any:
        return getattr(target, name, interpreter.UNBOUND)

    return mock.patch.object(slots, "attribute", attribute)


def unpacking_never_fails() -> Any:
    """The length of the result is not looked at."""

    def walk(self: Any, frame: Any, events: Any, *rest: Any) -> bool:
        return _walk(self, frame, [event for event in events if event.does not in ("unpack", "pick")], *rest)

    return _patches(
        mock.patch.object(slots.Slots, "_walk", walk), mock.patch.object(CallSite, "fits", lambda site, lengths: True)
    )


_walk = slots.Slots._walk


def only_the_whole_result_has_lengths() -> Any:
    """A tuple in the result is taken to have as many items as it is unpacked into."""
    real = events.Event.takes_apart

    def takes_apart(self: events.Event, lengths: Any) -> bool:
        return bool(self.part.path) or real(self, lengths)

    return mock.patch.object(events.Event, "takes_apart", takes_apart)


def what_is_dropped_from_the_result_is_quiet() -> Any:
    """No code runs when a part of the result dies."""
    return mock.patch.object(slots.Slots, "_may_end_loudly", lambda self: False)


class _Forgetful(set):  # type: ignore[type-arg]
    def __contains__(self, item: object) -> bool:
        return False


def _forgetting(*names: str) -> Any:
    """Slots are looked at without these sets."""
    init = slots.Slots.__init__

    def forgetful(self: Any, *args: Any) -> None:
        init(self, *args)
        vars(self).update(dict.fromkeys(names, _Forgetful()))

    return mock.patch.object(slots.Slots, "__init__", forgetful)


def slots_are_counted_twice() -> Any:
    """A slot that is overwritten twice counts as two places."""
    return _forgetting("_overwritten", "_counted")


def slots_are_counted_with_what_they_are_in() -> Any:
    """A slot counts as a place, and so does the dead object that it is in, with what that refers to."""
    return _forgetting("_ways")


def code_before_the_store_is_ignored() -> Any:
    """A frame above counts although the one below does more than return."""
    return mock.patch.object(slots.Slots, "add", _add_always)


def _add_always(self: Any, frame: Any, site: CallSite, length: Any, *_: Any) -> None:
    self.forget()
    self._added = site, False, length
    if not self.onlooker:
        self._walk(frame, site.events, length, False)


def routes_are_not_checked() -> Any:
    """What was dead at this site the last time is taken for dead again, whoever called."""

    def follow(call: Any, known: CallSite, depth: int, outcome: Any, walk: Any) -> Any:
        with mock.patch.object(CallSite, "dead", lambda site, *_: _Everything()):
            return _follow(call, known, depth + 1, outcome, walk)

    return _patches(
        mock.patch.object(proof, "follow", follow),
        mock.patch.object(callers, "_above", lambda *_: ()),  # as if all callers were one
    )


_follow = callers.follow


class _Everything:
    def __contains__(self, item: object) -> bool:
        return True

    def __and__(self, others: Any) -> Any:
        return others

    __rand__ = __and__

    def __sub__(self, others: Any) -> Any:
        return self


def old_values_may_be_stored() -> Any:
    """What is read and stored behind the call counts as new although it was there before."""

    def new(self: Any) -> bool:
        self.pop()
        return True

    return _patches(
        mock.patch.object(symbolic.Machine, "new", new), mock.patch.object(slots.Slots, "_read", lambda *_: None)
    )


def c_code_in_between_is_ignored() -> Any:
    """What C code may still do after it has called back is not thought of."""
    return mock.patch.object(frames, "calls_directly", lambda *_: True)


def everything_dies_quietly() -> Any:
    """What destructors run when arguments, variables or old values die is not thought of."""
    return mock.patch.object(dying.Dying, "_dies_quietly", lambda *_: True)


def walked_arguments_die_quietly() -> Any:
    """What runs when arguments die that are walked by what was seen before is not thought of."""
    return mock.patch.object(walk.Walk, "_ends_quietly", lambda *_: True)


def dead_containers_may_be_held() -> Any:
    """Nobody asks who else has the containers in dead places that hold arguments."""

    def open_all(own: Any, places: list[Any], held: list[Any]) -> Any:
        for holders in own.rounds:
            nodes = [placed._at(numbers[0], places, held) for numbers in holders.numbers]
            held += gc.get_referents(*nodes)
        return []

    return mock.patch.object(placed.Placed, "open", open_all)


def what_stands_there_is_not_compared() -> Any:
    """What stood in dead containers the last time is taken to stand there."""
    return mock.patch.object(walk, "stand", lambda *_: True)


def what_is_watched_lives_on() -> Any:
    """What has a weak reference is taken for the value of some global variable."""
    return mock.patch.object(dying.Dying, "_lives_on", lambda *_: True)


def lists_of_the_proof_make_functions_live() -> Any:
    """The references of the proof's own lists are taken for references that stay."""
    end = dying.Dying._end

    def forgetful(own: Any, *args: Any) -> Any:
        with mock.patch.object(own, "_lists", ()):
            return end(own, *args)

    return mock.patch.object(dying.Dying, "_end", forgetful)


def variables_end_quietly() -> Any:
    """What dies when a function in between returns is not thought of."""
    return mock.patch.object(dying.Dying, "leaves_quietly", lambda *_: True)


def frames_hold_variables_alone() -> Any:
    """What somebody has left in the frame of a function that returns is not thought of."""
    return mock.patch.object(interpreter, "refers_to_more", lambda _: False)


def helpers_return_the_result() -> Any:
    """What a function in between returns is taken for the call's result, whatever it is."""
    init = CallSite.__init__

    def handing_on(self: CallSite, *args: Any) -> None:
        init(self, *args)
        self._returned = events.RESULT

    return mock.patch.object(CallSite, "__init__", handing_on)


def a_store_has_not_stored_yet() -> Any:
    """A destructor's caller, which is at a store, is taken not to have stored the new value."""

    def dead(flow: Any, at: int, calm: int = 0) -> frozenset[int]:
        return frozenset(set_bits(flow.locals & ~(flow.reads[at] | flow._from(at, calm))))

    return mock.patch.object(liveness.ControlFlow, "dead", dead)


def stores_are_done_one_by_one() -> Any:
    """That CPython 3.11 and 3.12 do two stores to variables in one step is not thought of."""

    def dead(flow: Any, at: int, calm: int = 0) -> frozenset[int]:
        live = flow._following(at, calm) if calm else flow._after(flow.live, at) | flow._handled(flow.live, at)
        return frozenset(set_bits(flow.locals & ~(flow.reads[at] | live)))

    return mock.patch.object(liveness.ControlFlow, "dead", dead)


def a_store_does_not_load() -> Any:
    """That CPython 3.13 stores a variable and loads it in one step is not thought of."""

    def dead(flow: Any, at: int, calm: int = 0) -> frozenset[int]:
        live = flow._following(at, calm) if calm else flow._after(flow.live, at) | flow._handled(flow.live, at)
        if [each.opname for each in flow.instructions[at : at + 2]] == ["STORE_FAST", "STORE_FAST"]:
            live |= flow._after(flow.live, at + 1)
        return frozenset(set_bits(flow.locals & ~(flow.reads[at] | live)))

    return mock.patch.object(liveness.ControlFlow, "dead", dead)


def nobody_interrupts() -> Any:
    """Handlers of signals that raise are ignored."""
    return mock.patch.object(frames, "raising_handler", lambda: "")


def ctrl_c_waits_for_the_store() -> Any:
    """That the interpreter looks for signals behind calls through C is not thought of."""
    return mock.patch.object(frames, "may_be_interrupted", lambda: False)


def starred_calls_are_never_over() -> Any:
    """That a handler of a signal may run behind a starred call, when what it kept is gone, is not thought of."""
    return _patches(mock.patch.object(starred, "is_over", lambda *_: False), frames_are_trusted())


def collections_go_on() -> Any:
    """Garbage may be collected, and its finalisers run, between the call and the store."""
    return mock.patch.object(collector, "pause", lambda made: True)


def there_is_no_occasion_for_a_collection() -> Any:
    """That CPython 3.11 may collect garbage where it makes an object is not thought of."""
    return mock.patch.object(collector, "WHILE_ALLOCATING", False)


def few_objects_are_made() -> Any:
    """What the instructions behind a call make is not counted."""
    return mock.patch.object(slots.Slots, "_may_make_one", lambda self: True)


def stores_never_fail() -> Any:
    """Every object is taken to have room for any attribute."""
    return mock.patch.object(plain, "has_dictionary", lambda kind: True)


def iterators_are_alone_with_their_tuples() -> Any:
    """Nobody asks who else has the tuple that an `enumerate` has handed out."""
    return mock.patch.object(loops, "getrefcount", lambda value: _Any())


def what_a_loop_has_passed_is_dead() -> Any:
    """Nobody asks who else has the list that a loop goes through."""
    return mock.patch.object(loops, "dead", lambda left, places: left)


_UP_TO_3_12 = sys.version_info < (3, 13)

ALL: tuple[Mutant, ...] = (
    everything_is_dead, handlers_do_not_count, managers_pass_exceptions_on, the_next_manager_is_the_same,
    strings_read_nothing, counts_do_not_matter,
    strings_are_read_where_they_are_loaded, strings_are_read_as_a_call_begins,
    variables_have_no_strings, results_have_no_strings, only_calls_run_code, builtins_have_one_name,
    names_have_no_dots, builtins_are_what_they_were, keys_are_no_code,
    a_reference_too_many_is_forgiven, weak_references_do_not_count, finalisers_do_not_count, addresses_do_not_count,
    c_code_calls_nobody, sharing_does_not_count,
    newer_arrays_do_not_count, what_is_ready_shares_with_nothing, what_was_a_result_is_one, what_is_newest_is_a_result,
    all_that_shares_is_kept_for_itself, frames_are_trusted, introspection_is_allowed,
    parts_of_the_call_are_trusted, numbers_are_opened,
    observers_are_ignored, onlookers_are_ignored, handlers_only_set_flags, flags_are_read_by_nobody,
    others_only_wait, who_waits_has_not_been_woken,
    threads_reach_nothing, variables_hold_all_alone,
    weak_references_lead_nowhere, what_is_in_a_private_object_is_private, nobody_has_the_attributes,
    frames_above_are_trusted, slots_are_always_plain, unpacking_never_fails,
    only_the_whole_result_has_lengths, what_is_dropped_from_the_result_is_quiet,
    slots_are_counted_twice,
    slots_are_counted_with_what_they_are_in,
    code_before_the_store_is_ignored, routes_are_not_checked, old_values_may_be_stored,
    c_code_in_between_is_ignored, everything_dies_quietly, walked_arguments_die_quietly,
    dead_containers_may_be_held, what_stands_there_is_not_compared,
    what_is_watched_lives_on, lists_of_the_proof_make_functions_live, variables_end_quietly,
    frames_hold_variables_alone,
    helpers_return_the_result,
    cells_are_the_frames_alone,
    a_store_has_not_stored_yet, nobody_interrupts,
    collections_go_on, stores_never_fail, iterators_are_alone_with_their_tuples,
    what_a_loop_has_passed_is_dead,
    containers_are_read_for_nothing, handlers_read_no_members, strings_name_no_members,
    items_are_held_by_variables_alone,
    one_value_is_one_item, classes_stay_as_they_are, all_numbers_are_small, objects_end_without_a_word,
    one_value_is_one_field, nobody_has_the_attributes_of_fields, copies_read_nothing,
    tuples_are_gone_through_as_they_are, methods_do_what_their_names_say, old_ones_are_passed_once,
    copies_cannot_raise, copies_call_what_they_called, one_slot_has_one_name, signals_are_no_matter_to_members,
    constructors_are_all_alike, callers_read_nothing,
    *(
        (
            to_make_a_function_reads_nothing,
            stores_are_done_one_by_one, starred_calls_are_never_over, ctrl_c_waits_for_the_store,
        )
        if _UP_TO_3_12
        else (a_store_does_not_load, workers_go_on)
    ),
    *((nothing_is_put_back,) if sys.version_info >= (3, 12) else ()),
    *((there_is_no_occasion_for_a_collection, few_objects_are_made) if sys.version_info < (3, 12) else ()),
)  # fmt: skip


@contextlib.contextmanager
def _patches(*patches: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


@contextlib.contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    """The prover with one obligation broken, and nothing remembered from before."""
    remembered = (analysed._sites, analysed._flows, plain._left_to_objects)
    for each in remembered:
        each.clear()
    try:
        with mutant():
            yield
    finally:
        for each in remembered:
            each.clear()


# -- one program for each, that reads what it should not be able to read ---


class Owner:
    """An object whose attribute is a property, and one that reads as it dies."""

    def __init__(self, kept: Any, read: Any):
        self.kept = kept
        self.read = read

    @property
    def a(self) -> Any:
        return self.kept

    @a.setter
    def a(self, value: Any) -> None:
        self.read(self.kept)


@jax.tree_util.register_pytree_node_class
class Dying:
    """A container that reads what it holds when it dies."""

    def __init__(self, part: Any, read: Any = None):
        self.part = part
        self.read = read

    def __del__(self) -> None:
        if self.read is not None:
            self.read(self.part)

    def tree_flatten(self) -> Any:
        return (self.part,), None

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        return cls(*children)


def _read_later(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    y = f(x)
    s.read((x, y))


def _read_by_a_closure(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()

    def look() -> Any:
        return x

    f(x)
    s.read(look())


def _read_by_a_closure_made_later(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    f(x)
    s.read((lambda: x)())


def _read_behind_a_comprehension(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    y = f(x)
    s.read([x for x in [y] if x])
    s.read(x)


def _read_in_handler(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    try:
        y = f(x)
        raise ValueError
    except ValueError:
        s.read(x)
    s.read(y)


def _fail_behind(f: Any, x: Any) -> Any:
    f(x)
    raise ValueError


def _read_behind_a_block(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    with contextlib.suppress(ValueError):
        x = _fail_behind(f, x)
    s.read(x)


def _read_behind_the_next_block(s: Stub, f: Any, f2: Any) -> None:
    x, again = s.new(), False
    while True:
        try:
            with contextlib.suppress(ValueError) if again else contextlib.nullcontext():
                if again:
                    raise ValueError
                x = s.new()
                x = _fail_behind(f, x)
                return
            break
        except ValueError:
            again = True
    s.read(x)


def _evaluated(text: str, _: Any = None) -> Any:
    """As `numexpr.evaluate` does it."""
    return eval(text, {}, sys._getframe(1).f_locals)


def _evaluated_above(text: str) -> Any:
    return eval(text, {}, sys._getframe(2).f_locals)


def _read_by_name(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    f(x)
    s.read(_evaluated("x if x is not None else 0"))


def _read_by_name_in_the_next_call(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    s.read(_evaluated("x if x is not None else 0", f(x)))


def _member_read_by_name(s: Stub, f: Any, f2: Any) -> None:
    text, state = "state['x']", {"x": s.new()}
    f(state["x"])
    s.read(_evaluated(text))


def _read_by_name_behind_the_call(s: Stub, f: Any, f2: Any) -> None:
    def evaluate(text: str, x: Any) -> None:
        x = f(x)
        s.read(_evaluated_above(text))  # whoever looks at frames itself is not believed about those above

    x = s.new()
    evaluate("x if x is not None else 0", x)


class _Formula:
    """Text that is evaluated where the formula is used, as in statistics packages."""

    def __init__(self, text: str):
        self.text = text

    def value(self) -> Any:
        return eval(self.text, {}, sys._getframe(1).f_locals)

    def __getitem__(self, read: Callable[[Any], Any]) -> Any:
        return read(eval(self.text, {}, sys._getframe(1).f_locals))


def _read_by_a_name_with_dots(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    f(x)
    try:
        raise ValueError
    except ValueError as error:
        s.read(operator.attrgetter("__traceback__.tb_frame.f_locals")(error)["x"])


def _read_by_another_name(s: Stub, f: Any, f2: Any) -> None:
    def run() -> None:
        x = s.new()
        f(x)
        s.read(everything()["x"])  # type: ignore[name-defined] # noqa: F821

    with mock.patch.object(builtins, "everything", locals, create=True):
        run()


class _Scope:
    """Text in brackets that is evaluated in the caller."""

    def __getitem__(self, text: str) -> Any:
        return eval(text, {}, sys._getframe(1).f_locals)


def _read_by_a_key(s: Stub, f: Any, f2: Any) -> None:
    scope = _Scope()
    x = s.new()
    f(x)
    s.read(scope["[x]"])


def _read_by_what_an_object_has(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    formula = _Formula("x if x is not None else 0")
    f(x)
    s.read(formula.value())


def _read_by_one_of_two_objects(s: Stub, f: Any, f2: Any) -> None:
    formula, x = _Formula("x if x is not None else 0"), s.new()
    f(x)
    s.read(formula.value())


def _read_by_an_operator(s: Stub, f: Any, f2: Any) -> None:
    x, formula = s.new(), _Formula("x if x is not None else 0")
    read = s.read
    f(x)
    formula[read]


def _vars_of_the_owner_of_a_builtin(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    f(x)
    s.read(print.__self__.vars()["x"])  # type: ignore[attr-defined]


def _list_elsewhere(s: Stub, f: Any, f2: Any) -> None:
    kept = [s.new()]
    f(kept[0])
    s.read(kept)


def _dead_container_elsewhere(s: Stub, f: Any, f2: Any) -> None:
    kept = []
    x = s.new()
    for k in range(6):
        state = [x]
        del x
        if k == 4:
            kept.append(state)
        x = f(state[0])
    s.read((kept, x))


def _another_in_the_dead_container(s: Stub, f: Any, f2: Any) -> None:
    kept = []
    x = s.new()
    for k in range(6):
        state = [x]
        if k == 4:
            kept += [x, x]  # as many references as the container and the look into it have
            state[0] = s.new()
        x = f(x)
    s.read((kept, x))


def _filter(s: Stub, f: Any, f2: Any) -> None:
    for x in filter(f, (s.new() for _ in range(2))):
        s.read(x)


def _weak(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    reference = weakref.ref(x)
    f(x)
    s.read(reference())


def _dying(s: Stub, f: Any, f2: Any) -> None:
    seen: list[Any] = []

    def read(part: Any) -> None:
        seen.append(part.is_deleted())

    x = Dying(s.new(), read)
    x = f(x)
    if any(seen):
        raise RuntimeError("deleted")


def _shard(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    shard = x.addressable_data(0)
    f(x)
    s.read(shard)


def _new_shard(s: Stub, f: Any, f2: Any) -> None:
    x = [s.new() for _ in range(3)]
    for step in range(4):
        shard = x[0].addressable_data(0) if step == 3 else None
        x = f(x)
    s.read(shard)


def _another_in_its_place(s: Stub, f: Any, f2: Any) -> None:
    """One of the results of the newest execution is replaced by an older array on the buffer of another."""
    x, old = [s.new() for _ in range(3)], f([s.new()])
    put = [jax.device_put(old[0], old[0].device)]
    for step in range(8):
        if step == 7:
            old.append(x[1])  # which lives on, so that the results are complete
            x[1] = put.pop()
        x = f(x)
    s.read(old)


def _others_in_their_places(s: Stub, f: Any, f2: Any) -> None:
    """All of the results are replaced by the newest arrays there are."""
    x = [s.new() for _ in range(3)]
    kept: list[Any] = []
    for step in range(8):
        if step == 7:
            kept = x
            x = [jax.device_put(each, each.device) for each in kept]
        x = f(x)
    s.read(kept)


def _variable(frame: types.FrameType) -> Any:
    return frame.f_locals["x"]


def _frame(s: Stub, f: Any, f2: Any) -> None:
    frames = []

    def grab() -> None:
        frames.append(sys._getframe(1))

    x = s.new()
    grab()
    f(x)
    s.read(_variable(frames[0]))


@jax.tree_util.register_pytree_node_class
class Keeper(Node):
    """A node that keeps the frame of the function that was called with it."""

    def tree_flatten(self) -> Any:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "compiled":
            frame = frame.f_back
        if frame is not None:
            _beneath.append(frame)
        return (self.x,), None


_beneath: list[types.FrameType] = []


def _above(frame: types.FrameType) -> Any:
    return frame.f_back.f_locals["x"]  # type: ignore[union-attr]


def _frame_beneath(s: Stub, f: Any, f2: Any) -> None:
    """The frame of what was called is kept, and the caller's variables are read by that."""
    x = Keeper(s.new())
    f(x)
    s.read(_above(_beneath.pop()).x)
    _beneath.clear()


class Scale(int):
    """A number that keeps what it refers to when it is asked for its value."""

    of: Any

    def __int__(self) -> int:
        _asked.append(self.of)
        return 1


_asked: list[Any] = []


def _number(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    scale = Scale(1)
    scale.of = x
    f(x, scale)
    s.read(_asked.pop())


def _locals(s: Stub, f: Any, f2: Any) -> None:
    x = s.new()
    f(x)
    s.read(locals()["x"])


def _tracer(s: Stub, f: Any, f2: Any) -> None:
    def run(x: Any) -> Any:
        y = f(x)
        return y  # noqa: RET504 - between the two the tracer looks

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is run.__code__ and event == "return":
            s.read(frame.f_locals["x"])
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run(s.new())
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def _looked_at(s: Stub, look: Callable[[], Any]) -> Iterator[None]:
    """A thread looks between the proof and the call."""
    seen: list[Any] = []
    prover = s.prover
    assert prover is not None

    def looking(call: Any, wanted: Any, outcome: Any) -> Any:
        kept = prover(call, wanted, outcome)
        begin.set()
        thread.join()
        return kept

    begin = threading.Event()
    thread = threading.Thread(target=lambda: (begin.wait(FOR_LONG), seen.append(look())))
    thread.start()
    s.prover = looking
    try:
        yield
    finally:
        s.prover = prover
        begin.set()
    s.read(seen)


class Box:
    """An object of attributes."""

    def __init__(self, **attributes: Any):
        self.__dict__.update(attributes)


def _thread(s: Stub, f: Any, f2: Any) -> None:
    box = types.SimpleNamespace(a=s.new())
    with _looked_at(s, lambda: box.a):
        box.a = f(box.a)


def _key_that_a_handler_sets(s: Stub, f: Any, f2: Any) -> None:
    box = types.SimpleNamespace(states=[s.new(), s.new()], k=0)
    prover = s.prover
    assert prover is not None

    def interrupted(*args: Any) -> Any:
        kept = prover(*args)
        signal.raise_signal(signal.SIGUSR1)
        return kept

    def handler(*_: Any) -> None:
        box.k = 1

    before = signal.signal(signal.SIGUSR1, handler)
    s.prover = interrupted
    try:
        box.states[box.k] = f(box.states[box.k])
    finally:
        s.prover = prover
        signal.signal(signal.SIGUSR1, before)
    s.read(box.states)


def _worker_that_has_been_woken(s: Stub, f: Any, f2: Any) -> None:
    """A worker is given work, or told to end, and comes to run before the store."""
    box = types.SimpleNamespace(a=s.new())
    seen: list[Any] = []
    prover = s.prover
    assert prover is not None

    class Looks:
        def __del__(self) -> None:
            seen.append(box.a)

    local = threading.local()
    executor = concurrent.futures.ThreadPoolExecutor(1)
    executor.submit(setattr, local, "value", Looks()).result()
    time.sleep(0.01)  # it comes to wait
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1)  # the worker is woken, and comes to run when this thread waits for it
    try:
        future = executor.submit(lambda: seen.append(box.a))
        s.prover = lambda *args: (prover(*args), future.result())[0]
        box.a = f(box.a)
        time.sleep(0.01)
        executor.shutdown(wait=False)
        s.prover = lambda *args: (prover(*args), executor.shutdown())[0]
        box.a = f(box.a)
    finally:
        sys.setswitchinterval(interval)
        s.prover = prover
    s.read(seen)


def _watched_argument(s: Stub, f: Any, f2: Any) -> None:
    """An argument that dies with the call, and that somebody has a weak reference to."""
    box = types.SimpleNamespace(a=s.new())

    def watched() -> Any:
        data = np.ones(3)
        weakref.finalize(data, lambda: s.seen.append(box.a.is_deleted()))
        return data

    box.a = f(box.a, watched())


def _thread_with_a_list(s: Stub, f: Any, f2: Any) -> None:
    box = Box(a=s.new())
    boxes = [box]
    with _looked_at(s, lambda: boxes[0].a):
        box.a = f(box.a)


def _thread_with_a_weak_reference(s: Stub, f: Any, f2: Any) -> None:
    box = Box(a=s.new())
    weakly: Any = weakref.ref(box)
    with _looked_at(s, lambda: weakly().a):
        box.a = f(box.a)


def _thread_with_a_part(s: Stub, f: Any, f2: Any) -> None:
    box = Box(part=Box(a=s.new()))
    parts = [box.part]
    with _looked_at(s, lambda: parts[0].a):
        box.part.a = f(box.part.a)


def _thread_with_the_attributes(s: Stub, f: Any, f2: Any) -> None:
    box = Box(a=s.new())
    attributes = box.__dict__  # `vars` would have all variables kept
    with _looked_at(s, lambda: attributes["a"]):
        box.a = f(box.a)


def _thread_with_a_frame(s: Stub, f: Any, f2: Any) -> None:
    box = Box(a=s.new())
    frames = [sys._getframe()]
    with _looked_at(s, lambda: frames[0].f_locals["box"].a):
        _advance(f, box)
    frames.clear()


def _advance(f: Any, box: Box) -> None:
    box.a = f(box.a)


def _property(s: Stub, f: Any, f2: Any) -> None:
    owner = Owner(s.new(), s.read)
    owner.a = f(owner.a)


def _too_many(s: Stub, f: Any, f2: Any) -> None:
    three = s.compile(of_length(3)(lambda x: (x, x, x)))
    box = types.SimpleNamespace(a=s.new(), b=None)
    with contextlib.suppress(ValueError):
        box.a, box.b = three(box.a)
    s.read(box.a)


def _too_many_inside(s: Stub, f: Any, f2: Any) -> None:
    inside = s.compile(of_lengths(((None, None), None))(lambda x: ((x, x), 0)))
    box = types.SimpleNamespace(a=s.new(), b=None, c=None)
    with contextlib.suppress(ValueError):
        (box.b, box.c, box.a), _ = inside(box.a)
    s.read(box.a)


def _loud_rest(s: Stub, f: Any, f2: Any) -> None:
    box, seen = types.SimpleNamespace(a=s.new()), []

    class Loud:
        def __del__(self) -> None:
            seen.append(box.a.is_deleted())

    @of_length(2)
    def with_more(x: Any) -> Any:
        return x, Loud()

    with_more.classes = (tuple, Loud)  # type: ignore[attr-defined]
    more = s.compile(with_more)
    box.a = more(box.a)[0]
    if any(seen):
        raise RuntimeError("deleted")


def _twice(s: Stub, f: Any, f2: Any) -> None:
    box = types.SimpleNamespace(a=s.new())
    kept = [box.a]
    box.a, box.a = f2(box.a, s.new())
    s.read(kept)


def _dropped_with_what_it_is_in(s: Stub, f: Any, f2: Any) -> None:
    box = types.SimpleNamespace(run=types.SimpleNamespace(a=s.new()))
    kept = [box.run.a]
    box.run.a, box.run = f2(box.run.a, s.new())
    s.read(kept)


def _read_in_helper(s: Stub, f: Any, f2: Any) -> None:
    box = types.SimpleNamespace(a=s.new())

    def helper(x: Any) -> Any:
        new = f(x)
        s.read(box.a)
        return new

    box.a = helper(box.a)


def _two_callers(s: Stub, f: Any, f2: Any) -> None:
    def helper(x: Any) -> Any:
        return f(x)

    x = s.new()
    x = helper(x)
    x = helper(x)
    x = helper(x)
    helper(x)
    s.read(x)


def _stored_back(s: Stub, f: Any, f2: Any) -> None:
    box = types.SimpleNamespace(a=s.new(), b=[])
    box.b.append(box.a)
    box.a = f(box.a)
    box.b = box.b
    s.read(box.b)


def _garbage(s: Stub, f: Any, f2: Any) -> None:
    """The finaliser of cyclic garbage that is collected right behind the call."""
    step = s.compile(lambda x: ([[] for _ in range(10_000)], x)[1])
    box = types.SimpleNamespace(a=s.new())
    seen: list[bool] = []

    class Looks:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            seen.append(box.a.is_deleted())

    was, thresholds = gc.isenabled(), gc.get_threshold()
    gc.enable()
    gc.collect()  # so that the next collection is not before the call, nor in the midst of the proof
    gc.set_threshold(8_000, *thresholds[1:])
    Looks()
    box.a = step(box.a)
    gc.set_threshold(*thresholds)
    if not was:
        gc.disable()
    if any(seen):
        raise RuntimeError("deleted")


def _garbage_while_the_result_is_stored(s: Stub, f: Any, f2: Any) -> None:
    """The finaliser of cyclic garbage that is collected where the instructions behind the call make an object. (Around
    `pytc.compile` itself, which switches the collector on again.)"""
    for method, made, threshold in (
        (test_strange_moments.UNPACKED, 600, 500),
        (test_strange_moments.in_tuples(600), 0, 1000),
    ):
        with test_strange_moments.collected_often(threshold):
            seen, _ = test_strange_moments.rounds(method, made)
        if not all(seen):
            raise RuntimeError("deleted")


def _handler_behind_a_starred_call(s: Stub, f: Any, f2: Any) -> None:
    """The handler is the function called; a new dictionary is where that of the keywords was, and somebody has it."""
    test_starred.handler_is_the_function(s, f, is_method=False)


def _interrupted(s: Stub, f: Any, f2: Any) -> None:
    """Ctrl-C behind a call through C. (Around `pytc.compile` itself, which puts the interrupt off.)"""
    if any(map(loses, (starred_call, starred_method_and_a_handler))):
        raise RuntimeError("deleted")


def _store_fails(s: Stub, f: Any, f2: Any) -> None:
    """An object that has no attributes is to be given one first."""
    box = types.SimpleNamespace(a=s.new())
    odd: Any = object()
    try:
        odd.a, box.a = f2(s.new(), box.a)
    except AttributeError:
        s.read(box.a)


def _dies_oddly(s: Stub, f: Any, f2: Any) -> None:
    """After ordinary ones comes a state that looks at the other one when it dies, before that is overwritten."""
    box = types.SimpleNamespace(a=s.new(), b=s.new())
    seen: list[Any] = []
    for i in range(6):
        if i == 5:
            box.a.note = Last(lambda: seen.append(box.b))
        box.a, box.b = f2(box.a, box.b)
    s.read(seen)


def _function_of_several_names(s: Stub, f: Any, f2: Any) -> None:
    """What a function has captured looks as it dies, with two variables and a list."""
    box = types.SimpleNamespace(a=s.new())
    seen: list[Any] = []

    def look() -> None:
        seen.append(box.a.is_deleted())

    def helper(x: Any) -> Any:
        one = other = capturing(look)  # noqa: F841
        several = [one]  # noqa: F841
        return f(x)

    for _ in range(3):
        box.a = helper(box.a)
    if any(seen):
        raise RuntimeError("deleted")


def _left_in_a_frame(s: Stub, f: Any, f2: Any) -> None:
    """A helper has what looks when it dies for what traces it, and nowhere else."""
    box = types.SimpleNamespace(a=s.new())
    seen: list[Any] = []

    def leave() -> None:
        last: Any = Last(lambda: seen.append(box.a))
        sys._getframe(1).f_trace = last

    def helper() -> Any:
        leave()
        return f(box.a)

    for _ in range(3):
        box.a = helper()
    s.read(seen)


def _pair_of_a_loop(s: Stub, f: Any, f2: Any) -> None:
    """The tuple that `enumerate` has handed out lives on as a whole."""
    states = [s.new(), s.new()]
    for pair in enumerate(states):
        i, state = pair
        states[i] = f(state)
        s.read(pair)


def _list_of_a_loop(s: Stub, f: Any, f2: Any) -> None:
    """The list that a loop goes through is read after it."""
    states = [s.new(), s.new()]
    s.read([f(state) for state in states])
    s.read(states)


def _two_stores(s: Stub, f: Any, f2: Any) -> None:
    """What dies of the second of two stores makes a call with what that one has stored."""
    shelf: list[Any] = []
    log: list[Any] = []

    def look() -> None:
        x = shelf.pop()
        log.append(f(x))

    def made() -> tuple[None, Any]:
        shelf.append(s.new())
        return None, shelf[-1]

    for i in range(40):  # up to CPython 3.11 two stores are one only where the code has run some times
        b = Last(look) if i > 20 else shelf.clear()
        _a, b = made()
        s.read(b)


def _store_that_loads(s: Stub, f: Any, f2: Any) -> None:
    """What dies of a store makes a call with what that has stored, and loads next."""
    shelf: list[Any] = []

    def look() -> None:
        f(shelf.pop())

    def made() -> Iterator[Any]:
        yield LastOfNothing(look)
        shelf.append([s.new()])
        yield shelf[-1]

    s.read([state[0] for state in made()])


PROGRAMS: tuple[Program, ...] = (
    _read_behind_a_block, _read_behind_the_next_block,
    _read_by_a_closure, _read_by_a_closure_made_later,
    _read_later, _read_behind_a_comprehension, _read_in_handler, _read_by_name, _read_by_name_in_the_next_call,
    _member_read_by_name,
    _read_by_name_behind_the_call, _read_by_what_an_object_has, _read_by_an_operator,
    _read_by_a_name_with_dots, _read_by_another_name, _read_by_a_key,
    _read_by_one_of_two_objects,
    _vars_of_the_owner_of_a_builtin, _list_elsewhere, _dead_container_elsewhere,
    _another_in_the_dead_container, _filter,
    _weak, _dying, _shard, _new_shard, _others_in_their_places, _frame, _frame_beneath, _locals,
    _number,
    _watched_argument, _key_that_a_handler_sets, _tracer, _thread, _worker_that_has_been_woken, _thread_with_a_list,
    _thread_with_a_weak_reference, _thread_with_a_part, _thread_with_the_attributes, _thread_with_a_frame, _property,
    _too_many, _too_many_inside, _loud_rest, _twice,
    _dropped_with_what_it_is_in, _read_in_helper, _two_callers,
    _stored_back, _handler_behind_a_starred_call, _store_fails, _dies_oddly, _left_in_a_frame,
    _function_of_several_names, _pair_of_a_loop,
    _list_of_a_loop, _two_stores, _store_that_loads,
    strange.key_called_twice, strange.dying_argument, strange_objects.helper_guard,
    strange.helper_returns_triple_slots, strange.store_runs_del, strange_objects.signal_handler_that_raises,
    *test_fields.ALL, *test_written_in_c.ALL,
    # Those that take long come last.
    _another_in_its_place, _interrupted, _garbage, _garbage_while_the_result_is_stored,
)  # fmt: skip


def fails(program: Program) -> bool:
    """Whether the program meets a deleted array."""
    test_fields.OLD.clear()  # what one that failed has left there
    stub = Stub()
    try:
        program(stub, stub.compile(first), stub.compile(both))
    except RuntimeError as error:
        return "deleted" in str(error)
    finally:
        stub.spill()
    return any(stub.seen)


def noticing(mutant: Mutant) -> Iterator[str]:
    """The programs that meet a deleted array when the obligation is gone."""
    gc.collect()  # where many arrays are alive, small ones are kept in any case
    with broken(mutant):
        yield from (program.__name__ for program in PROGRAMS if fails(program))


def _noticing_at_all(mutant: Mutant) -> Iterator[str]:
    """The same, for people: a prover that is broken may itself fail in some program, and then no other is run."""
    try:
        yield from noticing(mutant)
    except (TypeError, AttributeError) as error:
        yield f"and it raised {error!r}"


def main() -> None:
    """Print who notices what."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=0)
    arguments = parser.parse_args()
    for mutant in ALL:
        seen = ", ".join(_noticing_at_all(mutant)) or "NOBODY"
        with broken(mutant):
            for seed in range(arguments.programs):
                try:
                    check(seed)
                except (Wrong, RuntimeError):
                    seen += f"; random program {seed}"
                    break
        gc.collect()
        sys.stdout.write(f"{mutant.__name__}: {seen}\n")


if __name__ == "__main__":
    main()
