"""The exceptions that pytc raises of its own."""

from __future__ import annotations


class DonationError(RuntimeError):
    """`donate="require"`: a leaf whose memory an output could take over is still in use by the caller.

    Raised before the program runs, so that every array is as it was.
    """


class StaticLeafError(TypeError, ValueError):
    """A static leaf cannot be part of the key under which a compiled program is kept: it cannot be hashed, it can be
    read only once, or the function reads an array in it, which may be another one at the next call.

    It is both a `TypeError`, which `jax.jit` raises for a leaf that is not an array, and a `ValueError`, which it
    raises for a static argument that cannot be hashed.
    """


class DonationWarning(UserWarning):
    """`donate="warn"`: leaves that the caller gave away and that no output can be written into."""


class DeviceError(ValueError):
    """A device that cannot be compiled for: unknown, too small for the program's mesh, or its compiler is not here."""


class RequirementError(AssertionError):
    """`Explanation.require`: the program does not do what was required of it. The message ends with the table."""


class VerificationError(Exception):
    """With `PYTC_VERIFY=1`: a pass changed what the program means. Names the pass, and a file to reproduce it."""


class LeftToJit(TypeError):
    """A function that pytc does not compile, whose calls are left to `jax.jit`: it reads something that `jax.jit` would
    pass to the program anew at each call, a tracer of another function or an object that has a state in the trace; or
    takes or returns what only `jax.jit` makes arrays of; or one of its primitives goes by the name of another one, or
    does more than its equations say."""
