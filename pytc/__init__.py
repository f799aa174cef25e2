"""pytc: `jax.jit` that donates by itself what nobody can read any more."""

from pytc import passes
from pytc.compile import compile  # noqa: A004 - the public name
from pytc.errors import DonationError, DonationWarning, StaticLeafError
from pytc.explain import Explanation, explain
from pytc.mapping import if_array
from pytc.move import move
from pytc.passes.finalise import finalise, register_finalisation
from pytc.pmap import pmap
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
    "if_array",
    "move",
    "passes",
    "pmap",
    "register_finalisation",
    "stage",
]
