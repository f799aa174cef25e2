"""What the proof needs to know of this interpreter, measured at import rather than written down; and what it is doing.

Measured are, above all: where a running frame keeps its local variables (`frame.f_locals` would tell, but up to CPython
3.12 it leaves behind a dictionary that holds every local, which both spoils later counts and keeps dead arrays alive;
so the variables are read where the interpreter keeps them, at an offset found by looking for known objects in a frame
of our own); how many references a frame object has when nobody but us looks at it; and whether an object's `__dict__`
shares the attributes with it unseen (`share_attributes`). Where one of these does not come out as expected, `refusal`
says so and nothing is ever proven; what hangs on the others is said with each.

What it is doing: who watches it (`observer`), and whether another thread could run (`alone`).

Reading is a load from memory that the interpreter owns for as long as the frame runs; nothing is ever written.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import operator
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CellType, FrameType
from typing import Any

from pytc.classes import flags_of

getrefcount: Callable[[object], int] = sys.getrefcount

_WORD = ctypes.sizeof(ctypes.c_void_p)
_Words: Any = ctypes.POINTER(ctypes.c_size_t)
_Halves: Any = ctypes.POINTER(ctypes.c_uint32)
_Objects: Any = ctypes.POINTER(ctypes.py_object)
# `_word_at[n]` is the word at the address (n + 1) * _WORD, and `_half_at[n]` the half of one at (n + 2) * _WORD // 2; a
# pointer to 0 would be none.
_word_at: Any = _Words.from_buffer(ctypes.c_size_t(_WORD))
_half_at: Any = _Halves.from_buffer(ctypes.c_size_t(_WORD))
_object_at: Any = _Objects.from_buffer(ctypes.c_size_t(_WORD))
# A frame object is the object header, `f_back`, and then the pointer to the interpreter's own frame.
_TO_FRAME = object.__basicsize__ + _WORD


def words(frame: FrameType) -> Any:
    """The interpreter's frame as machine words: `words(frame)[first_local + i]` is the id of local number `i`, or 0.

    The word before the first local says in its lower half how high the stack is, or -1 while C code runs.
    """
    return _Words.from_address(id(frame) + _TO_FRAME)


def objects(frame: FrameType) -> Any:
    """The same words as objects: to be read only where they are some."""
    return _Objects.from_address(id(frame) + _TO_FRAME)


def variable(frame: FrameType, index: int) -> Any:
    """The value of fast local number `index` (a cell, if it is one), or `UNBOUND`."""
    try:
        return _Objects.from_address(id(frame) + _TO_FRAME)[first_local + index]
    except ValueError as error:
        if comes_from_python(error):
            raise
        return UNBOUND


def variable_elsewhere(frame: FrameType, index: int) -> Any:
    """As `variable`, of a frame that another thread may be running.

    That may close a generator at any moment. CPython 3.13 then drops the generator's variables where they are: the
    words stay, and the height of the stack becomes 0 first. So both are read in one call of C code, in which no other
    thread runs, and the variable only where the height is not 0.
    """
    height = map(operator.getitem, [_Halves.from_address(id(frame) + _TO_FRAME)], [2 * (first_local - 1)])
    place = itertools.compress([(objects(frame), first_local + index)], height)
    try:
        found = list(itertools.starmap(operator.getitem, place))
    except ValueError as error:
        if comes_from_python(error):
            raise
        return UNBOUND
    return found[0] if found else UNBOUND


def comes_from_python(error: BaseException) -> bool:
    """Whether an exception that was expected of C code was raised by Python code: by a handler of a signal."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


class _Unbound:
    def __repr__(self) -> str:
        return "<unbound>"


UNBOUND = _Unbound()


def contents(cell: CellType) -> Any:
    """What a cell holds, or `UNBOUND`."""
    try:
        return cell.cell_contents
    except ValueError:
        return UNBOUND


def calls_directly(frame: FrameType, below: FrameType) -> bool:
    """Whether `frame` waits for the Python function of `below` itself, and takes what that returns as it is: no C code
    is in between, which might go on to do anything, and nothing that looks at the result."""
    if waits_for_c(frame):
        return False
    # What dies as a call returns, or is collected as one begins, may call Python code when the caller waits for nothing
    # any more, or does not wait yet. CPython 3.11 tells that C code has called it; from 3.12 on, a frame of the
    # interpreter's own stands in between where there is anything to be done.
    return not was_entered_from_c(below) if sys.version_info < (3, 12) else bool(words(below)[1] == _address(frame))


