"""Sets of small numbers, as the bits of an integer."""

from __future__ import annotations


def set_bits(number: int) -> list[int]:
    """The places of the bits that are set, ascending."""
    digits = bin(number)[:1:-1]
    found = []
    at = digits.find("1")
    while at >= 0:
        found.append(at)
        at = digits.find("1", at + 1)
    return found
