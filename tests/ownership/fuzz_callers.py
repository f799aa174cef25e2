"""Random programs that call compiled functions, run under a prover, under none, and under an oracle.

    python -m tests.ownership.fuzz_callers --programs 200000 --seed 0 [--kind training|ending|owners|fields] [--thread]

Each program is source text, written by one of the modules `*_programs`. Everything that it reads, and everything still
reachable at its end, must have the same values under the prover as under one that never donates, and the same
exceptions must be raised; a buffer called dead too early shows as a deleted array.

Two shares are printed, by leaves, which are all of one size: of what was *dead on this run*, because nothing read it
after the call; and of what *may be donated* by one who knows the program but not its future (`oracle`). The first
counts what no prover may give away: what is read on a path that was not taken this time, or by others who did not
look. The oracle takes twice as long as everything else, and is asked at every tenth program.

With `--thread` the programs run beside another thread, which may read at any moment what their globals lead to: nothing
of that may be given away. The oracle knows of no threads, and is not asked then; nor is this for programs whose
destructors do something, as to look at everything puts these off.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import gc
import inspect
import operator
import queue
import random
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
from jax.tree_util import tree_leaves, tree_map

from pytc import ownership
from pytc.ownership.arrays import executions
from tests.frozen import frozen
from tests.ownership import caller_programs, ending_programs, field_programs, owner_programs, training_programs
from tests.ownership.caller_programs import Writer
from tests.ownership.harness import Stub, TooLarge, both, first, nested, shares
from tests.ownership.oracle import Oracle, buffers_from
from tests.threads import another_thread

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

    all: weakref.WeakSet[Finalised] = weakref.WeakSet()

    def __init__(self, value: Any, read: Callable[[Any], Any]):
        self.all.add(self)
        self.value = value
        self.read = read

    def __del__(self) -> None:
        self.read(self.value)


@jax.tree_util.register_pytree_node_class
class Dying(Box):
    """Does something when it dies, as long as the program `runs`; a tree with a state, or without.

    Those that are made of it in a call do nothing: `Stub` makes them of all arguments, where the real thing makes no
    more than the result.
    """

    all: weakref.WeakSet[Dying] = weakref.WeakSet()

    def __init__(self, runs: list[bool], act: Callable[[], Any], state: Any = None):
        self.all.add(self)
        self.runs = runs
        self.act = act
        self.state = state

    def __del__(self) -> None:
        if self.runs:
            self.act()

    def tree_flatten(self) -> tuple[Any, None]:
        """The state, and nothing else."""
        return (self.state,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Dying:
        """One that does nothing."""
        return cls([], lambda: None, *children)


def environment(stub: Any, seed: int) -> dict[str, Any]:
    """The names that a program finds."""
    rng = random.Random(seed + 1)
    read, new = stub.read, stub.new
    f, f2, f3 = stub.compile(first), stub.compile(both), stub.compile(nested)
    pair = collections.namedtuple("Pair", "left right")
    saved: list[Any] = []
    runs = [True]

    def flip() -> bool:
        return rng.random() < 0.5

    def maybe() -> None:
        if rng.random() < 0.4:
            raise Oops

    def first_leaf(state: Any) -> Any:
        return tree_leaves(state)[0]

    def clone(state: Any) -> Any:
        return tree_map(lambda leaf: new(), state)

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
        "read": read, "new": new, "f": f, "f2": f2, "f3": f3, "bound": types.MethodType(f, new()),
        "Pair": pair, "Oops": Oops, "shares": shares, "first_leaf": first_leaf, "clone": clone, "log": [],
        "types": types, "flip": flip, "maybe": maybe, "progress": progress,
        "look_up": look_up, "context": context, "pause": pause, "run_coroutine": run_coroutine, "cached": cached,
        "with_thread": with_thread, "callable_object": CallableObject(), "watched": watched, "Finalised": Finalised,
        "Dying": functools.partial(Dying, runs), "runs": runs, "Box": Box, "shelf": [],
        "box": box, "slotted": slotted, "hooked": hooked, "outer": outer, "module": module,
        "space": types.SimpleNamespace(a=new()), "c": [new(), new()], "d": {"k": new(), "j": new()}, "key": "j",
        "G": new(), "saved": saved, "q": queue.SimpleQueue(), "weakref": weakref, "gc": gc,
        "partial": functools.partial, "reduce": functools.reduce, "operator": Operators, "sys": sys,
    }  # fmt: skip


class Operators:
    """`operator.call`, which CPython 3.10 did not have."""

    call = staticmethod(operator.call)


_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _read_all(space: dict[str, Any], read: Callable[[Any], Any], glance: Callable[[Any], Any]) -> None:
    """Read whatever the program has left behind."""
    for name in ("box", "hooked", "space", "module"):
        read({k: v for k, v in vars(space[name]).items() if not callable(v)})
    read((space["slotted"].a, space["slotted"].b))
    for name in ("c", "d", "G", *Writer.names, *training_programs.NAMES):
        if name in space:
            read(space[name])
            read(getattr(space[name], "__dict__", None))
    while not space["q"].empty():
        read(space["q"].get())
    for kept in space["saved"]:
        if isinstance(kept, weakref.ref):
            glance(kept())
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


def _file(seed: int) -> str:
    """What a program is called in tracebacks."""
    return f"<program {seed}>"


def code_of(source: str, seed: int) -> types.CodeType:
    """The program as code, to be run more than once."""
    return compile(source, _file(seed), "exec", dont_inherit=True)


class Garbage:
    """Cyclic garbage that looks at a program's globals as it is collected, and leaves more of its kind, as long as that
    `runs`."""

    def __init__(self, space: dict[str, Any], runs: list[bool]):
        self.itself = self
        self.space = space
        self.runs = runs

    def __del__(self) -> None:
        if self.runs:
            values = [
                value for name in ("box", "hooked", "space", "module") for value in vars(self.space[name]).values()
            ]
            values += [self.space["slotted"].a, *map(self.space.get, ("c", "d", "G", *Writer.names))]
            if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in tree_leaves(values)):
                raise RuntimeError("a finaliser has found an array deleted")
            Garbage(self.space, self.runs)


@contextlib.contextmanager
def _collecting(threshold: int) -> Iterator[None]:
    """Garbage is collected whenever so many objects have been made; never, with 0."""
    was, thresholds = gc.isenabled(), gc.get_threshold()
    gc.disable()
    try:
        # What there was before need not be looked through each time.
        with frozen() if threshold else contextlib.nullcontext():
            if threshold:
                gc.set_threshold(threshold, 1000, 1000)
                gc.enable()
            yield
    finally:
        gc.disable()
        gc.set_threshold(*thresholds)
        if was:
            gc.enable()


def run(program: str | types.CodeType, seed: int, stub: Any, collecting: int = 0) -> str:
    """Run a program, and read what it leaves behind. The name of the exception that ended it, if one did.

    Garbage is collected whenever so many objects have been made (never, with 0), and looks then.
    """
    space = environment(stub, seed)
    space["__name__"] = "program"
    error = ""
    unraisable: list[BaseException | None] = []
    runs = [True]
    code = code_of(program, seed) if isinstance(program, str) else program
    with _collecting(collecting):
        try:
            if collecting:
                Garbage(space, runs)
            with mock.patch.object(sys, "unraisablehook", lambda found: unraisable.append(found.exc_value)):
                exec(code, space)
        except RuntimeError as raised:
            if "deleted" in str(raised):
                raise
            error = type(raised).__name__
        except Exception as raised:
            error = type(raised).__name__
        finally:
            gc.disable()
            space["runs"].clear()  # from here on it is no longer the program's affair when something dies
            runs.clear()
    if deleted := next((each for each in unraisable if "deleted" in str(each)), None):
        raise deleted
    with contextlib.suppress(TooLarge):  # what was read until then is compared
        _read_all(space, stub.read, stub.glance)
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
            frozenset(i for i, leaf in call.leaves.items() if last_read.get(leaf.unsafe_buffer_pointer(), -1) <= number)
        )
    return dead


class Wrong(AssertionError):
    """A program gave something else than it does without donation."""


@dataclasses.dataclass
class Tally:
    """Leaves, over all calls of some programs."""

    dead: int = 0
    """Dead on this run."""
    dead_found: int = 0
    """Of these, those that the prover found."""
    allowed: int = 0
    """Those that the oracle allows, which was asked at some of the programs."""
    allowed_found: int = 0
    """Of these, those that the prover found."""
    alive: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """What was dead on this run and is not allowed, by what may still be read."""

    def add(self, other: Tally) -> None:
        """Take over what was counted elsewhere."""
        self.dead, self.dead_found = self.dead + other.dead, self.dead_found + other.dead_found
        self.allowed, self.allowed_found = self.allowed + other.allowed, self.allowed_found + other.allowed_found
        self.alive += other.alive

    @property
    def share(self) -> float:
        """The share of what the oracle allows that the prover found."""
        return self.allowed_found / max(self.allowed, 1)

    def __str__(self) -> str:
        text = (
            f"{self.dead_found:,} of {self.dead:,} leaves found that were dead on the run"
            f" ({self.dead_found / max(self.dead, 1):.1%})"
        )
        if not self.allowed:
            return text
        alive = ", ".join(f"{count:,} by {kind}" for kind, count in self.alive.most_common())
        return (
            f"{text}, {self.allowed_found:,} of {self.allowed:,} that the oracle allows ({self.share:.1%});"
            f" dead on the run and still held: {alive or 'none'}"
        )


class Beside:
    """The prover beside another thread, which reads all that a program's globals, and its finalisers, lead to."""

    def __init__(self) -> None:
        self.given_away = 0
        self.wrong = 0
        """How many leaves were given away, and how many of them the thread could have read."""

    def held(self, call: Any, wanted: Any, outcome: Any) -> Any:
        """As `ownership.held`."""
        kept = ownership.held(call, wanted, outcome)
        dead = [i for i in wanted if i not in kept]
        if dead:
            programs = [space for space in _globals_above(call.frame) if space["__name__"] == "program"]
            reached = buffers_from([*programs, *Finalised.all, *Dying.all], (Stub,))
            self.given_away += len(dead)
            self.wrong += sum(call.leaves[i].unsafe_buffer_pointer() in reached for i in dead)
        return kept


