"""pytc: `jax.jit` that donates by itself what nobody can read any more.

Once for each signature of the arguments, fun + arguments -> executable:

    program     the one data structure, `Program`: a jaxpr, and what the caller sees of it
    stage       fun, arguments -> Program; static_outputs: which outputs may be no arrays
    stage_mapped  the same for `pmap`; mapping: which axis of each leaf is mapped
    arguments   which leaves are traced and which are static; shardings and prefixes, leaf by leaf
    passes      Program -> Program; finalise: one of them for functions and jaxprs
    emit        Program -> executable
    effort      which of several plans the compiler finds best: hlo reads its programs, measurements remembers
    context     the settings of JAX that a program was staged under
    uncollected no garbage collection while programs are made

At each call:

    compile     the decorator; pmap: the other one
    options     which options they take; donation: what `donate=` says of each parameter
    compiled    the type of what they return; attributes: its name, signature and methods
    calls       the call path: which program, which leaves it takes over, and the call itself
    ownership   which leaves are dead
    move        what the caller gives away by hand
    interrupt   a Ctrl-C between a donation and the caller's store

For people:

    explain     what was decided and why; reads what the rest leaves behind, and steers nothing
    errors      pytc's own exceptions; fold: several leaves in one line of a message
    __main__    `python -m pytc explain` and `python -m pytc audit`

And for all of these: jax_compat has every use of JAX's less stable modules, classes asks about a class without running
its metaclass's code, provenance whose it is, unheld refers to a function without keeping it alive, picking takes items
out of sequences, set_bits reads the numbers in a set that is kept as bits.
`docs/pipeline.md` tells how the parts fit together.
"""

from pytc import passes
from pytc.compile import compile  # noqa: A004 - the public name
from pytc.errors import (
    DeviceError,
    DonationError,
    DonationWarning,
    RequirementError,
    StaticLeafError,
    VerificationError,
)
from pytc.explain import Explanation, explain
from pytc.finalise import finalise
from pytc.mapping import if_array
from pytc.move import move
from pytc.passes.finalise import register_finalisation
from pytc.pmap import pmap
from pytc.program import Program
from pytc.stage import stage

__all__ = [
    "DeviceError",
    "DonationError",
    "DonationWarning",
    "Explanation",
    "Program",
    "RequirementError",
    "StaticLeafError",
    "VerificationError",
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
