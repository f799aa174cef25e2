"""Random programs as people write them: loops that train, serve and simulate.

Next to the hostile ones of `caller_programs`, which show that nothing is given away that is still needed, these show
how much of what could be given away is. A state is kept in a variable, an attribute, an item, a field or a global, and
goes through a compiled function step by step; around that is what such loops have: batches, helpers and methods,
evaluation every few steps, the best state so far, averages of states, checkpoints, histories, early stopping, handlers,
generators that hand out states, caches of sessions.
"""

from __future__ import annotations

import dataclasses
import random
import textwrap

NAMES = (
    "state",
    "opt",
    "run",
    "model",
    "ema",
    "best",
    "tokens",
    "losses",
    "sessions",
    "fresh",
    "grads",
    "loss",
    "token",
)
"""The names that a program may leave behind."""

_HELPERS = """
def step(state, batch):
    return f2(state, batch)

def rebuilt(state, batch):
    state, loss = f2(state, batch)
    return state, loss

def update(state):
    new = f(state)
    log.append(len(log))
    return new

def evaluate(state):
    for batch in progress([new() for _ in range(2)]):
        f({'state': state, 'batch': batch})

def batches():
    for _ in range(4):
        yield new()

class Model:
    def __init__(self, state):
        self.state, self.opt, self.ema, self.best, self.history = state, {'m': new()}, new(), None, []

    def forward(self, batch):
        return f([self.state, batch])

    def pure_step(self, state, batch):
        return f2(state, batch)

    def fit(self, batch):
        self.state, self.loss = self.pure_step(self.state, batch)
        return self.loss
"""

_FIRST = ("new()", "{'w': new(), 'b': new()}", "[new(), {'w': new()}]", "Pair(new(), [new()])")
_STEPS = (
    "{s}, loss = f2({s}, batch)",
    "{s}, loss = f2({s}, batch)",
    "{s}, loss = step({s}, batch)",
    "{s}, loss = rebuilt({s}, batch)",
    "{s}, {o} = f2({s}, {o})",
    "({s}, {o}), loss = f3({s}, {o})",
    "carry, loss = f3({s}, {o}); {s}, {o} = carry",
    "{s} = f2({s}, batch)[0]",
    "{s} = f({s}, batch)",
    "{s} = f({s})",
    "{s} = f(state={s})",
    "{s} = update({s})",
    "{s}, loss = f2(*({s}, batch))",
    "{s} = f(f({s}), batch)",
    "{s} = f({{'state': {s}, 'batch': batch}})['state']",
    "fresh = f({s}); {s} = fresh",
    "fresh, loss = f2({s}, batch); {s} = fresh",
    "grads = f({s}, batch); {s}, {o} = f2(grads, {o})",
    "grads = f({s}, batch); {s} = f({s}, grads)",
    "loss = model.fit(batch)",
    "model.state, model.opt = f2(model.state, model.opt)",
    "user = 'ab'[i % 2]; sessions[user] = f(sessions[user], batch)",
    "sessions['c'], token = f2(sessions['c'], token)",
    "token = f(token); tokens.append(token)",
)
_AROUND = (
    "read(loss)",
    "losses.append(loss)",
    "if i % 2 == 0:\n    evaluate({s})",
    "if i % 2 == 0:\n    read({s})",
    "if flip():\n    best = {s}",
    "if flip():\n    best = clone({s})",
    "ema, _ = f2(ema, {s})",
    "ema = f(ema, {s})",
    "if flip():\n    break",
    "if flip():\n    continue",
    "if flip():\n    saved.append({s})",
    "saved.append(clone({s}))",
    "if i == 2:\n    {s} = clone({s})",
    "maybe()",
    "read(model.forward(batch))",
    "model.history.append(clone(model.state))",
    "with context():\n    read(loss)",
    "try:\n    maybe()\nexcept Oops:\n    {s} = clone({s})",
    "pass",
)
_LOOPS = (
    "for i in range(4):\n    batch = new()",
    "for i, batch in enumerate(batches()):",
    "for i, batch in enumerate(progress(list(batches()))):",
    "i = 0\nwhile i < 4:\n    i += 1\n    batch = new()",
)
_GUARDS = (
    *["{loop}"] * 6,
    "try:\n{indented}\nexcept Oops:\n    read({s})",
    "try:\n{indented}\nexcept Oops:\n    {s} = clone(first)\nfinally:\n    read(loss)",
    "try:\n{indented}\nexcept Oops:\n    pass\nfinally:\n    saved.append({s})",
    "with context():\n{indented}",
)


@dataclasses.dataclass(frozen=True)
class _Home:
    """Where a program keeps its state."""

    place: str
    other: str
    begins: str
    """The lines before the loop; `{first}` and `{second}` are the first values."""


_HOMES = (
    *[_Home("state", "opt", "state = {first}\nopt = {second}")] * 4,
    _Home("run.state", "run.opt", "run = types.SimpleNamespace(state={first}, opt={second})"),
    _Home("run['state']", "run['opt']", "run = {{'state': {first}, 'opt': {second}}}"),
    _Home("run[0]", "run[1]", "run = [{first}, {second}]"),
    _Home("model.state", "model.opt", "model = Model({first})"),
    _Home("outer.run.state", "outer.run.opt", "outer.run = types.SimpleNamespace(state={first}, opt={second})"),
)


def write(seed: int) -> str:
    """The source of program number `seed`."""
    rng = random.Random(seed)
    home = rng.choice(_HOMES)
    first, second = rng.choice(_FIRST), rng.choice(_FIRST)
    lines = ["model = Model(new())", "sessions = {'a': new(), 'b': [new()], 'c': new()}", "losses, tokens = [], []"]
    lines += ["ema, best, loss, token, first = new(), None, new(), new(), new()"]
    lines += home.begins.format(first=first, second=second).splitlines()

    def some(kinds: tuple[str, ...], least: int, most: int) -> list[str]:
        chosen = [rng.choice(kinds) for _ in range(rng.randint(least, most))]
        return "\n".join(chosen).format(s=home.place, o=home.other).splitlines()

    before, after = some(_AROUND, 0, 1), some(_AROUND, 0, 2)
    head = rng.choice(_LOOPS).splitlines()
    body = [*before, *some(_STEPS, 1, 2), *after]
    loop = "\n".join([*head, *("    " + line for line in body)])
    guard = rng.choice(_GUARDS).format(loop=loop, indented=textwrap.indent(loop, "    "), s=home.place)
    lines += guard.splitlines()
    lines += rng.sample([f"read({home.place})", f"read({home.other})", "read(best)", "read(tokens)", "read(ema)"], 3)
    form = rng.choice(["script", "def", "def", "def", "async def", "generator"])
    text = _HELPERS
    if form == "script":
        return text + "\n".join(lines) + "\n"
    if form == "generator":
        # It hands out what it has made, and goes on when asked for the next.
        lines = [*"\n".join(lines).replace("    read(loss)", "    yield loss").splitlines(), f"yield {home.place}"]
    keyword = "async def" if form == "async def" else "def"
    text += f"{keyword} main():\n" + textwrap.indent("\n".join(lines), "    ") + "\n"
    return (
        text
        + {
            "def": "main()\n",
            "async def": "run_coroutine(main())\n",
            "generator": "for state in main():\n    read(state)\n",
        }[form]
    )