def was_entered_from_c(frame: FrameType) -> bool:
    """On CPython 3.11: whether C code, rather than the interpreter by itself, has called the function of a frame."""
    return bool(words(frame)[first_local - 1] >> 32 & 0xFF)


def waits_for_c(frame: FrameType) -> bool:
    """Whether `frame` waits for code written in C."""
    return bool(words(frame)[first_local - 1] & 0xFFFFFFFF == 0xFFFFFFFF)


def _address(frame: FrameType) -> int:
    """Where the interpreter's frame is."""
    return int(ctypes.c_size_t.from_address(id(frame) + _TO_FRAME).value)


def refers_to_more(frame: FrameType) -> bool:
    """Whether the frame of a function that runs refers to more than its variables, all of which dies with it: a
    function that traces it, a variable that was added from outside (CPython 3.13), or the dictionary that is there once
    `f_locals` was asked for (up to 3.12)."""
    return bool(words(frame)[namespace_at] or gc.get_referents(frame))


def namespace(frame: FrameType) -> int:
    """The id of the dictionary in which the code of a module, a class or `exec` has its variables. (To ask for
    `f_locals` would put a class's cells there, too, up to 3.12.)"""
    return int(words(frame)[namespace_at])


def references(address: int) -> int:
    """How many references there are to the object at an address."""
    return int(_word_at[(address >> 3) - 1])


def counts_at(addresses: Iterable[int]) -> Iterator[int]:
    """The reference counts of the objects at these addresses, one after the other and all in C; 0 of one that dies."""
    words = map(operator.rshift, addresses, itertools.repeat(3))
    return map(_word_at.__getitem__, map(operator.sub, words, itertools.repeat(1)))


def have_one_reference(addresses: Sequence[int]) -> bool:
    """Whether there is one reference to each of the objects at these addresses."""
    for address in addresses:  # noqa: SIM110 - a generator takes longer than this
        if _word_at[(address >> 3) - 1] != 1:
            return False
    return True


def running(frame: FrameType) -> int:
    """The id of the function that runs in a frame."""
    return int(words(frame)[running_at])


def running_function(frame: FrameType) -> Any:
    """The function that runs in a frame."""
    return _Objects.from_address(id(frame) + _TO_FRAME)[running_at]


def lives(address: int) -> bool:
    """Whether the object at an address, which is there or about to die, is there to stay; 0 is that of none."""
    return address != 0 and references(address) > 0


def version(kind: type) -> int:
    """A number for what a class and those that it inherits from are at this moment, or 0.

    Any change to one of them gives it another, and none is given again (`tp_version_tag`; CPython's own caches of
    attributes rely on it).
    """
    return int(_half_at[(id(kind) >> 2) + version_at]) if version_at else 0


def versions(kinds: Sequence[type]) -> Callable[[], Any]:
    """A function that returns a tuple with the `version` of each of these classes, which must live on, at the price of
    one call."""
    places = [(id(kind) >> 2) + version_at for kind in kinds] if version_at else []
    # One place twice, since a single one would not be returned in a tuple.
    return functools.partial(operator.itemgetter(*places, places[0]), _half_at) if places else tuple


_INLINE = 1 << 2
"""The flag of classes whose objects keep the attributes in themselves (`Py_TPFLAGS_INLINE_VALUES`, CPython 3.13)."""


def may_share_attributes(kind: type) -> bool:
    """Whether objects of this class may share their attributes with a `__dict__` that does not refer to them."""
    return bool(dictionary_before and flags_of(kind) & _INLINE)


def share_attributes(values: Sequence[object]) -> bool:
    """Whether somebody has the `__dict__` of one of these objects, whose classes `may_share_attributes`.

    From CPython 3.13 on such a `__dict__`, once it has been asked for, is another way to the attributes: it refers to
    none of them, and up to 3.13.12 the object refers to it where the collector does not look. Its own count tells.
    """
    offset = _WORD + dictionary_before
    asked = [place for value in values if _word_at[place := id(value) - offset >> 3]]
    # Mostly nobody has ever asked. The object's own reference, and `getrefcount`'s.
    return bool(asked) and sum([getrefcount(_object_at[place]) for place in asked]) != 2 * len(asked)


