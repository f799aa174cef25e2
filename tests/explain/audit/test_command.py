"""`python -m pytc audit` runs a script as `python` does, whatever the script is."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.explain.audit.test_scripts import AUDIT
from tests.interpreters import ROOT

COMMAND = ("-m", "pytc", "audit")
STARTED = (str(AUDIT),)
"""What the command becomes, in half the time."""


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


def write(folder: Path, **sources: str) -> None:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source), "utf-8")


def alike(
    folder: Path, *arguments: str, options: tuple[str, ...] = (), audit: tuple[str, ...] = STARTED
) -> subprocess.CompletedProcess[str]:
    """The run without the audit, which has to be like that with it."""
    alone = run([*options, *arguments], folder)
    watched = run([*options, *audit, "--out", "report.txt", *arguments], folder)
    assert (watched.returncode, watched.stdout, watched.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    return alone


def test_what_a_script_sees_of_itself(tmp_path: Path) -> None:
    write(
        tmp_path,
        helper="where = __file__",
        script="""
        import os, pickle, sys, warnings
        os.environ["JAX_ENABLE_X64"] = "1"
        assert "jax" not in sys.modules and "numpy" not in sys.modules
        import jax, jax.numpy as jnp
        import helper

        class Thing:
            pass

        @jax.jit
        def f(x):
            return x + 1

        if __name__ == "__main__":
            print(sys.argv, sys.path[0], __file__, __name__, __spec__, __doc__, __package__, helper.where)
            print(sys.modules["__main__"].Thing is Thing, type(pickle.loads(pickle.dumps(Thing()))) is Thing)
            print(f(jnp.arange(3.0)).dtype, sys.flags.dev_mode, sys.warnoptions, sorted(vars())[:6])
            warnings.warn("seen")
            sys.stderr.write("and this\\n")
        """,
    )
    alone = alike(tmp_path, "script.py", "--out", "a b", options=("-W", "always", "-X", "utf8"), audit=COMMAND)
    assert "float64" in alone.stdout
    assert "f, jax.jit in script.py" in (tmp_path / "report.txt").read_text("utf-8")


def test_what_a_module_sees_of_itself(tmp_path: Path) -> None:
    """`python -m package.train` has relative imports, and begins with the packages that it is in."""
    program = """
        import sys
        import jax.numpy as jnp
        from .steps import step

        x = jnp.zeros((64, 64))
        for _ in range(3):
            x = step(x)
        print(sys.argv, sys.path[0], __file__, __name__, __spec__.name, __package__, __cached__, __loader__.path)
        """
    package = tmp_path / "package"
    package.mkdir()
    write(package, __init__="print('first')", train=program, __main__=program)
    write(package, steps="import jax\nstep = jax.jit(lambda x: x + 1)")
    for name, file in {"package.train": "train.py", "package": "__main__.py"}.items():
        alone = alike(tmp_path, "-m", name, "--out", "a b", audit=COMMAND if name == "package" else STARTED)
        assert alone.stdout.startswith(f"first\n['{package / file}', '--out', 'a b'] {tmp_path} ")
        assert f"3 calls from {file}:8" in (tmp_path / "report.txt").read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("package.nothing", "there is no module named 'package.nothing'"),
        ("nothing.at.all", "there is no module named 'nothing.at.all'"),
        ("package", "there is no module named 'package.__main__'"),
        ("math", "'math' is not written in Python"),
    ],
)
def test_what_is_no_module_to_run(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    write(tmp_path / "package", __init__="")
    done = run([*STARTED, "-m", name], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"python -m pytc audit: error: {said}\n")


def test_an_error_as_a_modules_package_is_imported(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    write(tmp_path / "package", __init__="import absent.entirely", train="")
    done = run([*STARTED, "-m", "package.train"], tmp_path)
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'absent'" in done.stderr


ENDINGS = {
    "zero": "import sys, jax; sys.exit()",
    "number": "import sys, jax; sys.exit(7)",
    "text": "import sys, jax; sys.exit('not today')",
    "error": "import jax\ndef f():\n    raise KeyError('k')\nf()",
    "chained": "import jax\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('b') from e",
    "syntax": "import jax\nx = = 1",
    "hook": "import jax, sys\nsys.excepthook = lambda *e: print('mine', e[0], e[2].tb_lineno)\n1 / 0",
    "at exit": "import atexit, jax\natexit.register(print, 'last words')\nraise SystemExit(3)",
    "thread": "import jax, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('later'))).start()",
    "killed": "import jax, os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_how_a_script_ends(name: str, tmp_path: Path) -> None:
    """None of them asks anything of JAX: where nobody watches, an empty module does, which is imported sooner."""
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", jax="")
    write(tmp_path, script=ENDINGS[name])
    alone = run(["script.py"], tmp_path, PYTHONPATH=str(tmp_path / "empty"))
    watched = run([*STARTED, "--out", "report.txt", "script.py"], tmp_path)
    assert (watched.returncode, watched.stdout, watched.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    assert bool((tmp_path / "report.txt").read_text("utf-8")) == (name not in ("killed", "syntax"))


def test_the_report_is_on_standard_error(tmp_path: Path) -> None:
    write(tmp_path, script="import jax\nf = jax.jit(lambda x: x + 1)\nprint(f(f(1)))")
    watched = run([*COMMAND, "script.py"], tmp_path)
    assert watched.stdout == "3\n"
    assert watched.stderr.startswith("pytc audit of script.py: 1 compiled function, nothing to change\n")
    assert run([*COMMAND, "script.py"], tmp_path, PYTHONSAFEPATH="1").returncode == 0


def test_a_script_without_jax(tmp_path: Path) -> None:
    write(tmp_path, script="print('hello')")
    watched = run([*STARTED, "script.py"], tmp_path)
    assert (watched.returncode, watched.stdout) == (0, "hello\n")
    assert watched.stderr == "pytc audit: script.py did not import JAX\n"


def test_jax_is_there_before_the_script(tmp_path: Path) -> None:
    write(tmp_path, script="from jax import jit\nf = jit(lambda x: x + 1)\nf(f(1))", sitecustomize="import jax")
    places = os.pathsep.join([str(tmp_path), str(ROOT)])
    watched = run([*STARTED, "script.py"], tmp_path, PYTHONPATH=places)
    assert (watched.returncode, watched.stdout) == (0, "")
    assert watched.stderr.startswith("pytc audit of script.py: 1 compiled function, nothing to change\n")


def test_the_report_is_written_where_the_audit_began(tmp_path: Path) -> None:
    write(tmp_path, script="import os, jax; os.chdir('/'); jax.jit(lambda x: x + 1)(1.0); print('ran')")
    watched = run([*COMMAND, "--out", "report.txt", "script.py"], tmp_path)
    assert (watched.returncode, watched.stdout, watched.stderr) == (0, "ran\n", "")
    assert (tmp_path / "report.txt").read_text("utf-8").startswith("pytc audit of script.py")
    refused = run([*STARTED, "--out", "nowhere/report.txt", "script.py"], tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--out: nowhere/report.txt cannot be written: No such file" in refused.stderr


def test_wrong_usage(tmp_path: Path) -> None:
    assert run([*COMMAND], tmp_path).returncode == 2
    missing = run([*STARTED, "missing.py"], tmp_path)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "can't open file 'missing.py'" in missing.stderr
    assert "audit" in run(["-m", "pytc", "--help"], tmp_path).stdout
    assert "--json" in run([*STARTED, "--help"], tmp_path).stdout


def test_children_are_left_alone(tmp_path: Path) -> None:
    write(
        tmp_path,
        script="""
        import multiprocessing, os, sys
        import jax, jax.numpy as jnp

        f = jax.jit(lambda x: x + 1)

        def work(x):
            return float(f(jnp.float32(x)))

        if __name__ == "__main__":
            print(multiprocessing.get_context("spawn").Pool(1).map(work, [1, 2]))
            child = os.fork()
            if not child:
                sys.exit(5)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    )
    alike(tmp_path, "script.py", options=("-W", "ignore"))
    assert (tmp_path / "report.txt").read_text("utf-8").count("pytc audit of") == 1


def test_modules_of_the_script(tmp_path: Path) -> None:
    write(
        tmp_path,
        model="""
        from functools import partial
        from jax import jit
        import jax

        @partial(jit, static_argnums=1)
        def step(state, scale):
            return jax.tree.map(lambda s: s * scale, state)
        """,
        script="""
        import jax.numpy as jnp
        from model import step

        def run():
            state = {"a": jnp.ones(1000), "b": jnp.zeros(3000)}
            for _ in range(3):
                state = step(state, 2)
            return state

        print(run()["a"].sum())
        """,
    )
    alike(tmp_path, "script.py")
    assert "model.py:6: add donate_argnums=(0,); saves 16 KiB" in (tmp_path / "report.txt").read_text("utf-8")
