"""What is said of a function: a finding for each thing to know, in words, with what it saves."""

from __future__ import annotations

from collections.abc import Sequence

from pytc.explain.audit import order
from pytc.explain.audit.report import ArgumentReport, Finding, Savings
from pytc.explain.audit.uses import Use, times_held
from pytc.explain.sizes import size
from pytc.program import Program

REPLACED = frozenset(["jax.jit", "jax.pmap", "equinox.filter_jit"])
"""What pytc's functions do the same as: of others it is not said what they would save."""

WORTH = 1000
"""An edit is not worth making if it saves less than 1/`WORTH` of the program's memory."""

LEAST = 1024
"""Nor is it if it saves fewer bytes than this."""

WORTH_ORDER = 50
"""Another order of the results, or `pytc.compile`, is not suggested if it saves less than 1/`WORTH_ORDER`."""


def pays(saved: int, total: int) -> bool:
    """Whether an edit is worth making that saves so many of a program's bytes."""
    return saved >= max(LEAST, total // WORTH)


def add(added: Sequence[str], found: Savings | None) -> Finding:
    """What could be donated."""
    text = f"{_listed(added)} dead at every call seen"
    return Finding("add", tuple(added), text, None if found is None else found.saves)


def wrong(name: str, arguments: Sequence[ArgumentReport]) -> Finding:
    """A donation whose holder is known."""
    held = next((each for each in arguments if each.name == name), None)
    why = f": {held.why} ({held.path})" if held is not None and held.why else ""
    return Finding("wrong", (name,), f"{name} is donated, and was still held after the call{why}", None)


def useless(names: Sequence[str]) -> Finding:
    """Donations into which nothing is written."""
    text = f"{_listed(names, 'is', 'are')} donated for nothing: no output fits, so JAX keeps what was given and warns"
    return Finding("useless", tuple(names), text, None)


def no_gain(names: Sequence[str], little: int) -> Finding:
    """What could be donated, and saves nothing, or so `little`."""
    what = "it" if len(names) == 1 else "them"
    saves = f"to donate {what}, too, saves "
    saves += f"no more than {size(little)}" if little > 0 else "nothing: the compiler copies instead"
    text = f"{_listed(names)} dead at every call seen, but {saves}"
    return Finding("no gain", tuple(names), text, None)


def conditional(
    main: Use, wanted: Sequence[str], found: Savings, arguments: Sequence[ArgumentReport], uses: Sequence[Use]
) -> list[Finding]:
    """Arguments that could be donated, too, if nobody reads them before they are overwritten: other threads, mostly."""
    reasons: dict[str, set[str]] = {}
    for argument in arguments:
        if argument.verdict == "not proven" and not argument.donated:
            reasons[argument.name] = {
                reason.onlooker
                for use in uses
                for seen in use.signature.seen.values()
                for i, reason in seen.why.items()
                if use.signature.names[i][0] == argument.name
            }
    hopeful = [name for name, texts in reasons.items() if texts and "" not in texts]
    if not hopeful:
        return []
    saves = found.advised - main.traced.as_jit.footprint([*wanted, *hopeful]).total
    if not pays(saves, found.advised):
        return []
    why = ", and ".join(sorted(set().union(*(reasons[name] for name in hopeful))))
    text = f"{_listed(hopeful, 'is', 'are')} overwritten at once, but {why}: donating saves {size(saves)} if none does"
    return [Finding("if unread", tuple(hopeful), text, saves)]


def by_site(api: str, uses: Sequence[Use], held: Sequence[ArgumentReport]) -> list[Finding]:
    """Findings on arguments that were held in calls from one place, and never in calls from another."""
    decides = "; pytc.compile decides at each call" if api in REPLACED else ""
    findings = []
    for argument in held:
        places: dict[str, bool] = {}
        for use in uses:
            for site, seen in use.signature.seen.items():
                kept = any(use.signature.names[i][0] == argument.name for i in seen.held)
                if seen.calls:
                    places[str(site.place)] = places.get(str(site.place), False) or kept
        dead = [place for place, kept in places.items() if not kept]
        if dead:
            places_own = "its own" if len(dead) == 1 else "their own"
            article = "an" if api.startswith("e") else "a"  # `equinox.filter_jit`
            text = (
                f"{argument.name} was dead at every call seen from {', '.join(dead)}: {article} {api} of {places_own} "
                f"could donate it{decides}"
            )
            findings.append(Finding("by site", (argument.name,), text, None))
    return findings


def at_times(
    main: Use, choices: Sequence[Sequence[str]], found: Savings, held: Sequence[ArgumentReport], uses: Sequence[Use]
) -> list[Finding]:
    """Arguments that were held in half of the calls or fewer, and that could be donated if these are given copies.
    `choices` are what can be donated, the best choice first."""
    times = {argument.name: times_held(argument.name, uses) for argument in held}
    seldom = {name: both for name, both in times.items() if 2 * both[0] <= both[1]}
    for donated in choices:
        harmed = [name for name in donated if any(name in use.harmed(donated) for use in uses)]
        if harmed and seldom.keys() >= {*harmed}:
            saves = found.advised - main.traced.as_jit.footprint(donated).total
            if not pays(saves, found.advised):
                return []
            often = ", ".join(f"{name} was held in {seldom[name][0]} of {seldom[name][1]} calls" for name in harmed)
            those = "that one is" if sum(seldom[name][0] for name in harmed) == 1 else "those are"
            what = "it" if len(harmed) == 1 else "them"
            text = f"{often}: to donate {what} saves {size(saves)} if {those} given a copy"
            return [Finding("at times", tuple(harmed), text, saves)]
    return []


def pairing(main: Use, wanted: Sequence[str], found: Savings, program: Program, total: int) -> list[Finding]:
    """The finding on memory that is lost because JAX pairs in order of position, or donates whole arguments. `total` is
    the compiler's figure for `program`, that of `pytc.compile`."""
    if found.pytc is None:
        return []
    rest = found.advised - total
    if rest < max(LEAST, found.advised / WORTH_ORDER):
        return []
    as_jit = main.traced.as_jit
    leaves = as_jit.staged.leaves
    if wanted:
        better = order.better(as_jit, wanted, program, found.advised - found.advised // WORTH_ORDER)
        if better is not None:
            text = (
                f"the order of the results costs {size(found.advised - better.total)}: JAX writes them into arguments "
                f"in order, first come, first served; return what is now {better.text}, in this order"
            )
            return [Finding("pairing", tuple(wanted), text, found.advised - better.total)]
    beyond = dict.fromkeys(leaves[i].parameter for i in program.donated if leaves[i].parameter not in wanted)
    if beyond:
        text = f"pytc.compile would reuse what is dead of {', '.join(beyond)}, leaf by leaf: {size(rest)} more"
        return [Finding("leaf by leaf", tuple(beyond), text, rest)]
    text = f"JAX's pairs of arguments and results cost {size(rest)}, which pytc.compile would not take"
    return [Finding("pairing", tuple(wanted), text, rest)]


def _listed(names: Sequence[str], one: str = "was", many: str = "were") -> str:
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{listed} {one if len(names) == 1 else many}"
