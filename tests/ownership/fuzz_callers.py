"""Random programs that call compiled functions, run twice: under a prover and under one that never donates.

    python -m tests.ownership.fuzz_callers --programs 200000 --seed 0

Each program is source text: assignments, aliases, containers, attributes, items, globals, closures, loops,
branches, exceptions, generators, coroutines, helpers, deletions, threads, calls from C, weak references, hidden
sharing, garbage collection. Everything that it reads, and everything still reachable at its end, must have the same
values in both runs, and the same exceptions must be raised; a buffer called dead too early shows as a deleted array.

The run that never donates is also the oracle: a leaf was dead at a call if nothing read its buffer afterwards. The
share of those that the prover found is printed, by bytes (all arrays here are of one size). No prover can reach
all of it, because whether a name is read later may depend on what has not happened yet.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import gc
import inspect
import operator
import queue
import random
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
from jax.tree_util import tree_leaves

from pytc import ownership
from pytc.ownership import buffers
from tests.ownership.harness import Stub, both, first, shares

Prover = Callable[..., Any]


class Oops(Exception):
    """What the programs raise."""


class Box:
    """An object with attributes."""


class Slotted:
    """An object with slots."""

    __slots__ = ("a", "b")


class Hooked(Box):
    """An object whose attributes run code."""

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__["previous"] = self.__dict__.get(name)
        self.__dict__[name] = value


class Finalised:
    """Reads what it holds when it dies."""

    def __init__(self, value: Any, read: Callable[[Any], Any]):
        self.value = value
        self.read = read

    def __del__(self) -> None:
        self.read(self.value)


class Writer:
    """Writes one program."""

    names = ("x", "y", "z", "w")

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.lines: list[str] = []
        self.fresh = 0
        self.depth = 0
        self.in_loop = False
        self.in_function = True
        self.cells = False

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextlib.contextmanager
    def block(self, text: str) -> Iterator[None]:
        self.line(text)
        self.depth += 1
        yield
        self.depth -= 1

    def name(self) -> str:
        return self.rng.choice(self.names)

    def unique(self, stem: str) -> str:
        self.fresh += 1
        return f"{stem}{self.fresh}"

    def place(self) -> str:
        """Somewhere that a state can be loaded from and stored to."""
        return self.rng.choice(
            [*self.names] * 4
            + ["box.a", "box.b", "slotted.a", "outer.box.a", "hooked.a", "space.a", "d['k']", "d[key]", "c[0]", "c[-1]"]
            + ["G", "G", "box.d['k']", "module.a"]
        )

    def value(self) -> str:
        """An expression for a state."""
        kind = self.rng.randrange(22)
        if kind < 9:
            return self.call()
        if kind < 11:
            return "new()"
        if kind < 15:
            return self.place()
        return self.rng.choice(
            [
                "{{'p': {0}, 'q': [{1}]}}",
                "({0}, {1})",
                "[{0}]",
                "Pair({0}, {1})",
                "shares(first_leaf({0}))",
                "({0} if flip() else {1})",
                "helper({0})",
                "first_leaf({0})",
                "{0}",
            ]
        ).format(self.place(), self.place())

    def call(self) -> str:
        a, b = self.place(), self.place()
        return self.rng.choice(
            ["f({0})"] * 8
            + ["f(f({0}))", "f(new())", "f(state={0})", "f({0}, {1})", "f({0}, {0})", "f(*({0},))", "f(*({0}, {1}))"]
            + ["f(*[{0}])", "f(**{{'state': {0}}})", "helper({0})", "helper(x={0})", "wrapper({0})", "keeping({0})"]
            + ["passing({0})", "box.method({0})", "bound({0})", "f({{'p': {0}, 'q': {1}}})['p']", "f([{0}, {1}])[0]"]
            + ["f(shares(first_leaf({0})))", "next(map(f, [{0}]))", "next(filtered({0}))", "partial(f, {0})()"]
            + ["reduce(f, [{0}, {1}])", "partial(f)({0})", "callable_object({0})", "f(f2({0}, {1})[0])"]
            + ["[f(each) for each in [{0}, {1}]][-1]", "[f({0}) for _ in range(2)][0]", "cached({0})", "f((t := {0}))"]
            + [
                "run_coroutine(later({0}))",
                "sorted([{0}], key=lambda s: len(str(type(f(s)))))[0]",
                "operator.call(f, {0})",
            ]
            + ["(lambda s: f(s))({0})", "(lambda: f({0}))()", "last(generate({0}))", "max([{0}], key=ranked)"]
        ).format(a, b)

    def body(self, size: int) -> None:
        start = len(self.lines)
        for _ in range(self.rng.randint(1, size)):
            self.statement()
        if len(self.lines) == start:
            self.line("pass")

    def statement(self) -> None:
        if self.depth >= 6 or self.rng.random() < 0.72:
            self.simple()
        else:
            self.compound()

    def simple(self) -> None:
        rng, place = self.rng, self.place()
        kind = rng.randrange(40)
        if kind < 12:
            target = place if rng.random() < 0.7 else self.place()
            self.line(f"{target} = {self.call().replace(self.place(), place)}")
        elif kind < 16:
            self.line(f"{place} = f({place})")
        elif kind < 20:
            other = self.place()
            self.line(f"{place}, {other} = f2({place}, {other if rng.random() < 0.6 else self.place()})")
        elif kind < 24:
            self.line(f"{self.name()} = {self.value()}")
        elif kind < 26:
            self.line(f"read({self.place()})")
        elif kind < 27:
            self.line(f"del {self.name()}")
        else:
            text = rng.choice(
                [
                    "c.append({0})",
                    "{1} = c.pop()",
                    "d['k'] = {0}",
                    "box.a = {0}",
                    "{1} = box.a",
                    "G = {0}",
                    "{1} = {2} = {0}",
                    "{1}, {2} = {2}, {1}",
                    "saved.append(weakref.ref(first_leaf({0})))",
                    "saved.append(shares(first_leaf({0})))",
                    "saved.append(lambda value={0}: value)",
                    "saved.append(iter([{0}]))",
                    "q.put({0})",
                    "maybe()",
                    "maybe()",
                    "gc.collect(0)",
                    "f({0})",
                    "{1}, extra = f2({0}, new())",
                    "{1}: object = f({0})",
                    "look_up('{1}')",
                    "{1} = f({1}); read({0})",
                    "saved.append(Finalised({0}, read))",
                    "watched({0})",
                    "{1} += (f({0}),) if isinstance({1}, tuple) else []",
                    "t = ({0}, {1}); {1}, {2} = f2(*t)",
                    "{1} = box; {1} = {0}",
                    "next(suspended(f, {0}), None)",
                    "g = suspended(f, {0}); saved.append(g); {1} = next(g)",
                    "with_thread(lambda: read(box.a), lambda: setattr(box, 'a', f(box.a)))",
                    "saved.append(sys._getframe())" if rng.random() < 0.1 else "pass",
                    "saved.append(locals().copy())" if rng.random() < 0.1 else "pass",
                ]
            ).format(self.place(), self.name(), self.name())
            self.line(text)

    def compound(self) -> None:
        rng = self.rng
        kind = rng.randrange(13)
        if kind < 3:
            self.loop()
        elif kind < 5:
            with self.block("if flip():"):
                self.body(3)
            if rng.random() < 0.6:
                with self.block("else:"):
                    self.body(3)
        elif kind < 8:
            self.attempt()
        elif kind < 9:
            with self.block("with context():"):
                self.body(3)
        elif kind < 10:
            name = self.unique("inner")
            with self.block(f"def {name}(x, y=None, z=None, w=None):"):
                was, self.in_loop = self.in_loop, False
                if self.in_function or rng.random() < 0.5:
                    self.line("global G")
                self.body(3)
                if rng.random() < 0.5:
                    self.line(f"return {self.name()}")
                self.in_loop = was
            self.line(f"{self.name()} = {name}({', '.join(self.place() for _ in self.names)})")
        elif kind < 11:
            name = self.unique("produce")
            with self.block(f"def {name}(x, y=None, z=None, w=None):"):
                self.line("global G")
                was, self.in_loop = self.in_loop, True
                with self.block("for step in range(3):"):
                    self.body(2)
                    self.line(f"yield {self.name()}")
                self.in_loop = was
                self.line(f"read({self.name()})")
            with self.block(f"for {self.name()} in {name}({', '.join(self.place() for _ in self.names)}):"):
                was, self.in_loop = self.in_loop, True
                self.body(2)
                self.in_loop = was
        elif kind < 12:
            with self.block(f"match {self.place()}:"):
                with self.block("case {'p': part}:"):
                    self.line(f"{self.name()} = f(part)")
                with self.block("case [one, *rest]:"):
                    self.line(f"{self.name()} = f(one)")
                with self.block("case whole:"):
                    self.line(f"{self.name()} = f(whole)")
        else:
            name = self.unique("closure")
            with self.block(f"def {name}():"):
                if rng.random() < 0.5 and self.in_function:
                    self.line(f"nonlocal {self.names[0]}")
                    self.line(f"{self.names[0]} = f({self.names[0]})")
                self.line(f"return read({self.names[0]})")
            self.line(rng.choice([f"{name}()", f"saved.append({name})"]))

    def loop(self) -> None:
        rng = self.rng
        was, self.in_loop = self.in_loop, True
        header = rng.choice(
            [
                "for step in range({n}):",
                "for step, batch in enumerate([new() for _ in range({n})]):",
                "for batch in progress([new() for _ in range({n})]):",
                "while flip():",
                "for _ in c[:{n}]:",
                "for x in [{p}, {p2}]:",
            ]
        ).format(n=rng.randint(1, 3), p=self.place(), p2=self.place())
        with self.block(header):
            self.body(4)
            if rng.random() < 0.4:
                with self.block("if flip():"):
                    self.line(rng.choice(["break", "continue"]))
            if rng.random() < 0.5:
                self.body(2)
        if rng.random() < 0.2:
            with self.block("else:"):
                self.body(2)
        self.in_loop = was

    def attempt(self) -> None:
        rng = self.rng
        with self.block("try:"):
            self.body(3)
            if rng.random() < 0.7:
                self.line("maybe()")
            if rng.random() < 0.5:
                self.body(2)
        handled = rng.random() < 0.8
        if handled:
            with self.block(rng.choice(["except Oops:", "except Oops as error:", "except Exception:"])):
                if "as error" in self.lines[-1] and rng.random() < 0.3:
                    self.line("saved.append(error)")
                if rng.random() < 0.3:
                    self.line("pass")
                else:
                    self.body(2)
            if rng.random() < 0.2:
                with self.block("else:"):
                    self.body(2)
        if not handled or rng.random() < 0.3:
            with self.block("finally:"):
                self.body(2)


_HELPERS = """
def helper(x):
    return f(x)

