"""Which inputs and results of pairs are copied: XLA's `CopyInsertion`, before there is an order.

Then one loop is known to run before another only if the other needs what it makes. So, of an output that is written
over an input,

    - the input is copied first if some loop reads it that the output does not need. All loops then read the copy;
    - the output is made elsewhere, and then copied, if it need not come after that copy, since nothing that it is made
      of has been read from there; or if there is none, and its own loop reads the input at other places.

Source: `xla/service/copy_insertion.cc` of openxla/xla.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytc.passes.cpu.fusion import Fused, Node

_NONE: frozenset[int] = frozenset()


class Copied(NamedTuple):
    """A program with its copies. Their values have numbers after all others."""

    nodes: Sequence[Node]
    readers: Mapping[int, Sequence[int]]
    """For each stored value, the nodes that read it, in the compiler's order."""
    after: Mapping[int, int]
    """For nodes that copy a result: the one that copies the input first."""
    original: Mapping[int, int]
    """For each copied value, that of an input or a result: what it is a copy of, or is copied to."""


def copied(program: Fused, over: Mapping[int, int], free: int) -> Copied:
    """The program with copies for results (values) that are written over inputs. Numbers of values are `free` from this
    one on."""
    maker = {value: number for number, node in enumerate(program.nodes) for value in node.makes if value in over}
    inputs, results = [], []
    for value, given in over.items():
        number = maker[value]
        needed = program.needed[number] | 1 << number
        are_needed = [bool(needed >> reader & 1) for reader in program.readers.get(given, ())]
        if not all(are_needed):
            inputs.append(given)
            if not any(are_needed):
                results.append(value)
        elif given in program.nodes[number].elsewhere:
            results.append(value)
    if not inputs and not results:
        return Copied(program.nodes, program.readers, {}, {})
    instead = {value: free + k for k, value in enumerate((*inputs, *results))}

    def renamed(values: frozenset[int]) -> frozenset[int]:
        return values if instead.keys().isdisjoint(values) else frozenset([instead.get(v, v) for v in values])

    nodes = [Node((instead[given],), frozenset([given]), _NONE) for given in inputs]
    for node in program.nodes:
        makes = node.makes if instead.keys().isdisjoint(node.makes) else tuple([instead.get(v, v) for v in node.makes])
        nodes.append(Node(makes, renamed(node.in_step), renamed(node.elsewhere)))
    nodes += [Node((value,), frozenset([instead[value]]), _NONE) for value in results]
    first, last = len(inputs), len(inputs) + len(program.nodes)
    readers: dict[int, list[int]] = {}
    for value, numbers in program.readers.items():
        readers[instead.get(value, value)] = [first + number for number in numbers]
    readers |= {given: [k] for k, given in enumerate(inputs)}
    for k, value in enumerate(results):
        readers.setdefault(instead[value], []).append(last + k)
    copy_of = {given: k for k, given in enumerate(inputs)}
    after = {last + k: copy_of[over[value]] for k, value in enumerate(results) if over[value] in copy_of}
    return Copied(nodes, readers, after, {copy: value for value, copy in instead.items()})
