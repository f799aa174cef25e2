"""The passes, in order. Each is a function from a frozen `Program` to another; a pipeline is a tuple of them.

What a pass returns depends on the program alone, but for what `forward` and `alias` ask JAX of the devices that there
are, and for the rules that `finalise` has been given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pytc.attributes import name_of
from pytc.passes.alias import alias
from pytc.passes.axes import varying
from pytc.passes.finalise import finalise
from pytc.passes.forward import forward
from pytc.passes.hoist import hoist
from pytc.passes.prune import prune
from pytc.passes.share import share
from pytc.program import Program
from pytc.uncollected import uncollected
from pytc.verify import verify

__all__ = ["Pass", "alias", "finalise", "forward", "hoist", "pipeline", "prune", "run", "share", "split", "varying"]

Pass: TypeAlias = Callable[[Program], Program]

pipeline: tuple[Pass, ...] = (hoist, finalise, share, forward, prune, alias)


def run(program: Program, passes: Sequence[Pass] = pipeline) -> Program:
    """The program after all of `passes`. With `PYTC_VERIFY=1` in the environment each one's result is checked.

    None of pytc's own is needed for a program to run. So one that goes deeper into what is nested than Python's stack
    is, where JAX itself gets by, is left out, and noted.
    """
    verifying = os.environ.get("PYTC_VERIFY") == "1"
    for each in passes:
        try:
            with uncollected():
                after = each(program)
        except RecursionError:
            if each not in pipeline:
                raise
            after = program.noted(name_of(each), ["left out: the program is nested too deeply for Python's stack"])
        if not isinstance(after, Program):
            raise TypeError(f"the pass `{name_of(each)}` returned {after!r:.80}, not a Program")
        if verifying and after is not program:
            verify(program, after, by=name_of(each))
        program = after
    return program


def split(passes: Sequence[Pass]) -> tuple[tuple[Pass, ...], tuple[Pass, ...]]:
    """The passes before `alias`, which a signature needs once, and those from it on, which depend on what a caller
    lets go of (`Program.keep`)."""
    at = next((i for i, each in enumerate(passes) if each is alias), len(passes))
    return tuple(passes[:at]), tuple(passes[at:])
