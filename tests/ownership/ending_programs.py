"""Random programs in which what dies makes calls of its own.

The same as those of `caller_programs`, with variables, containers, slots and loops that hold objects with destructors,
objects with weak references that have callbacks, suspended generators with a `finally`, and cycles for the garbage
collection; when one of these dies, it calls a compiled function. What it hands over may be what is being stored at that
very moment, or what a call further up is about to overwrite.
"""

from __future__ import annotations

from tests.ownership import caller_programs

_HELPERS = """
def shelved(x):
    shelf.append(x)
    return x

def falls():
    if shelf:
        f(shelf.pop())

def falls_twice():
    if shelf:
        x = shelf.pop()
        x = f(x)
        box.b = f(x)

def takes_attribute():
    box.a = f(box.a)

def takes_item():
    read(c[0])
    c[0] = f(c[0])

def takes_both():
    box.a, d['k'] = f2(box.a, d['k'])

def takes_global():
    global G
    G = helper(G)

def looks():
    read([shelf, box.a, c, d, G])

def drops():
    box.a = slotted.a = d['k'] = None
    del shelf[:]

def by_callback(act):
    box = Box()
    watching = weakref.ref(box, lambda _: Dying(act))
    saved.append(lambda: watching)
    return box

def by_generator(act):
    def wait():
        try:
            yield
        finally:
            Dying(act)
    waiting = wait()
    next(waiting)
    return waiting

def by_cycle(act):
    dying = Dying(act)
    dying.itself = dying
    return dying
"""

_ACTS = (
    *("falls", "falls", "falls", "falls_twice", "takes_attribute", "takes_item", "takes_both", "takes_global"),
    *("looks", "looks", "drops"),
)
_WAYS = ("Dying", "Dying", "Dying", "by_callback", "by_generator", "by_cycle")


class Writer(caller_programs.Writer):
    """Writes one such program."""

    helpers = caller_programs.Writer.helpers + _HELPERS
    dropping = ()

    def dying(self) -> str:
        """An expression for something that acts when it dies, or has such a thing in it."""
        rng = self.rng
        way, act = rng.choice(_WAYS), rng.choice(_ACTS)
        state = rng.choice(["", ", new()", f", {self.place()}"]) if way == "Dying" else ""
        form = rng.choice(
            ["{0}", "{0}", "{0}", "[{0}, {1}]", "({1}, {0})", "{{'p': {1}, 'q': {0}}}", "Pair(new(), {0})"]
        )
        return form.format(f"{way}({act}{state})", self.place())

    def simple(self) -> None:
        """One statement; half of the time one that makes something which acts when it dies, or takes part in it."""
        if self.rng.random() < 0.5:
            super().simple()
            return
        text = self.rng.choice(
            [
                "{place} = {dying}",
                "{place} = {dying}",
                "{name} = {dying}",
                "{name} = {dying}",
                "{name}, {other} = {dying}, shelved(new())",
                "{place} = shelved({call})",
                "{name} = shelved(f({name}))",
                "{name}, {other} = shelved(new()), shelved(new())",
                "{name}, {other} = new(), shelved({place})",
                "{name}, {other} = f2(shelved({place}), new())",
                "{place}, {other} = f2({place}, shelved({other}))",
                "{name} = {other} = shelved({call})",
                "{name} = {place} = shelved(new())",
                "{place} = {name} = f({name})",
                "{name}, *{other} = [shelved({place}), {dying}]",
                "f([{place}, {dying}])",
                "{name} = f([{name}, {dying}])",
                "{name} = f({name}, {dying})",
                "{name} = None",
                "del {name}",
                "c.append({dying})",
                "c[:1] = [shelved(new())]",
                "d.update(k=shelved(new()))",
                "for {name} in [{dying}, shelved(new())]: {other} = f({other})",
                "{name} = [f(each) for each in [shelved(new()), {dying}]]",
                "gc.collect(0)",
                "read({name})",
            ]
        )
        name, other = self.rng.sample(self.names, 2)
        place, call = self.place(), self.call()
        self.line(text.format(name=name, other=other, place=place, call=call, dying=self.dying()))

    def loop(self) -> None:
        """Also one with many rounds: up to CPython 3.11 two stores are one step only where code has run some times."""
        if self.rng.random() < 0.8:
            super().loop()
            return
        was, self.in_loop = self.in_loop, True
        with self.block(f"for {self.name()} in [new() for _ in range(12)]:"):
            self.body(3)
        self.in_loop = was


def write(seed: int) -> str:
    """The source of program number `seed`."""
    return caller_programs.write(seed, Writer)
