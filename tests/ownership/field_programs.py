"""Random programs whose state is one field of a container, of which other fields are read again.

The containers are dictionaries, lists, tuples, named tuples, dataclasses and objects; they are made anew from their
fields, or copied with some of them changed. Most classes are as people write them. Some have a say in what is read: a
property, a `_make` or a constructor that raises, a number whose `+` gives the class a property, a finaliser. And from
time to time something else refers to the container, or a field is read that should not be.
"""

from __future__ import annotations

import random
import textwrap

_CLASSES = """
import collections, dataclasses, typing, weakref
from dataclasses import replace

class Named(typing.NamedTuple):
    p: typing.Any
    n: int = 0
    q: typing.Any = None

class Checked(collections.namedtuple('Checked', 'p n q')):
    @classmethod
    def _make(cls, values):
        maybe()
        return tuple.__new__(cls, values)

class Iterated(collections.namedtuple('Iterated', 'p n q')):
    def __iter__(self):
        saved.append(self[0])
        return tuple.__iter__(self)

class Renamed(collections.namedtuple('Renamed', 'p n q')):
    n = property(lambda self: (saved.append(self.p), self[1])[1])

@dataclasses.dataclass
class Record:
    p: typing.Any
    n: int = 0
    q: typing.Any = None

    def changed(self, **updates):
        return dataclasses.replace(self, **updates)

    def changed_and_kept(self, **updates):
        saved.append(self.p)
        return dataclasses.replace(self, **updates)

@dataclasses.dataclass(frozen=True, slots=True)
class Slim:
    p: typing.Any
    n: int = 0
    q: typing.Any = None

    def changed(self, **updates):
        return dataclasses.replace(self, **updates)

@dataclasses.dataclass
class Strict(Record):
    r: typing.Any = dataclasses.field(default=None, init=False)

    def __post_init__(self):
        self.r = self.q
        maybe()

@dataclasses.dataclass
class Asked(Record):
    def __getattribute__(self, name):
        if name == 'n':
            saved.append(object.__getattribute__(self, 'p'))
        return object.__getattribute__(self, name)

@dataclasses.dataclass
class Ending(Record):
    def __del__(self):
        if runs:
            read(self.p)

class Number(int):
    of = None

    def __add__(self, other):
        kind = Number.of
        if kind is not None and flip():
            before = vars(kind).get('q')
            try:
                kind.q = property(lambda self: saved.append(self.p) or self.__dict__.get('q', 0), lambda *_: None)
            except TypeError:
                pass
            undo.append((kind, before))
        return Number(int(self) + other)

undo = []

def put_back():
    while undo:
        kind, before = undo.pop()
        if before is None:
            if 'q' in vars(kind):
                del kind.q
        else:
            kind.q = before

def step(s):
    s = K(f(s.p), s.n + 1, s.q)
    return s

def stepped(s):
    x = f(s.p)
    return K(x, s.n + 1, s.q)

def part(s):
    return f(s.p), s.n

def twice(s):
    return stepped(stepped(s))

def passed_on(s):
    return stepped(s)

def changed(s):
    x = f(s.p)
    return s._replace(p=x) if hasattr(s, '_replace') else replace(s, p=x)

def replaced(s):
    x = f(s.p)
    return replace(s, p=x, n=s.n + 1)

def of_named(s):
    x = f(s.p)
    return s._replace(p=x, n=s.n + 1)

def with_loss(s):
    x, loss = f2(s.p, new())
    return K(x, s.n + 1, s.q), loss

def anew(d):
    x = f(d['p'])
    return {'p': x, 'n': d['n'] + 1, 'q': d['q']}

def anew_later(d):
    x = f(d['p'])
    maybe()
    return {'p': x, 'n': d['n'] + 1, 'q': d['q']}

def anew_through(d):
    return anew(d)

def row_anew(c):
    x, y = f2(c[0], new())
    read(y)
    return [x, c[1], c[2]]

def gone(p):
    return f(p)
"""

