"""The call sites of a function as text: at each, what is reused, what is kept and why, and what was copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytc.explain.sizes import size
from pytc.explain.terminal import NARROWEST, Paint, counted, painter, wrapped
from pytc.explain.text import MOST_NOTES, more, times
from pytc.fold import fold
from pytc.ownership import Remedy

if TYPE_CHECKING:
    from pytc.explain.calls import Calls, HeldReport, SiteReport


def of_calls(calls: Calls, width: int, colour: bool) -> str:
    """What happened at each call site; `Calls.text` documents the arguments."""
    width = max(width, NARROWEST)
    paint = painter(colour)
    total = sum(site.calls for site in calls.sites)
    places = len({site.where for site in calls.sites})
    since = f", and {counted(calls.forgotten_calls, 'call')} from places forgotten since" if calls.forgotten else ""
    headline = f"{calls.name}: {counted(total, 'call')} from {counted(places, 'place')}{since}"
    lines = [paint(line, "headline") for line in wrapped(headline, width, 2, 0)]
    for site in calls.sites:
        lines += ["", *_site(site, width, paint)]
    if not calls.sites:
        lines += wrapped(_NOT_COUNTED, width, 2, 2)
    return "\n".join(lines)


_NOT_COUNTED = (
    "Call it, or give pytc.explain arguments for it. Calls under a transformation or in a debugging mode "
    "(jax_debug_nans, jax_disable_jit, ...) are jax.jit's, and not counted."
)
_ADVICE: dict[Remedy, str] = {
    "local": "keep it in a local variable alone, which is read neither after the call nor in an exception handler; of "
    "what is needed later keep a copy (jax.tree.map(jnp.copy, ...))",
    "store": "store the result where it was, in the statement of the call or the next one; or keep it in a local "
    "variable alone",
    "plain": "keep it in an item of a dict or a list itself, in an attribute of an object whose class has no say in "
    "that (no `__setattr__`, no property, no base class that is written in C), or in a local variable alone",
    "key": "work out the key before, as a string or an integer in a variable (`j = i % 3`, `j = Kind.A.name`), and "
    "store the result under that: `d[j] = step(d[j])`",
    "rename": "rename the variable, or overwrite it by the result in the statement of the call: `s = step(s)`",
    "apart": "make the call in a function of its own, without that, or overwrite the variable by the result in the "
    "statement of the call: `s = step(s)`",
    "weakref": "drop the weak reference (a WeakValueDictionary has such, too), or have it refer to a copy",
    "traceback": "do not keep the exception, or drop its traceback (`e = e.with_traceback(None)`)",
    "call": "make the call by Python code, with its arguments written out: with no `*`, and no `map`, "
    "`functools.partial` or object with a `__call__` in between",
    "watch": "run without it, since it could read or keep any array",
    "copy": "copy what is to be kept (np.array(x)), where np.asarray(x) or np.from_dlpack(x) shows the memory of the "
    "array itself",
}
_OF_PLACES: frozenset[Remedy] = frozenset(("local", "store", "plain", "key"))
"""About where the leaf is: a local variable does in place of all of these."""
_PASSED_OVER = "not worth compiling the program once more for"
_ONCE = ", at one of the calls"
"""Said of a reason that was searched for at one of several calls only; at others it may be another one."""


def advice(remedies: Iterable[Remedy]) -> str:
    """What to do where leaves are kept for these reasons; of several kinds, each."""
    known = {each for each in remedies if each != "none"}
    if len(known) > 1 and known <= _OF_PLACES:
        known = {"local"}
    return "; and ".join(text for remedy, text in _ADVICE.items() if remedy in known)


def _site(site: SiteReport, width: int, paint: Paint) -> list[str]:
    lines = [paint(line, "title") for line in wrapped(_heading(site), width, 2, 0)]
    when = "as of now" if site.changed else "each call"
    lines.append(f"  reused  {size(site.donated_bytes)} in {counted(site.donated, 'leaf', 'leaves')}, {when}")
    lines.append(f"  kept    {size(site.kept_bytes)} in {counted(site.kept, 'leaf', 'leaves')}")
    held = {*site.unseen, *(each.path for each in site.held)}
    lines += _named("can be read after the call", [path for path in site.spared if path not in held], width)
    holding = held.difference(site.exposed)
    lines += _named("something else was holding it", [path for path in site.spared if path in holding], width)
    lines += _named("something else could read it meanwhile", site.exposed, width)
    lines += _named(_PASSED_OVER, site.passed_over, width)
    if site.handed_back:
        lines.append(f"          handed back as they came: {counted(site.handed_back, 'leaf', 'leaves')}")
    if site.unfit:
        leaves = counted(site.unfit, "leaf", "leaves")
        lines += wrapped(f"no result can be written there, or none that saves memory: {leaves}", width, 10, 10)
    often = {each.path for each in site.held if each.calls > 1}
    reasons: dict[tuple[str, bool], list[str]] = {}
    for path, why in site.why:
        reasons.setdefault((why, path in often), []).append(path)
    for (why, searched_once), paths in reasons.items():
        lines += wrapped(f"{_names(paths)}{_ONCE if searched_once else ''}: {why}", width, 12, 10)
    if site.advice:
        lines += wrapped(f"to have it reused: {site.advice}", width, 12, 10)
    if site.copied_calls:
        lines.append(f"  copied  {size(site.copied_bytes)} in {counted(site.copied_calls, 'call')}")
        together: dict[tuple[int, str], list[HeldReport]] = {}
        for each in site.held:
            together.setdefault((each.calls, each.why), []).append(each)
        # Most often first; among equals the largest first, since the holders of these are known.
        often_first = sorted(together.items(), key=lambda item: (-item[0][0], -sum(each.nbytes for each in item[1])))
        for (calls, why), members in often_first[:MOST_NOTES]:
            told = f"{_ONCE if calls > 1 else ''}: {why}" if why else "; what holds it is not known"
            held_in = f"{_names([each.path for each in members])}: still in use in {counted(calls, 'call')}"
            lines += wrapped(f"{_size(members)}  {held_in}{told}", width, 12, 10)
        rest = [each for _, members in often_first[MOST_NOTES:] for each in members]
        lines += more(rest, "leaf", "leaves")
    return lines


def _size(leaves: Sequence[HeldReport]) -> str:
    """The bytes of these leaves: of each, if that is the same."""
    sizes = {each.nbytes for each in leaves}
    return times(len(leaves), sizes.pop()) if len(sizes) == 1 else size(sum(each.nbytes for each in leaves))


def _heading(site: SiteReport) -> str:
    """Which calls are meant: `train.py:41 (batch: f32[3]): 11 calls`."""
    folds = fold(site.arguments, lambda each: (each[0],), lambda each: each[1])
    told = [f"{each.texts[0]}: {each.members[0][1]}" for each in folds[:MOST_NOTES]]
    given = f" ({'; '.join(told)}{'; ...' if folds[MOST_NOTES:] else ''})" if told else ""
    return f"{site.where}{given}: {counted(site.calls, 'call')}"


def _named(said: str, paths: Sequence[str], width: int) -> list[str]:
    """`said` of these leaves; nothing if there are none."""
    return wrapped(f"{said}: {_names(paths)}", width, 10, 10) if paths else []


def _names(paths: Sequence[str]) -> str:
    """The leaves in few words."""
    folds = fold(paths, lambda path: (path,), lambda _: None)
    return ", ".join(each.texts[0] for each in folds[:MOST_NOTES]) + (", ..." if folds[MOST_NOTES:] else "")