def _find_dictionary() -> int | None:
    """How many bytes before an object its `__dict__` is kept that does not refer to the attributes; 0 where that does,
    and the object to it; None where it is not found."""

    class Plain:
        attribute: object

    value, attribute = Plain(), Plain()
    value.attribute = attribute
    own = value.__dict__
    # From CPython 3.13.13 on an object tells of it, and it still does not tell of the attributes.
    told_of = any(part is own for part in gc.get_referents(value))
    if told_of and any(part is attribute for part in gc.get_referents(own)):
        return 0
    before = [_WORD * n for n in range(1, 5) if ctypes.c_size_t.from_address(id(value) - _WORD * n).value == id(own)]
    return before[0] if len(before) == 1 and Plain.__flags__ & _INLINE else None


def _copies_of_unpacked() -> int:
    """How many references of its own the interpreter has, while it runs `f(*a, **k)`, to each of the values in `a` and
    `k`: one up to CPython 3.11, which makes an array of them. (Besides those of `a` and `k` themselves.)"""

    def called(first: object, second: object) -> tuple[int, int]:
        return getrefcount(first), getrefcount(second)

    counts = called(*(object(),), **{"second": object()})  # noqa: PIE804 - this is what is measured
    copies = counts[0] - 3  # the tuple or the dictionary, the variable, and `getrefcount`'s own
    return copies if copies in (0, 1) and counts[1] == counts[0] else 0


def _find_first_local() -> int:
    """The position of the first local variable in the interpreter's frame, in words; 0 where it is not found."""
    first, second, third, fourth = object(), object(), object(), object()
    known = [id(first), id(second), id(third), id(fourth)]
    seen = words(sys._getframe())
    # A header of at least six words, the variables here and the stack: more than is looked at belongs to the frame.
    places = [at for at in range(6, 10) if [seen[at + i] for i in range(4)] == known]
    return places[0] if len(places) == 1 else 0


def _find_running() -> int | None:
    """The position, in words, of the function in the interpreter's frame; None where it is not found."""

    def function() -> list[int]:
        seen = words(sys._getframe())
        return [at for at in range(first_local) if seen[at] == id(function)]

    places = function()
    return places[0] if len(places) == 1 else None


def _find_namespace() -> int | None:
    """The position, in words, of what a frame has for a dictionary of its variables; None where it is not found."""
    space: dict[str, list[int]] = {}

    def places() -> list[int]:
        seen = words(sys._getframe(1))
        return [at for at in range(first_local) if seen[at] == id(space)]

    exec("found = places()", {"places": places}, space)
    found = space["found"]
    return found[0] if len(found) == 1 else None