def _globals_above(frame: types.FrameType) -> Iterator[dict[str, Any]]:
    above: types.FrameType | None = frame
    while above is not None:
        yield above.f_globals
        above = above.f_back


def check_beside_a_thread(seed: int, kind: str = "hostile") -> Tally:
    """`check`, beside a thread. Raises `Wrong` also if something is given away that this one can read."""
    beside = Beside()
    with another_thread():
        tally = check(seed, beside.held, kind, asks=False)
    if beside.wrong:
        raise Wrong(f"program {seed} gives away what another thread can read\n{KINDS[kind](seed)}")
    return tally


KINDS: dict[str, Callable[[int], str]] = {
    "hostile": caller_programs.write,
    "training": training_programs.write,
    "ending": ending_programs.write,
    "owners": owner_programs.write,
    "fields": field_programs.write,
}
ASKED = ("hostile", "training")
"""Those of which the oracle is asked. It looks into frames, and what it sees there lives longer than it would."""


def check(seed: int, prover: Prover = ownership.held, kind: str = "hostile", asks: bool | None = None) -> Tally:
    """Run one program in each way, the oracle's where it `asks`. Raises `Wrong` if the prover changes anything, or the
    oracle allows what it must not."""
    if seed % 20 == 0:
        gc.collect()  # where many arrays are alive, small ones are kept in any case
    source = KINDS[kind](seed)
    code = code_of(source, seed)
    # Twice, the second time with other decisions: the call sites, and the ways to the leaves, are known by then.
    known: dict[tuple[int, ...], ownership.Wanted] = {}
    for decisions in (seed + 1, seed):
        proven, plain = Stub(prover), Stub(None)
        proven.wanted = known
        try:
            # Every other program finds hidden sharing by age where it can, the others by address.
            with mock.patch.object(executions, "_MOST", 0 if seed % 2 else 32):
                error = run(code, decisions, proven)
        except RuntimeError as raised:
            raise Wrong(f"program {seed} met a deleted array\n{source}") from raised
        expected = run(code, decisions, plain)
        same = (error, proven.reads) == (expected, plain.reads)
        if not same and (error, proven.reads) not in _when_new(source, seed, decisions):
            raise Wrong(
                f"program {seed}: {error!r} instead of {expected!r}; {proven.reads} read, not {plain.reads}\n{source}"
            )
    keeping = Stub(None, keeps=True)
    run(code, seed, keeping)
    if len(keeping.calls) != len(proven.calls):
        return Tally()  # it ends otherwise by now (see `_when_new`), so the two runs cannot be set side by side
    dead = leaves_dead(keeping)
    found = [call.dead for call in proven.calls]
    tally = Tally(sum(map(len, dead)), _common(dead, found))
    if kind in ASKED and (asks or (asks is None and seed % 10 == 0)):
        tally.add(_ask(source, seed, dead, found))
    return tally


