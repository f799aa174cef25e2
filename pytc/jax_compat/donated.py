"""What JAX says of arguments that were donated: in the lowered program, and in a warning.

For JAX 0.10 to 0.12: the text of the warning, and the attributes of the lowered program's arguments.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import jax


@contextlib.contextmanager
def unusable_donations_ignored() -> Iterator[None]:
    """No warning from JAX about donated buffers that it found no use for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield


def given_away(lowered: jax.stages.Lowered) -> list[bool]:
    """For each argument of a lowered program whether a call deletes it: where an output is to be written into it, and
    where it is XLA's to write something into."""
    module: Any = lowered.compiler_ir()
    main = next(each for each in module.body.operations if str(each.attributes["sym_name"]) == '"main"')
    count = len(main.regions[0].blocks[0].arguments)
    if "arg_attrs" not in main.attributes:
        return [False] * count
    named = [{each.name for each in attributes} for attributes in main.attributes["arg_attrs"]]
    return [bool(names & {"tf.aliasing_output", "jax.buffer_donor"}) for names in named]
