"""Numbers of users' classes, which JAX asks for their values between the proof and the execution."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import pytc

KEPT: list[Any] = []


class Whole(int):
    def __int__(self) -> int:
        KEPT.append(self.of)  # type: ignore[attr-defined]
        return int.__add__(self, 0)

    __index__ = __int__


class Real(float):
    def __float__(self) -> float:
        KEPT.append(self.of)  # type: ignore[attr-defined]
        return float.__add__(self, 0.0)


@pytest.mark.parametrize("kind", [Whole, Real])
def test_a_number_that_keeps_what_it_refers_to_as_it_is_asked_for_its_value(kind: Any) -> None:
    step = pytc.compile(lambda x, scale: x * scale)

    def use() -> Any:
        x = jnp.ones(1000)
        scale = kind(2)
        scale.of = x
        return step(x, scale)

    for _ in range(8):
        KEPT.clear()
        use()
        for x in KEPT:
            assert float(x[0]) == 1