def _when_new(source: str, seed: int, decisions: int) -> list[tuple[str, list[Any]]]:
    """How the program ends, and what it reads, the first few times that it runs, without donation: what a store drops
    dies before or behind it, depending on how far the interpreter has specialised the code."""
    code, ends = code_of(source, seed), []
    for _ in range(3):
        plain = Stub(None)
        ends.append((run(code, decisions, plain), plain.reads))
    return ends


def _ask(source: str, seed: int, dead: list[frozenset[int]], found: list[frozenset[int]]) -> Tally:
    """What the oracle allows in a program. It takes the prover's place, so that what is wrong with it shows, too."""
    oracle = Oracle(source, _file(seed), run.__code__, (Stub,), (*Finalised.all, *Dying.all))
    stub = Stub(oracle.held)
    try:
        run(source, seed, stub)
    except RuntimeError as raised:
        raise Wrong(f"the oracle allows too much in program {seed}\n{source}") from raised
    allowed = [call.dead for call in stub.calls]
    held = [held for call, held in zip(dead, oracle.holders, strict=True) for i, held in held.items() if i in call]
    return Tally(0, 0, sum(map(len, allowed)), _common(allowed, found), collections.Counter(held))


def _common(one: list[frozenset[int]], other: list[frozenset[int]]) -> int:
    return sum(len(a & b) for a, b in zip(one, other, strict=True))


