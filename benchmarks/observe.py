"""What really happened: which buffers a call reused, and whether the results are the same to the last bit.

The compiler's figures are of a plan. Here the loop is run and the addresses of all live arrays are read before and
after each call: an array at an address where there was none before is fresh memory, whatever anybody claims.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workload import Step, Workload


@dataclasses.dataclass(frozen=True)
class Observation:
    """The arrays around each call of one run."""

    fresh: tuple[int, ...]
    """For each call, the bytes of arrays that are where no array was before it."""
    held: tuple[int, ...]
    """For each call, the bytes of all arrays that were alive before or after it, shared buffers counted once."""

    @property
    def settled(self) -> int:
        """The number of the first call (from 1 on) from which each takes as much fresh memory as the last.

        A difference of less than 1% of what is held is none: a flag or a fence is not the state.
        """
        last, little = self.fresh[-1], self.held[-1] // 100
        return max((i + 2 for i, n in enumerate(self.fresh) if abs(n - last) > little), default=1)


def batches(workload: Workload, count: int) -> Iterator[Any]:
    """Batches that nothing holds but the loop, as from a data loader; numbers where the step takes none."""
    made = []
    for i in range(count):
        made.append(i if workload.batch is None else workload.batch(i))
        yield made.pop()


def addresses() -> dict[int, int]:
    """Where the live arrays are, and their bytes."""
    return {a.unsafe_buffer_pointer(): a.nbytes for a in jax.live_arrays() if a.nbytes and not a.is_deleted()}


def observe(workload: Workload, step: Step, calls: int) -> Observation:
    """Run the workload's loop for some calls and see what becomes of its buffers."""
    before: dict[int, int] = {}
    fresh: list[int] = []
    held: list[int] = []

    def watched() -> Iterator[Any]:
        made: list[Any] = []
        last: set[int] = set()
        for batch in batches(workload, calls):
            made.append(batch)
            del batch  # the loop alone holds it while the call runs
            before.clear()
            before.update({a: size for a, size in addresses().items() if a not in last})
            # The loop drops this batch when it takes the next: its memory is free for that call's results.
            last = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(made) if isinstance(leaf, jax.Array)}
            yield made.pop()

    def watch(*results: Any) -> None:
        jax.block_until_ready(results)
        after = addresses()
        fresh.append(sum(size for address, size in after.items() if address not in before))
        held.append(sum((before | after).values()))

    workload.loop(step, workload.init, watched(), watch)
    return Observation(tuple(fresh), tuple(held))


def digests(workload: Workload, step: Step, calls: int) -> list[str]:
    """A digest of all results of each call: equal digests are equal bits."""
    found: list[str] = []
    workload.loop(step, workload.init, batches(workload, calls), lambda *results: found.append(digest(results)))
    return found


def digest(tree: Any) -> str:
    """Of every leaf's place, shape, dtype and bits."""
    hashed = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        # A copy, since NumPy's view of the array itself would keep its buffer from being donated to the next call.
        bits = np.asarray(jnp.copy(leaf))
        hashed.update(f"{jax.tree_util.keystr(path)} {bits.dtype} {bits.shape}".encode())
        hashed.update(bits.tobytes())
    return hashed.hexdigest()
