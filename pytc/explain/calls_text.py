"""The call sites of a function as text: at each, what is reused, what is kept and why, and what was copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytc.calls.decide import TOO_MANY
from pytc.explain.fold import fold
from pytc.explain.sizes import size
from pytc.explain.terminal import NARROWEST, Paint, counted, painter, wrapped
from pytc.explain.text import MOST_NOTES, more, times
from pytc.ownership.cpython.interpreter import ACTIVE
from pytc.ownership.words.holders import BY_C

if TYPE_CHECKING:
    from pytc.explain.calls import Calls, SiteReport


def of_calls(calls: Calls, width: int, colour: bool) -> str:
    """What happened at each call site; `Calls.text` documents the arguments."""
    width = max(width, NARROWEST)
    paint = painter(colour)
    total = sum(site.calls for site in calls.sites)
    places = len({site.where for site in calls.sites})
    lines = [paint(f"{calls.name}: {counted(total, 'call')} from {counted(places, 'place')}", "headline")]
    for site in calls.sites:
        lines += ["", *_site(site, width, paint)]
    if not calls.sites:
        lines += wrapped(_NOT_COUNTED, width, 2, 2)
    return "\n".join(lines)


_NOT_COUNTED = (
    "Calls under a transformation or in a debugging mode (jax_debug_nans, jax_disable_jit, ...) are jax.jit's, and not "
    "counted."
)
_TO_FREE = (
    "to have it reused: keep it in a local variable alone, which is read neither after the call nor in an exception "
    "handler; of what is needed later keep a copy (jax.tree.map(jnp.copy, ...))"
)
_TO_CALL = (
    "to have it reused: make the call by Python code, with its arguments written out: with no `*`, and no `map`, "
    "`functools.partial` or object with a `__call__` in between"
)
_TO_WATCH_LESS = "to have it reused: run without it, since it could read or keep any array"
_ONCE = ", at one of the calls"
"""Said of a reason that was searched for at one of several calls only; at others it may be another one."""


def _site(site: SiteReport, width: int, paint: Paint) -> list[str]:
    lines = [paint(line, "title") for line in wrapped(_heading(site), width, 2, 0)]
    when = "as of now" if site.changed else "each call"
    lines.append(f"  reused  {size(site.donated_bytes)} in {counted(site.donated, 'leaf', 'leaves')}, {when}")
    lines.append(f"  kept    {size(site.kept_bytes)} in {counted(site.kept, 'leaf', 'leaves')}")
    held = {*site.unseen, *(each.path for each in site.held)}
    lines += _named("can be read after the call", [path for path in site.spared if path not in held], width)
    lines += _named("something else was holding it", [path for path in site.spared if path in held], width)
    if site.handed_back:
        lines.append(f"          handed back as they came: {counted(site.handed_back, 'leaf', 'leaves')}")
    if site.unfit:
        leaves = counted(site.unfit, "leaf", "leaves")
        lines += wrapped(f"no result can be written there, or none that saves memory: {leaves}", width, 10, 10)
    often = {each.path for each in site.held if each.calls > 1}
    for found in fold(site.why, lambda each: (each[0],), lambda each: (each[1], each[0] in often)):
        path, why = found.members[0]
        lines += wrapped(f"{found.texts[0]}{_ONCE if path in often else ''}: {why}", width, 12, 10)
    if others := [why for _, why in site.why if why != TOO_MANY]:
        if all(why.endswith(ACTIVE) for why in others):
            advice = _TO_WATCH_LESS
        else:
            advice = _TO_CALL if all(BY_C in why for why in others) else _TO_FREE
        lines += wrapped(advice, width, 12, 10)
    if site.copied_calls:
        lines.append(f"  copied  {size(site.copied_bytes)} in {counted(site.copied_calls, 'call')}")
        folds = fold(site.held, lambda each: (each.path,), lambda each: (each.nbytes, each.calls, each.why))
        # Most often first; among equals the largest first, since the holders of these are known.
        often_first = sorted(folds, key=lambda found: (-found.members[0].calls, -found.count * found.members[0].nbytes))
        for each in often_first[:MOST_NOTES]:
            first = each.members[0]
            text = f"{times(each.count, first.nbytes)}  {each.texts[0]}: still in use in {counted(first.calls, 'call')}"
            told = (
                f"{_ONCE if first.calls > 1 else ''}: {first.why}"
                if first.why
                else "; what holds it was not looked for"
            )
            lines += wrapped(text + told, width, 12, 10)
        lines += more([each for found in often_first[MOST_NOTES:] for each in found.members], "leaf", "leaves")
    return lines


def _heading(site: SiteReport) -> str:
    """Which calls are meant: `train.py:41 (batch: f32[3]): 11 calls`."""
    folds = fold(site.arguments, lambda each: (each[0],), lambda each: each[1])
    told = [f"{each.texts[0]}: {each.members[0][1]}" for each in folds[:MOST_NOTES]]
    given = f" ({'; '.join(told)}{'; ...' if folds[MOST_NOTES:] else ''})" if told else ""
    return f"{site.where}{given}: {counted(site.calls, 'call')}"


def _named(said: str, paths: Sequence[str], width: int) -> list[str]:
    """`said` of these leaves; nothing if there are none."""
    folds = fold(paths, lambda path: (path,), lambda _: None)
    names = ", ".join(each.texts[0] for each in folds[:MOST_NOTES]) + (", ..." if folds[MOST_NOTES:] else "")
    return wrapped(f"{said}: {names}", width, 10, 10) if names else []
