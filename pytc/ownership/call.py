"""One call of a compiled function: who made it, and with what."""

from __future__ import annotations

from types import FrameType
from typing import Any


class Call:
    """One call of a compiled function, as it is handed from the function that was called to the proof.

    The counts rely on what refers to the parts of a call: one variable each of the function that was called, to the
    tuple and the dictionary of its arguments; and this object, to all four. Nothing else does, and each function on the
    way refers to this object by one variable. So none of these unpacks it while the proof is made.
    """

    __slots__ = ("args", "frame", "kwargs", "leaves")

    def __init__(self, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]):
        self.frame = frame
        """The frame that made the call."""
        self.args = args
        self.kwargs = kwargs
        self.leaves = leaves
        """The leaves of the arguments, PRNG keys among them as keys or as their bits; empty where the arguments are not
        flattened."""
