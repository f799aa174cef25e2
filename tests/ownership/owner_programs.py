"""Random programs in which variables own objects, whose attributes and items go through compiled functions.

The states are in objects, parts of objects, dictionaries and lists that mostly nothing but local variables refers to,
here and in the functions above; from time to time something else does, which others could reach: a list, a weak
reference, a closure, a bound method, a suspended generator, an object's `__dict__`, a frame. To be run beside another
thread as well.
"""

from __future__ import annotations

import random
import textwrap

_HELPERS = """
class Owner:
    def __init__(self, state):
        self.a, self.b, self.items, self.rows = state, new(), {'k': new(), 'l': new()}, [new(), {'w': new()}]

    def advance(self):
        self.a = f(self.a)

    def advance_twice(self):
        self.advance()
        self.b = self.advanced()

    def advanced(self):
        return f(self.b)

    def both(self):
        self.a, self.b = f2(self.a, self.b)

    def states(self):
        for _ in range(2):
            self.a = f(self.a)
            yield
        read(self.a)

class Narrow:
    __slots__ = ('a', 'b', 'items', 'rows', '__weakref__')

    __init__ = Owner.__init__

def advance(owner):
    owner.a = f(owner.a)

def further(owner):
    other = owner
    other.b, loss = f2(other.b, other)
    return loss

def hand_on(owner):
    advance(owner)
    if flip():
        further(owner)

def waiting(owner):
    yield
    read(owner.a)

def exposed(owner):
    saved.append(sys._getframe())
    advance(owner)

def handled(owner):
    try:
        raise Oops
    except Oops as error:
        if flip():
            saved.append(error)
        advance(owner)

def suspended(owner):
    generator = waiting(owner)
    next(generator)
    return generator

def within(owner):
    owner = [owner]
    owner[0].a = f(owner[0].a)
    return owner
"""

_PLACES = (
    "{o}.a", "{o}.b", "{o}.items['k']", "{o}.items[key]", "{o}.rows[0]", "{o}.rows[-1]", "{o}.rows[1]['w']",
    "d['k']", "c[0]", "{o}.part.a", "{o}.part.items['k']", "d['o'].a", "c[1].rows[0]", "{o}.items[{o}.name]", "box.a",
)  # fmt: skip
_STEPS = (
    "{p} = f({p})", "{p} = f({p})", "{p} = f({p})", "{p}, {q} = f2({p}, {q})", "{p} = f2({p}, batch)[0]",
    "{o}.advance()", "{o}.advance_twice()", "{o}.both()", "advance({o})", "hand_on({o})", "within({o})",
    "handled({o})", "exposed({o})",
    "for _ in {o}.states(): read({o}.b)",
    "for {o} in [owner, other]: {o}.a = f({o}.a)",
    "with context(): {p} = f({p})",
    "x = {p} = f({p})",
)  # fmt: skip
_HELD = ("{o}", "{o}", "{o}.part", "{o}.items", "{o}.rows", "d", "c", "{o}.rows[1]")
_EXPOSE = (
    "saved.append({h})", "shelf.append({h})", "saved.append(weakref.ref({o}))", "saved.append(partial(read, {h}))",
    "saved.append(lambda held={h}: read([]))", "saved.append({o}.advance)", "saved.append(suspended({o}))",
    "{o}.itself = {o}", "box.o = {h}", "log.append(iter([{h}]))", "d['o'] = {o}", "c[1] = {o}",
    "{o}.part = Owner(new())", "log.append({o}.__dict__)", "{o}.__dict__", "saved.append(within({o}))", "alias = {o}",
    "alias = None", "{o}.part = owner", "gc.collect()",
)  # fmt: skip
_HIDE = (
    "del saved[:]", "del shelf[:]", "del log[:]", "box.o = None", "{o}.itself = None", "d['o'] = Owner(new())",
    "c[1] = Owner(new())", "{o} = Owner(new()); {o}.part, {o}.name = Owner(new()), 'k'",
)  # fmt: skip


class _Writer:
    def __init__(self, seed: int):
        self.rng = random.Random(seed)

    def one(self, texts: tuple[str, ...]) -> str:
        """One of some texts, with what stands for other texts filled in."""
        text = self.rng.choice(texts)
        owner = self.rng.choice(("owner", "other"))
        for name, among in (("{p}", _PLACES), ("{q}", _PLACES), ("{h}", _HELD)):
            text = text.replace(name, self.rng.choice(among))
        return text.replace("{o}", owner)

    def block(self, depth: int) -> list[str]:
        """Some statements."""
        lines: list[str] = []
        for _ in range(self.rng.randint(2, 5)):
            chance = self.rng.random()
            if chance < 0.5 or depth == 0:
                lines.append(self.one(_STEPS))
            elif chance < 0.62:
                lines.append(self.one(_EXPOSE))
            elif chance < 0.75:
                lines.append(self.one(_HIDE))
            elif chance < 0.8:
                lines.append(f"read({self.one(_PLACES)})")
            else:
                head = self.rng.choice(("for _ in range(2):", "if flip():", "while flip():"))
                lines += [head, *(f"    {line}" for line in self.block(depth - 1))]
        return lines

    def program(self) -> str:
        """The source of a whole program."""
        kind = self.rng.choice(("Owner", "Owner", "Owner", "Narrow"))
        body = [
            f"owner, other, batch, alias = {kind}(new()), Owner(new()), new(), None",
            "other.part, other.name = Owner(new()), key",
            *(["owner.part, owner.name = Owner(new()), key"] if kind == "Owner" else []),
            "d, c = {'k': new(), 'o': Owner(new())}, [new(), Owner(new())]",
            "for _ in range(3):",
            *(f"    {line}" for line in self.block(2)),
            "read([owner.a, owner.b, owner.items, owner.rows, d['k'], c[0]])",
            "read([other.a, other.b, other.items, other.rows])",
        ]
        if self.rng.random() < 0.2:
            body.append("saved.append(lambda: read(owner.a))")  # then it is a cell
        return "\n".join([
            _HELPERS,
            "key = 'k'",
            "def main():",
            textwrap.indent("\n".join(body), "    "),
            "def around(owner):",
            "    main()",
            "    owner.advance()",
            "    read(owner.a)",
            self.rng.choice(("main()", "around(Owner(new()))")),
        ])  # fmt: skip


def write(seed: int) -> str:
    """The program of this seed."""
    return _Writer(seed).program()
