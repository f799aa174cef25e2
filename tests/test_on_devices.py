"""What needs several devices, in processes that have eight."""

from pathlib import Path

import pytest

from tests import interpreters

CASES = sorted(Path(__file__).parent.glob("on_devices/cases_*.py"))


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_on_eight_devices(file: Path) -> None:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    interpreters.printed(command, XLA_FLAGS="--xla_force_host_platform_device_count=8")


READY_IN_PART = """
import jax, jax.numpy as jnp, numpy as np, pytc

a, b = jax.devices()
rows = jax.NamedSharding(jax.make_mesh((2,), ("d",)), jax.P("d"))
slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda i, m: jnp.tanh(m @ m), x)[0, :2])
step = pytc.compile(lambda x: x + 1)


def part_that_is_held():
    first = jax.device_put(jnp.zeros(2), a)
    first.block_until_ready()
    second = slow(jax.device_put(jnp.ones((400, 400)), b))
    whole = jax.make_array_from_single_device_arrays((4,), rows, [first, second])
    in_part.append(not second.is_ready())
    first = step(first)
    return np.asarray(whole)[:2].tolist()


in_part = []
for _ in range(4):
    print(part_that_is_held())
assert all(in_part)
"""


def test_an_array_that_is_ready_in_part_is_on_the_buffers_of_that_part() -> None:
    """Its other part is still being computed, so that it does not tell where it is."""
    told = interpreters.printed(["-c", READY_IN_PART], XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert told.splitlines() == ["[0.0, 0.0]"] * 4
