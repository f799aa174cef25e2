"""Cycles among things that must each come before another: which few to give up so that an order exists.

`before[k]` is the set, as bits, of what must come before `k`. Peeling away whatever nothing left must precede leaves
only the cycles and what lies behind them; one member of a cycle is given up, and the peeling goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def break_cycles(before: Sequence[int], price: Callable[[int], tuple[int, ...]]) -> list[int]:
    """Members, ascending, without which there are no cycles; of each cycle found the one with the least `price`.

    Costs about one big-integer operation for each member and each constraint looked at; not the fewest members
    possible, which is NP-hard to find.
    """
    left = (1 << len(before)) - 1
    waiting: dict[int, list[int]] = {}
    given_up = []

    def peel(ready: list[int]) -> None:
        nonlocal left
        while ready:
            member = ready.pop()
            if not left >> member & 1:
                continue
            blockers = before[member] & left & ~(1 << member)
            if blockers:
                waiting.setdefault(_lowest(blockers), []).append(member)
                continue
            left &= ~(1 << member)
            ready += waiting.pop(member, ())

    peel(list(range(len(before))))
    while left:
        victim = min(_cycle(before, left), key=lambda member: (price(member), -member))
        given_up.append(victim)
        left &= ~(1 << victim)
        peel(waiting.pop(victim, []))
    return sorted(given_up)


def _cycle(before: Sequence[int], left: int) -> list[int]:
    """The members of a cycle, every one of `left` having another before it."""
    seen: dict[int, int] = {}
    path: list[int] = []
    member = _lowest(left)
    while member not in seen:
        seen[member] = len(path)
        path.append(member)
        member = _lowest(before[member] & left & ~(1 << member))
    return path[seen[member] :]


def bits(number: int) -> list[int]:
    """The places of the bits that are set, ascending."""
    digits = bin(number)[:1:-1]
    found = []
    at = digits.find("1")
    while at >= 0:
        found.append(at)
        at = digits.find("1", at + 1)
    return found


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
