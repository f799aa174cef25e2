"""Bytes in words."""

from __future__ import annotations


def size(nbytes: int) -> str:
    """`4.0 MiB`, `12 KiB`, `512 B`."""
    if nbytes < 1024:
        return f"{nbytes} B"
    number = float(nbytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        number /= 1024
        if number < 1023.5 or unit == "TiB":
            break
    return f"{number:.1f} {unit}" if number < 9.95 else f"{number:.0f} {unit}"
