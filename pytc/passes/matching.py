"""Minimum-cost assignment of outputs to inputs, near-linear where almost every output has one obvious partner.

Costs are small where two belong together and the same elsewhere, so a large problem falls apart into small ones:
the components of "could be cheap". Each is solved exactly; what they leave over is assigned in order. A problem that
is small as it stands is solved exactly as it stands; and where the likely partners of all are different ones, as in an
optimiser's step of any size, nothing is to be solved.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - scipy imports it, which fails while the interpreter ends
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Prices: TypeAlias = Callable[[Sequence[int], Sequence[int]], NDArray[np.float64]]
"""What assigning each of some rows to each of some columns costs; always finite."""

EXACT = 250_000
"""Up to this many entries a cost matrix is written out and solved as a whole."""
FEW = 10
"""Up to so many rows and columns, assignments are found without SciPy."""
TRIES = 16
"""How many columns are tried for a row that has no partner of its own in a large problem."""


def assign(
    rows: int, columns: int, prices: Prices, cheap: Sequence[Mapping[int, float]], elsewhere: float
) -> list[tuple[int, int]]:
    """Pair `min(rows, columns)` rows with columns, one to one, so that the costs add up to the least.

    `cheap[row]` holds the columns that are likely partners, and what they cost; it need not be complete. What is not
    among them costs `elsewhere` at least. Exact up to `EXACT` entries; beyond that exact within each component of
    `cheap`, first fit for the rest. Deterministic.
    """
    if obvious := _obvious(cheap, elsewhere):
        return obvious
    if rows * columns <= EXACT:
        return _exact(range(rows), range(columns), prices)
    pairs: list[tuple[int, int]] = []
    for some_rows, some_columns in _components(rows, columns, cheap):
        if len(some_rows) * len(some_columns) <= EXACT:
            found = _exact(some_rows, some_columns, prices)
        else:
            found = _greedy(some_rows, cheap)
        pairs += [(row, column) for row, column in found if column in cheap[row]]
    left_rows = sorted(set(range(rows)) - {row for row, _ in pairs})
    left_columns = sorted(set(range(columns)) - {column for _, column in pairs})
    if len(left_rows) * len(left_columns) <= EXACT:
        return sorted(pairs + _exact(left_rows, left_columns, prices))
    return sorted(pairs + _first_fit(left_rows, left_columns, prices))


def _obvious(cheap: Sequence[Mapping[int, float]], elsewhere: float) -> list[tuple[int, int]]:
    """Each row with its cheapest column of all, where no two have the same one: no assignment costs less. Else none."""
    pairs = []
    for row, known in enumerate(cheap):
        price, column = min(((price, column) for column, price in known.items()), default=(elsewhere, -1))
        if price >= elsewhere:
            return []
        pairs.append((row, column))
    return pairs if len({column for _, column in pairs}) == len(pairs) else []


def _exact(rows: Sequence[int], columns: Sequence[int], prices: Prices) -> list[tuple[int, int]]:
    if not rows or not columns:
        return []
    if len(rows) == len(columns) == 1:
        return [(rows[0], columns[0])]
    chosen_rows, chosen_columns = _least(prices(rows, columns))
    return [(rows[r], columns[c]) for r, c in zip(chosen_rows.tolist(), chosen_columns.tolist(), strict=True)]


def _least(costs: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The assignment of the least cost, rows ascending."""
    # Where the cheapest partners of all are different ones, no assignment is cheaper.
    if costs.shape[0] <= costs.shape[1]:
        best = costs.argmin(axis=1)
        if len(np.unique(best)) == len(best):
            return np.arange(len(best)), best
    if max(costs.shape) <= FEW:
        return _least_of_all(costs)
    from scipy.optimize import linear_sum_assignment  # takes almost as long to import as JAX, and is seldom needed

    rows, columns = linear_sum_assignment(costs)
    return rows, columns


def _least_of_all(costs: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The same, by the least of all ways to assign the first rows to each set of columns (Held and Karp, 1962); of
    equal ones the first. Takes time exponential in the columns."""
    if costs.shape[0] > costs.shape[1]:
        columns, rows = _least_of_all(costs.T)
        order = rows.argsort()
        return rows[order], columns[order]
    least: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for row in costs.tolist():
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for taken, (cost, way) in least.items():
            for column, price in enumerate(row):
                more = taken | 1 << column
                if more != taken:
                    found = cost + price, (*way, column)
                    longer[more] = min(longer.get(more, found), found)
        least = longer
    _, best = min(least.values())
    return np.arange(len(best)), np.array(best)


def _greedy(rows: Sequence[int], cheap: Sequence[Mapping[int, float]]) -> list[tuple[int, int]]:
    """The cheapest pairs first."""
    order = sorted((price, row, column) for row in rows for column, price in cheap[row].items())
    taken_rows: set[int] = set()
    taken_columns: set[int] = set()
    pairs = []
    for _, row, column in order:
        if row not in taken_rows and column not in taken_columns:
            taken_rows.add(row)
            taken_columns.add(column)
            pairs.append((row, column))
    return pairs


def _first_fit(rows: Sequence[int], columns: Sequence[int], prices: Prices) -> list[tuple[int, int]]:
    """Each row with the cheapest of the next few columns."""
    left = list(reversed(columns))
    pairs = []
    for row in rows:
        if not left:
            break
        window = left[: -TRIES - 1 : -1]
        best = int(np.argmin(prices([row], window)))
        pairs.append((row, left.pop(-1 - best)))
    return pairs


def _components(rows: int, columns: int, cheap: Sequence[Mapping[int, float]]) -> list[tuple[list[int], list[int]]]:
    """Rows and columns that `cheap` connects, each ascending."""
    parent = list(range(rows + columns))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for row in range(rows):
        for column in cheap[row]:
            parent[root(row)] = root(rows + column)
    members: dict[int, tuple[list[int], list[int]]] = {}
    for row in range(rows):
        if cheap[row]:
            members.setdefault(root(row), ([], []))[0].append(row)
    for column in range(columns):
        if (component := members.get(root(rows + column))) is not None:
            component[1].append(column)
    return list(members.values())
