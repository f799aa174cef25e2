"""Random programs that call compiled functions in every way there is, none of them kind.

Assignments, aliases, containers, attributes, items, globals, closures, loops, branches, exceptions, generators,
coroutines, helpers, deletions, threads, calls from C, weak references, hidden sharing, garbage collection.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

_HELPERS = """
def helper(x):
    return f(x)

def keeping(x):
    y = f(x)
    read(x)
    return y

def rebuilt(x, y):
    x, y = f2(x, y)
    return x, y

def inside(x, y):
    z, x = f2(y, x)
    return (x, z), 0

def passing(x, *rest):
    y = x
    del x
    return helper(y)

def wrapper(*args, **kwargs):
    return f(*args, **kwargs)

def packed(*states):
    states = list(states) if flip() else states
    if flip():
        saved.append(states)
    return states

def keep(x):
    if flip():
        saved.append(x)

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

class Called:
    def __call__(self, x, *rest):
        if flip():
            saved.append(rest)
        y = f(x)
        if flip():
            read(x)
        return y

class Handed:
    def __call__(self, *args):
        return helper(*args)

class Made:
    def __new__(cls, x):
        f(x)
        return super().__new__(cls)

    def __init__(self, x):
        self.a = x

called, handed = Called(), Handed()

def second(first, x, *rest, key=None):
    keep(x)
    return f(x)

half, keyed = partial(second, 1), partial(second, 1, key=2)

def suspended(f, x):
    y = f(x)
    yield y
    if flip():
        read(x)
"""


class Writer:
    """Writes one program."""

    names = ("x", "y", "z", "w")
    helpers = _HELPERS
    dropping = (
        "box.n = Box(); box.n.a = f({0}); keep(box.n.a); box.n.a, box.n = f2(box.n.a, {1}); {1} = box.n",
        "d['n'] = {{'k': f({0})}}; keep(d['n']['k']); d['n']['k'], d['n'] = f2(d['n']['k'], {1})",
    )
    """Slots that are dropped with what they are in. None of them is reused."""

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

    def call(self, first: str | None = None) -> str:
        """A call, of the state in the place `first` if that is given."""
        a, b = first or self.place(), self.place()
        return self.rng.choice(
            ["f({0})"] * 8
            + ["f(f({0}))", "f(new())", "f(state={0})", "f({0}, {1})", "f({0}, {0})", "f(*({0},))", "f(*({0}, {1}))"]
            + ["f(*[{0}])", "f(**{{'state': {0}}})", "helper({0})", "helper(x={0})", "wrapper({0})", "keeping({0})"]
            + ["f(*packed({0}))", "f(*packed({0}, {1}))", "box.method(*packed({0}))"]
            + ["passing({0})", "box.method({0})", "bound({0})", "f({{'p': {0}, 'q': {1}}})['p']", "f([{0}, {1}])[0]"]
            + ["f(shares(first_leaf({0})))", "next(map(f, [{0}]))", "next(filtered({0}))", "partial(f, {0})()"]
            + ["called({0})", "called({0}, {1})", "handed({0})", "half({0})", "keyed({0})", "half({0}, {1})"]
            + ["partial(helper)({0})", "partial(keeping)({0})", "partial(second, {1}, key={0})({0})", "Made({0}).a"]
            + ["max({0}, {1}, key=lambda s: ranked(s))", "partial(called)({0})", "partial(keyed)({0})"]
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
            self.line(f"{target} = {self.call(place if rng.random() < 0.5 else None)}")
        elif kind < 16:
            self.line(f"{place} = f({place})")
        elif kind < 20:
            other = self.place()
            given = f"{place}, {other if rng.random() < 0.6 else self.place()}"
            if rng.random() < 0.6:
                self.line(f"{place}, {other} = f2({given})")
            else:
                forms = (
                    f"({place}, {other}), extra = f3({given})",
                    f"{place}, {other} = rebuilt({given})",
                    f"({place}, {other}), extra = inside({given})",
                    f"t, extra = f3({given}); {place}, {other} = t",
                    f"{place} = f2({given})[0]",
                    f"{other} = f2({given})[-1]",
                    f"t = f3({given}); {place} = t[0][0]; {other} = t[0][1]",
                )
                self.line(rng.choice(forms))
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
                    "t = [{0}, new()]; t = [f(s) for s in t]; {1} = t[0]",
                    "t = [{1}, {0}]; {1} = None; t = [f2(s, e)[0] for s, e in zip(t, t[::-1])]; {1} = t",
                    "t = [{1}, {2}]; {1} = {2} = None; t = [f(s) for i, s in enumerate(t)]; {1}, {2} = t",
                    "t = {{'a': {0}, 'b': new()}}; t = {{k: f(s) for k, s in t.items()}}; {1} = t['b']",
                    "t = [{0}, new(), new()]; {1} = [f(s) for s in t if flip()]; maybe(); read(t) if flip() else None",
                    "read([{1} for {1} in [{0}, new()]])",
                    "next(suspended(f, {0}), None)",
                    "g = suspended(f, {0}); saved.append(g); {1} = next(g)",
                    *self.dropping,
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
            if rng.random() < 0.3:
                self.loop_through_states()
            else:
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
            self.line(
                rng.choice(
                    [f"{name}()", f"{name}(); del {name}", f"saved.append({name})", f"saved.append({name}); del {name}"]
                )
            )

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

    def loop_through_states(self) -> None:
        """A loop that overwrites each state where it comes from, or does something of the kind."""
        rng, name = self.rng, self.name()
        header, first, place = rng.choice(
            [
                ("for at, {0} in enumerate(c):", "if at > 2: break", "c[at]"),
                ("for at, {0} in zip(range({1}), c):", "pass", "c[at]"),
                ("for {0}, at in zip(c, range({1})):", "pass", "c[at]"),
                ("for which, {0} in d.items():", "pass", "d[which]"),
                ("for which, {0} in reversed(d.items()):", "pass", "d[which]"),
                ("for pair in enumerate(c[:{1}]):", "at, {0} = pair; saved.append(pair) if flip() else None", "c[at]"),
                ("for at, {0} in enumerate(generate({2})):", "pass", "{0}"),
            ]
        )
        was, self.in_loop = self.in_loop, True
        with self.block(header.format(name, rng.randint(1, 2), self.place())):
            self.line(first.format(name))
            if rng.random() < 0.3:
                self.body(1)
            place = place.format(name)
            self.line(f"{place} = {self.call(rng.choice([name, place]))}")
            if rng.random() < 0.5:
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


_FIRST = ("new()", "{'p': new()}", "[new(), new()]")


def write(seed: int, kind_of_writer: type[Writer] = Writer) -> str:
    """The source of program number `seed`."""
    rng = random.Random(seed)
    writer = kind_of_writer(rng)
    for text in writer.helpers.strip().splitlines():
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