_STEPS = (
    "{s} = K(f({s}.p), {s}.n + 1, {s}.q)",
    "{s} = K(f({s}.p), q={s}.q, n={s}.n)",
    "{s} = K(gone({s}.p), {s}.n, {s}.q)",
    "x = f({s}.p); {s} = K(x, {s}.n + 1, {s}.q)",
    "x, loss = f2({s}.p, batch); {s} = K(x, {s}.n + 1, {s}.q)",
    "{s} = K(f({s}.p), {s}.n * 2 + 1, {s}.q)",
    "x, y = f2({s}.p, {s}.q); {s} = K(x, {s}.n, y)",
    "{s} = K({s}.p, {s}.n + 1, f({s}.q))",
    "x = f({s}.q); {s} = K({s}.p, {s}.n, x)",
    "{s} = step({s})", "{s} = stepped({s})", "x, n = part({s}); {s} = K(x, n, None)",
    "{s} = twice({s})", "{s} = passed_on({s})", "{s} = changed({s})", "{t} = stepped({s})", "{s} = stepped(s=({s}))",
    "{s}, loss = with_loss({s})", "x = {s}; {s} = passed_on({s})", "{t}, loss = with_loss({s})",
)  # fmt: skip
_COPIES = {
    "Named": ("{s} = {s}._replace(p=f({s}.p))", "{s} = {s}._replace(p=f({s}.p), n={s}.n + 1)",
              "{s} = {s}._replace(n={s}.n + 1, p=f({s}.p))", "x = f({s}.p); {s} = {s}._replace(p=x)",
              "x, loss = f2({s}.p, batch); {s} = {s}._replace(p=x, n={s}.n + 1)",
              "x, y = f2({s}.p, {s}.q); {s} = {s}._replace(p=x, q=y)",
              "{s} = {s}._replace(q=f({s}.q))", "{t} = {s}._replace(q=f({s}.p))", "{t} = {s}._replace(p=f({s}.p))",
              "{s} = {s}._replace(p=f({s}.p), q={s}.p)", "{s} = {s}._replace(p=f({s}.p), z=1)",
              "x = f({s}.p); {s} = {s}._replace(p={s})",
              "{s} = of_named({s})", "{t} = of_named({s})", "x = f({s}.p); {s} = {s}._replace(n={s}.n + 1, q=x)"),
    "Record": ("{s} = replace({s}, p=f({s}.p))", "{s} = dataclasses.replace({s}, p=f({s}.p), n={s}.n + 1)",
               "{s} = {s}.changed(p=f({s}.p))", "x = f({s}.p); {s} = {s}.changed(n={s}.n + 1, p=x)",
               "x = f({s}.p); {s} = replace({s}, p=x)",
               "x, loss = f2({s}.p, batch); {s} = dataclasses.replace({s}, p=x)",
               "{s} = replace({s}, q=f({s}.q))", "{t} = replace({s}, q=f({s}.p))", "{t} = replace({s}, p=f({s}.p))",
               "{s} = replace({s}, p=f({s}.p), q={s}.p)", "{s} = replace({s}, p=f({s}.p), z=1)",
               "x = f({s}.p); {s} = replace({s}, p={s})",
               "{s} = replaced({s})", "{t} = replaced({s})", "{s} = {s}.changed(n=1, p=f({s}.p))"),
}  # fmt: skip
_PLAIN = (
    "d = {'p': f(d['p']), 'n': d['n'] + 1, 'q': d['q']}", "x = f(d['p']); d = {'p': x, 'n': d['n'], 'q': d['q']}",
    "x = f(d['p']); maybe(); d = {'p': x, 'n': d['n'], 'q': d['q']}", "d = {'p': f(d['p']), 'n': d['n'], 'q': d['p']}",
    "x = f(d['p']); d = {'p': x, 'n': d['n'], 'q': d[key]}", "c = [f(c[0]), c[1] + 1, c[2]]",
    "x = f(c[0]); c = [x, c[1], c[2]]", "c = [f(c[0]), c[1], c[-3]]", "x, y = f2(c[0], c[2]); c = [x, c[1], y]",
    "t3 = (f(t3[0]), t3[1] + 1, t3[2])", "x = f(t3[0]); t3 = (x, t3[1], t3[2])", "t3 = (f(t3[0]), t3[1], t3[-3])",
    "t3 = (gone(t3[0]), t3[1], t3[2])", "d = {**d, 'p': f(d['p'])}", "d = dict(d, p=f(d['p']))",
    "x = f(d['p']); read(d['q']); d = {'p': x, 'n': d['n'], 'q': d['q']}",
    "x = f(d['p']); d2 = d; d = {'p': x, 'n': d['n'], 'q': new()}",
    "d = {'p': f(d['p']), 'n': d['n'] + 1, 'q': d['q']} if flip() else d",
    "d = anew(d)", "d = anew_later(d)", "d = anew_through(d)", "x = anew(d); read(x); d = x", "x, d = d, anew(d)",
    "c = row_anew(c)", "x = row_anew(c); read(c[0])", "t3 = tuple(row_anew(t3))", "d = anew(d) if flip() else d",
)  # fmt: skip
_EXPOSE = (
    "saved.append({s})", "shelf.append({s})", "{t} = {s}", "alias = {s}", "saved.append(weakref.ref({s}))",
    "saved.append(getattr({s}, '__dict__', None))", "saved.append(lambda held={s}: held.p)", "read({s}.p)",
    "{s} = K({s}.p, {s}.n, {s}.p)", "{s} = K(new(), Number(1), {s}.q); Number.of = K", "{s} = K({s}.p, new(), {s}.q)",
    "saved.append(d)", "alias = d", "d['q'] = d['p']", "c[2] = c[0]", "saved.append(c)", "c = [*t3]", "t3 = (*c,)",
    "saved.append(t3)", "d['z'] = new()", "shelf.append({s}.p)",
)  # fmt: skip
_HIDE = (
    "del saved[:]", "del shelf[:]", "alias = None", "Number.of = None; put_back()", "{s} = K(new(), 0, new())",
    "d = {'p': new(), 'n': 0, 'q': new()}", "c = [new(), 0, new()]", "t3 = (new(), 0, new())", "x = y = None",
)  # fmt: skip
_KINDS = ("Named",) * 5 + ("Record",) * 5 + ("Slim",) * 3
_ODD_KINDS = ("Checked", "Iterated", "Renamed", "Strict", "Asked", "Ending")