def keeping(x):
    y = f(x)
    read(x)
    return y

def passing(x, *rest):
    y = x
    del x
    return helper(y)

def wrapper(*args, **kwargs):
    return f(*args, **kwargs)

def filtered(x):
    return filter(lambda s: f(s) is not None, [x])

def ranked(state):
    f(state)
    return 0

def method(x):
    box.a = f(x)
    return box.a

box.method = method

async def later(x):
    await pause()
    x = f(x)
    await pause()
    return x

def generate(x):
    for _ in range(3):
        x = f(x)
        yield x

def last(states):
    for state in states:
        pass
    return state

def suspended(f, x):
    y = f(x)
    yield y
    if flip():
        read(x)
"""


_FIRST = ("new()", "{'p': new()}", "[new(), new()]")


def write(seed: int, kind_of_writer: type[Writer] = Writer) -> str:
    """The source of program number `seed`."""
    rng = random.Random(seed)
    writer = kind_of_writer(rng)
    for text in _HELPERS.strip().splitlines():
        writer.line(text)
    at_top = rng.random() < 0.25
    if at_top:
        writer.in_function = False
        for name in writer.names:
            writer.line(f"{name} = {rng.choice(_FIRST)}")
        writer.body(9)
        for name in rng.sample(writer.names, rng.randint(0, 4)):
            writer.line(f"read({name})")
        return "\n".join(writer.lines) + "\n"
    parameters = "x, y" if rng.random() < 0.5 else ""
    kind = rng.choice(["def", "def", "def", "def", "async def"])
    with writer.block(f"{kind} main({parameters}):"):
        writer.line("global G")
        for name in writer.names:
            if name not in parameters:
                writer.line(f"{name} = {rng.choice(_FIRST)}")
        writer.body(9)
        for name in rng.sample(writer.names, rng.randint(0, 3)):
            writer.line(f"read({name})")
    call = "main(new(), {'p': new()})" if parameters else "main()"
    writer.line(f"run_coroutine({call})" if kind == "async def" else call)
    return "\n".join(writer.lines) + "\n"


def environment(stub: Any, seed: int) -> dict[str, Any]:
    """The names that a program finds."""
    rng = random.Random(seed + 1)
    read, new = stub.read, stub.new
    f, f2 = stub.compile(first), stub.compile(both)
    pair = collections.namedtuple("Pair", "left right")
    saved: list[Any] = []

    def flip() -> bool:
        return rng.random() < 0.5

    def maybe() -> None:
        if rng.random() < 0.4:
            raise Oops

    def first_leaf(state: Any) -> Any:
        return tree_leaves(state)[0]

    def progress(items: list[Any]) -> Iterator[Any]:
        yield from items

    def look_up(name: str) -> None:
        """Code in a caller's caller that reads a variable by looking at the frame, if it is there."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        yield

    @types.coroutine
    def pause() -> Iterator[None]:
        yield

    def run_coroutine(coroutine: Any) -> Any:
        try:
            while True:
                coroutine.send(None)
        except StopIteration as stop:
            return stop.value

    def with_thread(look: Callable[[], Any], act: Callable[[], Any]) -> None:
        begin = threading.Event()
        thread = threading.Thread(target=lambda: (begin.wait(), look()))
        thread.start()
        try:
            act()
        finally:
            begin.set()
            thread.join()

    class CallableObject:
        def __call__(self, state: Any) -> Any:
            return f(state)

    cache: dict[int, Any] = {}

    def cached(state: Any) -> Any:
        return cache.setdefault(0, f(state))

    def watched(state: Any) -> None:
        saved.append(weakref.ref(first_leaf(state)))

    box, slotted, hooked = Box(), Slotted(), Hooked()
    box.a, box.b, box.d = new(), new(), {"k": new()}
    slotted.a, slotted.b, hooked.a = new(), new(), new()
    outer = Box()
    outer.box = box
    module = types.ModuleType("module")
    module.a = new()
    return {
        "read": read, "new": new, "f": f, "f2": f2, "bound": types.MethodType(f, new()), "Pair": pair, "Oops": Oops,
        "shares": shares, "first_leaf": first_leaf, "flip": flip, "maybe": maybe, "progress": progress,
        "look_up": look_up, "context": context, "pause": pause, "run_coroutine": run_coroutine, "cached": cached,
        "with_thread": with_thread, "callable_object": CallableObject(), "watched": watched, "Finalised": Finalised,
        "box": box, "slotted": slotted, "hooked": hooked, "outer": outer, "module": module,
        "space": types.SimpleNamespace(a=new()), "c": [new(), new()], "d": {"k": new(), "j": new()}, "key": "j",
        "G": new(), "saved": saved, "q": queue.SimpleQueue(), "weakref": weakref, "gc": gc,
        "partial": functools.partial, "reduce": functools.reduce, "operator": Operators, "sys": sys,
    }  # fmt: skip


