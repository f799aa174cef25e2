"""An interpreter that the proof is not about: everything is kept, at the price that `jax.jit` has, and is told.

Each program runs in a process of its own, whose interpreter says of itself that it was built without a global lock.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

_ODD = """
import sysconfig
real = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else real(name)

import jax, jax.numpy as jnp, pytc

def step(state, batch):
    return {name: leaf + batch for name, leaf in state.items()}

def state():
    return {"w": jnp.zeros((64, 64)), "b": jnp.zeros(64)}
"""
_WHY = "this interpreter was built without a global lock, and reference counts say less there"


def _runs(program: str) -> str:
    """What the program prints there."""
    program = _ODD + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_program_and_no_copies() -> None:
    printed = _runs("""
        compilations = []
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, _, **__: compilations.append(event) if "backend_compile" in event else None
        )
        run = pytc.compile(step)
        now, batch = jax.block_until_ready((state(), jnp.ones(())))
        first, before = now, len(compilations)
        for _ in range(5):
            now = run(now, batch)
        print(len(compilations) - before, float(now["w"].sum()), float(first["w"].sum()))
        [site] = pytc.explain(run).sites
        print(site.donated, site.copied_calls, *site.why)
    """)
    numbers, told = printed.splitlines()
    assert numbers == "1 20480.0 0.0"
    assert told == f"0 0 {('''state['b']''', _WHY)} {('''state['w']''', _WHY)} {('batch', _WHY)}"


def test_the_best_case_is_what_is_promised() -> None:
    printed = _runs("""
        print(pytc.explain(step, state(), jnp.ones(())).text(width=500))
        print(pytc.explain(pytc.compile(step, donate={"state": "all"}), state(), jnp.ones(())).text(width=500))
        print(pytc.explain(pytc.compile(step, donate="require"), state(), jnp.ones(())).text(width=500))
    """)
    unpromised, promised, required = printed.split("nearest jax.jit call")[:3]
    for text in (unpromised, promised, required):
        assert "Nothing is ever proven dead on this interpreter, so only what donate= promises is reused." in text
    assert unpromised.count(f"kept: {_WHY}; to free it: donate=") == 2
    assert "0 B reused" in unpromised
    assert "0 B reused" in required
    assert "16 KiB reused" in promised


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        pytest.param("pytc.compile(step, donate='all')(now, batch)", "deleted", id="a promise"),
        pytest.param("pytc.compile(step)(pytc.move(now), batch)", "deleted", id="a move"),
        pytest.param("pytc.compile(step, donate='require')(now, batch)", f"DonationError {_WHY}", id="a requirement"),
    ],
)
def test_what_the_caller_says_counts(call: str, outcome: str) -> None:
    printed = _runs(f"""
        now, batch = state(), jnp.ones(())
        leaf = now["w"]
        try:
            new = {call}
            print("deleted" if leaf.is_deleted() else "kept")
        except pytc.errors.DonationError as error:
            print("DonationError", {_WHY!r} if {_WHY!r} in " ".join(str(error).split()) else error)
    """)
    assert printed.strip() == outcome