class _Writer:
    def __init__(self, seed: int, objects: bool):
        self.rng = random.Random(seed)
        self.kind = self.rng.choice(_KINDS if self.rng.random() < 0.7 else _ODD_KINDS)
        named = self.kind in ("Named", "Checked", "Iterated", "Renamed")
        steps = (*_STEPS, *_COPIES["Named" if named else "Record"])
        self.steps = tuple(step for step in steps if objects or "p={s})" not in step)

    def one(self, texts: tuple[str, ...]) -> str:
        """One of some texts, with what stands for a variable filled in."""
        s, t = self.rng.choice((("s", "t"), ("s", "t"), ("t", "s")))
        return self.rng.choice(texts).replace("{s}", s).replace("{t}", t)

    def step(self) -> str:
        """One that goes through a compiled function."""
        return self.one(self.steps if self.rng.random() < 0.7 else _PLAIN)

    def handled(self) -> list[str]:
        """A step, and what is done if it raises."""
        handler = self.one(("read({s}.q)", "read({s})", "read({s}.p)", "pass", "saved.append(error)", "read(d)"))
        return ["try:", f"    {self.step()}", "except (Oops, ValueError, TypeError) as error:", f"    {handler}"]

    def block(self, depth: int) -> list[str]:
        """Some statements."""
        lines: list[str] = []
        for _ in range(self.rng.randint(1, 4)):
            chance = self.rng.random()
            if chance < 0.55 or depth == 0:
                lines.append(self.step())
            elif chance < 0.65:
                lines += self.handled()
            elif chance < 0.74:
                lines.append(self.one(_EXPOSE))
            elif chance < 0.84:
                lines.append(self.one(_HIDE))
            elif chance < 0.88:
                lines.append(self.one(("read({s}.q)", "read({s}.n)", "read(d['q'])", "read(c[2])", "read(t3[1])")))
            else:
                head = self.rng.choice(("for _ in range(2):", "for _ in range(3):", "if flip():", "while flip():"))
                lines += [head, *(f"    {line}" for line in self.block(depth - 1))]
        return lines

    def program(self) -> str:
        """The source of a whole program."""
        body = [
            "s, t, batch, alias, x, y = K(new(), 0, new()), K(new(), 0, new()), new(), None, None, None",
            "d, c, t3 = {'p': new(), 'n': 0, 'q': new()}, [new(), 0, new()], (new(), 0, new())",
            "for _ in range(3):",
            *(f"    {line}" for line in self.block(2)),
            "put_back()",
            "Number.of = None",
            *self.rng.sample(["read((s.p, s.q))", "read((t.p, t.q))", "read(d)", "read(c)", "read(t3)"], 4),
        ]
        if self.rng.random() < 0.1:
            body.append("saved.append(lambda: s.p)")  # then it is a cell
        text = ["def main():", textwrap.indent("\n".join(body), "    ")]
        if self.rng.random() < 0.15:
            text = [*body]  # all of it in globals
        else:
            text.append("main()")
        return "\n".join([_CLASSES, "key = 'q'", f"K = {self.kind}", *text])


def write(seed: int, objects: bool = True) -> str:
    """The program of this seed; without `objects` all states are arrays."""
    return _Writer(seed, objects).program()