class Operators:
    """`operator.call`, which CPython 3.10 did not have."""

    call = staticmethod(operator.call)


_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _read_all(space: dict[str, Any], read: Callable[[Any], Any]) -> None:
    """Read whatever the program has left behind."""
    for name in ("box", "hooked", "space", "module"):
        read({k: v for k, v in vars(space[name]).items() if not callable(v)})
    read((space["slotted"].a, space["slotted"].b))
    for name in ("c", "d", "G", "x", "y", "z", "w"):
        if name in space:
            read(space[name])
    while not space["q"].empty():
        read(space["q"].get())
    for kept in space["saved"]:
        if isinstance(kept, weakref.ref):
            read(kept())
        elif isinstance(kept, Finalised):
            read(kept.value)
        elif isinstance(kept, BaseException):
            trace = kept.__traceback__
            while trace is not None:
                if trace.tb_frame.f_code.co_name == "main":
                    pass
                trace = trace.tb_next
        elif isinstance(kept, types.FrameType) and kept.f_code.co_flags & _SUSPENDS:
            pass  # early releases of CPython 3.13 crash on the variables of a generator that is gone (gh-125723)
        elif isinstance(kept, types.FrameType):
            read([v for k, v in sorted(kept.f_locals.items()) if k in Writer.names])
        elif isinstance(kept, types.FunctionType):
            with contextlib.suppress(NameError, Oops, UnboundLocalError):
                read(kept())
        elif isinstance(kept, types.GeneratorType) or hasattr(kept, "__next__"):
            for value in kept:
                read(value)
        elif isinstance(kept, dict):
            read({k: v for k, v in kept.items() if k in Writer.names})
        else:
            read(kept)


