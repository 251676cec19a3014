"""f at the anchors of a lattice against the table that the weights hold."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everyformer.certify.known import Declared
from everyformer.certify.partition.lattice import Lattice
from everyformer.certify.partition.samples import rounded, values_on
from everyformer.numerics.expression import Expression

CHUNK = 8192
"""Anchors at a time."""


@dataclass(frozen=True)
class Gaps:
    """Bounds of F - f over anchors, for each entry.

    Attributes:
        low: (N,), float64, rounded down; -inf where f is not known.
        high: (N,), rounded up.
    """

    low: np.ndarray
    high: np.ndarray

    @property
    def largest(self) -> float:
        """A bound on |F - f|."""
        return float(np.maximum(self.high, -self.low).max())

    @property
    def certain(self) -> np.ndarray:
        """By how much F is above f at all anchors, or below at all; 0 if neither, (N,)."""
        return np.maximum(np.maximum(self.low, -self.high), 0.0)

    @classmethod
    def around(cls, parts: Sequence["Gaps"]) -> "Gaps":
        """Of several parts of a lattice."""
        low = np.min([part.low for part in parts], axis=0)
        return cls(low, np.max([part.high for part in parts], axis=0))


def traced_gaps(
    expression: Expression,
    lattice: Lattice,
    table: np.ndarray,
    first: int = 0,
    stop: int | None = None,
) -> Gaps:
    """Enclose f at anchors and compare.

    Args:
        expression: f.
        lattice: The lattice.
        table: F, (P, N), entry 0 slowest.
        first: Only anchors from this number on, and
        stop: up to this one.
    """
    side = lattice.grid.cells + 1 + 2 * lattice.margin
    numbers = [range(side)] * lattice.size
    lows, highs = map(np.array, rounded(lattice.lows, lattice.steps, numbers))
    stop = len(table) if stop is None else stop
    parts: list[Gaps] = []
    for start in range(first, stop, CHUNK):
        flat = np.arange(start, min(start + CHUNK, stop))
        places = np.stack(np.unravel_index(flat, (side,) * lattice.size))  # [N, count]
        entry = np.arange(lattice.size)[:, None]
        low, high = values_on(expression, lows[entry, places].T, highs[entry, places].T)
        F = table[flat]
        with np.errstate(invalid="ignore"):
            above = np.nextafter(F - low, np.inf).max(axis=0)
            below = np.nextafter(F - high, -np.inf).min(axis=0)
        parts.append(
            Gaps(
                np.where(np.isnan(below), -np.inf, below),
                np.where(np.isnan(above), np.inf, above),
            )
        )
    return Gaps.around(parts)


def declared_gaps(known: Declared, lattice: Lattice, table: np.ndarray) -> Gaps:
    """Compare with values of f at the lattice's points in the box, clipped on the margin.

    Args:
        known: Values in the order of `Cells`, of the K + 1 points of each axis.
        lattice: The lattice.
        table: F, (P, N).
    """
    K, m = lattice.grid.cells, lattice.margin
    n, d = lattice.grid.seq_len, lattice.grid.d_model
    numbers = np.indices((K + 1 + 2 * m,) * lattice.size).reshape(n * d, -1).T
    numbers = np.clip(numbers - m, 0, K).reshape(-1, n, d)
    columns = numbers @ (K + 1) ** np.arange(d)
    cells = columns @ ((K + 1) ** d) ** np.arange(n)[::-1]
    gaps = table - known.values.reshape(len(known.values), -1)[cells]
    size = np.abs(table).max(axis=0) * 2.0**-52
    return Gaps(gaps.min(axis=0) - size, gaps.max(axis=0) + size)
