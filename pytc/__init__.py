"""pytc: `jax.jit` that donates by itself what nobody can read any more."""

from pytc import passes
from pytc.compile import compile  # noqa: A004 - the public name
from pytc.errors import DonationError, DonationWarning, StaticLeafError
from pytc.explain import Explanation, explain
from pytc.move import move
from pytc.passes.finalise import finalise, register_finalisation
from pytc.program import Program
from pytc.stage import stage

__all__ = [
    "DonationError",
    "DonationWarning",
    "Explanation",
    "Program",
    "StaticLeafError",
    "compile",
    "explain",
    "finalise",
    "move",
    "passes",
    "register_finalisation",
    "stage",
]
