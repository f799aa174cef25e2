"""Scripts in processes of their own that need not import JAX first.

To import JAX, pytc and what they are used with takes a process 1 to 4 s, which is longer than most of the scripts run
that the tests start. `run` starts one interpreter that has imported all of it, and forks it for each script. Nothing
has been computed there: JAX looks for devices, and reads `XLA_FLAGS`, in each process anew.

A script that is about how an interpreter starts or ends, or which modules it has, is not one to be forked.
"""

import atexit
import builtins
import gc
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
IMPORTED = ("jax.numpy", "equinox", "flax.linen", "flax.nnx", "optax", "pytc")


def run(
    command: Sequence[str | Path], folder: Path = ROOT, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What `python *command` does in a folder: a script, `-c` and a program, or `-m` and a module; then its arguments.
    What is deprecated and used by the script itself is an error.

    `environment` is added to that of the tests. JAX and Python have read what is theirs before; to change that is
    refused with a `ValueError`. Raises `subprocess.TimeoutExpired` after so many seconds."""
    told_before = [name for name in environment if name.startswith(("JAX_", "PYTHON"))]
    if told_before:
        raise ValueError(f"{told_before} have been read when the script starts: start an interpreter of its own")
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory) / name for name in ("out", "err")]
        request = {
            "command": [str(argument) for argument in command],
            "folder": str(folder),
            "environment": environment,
            "printed": [str(path) for path in files],
        }
        status = _Server.ask(request, timeout)
        return subprocess.CompletedProcess(request["command"], status, *(path.read_text("utf-8") for path in files))


def printed(command: Sequence[str | Path], folder: Path = ROOT, **environment: str) -> str:
    """What it prints on standard output. It has to end well."""
    done = run(command, folder, **environment)
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class _Server:
    """The interpreter that is forked, started by the first script that wants one."""

    process: subprocess.Popen[str] | None = None

    @classmethod
    def ask(cls, request: dict[str, Any], timeout: float) -> int:
        """The exit status of a script."""
        if cls.process is None:
            cls.process = cls.start()
        requests, statuses = cls.process.stdin, cls.process.stdout
        assert requests is not None
        assert statuses is not None
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        if not select.select([statuses], [], [], timeout)[0]:
            cls.stop()
            raise subprocess.TimeoutExpired(request["command"], timeout)
        return int(statuses.readline())

    @staticmethod
    def start() -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": "utf-8",
            "OPENBLAS_NUM_THREADS": "1",  # or NumPy starts threads, which a fork is without
        }
        # A process group, so that a script that hangs ends with the interpreter that it was forked from.
        return subprocess.Popen(
            [sys.executable, "-W", "error::DeprecationWarning:__main__", __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @classmethod
    def stop(cls) -> None:
        if cls.process is not None:
            os.killpg(cls.process.pid, signal.SIGKILL)
            cls.process.communicate()
            cls.process = None


atexit.register(_Server.stop)


def _forked() -> dict[str, Any]:
    """The request that this process is there for. Returns in a forked process alone."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()  # so that a collection in a forked process need not copy the memory of all of it
    statuses = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if not child:
            return request
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=statuses, flush=True)
    sys.exit()


def _begin(request: dict[str, Any]) -> Callable[[], Any]:
    """Make this process what one started for the request would be. The function runs the script."""
    for number, path in enumerate((os.devnull, *request["printed"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    gc.unfreeze()
    atexit.register(gc.freeze)  # which leaves less to take down
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    code = _read(main, *request["command"])
    main.__dict__["__builtins__"] = builtins
    # A function, since pytc trusts no frame whose code names `exec`, and this one is above the script's.
    return types.FunctionType(code, main.__dict__)


def _read(main: types.ModuleType, script: str, *arguments: str) -> types.CodeType:
    """The code of a command, which finds its arguments and modules where `python` would put them."""
    if script not in ("-c", "-m"):
        path = Path(script)
        main.__file__ = str(path.absolute())
        sys.argv, sys.path[0] = [script, *arguments], str(path.resolve().parent)
        return compile(path.read_text("utf-8"), main.__file__, "exec", dont_inherit=True)
    sys.argv, sys.path[0] = [script, *arguments[1:]], ""
    if script == "-c":
        return compile(arguments[0], "<string>", "exec", dont_inherit=True)
    main.__spec__ = _spec(arguments[0])
    main.__file__ = sys.argv[0] = main.__spec__.origin
    main.__package__ = main.__spec__.parent
    return main.__spec__.loader.get_code(main.__spec__.name)


def _spec(module: str) -> Any:
    spec = importlib.util.find_spec(module)
    return _spec(f"{module}.__main__") if spec is not None and spec.submodule_search_locations is not None else spec


def _end(error: BaseException) -> NoReturn:
    """End as an interpreter whose script raised this: the traceback has no frame of this file."""
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    sys.excepthook(type(error), error, error.__traceback__)
    sys.excepthook = lambda *_: None
    raise error


if __name__ == "__main__":
    script = _begin(_forked())
    try:
        script()
    except SystemExit:
        raise
    except BaseException as error:
        _end(error)