def run(source: str, seed: int, stub: Any) -> str:
    """Run a program, and read what it leaves behind. The name of the exception that ended it, if one did."""
    space = environment(stub, seed)
    space["__name__"] = "program"
    error = ""
    was = gc.isenabled()
    gc.disable()
    try:
        exec(compile(source, f"<program {seed}>", "exec"), space)
    except RuntimeError as raised:
        if "deleted" in str(raised):
            raise
        error = type(raised).__name__
    except Exception as raised:
        error = type(raised).__name__
    finally:
        if was:
            gc.enable()
    _read_all(space, stub.read)
    for kept in space["saved"]:
        if isinstance(kept, Finalised):
            kept.read = id  # when it dies is no longer the program's affair
    return error


def leaves_dead(stub: Stub) -> list[frozenset[int]]:
    """For each call of a run that never donated, the leaves whose buffer nothing read afterwards."""
    last_read: dict[int, int] = {}
    for calls, array in stub.reads:
        last_read[array.unsafe_buffer_pointer()] = calls
    dead = []
    for number, call in enumerate(stub.calls):
        # What was read before call number n, or by it, was read when n calls had been made.
        dead.append(
            frozenset(
                i
                for i, leaf in enumerate(call.leaves)
                if isinstance(leaf, jax.Array) and last_read.get(leaf.unsafe_buffer_pointer(), -1) <= number
            )
        )
    return dead