def main() -> None:
    """Run many programs, and print how many there were and the shares of dead leaves that were found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, default="hostile")
    parser.add_argument("--asks", type=int, default=10, help="ask the oracle at one in so many (default: 10)")
    parser.add_argument("--thread", action="store_true", help="beside another thread")
    parser.add_argument("--print", action="store_true", help="print the first program and end")
    arguments = parser.parse_args()
    if arguments.thread and arguments.kind == "ending":
        parser.error("--thread is not for programs whose destructors do something")
    if arguments.print:
        sys.stdout.write(KINDS[arguments.kind](arguments.seed))
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in the background
    start = told = time.perf_counter()
    tally, ran = Tally(), 0
    for seed in range(arguments.seed, arguments.seed + arguments.programs):
        if arguments.thread:
            tally.add(check_beside_a_thread(seed, arguments.kind))
        else:
            tally.add(check(seed, kind=arguments.kind, asks=seed % arguments.asks == 0))
        ran += 1
        if ran == 1:
            gc.freeze()  # what JAX consists of is not looked at by every collection
        if time.perf_counter() - told > 30:
            told = time.perf_counter()
            sys.stdout.write(f"{ran:,} programs so far; {tally}\n")
            sys.stdout.flush()
    seconds = time.perf_counter() - start
    version = ".".join(map(str, sys.version_info[:3]))
    beside = " beside a thread" if arguments.thread else ""
    sys.stdout.write(
        f"{ran:,} {arguments.kind} programs{beside} on Python {version}: no wrong value, no deleted array; {tally};"
        f" {seconds:.0f} s\n"
    )


if __name__ == "__main__":
    main()
