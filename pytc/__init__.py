"""pytc: `jax.jit` that donates by itself what nobody can read any more.

Once for each signature of the arguments:

    stage        fun, arguments -> `program.Program`; mapped: the same of a map, whose axes are those of mapping
    leaves       what is traced of the arguments and what is static; parted: how static leaves are kept from JAX
    shardings    what is asked for each leaf, spread over the tree by prefix; kept: outputs that are no arrays
    passes       Program -> Program; verify: whether that kept the meaning
    emit         Program -> executable
    effort       which of several plans the compiler finds best, by what hlo reads and measurements remembers

At each call:

    compile      the decorator, and pmap another; compiled: what they return; options, donation: what they are told
    function     the call path; attributes: what it has of the function that it stands for; ahead: JAX's own stages
    direct       calls that go straight to `jax.jit`, with nothing flattened
    lookup       which staged program serves a call; cache, known: what is remembered; context: for which settings
    plan         what a call takes over; move: what the caller says of that
    ownership    which leaves are dead; asking: the same, whatever the objects at hand raise
    interrupt    Ctrl-C meanwhile; tracebacks: of errors

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