class Wrong(AssertionError):
    """A program gave something else than it does without donation."""


def check(seed: int, prover: Prover = ownership.held) -> tuple[int, int]:
    """Run one program both ways. How many leaves were dead, and how many of those the prover found."""
    if seed % 20 == 0:
        gc.collect()  # where many arrays are alive, small ones are kept in any case
    source = write(seed)
    proven, oracle = Stub(prover), Stub(None, keeps=True)
    plain = Stub(None)
    try:
        # Every other program finds hidden sharing by age where it can, the others by address.
        with mock.patch.object(buffers, "_MOST", 0 if seed % 2 else 32):
            error = run(source, seed, proven)
    except RuntimeError as raised:
        raise Wrong(f"program {seed} met a deleted array\n{source}") from raised
    expected = run(source, seed, plain)
    if error != expected or proven.reads != plain.reads:
        raise Wrong(
            f"program {seed}: {error!r} instead of {expected!r}; {proven.reads} read, not {plain.reads}\n{source}"
        )
    run(source, seed, oracle)
    dead = leaves_dead(oracle)
    found = sum(len(d & call.dead) for d, call in zip(dead, proven.calls, strict=True))
    return sum(map(len, dead)), found


def main() -> None:
    """Run many programs, and print how many there were and the share of dead leaves that was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--print", action="store_true", help="print the first program and end")
    arguments = parser.parse_args()
    if arguments.print:
        sys.stdout.write(write(arguments.seed))
        return
    start, dead, found, ran = time.perf_counter(), 0, 0, 0
    told = start
    for seed in range(arguments.seed, arguments.seed + arguments.programs):
        possible, made = check(seed)
        dead, found, ran = dead + possible, found + made, ran + 1
        if time.perf_counter() - told > 30:
            told = time.perf_counter()
            sys.stdout.write(f"{ran:,} programs so far, {found:,} of {dead:,} dead leaves found\n")
            sys.stdout.flush()
    seconds = time.perf_counter() - start
    version = ".".join(map(str, sys.version_info[:3]))
    sys.stdout.write(
        f"{ran:,} programs on Python {version}: no wrong value, no deleted array; "
        f"{found:,} of {dead:,} dead leaves found ({found / max(dead, 1):.1%}); {seconds:.0f} s\n"
    )


if __name__ == "__main__":
    main()
