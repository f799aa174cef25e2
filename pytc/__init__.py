"""pytc: `jax.jit` that donates by itself what nobody can read any more.

Once for each signature of the arguments:

    stage        fun, arguments -> `program.Program`; mapped: the same of a map, whose axes are those of mapping
    arguments    what is traced of them and what is static; what is asked for each leaf
    kept         outputs that are no arrays
    passes       Program -> Program; verify: whether that kept the meaning
    emit         Program -> executable, for the settings that context tells
    effort       which of several plans the compiler finds best, by what hlo reads and measurements remembers

At each call:

    compile      the decorator, and pmap another; compiled: what they return; options, donation: what they are told
    calls        the call path; attributes: what it has of the function that it stands for
    ownership    which leaves are dead; move: what the caller says of that
    interrupt    Ctrl-C meanwhile

Beside that: explain reads what all this leaves behind, jax_compat has what is less stable of JAX's API, classes tells
of classes without asking them, picking takes items out of sequences, uncollected pauses the garbage collector while
programs are made, errors are pytc's own, and `__main__` is for a shell. How the parts fit together is in
`docs/pipeline.md`.
"""

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
