"""Loops at the top level of a script, cells in a real IPython session, and in a notebook's kernel with all its threads;
each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests import interpreters

SCRIPT = """
import json
import jax, jax.numpy as jnp
import pytc

@pytc.compile
def step(state, batch):
    return jax.tree.map(lambda x: x * 1.5 + batch, state)

def where(tree):
    return [x.unsafe_buffer_pointer() for x in jax.tree.leaves(tree)]

state = {"w": jnp.arange(6.0), "n": jnp.ones((2, 2))}
reused = []
for i in range(5):
    before = where(state)
    state = step(state, float(i))
    reused.append(where(state) == before)

history = []
while len(history) < 3:
    history.append(state)
    state = step(state, 1.0)

best = state
try:
    for i in range(3):
        state = step(state, 1.0)
except KeyboardInterrupt:
    pass

if __name__ == "__main__":
    for i in range(3):
        before = where(state)
        state = step(state, 1.0)
        reused.append(where(state) == before)

expected = {"w": jnp.arange(6.0), "n": jnp.ones((2, 2))}
plain = jax.jit(lambda state, batch: jax.tree.map(lambda x: x * 1.5 + batch, state))
states = []
for batch in [0.0, 1.0, 2.0, 3.0, 4.0, 1.0, 1.0, 1.0]:
    expected = plain(expected, batch)
    states.append(expected)
same = jax.tree.map(lambda a, b: bool((a == b).all()), [*history, best], states[4:])
print(json.dumps({"reused": reused, "same": jax.tree.leaves(same)}))
"""

SESSION = """
import json
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.enable_gui = lambda *_: None
said = {}

def cell(source):
    result = shell.run_cell(source, store_history=True)
    result.raise_error()
    return result.result

cell('''
import jax, jax.numpy as jnp
import pytc
step = pytc.compile(lambda state, batch: jax.tree.map(lambda x: x + batch, state))
where = lambda tree: [x.unsafe_buffer_pointer() for x in jax.tree.leaves(tree)]
state = {"w": jnp.zeros(6), "n": jnp.zeros((2, 2))}
reused = []
''')
for _ in range(4):
    cell("before = where(state)")
    cell("state = step(state, 1.0)")
    cell("reused.append(where(state) == before)")
said["assigned"] = cell("[*reused]")

shown = shell.execution_count
cell("state")
cell("before = where(state)")
cell("state = step(state, 1.0)")
said["shown is kept"] = cell("where(state) != before")
said["shown"] = cell(f"float(Out[{shown}]['w'][0])")
said["why"] = cell("str(step.explain())")
said["shown by number"] = shown

cell("state = {'w': jnp.zeros(6), 'n': jnp.zeros((2, 2))}")
cell("state")
said["last result"] = cell("new = step(_, 1.0); float(_['w'][0]) + float(state['w'][0]) + float(new['w'][0])")

said["timed"] = cell('''
state = {"w": jnp.zeros(6), "n": jnp.zeros((2, 2))}
get_ipython().run_line_magic("timeit", "-n 3 -r 2 -q step(state, 1.0)")
get_ipython().run_line_magic("time", "state = step(state, 1.0)")
float(state["w"][0])
''')
said["in a loop of a cell"] = cell('''
reused = []
for _ in range(4):
    before = where(state)
    state = step(state, 1.0)
    reused.append(where(state) == before)
[*reused]
''')
said["in a function of a cell"] = cell('''
def train(state):
    for _ in range(3):
        before = where(state)
        state = step(state, 1.0)
        reused.append(where(state) == before)
    return state
reused.clear()
state = train(state)
[*reused]
''')
print()
print(json.dumps(said))
"""


def said(source: str, tmp_path: Path) -> dict[str, object]:
    """What a script says on its last line."""
    script = tmp_path / "train.py"
    script.write_text(source)
    printed = interpreters.printed([script], IPYTHONDIR=str(tmp_path))
    answer: dict[str, object] = json.loads(printed.splitlines()[-1])
    return answer


def test_the_top_level_of_a_script(tmp_path: Path) -> None:
    answer = said(SCRIPT, tmp_path)
    assert answer["reused"][1:5] == [True] * 4
    assert answer["reused"][5:] == [True] * 3
    assert answer["same"] == [True] * 8


def test_cells_of_a_notebook(tmp_path: Path) -> None:
    answer = said(SESSION, tmp_path)
    assert answer["assigned"][1:] == [True] * 3
    assert answer["shown is kept"]
    assert answer["shown"] == 4.0
    assert f"IPython's Out[{answer['shown by number']}]" in answer["why"]
    assert answer["last result"] == 1.0
    assert answer["timed"] == 1.0
    assert answer["in a loop of a cell"][1:] == [True] * 3
    assert answer["in a function of a cell"][1:] == [True] * 2


FIRST_CELL = """
import jax, jax.numpy as jnp
import pytc
step = pytc.compile(lambda state, batch: jax.tree.map(lambda x: x + batch, state))
where = lambda tree: [x.unsafe_buffer_pointer() for x in jax.tree.leaves(tree)]
state = {"w": jnp.zeros(6), "n": jnp.zeros((2, 2))}
"""


@contextlib.contextmanager
def a_kernel(folder: Path) -> Iterator[BlockingKernelClient]:
    """A kernel, as a notebook starts it. (It would not watch what C code prints if it knew of the tests.)"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    environment |= {"PYTHONPATH": str(interpreters.ROOT), "IPYTHONDIR": str(folder)}
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=environment, cwd=str(folder))
    client: BlockingKernelClient = manager.client()
    try:
        client.start_channels(hb=False)
        client.wait_for_ready(timeout=120)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def cells_of(client: BlockingKernelClient) -> Callable[[str], str]:
    """A function that runs a cell, and returns what it prints."""

    def run(source: str) -> str:
        printed: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = client.execute_interactive(source, output_hook=hear, timeout=120)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(printed)

    return run


def test_a_global_of_a_notebook_is_reused_beside_the_threads_of_its_kernel(tmp_path: Path) -> None:
    with a_kernel(tmp_path) as client:
        cell = cells_of(client)
        cell(FIRST_CELL)
        reused = []
        for _ in range(3):
            cell("before = where(state)")
            cell("state = step(state, 1.0)")
            reused.append(cell("print(where(state) == before)"))
        assert reused[1:] == ["True\n"] * 2
        assert "In[3]:1: 1 call" in cell("print(pytc.explain(step))")
        client.control_channel.send(client.session.msg("create_subshell_request"))
        assert client.get_control_msg(timeout=60)["content"]["status"] == "ok"
        cell("before = where(state)")
        cell("state = step(state, 1.0)")
        assert cell("print(where(state) == before)") == "False\n"
        assert "another thread, 'subshell-" in cell("print(pytc.explain(step))")
