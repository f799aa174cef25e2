"""Threads of libraries that wait for work of their own and never read a program's data.

Such a thread is known by the function at its bottom. What it does is the library's affair as long as all that it runs
is the library's: a function on its stack from elsewhere may read anything. One of them draws what it is given, so it is
looked at what that is: the monitor of tqdm, which calls a progress bar and the file that this writes to.

Some also wake nobody else: only beside these can a thread be relied on to wait (`waiting_threads`).

What is not covered: work that a thread is given in the moment between this look and the store of a call's result.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from types import FrameType, FunctionType, MethodType
from typing import Any

from pytc.ownership.cpython.interpreter import variable
from pytc.provenance import is_of, module_of

_JUPYTER = frozenset("ipykernel IPython zmq tornado jupyter_client traitlets comm debugpy".split())
HARMLESS = {
    ("tqdm._monitor", "TMonitor.run"): frozenset({"tqdm", "ipykernel", "ipywidgets", "IPython"}),
    ("IPython.core.history", "HistorySavingThread.run"): frozenset({"IPython", "traitlets", "decorator"}),
    ("ipykernel.heartbeat", "Heartbeat.run"): _JUPYTER,
    ("ipykernel.iostream", "IOPubThread._thread_main"): _JUPYTER,
    ("ipykernel.iostream", "OutStream._watch_pipe_fd"): _JUPYTER,
    ("ipykernel.control", "ControlThread.run"): _JUPYTER,
    ("ipykernel.thread", "BaseThread.run"): _JUPYTER,
    ("ipykernel.parentpoller", "ParentPollerUnix.run"): _JUPYTER,
    ("tensorboard.summary.writer.event_file_writer", "_AsyncWriterThread.run"): frozenset(
        {"tensorboard", "tensorflow", "google", "fsspec"}
    ),
    ("wandb.sdk.lib.asyncio_manager", "AsyncioManager._main"): frozenset({"wandb", "google"}),
    ("wandb.sdk.lib.service.service_finalizer", "ServiceFinalizer._publish_queue"): frozenset({"wandb", "google"}),
}
"""The functions, by module and name, and the packages whose code they run, besides the standard library."""

_OF_CLASSES = {("ipykernel.thread", "BaseThread.run"): frozenset({"ControlThread", "ShellChannelThread"})}
"""Those that are methods of a base class: of which classes. (Jupyter's subshells have this one, too, and run whatever
the front end asks for.)"""

_WAKE_NOBODY = {
    ("tqdm._monitor", "TMonitor.run"),
    ("IPython.core.history", "HistorySavingThread.run"),
    ("ipykernel.heartbeat", "Heartbeat.run"),
    ("ipykernel.parentpoller", "ParentPollerUnix.run"),
}

# The packages of whose classes the attributes of a progress bar may be.
_OF_BARS = frozenset(
    """builtins _io io _thread threading multiprocessing time datetime weakref numpy tqdm ipykernel ipywidgets
    IPython""".split()
)


def is_harmless(frame: FrameType) -> bool:
    """Whether a thread that is at `frame` is one of those, and runs nothing else at this moment."""
    functions = []
    for each in _frames(frame):
        functions.append(_function(each))
        if not _is_of_known_class(each, functions[-1]):
            return False
    packages = {module.partition(".")[0] for module, _ in functions}
    allowed = next((HARMLESS[each] for each in reversed(functions) if each in HARMLESS), None)
    if allowed is None or any(each not in allowed and each not in sys.stdlib_module_names for each in packages):
        return False
    return "tqdm" not in packages or all(_is_plain(bar) for bar in _bars())


def wakes_nobody(frame: FrameType) -> bool:
    """Whether a thread that is harmless at `frame` does nothing that another may wait for."""
    return not _WAKE_NOBODY.isdisjoint([_function(each) for each in _frames(frame)])


def _frames(frame: FrameType) -> Iterator[FrameType]:
    """Where a thread is, from the innermost function on."""
    above: FrameType | None = frame
    while above is not None:
        yield above
        above = above.f_back


def _function(frame: FrameType) -> tuple[str, str]:
    """The module of a function and its name."""
    return module_of(frame.f_globals), frame.f_code.co_qualname


def _is_of_known_class(frame: FrameType, function: tuple[str, str]) -> bool:
    """Whether this function in this frame, if it is a method of a base class, runs for an object of one of the classes
    that count."""
    if function not in _OF_CLASSES:
        return True
    kind = type(variable(frame, 0))
    return kind.__name__ in _OF_CLASSES[function] and is_of(kind, (function[0].partition(".")[0],))


def _bars() -> list[Any]:
    """The progress bars that tqdm knows."""
    module = sys.modules.get("tqdm.std")
    return list(getattr(getattr(module, "tqdm", None), "_instances", ()))


def _is_plain(bar: Any) -> bool:
    """Whether a progress bar is drawn by tqdm alone, out of numbers and strings, onto a stream of Python's or
    Jupyter's. (The iterable that it wraps is not asked for anything then.)"""
    parts = dict(vars(bar))
    parts.pop("iterable", None)
    file = parts.get("fp")
    return (
        _package(type(bar)) == "tqdm"
        and _are_known([*parts.values()])
        and _is_plain_stream(getattr(file, "_wrapped", file))
    )


def _are_known(values: list[Any]) -> bool:
    """Whether these values are of classes whose code is no user's, and the functions and classes among them neither."""
    kinds = {id(kind): kind for kind in map(type, values)}
    code = [value for value in values if isinstance(value, FunctionType | MethodType | type)]
    return all(_package(each) in _OF_BARS for each in (*kinds.values(), *code))


def _is_plain_stream(stream: Any) -> bool:
    if type(stream) is io.TextIOWrapper:
        try:
            below = stream.buffer
        except ValueError:  # it was detached
            return False
        raw = below.raw if type(below) is io.BufferedWriter else below
        return type(raw) is io.FileIO and {"write", "flush"}.isdisjoint(vars(stream))
    return stream is None or type(stream) is io.StringIO or _package(type(stream)) == "ipykernel"


def _package(of: Any) -> str:
    return str(of.__module__).partition(".")[0]
