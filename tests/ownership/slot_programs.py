"""Random programs whose states are in attributes, items and globals that anybody can reach, and that results overwrite.

What could look in between is not in the program: garbage that is collected (`fuzz_callers.Garbage`), another thread.
"""

from __future__ import annotations

import random
import textwrap

_HELPERS = """
def one(x):
    return f(x)

def two(x, y):
    a, b = f2(x, y)
    return a, b

def swapped(x, y):
    new = f2(x, y)
    return new[1], (new[0],)

def by_a_helper(x, y):
    a, b = two(x, y)
    return a, b

def method():
    box.a = f(box.a)

def method_of_two():
    x = box.a
    box.a, box.b = two(x, box.b)
    return box

def method_of_globals():
    global G
    G, d['k'] = f2(G, d['k'])
"""

_PLACES = (
    "box.a", "box.b", "outer.box.a", "slotted.a", "space.a", "module.a", "d['k']", "d['j']", "c[0]", "c[-1]", "G",
)  # fmt: skip
_STEPS = (
    "{p} = f({p})", "{p} = one({p})", "{p}, {q} = f2({p}, {q})", "{p}, {q} = two({p}, {q})",
    "{q}, ({p},) = swapped({p}, {q})", "{p}, {q} = by_a_helper({p}, {q})", "({p}, {q}), loss = f3({p}, {q})",
    "x = {p}\n{p} = f(x)", "method()", "method_of_two()", "method_of_globals()", "{p} = f2({p}, {q})[0]",
    "box.n, {p} = f2({q}, {p})", "read({p})", "space.m = {p}", "space.m = None",
)  # fmt: skip


def write(seed: int) -> str:
    """The source text of a program, in a function or a module's own code."""
    rng = random.Random(seed)
    lines = []
    for _ in range(rng.randint(2, 5)):
        p, q = rng.sample(_PLACES, 2)
        step = rng.choice(_STEPS).replace("{p}", p).replace("{q}", q)
        lines += [f"for _ in range({rng.randint(1, 12)}):", textwrap.indent(step, "    ")]
    if rng.random() < 0.5:
        lines = ["def main():", "    global G", *(textwrap.indent(line, "    ") for line in lines), "main()"]
    return "\n".join([_HELPERS, *lines, ""])