def _find_version() -> int:
    """Where a class has its version, for `version`; 0 where that is not found."""

    class Above:
        attribute = 0

    class Kind(Above):
        pass

    def seen() -> list[int]:
        return [int(_half_at[(id(Kind) >> 2) + at]) for at in places]

    meta: type = type(Kind)
    places = range(-2, meta.__basicsize__ // 4 - 2)
    value = Kind()
    object.__getattribute__(value, "attribute")  # with the first look-up it gets one
    first = seen()
    Above.attribute = 1
    none = seen()
    object.__getattribute__(value, "attribute")
    second = seen()
    changes = zip(places, first, none, second, strict=True)
    found = [at for at, before, between, after in changes if between == 0 < before < after]
    return found[0] if len(found) == 1 else 0


def _frame_is_referred_to_once() -> bool:
    """Whether a running frame's object has one reference besides those of the variables that hold it."""
    frame = sys._getframe(1)
    return getrefcount(frame) == 3 and frame is sys._getframe(1)


def _tells_entries() -> bool:
    """Whether `was_entered_from_c` is right about a call by the interpreter, and about one by C code."""

    def entered(_: object = None) -> bool:
        return was_entered_from_c(sys._getframe())

    return not entered() and next(map(entered, [None]))


def _why_not() -> str:
    """Why nothing can be proven on this interpreter, or an empty string."""
    if sys.implementation.name != "cpython":
        return f"this interpreter is {sys.implementation.name}, and the proof is about CPython"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return f"the proof is for CPython 3.11 to 3.13, and this is {sys.version_info[0]}.{sys.version_info[1]}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this interpreter was built without a global lock, and reference counts say less there"
    if _WORD != 8 or object.__basicsize__ != 2 * _WORD:
        return "this interpreter lays out objects in an unknown way"
    return ""


refusal = _why_not()
"""Why nothing can ever be proven on this interpreter; empty where that is not so."""
first_local = 0
copies_of_unpacked = 0
dictionary_before = 0
running_at = 0
namespace_at = 0
version_at = 0
if not refusal:
    first_local = _find_first_local()
    _before = _find_dictionary()
    if _before is None:
        refusal = "the attributes of an object were not found where CPython keeps them"
    elif not first_local:
        refusal = "the local variables of a running frame were not found where CPython keeps them"
    elif (_running_at := _find_running()) is None:
        refusal = "the function of a running frame was not found where CPython keeps it"
    elif (_namespace_at := _find_namespace()) is None:
        refusal = "the dictionary of a running frame was not found where CPython keeps it"
    elif not (lambda: _frame_is_referred_to_once())():
        refusal = "a frame has other references than CPython's own"
    elif sys.version_info < (3, 12) and not _tells_entries():
        refusal = "a frame does not tell where CPython has it whether C code has called it"
    else:
        copies_of_unpacked = _copies_of_unpacked()
        dictionary_before, running_at, namespace_at = _before, _running_at, _namespace_at
        version_at = _find_version()


_audit: Any = sys.audit


def is_audited() -> bool:
    """Whether there is an audit hook, which is told of some of the proof's steps and shown what it looks into. It is
    not told of this: only where there is a hook does `sys.audit` look at its argument, and refuses this one."""
    try:
        _audit(0)
    except TypeError as error:
        if comes_from_python(error):
            raise
        return True
    return False


_tool: Callable[[int], str | None] | None = None
if sys.version_info >= (3, 12):
    _tool = sys.monitoring.get_tool
_NO_TOOLS = (None,) * 6


def observer() -> str:
    """Who watches this thread and could read any variable at any time, in words; empty when nobody does."""
    if is_audited():
        return "an audit hook is active"
    if sys.gettrace() is not None:
        return "a debugger or tracer is active"
    if sys.getprofile() is not None:
        return "a profiler is active"
    if _tool is None:
        return ""
    tools = _tool(0), _tool(1), _tool(2), _tool(3), _tool(4), _tool(5)
    if tools == _NO_TOOLS:
        return ""
    return f"the monitoring tool {next(name for name in tools if name is not None)!r} is active"


_interpreter: Any = ctypes.pythonapi.PyInterpreterState_Get
_newest_thread: Any = ctypes.pythonapi.PyInterpreterState_ThreadHead
_this_thread: Any = ctypes.pythonapi.PyThreadState_Get
_thread_before: Any = ctypes.pythonapi.PyThreadState_Next
for _function in (_interpreter, _newest_thread, _this_thread, _thread_before):
    _function.restype = ctypes.c_void_p
_newest_thread.argtypes = _thread_before.argtypes = [ctypes.c_void_p]
_OURS = ctypes.c_void_p(_interpreter())


def alone() -> bool:
    """Whether no other thread can run Python code without asking for a state first.

    `threading` knows those that it has started, and `_thread` counts them from their first line on. A state each thread
    has before that, whoever started it. (Only this thread's is looked into: any other may be gone by then.)
    """
    this = _this_thread()
    return bool(_newest_thread(_OURS) == this and not _thread_before(this))


def states() -> Iterator[int]:
    """The addresses of all threads' states.

    To be exhausted by a single call of C code, such as `list`. While that runs no state goes, so none is looked into
    that is gone.
    """
    newest = itertools.starmap(_newest_thread, ((_OURS,),))
    before = itertools.accumulate(itertools.chain(newest, itertools.repeat(0)), _thread_before)  # it ignores the zeros
    return itertools.takewhile(bool, before)
