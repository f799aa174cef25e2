"""Sets of small numbers, as the bits of an integer."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_MANY = 64
"""From about so many on, NumPy is faster."""


def set_bits(number: int) -> list[int]:
    """The places of the bits that are set, ascending."""
    if number.bit_count() > _MANY:
        octets = np.frombuffer(number.to_bytes((number.bit_length() + 7) // 8, "little"), np.uint8)
        places: list[int] = np.flatnonzero(np.unpackbits(octets, bitorder="little")).tolist()
        return places
    digits = bin(number)[:1:-1]
    found = []
    at = digits.find("1")
    while at >= 0:
        found.append(at)
        at = digits.find("1", at + 1)
    return found


def by_member(sets: Iterable[int]) -> dict[int, list[int]]:
    """By number: the places of the sets that have it, ascending."""
    found: dict[int, list[int]] = {}
    for place, each in enumerate(sets):
        for number in set_bits(each):
            found.setdefault(number, []).append(place)
    return found
