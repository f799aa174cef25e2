"""Simulations with stencils, particles and transforms, and a few plain functions of two arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.footprint_programs import Workload, array

SIDE = 4096


def laplacian(u: Any) -> jax.Array:
    return jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u


def heat(u: Any) -> Any:
    return u + 0.1 * laplacian(u)


def wave(before: Any, now: Any) -> Any:
    return now, 2 * now - before + 0.1 * laplacian(now)


def wave_steps(before: Any, now: Any) -> Any:
    return jax.lax.fori_loop(0, 10, lambda _, state: wave(*state), (before, now))


def reaction(u: Any, v: Any) -> Any:
    """Gray and Scott: two fields that feed each other."""
    rate = u * v * v
    return u + 0.16 * laplacian(u) - rate + 0.035 * (1 - u), v + 0.08 * laplacian(v) + rate - 0.1 * v


def padded(u: Any) -> Any:
    """The border stays, the inside is updated."""
    inside = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])
    return u.at[1:-1, 1:-1].set(inside)


def particles(positions: Any, velocities: Any) -> Any:
    def force(positions: Any) -> jax.Array:
        apart = positions[:, None] - positions[None]
        return -jnp.sum(apart / (jnp.sum(apart**2, -1, keepdims=True) + 1e-2), 1)

    velocities = velocities + 0.01 * force(positions)
    return positions + 0.01 * velocities, velocities


def verlet(positions: Any, velocities: Any, forces: Any) -> Any:
    positions = positions + 0.1 * velocities + 0.005 * forces
    new = -positions * jnp.sum(positions**2, -1, keepdims=True)
    return positions, velocities + 0.05 * (forces + new), new


def fluid(u: Any, v: Any, pressure: Any) -> Any:
    divergence = jnp.roll(u, -1, 0) - u + jnp.roll(v, -1, 1) - v
    pressure = jax.lax.fori_loop(0, 10, lambda _, p: p + 0.25 * (laplacian(p) - divergence), pressure)
    return u - (pressure - jnp.roll(pressure, 1, 0)), v - (pressure - jnp.roll(pressure, 1, 1)), pressure


def spectral(u: Any) -> Any:
    frequency = jnp.fft.fftfreq(u.shape[0])[:, None] ** 2
    return jnp.fft.ifft(jnp.fft.fft(u, axis=0) * jnp.exp(-frequency), axis=0)


def automaton(grid: Any) -> Any:
    around = sum(jnp.roll(grid, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
    return ((around == 3) | ((grid == 1) & (around == 2))).astype(grid.dtype)


def converge(x: Any, tolerance: Any) -> Any:
    def unfinished(state: Any) -> Any:
        _, change = state
        return change > tolerance

    def step(state: Any) -> Any:
        x, _ = state
        new = 0.5 * (x + jnp.tanh(x))
        return new, jnp.max(jnp.abs(new - x))

    return jax.lax.while_loop(unfinished, step, (x, tolerance + 1))


def swap(a: Any, b: Any) -> Any:
    return jnp.sin(b), jnp.cos(a)


def rotate(a: Any, b: Any) -> Any:
    """Each result needs both arguments."""
    return 0.6 * a - 0.8 * b, 0.8 * a + 0.6 * b


def square(a: Any) -> Any:
    return a @ a


def transposed(a: Any) -> Any:
    return a.T


def cumulative(a: Any) -> Any:
    return jnp.cumsum(a, 0)


def ordered(a: Any) -> Any:
    return jnp.sort(a, -1)


def permuted(a: Any, b: Any, c: Any) -> Any:
    """Three updates returned in another order, one of them needed by the next."""
    a = a + 1
    b = b * a
    return jnp.tanh(c - b), a, b


FIELD = array(SIDE, SIDE)

PROGRAMS = [
    Workload("heat", heat, (FIELD,)),
    Workload("wave", wave, (FIELD, FIELD)),
    Workload("wave, ten steps", wave_steps, (FIELD, FIELD)),
    Workload("reaction and diffusion", reaction, (FIELD, FIELD)),
    Workload("fixed border", padded, (FIELD,)),
    Workload("particles", particles, (array(2048, 3), array(2048, 3))),
    Workload("verlet", verlet, (array(1 << 22, 3), array(1 << 22, 3), array(1 << 22, 3))),
    Workload("fluid", fluid, (FIELD, FIELD, FIELD)),
    Workload("spectral", spectral, (array(SIDE, SIDE, dtype=jnp.complex64),)),
    Workload("automaton", automaton, (array(SIDE, SIDE, dtype=jnp.int32),)),
    Workload("converge", converge, (FIELD, array())),
    Workload("swap", swap, (FIELD, FIELD)),
    Workload("rotate", rotate, (FIELD, FIELD)),
    Workload("square", square, (FIELD,)),
    Workload("transpose", transposed, (FIELD,)),
    Workload("cumulative", cumulative, (FIELD,)),
    Workload("sort", ordered, (FIELD,)),
    Workload(
        "three updates",
        permuted,
        (FIELD, FIELD, FIELD),
        remarks={"cpu": "one copy, and a fifth less memory: the first update is computed again inside the second."},
    ),
]
