"""The passes, in order. Each is a function from a frozen `Program` to another; a pipeline is a tuple of them.

    hoist       captured arrays become inputs, one copy for all programs (`copies`), but for those that `elements` says
                stay constants, and those that XLA would compute with (`constants`, `unknown`, `while_loops`)
    finalise    wrappers are replaced by what they stand for
    share       outputs that are one value (`values`) become one
    forward     outputs that are arguments are handed back
    prune       what nothing reads goes
    snapshot    captured arrays that stay constants are copied: not in the pipeline, but after any, before `alias`
    alias       outputs are written over inputs: those of one kind (`fitting`), by the price of each pair (`groups`) and
                the cheapest assignment (`matching`). That depends on who reads what when (`dataflow`, `reads`,
                `rejoined`, `reused`), what is in memory besides (`temporaries`), pairs in each other's way (`crossed`),
                places that temporaries can use until then (`sooner`), and what small programs take on a CPU (`cpu`);
                `candidates` are other choices, for `effort="high"`

`subjaxprs` is how all of them go into a jaxpr's own jaxprs; `axes` is for `pytc.pmap`; and `verify` finds out whether a
pass kept the meaning (`PYTC_VERIFY=1`).

What a pass returns depends on the program alone, with these exceptions: `forward` and `alias` ask JAX which devices
there are, `hoist` and `snapshot` whether 64-bit mode is on and which copies other programs have, and `finalise` looks
up the rules that `register_finalisation` was given.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pytc.attributes import name_of
from pytc.passes.alias import alias
from pytc.passes.axes import varying
from pytc.passes.finalise import finalise
from pytc.passes.forward import forward
from pytc.passes.hoist import hoist
from pytc.passes.prune import prune, prune_outputs
from pytc.passes.share import share
from pytc.passes.snapshot import snapshot
from pytc.passes.verify import verify
from pytc.program import Program
from pytc.uncollected import uncollected

__all__ = [
    "Pass",
    "alias",
    "finalise",
    "forward",
    "hoist",
    "pipeline",
    "prune",
    "prune_outputs",
    "run",
    "share",
    "snapshot",
    "split",
    "varying",
]

Pass: TypeAlias = Callable[[Program], Program]

pipeline: tuple[Pass, ...] = (hoist, finalise, share, forward, prune, alias)


_RENUMBERING = (hoist, share, forward, prune, prune_outputs)
"""They take inputs and outputs out, or add some, which the pairs of `alias` number."""


def run(program: Program, passes: Sequence[Pass] = pipeline) -> Program:
    """The program after all of `passes`. With `PYTC_VERIFY=1` in the environment each one's result is checked.

    A program runs without any of pytc's own passes. So where a jaxpr is nested so deeply that one of them fills
    Python's stack, though JAX itself gets by, that pass is left out and a note says so. A user's own pass raises.

    Raises `TypeError` for what is not a `Program`, and naming a pass that returns none; `ValueError` naming a pass that
    has a result written over a leaf of `Program.keep`, or one of pytc's own that cannot stand after `alias`;
    `VerificationError` naming a pass that changed the meaning; and whatever a pass raises.
    """
    if not isinstance(program, Program):
        raise TypeError(f"passes.run takes a Program, which pytc.stage makes, not {type(program).__name__}")
    verifying = os.environ.get("PYTC_VERIFY") == "1"
    for each in passes:
        if program.aliases and each in _RENUMBERING:
            raise ValueError(
                f"the pass `{name_of(each)}` stands after `alias`, whose pairs it does not know: it goes first"
            )
        try:
            after = uncollected(functools.partial(each, program))
        except RecursionError:
            if each not in (*pipeline, snapshot):
                raise
            after = program.noted(name_of(each), ["left out: the program is nested too deeply for Python's stack"])
        if not isinstance(after, Program):
            raise TypeError(f"the pass `{name_of(each)}` returned {after!r:.80}, not a Program")
        if taken := program.keep.intersection(after.donated):
            paths = ", ".join(f"`{after.leaves[i].path}`" for i in sorted(taken))
            raise ValueError(f"the pass `{name_of(each)}` has results written over {paths}, which `Program.keep` names")
        if verifying and after is not program:
            verify(program, after, by=name_of(each))
        program = after
    return program


def split(passes: Sequence[Pass]) -> tuple[tuple[Pass, ...], tuple[Pass, ...]]:
    """The passes before `alias`, which run once for a signature (on `Program.untouchable`); and `alias`, or a
    `functools.partial` or `functools.wraps` of it, with those after it, which depend on what the caller lets go of
    (`Program.keep`) and run once for each plan."""
    at = next((i for i, each in enumerate(passes) if _is_alias(each)), len(passes))
    return tuple(passes[:at]), tuple(passes[at:])


def _is_alias(each: Pass) -> bool:
    """Whether a pass is `alias`, or stands for it."""
    while each is not alias:
        inner = each.func if isinstance(each, functools.partial) else getattr(each, "__wrapped__", None)
        if inner is None:
            return False
        each = inner
    return True
