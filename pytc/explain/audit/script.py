"""Runs a Python script as `python script.py` does, or a module as `python -m` does, and watches it.

`python -m pytc audit` starts this file in a process of its own. It runs as a file and not as a module of pytc, because
pytc imports JAX, and a script may configure JAX before that (`os.environ["JAX_ENABLE_X64"]`, `XLA_FLAGS`). So only the
standard library is imported here before the script runs. When the script imports JAX, Equinox or Flax, `watch` patches
them directly after the import; before the script, where the interpreter has imported them as it started.
"""

from __future__ import annotations

import argparse
import atexit
import builtins
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_HERE = pathlib.Path(__file__).resolve()
_PACKAGE = _HERE.parents[2]
_WATCHED = ("jax", "equinox", "flax.nnx")


def main(arguments: Sequence[str]) -> None:
    """Run the script that the arguments name, and report."""
    options = _parser().parse_args(arguments)
    name = options.script[0] if options.script else ""
    if not name:
        _parser().error("the script is missing: python -m pytc audit train.py [args...]")
    load = functools.partial(_module, name) if options.is_module else _script(name)
    sys.argv = list(options.script)
    if not getattr(sys.flags, "safe_path", False):
        # As the interpreter does it.
        sys.path[0] = os.getcwd() if options.is_module else os.path.dirname(os.path.realpath(name))  # noqa: PTH109, PTH120
    audit = _Audit(options)
    sys.meta_path.insert(0, _Imports(audit.imported))
    for module in _WATCHED:
        if module in sys.modules:  # imported as the interpreter started: by a `sitecustomize`, a `.pth` file
            audit.imported(sys.modules[module])
    try:
        code, names = load()
        audit.has_begun = True
        _run(code, names)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the script as it would have without us
        audit.ended(error)
        _end(error)
    finally:
        audit.finish_without_jax()


_Loaded = tuple[types.CodeType, dict[str, Any]]
"""The code to run, and the names that it finds."""


def _script(path: str) -> Callable[[], _Loaded]:
    """What compiles a script, which is read now: its path may be relative."""
    try:
        with io.open_code(path) as opened:
            source = opened.read()
    except OSError as error:
        _parser().error(f"can't open file {path!r}: {error.strerror}")
    file = os.path.abspath(path)  # noqa: PTH100 - which would resolve nothing, as the interpreter does
    names = {"__file__": file, "__loader__": importlib.machinery.SourceFileLoader("__main__", file), "__cached__": None}
    return lambda: (compile(source, file, "exec", dont_inherit=True), names)


def _module(name: str) -> _Loaded:
    """A module by its name, or the `__main__` of a package. Imports the packages that it is in."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(f"{error.name}."):
            raise  # the package is there, and something that it imports is not
        spec = None
    if spec is None:
        _parser().error(f"there is no module named {name!r}")
    if spec.submodule_search_locations is not None:
        return _module(f"{name}.__main__")
    loader: Any = spec.loader
    code = loader.get_code(name) if hasattr(loader, "get_code") else None
    if code is None or spec.origin is None:
        _parser().error(f"{name!r} is not written in Python")
    sys.argv[0] = spec.origin
    names = {"__file__": spec.origin, "__loader__": loader, "__cached__": spec.cached}
    return code, {**names, "__spec__": spec, "__package__": spec.parent}


def _run(code: types.CodeType, names: dict[str, Any]) -> None:
    """Run code as the module `__main__`."""
    module = types.ModuleType("__main__")
    space = module.__dict__
    space.update(__builtins__=builtins, __annotations__={}, **names)
    sys.modules["__main__"] = module
    # The code runs as a function, and `exec` and `vars` are not used: the proof does not trust a frame whose code names
    # one of these, and this frame is above every other.
    types.FunctionType(code, space)()


def _end(error: BaseException) -> NoReturn:
    """Show the error as the interpreter does, without the frames above the script's, and end the process by it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
    sys.excepthook = lambda *_: None
    raise error


class _Audit:
    """The audit of a script: starts when the script imports JAX, reports when the process ends."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.watch: Any = None
        self.error: BaseException | None = None
        self.process = os.getpid()
        self.has_begun = False
        """Whether there was a script to run."""

    def imported(self, module: types.ModuleType) -> None:
        """Watch the functions of a module that was just imported."""
        if self.watch is None:
            _load_pytc()
            self.watch = importlib.import_module("pytc.explain.audit.watch").Watch()
            # Registered after JAX's own exit handlers, so it runs before them.
            atexit.register(self.report)
        self.watch.install(module)

    def ended(self, error: BaseException) -> None:
        """Remember how the script ended."""
        self.error = error

    def report(self) -> None:
        """Write the report, except in a forked child."""
        if os.getpid() == self.process:
            ending = importlib.import_module("pytc.explain.audit.ending")
            ending.report(self.watch, self.options, self.error)

    def finish_without_jax(self) -> None:
        """If the script did not import JAX, say so."""
        if self.watch is not None or not self.has_begun or os.getpid() != self.process:
            return
        script = self.options.script[0]
        text = f"pytc audit: {script} did not import JAX"
        if self.options.json:
            nothing = {"schema": "pytc.audit/1", "script": script, "ended": "", "functions": []}
            text = json.dumps({**nothing, "seconds": 0.0, "looking": 0.0})
        if self.options.out is not None:
            pathlib.Path(self.options.out).write_text(text + "\n", encoding="utf-8")
        else:
            sys.stderr.write(text + "\n")


class _Imports(importlib.abc.MetaPathFinder):
    """A finder that calls `imported` after each import of a watched module."""

    def __init__(self, imported: Callable[[types.ModuleType], None]) -> None:
        self.imported = imported

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders find, with a loader that reports the import."""
        if name not in _WATCHED:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None:
                self._tell(found.loader)
                return found
        return None

    def _tell(self, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            del loader.exec_module
            original(module)
            self.imported(module)

        loader.exec_module = exec_module


def _load_pytc() -> None:
    """Import the pytc that this file is part of, whether or not the script could import it."""
    if "pytc" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "pytc", _PACKAGE / "__init__.py", submodule_search_locations=[str(_PACKAGE)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no pytc in {_PACKAGE}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pytc"] = module
    spec.loader.exec_module(module)


def _writable(path: str) -> str:
    """The path of a file to write at the end, whatever directory the script goes to.

    Raises `argparse.ArgumentTypeError` where it cannot be written."""
    try:
        with open(path, "a", encoding="utf-8"):  # noqa: PTH123 - `pathlib` is what the script might have replaced
            return os.path.abspath(path)  # noqa: PTH100 - as above
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be written: {error.strerror}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytc audit",
        usage="python -m pytc audit [--out FILE] [--json] [--width COLUMNS] [-m] script.py [args ...]",
        description="Run a script as it is, watching what it compiles with jax.jit, jax.pmap, equinox.filter_jit and "
        "flax.nnx.jit, and say at the end what could have been donated, what should not have been, and the edit to "
        "make. Nothing is donated that the script does not donate.",
    )
    parser.add_argument(
        "--out", metavar="FILE", type=_writable, help="write the report to a file instead of to standard error"
    )
    parser.add_argument("--json", action="store_true", help="write JSON instead of text")
    parser.add_argument("--width", type=int, help="columns of the report; those of the terminal if not given")
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module by its name: -m package.train")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="the script, and its own arguments")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
