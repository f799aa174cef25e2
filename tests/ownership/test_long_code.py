"""Long functions: a first call takes time in proportion to what its function consists of, not to the square of that."""

import functools
import gc
import importlib
import random
import time
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import pytc
from pytc.ownership.bytecode import symbolic
from pytc.ownership.bytecode.events import Step, fast
from pytc.ownership.bytecode.instructions import UnknownInstruction
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.stores import may_store
from pytc.ownership.guesses import loop, repeats

MODULES = ("argparse", "dataclasses", "inspect", "zipfile")


@functools.cache
def flows():
    """Those of the functions of a few modules, with calls in them and other instructions."""

    def inside(code):
        yield code
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                yield from inside(const)

    found, generator = [], random.Random(7)
    for name in MODULES:
        path = importlib.import_module(name).__file__
        for code in inside(compile(Path(path).read_text(), path, "exec")):
            try:
                flow = ControlFlow(code)
            except UnknownInstruction:
                continue
            at = [n for n, each in enumerate(flow.instructions) if each.opname.startswith(("CALL", "STORE", "BINARY"))]
            found += [(code, flow, generator.sample(at, min(len(at), 6)))]
    return found


def test_what_reads_a_local_is_found_at_once_or_along_the_ways_on_which_it_is_live():
    at_once = 0
    for code, flow, places in flows():
        for at in places:
            for local in range(len(code.co_varnames)):
                for calm in (0, 1, 2)[: 2 + (len(flow.follows[at]) == 1)]:
                    along = {at}.intersection(n for n in [at] if flow.reads[at] >> local & 1)
                    assert flow.readers(at, local, calm) == along | flow._live_readers(at, calm, 1 << local)
                    reachable = flow._reached(at, calm)
                    at_once += not (reachable.written | reachable.named) >> local & 1
    assert at_once > 10_000


def reached(flow, at, within):
    found, ahead = set(), [at]
    while ahead:
        new = {n for n in flow.follows[ahead.pop()] if n in within} - found
        found |= new
        ahead += new
    return found


def test_what_is_stored_after_an_instruction():
    for code, flow, places in flows():
        names = [Step("global", name) for name in code.co_names] + [Step("cell", n) for n in range(40)]
        for at in places:
            behind = reached(flow, at, range(len(flow.follows)))
            for step in [*(fast(n)[0] for n in range(len(code.co_varnames))), *names]:
                expected = any(may_store(flow, n, step) for n in behind)
                assert repeats.is_stored_after(flow, at, (step,)) == expected


def test_what_every_way_around_a_loop_passes():
    loops = 0
    for _, flow, _ in flows():
        for body in flow.once(loop._bodies):
            for at in sorted(body.instructions)[::5]:
                around = loop.Loop(flow, at, body)
                expected = {n for n in body.instructions if at not in reached(flow, at, body.instructions - {n})}
                assert around._always_passed == expected
                loops += len(expected) < len(body.instructions)
    assert loops > 500


def test_an_instruction_is_executed_once(monkeypatch):
    steps = []
    step = symbolic.Machine.step

    def counted(machine, instruction):
        steps.append(instruction.offset)
        return step(machine, instruction)

    monkeypatch.setattr(symbolic.Machine, "step", counted)
    for _, flow, _ in flows():
        steps.clear()
        for n in sorted(range(len(flow.instructions)), key=lambda n: n * 7919 % 1009):
            symbolic.places_loaded(flow, n)
        assert len(steps) == len({*steps}) == len(flow.instructions)


def body(lines, setup="", call="x, = step(x)"):
    def source(count):
        prepared = "".join(f"  {setup.format(i=i)}\n" for i in range(count)) if setup else ""
        return f" if True:\n  pass\n{prepared} for k in range(2):\n  {call}\n" + "".join(
            f"  {lines.format(i=i)}\n" for i in range(count)
        )

    return source


def unpacked(count):
    names = ", ".join(f"v{i}" for i in range(count))
    lines = "".join(f"  if len(v{i}) > 4: print(v{i})\n" for i in range(count))
    before = f" {names}, = [x + i for i in range({count})]\n for _ in range(2):\n  new = step({names})\n"
    return f"{before}{lines}  {names}, = new\n"


LONG = {
    "assignments": body("w{i} = k + {i}"),
    "branches": body("if k > {i} + 5: print('step', k, x)"),
    "variables": body("if k > {i} + 5: print(v{i})", "v{i} = x"),
    "lists": body("if k > {i} + 5: print(v{i}[0])", "v{i} = [x]"),
    "histories": body("h{i}.append(x)", "h{i} = []"),
    "attributes": body("s.a{i} = k", "s = step", "x, = step(x)"),
    "calls": body("x, = step(x)"),
    "loops": body("for j{i} in range(1): pass"),
    "handlers": body("try: int(k)\n  except ValueError: print({i})"),
    "texts": body("try: int('x + 1')\n  except ValueError as e: print('x failed', e) if k > {i} + 5 else 0"),
    "results": unpacked,
}


@pytest.fixture
def no_collections():
    gc.collect()
    gc.disable()  # one may come at either length, and takes as long as there are objects
    yield
    gc.enable()


@pytest.mark.parametrize("kind", LONG)
def test_the_first_call_of_a_function_four_times_as_long(kind, no_collections):
    def took(count):
        step = pytc.compile(lambda *arrays: [array + 1 for array in arrays])
        arrays = count if kind == "results" else 1
        for different in (0, 1):  # which are one array, and which are not, is compiled for
            jax.block_until_ready(step(*[jnp.ones(3) * different * i for i in range(arrays)]))
        namespace = {"step": step}
        exec(f"def train(x):\n{LONG[kind](count)} return x\n", namespace)
        start = time.thread_time()
        namespace["train"](jnp.ones(3))
        return time.thread_time() - start

    took(10)
    short, long = (min(took(count) for _ in range(2)) for count in (60, 240))
    assert long < 10 * max(short, 0.01)
